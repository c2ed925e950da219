"""Options of a write, validated when they are constructed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from covey.dataset_info import check_split_name
from covey.errors import DatasetError, FeatureError, cpu_count, list_names
from covey.labels import AUTO
from covey.schema import Features
from covey.schema.columns import parse_dtype
from covey.schema.diagnostics import add_feature
from covey.shuffle.keys import RecordOrder
from covey.tfrecord.compression import parse_compression
from covey.writing.hold_out import HoldOut

Mode = Literal["error", "overwrite", "append"]
OnError = Literal["raise", "skip"]

DEFAULT_SHARD_BYTES = 256 << 20
DEFAULT_MEMORY_LIMIT = 512 << 20

MAX_CHUNK_BYTES = 1 << 20
MAX_CHUNK_EXAMPLES = 4096


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of :func:`covey.write`, which documents them.

    Raises:
        DatasetError: If an option has an invalid value; ``option`` is its name.
    """

    split: str
    more_splits: tuple[str, ...] = ()
    """The other splits, if the source has several."""
    label: str | None = AUTO
    features: Features | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    """Dtypes of some features, if not all of them are declared."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] | None = None
    key: str | None = None
    name: str | None = None
    description: str = ""
    shuffle: bool = True
    sort_by_class: bool = False
    seed: int = 0
    shards: int | None = None
    records_per_shard: int | None = None
    shard_bytes: int = DEFAULT_SHARD_BYTES
    compression: str | None = None
    compression_level: int = 6
    mode: Mode = "error"
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    workers: int | None = None
    on_error: OnError = "raise"
    hold_out: HoldOut | None = None
    split_by: str | None = None
    """Feature whose value is the split of an example; ``splits`` are its values."""

    def __post_init__(self) -> None:
        for split in (self.split, *self.more_splits):
            check_split_name(split)
        for option in ("label", "key", "split_by"):
            value = getattr(self, option)
            _check(option, value, value is None or isinstance(value, str), "the name of a feature")
        if self.features is not None and self.types:
            raise DatasetError(
                option="types", found=dict(self.types), allowed="omitted with features="
            )
        names = self.names
        is_valid = names is None or (
            not isinstance(names, str)
            and all(isinstance(name, str) for name in names)
            and len(set(names)) == len(names)
        )
        _check("names", names, is_valid, "a list of distinct strings")
        object.__setattr__(self, "names", None if names is None else tuple(names))
        is_valid = self.name is None or bool(re.fullmatch(r"[A-Za-z]\w*", self.name, re.ASCII))
        _check("name", self.name, is_valid, "letters, digits and '_', beginning with a letter")
        for option in ("shuffle", "sort_by_class"):
            value = getattr(self, option)
            _check(option, value, isinstance(value, bool), "True or False")
        _check_choice("mode", self.mode, ("error", "overwrite", "append"))
        _check_choice("on_error", self.on_error, ("raise", "skip"))
        self._check_integers()
        is_valid = self.hold_out is None or isinstance(self.hold_out, HoldOut)
        _check("hold_out", self.hold_out, is_valid, "a covey.HoldOut")
        if self.hold_out is not None and self.split_by is not None:
            raise DatasetError(
                "hold_out divides one split",
                option="split_by",
                found=self.split_by,
                allowed="omitted with hold_out=",
            )
        if self.hold_out is not None and self.more_splits:
            raise DatasetError(
                "examples are held out from one split, but the source has the splits "
                + list_names((self.split, *self.more_splits)),
                remedy=f"pass split={self.split!r} to write one of them",
            )
        if self.hold_out is not None and self.hold_out.split == self.split:
            raise DatasetError(
                "it is the name of both splits", option="hold_out.split", found=self.split
            )
        if self.shards is not None and self.records_per_shard is not None:
            raise DatasetError(
                f"shards is {self.shards} and records_per_shard is {self.records_per_shard}; "
                "only one of them can be given",
                option="shards",
            )
        try:
            compression = parse_compression(self.compression)
        except ValueError:
            raise DatasetError(
                option="compression",
                found=self.compression,
                allowed="None, 'GZIP' or 'ZLIB'",
                choices=("GZIP", "ZLIB"),
            ) from None
        object.__setattr__(self, "compression", compression)

    def _check_integers(self) -> None:
        for option in ("shards", "records_per_shard", "shard_bytes", "memory_limit", "workers"):
            value = getattr(self, option)
            is_default = value is None and option not in ("shard_bytes", "memory_limit")
            _check(option, value, is_default or _is_integer(value, 1), "an integer >= 1")
        level = self.compression_level
        _check("compression_level", level, _is_integer(level, 0, 9), "an integer from 0 to 9")
        _check("seed", self.seed, _is_integer(self.seed, -(2**63), 2**64 - 1), "a 64-bit integer")

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits to write."""
        held_out = () if self.hold_out is None else (self.hold_out.split,)
        return (self.split, *self.more_splits, *held_out)

    @property
    def holds_out_classes(self) -> bool:
        """Whether classes are held out, which are chosen when all of them are known."""
        return self.hold_out is not None and self.hold_out.fraction is None

    @property
    def is_divided(self) -> bool:
        """Whether the examples of one source are divided into several splits."""
        return self.hold_out is not None or self.split_by is not None

    @property
    def order(self) -> RecordOrder:
        """The order of the records."""
        return RecordOrder(self.sort_by_class, "hash" if self.shuffle else "position")

    @property
    def chunk_bytes(self) -> int:
        """Approximate size of a chunk of records."""
        return max(1, min(MAX_CHUNK_BYTES, self.memory_limit // 16))

    @property
    def write_threads(self) -> int:
        """Number of threads that sort, compress and write records."""
        return self.workers or cpu_count()


def parse_types(types: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtypes of features by name.

    Raises:
        FeatureError: If one is not a dtype; ``feature`` is the name.
    """
    found = {}
    for name, dtype in types.items():
        try:
            found[name] = parse_dtype(dtype)
        except FeatureError as error:
            raise add_feature(error, name) from None
    return found


def _check(option: str, value: Any, is_valid: bool, allowed: str) -> None:
    if not is_valid:
        raise DatasetError(option=option, found=value, allowed=allowed)


def _check_choice(option: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise DatasetError(option=option, found=value, choices=choices)


def _is_integer(value: Any, low: int, high: int | None = None) -> bool:
    return type(value) is int and low <= value and (high is None or value <= high)


@dataclass(frozen=True, kw_only=True)
class WriteSchema:
    """Features and label of the records, as known before the first example is read.

    It follows from the options, from the source, and from the splits that remain.
    """

    features: Features | None = None
    """Declared features; None to infer them."""
    fallback: Features | None = None
    """Features for examples that ``features`` rejects: the label is a string, of a new class."""
    label: str | None = None
    """Label feature, which every example must have."""
    infers_label: bool = False
    """Whether the label feature is inferred from the features."""
    strings_to_classes: bool = False
    """Whether a string label becomes a ClassLabel. A feature declared as a string stays one."""
    known_classes: tuple[str, ...] = ()
    """Class names, or label strings, that have class ids already, by id."""

    def with_final(self, features: Features, label: str | None) -> WriteSchema:
        """Return the schema of records whose features and class ids are final."""
        return replace(
            self,
            features=features,
            fallback=None,
            label=label,
            infers_label=False,
            strings_to_classes=False,
        )
