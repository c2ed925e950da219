"""Tensors and class labels, the features that most schemas consist of.

A feature defines the columns it is stored in, and how a value or a batch of values is split into
them and joined again. A tf.train.Example has only int64, float32 and byte strings:

=================  ==========================  ==================================================
dtype              stored as                   bytes per value
=================  ==========================  ==================================================
bool, integers     int64 list (varints)        1 for 0 to 127, 2 to 16383, ..., 10 for negatives
uint64             int64 list, by its bits     the same; above 2**63 other readers see a negative
float32            float list                  4
float16            float list                  4: exact, but twice its size
float64            one byte string, raw        8: exact; ``encoding="list"`` stores float32 instead
str, bytes         bytes list                  its length + 2 or more
any numbers        one byte string, raw        its size in memory, with ``encoding="bytes"``
any numbers        one byte string, zlib       its compressed size, with ``encoding="zlib"``
=================  ==========================  ==================================================

Raw arrays are little-endian and in C order: ``tf.io.decode_raw`` and TFDS' ``encoding="bytes"``
read them. :mod:`covey.schema.packed` has the encodings that only TFDS uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.arrays import RaggedArray
from covey.schema.columns import STRINGS, Column, Layout, Shape, check_shape, parse_dtype
from covey.schema.packed import PACKED, arrange, item_size, pack, row_of_string, unpack


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
"""The default of a required feature."""


class InconsistentColumnsError(FeatureError):
    """The columns of a feature contradict each other in one row of a batch."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True)
class Feature:
    """Base class of features."""

    def columns(self, name: str) -> tuple[Column, ...]:
        """Return the columns that the feature `name` is stored in."""
        raise NotImplementedError

    @property
    def is_plain(self) -> bool:
        """Whether values are stored unchanged, in one column with the name of the feature."""
        return False

    @property
    def is_direct(self) -> bool:
        """Whether decoded values need no :meth:`join`."""
        return False

    def filler(self) -> Any:
        """Return the value of an example that lacks the feature; REQUIRED if there is none."""
        return getattr(self, "default", REQUIRED)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        """Split a value into its columns; None for an absent column."""
        return [value]

    def split_batch(
        self, batch: Any, rows: int, columns: Sequence[Column]
    ) -> list[tuple[Any, NDArray[np.int64] | None]]:
        """Split a batch of values into the (values, row splits) of its columns."""
        if len(columns) == 1:
            parts = [part for value in batch for part in self.split(value, columns)]
            return [columns[0].coerce_batch(parts, rows)]
        table = [self.split(value, columns) for value in batch]
        return [
            column.coerce_batch([row[i] for row in table], rows) for i, column in enumerate(columns)
        ]

    def join(self, parts: list[Any]) -> Any:
        """Join decoded columns to a batch of values.

        Raises:
            InconsistentColumnsError: If the columns contradict each other, which an untrusted file
                can cause.
        """
        return parts[0]


@dataclass(frozen=True)
class Tensor(Feature):
    """Numbers or strings of one shape; dimensions that differ between examples are None.

    Args:
        dtype: A number type (``bool``, ``int8`` to ``uint64``, ``float16`` to ``float64``), ``str``
            or ``bytes``, as a name, a Python type or a numpy dtype.
        shape: Shape of one value. One unknown dimension (None) is restored from the number of
            values; several require ``encoding="bytes"`` or ``"zlib"``, which store the shape.
        encoding: ``"list"`` stores the numbers as a list, ``"bytes"`` as one raw byte string (fast
            and compact for arrays of small types; the default of float64), ``"zlib"`` as a
            compressed byte string. ``"bytes_each"`` and ``"zlib_each"`` store one string per item
            along the first dimension, as TFDS does in sequences.
        default: Value of examples that lack the feature. Without it the feature is required.

    >>> Tensor("float32", (3,))
    Tensor(dtype='float32', shape=(3,), encoding='list')
    """

    dtype: str
    shape: Shape = ()
    _: KW_ONLY
    encoding: Literal["list", "bytes", "zlib", "bytes_each", "zlib_each"] | None = None
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        dtype = parse_dtype(self.dtype)
        shape = check_shape(self.shape, dtype)
        encoding = self.encoding or ("bytes" if dtype == "float64" else "list")
        if encoding not in ("list", "bytes", *PACKED):
            raise FeatureError(
                option="encoding", found=encoding, allowed=f"'list' or 'bytes', or one of {PACKED}"
            )
        if dtype in STRINGS and encoding != "list":
            raise FeatureError(option="encoding", found=encoding, allowed=f"'list' for {dtype}")
        if shape.count(None) > 1 and encoding == "list":
            raise FeatureError(
                f"shape {shape} has {shape.count(None)} unknown dimensions, which a list cannot "
                "restore; use encoding='bytes', or Ragged for nested lists"
            )
        if encoding.endswith("_each") and (not shape or None in shape[1:]):
            raise FeatureError(
                option="shape",
                found=shape,
                allowed="of at least one dimension, of which only the first may be None, for "
                f"encoding={encoding!r}",
            )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "encoding", encoding)
        if self.default is not REQUIRED:
            Column("default", dtype, shape).coerce(self.default)  # raises if it is invalid
            given = self.default
            frozen = _freeze(given.tolist() if hasattr(given, "tolist") else given)
            object.__setattr__(self, "default", frozen)

    def __repr__(self) -> str:
        default = "" if self.default is REQUIRED else f", default={self.default!r}"
        return (
            f"Tensor(dtype={self.dtype!r}, shape={self.shape}, encoding={self.encoding!r}{default})"
        )

    @property
    def is_plain(self) -> bool:
        return not self._has_shape and not self._is_packed

    @property
    def is_direct(self) -> bool:
        return self.is_plain and (self.dtype != "bool" or self.encoding == "list")

    @property
    def _has_shape(self) -> bool:
        return self.shape.count(None) > 1

    @property
    def _is_packed(self) -> bool:
        return self.encoding in PACKED

    def columns(self, name: str) -> tuple[Column, ...]:
        if self._has_shape:
            if self.default is not REQUIRED:
                raise FeatureError(
                    "a feature with several unknown dimensions cannot have a default", feature=name
                )
            shape = Column(f"{name}/shape", "int32", (len(self.shape),))
            return (shape, self._column(f"{name}/value"))
        if self.default is REQUIRED:
            return (self._column(name),)
        plain = Column(name, self.dtype, self.shape).coerce(self.default)
        if self._is_packed:
            return (self._column(name, pack(plain, str(self.encoding))),)
        return (self._column(name, [plain] if isinstance(plain, bytes) else plain),)

    def _column(self, key: str, default: Any = None) -> Column:
        """Return the column of the values, which is optional if there is a default."""
        dtype, shape = self.dtype, self.shape
        if self._is_packed:
            dtype, shape = "bytes", shape[:1] if str(self.encoding).endswith("_each") else ()
        layout: Layout = "variable" if None in shape else "fixed"
        return Column(key, dtype, shape, self.encoding == "bytes", layout, default is None, default)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        if self.is_plain:
            return [value]
        array = Column("value", self.dtype, self.shape).coerce(value)
        stored: Any = array
        if self._is_packed:
            strings = pack(array, str(self.encoding))
            stored = strings if columns[-1].shape else strings[0]
        return [np.array(array.shape, np.int32), stored] if self._has_shape else [stored]

    def split_batch(
        self, batch: Any, rows: int, columns: Sequence[Column]
    ) -> list[tuple[Any, NDArray[np.int64] | None]]:
        if self.is_plain:
            return [columns[0].coerce_batch(batch, rows)]
        return super().split_batch(batch, rows, columns)

    def _unpack(self, stored: Any) -> Any:
        """Return the values of packed strings."""
        encoding = str(self.encoding)
        shape = self.shape[1:] if encoding.endswith("_each") else self.shape
        known = None not in shape
        item = Column("", self.dtype, shape, raw=True, layout="fixed" if known else "variable")
        memory, sizes = unpack(stored, item, encoding)
        size = item_size(item)
        wrong = sizes != size if known else (sizes < 0) | (sizes % size != 0)
        if wrong.any():
            first = int(np.argmax(wrong))
            found = (
                f"{sizes[first]} bytes" if sizes[first] >= 0 else "invalid or too much zlib data"
            )
            expected = f"{size} bytes{'' if known else ' or a multiple'}"
            raise InconsistentColumnsError(
                row_of_string(stored, first),
                f"a string has {found}, expected {expected} for {self.dtype} {shape}",
            )
        return arrange(memory, sizes, stored, item)

    def join(self, parts: list[Any]) -> Any:
        *shape, values = parts
        if self._is_packed:
            values = self._unpack(values)
        if self.dtype == "bool" and self.encoding != "list":
            _check_bools(values)
        if not shape:
            return values
        (shapes,) = shape
        # The shapes come from a file: each must match the feature and the number of values.
        sizes = shapes.astype(object).prod(axis=1)
        fits = (shapes >= 0).all(axis=1) & (sizes == values.row_lengths)
        for axis, size in enumerate(self.shape):
            fits &= size is None or shapes[:, axis] == size
        if not fits.all():
            row = int(np.argmin(fits))
            raise InconsistentColumnsError(
                row,
                f"the stored shape {tuple(shapes[row].tolist())} does not match {self.shape} with "
                f"{int(values.row_lengths[row])} values",
            )
        return RaggedArray(values.values, values.row_splits, shapes.astype(np.int64))


def _check_bools(column: Any) -> None:
    """Check that raw bools are stored as the bytes 0 and 1."""
    memory = (column.values if isinstance(column, RaggedArray) else column).view(np.uint8)
    wrong = (memory > 1).reshape(len(memory), -1).any(axis=1) if memory.size else memory.ravel()
    if wrong.any():
        row = int(np.argmax(wrong))
        if isinstance(column, RaggedArray):
            row = int(np.searchsorted(column.row_splits, row, side="right")) - 1
        raise InconsistentColumnsError(row, "a bool is stored as a byte other than 0 and 1")


def _freeze(value: Any) -> Any:
    """Convert lists to tuples, which are hashable."""
    return tuple(_freeze(each) for each in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class ClassLabel(Feature):
    """The class of an example: an integer from 0, with or without a name.

    Args:
        names: Names of the classes, in order. Values may then be names, too.
        num_classes: Number of classes, if they have no names. The value -1 (unknown class) is
            always valid, as in TFDS.
        default: Class of examples that lack the feature, as integer or name.

    >>> ClassLabel(names=["wren", "owl"]).index("owl")
    1
    """

    names: tuple[str, ...] | None = None
    num_classes: int | None = None
    _: KW_ONLY
    default: Any = field(default=REQUIRED)
    _positions: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.names is not None:
            given: Any = self.names
            names = tuple(given)
            if isinstance(given, str) or not all(isinstance(name, str) for name in names):
                raise FeatureError(option="names", found=given, allowed="a list of strings")
            self._positions.update((name, i) for i, name in enumerate(names))
            if len(self._positions) != len(names):
                twice = next(n for i, n in enumerate(names) if self._positions[n] != i)
                raise FeatureError(f"the name {twice!r} occurs twice", option="names")
            if self.num_classes not in (None, len(names)):
                raise FeatureError(
                    option="num_classes",
                    found=self.num_classes,
                    allowed=f"{len(names)}, the number of names",
                )
            object.__setattr__(self, "names", names)
            object.__setattr__(self, "num_classes", len(names))
        elif self.num_classes is not None:
            count: Any = self.num_classes
            if not isinstance(count, (int, np.integer)) or not 0 <= count < 2**62:
                raise FeatureError(option="num_classes", found=count, allowed="an integer >= 0")
        if self.default is not REQUIRED:
            object.__setattr__(self, "default", int(self._column("default").coerce(self.default)))

    @property
    def is_plain(self) -> bool:
        return True

    @property
    def is_direct(self) -> bool:
        return self.num_classes is None

    def index(self, name: str) -> int:
        """Return the integer of a class name."""
        if self.names is None:
            raise FeatureError(f"the class is the string {name!r}, but the label has no names")
        found = self._positions.get(name)
        if found is None:
            raise FeatureError(f"unknown class {name!r}; the label has {len(self.names)} names")
        return found

    def _column(self, name: str, default: NDArray[np.int64] | None = None) -> Column:
        bounds = None if self.num_classes is None else (-1, self.num_classes - 1)
        return Column(
            name,
            "int64",
            required=default is None,
            default=default,
            bounds=bounds,
            lookup=self.index,
        )

    def columns(self, name: str) -> tuple[Column, ...]:
        if self.default is REQUIRED:
            return (self._column(name),)
        return (self._column(name, np.array(self.default, np.int64)),)

    def split_batch(
        self, batch: Any, rows: int, columns: Sequence[Column]
    ) -> list[tuple[Any, NDArray[np.int64] | None]]:
        (column,) = columns
        values = batch.tolist() if hasattr(batch, "tolist") else list(batch)
        if any(isinstance(value, str) for value in values):
            batch = np.array([column.coerce(value) for value in values], np.int64)
        return [column.coerce_batch(batch, rows)]

    def join(self, parts: list[Any]) -> Any:
        (labels,) = parts
        if self.num_classes is not None:
            outside = (labels < -1) | (labels >= self.num_classes)
            if outside.any():
                row = int(np.argmax(outside))
                raise InconsistentColumnsError(
                    row, f"the class is {labels[row]}; must be from -1 to {self.num_classes - 1}"
                )
        return labels


def parse_feature(feature: Any) -> Feature:
    """Return a feature; a dtype becomes a tensor of a single value."""
    return feature if isinstance(feature, Feature) else Tensor(parse_dtype(feature))
