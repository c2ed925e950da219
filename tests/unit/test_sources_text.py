"""CSV and JSON sources: errors name the line, and the other items are read."""

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


def read(source):
    """The items; an error as its line, or position, and its reason."""
    return [
        (item.line or item.record, item.reason) if isinstance(item, SourceError) else item
        for item in source.examples
    ]


# CSV.


def kinds(source):
    return {
        name: "class" if isinstance(feature, ClassLabel) else feature.dtype
        for name, feature in source.features.items()
    }


def test_type_is_that_of_all_cells(write):
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


def test_quoted_cells(write):
    path = write('name,note\nowl,"two\nlines, ""quoted"""\nwren\nrobin,x\n')
    assert read(open_source(path)) == [
        (0, {"name": "owl", "note": 'two\nlines, "quoted"'}),
        (4, "the row has 1 cells; the header has 2"),
        (2, {"name": "robin", "note": "x"}),
    ]


def test_byte_order_mark_and_carriage_returns(write):
    path = write(b"\xef\xbb\xbfname,n\r\nowl,1\r\n\r\nwren,2\r\n")
    assert list(open_source(path).examples) == [
        (0, {"name": "owl", "n": 1}),
        (1, {"name": "wren", "n": 2}),
    ]


def test_string_labels_are_classes(write):
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
    assert read(source) == [
        (0, {"n": 1, "label": 3}),
        (3, "the label is empty"),
        (2, {"n": 3, "label": 4}),
    ]


def test_invalid_utf8(write):
    path = write(b"name,n\nowl,1\n\xe9tourneau,2\nwren,3\n")
    assert read(open_source(path)) == [
        (0, {"name": "owl", "n": 1}),
        (3, "byte 0xe9 is not valid UTF-8"),
        (2, {"name": "wren", "n": 3}),
    ]


def test_unclosed_quote(write):
    path = write('name,n\nowl,1\n"wren,2\nrobin,3\n')
    assert read(open_source(path)) == [
        (0, {"name": "owl", "n": 1}),
        (3, "the row cannot be parsed: unexpected end of data"),
    ]


def test_cell_larger_than_the_limit_of_csv(write):
    path = write(f"name,n\n{'x' * 200_000},1\nowl,2\n")
    first, second = read(open_source(path, kind="CSV"))
    assert first[0] == 2
    assert "field larger than field limit" in first[1]
    assert second == (1, {"name": "owl", "n": 2})


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("1,2\n3,4\n", 1, "the first row is ['1', '2']; must be a header"),
        ("a,b,a\n1,2,3\n", 1, "two columns have the name 'a'"),
        ("a,b\n", 1, "there is no row after the header"),
        (b"\xe9,b\n1,2\n", 1, "byte 0xe9 is not valid UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), None, "the encoding is UTF-16; must be UTF-8"),
        ("\n", 1, "the file is empty; the first line must be a header"),
    ],
)
def test_invalid_tables(write, content, line, reason):
    path = write(content)
    with pytest.raises(SourceError) as caught:
        open_source(path, kind="CSV")
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert caught.value.reason == reason


def test_column_without_a_name(write):
    source = open_source(write(",name\n0,owl\n1,wren\n"))  # as pandas writes its index
    assert list(source.features) == ["column_1", "name"]


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


def test_errors_of_lines(write):
    good = {"x": 1, "label": "owl"}
    bad = ['{"x": 1,\n', "[1]\n", '{"x": 1} {"x": 2}\n', {"x": 2}, {"x": 2, "label": None}]
    source = open_source(write(lines(good, *bad, '{"x": "owl', "\n", good, "7", "\n", "{" * 5)))
    found = read(source)
    assert [found[0], found[7]] == [(0, good), (7, good)]
    reasons = dict(found[1:7] + found[8:])
    assert {
        line: reason[:17] for line, reason in reasons.items() if "JSON" in reason
    } == dict.fromkeys((2, 4, 7, 10), "is not valid JSON")
    assert reasons[3] == "found a list; must be an object"
    assert reasons[5] == reasons[6] == "the label is missing; the object has 'x'"
    assert reasons[9] == "found a number; must be an object"
    assert list(source.examples)[4].feature == "label"


def test_json_lines_with_invalid_bytes(write):
    path = write(b'\xef\xbb\xbf{"x": 1}\n{"x": "\xe9"}\n' + b'{"x": ' + b"[" * 100_000 + b"\n")
    found = read(open_source(path))
    assert found[:2] == [(0, {"x": 1}), (2, "byte 0xe9 is not valid UTF-8")]
    assert found[2][0] == 3


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


def test_errors_of_objects(write):
    path = write('{"a": {"label": 1}, "b": [2], "c": {"y": 1}, "a": {"label": 2, "label": 3}}')
    assert read(open_source(path)) == [
        ("a", {"label": 1}),
        (1, "found a list; must be an object"),
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
        ('"text"', None, "must be an object or a list of objects"),
    ],
)
def test_invalid_json(write, content, line, reason):
    with pytest.raises(SourceError) as caught:
        open_source(write(content), kind="JSON")
    assert caught.value.line == line
    assert caught.value.reason.startswith(reason)


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
def test_json_and_json_lines_are_distinguished(write, content, kind):
    assert open_source(write(content)).kind == kind
