"""What the rows of an index do not say: features, classes, and shards as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from covey import _core
from covey.errors import FormatError
from covey.features import ClassLabel, Features
from covey.features.spec import features_from_json, features_to_json
from covey.shards import Shard
from covey.untrusted import MAX_SHARDS, brief, check_path, parse_json

FORMAT = 1

# What `label` is if no feature tells the class, but the file that a record is in.
BY_FILE = "@file"


@dataclass(frozen=True, slots=True)
class About:
    """The description of an index, which lies beside its rows as ``.index.json``."""

    features: Features
    label: str | None
    """The feature that tells the class, or :data:`BY_FILE`."""
    class_texts: tuple[str, ...] | None
    """What the labels stand for, where they are texts that the index has numbered."""
    compression: str | None
    records: int
    checksum: int
    """Of the index rows."""
    class_checksums: tuple[int, int] | None
    """Of the rows of the class table, and of the records sorted by class, if there is a label."""
    shards: tuple[Shard, ...]
    order: Mapping[str, Any]
    """How the records were brought into order; empty if covey did not write them."""
    streamed: bool = False
    """Whether records of compressed shards can only be reached from the beginning: then ``offset``
    is 0, and ``within`` counts through the whole shard."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the labels stand for, by their numbers, if that is known."""
        if self.class_texts is not None or self.label is None:
            return self.class_texts
        kind = self.features.get(self.label)
        return kind.names if isinstance(kind, ClassLabel) else None

    def to_json(self) -> str:
        """As it is stored."""
        content: dict[str, Any] = {
            "covey_index": FORMAT,
            "records": self.records,
            "checksum": self.checksum,
            "class_checksums": self.class_checksums,
            "label": self.label,
            "class_texts": self.class_texts,
            "compression": self.compression,
            "streamed": self.streamed,
            "order": dict(self.order),
            "shards": [asdict(shard) for shard in self.shards],
            "features": features_to_json(self.features),
        }
        content["content_checksum"] = _checksum(content)
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> About:
        """Read what was stored, which may be damaged, or worse."""
        try:
            content = parse_json(text, name)
            if content["covey_index"] != FORMAT:
                raise FormatError(
                    f"{name}: the index has format {brief(content['covey_index'])}, this covey "
                    f"reads {FORMAT}; update covey, or rebuild the index"
                )
            if content.pop("content_checksum") != _checksum(content):
                raise FormatError(f"{name}: its content is not what was written")
            names = content["class_texts"]
            sums = content["class_checksums"]
            about = cls(
                features=features_from_json(content["features"], name),
                label=_typed(content["label"], str, None),
                class_texts=None if names is None else tuple(_typed(n, str) for n in names),
                compression=_typed(content["compression"], str, None),
                records=_typed(content["records"], int),
                checksum=_typed(content["checksum"], int),
                class_checksums=None if sums is None else _pair(sums),
                shards=tuple(_shard(each, name) for each in _shards(content["shards"])),
                order=_typed(content["order"], dict),
                streamed=_typed(content["streamed"], bool),
            )
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            RecursionError,
        ) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"{name}: it is no index description that can be read: "
                f"{type(error).__name__}: {error}"
            ) from None
        about._check(name)
        return about

    def _check(self, name: str) -> None:
        """Make sure that its parts agree."""
        if self.compression not in (None, "GZIP", "ZLIB"):
            raise FormatError(f"{name}: its compression is {self.compression[:60]!r}")
        if self.label not in (None, BY_FILE) and self.label not in self.features:
            raise FormatError(f"{name}: its label {self.label!r} is none of its features")
        if (self.label is None) != (self.class_checksums is None):
            raise FormatError(f"{name}: it has a label but no classes, or classes but no label")
        if self.streamed and self.compression is None:
            raise FormatError(f"{name}: its shards are streamed, but not compressed")
        if self.records != sum(shard.records for shard in self.shards):
            raise FormatError(f"{name}: its shards do not have its {self.records} records together")


_ANY: Any = object()


def _shards(content: Any) -> list[Any]:
    if len(_typed(content, list)) > MAX_SHARDS:
        raise ValueError(f"it has {len(content):,} shards; must have at most {MAX_SHARDS:,}")
    return list(content)


def _typed(value: Any, kind: type, otherwise: Any = _ANY) -> Any:
    if value is otherwise or type(value) is kind:
        return value
    raise TypeError(f"{brief(value)} is no {kind.__name__}")


def _pair(content: Any) -> tuple[int, int]:
    first, second = content
    return _typed(first, int), _typed(second, int)


def _checksum(content: Mapping[str, Any]) -> int:
    """Of what a description says, however it is laid out."""
    return _core.crc32c(json.dumps(content, sort_keys=True).encode())


def _shard(content: Mapping[str, Any], file: str) -> Shard:
    shard = Shard(
        name=_typed(content["name"], str),
        records=_typed(content["records"], int),
        bytes=_typed(content["bytes"], int),
        fingerprint=_typed(content["fingerprint"], int),
        version=_typed(content["version"], str),
    )
    check_path(shard.name, f"{file}: the name of a shard")
    if not (0 <= shard.records < 2**62 and 0 <= shard.bytes < 2**62):
        raise ValueError(f"{str(shard)[:200]} cannot be a shard of this folder")
    return shard
