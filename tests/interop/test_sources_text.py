"""Tables of text and JSON: every bad line is named, and nothing else is lost."""

import json
import math

import pytest

from covey import ClassLabel, Features, Tensor, errors
from covey.sources import open_source

SourceError = errors.SourceError


@pytest.fixture
def write(tmp_path):
    def write(content, name="birds"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def told(source, path):
    return [
        str(item).removeprefix(f"{path}:") if isinstance(item, SourceError) else item
        for item in source.examples
    ]


# CSV.


def kinds(source):
    return {
        name: "class" if isinstance(feature, ClassLabel) else feature.dtype
        for name, feature in source.features.items()
    }


def test_types_are_those_of_the_whole_column(write):
    rows = ["i,f,mixed,text,zip,gap,none", "1,1.5,1,1,01234,1,", "2,2e3,0.5,two,99999,,"]
    source = open_source(write("\n".join(rows)))
    assert kinds(source) == {
        "i": "int64",
        "f": "float32",
        "mixed": "float32",
        "text": "str",
        "zip": "str",
        "gap": "float32",
        "none": "str",
    }
    (_, first), (_, second) = source.examples
    assert first == {
        "i": 1,
        "f": 1.5,
        "mixed": 1.0,
        "text": "1",
        "zip": "01234",
        "gap": 1.0,
        "none": "",
    }
    assert math.isnan(second["gap"])


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        (["-9223372036854775808", "9223372036854775807"], "int64"),
        (["18446744073709551615"], "uint64"),
        (["18446744073709551616"], "str"),
        (["-1", "18446744073709551615"], "str"),
        (["16777217", "0.5"], "float64"),
        (["16777217", ""], "float64"),
        (["1e300"], "float64"),
        (["inf", "NaN", "-Inf"], "float32"),
        ([" 7", "8 "], "int64"),
        (["1_000"], "str"),
        (["0x10"], "str"),
        (["٣"], "str"),
    ],
)
def test_type_of_a_column(write, cells, dtype):
    source = open_source(write("a,b\n" + "".join(f"x,{cell}\n" for cell in cells)))
    assert kinds(source)["b"] == dtype
    features = source.features
    for _, example in source.examples:
        features.encode(example)


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters(write, delimiter):
    rows = [["name", "note"], ["owl", '"a, b; c"'], ["wren", ""]]
    path = write("".join(delimiter.join(row) + "\n" for row in rows))
    assert [list(example.values()) for _, example in open_source(path).examples] == [
        ["owl", "a, b; c"],
        ["wren", ""],
    ]


def test_quotes_and_lines_within_them(write):
    path = write('name,note\nowl,"two\nlines, ""quoted"""\nwren\nrobin,x\n')
    assert told(open_source(path), path) == [
        (0, {"name": "owl", "note": 'two\nlines, "quoted"'}),
        "4: this row has 1 cells, the header has 2; quote a cell that holds the delimiter",
        (2, {"name": "robin", "note": "x"}),
    ]


def test_mark_and_line_ends_of_other_systems(write):
    path = write(b"\xef\xbb\xbfname,n\r\nowl,1\r\n\r\nwren,2\r\n")
    assert list(open_source(path).examples) == [
        (0, {"name": "owl", "n": 1}),
        (1, {"name": "wren", "n": 2}),
    ]


def test_labels_are_classes(write):
    source = open_source(write("n,Class\n1,wren\n2,owl\n"))
    assert (source.label, source.features["Class"].names) == ("Class", ("owl", "wren"))
    source = open_source(write("n,kind\n1,5\n2,7\n"), label="kind")
    assert source.features["kind"] == Tensor("int64")
    source = open_source(write("n,label\n1,5.0\n2,7\n"))
    assert source.features["label"].names == ("5.0", "7")


def test_missing_label(write):
    path = write("n,label\n1,3\n2,\n3,4\n")
    source = open_source(path)
    assert kinds(source)["label"] == "int64"
    assert told(source, path) == [
        (0, {"n": 1, "label": 3}),
        "3: the label is missing: 'label' is empty",
        (2, {"n": 3, "label": 4}),
    ]


def test_bytes_that_are_no_utf8(write):
    path = write(b"name,n\nowl,1\n\xe9tourneau,2\nwren,3\n")
    assert told(open_source(path), path) == [
        (0, {"name": "owl", "n": 1}),
        "3: byte 0xe9 is not an UTF-8; save the file as UTF-8",
        (2, {"name": "wren", "n": 3}),
    ]


def test_quote_that_is_never_closed(write):
    path = write('name,n\nowl,1\n"wren,2\nrobin,3\n')
    assert told(open_source(path), path) == [
        (0, {"name": "owl", "n": 1}),
        "3: this row cannot be read: unexpected end of data; "
        "a quote that begins in it is never closed",
    ]


def test_cell_beyond_the_limit(write):
    path = write(f"name,n\n{'x' * 200_000},1\nowl,2\n")
    first, second = told(open_source(path, kind="CSV"), path)
    assert first.startswith("2: this row cannot be read: field larger than field limit")
    assert second == (1, {"name": "owl", "n": 2})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("1,2\n3,4\n", r":1: the first row is \['1', '2'\], which is data; it must name the"),
        ("a,b,a\n1,2,3\n", ":1: two columns have the name 'a'; rename one"),
        ("a,b\n", ":1: there is no row after the header"),
        (b"\xe9,b\n1,2\n", ":1: byte 0xe9 is not an UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "birds: this is UTF-16, not UTF-8; save it as UTF-8"),
    ],
)
def test_bad_tables(write, content, what):
    with pytest.raises(SourceError, match=what):
        open_source(write(content))


def test_empty_table(write):
    with pytest.raises(SourceError, match="birds:1: this file is empty; the first line must name"):
        open_source(write("\n"), kind="CSV")


def test_column_without_a_name(write):
    source = open_source(write(",name\n0,owl\n1,wren\n"))  # as pandas writes its index
    assert list(source.features) == ["column_1", "name"]


def test_judged_by_pandas(write, tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"i": [1, -2, 3], "f": [0.5, None, 1e10], "s": ['a "b"', "c\nd", "é, ñ"]})
    frame.to_csv(tmp_path / "birds.csv", index=False)
    examples = [example for _, example in open_source(tmp_path / "birds.csv").examples]
    pd.testing.assert_frame_equal(pd.DataFrame(examples), frame)


# JSON.


def lines(*values):
    return "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in values)


def test_json_lines(write):
    path = write(lines({"x": [1, 2], "n": {"a": "b"}}, "\n", {"x": [], "n": {"a": "c"}}))
    source = open_source(path)
    assert list(source.examples) == [
        (0, {"x": [1, 2], "n": {"a": "b"}}),
        (1, {"x": [], "n": {"a": "c"}}),
    ]
    assert list(Features.infer(example for _, example in source.examples)) == ["x", "n/a"]


def test_bad_lines_are_named(write):
    good = {"x": 1, "label": "owl"}
    bad = ['{"x": 1,\n', "[1]\n", '{"x": 1} {"x": 2}\n', {"x": 2}, {"x": 2, "label": None}]
    path = write(lines(good, *bad, '{"x": "owl', "\n", good, "7", "\n", "{" * 5))
    found = told(open_source(path), path)
    assert found[0] == (0, good)
    assert found[1].startswith("2: this is no JSON: ")
    assert found[2:6] == [
        "3: this is a list; must be an object of names and values",
        "4: this is no JSON: more follows after the object's end at column 9",
        "5: the label is missing: no 'label'; this object has 'x'",
        "6: the label is missing: no 'label'; this object has 'x'",
    ]
    assert found[6].startswith("7: this is no JSON: Unterminated string")
    assert found[7] == (7, good)
    assert found[8] == "9: this is a value; must be an object of names and values"
    assert found[9].startswith("10: this is no JSON: ")


def test_json_lines_in_odd_bytes(write):
    path = write(b'\xef\xbb\xbf{"x": 1}\n{"x": "\xe9"}\n' + b'{"x": ' + b"[" * 100_000 + b"\n")
    found = told(open_source(path), path)
    assert found[:2] == [(0, {"x": 1}), "2: byte 0xe9 is not an UTF-8; save the file as UTF-8"]
    assert found[2].startswith("3: this is no JSON: ")


def test_json_by_id(write):
    path = write(json.dumps({"a": {"x": 1, "label": 3}, "b": {"x": 2, "label": 4}}))
    source = open_source(path)
    assert (source.kind, source.label) == ("JSON", "label")
    assert list(source.examples) == [("a", {"x": 1, "label": 3}), ("b", {"x": 2, "label": 4})]


def test_json_list(write):
    assert list(open_source(write('[\n{"x": 1}, {"x": null}]\n')).examples) == [
        (0, {"x": 1}),
        (1, {}),
    ]


def test_bad_objects_are_named_by_id_and_line(write):
    rows = ['"a": {"label": 1}', '"b": [2]', '"c": {"y": 1}', '"a": {"label": 2}', '"d": {"label"']
    path = write("{\n" + ",\n".join(rows))
    assert told(open_source(path), path) == [
        ("a", {"label": 1}),
        "3: id 'b': this is a list; must be an object of names and values",
        "4: id 'c': the label is missing: no 'label'; this object has 'y'",
        "5: id 'a': line 2 has the same id; rename one",
        "6: this is no JSON, and ends here: Expecting ':' delimiter at column 14",
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('[{"x": 1}', "1: this is no JSON, and ends here: expected a comma or ']' at column 10"),
        ('[{"x": 1},\n]', "2: this is no JSON, and ends here: Expecting value at column 1"),
        (
            '[{"x": 1}\n {"x": 1}]',
            "2: this is no JSON, and ends here: expected a comma or ']' at column 2",
        ),
        ('[{"x": 1}]\n\n[]', "3: this is no JSON, and ends here: more follows after the last ']'"),
    ],
)
def test_json_that_ends_badly(write, content, found):
    path = write(content)
    first, second = told(open_source(path, kind="JSON"), path)
    assert first == (0, {"x": 1})
    assert second.startswith(found)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[]", "there is no example in this file"),
        ("{}", "there is no example in this file"),
        ('{"a" 1}', "birds:1: this is no JSON, and ends here: Expecting ':'|expected an id"),
        (b'{"a":\n {"x": "\xff"}}', "birds:2: byte 0xff is not an UTF-8"),
        ('"text"', "birds:1: .* neither an object nor a list of them"),
    ],
)
def test_json_without_examples(write, content, what):
    with pytest.raises(SourceError, match=what):
        open_source(write(content), kind="JSON")


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
def test_json_and_json_lines_are_told_apart(write, content, kind):
    assert open_source(write(content)).kind == kind
