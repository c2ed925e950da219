"""Tables: types, headers, encodings; errors name the line, and the other items are read."""

import csv
import gzip
import json
import math

import pytest
from engines import ThreadEngine, digests
from source_items import read
from write_cases import in_parts, locally
from written import column, write

from covey import ClassLabel, Tensor, errors
from covey.sources import csv as tables
from covey.sources import open_source, open_splits
from covey.sources.csv import CsvTable
from covey.sources.registry import HEAD_BYTES
from covey.sources.text import text_head

SourceError = errors.SourceError


def kinds(source):
    return {
        name: "class" if isinstance(feature, ClassLabel) else feature.dtype
        for name, feature in source.features.items()
    }


def test_type_is_that_of_all_cells(write_file):
    rows = ["i,f,mixed,text,zip,gap,none", "1,1.5,1,1,01234,1,", "2,2e3,0.5,two,99999,,"]
    source = open_source(write_file("\n".join(rows)))
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
        ([f"{1700000000.123 + i}" for i in range(40)], "float64"),
        (["0.1", "19.99", "1e20", ""], "float32"),
        (["0.1", "0.3333333333333333"], "float64"),
        (["inf", "NaN", "-Inf"], "float32"),
        ([" 7", "8 "], "int64"),
        (["1_000"], "str"),
        (["0x10"], "str"),
        (["٣"], "str"),
    ],
)
def test_type_of_a_column(write_file, cells, dtype):
    source = open_source(write_file("a,b\n" + "".join(f"x,{cell}\n" for cell in cells)))
    assert kinds(source)["b"] == dtype
    features = source.features
    for _, example in source.examples:
        features.encode(example)


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters(write_file, delimiter):
    rows = [["name", "note"], ["owl", '"a, b; c"'], ["wren", ""]]
    path = write_file("".join(delimiter.join(row) + "\n" for row in rows))
    assert [list(example.values()) for _, example in open_source(path).examples] == [
        ["owl", "a, b; c"],
        ["wren", ""],
    ]


def test_quoted_cells(write_file):
    path = write_file('name,note\nowl,"two\nlines, ""quoted"""\nwren\nrobin,x\n')
    assert read(open_source(path)) == [
        (0, {"name": "owl", "note": 'two\nlines, "quoted"'}),
        (4, "the row has 1 cells; the header has 2"),
        (2, {"name": "robin", "note": "x"}),
    ]


def test_byte_order_mark_and_carriage_returns(write_file):
    path = write_file(b"\xef\xbb\xbfname,n\r\nowl,1\r\n\r\nwren,2\r\n")
    assert list(open_source(path).examples) == [
        (0, {"name": "owl", "n": 1}),
        (1, {"name": "wren", "n": 2}),
    ]


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
    small = write_file("x\n1\n\n3\n".replace("\n\n", '\n""\n'), "small.csv")
    write(small, tmp_path / "small", **options)
    assert str(column(tmp_path / "small", "x")) == "[1.0, nan, 3.0]"
    write(small, tmp_path / "filled", **options, defaults={"x": 2})
    assert column(tmp_path / "filled", "x") == [1, 2, 3]


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
    ],
)
def test_invalid_types(write_file, tmp_path, types, feature, reason):
    path = id_table(write_file)
    with pytest.raises(errors.CoveyError, match=reason) as caught:
        write(path, tmp_path / "data", label=None, types=types)
    assert caught.value.feature == feature


def test_types_are_omitted_with_features(write_file, tmp_path):
    with pytest.raises(errors.DatasetError, match="omitted with features="):
        write(id_table(write_file), tmp_path, features={"x": "int64"}, types={"x": "int64"})


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
    assert column(tmp_path / "data", "x", "test") == long
    short_table = str(tmp_path / "splits/train.csv")
    write(short_table, tmp_path / "data", "test", mode="append", **options)
    assert column(tmp_path / "data", "x", "test") == [*long, *short]
    write(short_table, tmp_path / "narrow", "train", **options)
    with pytest.raises(errors.DatasetError, match="the existing splits have"):
        write(str(tmp_path / "splits/test.csv"), tmp_path / "narrow", "test", **options)


def test_string_labels_are_classes(write_file):
    source = open_source(write_file("n,Class\n1,wren\n2,owl\n"))
    assert (source.label, source.features["Class"].names) == ("Class", ("owl", "wren"))
    source = open_source(write_file("n,kind\n1,5\n2,7\n"), label="kind")
    assert source.features["kind"] == Tensor("int64")
    source = open_source(write_file("n,label\n1,5.0\n2,7\n"))
    assert source.features["label"].names == ("5.0", "7")


def test_missing_label(write_file):
    path = write_file("n,label\n1,3\n2,\n3,4\n")
    source = open_source(path)
    assert kinds(source)["label"] == "int64"
    assert read(source) == [
        (0, {"n": 1, "label": 3}),
        (3, "the label is empty"),
        (2, {"n": 3, "label": 4}),
    ]


def test_invalid_utf8(write_file):
    path = write_file(b"name,n\nowl,1\n\xe9tourneau,2\nwren,3\n")
    assert read(open_source(path)) == [
        (0, {"name": "owl", "n": 1}),
        (3, "byte 0xe9 is not valid UTF-8"),
        (2, {"name": "wren", "n": 3}),
    ]


def test_unclosed_quote(write_file):
    path = write_file('name,n\nowl,1\n"wren,2\nrobin,3\n')
    assert read(open_source(path)) == [
        (0, {"name": "owl", "n": 1}),
        (3, "the row cannot be parsed: unexpected end of data"),
    ]


def test_cell_larger_than_the_limit_of_csv(write_file):
    """The limit of the csv module does not apply, and is not changed for its other users."""
    limit = csv.field_size_limit()
    text = "x, \n" * 50_000
    path = write_file(f'name,n\n"{text}",1\n{"y" * (limit + 1)},2\nowl,3\n', "birds.csv")
    source = open_source(path)
    assert kinds(source) == {"name": "str", "n": "int64"}
    assert [example["name"] for _, example in source.examples] == [text, "y" * (limit + 1), "owl"]
    assert csv.field_size_limit() == limit
    with pytest.raises(csv.Error, match="field larger than field limit"):
        list(csv.reader(["y" * (limit + 1)]))


def test_cell_larger_than_the_limit(write_file, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CELL_CHARACTERS", 1000)
    path = write_file(f"name,n\n{'x' * 1001},1\nowl,2\n", "birds.csv")
    tables._csv.cache_clear()
    try:
        first, second = read(open_source(path))
    finally:
        tables._csv.cache_clear()
    assert first == (2, "the row cannot be parsed: field larger than field limit (1000)")
    assert second == (1, {"name": "owl", "n": 2})


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a,b,a\n1,2,3\n", 1, "two columns have the name 'a'"),
        ("a,b\n", 1, "there is no row after the header"),
        (b"\xe9,b\n1,2\n", 1, "byte 0xe9 is not valid UTF-8"),
        ("sep=;\n", 2, "there is no row after the line 'sep=;\\n'"),
        ("\n", 1, "the file is empty; the first line must be a header"),
    ],
)
def test_invalid_tables(write_file, content, line, reason):
    path = write_file(content)
    with pytest.raises(SourceError) as caught:
        open_source(path, kind="CSV")
    assert (caught.value.path, caught.value.line) == (str(path), line)
    assert caught.value.reason == reason


@pytest.mark.parametrize("encoding", ["utf-32", "utf-16-le"])
def test_unsupported_encodings(write_file, encoding):
    path = write_file("a,b\n1,2\n".encode(encoding), "birds.csv")
    with pytest.raises(SourceError, match=r"birds.csv: the encoding is .*; must be UTF-8, or UTF-"):
        open_source(path)


def rows(source):
    return [list(example.values()) for _, example in source.examples]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_encodings_and_compression(write_file, encoding, compress):
    content = "name;note\r\nété;1\r\n雀;2\r\n"
    path = write_file(compress(content.encode(encoding)))
    assert rows(open_source(path)) == [["été", 1], ["雀", 2]]
    path = write_file(compress(json.dumps([{"name": "été"}], ensure_ascii=False).encode(encoding)))
    assert rows(open_source(path)) == [["été"]]
    path = write_file(compress('{"name": "été"}\n{"name": "雀"}\n'.encode(encoding)))
    assert (open_source(path).kind, rows(open_source(path))) == ("JSON Lines", [["été"], ["雀"]])


def test_truncated_gzip(write_file):
    lines = [f"{n},{n * n % 1000003}" for n in range(20_000)]
    whole = gzip.compress("\n".join(["a,b", *lines]).encode())
    found = read(open_source(write_file(whole[: len(whole) // 2])))
    assert found[:2] == [(0, {"a": 0, "b": 0}), (1, {"a": 1, "b": 1})]
    line, reason = found[-1]
    assert line == len(found) + 1
    assert reason.startswith("the text from here on cannot be decompressed: ")


def test_detection_decompresses_few_bytes():
    bomb = gzip.compress(b"a,b\n" + b"0" * (64 << 20))
    assert len(text_head(bomb)) == HEAD_BYTES


def test_long_lines(write_file, monkeypatch):
    monkeypatch.setattr("covey.sources.text.MAX_LINE_BYTES", 100)
    path = write_file("a,b\n1,2\n" + "x" * 200 + "\n")
    assert read(open_source(path))[1] == (3, "a line has more than 100 bytes")


HEADERLESS = [
    ("1,2\n3,4\n", "'1' is a number, like the cells below it"),
    ("1,2\n", "'1' is a number"),
    ("owl,1.5\nwren,2\n", "'1.5' is a number, like the cells below it"),
    ("a/1.jpg,owl\na/2.JPG,wren\n", "'a/1.jpg' is a file name, like the cells below it"),
    ("what is it,query\nwho is it,person\nhow is it,query\n", "'query' occurs again below"),
    ("unknown,1\n3,2\n", "'1' is a number, like the cells below it"),
]


@pytest.mark.parametrize(("content", "why"), HEADERLESS)
def test_tables_without_a_header(write_file, content, why):
    path = write_file(content, "birds.csv")
    with pytest.raises(SourceError) as caught:
        open_source(path)
    error = caught.value
    assert (error.option, error.allowed, error.line) == ("columns", "the names of the 2 columns", 1)
    assert error.reason.endswith(f"; it is not a header: {why}")
    source = open_source(path, columns=("a", "b"))
    assert (source.length, list(source.features)) == (content.count("\n"), ["a", "b"])
    assert next(iter(source.examples))[1]["a"] in (1, "owl", "a/1.jpg", "what is it", "unknown")


@pytest.mark.parametrize(
    "content",
    [
        "0,1,2\n3,4,5\n",  # as pandas writes columns without names
        "name,2019,2020,2021\nowl,1,2,3\n",
        "text,label\ntext,label\na,b\n",
        "sepal.length,petal.width\n5.1,1.5\n",
        "day,value\n2020-01-01,NA\n2020-01-02,4\n",
        "hello,goodbye\nsalut,ciao\n",  # ambiguous
        "a,b\n",
    ],
)
def test_headers(write_file, content):
    header = content.partition("\n")[0].split(",")
    assert CsvTable.open(str(write_file(content))).names == tuple(header)


def test_columns(write_file):
    path = write_file("owl;1\nwren;2\n")
    assert read(open_source(path, columns=["name", "n"])) == [
        (0, {"name": "owl", "n": 1}),
        (1, {"name": "wren", "n": 2}),
    ]
    # A header with the same names is a header.
    path = write_file("0,1\n3,4\n")
    assert read(open_source(path, columns=["0", "1"])) == [(0, {"0": 3, "1": 4})]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (("a",), "the first row is 2 cells, 'n', 'name'"),
        (("a", "b"), "the first row is 2 cells, 'n', 'name', which is a header"),
    ],
)
def test_invalid_columns(write_file, columns, reason):
    content = "n,name\n1,owl\n2,wren\n"
    with pytest.raises(SourceError) as caught:
        open_source(write_file(content), columns=columns)
    assert caught.value.reason == reason


@pytest.mark.parametrize("content", ["sep=:\na:b\n1:2\n", '\ufeff"sep=:"\r\na:b\r\n1:2\r\n'])
def test_delimiter_in_the_first_line(write_file, content):
    assert read(open_source(write_file(content))) == [(0, {"a": 1, "b": 2})]


@pytest.mark.parametrize(("given", "character"), [(":", ":"), ("\\t", "\t"), ("tab", "\t")])
def test_delimiter_option(write_file, given, character):
    path = write_file(f"a{character}b\n1,5{character}2\n", "birds.csv")
    assert read(open_source(path, delimiter=given)) == [(0, {"a": "1,5", "b": 2})]


@pytest.mark.parametrize("given", ["::", '"', "\n"])
def test_invalid_delimiter(write_file, given):
    with pytest.raises(SourceError) as caught:
        open_source(write_file("a,b\n1,2\n"), delimiter=given)
    assert (caught.value.option, caught.value.allowed) == ("delimiter", "one character")


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.csv", "name\nowl\n", ["name"]),
        ("a.tsv", "name\nowl\n", ["name"]),
        ("a.tsv", "a,b\tc,d\n1,2\t3,4\n", ["a,b", "c,d"]),
        ("a.txt", "a,b\n1,2\n", ["a", "b"]),
    ],
)
def test_extension_of_tables(write_file, name, content, names):
    assert list(open_source(write_file(content, name)).features) == names


def test_prose_is_not_a_table(write_file):
    prose = "Dear all,\n\nI saw an owl, or two.\nYours,\nJenny, who\nwrites, often, too, much\n"
    with pytest.raises(SourceError, match="which has no supported format"):
        open_source(write_file(prose, "letter.txt"))


def test_several_tables(write_file, tmp_path):
    write_file("x,label\n1,owl\n", "a.csv")
    write_file("x;label\n2.5;wren\n3\n", "b.csv")
    write_file("Owls and wrens.\n", "README.md")
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


def test_tables_of_splits(write_file, tmp_path):
    write_file("x,label\n1,owl\n", "train.csv")
    write_file(gzip.compress(b"x,label\n2,owl\n3,wren\n"), "birds_test.csv.gz")
    splits = open_splits(tmp_path)
    assert {name: source.length for name, source in splits.items()} == {"train": 1, "test": 2}
    assert open_source(tmp_path, split="train").path == str(tmp_path / "train.csv")


def test_column_without_a_name(write_file):
    source = open_source(write_file(",name\n0,owl\n1,wren\n"))  # as pandas writes its index
    assert list(source.features) == ["column_1", "name"]
