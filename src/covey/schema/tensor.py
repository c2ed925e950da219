"""Tensors, the features that most schemas consist of, and the steps of SequenceExamples.

A tf.train.Example has only int64, float32 and byte strings:

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
read them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, StringArray
from covey.errors import FeatureError
from covey.schema.columns import (
    MAX_EXAMPLE_BYTES,
    STRINGS,
    Column,
    Layout,
    Shape,
    check,
    check_shape,
    parse_dtype,
    splits_of,
)
from covey.schema.types import REQUIRED, Feature, check_empty, check_rows

_ENCODINGS = ("list", "bytes", "zlib")


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
            compressed byte string.
        default: Value of examples that lack the feature. Without it the feature is required.

    >>> Tensor("float32", (3,))
    Tensor(dtype='float32', shape=(3,), encoding='list')
    """

    dtype: str
    shape: Shape = ()
    _: KW_ONLY
    encoding: Literal["list", "bytes", "zlib"] | None = None
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        dtype = parse_dtype(self.dtype)
        shape = check_shape(self.shape, dtype)
        encoding = self.encoding or ("bytes" if dtype == "float64" else "list")
        if encoding != "list":
            check("encoding", encoding, encoding in _ENCODINGS, _ENCODINGS)
            check("encoding", encoding, dtype not in STRINGS, f"'list' for {dtype}")
        if shape.count(None) > 1 and encoding == "list":
            raise FeatureError(
                f"shape {shape} has {shape.count(None)} unknown dimensions, which a list cannot "
                "restore; use encoding='bytes', or Ragged for nested lists"
            )
        self._set(dtype=dtype, shape=shape, encoding=encoding)
        if self.default is not REQUIRED:
            Column("default", dtype, shape).coerce(self.default)  # raises if it is invalid
            given = self.default
            self._set(default=_freeze(given.tolist() if hasattr(given, "tolist") else given))

    def __repr__(self) -> str:
        default = "" if self.default is REQUIRED else f", default={self.default!r}"
        return (
            f"Tensor(dtype={self.dtype!r}, shape={self.shape}, encoding={self.encoding!r}{default})"
        )

    @property
    def summary(self) -> str:
        return f"{self.dtype} {self.shape or ''}".replace("None", "any").rstrip()

    @property
    def is_plain(self) -> bool:
        return not self._has_shape and self.encoding != "zlib"

    @property
    def is_direct(self) -> bool:
        return self.is_plain and (self.dtype != "bool" or self.encoding == "list")

    @property
    def _has_shape(self) -> bool:
        return self.shape.count(None) > 1

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
        value = self._stored(Column(name, self.dtype, self.shape).coerce(self.default))
        return (self._column(name, [value] if isinstance(value, bytes) else value),)

    def _column(self, key: str, default: Any = None) -> Column:
        """Return the column of the values, which is optional if there is a default."""
        dtype, shape = ("bytes", ()) if self.encoding == "zlib" else (self.dtype, self.shape)
        layout: Layout = "variable" if None in shape else "fixed"
        return Column(key, dtype, shape, self.encoding == "bytes", layout, default is None, default)

    def _stored(self, array: Any) -> Any:
        return zlib.compress(array.tobytes()) if self.encoding == "zlib" else array

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        if self.is_plain:
            return [value]
        array = Column("value", self.dtype, self.shape).coerce(value)
        shape = [np.array(array.shape, np.int32)] if self._has_shape else []
        return [*shape, self._stored(array)]

    def _inflate(self, stored: StringArray) -> Any:
        """Return the values of compressed strings, which may come from an untrusted file."""
        shape, is_known = self.shape, None not in self.shape
        item = Column("", self.dtype, shape, raw=True, layout="fixed" if is_known else "variable")
        size = item.count * item.numpy_dtype.itemsize
        memory, sizes = _inflate_all(stored, size if is_known else MAX_EXAMPLE_BYTES)
        wrong = sizes != size if is_known else (sizes < 0) | (sizes % size != 0)

        def reason(row: int) -> str:
            found = f"{sizes[row]} bytes" if sizes[row] >= 0 else "invalid or too much zlib data"
            expected = f"{size} bytes{'' if is_known else ' or a multiple'}"
            return f"a string has {found}, expected {expected} for {self.dtype} {shape}"

        check_rows(wrong, reason)
        if not is_known:
            splits = splits_of(sizes // item.numpy_dtype.itemsize)
            return item.wrap((memory, splits, splits, splits), len(sizes))
        return memory.view(item.numpy_dtype).reshape(len(sizes), *(n or 0 for n in shape))

    def join(self, parts: list[Any]) -> Any:
        *shape, values = parts
        if self.encoding == "zlib":
            values = self._inflate(values)
        if self.dtype == "bool" and self.encoding != "list":
            memory = values.values if isinstance(values, RaggedArray) else values
            reason = "a bool is stored as a byte other than 0 and 1"
            check_rows(memory.view(np.uint8).ravel() > 1, reason, values)
        if not shape:
            return values
        (shapes,) = shape
        # The shapes come from a file: each must match the feature and the number of values.
        sizes = shapes.astype(object).prod(axis=1)
        fits = (shapes >= 0).all(axis=1) & (sizes == values.row_lengths)
        for axis, size in enumerate(self.shape):
            fits &= size is None or shapes[:, axis] == size
        check_rows(
            ~fits,
            lambda row: (
                f"the stored shape {tuple(shapes[row].tolist())} does not match "
                f"{self.shape} with {int(values.row_lengths[row])} values"
            ),
        )
        return RaggedArray(values.values, values.row_splits, shapes.astype(np.int64))


def _freeze(value: Any) -> Any:
    """Convert lists to tuples, which are hashable."""
    return tuple(_freeze(each) for each in value) if isinstance(value, (list, tuple)) else value


def _inflate_all(strings: StringArray, limit: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenated memory of compressed strings, and the size of each.

    A string that is not valid zlib data, or holds more than `limit` bytes, gets the size -1, and
    the strings after it are omitted.
    """
    pieces: list[bytes] = []
    for begin, end in zip(strings.offsets[:-1], strings.offsets[1:], strict=True):
        inflater = zlib.decompressobj()
        try:
            piece = inflater.decompress(strings.data[begin:end].tobytes(), limit + 1)
        except zlib.error:
            piece = b""
        if not inflater.eof or inflater.unused_data or len(piece) > limit:
            return np.zeros(0, np.uint8), np.array([*map(len, pieces), -1], np.int64)
        pieces.append(piece)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    # A bytearray, so that the arrays are writable, like all others.
    return np.frombuffer(bytearray().join(pieces), np.uint8), sizes


@dataclass(frozen=True)
class Steps(Feature):
    """A feature list of a ``tf.train.SequenceExample``: one value per step.

    It can be read, not written: covey writes Examples, where a Tensor of shape (None, ...) has the
    same values.

    Args:
        dtype: As for :class:`Tensor`.
        shape: Shape of one step; (None,) if steps differ.
        default: ``[]`` if the list may be missing; it then has no steps.
    """

    dtype: str
    shape: Shape = ()
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        dtype = parse_dtype(self.dtype)
        shape = check_shape(self.shape, dtype)
        check("shape", shape, None not in shape or shape == (None,), "known, or (None,)")
        self._set(dtype=dtype, shape=shape, default=check_empty(self.default))

    def columns(self, name: str) -> tuple[Column, ...]:
        required = self.default is REQUIRED
        return (Column(name, self.dtype, self.shape, layout="steps", required=required),)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        raise FeatureError(
            "a SequenceExample cannot be written; declare the feature as Tensor with a shape of "
            "(None, ...)"
        )
