"""Rows of arrays and lists in memory, compared with numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import _core
from covey.errors import FeatureError
from covey.samplers.inputs import ExampleRows

RANDOM = np.random.default_rng(4)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 40),
    shape=st.lists(st.integers(1, 9), max_size=3),
    dtype=st.sampled_from(["uint8", "bool", "float16", "int32", "float64", "complex128"]),
    data=st.data(),
)
def test_rows_of_any_array(rows, shape, dtype, data):
    x = RANDOM.integers(0, 2, (rows, *shape)).astype(dtype)
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=50)), np.int64)
    assert np.array_equal(ExampleRows(x, "x").take(ids), x[ids])
    assert ExampleRows(x, "x").take(ids).dtype == x.dtype


@pytest.mark.parametrize(
    "x",
    [
        np.asfortranarray(RANDOM.random((9, 4, 3))),
        RANDOM.random((18, 4))[::2],
        RANDOM.random((9, 0)),
        np.array([f"row {number}" for number in range(9)]),
        np.array([b"%d" % number for number in range(9)], object),
        np.arange(9).astype("datetime64[s]"),
    ],
    ids=["fortran", "strided", "empty rows", "strings", "objects", "dates"],
)
def test_rows_of_special_arrays(x):
    ids = np.array([3, 3, 0, 8])
    assert np.array_equal(ExampleRows(x, "x").take(ids), x[ids])


def test_array_is_not_copied():
    x = RANDOM.random((9, 4))
    rows = ExampleRows(x, "x")
    assert np.shares_memory(rows.items, x)
    assert not np.shares_memory(rows.take(np.array([2])), x)


@pytest.mark.parametrize("ids", [[9], [-1], [0, 2**62]])
def test_row_out_of_range(ids):
    with pytest.raises(IndexError, match="there is no such row"):
        ExampleRows(np.zeros((9, 4)), "x").take(np.array(ids))


@pytest.mark.parametrize(
    ("rows", "row_bytes", "out"),
    [(10, 0, 4), (10, 4, 8), (12, 4, 4), (12, 4, 7), (12, 4, 12)],
)
def test_take_rows_checks_sizes(rows, row_bytes, out):
    with pytest.raises(ValueError, match="row"):
        _core.take_rows(
            np.zeros(rows, np.uint8), row_bytes, np.array([0, 1]), np.zeros(out, np.uint8)
        )


def test_examples_of_different_shapes():
    with pytest.raises(FeatureError, match=r"different shapes, \(2,\) and \(3,\)"):
        ExampleRows([np.zeros(2), np.zeros(3)], "x").take(np.array([0, 1]))


def test_error_of_load_example_fn_names_the_example():
    with pytest.raises(ZeroDivisionError) as caught:
        ExampleRows([1, 0], "x", lambda item: 1 / item).take(np.array([1]))
    assert caught.value.__notes__ == ["in load_example_fn of example 1: 0"]


@pytest.mark.parametrize("x", ["abc", 7, np.float32(1), {"a": [1]}, None])
def test_invalid_types(x):
    with pytest.raises(FeatureError) as caught:
        ExampleRows(x, "x")
    assert caught.value.option == "x"
