"""Hypothesis strategies of schemas with examples, and comparison of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covey import ClassLabel, Features, Ragged, Sparse, Tensor
from covey.arrays import SparseArray

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMBERS = [*INTEGERS, "bool", "float16", "float32", "float64"]
NAMES = ["a", "b", "label", "x/y", "é", "a long name with spaces", "0"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@dataclass(frozen=True)
class Case:
    """A feature and a value for every example."""

    feature: Any
    values: list[Any]


def arrays(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.dtype(dtype), shape)


@st.composite
def tensor_case(draw: Any, rows: int) -> Case:
    dtype = draw(st.sampled_from(NUMBERS))
    encoding = draw(st.sampled_from(["list", "bytes"]))
    shape = draw(shapes)
    if dtype == "float64":
        encoding = "bytes"
    if draw(st.booleans()) and 0 not in shape:  # variable
        feature = Tensor(dtype, (None, *shape), encoding=encoding)
        values = [draw(arrays(dtype, (draw(st.integers(0, 3)), *shape))) for _ in range(rows)]
    else:
        feature = Tensor(dtype, shape, encoding=encoding)
        values = [draw(arrays(dtype, shape)) for _ in range(rows)]
    return Case(feature, values)


@st.composite
def string_case(draw: Any, rows: int) -> Case:
    dtype = draw(st.sampled_from(["str", "bytes"]))
    one = texts if dtype == "str" else st.binary(max_size=8)
    kind = draw(st.sampled_from(["scalar", "fixed", "variable"]))
    if kind == "scalar":
        return Case(Tensor(dtype), [draw(one) for _ in range(rows)])
    size = 2 if kind == "fixed" else None
    lists = st.lists(one, min_size=size or 0, max_size=size or 4)
    return Case(Tensor(dtype, (size,)), [draw(lists) for _ in range(rows)])


@st.composite
def ragged_case(draw: Any, rows: int) -> Case:
    dtype = draw(st.sampled_from(["int64", "float32", "int8", "bytes"]))
    one = {
        "int64": st.integers(-(2**63), 2**63 - 1),
        "int8": st.integers(-128, 127),
        "float32": st.floats(width=32, allow_nan=False),
        "bytes": st.binary(max_size=5),
    }[dtype]
    depth = draw(st.integers(2, 3))
    nested: st.SearchStrategy[Any] = one
    for _ in range(depth):
        nested = st.lists(nested, max_size=3)
    return Case(Ragged(dtype, depth), [draw(nested) for _ in range(rows)])


KINDS_OF_COVEY = ["inner", "dynamic", "wide", "strings", "sparse", "text rows", "optional"]


@st.composite
def odd_case(draw: Any, rows: int) -> Case:
    """A feature that TFDS and parse_example do not have."""
    kind = draw(st.sampled_from(KINDS_OF_COVEY))
    sizes = st.integers(0, 3)
    if kind == "inner":
        return Case(
            Tensor("int16", (2, None), encoding=draw(st.sampled_from(["list", "bytes"]))),
            [draw(arrays("int16", (2, draw(sizes)))) for _ in range(rows)],
        )
    if kind == "dynamic":
        feature = Tensor("float32", (None, 2, None), encoding="bytes")
        shape = st.tuples(sizes, st.just(2), sizes)
        return Case(feature, [draw(arrays("float32", draw(shape))) for _ in range(rows)])
    if kind == "wide":
        wide = st.lists(st.lists(st.floats(allow_nan=False), max_size=3), max_size=3)
        return Case(Ragged("float64"), [draw(wide) for _ in range(rows)])
    if kind == "strings":
        pairs = st.lists(st.binary(max_size=3), min_size=2, max_size=2)
        lists = st.lists(pairs, max_size=3)
        return Case(Tensor("bytes", (None, 2)), [draw(lists) for _ in range(rows)])
    if kind == "text rows":
        grid = st.lists(st.lists(texts, min_size=2, max_size=2), min_size=2, max_size=2)
        return Case(Tensor("str", (2, 2)), [draw(grid) for _ in range(rows)])
    if kind == "optional":
        maybe = st.one_of(st.none(), st.integers(-5, 5))
        return Case(Tensor("int64", default=7), [draw(maybe) for _ in range(rows)])
    dense = hnp.arrays(np.int64, (2, 3), elements=st.sampled_from([0, 0, 1, -5]))
    return Case(Sparse("int64", (2, 3)), [draw(dense) for _ in range(rows)])


@st.composite
def label_case(draw: Any, rows: int) -> Case:
    return Case(ClassLabel(num_classes=5), [draw(st.integers(-1, 4)) for _ in range(rows)])


@st.composite
def datasets(
    draw: Any, *, ragged: bool = True, odd: bool = False
) -> tuple[Features, list[dict[str, Any]]]:
    """Draw features, and examples of them."""
    rows = draw(st.integers(1, 4))
    kinds = [tensor_case(rows), string_case(rows), label_case(rows)]
    if ragged:
        kinds.append(ragged_case(rows))
    if odd:
        kinds.append(odd_case(rows))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    cases = {name: draw(st.one_of(kinds)) for name in names}
    if odd and draw(st.booleans()):  # nested, under a unique name
        case = draw(st.one_of(kinds))
        features = Features({"deep": {"er": case.feature}, **features_of(cases)})
        nested = [{"deep": {"er": value}} for value in case.values]
    else:
        features, nested = Features(features_of(cases)), [{} for _ in range(rows)]
    examples = [
        {**nested[i], **{name: case.values[i] for name, case in cases.items()}} for i in range(rows)
    ]
    return features, examples


# Values that one feature may have in different examples; some mixtures fit no feature.
small = st.integers(-3, 3)
floats = st.floats(width=32, allow_nan=False)
integers = st.one_of(
    small,
    st.sampled_from([2**24 - 1, 2**24, 2**24 + 1, -(2**24) - 1, 2**40 + 1, -(2**53), 2**53]),
)
MIXTURES = [
    integers,
    st.one_of(integers, floats),
    st.one_of(st.booleans(), integers, floats),
    st.one_of(st.integers(0, 3), st.sampled_from([2**63, 2**64 - 1])),
    st.one_of(small, floats, st.sampled_from([2**63, 2**64 - 1])),
    st.one_of(texts, st.binary(max_size=3)),
    st.lists(small, min_size=2, max_size=2),
    st.lists(st.one_of(integers, floats), max_size=3),
    st.lists(st.one_of(st.just([]), st.lists(integers, max_size=3)), max_size=3),
    st.lists(texts, max_size=3),
    st.lists(st.one_of(st.booleans(), small, floats), max_size=3).map(tuple),
    st.lists(st.lists(st.one_of(integers, floats), min_size=2, max_size=2), max_size=2),
    st.lists(st.one_of(small, st.sampled_from([2**63, 2**64 - 1])), max_size=2),
    st.lists(st.builds(np.array, st.lists(floats, max_size=2)), max_size=2),
    st.one_of(small, texts),
    st.one_of(small, st.lists(small, max_size=2)),
    st.builds(np.full, st.integers(0, 3), small, st.sampled_from(["int8", "int16", "float32"])),
]
DEFAULTS = [0, 7, 1.5, "", b"", [], [1, 2], [[]]]


@st.composite
def mixtures(draw: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Draw examples whose features have values of several types, and defaults."""
    names = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=3, unique=True))
    kinds = {name: draw(st.sampled_from(MIXTURES)) for name in names}
    given = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    defaults = {name: draw(st.sampled_from(DEFAULTS)) for name in given}
    examples = []
    for _ in range(draw(st.integers(1, 12))):
        example = {name: draw(kind) for name, kind in kinds.items()}
        for name in given:
            match draw(st.sampled_from(["present", "present", "none", "missing"])):
                case "none":
                    example[name] = None
                case "missing":
                    del example[name]
        examples.append(example)
    return examples, defaults


def features_of(cases: dict[str, Case]) -> dict[str, Any]:
    return {name: case.feature for name, case in cases.items()}


def same(a: Any, b: Any) -> bool:
    """Return whether values are equal; NaN equals itself, 0.0 does not equal -0.0."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (str, bytes)) or isinstance(b, (str, bytes)):
        return bool(a == b)
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape:
        return False
    if x.dtype.kind == "f" and y.dtype.kind == "f":
        # The payload of a NaN is not compared: a conversion may change it.
        nan = np.isnan(x) & np.isnan(y)
        return bool(((x == y) & (np.signbit(x) == np.signbit(y)) | nan).all())
    return bool((x == y).all())


def agree(a: Any, b: Any) -> bool:
    """Return whether nested dicts of values are equal, in the meaning of `same`."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(agree(a[name], b[name]) for name in a)
    return same(a, b)


def plain(value: Any) -> Any:
    """Return a value as lists and Python numbers."""
    if isinstance(value, SparseArray):
        return value.to_dense().tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value
