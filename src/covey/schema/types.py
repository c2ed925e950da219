"""The kinds of features that most schemas are made of: tensors and class labels.

Each kind knows which columns it is stored in, how one value or a batch of them is taken apart into
those columns, and how they are put together again. What each dtype costs in a tf.train.Example,
which has only int64, float32 and byte strings:

=================  ==========================  ==================================================
dtype              stored as                   bytes per value
=================  ==========================  ==================================================
bool, integers     int64 list (varints)        1 for 0 to 127, 2 to 16383, ..., 10 for negatives
uint64             int64 list, by its bits     the same; above 2**63 other readers see a negative
float32            float list                  4
float16            float list                  4: exact, but twice its size
float64            its memory, one string      8: exact; ``encoding="list"`` stores float32 instead
str, bytes         bytes list                  its length + 2 or more
any numbers        its memory, one string      its size in memory, with ``encoding="bytes"``
any numbers        its memory, compressed      what zlib makes of it, with ``encoding="zlib"``
=================  ==========================  ==================================================

Memory is little-endian and in C order: ``tf.io.decode_raw`` and TFDS' ``encoding="bytes"`` read it.
:mod:`covey.schema.packed` has the encodings that only TFDS knows.
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
"""The default of a feature that every example must have."""


class MisfitError(FeatureError):
    """The columns of a feature contradict each other in one row of a batch."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True)
class Feature:
    """What all kinds have in common."""

    def columns(self, name: str) -> tuple[Column, ...]:
        """The columns this feature is stored in, under ``name``."""
        raise NotImplementedError

    @property
    def is_plain(self) -> bool:
        """Whether a value is stored as it is, in one column with the feature's own name."""
        return False

    @property
    def is_direct(self) -> bool:
        """Whether what was decoded is the value, so that :meth:`join` has nothing to do."""
        return False

    def filler(self) -> Any:
        """The value that an example gets that lacks the feature; REQUIRED if it must not."""
        return getattr(self, "default", REQUIRED)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        """Take one value apart into its columns; None for a column left out."""
        return [value]

    def split_batch(
        self, batch: Any, rows: int, columns: Sequence[Column]
    ) -> list[tuple[Any, NDArray[np.int64] | None]]:
        """Take a batch of values apart into (values, row splits) of its columns."""
        if len(columns) == 1:
            parts = [part for value in batch for part in self.split(value, columns)]
            return [columns[0].coerce_batch(parts, rows)]
        table = [self.split(value, columns) for value in batch]
        return [
            column.coerce_batch([row[i] for row in table], rows) for i, column in enumerate(columns)
        ]

    def join(self, parts: list[Any]) -> Any:
        """Put decoded columns together to what a person wants.

        Raises:
            MisfitError: If they contradict each other, as those of a hostile file may.
        """
        return parts[0]


@dataclass(frozen=True)
class Tensor(Feature):
    """Numbers or strings of one shape; dimensions that differ between examples are None.

    Args:
        dtype: A number (``bool``, ``int8`` to ``uint64``, ``float16`` to ``float64``), ``str`` or
            ``bytes``, as a name, a Python type or a numpy dtype.
        shape: Of one example. With one None the values suffice to restore it; with more,
            ``encoding`` must be ``"bytes"`` or ``"zlib"``, and the shape is stored too.
        encoding: ``"list"`` stores numbers one by one, ``"bytes"`` their memory as one string (fast
            and compact for arrays of small types). Float64 is ``"bytes"`` unless asked otherwise.
            ``"zlib"`` compresses that memory; ``"bytes_each"`` and ``"zlib_each"`` make a string
            for every item along the first dimension. These three are how TFDS stores some tensors.
        default: What an example gets that lacks the feature. Without, every example must have it.

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
            raise FeatureError(f"encoding is {encoding!r}, but {dtype} has no other than 'list'")
        if shape.count(None) > 1 and encoding == "list":
            raise FeatureError(
                f"shape {shape} has {shape.count(None)} unknown dimensions, which a list of values "
                "cannot restore; use encoding='bytes', or Ragged for nested lists"
            )
        if encoding.endswith("_each") and (not shape or None in shape[1:]):
            raise FeatureError(
                f"shape is {shape}, but with encoding={encoding!r} there must be a first "
                "dimension, and only that may be unknown"
            )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "encoding", encoding)
        if self.default is not REQUIRED:
            Column("default", dtype, shape).coerce(self.default)  # says what is wrong with it
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
                    "no default is possible with several unknown dimensions", feature=name
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
        """The column of the values, which an example may lack if there is a default."""
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
        """The values whose memory is in strings."""
        encoding = str(self.encoding)
        shape = self.shape[1:] if encoding.endswith("_each") else self.shape
        known = None not in shape
        item = Column("", self.dtype, shape, raw=True, layout="fixed" if known else "variable")
        memory, sizes = unpack(stored, item, encoding)
        size = item_size(item)
        wrong = sizes != size if known else (sizes < 0) | (sizes % size != 0)
        if wrong.any():
            first = int(np.argmax(wrong))
            found = f"{sizes[first]} bytes" if sizes[first] >= 0 else "no zlib data, or too much"
            expected = f"{size} bytes{'' if known else ' or a multiple'}"
            raise MisfitError(
                row_of_string(stored, first),
                f"a string holds {found}, expected {expected} for {self.dtype} {shape}",
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
        # Shapes come from the file: each must be one of this feature, and of the values there are.
        sizes = shapes.astype(object).prod(axis=1)
        fits = (shapes >= 0).all(axis=1) & (sizes == values.row_lengths)
        for axis, size in enumerate(self.shape):
            fits &= size is None or shapes[:, axis] == size
        if not fits.all():
            row = int(np.argmin(fits))
            raise MisfitError(
                row,
                f"the stored shape {tuple(shapes[row].tolist())} is not one of {self.shape} with "
                f"{int(values.row_lengths[row])} values",
            )
        return RaggedArray(values.values, values.row_splits, shapes.astype(np.int64))


def _check_bools(column: Any) -> None:
    """Make sure that the memory of bools holds no other byte than 0 and 1."""
    memory = (column.values if isinstance(column, RaggedArray) else column).view(np.uint8)
    wrong = (memory > 1).reshape(len(memory), -1).any(axis=1) if memory.size else memory.ravel()
    if wrong.any():
        row = int(np.argmax(wrong))
        if isinstance(column, RaggedArray):
            row = int(np.searchsorted(column.row_splits, row, side="right")) - 1
        raise MisfitError(row, "a bool is stored as another byte than 0 or 1")


def _freeze(value: Any) -> Any:
    """Lists to tuples: what a frozen value is made of can be hashed."""
    return tuple(_freeze(each) for each in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class ClassLabel(Feature):
    """The class of an example: an integer from 0, with or without a name.

    Args:
        names: The names of the classes, in order; then a name may be given for the integer.
        num_classes: How many classes there are, if they have no names. -1 (unknown) is always
            allowed, as it is in TFDS.
        default: The class of an example that lacks the feature, by integer or name.

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
                raise FeatureError(f"the names of classes are {given!r}; must be a list of strings")
            self._positions.update((name, i) for i, name in enumerate(names))
            if len(self._positions) != len(names):
                twice = next(n for i, n in enumerate(names) if self._positions[n] != i)
                raise FeatureError(f"two classes have the name {twice!r}")
            if self.num_classes not in (None, len(names)):
                raise FeatureError(
                    f"num_classes is {self.num_classes}, but there are {len(names)} names"
                )
            object.__setattr__(self, "names", names)
            object.__setattr__(self, "num_classes", len(names))
        elif self.num_classes is not None:
            count: Any = self.num_classes
            if not isinstance(count, (int, np.integer)) or not 0 <= count < 2**62:
                raise FeatureError(
                    option="num_classes", found=count, allowed="an integer, 0 or more"
                )
        if self.default is not REQUIRED:
            object.__setattr__(self, "default", int(self._column("default").coerce(self.default)))

    @property
    def is_plain(self) -> bool:
        return True

    @property
    def is_direct(self) -> bool:
        return self.num_classes is None

    def index(self, name: str) -> int:
        """The integer of a class."""
        if self.names is None:
            raise FeatureError(f"the class is the text {name!r}, but this label has no names")
        found = self._positions.get(name)
        if found is None:
            raise FeatureError(f"there is no class {name!r} among the {len(self.names)} names")
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
                raise MisfitError(
                    row, f"the class is {labels[row]}; must be from -1 to {self.num_classes - 1}"
                )
        return labels


def parse_feature(feature: Any) -> Feature:
    """A feature from what a person may write for it: a kind, or a dtype for one value of it."""
    return feature if isinstance(feature, Feature) else Tensor(parse_dtype(feature))
