"""JSON sources: forms, errors that name the line, and what was found."""

import gzip
import json
import pickle

import pytest
from source_items import read

from covey import Features, errors
from covey.sources import open_source, open_splits

SourceError = errors.SourceError


def lines(*values):
    return "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in values)


def test_json_lines(write_file):
    path = write_file(lines({"x": [1, 2], "n": {"a": "b"}}, "\n", {"x": [], "n": {"a": "c"}}))
    source = open_source(path)
    assert list(source.examples) == [
        (0, {"x": [1, 2], "n": {"a": "b"}}),
        (1, {"x": [], "n": {"a": "c"}}),
    ]
    assert list(Features.infer(example for _, example in source.examples)) == ["x", "n/a"]


def test_errors_of_lines(write_file):
    good = {"x": 1, "label": "owl"}
    bad = ['{"x": 1,\n', "[1]\n", '{"x": 1} {"x": 2}\n', {"x": 2}, {"x": 2, "label": None}]
    source = open_source(
        write_file(lines(good, *bad, '{"x": "owl', "\n", good, "7", "\n", "{" * 5))
    )
    found = read(source)
    assert [found[0], found[7]] == [(0, good), (7, good)]
    reasons = dict(found[1:7] + found[8:])
    assert {
        line: reason[:17] for line, reason in reasons.items() if "JSON" in reason
    } == dict.fromkeys((2, 4, 7, 10), "is not valid JSON")
    assert reasons[3] == "found a list of 1 numbers; must be an object"
    assert reasons[5] == reasons[6] == "the label is missing; the object has 'x'"
    assert reasons[9] == "found a number; must be an object"
    assert list(source.examples)[4].feature == "label"


def test_json_lines_with_invalid_bytes(write_file):
    path = write_file(b'\xef\xbb\xbf{"x": 1}\n{"x": "\xe9"}\n' + b'{"x": ' + b"[" * 100_000 + b"\n")
    found = read(open_source(path))
    assert found[:2] == [(0, {"x": 1}), (2, "byte 0xe9 is not valid UTF-8")]
    assert found[2][0] == 3


def test_json_by_id(write_file):
    path = write_file(json.dumps({"a": {"x": 1, "label": 3}, "b": {"x": 2, "label": 4}}))
    source = open_source(path)
    assert (source.kind, source.label) == ("JSON", "label")
    assert list(source.examples) == [("a", {"x": 1, "label": 3}), ("b", {"x": 2, "label": 4})]


def test_json_list(write_file):
    assert list(open_source(write_file('[\n{"x": 1}, {"x": null}]\n')).examples) == [
        (0, {"x": 1}),
        (1, {}),
    ]


def test_errors_of_objects(write_file):
    path = write_file('{"a": {"label": 1}, "b": [2], "c": {"y": 1}, "a": {"label": 2, "label": 3}}')
    assert read(open_source(path)) == [
        ("a", {"label": 1}),
        (1, "found a list of 1 numbers; must be an object"),
        (2, "the label is missing; the object has 'y'"),
        (3, "the id 'a' occurs twice"),
    ]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("[]", None, "there is no example in this file"),
        ("{}", None, "there is no example in this file"),
        ('{"a" 1}', 1, "is not valid JSON: Expecting ':' delimiter at column 6"),
        ('[{"x": 1},\n]', 2, "is not valid JSON: "),
        ('[{"x": 1}]\n\n[]', 3, "is not valid JSON: Extra data at column 1"),
        (b'{"a":\n {"x": "\xff"}}', 2, "byte 0xff is not valid UTF-8"),
        ("[" * 100_000, 1, ""),
        ("[" + "9" * 5000 + "]", 1, "is not valid JSON: "),
        ('"text"', None, "found a string; must be an object or a list"),
    ],
)
def test_invalid_json(write_file, content, line, reason):
    with pytest.raises(SourceError) as caught:
        open_source(write_file(content), kind="JSON")
    assert caught.value.line == line
    assert caught.value.reason.startswith(reason)


PAIRS = [["hi", "greet"], ["hello", "greet"], ["bye", "part"]]
NAMED = [{"text": text, "label": label} for text, label in PAIRS]


@pytest.mark.parametrize(
    ("content", "keys", "examples"),
    [
        ({"data": NAMED}, [0, 1, 2], NAMED),
        ({"version": "1.1", "info": {"by": "me"}, "data": NAMED, "tags": ["x"]}, [0, 1, 2], NAMED),
        (PAIRS, [0, 1, 2], NAMED),
        ({"data": PAIRS}, [0, 1, 2], NAMED),
        ({"text": ["hi", "hello", "bye"], "label": ["greet", "greet", "part"]}, [0, 1, 2], NAMED),
        ({"greet": ["hi", "hello"], "part": ["bye"]}, ["greet:0", "greet:1", "part:0"], NAMED),
        (
            {name: {str(i): each[name] for i, each in enumerate(NAMED)} for name in NAMED[0]},
            ["0", "1", "2"],
            NAMED,
        ),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_forms(write_file, content, keys, examples, indent):
    source = open_source(write_file(json.dumps(content, indent=indent), "birds.json"))
    assert (source.kind, source.label) == ("JSON", "label")
    assert list(source.examples) == list(zip(keys, examples, strict=True))
    assert list(source.examples) == list(pickle.loads(pickle.dumps(source.examples)))


def test_names_of_elements(write_file):
    assert read(open_source(write_file(json.dumps(PAIRS)), columns=["a", "b"], label="b"))[2] == (
        2,
        {"a": "bye", "b": "part"},
    )
    content = json.dumps({"greet": ["hi"], "part": ["bye"]})
    assert read(open_source(write_file(content), label="intent")) == [
        ("greet:0", {"text": "hi", "intent": "greet"}),
        ("part:0", {"text": "bye", "intent": "part"}),
    ]
    source = open_source(write_file(content), columns=["utterance", "intent"])
    assert (source.label, next(iter(source.examples))[1]["utterance"]) == ("intent", "hi")
    three = json.dumps([["hi", 0.5, "greet"], ["bye", 1.5], "no"])
    assert read(open_source(write_file(three), columns=["text", "weight", "label"])) == [
        (0, {"text": "hi", "weight": 0.5, "label": "greet"}),
        (1, "found a list of 2 elements; must be 3"),
        (2, "found a string; must be a list"),
    ]
    lines = write_file('["hi", "greet"]\n["bye", "part"]\n')
    assert open_source(lines).kind == "JSON Lines"
    assert read(open_source(lines))[1] == (1, {"text": "bye", "label": "part"})


@pytest.mark.parametrize(
    ("content", "options", "option", "reason"),
    [
        ([["hi", 0.5]], {}, "columns", "the first one is ['hi', 0.5], which is not a string and a"),
        ([["a", "b", "c"]], {}, "columns", "found a list of 1 lists; the first one is ['a', 'b', "),
        ([["greet", "hi"], ["greet", "yo"]], {}, "columns", "; the second elements have more diff"),
        (PAIRS, {"columns": ["a"]}, "columns", "found a list of 3 lists; the first one is ['hi', "),
        (NAMED, {"columns": ["a", "b"]}, "columns", "found a list of 3 objects, whose elements ha"),
        (["hi", "bye"], {}, None, "found a list of 2 strings; must be objects or lists"),
        ({"a": 1, "b": "c"}, {}, "field", "found an object with 2 names ('a' is a number, 'b' is"),
        ({"images": NAMED, "boxes": NAMED}, {}, "field", "'images' is a list of 3 objects, 'boxes"),
        ({"x": NAMED, "y": [1, 2, 3]}, {}, "field", "'x' is a list of 3 objects, 'y' is a list of"),
        ({"nlu": {"common": NAMED}}, {}, "field", "found an object with 1 names ('nlu' is an obje"),
        (
            {"intents": [{"tag": "greet", "patterns": ["hi"], "responses": ["hello"]}]},
            {},
            None,
            "an object has all 'patterns' of one 'tag'",
        ),
        ({"data": NAMED}, {"field": "items"}, "field", ""),
        ({"data": NAMED}, {"field": "data.x"}, "field", ""),
        ({"data": NAMED}, {"delimiter": ";"}, "delimiter", "the format of this source is 'JSON'"),
        ({"data": NAMED}, {"splits": ["train"]}, "splits", "found an object with 1 names ('data' "),
    ],
)
def test_refused_forms(write_file, content, options, option, reason):
    with pytest.raises(SourceError) as caught:
        open_source(write_file(json.dumps(content), "birds.json"), **options)
    assert caught.value.option == option
    assert reason in caught.value.reason


def test_a_name_that_occurs_twice(write_file):
    with pytest.raises(SourceError, match="the name 'data' occurs twice in an object"):
        open_source(write_file('{"data": [{"x": 1}], "data": [{"x": 2}]}', "birds.json"))


def test_candidates_are_named(write_file):
    path = write_file(json.dumps({"nlu": {"common": NAMED, "names": ["a"]}, "x": {"y": PAIRS}}))
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert caught.value.allowed == "the path of the examples, such as 'nlu.common', 'x.y'"
    assert len(list(open_source(path, field="nlu.common").examples)) == 3
    assert len(list(open_source(path, field="x.y").examples)) == 3


@pytest.mark.parametrize(
    ("content", "splits"),
    [
        ({"train": PAIRS, "val": PAIRS[:2], "oos_train": PAIRS[:1]}, [3, 2, 1]),
        ({"version": 2, "train": NAMED, "test": NAMED[:1]}, [3, 1]),
        ({"train": {"greet": ["hi", "yo"]}, "test": {"greet": ["hi"], "part": ["bye"]}}, [2, 2]),
        ({"train": {"a": {"x": 1}}, "test": {"a": {"x": 1}, "b": {"x": 1}}}, [1, 2]),
        ({"dev": NAMED}, [3]),
    ],
)
def test_splits_in_a_file(write_file, content, splits):
    found = open_splits(write_file(json.dumps(content), "clinc.json"))
    names = [name for name in content if name != "version"]
    assert list(found) == names
    assert [len(list(source.examples)) for source in found.values()] == splits


def test_splits_option(write_file):
    path = write_file(json.dumps({"train": NAMED, "extra": NAMED[:1]}))
    with pytest.raises(SourceError, match="'extra' is a list of 1 objects"):
        open_splits(path)
    assert list(open_splits(path, splits=["train", "extra"])) == ["train", "extra"]


def test_classes_named_like_splits(write_file):
    path = write_file(json.dumps({"train_ticket": ["a", "b"], "train_delay": ["c", "d", "e"]}))
    assert [example["label"] for _, example in open_source(path).examples] == (
        ["train_ticket"] * 2 + ["train_delay"] * 3
    )


def test_json_files_of_splits(write_file, tmp_path):
    write_file(json.dumps(NAMED), "train.json")
    write_file(lines(*NAMED[:2]), "test.json")
    assert {k: (v.kind, len(list(v.examples))) for k, v in open_splits(tmp_path).items()} == {
        "test": ("JSON Lines", 2),
        "train": ("JSON", 3),
    }


def test_several_json_lines(write_file, tmp_path):
    write_file(lines(*NAMED[:2]), "a.jsonl")
    write_file(gzip.compress(lines(NAMED[2]).encode()), "b.jsonl.gz")
    source = open_source(tmp_path)
    assert list(source.examples) == list(enumerate(NAMED))


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.jsonl", '{"x": {"y": 1}}', "JSON Lines"),
        ("a.ndjson", '{"x": [1]}', "JSON Lines"),
        ("a.json", '{"a": ["x"]}', "JSON"),
        ("a.json", '{"x": 1}\n{"x": 2}\n', "JSON Lines"),
        ("a.json", lines({"x": "y" * 100_000}, {"x": "z"}), "JSON Lines"),
        ("a", '{"a": ["x"]}', "JSON"),
        ("a", '[["x", 1],\n ["y", 2]]', "JSON"),
    ],
)
def test_extension_of_json(write_file, name, content, kind):
    assert open_source(write_file(content, name)).kind == kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"x": 1}', "JSON Lines"),
        ('{"x": {"y": 1}}', "JSON"),
        ('{"x": {"y": 1}}\n{"x": {"y": 2}}', "JSON Lines"),
        ('{\n "a": {"y": 1}}', "JSON"),
        ('\n[\n{"y": 1}]', "JSON"),
    ],
)
def test_json_and_json_lines_are_distinguished(write_file, content, kind):
    assert open_source(write_file(content)).kind == kind
