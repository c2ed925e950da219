"""Features: the schema of a dataset, and the way between examples and records.

An example is a dict of values, a record is the bytes of a ``tf.train.Example``. One at a time::

    record = features.encode({"image": pixels, "label": "owl"})
    example = features.decode(record)

or many, by column, natively and with the GIL released::

    block = features.encode_batch({"image": images, "label": labels})
    columns = features.decode_batch(block)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.codec import Decoding, Encoding, ExampleBlock, NativeDecoder, Rows, Run, row_of
from covey.schema.columns import Column
from covey.schema.diagnostics import RecordLocation
from covey.schema.infer import infer_column_kinds, infer_kinds
from covey.schema.survey import infer_record_kinds
from covey.schema.types import REQUIRED, Feature, parse_feature
from covey.tfrecord import Block

_MOST_DEPTH = 32


class Features(Mapping[str, Feature]):
    """A schema: names to kinds. Nested dicts are named by their path, ``a/b``.

    Args:
        features: For every name a kind (:class:`Tensor`, :class:`Image`, :class:`ClassLabel`,
            :class:`Ragged`, :class:`Sparse`, :class:`Steps`), a dtype for a single value, or a dict
            of the same.

    >>> features = Features({"label": "int64", "box": {"corner": Tensor("float32", (2,))}})
    >>> record = features.encode({"label": 3, "box": {"corner": [0.5, 1.0]}})
    >>> features.decode(record)["box"]["corner"]
    array([0.5, 1. ], dtype=float32)
    >>> list(features)
    ['label', 'box/corner']
    """

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._paths: dict[str, tuple[str, ...]] = {}
        self._features: dict[str, Feature] = {}
        self._add(features.nest(features) if isinstance(features, Features) else features, ())
        self._columns: dict[str, tuple[Column, ...]] = {}
        keys: dict[tuple[str, bool], str] = {}
        for name, feature in self._features.items():
            self._columns[name] = feature.columns(name)
            for column in self._columns[name]:
                other = keys.setdefault((column.key, column.layout == "steps"), name)
                if other != name:
                    raise FeatureError(
                        f"features {other!r} and {name!r} are both stored under {column.key!r}; "
                        "rename one"
                    )
        self._physical = [column for columns in self._columns.values() for column in columns]
        self._is_plain = all(
            feature.is_plain and self._paths[name] == (name,)
            for name, feature in self._features.items()
        )
        self._parents = {p[:i] for p in self._paths.values() for i in range(1, len(p))}
        self._is_nested = any(len(path) > 1 for path in self._paths.values())
        self._fillers = {
            name: feature.filler()
            for name, feature in self._features.items()
            if feature.filler() is not REQUIRED
        }
        # The native codecs cannot be pickled, and are made when they are first needed.
        self._encoding: Encoding | None = None
        self._decoding: Decoding | None = None
        self._selected: dict[tuple[str, ...], Features] = {}

    def _add(self, features: Mapping[str, Any], path: tuple[str, ...]) -> None:
        if not isinstance(features, Mapping):
            raise FeatureError(f"features are of type {type(features).__name__}; must be a dict")
        if len(path) > _MOST_DEPTH:
            raise FeatureError(f"features are nested over {_MOST_DEPTH} levels deep")
        for key, feature in features.items():
            if not isinstance(key, str) or not key:
                raise FeatureError(f"the name of a feature is {key!r}; must be a string")
            try:
                key.encode()
            except UnicodeError:
                raise FeatureError(
                    f"the name of a feature, {key!r}, is not a valid UTF-8"
                ) from None
            if isinstance(feature, Mapping) and not isinstance(feature, Features):
                self._add(feature, (*path, key))
                continue
            if isinstance(feature, Features):  # with the nesting that it was declared with
                for name, inner in feature.items():
                    self._set((*path, key, *feature._paths[name]), inner)
                continue
            try:
                self._set((*path, key), parse_feature(feature))
            except FeatureError as error:
                raise FeatureError(f"{error}", feature="/".join((*path, key))) from None

    def _set(self, path: tuple[str, ...], feature: Feature) -> None:
        name = "/".join(path)
        if name in self._features:
            raise FeatureError(f"there are two features with the name {name!r}; rename one")
        self._paths[name] = path
        self._features[name] = feature

    @classmethod
    def infer(
        cls, examples: Iterable[Mapping[str, Any]], *, defaults: Mapping[str, Any] | None = None
    ) -> Features:
        """The features that fit all examples; those with a default may be missing in some.

        Types widen and shapes relax as far as needed; what cannot be reconciled is an error that
        names both examples.

        >>> Features.infer([{"x": 1, "y": [1, 2]}, {"x": 2.5, "y": [3]}])["x"]
        Tensor(dtype='float32', shape=(), encoding='list')
        """
        return cls(infer_kinds(examples, defaults or {}))

    @classmethod
    def infer_records(cls, records: Iterable[bytes]) -> Features:
        """The features that fit all records, which another program wrote.

        A record says less than an example: int64, float32 or bytes, and how many.
        """
        return cls(infer_record_kinds(records))

    @classmethod
    def infer_columns(
        cls, columns: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None
    ) -> Features:
        """The features that fit all rows of columns; arrays keep their dtype.

        >>> Features.infer_columns({"x": np.zeros((9, 28, 28), np.uint8)})["x"]
        Tensor(dtype='uint8', shape=(28, 28), encoding='bytes')
        """
        return cls(infer_column_kinds(columns, defaults or {}))

    # A mapping of names to kinds.

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        return f"Features({self._features!r})"

    def __hash__(self) -> int:
        return hash(frozenset(self._features.items()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Features):
            return self._features == other._features and self._paths == other._paths
        return Mapping.__eq__(self, other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.nest(self._features),)

    def nest(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Give flat values the form that the features were declared in."""
        nested: dict[str, Any] = {}
        for name, value in values.items():
            *parents, last = self._paths[name]
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        return nested

    def _flatten(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Bring an example or columns into flat form, and check its names."""
        flat: dict[str, Any] = {}
        self._flatten_into(flat, example, ())
        return flat

    def _flatten_into(
        self, flat: dict[str, Any], values: Mapping[str, Any], path: tuple[str, ...]
    ) -> None:
        if not isinstance(values, Mapping):
            raise FeatureError(f"an example is of type {type(values).__name__}; must be a dict")
        for key, value in values.items():
            here = (*path, str(key))
            name = "/".join(here)
            if isinstance(value, Mapping) and (here in self._parents or not value):
                self._flatten_into(flat, value, here)
            elif name in self._features:
                flat[name] = value
            else:
                raise FeatureError(
                    f"there is no feature {name!r}; there are {', '.join(self) or 'none'}"
                )

    def select(self, names: Iterable[str]) -> Features:
        """The features with these names, in this order; decoding with them touches only them."""
        if isinstance(names, str):
            raise FeatureError(f"names is the text {names!r}; must be a list of them")
        key = tuple(names)
        if key not in self._selected:
            self._check_known(key)
            chosen = {name: self._features[name] for name in key}
            self._selected[key] = Features(self.nest(chosen))
        return self._selected[key]

    def replace(self, features: Mapping[str, Any]) -> Features:
        """The same features, with other kinds for some of them.

        >>> Features({"label": "str"}).replace({"label": ClassLabel(["owl"])})["label"].names
        ('owl',)
        """
        self._check_known(features)
        return Features(self.nest({**self._features, **features}))

    def _check_known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._features:
                raise FeatureError(
                    f"there is no feature {name!r}; the features are {', '.join(self)}"
                )

    def without_defaults(self) -> Features:
        """The same features, which every example must have."""
        optional: dict[str, Any] = {name: self._features[name] for name in self._fillers}
        return self.replace(
            {name: dataclasses.replace(kind, default=REQUIRED) for name, kind in optional.items()}
        )

    @property
    def optional(self) -> tuple[str, ...]:
        """The features that an example may lack."""
        return tuple(self._fillers)

    def fill_in(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """An example with the defaults of the features that it lacks."""
        if not self._fillers:
            return example
        flat = self._flatten(example)
        missing = {name: filler for name, filler in self._fillers.items() if flat.get(name) is None}
        return {**flat, **missing} if missing else example

    @property
    def is_simple(self) -> bool:
        """Whether every feature is stored as its value is, so that exactness can be seen in it."""
        return all(feature.is_plain for feature in self._features.values())

    def is_stored_like(self, other: Features) -> bool:
        """Whether an example has the same record with these features as with the others.

        A shape that is looser, or the names of classes, change nothing in the record.
        """
        return self._storage() == other._storage()

    def _storage(self) -> list[tuple[Any, ...]]:
        return sorted(
            (column.key, column.wire, column.raw, column.dtype if column.raw else "")
            for column in self._physical
        )

    # Encoding.

    def _encode_with(self) -> Encoding:
        if self._encoding is None:
            self._encoding = Encoding(self._features, self._columns, self._flatten, self._is_plain)
        return self._encoding

    def encode(self, example: Mapping[str, Any]) -> bytes:
        """The record of one example.

        Raises:
            FeatureError: If the example does not fit, saying which feature and why.
        """
        return (self._encoding or self._encode_with()).encode(example)

    def begin_block(self) -> ExampleBlock:
        """Begin a block of records, to which examples are added one by one."""
        return ExampleBlock(self._encode_with())

    def encode_batch(self, columns: Mapping[str, Any]) -> Block:
        """The records of many examples, given by column.

        Args:
            columns: For every feature an array with one row per example; a list of values, a
                :class:`RaggedArray`, a :class:`StringArray` or a :class:`SparseBatch` where rows
                differ. Optional features may be left out.
        """
        blocks = list(self.encode_blocks(columns, block_bytes=2**63))
        return blocks[0] if blocks else Block(b"", np.zeros(0, np.uint64), np.zeros(0, np.uint64))

    def encode_blocks(
        self, columns: Mapping[str, Any], *, block_bytes: int = 1 << 20
    ) -> Iterator[Block]:
        """The same, in blocks of about so many bytes."""
        if block_bytes < 1:
            raise ValueError(f"block_bytes is {block_bytes}; must be 1 or more")
        rows = self.check_columns(columns)
        row = 0
        while row < len(rows):
            block = rows.encode_range(row, block_bytes)
            yield block
            row += len(block)

    def check_columns(self, columns: Mapping[str, Any]) -> Rows:
        """Check columns once, to encode rows of them in any order."""
        encoding = self._encode_with()
        return Rows(encoding.encoder, *encoding.check_columns(columns))

    # Decoding.

    def _decode_with(self) -> Decoding:
        if self._decoding is None:
            self._decoding = Decoding(self._features, self._columns)
        return self._decoding

    def decode(self, record: bytes, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The example of one record: numpy arrays and scalars, ``str`` and ``bytes``."""
        return row_of(self.decode_batch([record], names), 0)

    def decode_batch(
        self,
        records: Block | Sequence[Block] | Sequence[bytes],
        names: Iterable[str] | None = None,
        *,
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[str, Any]:
        """Many records by column: a numpy array for every feature of one shape, else as
        :mod:`covey.schema.arrays` has it.

        Args:
            records: A block, several blocks, or a list of bytes. Blocks whose data was not verified
                are verified here.
            names: Decode only these features, and touch only their bytes.
            out: Arrays to decode into, by name, used again from an earlier call; each must have the
                right dtype and shape.

        Raises:
            ExampleError: If a record is not an Example or does not fit, saying which, where and why.
            CorruptRecordError: If a checksum is wrong.
        """
        if names is not None:
            return self.select(names).decode_batch(records, out=out)
        flat = self._decode_with().decode_batch(records, self._flatten(out) if out else {})
        return self.nest(flat) if self._is_nested else flat

    def decode_with(
        self,
        run: Run,
        rows: int,
        place: Callable[[int], RecordLocation],
        *,
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[str, Any]:
        """Decode records that another program finds.

        Args:
            run: Lets the native decoder decode them.
            rows: How many they are.
            place: Tells where one is, for messages.
            out: As for :meth:`decode_batch`.
        """
        decoding = self._decoding or self._decode_with()
        flat = decoding.decode_with(run, rows, place, self._flatten(out) if out else {})
        return self.nest(flat) if self._is_nested else flat

    def find(self, columns: Any, name: str) -> Any:
        """The column of a feature among nested ones, or its value in an example."""
        for key in self._paths[name]:
            columns = columns[key]
        return columns

    def path_of(self, name: str) -> tuple[str, ...]:
        """The keys that lead to a feature in a nested example."""
        return self._paths[name]

    def column_of(self, name: str) -> int | None:
        """Which of the native decoder's columns is a feature that is one int64; None if none is."""
        return self._decode_with().column_of(name)

    @property
    def native_decoder(self) -> NativeDecoder | None:
        """The native decoder, if the arrays that it fills are the columns; None otherwise."""
        return self._decode_with().native_decoder
