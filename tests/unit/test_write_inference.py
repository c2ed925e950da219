"""Features that are inferred while examples are written, by one or several workers."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from engines import ThreadEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import mixtures
from written import check_index, column, files, read, tidy, write

from covey import ClassLabel, Features, Ragged, Tensor
from covey.errors import DatasetError, FeatureError

WORKERS = pytest.mark.parametrize("workers", [1, 2])
pytestmark = pytest.mark.usefixtures("no_fsync")


def as_read(value, kind):
    """Return a value as it is read from a feature of this type."""
    if kind == "bytes":
        return value.encode() if isinstance(value, str) else value
    if kind == "float64" and isinstance(value, int):
        return float(value)  # exact up to 2**53
    return tidy({"x": value})["x"]


@settings(max_examples=40)
@given(
    mixture=mixtures(),
    workers=st.sampled_from([1, 1, 2]),
    memory_limit=st.sampled_from([1, 3000, 1 << 20]),
)
def test_features_are_those_of_infer(mixture, workers, memory_limit):
    examples, defaults = mixture
    options = {"defaults": defaults, "workers": workers, "memory_limit": memory_limit}
    try:
        features = Features.infer(examples, defaults=defaults)
    except FeatureError:
        features = None
    with tempfile.TemporaryDirectory() as directory:
        if features is None:
            with pytest.raises(FeatureError):
                write(iter(examples), directory, **options)
            return
        written = write(iter(examples), directory, shuffle=False, **options)
        found = read(Path(directory))
    assert written.features == features
    for example, each in zip(examples, found, strict=True):
        assert {*each} == {*features}
        for name, value in each.items():
            given = example.get(name)
            given = defaults[name] if given is None else given
            assert value == as_read(given, features[name].dtype)


LATE = {
    "decimals, then a long one": ([i / 10 for i in range(150)] + [1 / 3], Tensor("float64")),
    "integers, decimals, a time stamp": (
        [*range(50), 0.1, 0.2, 1700000000.123],
        Tensor("float64"),
    ),
    "large integers, then a float": ([2**40 + 1] * 150 + [0.5], Tensor("float64")),
    "bools, then an integer": ([True, False] * 75 + [3], Tensor("int64")),
    "empty lists": ([[]] * 150 + [[0.5]], Tensor("float32", (None,))),
    "empty lists, then nested ones": ([[]] * 150 + [[["a"]]], Tensor("str", (None, 1))),
    "rows of other lengths": ([[[1, 2], [3, 4]]] * 150 + [[[1], [2, 3]]], Ragged("int64")),
    "ragged integers, then floats": ([[[], [7]]] * 150 + [[[1.5], []]], Ragged("float32")),
    "ragged integers, then large ones and floats": (
        [[[], [7]]] * 9 + [[[2**40 + 1], [0.5]]],
        Ragged("float64"),
    ),
    "strings, then bytes": (["a"] * 150 + [b"\xff"], Tensor("bytes")),
    "arrays of other sizes": (
        [np.zeros((2, 2), np.float32)] * 150 + [np.ones((3, 4), np.float32)],
        Tensor("float32", (None, None), encoding="bytes"),
    ),
    "narrow types, then wider ones": ([np.int8(1)] * 150 + [np.int16(300)], Tensor("int16")),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", LATE)
def test_features_that_the_last_example_changes(tmp_path, case, workers):
    """Earlier values are unchanged, though most of them were encoded with other features."""
    values, kind = LATE[case]
    examples = [{"x": value} for value in values]
    written = write(iter(examples), tmp_path, shuffle=False, memory_limit=20_000, workers=workers)
    assert written.features == Features.infer(examples) == Features({"x": kind})
    dtype = "bytes" if case == "strings, then bytes" else ""
    assert column(tmp_path, "x") == [as_read(value, dtype) for value in values]
    check_index(tmp_path)


ENGINES = {"local": {}, "workers": {"workers": 2}, "threads": {"engine": ThreadEngine(3)}}


@pytest.mark.parametrize("way", ENGINES)
def test_notes_of_floats(tmp_path, way):
    """They count what was written, not what was skipped, and each value once."""
    lists = [[i / 3, 0.5, 0.1] for i in range(50)]
    rounded = sum(float(np.float32(a)) != a for a, *_ in lists)
    examples = [
        {"time": 1700000000.123 + i, "x": each, "r": [each, [0.25]], "exact": [0.5, 1e20]}
        for i, each in enumerate(lists)
    ]
    skipped = [{"time": 1.0, "x": [1 / 3, 1 / 7, 0.1], "r": "none", "exact": [0.0, 1.0]}]
    written = write(
        [*examples, *skipped, *examples], tmp_path / "a", on_error="skip", **ENGINES[way]
    )
    assert rounded == 33
    assert len(written.skipped) == 1
    assert written.notes == (
        "r: 66 of 400 values rounded; declare float64",
        "x: 66 of 300 values rounded; declare float64",
        "'time': float64, which is stored as bytes; decode it by "
        "tf.io.decode_raw(parsed['time'], tf.float64)",
    )
    types = {"x": "float64", "r": "float64", "time": "float64"}
    written = write(examples, tmp_path / "b", types=types, shuffle=False, **ENGINES[way])
    kinds = {"time": "float64", "x": Tensor("float64", (3,)), "r": Ragged("float64")}
    assert written.features == Features({**kinds, "exact": Tensor("float32", (2,))})
    assert written.notes == ()
    assert column(tmp_path / "b", "x") == lists
    assert column(tmp_path / "b", "time") == [each["time"] for each in examples]


def test_notes_of_columns(tmp_path):
    columns = {"x": [[1 / 3, 0.5], [0.1, 2]], "y": [0.1, 1 / 3], "z": np.ones((2, 2))}
    written = write(columns, tmp_path, shuffle=False)
    assert [note.partition(";")[0] for note in written.notes] == [
        "x: 1 of 4 values rounded",
        "'y': float64, which is stored as bytes",
    ]
    assert column(tmp_path, "y") == columns["y"]


def test_rounding_to_the_type_of_the_dataset_is_noted(tmp_path):
    write([{"x": 0.5}], tmp_path)
    written = write([{"x": 0.1}, {"x": 1 / 3}], tmp_path, mode="append")
    assert written.notes == ("x: 1 of 2 values rounded; declare float64",)


@pytest.mark.parametrize("way", ENGINES)
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 1, 2], Tensor("float64")),
        ([[1], [2, 3]], Tensor("float64", (None,))),
        ([[[1], []], [[2, 3]]], Ragged("float64")),
        ([True, False], Tensor("float64")),
        (["a", b"b"], Tensor("bytes")),
    ],
)
def test_declared_dtypes(tmp_path, values, kind, way):
    examples = [{"x": value, "y": 0} for value in values * 5]
    options = {**ENGINES[way], "types": {"x": kind.dtype}, "shuffle": False}
    assert write(examples, tmp_path / "data", **options).features["x"] == kind
    expected = [as_read(value, kind.dtype) for value in values * 5]
    assert column(tmp_path / "data", "x") == expected
    with pytest.raises(FeatureError, match="no example has it") as caught:
        write(examples, tmp_path / "typo", **{**options, "types": {"xx": "str"}})
    assert caught.value.feature == "xx"
    with pytest.raises(DatasetError, match="the existing splits have") as caught:
        write(examples, tmp_path / "data", "test", **{**options, "types": {"x": "int8"}})


@pytest.mark.parametrize("way", ENGINES)
def test_integers_and_floats_in_different_pieces(tmp_path, way):
    values = [0, 2**24 + 1, 0, 0] + [0.5] * 8
    written = write([{"x": value} for value in values], tmp_path, shuffle=False, **ENGINES[way])
    assert written.features == Features({"x": Tensor("float64")})
    assert column(tmp_path, "x") == values


@pytest.mark.parametrize("way", ENGINES)
def test_large_integers_beside_floats_are_errors(tmp_path, way):
    for values in ([2**53 + 1] * 9 + [0.5], [0.5] * 9 + [2**53 + 1]):
        examples = [{"x": value} for value in values]
        with pytest.raises(FeatureError, match="the integer 9007199254740993") as caught:
            write(examples, tmp_path / "birds", **ENGINES[way])
        assert caught.value.feature == "x"
        assert "strings" in caught.value.remedy
    assert not (tmp_path / "birds").exists()


@WORKERS
@pytest.mark.parametrize(
    ("values", "default"),
    [
        ([None] * 60 + [0, 2**24 + 1, 0.5], 0),
        ([None] * 50 + [1], 0),
        ([[1, 2]] * 100 + [None], [8, 9]),
        ([None] * 20 + [[1, 2]] * 100, [8, 9]),
        ([[1], [1, 2], None], [1, 2, 3]),
        ([1, 2.5, None], 1.5),
        ([[], [[1, 2], [3]], None], []),
    ],
)
def test_defaults(tmp_path, values, default, workers):
    """Missing features, and None, before or after the first value."""
    for name, missing in [("none", {"x": None}), ("missing", {})]:
        examples = [{"y": 1, **(missing if each is None else {"x": each})} for each in values]
        options = {"defaults": {"x": default}, "shuffle": False, "workers": workers}
        written = write(iter(examples), tmp_path / name, **options)
        assert written.features == Features.infer(examples, defaults={"x": default})
        expected = [default if each is None else each for each in values]
        assert column(tmp_path / name, "x") == expected


# Sources that reuse their arrays.


def reuse(kind, count):
    """Yield items that share an object, whose content changes."""
    array, values = np.zeros(3, np.int64), [0, 0, 0]
    example = {} if kind == "dict" else {"x": array}
    for number in range(count):
        array[:], values[:] = number, [number] * 3
        if kind == "dict":
            example["x"] = [number] * 3
        nested = {"x": array, "of": {"names": values}}
        yield {
            "pairs": (f"bird {number}", example),
            "tuples": (array, number),
            "nested": nested,
        }.get(kind, example)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("kind", ["dict", "pairs", "tuples", "nested"])
def test_source_that_reuses_its_objects(tmp_path, kind, declared, workers):
    options = {"shuffle": False, "workers": workers}
    if kind == "tuples":
        options["names"] = ("x", "y")
    if declared:
        several = Tensor("int64", (3,))
        more = {"tuples": {"y": "int64"}, "nested": {"of": {"names": several}}}
        options["features"] = {"x": several, **more.get(kind, {})}
    write(reuse(kind, 50), tmp_path, **options)
    assert column(tmp_path, "x") == [[number] * 3 for number in range(50)]


# on_error="skip": the same examples and the same order for any memory limit and workers.

SKIPPED = {
    "shapes": (
        [{"x": [1]}, *[{"x": 2}] * 5, *[{"x": [i] * (i % 3)} for i in range(50)], {"x": 3}],
        [*range(1, 6), 56],
    ),
    "strings among wider numbers": (
        [{"x": "t" if i % 7 == 6 else i / (i % 5 + 1)} for i in range(90)],
        [*range(6, 90, 7)],
    ),
    "names": (
        [{"x": 1}, *[{"x": 1, "y": 2}] * 5, *[{"y": 1}] * 5, *[{"x": i} for i in range(20)]],
        [*range(1, 11)],
    ),
    "exceeding 64 bits": (
        [{"x": 2**63}, {"x": -1}, *[{"x": i} for i in range(50)], {"x": -2}],
        [1, 52],
    ),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_skipped_examples(tmp_path, case):
    examples, expected = SKIPPED[case]
    for workers, memory_limit in [(1, 1 << 30), (2, 3000), (4, 1)]:
        options = {"on_error": "skip", "workers": workers, "memory_limit": memory_limit}
        written = write(iter(examples), tmp_path / str(workers) / "birds", **options)
        assert [each.record for each in written.skipped] == expected
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "4")


# Classes that the dataset does not have.

GROWING = [*["a"] * 6, "zz", None, *["yy"] * 5, 1]  # None is an example that does not match


@WORKERS
@pytest.mark.parametrize("split", ["train", "test"])
def test_new_classes_and_an_invalid_example(tmp_path, split, workers):
    """The invalid example is skipped or raised, and not mistaken for one of a new class."""
    write({"x": [1, 2], "label": ["a", "b"]}, tmp_path, label="label")
    examples = [
        {"x": "bad", "label": "a"} if each is None else {"x": 0, "label": each} for each in GROWING
    ]
    options = {"mode": "append", "workers": workers, "shuffle": False}
    with pytest.raises(FeatureError) as caught:
        write(iter(examples), tmp_path, split, **options)
    assert (caught.value.example, caught.value.feature) == (7, "x")
    written = write(iter(examples), tmp_path, split, on_error="skip", **options)
    assert [each.record for each in written.skipped] == [7]
    assert written.features["label"] == ClassLabel(names=("a", "b", "yy", "zz"))
    assert column(tmp_path, "label", split)[-13:] == [0] * 6 + [3] + [2] * 5 + [1]
    check_index(tmp_path, split)


@pytest.mark.parametrize("workers", [1, 2])
def test_unknown_label_is_found_in_the_first_example(tmp_path, workers):
    taken = []

    def examples():
        for n in range(100_000):
            taken.append(n)
            yield {"x": n, "species": "owl"}

    with pytest.raises(DatasetError) as caught:
        write(examples(), tmp_path, label="specie", workers=workers)
    assert (caught.value.option, caught.value.found) == ("label", "specie")
    assert len(taken) < 20_000
    assert not list(tmp_path.iterdir())
