"""Tables and JSON: types, encodings; errors name the line, and the other items are read."""

import gzip
import json
import pickle

import pytest
from engines import ThreadEngine, digests
from source_items import read
from write_cases import in_parts, locally
from written import column, write

from covey import ClassLabel, Tensor, errors
from covey.sources import open_source, open_splits

SourceError = errors.SourceError


def kinds(source):
    return {
        name: "class" if isinstance(feature, ClassLabel) else feature.dtype
        for name, feature in source.features.items()
    }


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        (["-9223372036854775808", "9223372036854775807"], "int64"),
        (["18446744073709551615"], "uint64"),
        (["18446744073709551616"], "str"),
        (["-1", "18446744073709551615"], "str"),
        (["1", "0.5"], "float32"),
        (["1", ""], "float32"),
        (["", ""], "str"),
        (["16777217", "0.5"], "float64"),
        (["16777217", ""], "float64"),
        (["1e300"], "float64"),
        ([f"{1700000000.123 + i}" for i in range(40)], "float64"),
        (["0.1", "19.99", "1e20", ""], "float32"),
        (["0.1", "0.3333333333333333"], "float64"),
        (["inf", "NaN", "-Inf"], "float32"),
        ([" 7", "8 "], "int64"),
        (["01234", "99999"], "str"),
        (["1_000"], "str"),
        (["0x10"], "str"),
        (["٣"], "str"),
    ],
)
def test_type_of_a_column(write_file, cells, dtype):
    source = open_source(write_file("a,b\n" + "".join(f"x,{cell}\n" for cell in cells)))
    assert kinds(source)["b"] == dtype
    features = source.features
    for cell, (_, example) in zip(cells, source.examples, strict=True):
        features.encode(example)
        text = cell or ("" if dtype == "str" else "nan")
        value = {"str": str, "int64": int, "uint64": int}.get(dtype, float)(text)
        assert example["b"] == value or text.lower() == "nan"


@pytest.mark.parametrize(
    ("character", "option"),
    [*((each, None) for each in ",\t;|"), (":", ":"), ("\t", "\\t"), ("\t", "tab")],
)
def test_delimiters(write_file, character, option):
    rows = [["name", "note"], ["owl", '"a, b; c"'], ["wren", ""]]
    path = write_file("".join(character.join(row) + "\n" for row in rows))
    assert [
        list(example.values()) for _, example in open_source(path, delimiter=option).examples
    ] == [
        ["owl", "a, b; c"],
        ["wren", ""],
    ]


@pytest.mark.parametrize("given", ["::", '"', "\n"])
def test_invalid_delimiter(write_file, given):
    with pytest.raises(SourceError) as caught:
        open_source(write_file("a,b\n1,2\n"), delimiter=given)
    assert (caught.value.option, caught.value.allowed) == ("delimiter", "one character")


ITEMS = [
    (
        'name,note\nowl,"two\nlines, ""quoted"""\nwren\nrobin,x\n',
        [
            (0, {"name": "owl", "note": 'two\nlines, "quoted"'}),
            (4, "the row has 1 cells; the header has 2"),
            (2, {"name": "robin", "note": "x"}),
        ],
    ),
    (
        "n,label\n1,3\n2,\n3,4\n",
        [(0, {"n": 1, "label": 3}), (3, "the label is empty"), (2, {"n": 3, "label": 4})],
    ),
    (
        b"name,n\nowl,1\n\xe9tourneau,2\nwren,3\n",
        [
            (0, {"name": "owl", "n": 1}),
            (3, "byte 0xe9 is not valid UTF-8"),
            (2, {"name": "wren", "n": 3}),
        ],
    ),
    (
        'name,n\nowl,1\n"wren,2\nrobin,3\n',
        [
            (0, {"name": "owl", "n": 1}),
            (3, "the row cannot be parsed: unexpected end of data"),
        ],
    ),
]


@pytest.mark.parametrize(("content", "items"), ITEMS)
def test_rows_and_their_errors(write_file, content, items):
    assert read(open_source(write_file(content))) == items


IDS = [1234567890123456789 + i for i in range(29)]


def id_table(write_file, name="ids.csv"):
    """A table of 64-bit ids, one of which is missing."""
    rows = [f"{'' if i == 3 else each},{i / 10},{90000 + i}" for i, each in enumerate(IDS)]
    return write_file("\n".join(["id,x,zip", *rows]), name)


def test_integers_beside_an_empty_cell(write_file, tmp_path):
    path = id_table(write_file)
    known = [-1 if i == 3 else each for i, each in enumerate(IDS)]
    options = {"label": None, "shuffle": False}
    with pytest.raises(errors.FeatureError, match="1234567890123456789, which float64") as caught:
        write(path, tmp_path / "no default", **options)
    assert (caught.value.feature, "defaults=" in caught.value.remedy) == ("id", True)
    features = {"id": Tensor("int64", default=-1), "x": "float32", "zip": "int64"}
    ways = {
        "default": {"defaults": {"id": -1}},
        "features": {"features": features},
        "both": {"features": {**features, "id": "int64"}, "defaults": {"id": -1}},
        "types": {"types": {"id": "int64"}, "defaults": {"id": -1}},
    }
    for way, given in ways.items():
        written = write(path, tmp_path / way, **options, **given)
        assert written.features["id"] == Tensor("int64", default=-1), way
        assert column(tmp_path / way, "id") == known, way


def test_engines_and_parts_write_the_same_files(write_file, tmp_path):
    path = id_table(write_file, "ids.csv")
    options = {"label": None, "defaults": {"id": -1, "x": 0.5}, "types": {"zip": "str"}}
    ways = {"local": locally(), "threads": locally(engine=ThreadEngine(3)), "parts": in_parts(3)}
    found = {}
    for way, run in ways.items():
        result = run(path, tmp_path / way / "birds", **options)
        found[way] = (result.features, result.notes, digests(tmp_path / way / "birds"))
    assert found["local"] == found["threads"] == found["parts"]


def test_large_integers_beside_decimals(write_file, tmp_path):
    path = write_file("x\n0.5\n9007199254740993\n", "birds.csv")
    with pytest.raises(errors.FeatureError, match="9007199254740993, which float64") as caught:
        write(path, tmp_path / "floats", label=None)
    assert caught.value.example == 1
    write(path, tmp_path / "strings", label=None, shuffle=False, types={"x": "str"})
    assert column(tmp_path / "strings", "x") == ["0.5", "9007199254740993"]


def test_declared_types(write_file, tmp_path):
    path = id_table(write_file)
    types = {"id": "str", "x": "float64", "zip": "str"}
    written = write(path, tmp_path / "data", label=None, shuffle=False, types=types)
    assert {name: kind.dtype for name, kind in written.features.items()} == types
    assert column(tmp_path / "data", "zip")[0] == "90000"
    assert column(tmp_path / "data", "id")[3] == ""
    assert column(tmp_path / "data", "x") == [i / 10 for i in range(29)]
    assert not written.notes


@pytest.mark.parametrize(
    ("types", "feature", "reason"),
    [
        ({"zipp": "str"}, None, "there is no feature 'zipp'"),
        ({"zip": "text"}, "zip", "dtype is 'text'; must be one of"),
        ({"id": "int64"}, "id", "the cell is empty; must be int64"),
        ({"x": "int64"}, "x", "the cell is '0.0'; must be int64"),
        ({"x": "bool"}, "x", "the cell is '0.0'; must be bool"),
        ({"zip": "int8", "id": "str"}, "zip", "must be from -128 to 127"),
        ({"x": "int64", "features": {"x": "int64"}}, None, "omitted with features="),
    ],
)
def test_invalid_types(write_file, tmp_path, types, feature, reason):
    path = id_table(write_file)
    given = {"features": types.pop("features")} if "features" in types else {"label": None}
    with pytest.raises(errors.CoveyError, match=reason) as caught:
        write(path, tmp_path / "data", types=types, **given)
    assert caught.value.feature == feature


def test_floats_of_splits_and_of_an_appended_table(write_file, tmp_path):
    """A table whose floats float32 holds is stored with those of one that needs float64."""
    long, short = [1700000000.123, 0.1], [0.1, 0.2]
    (tmp_path / "splits").mkdir()
    for name, values in [("train.csv", short), ("test.csv", long)]:
        write_file("\n".join(["x", *map(str, values)]), f"splits/{name}")
    options = {"label": None, "shuffle": False}
    written = write(str(tmp_path / "splits"), tmp_path / "data", None, **options)
    assert written.features["x"] == Tensor("float64")
    assert column(tmp_path / "data", "x", "train") == short
    short_table = str(tmp_path / "splits/train.csv")
    write(short_table, tmp_path / "data", "test", mode="append", **options)
    assert column(tmp_path / "data", "x", "test") == [*long, *short]
    write(short_table, tmp_path / "narrow", "train", **options)
    with pytest.raises(errors.DatasetError, match="the existing splits have"):
        write(str(tmp_path / "splits/test.csv"), tmp_path / "narrow", "test", **options)


def test_labels(write_file):
    source = open_source(write_file("n,Class\n1,wren\n2,owl\n"))
    assert (source.label, source.features["Class"].names) == ("Class", ("owl", "wren"))
    source = open_source(write_file("n,kind\n1,5\n2,7\n"), label="kind")
    assert source.features["kind"] == Tensor("int64")
    source = open_source(write_file("n,label\n1,5.0\n2,7\n"))
    assert source.features["label"].names == ("5.0", "7")


def test_long_cells_and_lines(write_file, monkeypatch):
    """A cell may be longer than the default limit of the csv module."""
    text = "x, \n" * 50_000
    path = write_file(f'name,n\n"{text}",1\nowl,3\n')
    assert [example["name"] for _, example in open_source(path).examples] == [text, "owl"]
    monkeypatch.setattr("covey.sources.tables.MAX_TEXT_CHARACTERS", 100)
    path = write_file("a,b\n1,2\n" + "x" * 200 + "\n")
    assert read(open_source(path))[1] == (3, "a line has more than 100 characters")


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a,b,a\n1,2,3\n", 1, "two columns have the name 'a'"),
        ("a,b\n", 1, "there is no row after the header"),
        (b"\xe9,b\n1,2\n", 1, "byte 0xe9 is not valid UTF-8"),
        ("\n", 1, "the file is empty; the first line must be a header"),
    ],
)
def test_invalid_tables(write_file, content, line, reason):
    path = write_file(content)
    with pytest.raises(SourceError) as caught:
        open_source(path, kind="CSV")
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert caught.value.reason == reason


def rows(source):
    return [list(example.values()) for _, example in source.examples]


@pytest.mark.parametrize("encoding", [None, "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_encodings_and_compression(write_file, encoding, compress):
    """Any encoding but UTF-8 is an option; without it, an error names the first invalid byte."""
    option = {} if encoding in (None, "utf-8-sig") else {"encoding": encoding}
    path = write_file(compress("name;note\r\n\r\nété;1\r\n".encode(encoding or "utf-8")), "a.csv")
    assert rows(open_source(path, **option)) == [["été", 1]]
    lines = '{"name": "été"}\n{"name": "x"}\n'.encode(encoding or "utf-8")
    found = open_source(write_file(compress(lines), "a.json"), **option)
    assert (found.kind, rows(found)) == ("JSON Lines", [["été"], ["x"]])
    if option:
        with pytest.raises(SourceError, match=r"is not valid UTF-8; pass encoding=") as caught:
            raise next(iter(open_source(path).examples))
        assert caught.value.line == (1 if encoding == "utf-16" else 3)


def test_truncated_gzip(write_file):
    lines = [f"{n},{n * n % 1000003}" for n in range(20_000)]
    whole = gzip.compress("\n".join(["a,b", *lines]).encode())
    found = read(open_source(write_file(whole[: len(whole) // 2])))
    assert found[:2] == [(0, {"a": 0, "b": 0}), (1, {"a": 1, "b": 1})]
    line, reason = found[-1]
    assert line == len(found) + 1
    assert reason.startswith("the text from here on cannot be decompressed: ")


def test_the_first_row_is_the_header(write_file):
    """Whether it is one is not guessed: columns= has the names of a table without a header."""
    path = write_file("a/1.jpg,owl\na/2.jpg,wren\n")
    assert read(open_source(path)) == [(0, {"a/1.jpg": "a/2.jpg", "owl": "wren"})]
    assert open_source(path).label_hint == "pass columns= if the first row is not a header"
    assert read(open_source(path, columns=("path", "label"))) == [
        (0, {"path": "a/1.jpg", "label": "owl"}),
        (1, {"path": "a/2.jpg", "label": "wren"}),
    ]
    assert read(open_source(write_file("x,n\n3,4\n"), columns=["x", "n"])) == [
        (0, {"x": 3, "n": 4})
    ]
    with pytest.raises(SourceError) as caught:
        open_source(path, columns=["path"])
    assert (caught.value.option, caught.value.allowed) == ("columns", "the names of the 2 columns")


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.csv", "name\nowl\n", ["name"]),
        ("a.tsv", "a,b\tc,d\n1,2\t3,4\n", ["a,b", "c,d"]),
        ("a.csv", ",name\n0,owl\n", ["column_1", "name"]),  # as pandas writes its index
    ],
)
def test_names_of_columns(write_file, name, content, names):
    assert list(open_source(write_file(content, name)).features) == names


def test_several_tables(write_file, tmp_path):
    write_file("x,label\n1,owl\n", "a.csv")
    write_file("x;label\n2.5;wren\n3\n", "b.csv")
    source = open_source(tmp_path)
    assert (source.kind, source.length, source.path) == ("CSV", 3, str(tmp_path))
    assert (kinds(source)["x"], source.features["label"].names) == ("float32", ("owl", "wren"))
    first, second, third = source.examples
    assert [first, second] == [(0, {"x": 1.0, "label": "owl"}), (1, {"x": 2.5, "label": "wren"})]
    assert (third.path, third.line) == (str(tmp_path / "b.csv"), 3)
    assert open_source(str(tmp_path / "[a]*.csv")).length == 1
    write_file("x,kind\n1,owl\n", "c.csv")
    with pytest.raises(SourceError, match=r"c.csv: the columns are 'x', 'kind'; those of .*a.csv"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train.csv", "birds_test.csv.gz"], {"train": 1, "test": 1}),
        (
            [f"{name}-of-00002.csv" for name in ("train-00000", "train-00001", "all-00000")],
            {"train": 2, "all": 1},
        ),
        (["data/train.csv", "data/validation.csv"], {"train": 1, "validation": 1}),
        (["train/a.csv", "test/b.csv"], {"train": 1, "test": 1}),
    ],
)
def test_tables_of_splits(write_file, tmp_path, files, splits):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_file(gzip.compress(b"x\n2\n") if name.endswith(".gz") else "x\n1\n", name)
    found = open_splits(tmp_path)
    assert {name: source.length for name, source in found.items()} == splits


# JSON.


def lines(*values):
    return "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in values)


OBJECTS = [{"text": "hi", "label": "greet"}, {"text": "bye", "label": None, "n": 2}]


@pytest.mark.parametrize(
    ("name", "content", "field", "kind"),
    [
        ("a.jsonl", lines(OBJECTS[0], "\n", OBJECTS[1]), None, "JSON Lines"),
        ("a.jsonl.gz", gzip.compress(lines(*OBJECTS).encode()), None, "JSON Lines"),
        ("a.json", lines(*OBJECTS), None, "JSON Lines"),
        ("a.json", json.dumps(OBJECTS, indent=1), None, "JSON"),
        ("a.json.gz", gzip.compress(json.dumps(OBJECTS).encode()), None, "JSON"),
        ("a.json", json.dumps({"version": 1, "data": {"items": OBJECTS}}), "data.items", "JSON"),
    ],
)
def test_json(write_file, name, content, field, kind):
    source = open_source(write_file(content, name), field=field)
    assert (source.kind, source.label) == (kind, "label")
    first, second = source.examples
    assert first == (0, OBJECTS[0])
    assert (second.feature, second.reason) == (
        "label",
        "the label is missing; the object has 'text', 'n'",
    )
    assert next(iter(pickle.loads(pickle.dumps(source.examples)))) == first


def test_errors_of_lines(write_file):
    good = {"x": 1, "label": "owl"}
    bad = ['{"x": 1,\n', "[1]\n", '{"x": 1} {"x": 2}\n', {"x": 2}]
    deep = '{"x": ' + "[" * 100_000 + "\n"
    path = write_file(lines(good, *bad, deep, "7\n").encode() + b'{"x": "\xe9"}\n', "a.jsonl")
    first, *found = read(open_source(path))
    assert first == (0, good)
    assert [line for line, _ in found] == [2, 3, 4, 5, 6, 7, 8]
    reasons = ["is not valid JSON", "found a list of 1; must be an object", "is not valid JSON"]
    reasons += ["the label is missing", "", "found 7; must be", "byte 0xe9 is not valid UTF-8"]
    assert all(text.startswith(reason) for (_, text), reason in zip(found, reasons, strict=True))


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("[]", None, "there is no example in this file"),
        ('{"a" 1}', 1, "is not valid JSON: Expecting ':' delimiter at column 6"),
        ('[{"x": 1},\n]', 2, "is not valid JSON: "),
        (b'{"a":\n {"x": "\xff"}}', 2, "byte 0xff is not valid UTF-8"),
        ("[" * 100_000, 1, ""),
        ("[" + "9" * 5000 + "]", 1, "is not valid JSON: "),
        ('"text"', None, "found 'text'"),
        ('["a", "b"]', None, "found a list"),
        ('{"b17": {"species": "owl"}}', None, "found a dict of 1"),
    ],
)
def test_invalid_json(write_file, content, line, reason):
    with pytest.raises(SourceError) as caught:
        open_source(write_file(content), kind="JSON")
    assert caught.value.line == line
    assert caught.value.reason.startswith(reason)


def test_lists_in_an_object_are_named(write_file):
    content = {"ids": [1], "train": OBJECTS, "x": {"y": OBJECTS, "z": [1]}}
    path = write_file(json.dumps(content), "a.json")
    for field in (None, "z", "x.z"):
        with pytest.raises(SourceError) as caught:
            open_source(path, field=field)
        assert (caught.value.option, caught.value.found) == ("field", field)
    with pytest.raises(SourceError, match=r"a list of objects; .*; pass field='train'"):
        open_source(path)
    assert len(list(open_source(path, field="x.y").examples)) == 2
