"""Features: the schema of a dataset, and the conversion between examples and records.

An example is a dict of values, a record is the bytes of a ``tf.train.Example``. One at a time::

    record = features.encode({"image": pixels, "label": "owl"})
    example = features.decode(record)

or many, by column, natively and without the GIL::

    block = features.encode_batch({"image": images, "label": labels})
    columns = features.decode_batch(block)
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from covey._text import outline
from covey.errors import FeatureError, FormatError, list_names, shorten
from covey.schema.audio import Audio
from covey.schema.codec import (
    MAX_DEPTH,
    ExampleBlock,
    ExampleEncoder,
    NativeDecoder,
    RecordDecoder,
    RowArray,
    Rows,
    nest,
    row_of,
)
from covey.schema.diagnostics import add_feature
from covey.schema.images import Image
from covey.schema.tensor import Steps, Tensor
from covey.schema.types import REQUIRED, ClassLabel, Feature, Ragged, Sparse
from covey.tfrecord import Block
from covey.untrusted import MAX_FEATURES, brief

# A repr of more characters has several lines.
_MAX_LINE = 100


class Features(Mapping[str, Feature]):
    """A schema: a mapping of names to features. Nested features are named by their path, ``a/b``.

    Args:
        features: For every name a feature (:class:`Tensor`, :class:`Image`, :class:`Audio`,
            :class:`ClassLabel`, :class:`Ragged`, :class:`Sparse`, :class:`Steps`), the dtype of a
            single value, or a nested dict.

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
        self.storage = {name: kind.columns(name) for name, kind in self._features.items()}
        """The columns of each feature."""
        owned = [(name, column) for name, each in self.storage.items() for column in each]
        self.owners = [name for name, _ in owned]
        self.physical = [column for _, column in owned]
        """All columns, of the features in `owners`."""
        keys: dict[tuple[str, bool], str] = {}
        for name, column in owned:
            other = keys.setdefault((column.key, column.layout == "steps"), name)
            if other != name:
                raise FeatureError(
                    f"features {other!r} and {name!r} are both stored under {column.key!r}; "
                    "rename one"
                )
        self.is_plain = all(
            feature.is_plain and self._paths[name] == (name,)
            for name, feature in self._features.items()
        )
        """Whether values are stored unchanged, under names that are not nested."""
        self._parents = {p[:i] for p in self._paths.values() for i in range(1, len(p))}
        fillers = {name: feature.filler() for name, feature in self._features.items()}
        self._fillers = {name: each for name, each in fillers.items() if each is not REQUIRED}
        # Created on first use, without a lock, which a fork could leave locked.
        self._encoding: ExampleEncoder | None = None
        self._decoding: RecordDecoder | None = None
        self._selected: dict[tuple[str, ...], Features] = {}

    def _add(self, features: Mapping[str, Any], path: tuple[str, ...]) -> None:
        if not isinstance(features, Mapping):
            raise FeatureError(f"features are of type {type(features).__name__}; must be a dict")
        if len(path) > MAX_DEPTH:
            raise FeatureError(f"features are nested deeper than {MAX_DEPTH} levels")
        for key, feature in features.items():
            if not isinstance(key, str) or not key:
                raise FeatureError(f"the name of a feature is {key!r}; must be a string")
            try:
                key.encode()
            except UnicodeError:
                raise FeatureError(f"the name of a feature, {key!r}, is not valid UTF-8") from None
            if isinstance(feature, Mapping) and not isinstance(feature, Features):
                self._add(feature, (*path, key))
                continue
            if isinstance(feature, Features):  # keeps its nesting
                for name, inner in feature.items():
                    self._set((*path, key, *feature._paths[name]), inner)
                continue
            try:
                kind = feature if isinstance(feature, Feature) else Tensor(feature)
                self._set((*path, key), kind)
            except FeatureError as error:
                raise add_feature(error, "/".join((*path, key))) from None

    def _set(self, path: tuple[str, ...], feature: Feature) -> None:
        name = "/".join(path)
        if name in self._features:
            raise FeatureError("the name occurs twice; rename one", feature=name)
        self._paths[name] = path
        self._features[name] = feature

    @classmethod
    def infer(
        cls, examples: Iterable[Mapping[str, Any]], *, defaults: Mapping[str, Any] | None = None
    ) -> Features:
        """Return the features that fit all examples.

        Dtypes are widened and shapes relaxed as needed.

        Args:
            examples: The examples.
            defaults: Values of features that examples may lack, by name.

        Raises:
            FeatureError: If no feature fits two examples; the message names both.

        >>> Features.infer([{"x": 1, "y": [1, 2]}, {"x": 2.5, "y": [3]}])["x"]
        Tensor(dtype='float32', shape=(), encoding='list')
        """
        from covey.schema.infer import Inference

        inference = Inference(defaults)
        for example in examples:
            inference.add(example)
        return cls(inference.finish())

    @classmethod
    def infer_records(cls, records: Iterable[bytes]) -> Features:
        """Return the features that fit all records, which another program wrote.

        A record has less information than an example: values are int64, float32 or bytes.
        """
        from covey.schema.infer import infer_record_kinds

        return cls(infer_record_kinds(records))

    @classmethod
    def infer_columns(
        cls, columns: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None
    ) -> Features:
        """Return the features that fit all rows of columns; arrays keep their dtype.

        >>> Features.infer_columns({"x": np.zeros((9, 28, 28), np.uint8)})["x"]
        Tensor(dtype='uint8', shape=(28, 28), encoding='bytes')
        """
        from covey.schema.infer import infer_column_kinds

        return cls(infer_column_kinds(columns, defaults or {}))

    # A mapping of names to features.

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        text = f"Features({self._features!r})"
        if len(text) <= _MAX_LINE:
            return text
        rows = ((name, feature.summary) for name, feature in self.items())
        return outline(f"<Features: {len(self):,} features>", rows)

    def _repr_html_(self) -> str:
        from covey._html import features_html

        return features_html(f"{len(self):,} features", self)

    def __hash__(self) -> int:
        return hash(frozenset(self._features.items()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Features):
            return self._features == other._features and self._paths == other._paths
        return Mapping.__eq__(self, other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.nest(self._features),)

    def nest(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return flat values nested like the declared features."""
        if not self._parents and isinstance(values, dict):
            return values
        return nest({self._paths[name]: value for name, value in values.items()})

    def flatten(self, values: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
        """Flatten an example or columns, and check the names."""
        if not isinstance(values, Mapping):
            raise FeatureError(f"the example is of type {type(values).__name__}; must be a dict")
        flat: dict[str, Any] = {}
        for key, value in values.items():
            here = (*path, str(key))
            name = "/".join(here)
            if isinstance(value, Mapping) and (here in self._parents or not value):
                flat |= self.flatten(value, here)
            elif name in self._features:
                flat[name] = value
            else:
                raise self._unknown(name)
        return flat

    def select(self, names: Iterable[str]) -> Features:
        """Return the features with these names, in this order; decoding reads no others."""
        if isinstance(names, str):
            raise FeatureError(option="names", found=names, allowed="a list of strings")
        key = tuple(names)
        if key not in self._selected:
            self._check_known(key)
            chosen = {name: self._features[name] for name in key}
            self._selected[key] = Features(self.nest(chosen))
        return self._selected[key]

    def replace(self, features: Mapping[str, Any]) -> Features:
        """Return the features with some of them replaced.

        >>> Features({"label": "str"}).replace({"label": ClassLabel(["owl"])})["label"].names
        ('owl',)
        """
        self._check_known(features)
        return Features(self.nest({**self._features, **features}))

    def _check_known(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._features:
                raise self._unknown(name)

    def _unknown(self, name: str) -> FeatureError:
        return FeatureError(
            f"there is no feature {shorten(str(name))!r}; the features are {list_names(self)}",
            found=name,
            choices=self,
        )

    def with_defaults(self, defaults: Mapping[str, Any]) -> Features:
        """Return the features with defaults for some of those that have none.

        >>> int(Features({"x": "int64"}).with_defaults({"x": 7}).decode(b"")["x"])
        7
        """
        self._check_known(defaults)
        found: dict[str, Any] = {}
        for name in defaults.keys() - self._fillers.keys():
            kind: Any = self._features[name]
            try:
                found[name] = dataclasses.replace(kind, default=defaults[name])
            except FeatureError as error:
                raise add_feature(error, name) from None
        return self.replace(found) if found else self

    def without_defaults(self) -> Features:
        """Return the features with all of them required."""
        optional: dict[str, Any] = {name: self._features[name] for name in self._fillers}
        return self.replace(
            {name: dataclasses.replace(kind, default=REQUIRED) for name, kind in optional.items()}
        )

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the features that an example may lack."""
        return tuple(self._fillers)

    def fill_in(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an example with the defaults of the features that it lacks."""
        if not self._fillers:
            return example
        flat = self.flatten(example)
        missing = {name: filler for name, filler in self._fillers.items() if flat.get(name) is None}
        return {**flat, **missing} if missing else example

    @property
    def is_exact(self) -> bool:
        """Whether encoding an example shows if the features would be inferred from it."""
        return all(feature.is_exact for feature in self._features.values())

    def is_stored_like(self, other: Features) -> bool:
        """Return whether an example has the same record with both schemas.

        Relaxed shapes and class names do not change the record.
        """
        return self._storage() == other._storage()

    def _storage(self) -> list[tuple[Any, ...]]:
        return sorted(
            (column.key, column.wire, column.raw, column.dtype if column.raw else "")
            for column in self.physical
        )

    # Encoding.

    @property
    def _encoder(self) -> ExampleEncoder:
        if self._encoding is None:
            self._encoding = ExampleEncoder(self)
        return self._encoding

    def encode(self, example: Mapping[str, Any]) -> bytes:
        """Return the record of one example.

        Raises:
            FeatureError: If the example does not match the features.
        """
        return self._encoder.encode(example)

    def begin_block(self, *, observes: bool = False) -> ExampleBlock:
        """Return an empty block of records, for adding examples one by one.

        Args:
            observes: Whether to know what is rounded, and the ranges of integers.
        """
        return ExampleBlock(self._encoder, observes=observes)

    def encode_batch(self, columns: Mapping[str, Any]) -> Block:
        """Return the records of many examples, given by column.

        Args:
            columns: For every feature an array with one row per example; if rows differ, a list of
                values, a :class:`RaggedArray`, a :class:`StringArray` or a :class:`SparseBatch`.
                Optional features may be omitted.
        """
        blocks = list(self.encode_blocks(columns, block_bytes=2**63))
        return blocks[0] if blocks else Block(b"", np.zeros(0, np.uint64), np.zeros(0, np.uint64))

    def encode_blocks(
        self, columns: Mapping[str, Any], *, block_bytes: int = 1 << 20
    ) -> Iterator[Block]:
        """Yield the records of many examples, in blocks of about `block_bytes` bytes."""
        if block_bytes < 1:
            raise FeatureError(option="block_bytes", found=block_bytes, allowed="an integer >= 1")
        rows = self.check_columns(columns)
        row = 0
        while row < len(rows):
            block = rows.encode_range(row, block_bytes)
            yield block
            row += len(block)

    def check_columns(self, columns: Mapping[str, Any]) -> Rows:
        """Check columns once, for encoding their rows in any order."""
        return Rows(self._encoder.encoder, *self._encoder.check_columns(columns))

    # Decoding.

    @property
    def decoder(self) -> RecordDecoder:
        """The decoder of records."""
        if self._decoding is None:
            self._decoding = RecordDecoder(self)
        return self._decoding

    def decode(self, record: bytes, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the example of one record: numpy arrays and scalars, ``str`` and ``bytes``."""
        return row_of(self.decode_batch([record], names), 0)

    def decode_batch(
        self, records: Block | Sequence[Block] | Sequence[bytes], names: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Decode many records by column.

        A column is a numpy array if all examples have one shape, else a type of
        :mod:`covey.arrays`.

        Args:
            records: A block, several blocks, or a list of bytes. Unverified blocks are verified.
            names: Names of the features to decode.

        Raises:
            ExampleError: If a record is not an Example, or does not match the features.
            CorruptRecordError: If a checksum is wrong.
        """
        features = self if names is None else self.select(names)
        return features.decoder.decode_batch(records)

    def find(self, columns: Any, name: str) -> Any:
        """Return the column of a feature in nested columns, or its value in an example."""
        for key in self._paths[name]:
            columns = columns[key]
        return columns

    def path_of(self, name: str) -> tuple[str, ...]:
        """Return the keys of a feature in a nested example."""
        return self._paths[name]

    def column_of(self, name: str) -> int | None:
        """Return the native column of a feature that is a single int64; None for others."""
        return self.decoder.column_of(name)

    def native_decoder(
        self, images: Mapping[str, RowArray] = MappingProxyType({})
    ) -> NativeDecoder | None:
        """Return the native decoder, if its arrays are the columns; else None.

        Args:
            images: The shape and dtype of the decoded images of each image feature.
        """
        return self.decoder.native_decoder(images)


VERSION = 1

_KINDS: dict[str, type[Feature]] = {
    "tensor": Tensor,
    "label": ClassLabel,
    "image": Image,
    "audio": Audio,
    "ragged": Ragged,
    "sparse": Sparse,
    "steps": Steps,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
# Above the number of dimensions that a shape can have.
_MAX_DEPTH = 33


def features_to_json(features: Features) -> Any:
    """Return the features as lists, dicts, strings and numbers, for ``json.dumps``.

    >>> features_to_json(Features({"x": "int64"}))["features"][0]["path"]
    ['x']
    """
    entries = []
    for name, feature in features.items():
        kind = _NAMES.get(type(feature))
        if kind is None:
            raise FeatureError(
                f"a {type(feature).__name__} cannot be stored as JSON",
                feature=name,
                remedy=f"use one of {', '.join(each.__name__ for each in _NAMES)}",
            )
        fields = {
            each: _to_json(getattr(feature, each))
            for each in (part.name for part in dataclasses.fields(feature) if part.init)
            # Older versions do not know exif_orientation.
            if getattr(feature, each) is not (False if each == "exif_orientation" else REQUIRED)
        }
        entries.append({"path": list(features.path_of(name)), "kind": kind, **fields})
    return {"version": VERSION, "features": entries}


def features_from_json(content: Any, name: str) -> Features:
    """Return the features that :func:`features_to_json` wrote.

    Args:
        content: The result of ``json.loads``.
        name: Path of the file, for errors.

    Raises:
        FormatError: If the content is not valid.
    """
    nested: dict[str, Any] = {}
    try:
        version, entries = (expect_dict(content).get(key) for key in ("version", "features"))
        if type(version) is not int or version != VERSION:
            raise FormatError(
                option="version", found=version, allowed=f"{VERSION}", remedy="use a newer covey"
            )
        if not isinstance(entries, list) or len(entries) > MAX_FEATURES:
            allowed = f"a list of at most {MAX_FEATURES:,}"
            raise FormatError(option="features", found=entries, allowed=allowed)
        for index, entry in enumerate(entries):
            try:
                _insert(nested, *_read(entry))
            except (ValueError, TypeError) as error:
                raise FormatError(f"feature {index}: {error}") from None
        return Features(nested)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"the features are not valid: {error}", path=name) from None


def _to_json(value: Any) -> Any:
    """Return a field value for JSON; numpy scalars and arrays become Python values."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _from_json(value: Any, depth: int = 0) -> Any:
    """Return the field value of :func:`_to_json`."""
    if depth > _MAX_DEPTH:
        raise FormatError(f"a value is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, list):
        if set(map(type, value)) == {str}:  # a million class names
            return tuple(value)
        return tuple(_from_json(each, depth + 1) for each in value)
    if not isinstance(value, Mapping):
        return value
    match dict(value):
        case {"base64": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"float": ("nan" | "inf" | "-inf") as text, **rest} if not rest:
            return float(text)
    raise FormatError(f"{brief(value)} is neither a value, {{'base64': ...}} nor {{'float': ...}}")


def _read(entry: Any) -> tuple[tuple[str, ...], Feature]:
    """Return the path and the feature of an entry; the constructor checks its fields."""
    fields = dict(expect_dict(entry))
    path, kind = fields.pop("path", None), fields.pop("kind", None)
    if not isinstance(path, list) or not path or not all(isinstance(key, str) for key in path):
        raise FormatError(option="path", found=path, allowed="a list of strings")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FormatError(option="kind", found=kind, choices=_KINDS)
    return tuple(path), _KINDS[kind](**{key: _from_json(each) for key, each in fields.items()})


def _insert(nested: dict[str, Any], path: tuple[str, ...], feature: Feature) -> None:
    """Insert a feature at its path."""
    parent = nested
    for key in path[:-1]:
        parent = parent.setdefault(key, {})
        if not isinstance(parent, dict):
            raise FormatError(f"path {brief(list(path))} leads through a feature")
    if path[-1] in parent:
        raise FormatError(f"path {brief(list(path))} occurs twice")
    parent[path[-1]] = feature


def expect_dict(value: Any) -> dict[str, Any]:
    """Return a dict of JSON; any other value raises FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"found {brief(value)}, expected a dict")
    return value
