"""``dataset_info.json``: the name, the version and the splits of a dataset, in the format of TFDS.

::

    data/birds/
        dataset_info.json
        birds-train.tfrecord-00000-of-00002      {DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}
        birds-train.tfrecord-00001-of-00002

A split that replaces another one, and every split at a URL, has a token in the template of its file
names, which is unique to the version::

        birds-train.20261116T095012-3f9a2c1b.tfrecord-00000-of-00002

Supervised keys, the input and the label of a model, make TFDS' ``as_supervised=True`` work. The
name of the directory is used if the file has none: ``tfds.folder_dataset.write_metadata`` writes
none if the names of the shards do not contain it.

Fields of the file that covey does not use are preserved when a split is added to a dataset that
TFDS prepared.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.errors import FormatError
from covey.filenames import (
    DEFAULT_TEMPLATE,
    FILE_FORMAT,
    INFO_FILE,
    SHARD_VARIABLES,
    fill_template,
    has_token,
    is_version_file,
    parse_version_file,
    template_token,
)
from covey.untrusted import MAX_SHARDS, brief, check_name, parse_int64, parse_json

ALL_REPLACED = (
    "all files that match belong to a version that was replaced; open the directory, or use a "
    "pattern that matches the names of the current version, such as '*-train.*'"
)


_SUPERVISED_KEYS = "supervisedKeys"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")


def dataset_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the name and the version of a dataset, from the path of its directory.

    TFDS lists only names of letters, digits and underscores that begin with a letter; other names
    are converted to such a name.

    >>> dataset_name("data/birds"), dataset_name("data/sea-birds/2.1.0")
    (('birds', '1.0.0'), ('sea_birds', '2.1.0'))
    """
    directory, last = os.path.split(os.path.abspath(os.fspath(path)))
    version = "1.0.0"
    if _VERSION.fullmatch(last):
        version, last = last, os.path.basename(directory)
    name = re.sub(r"[^A-Za-z0-9_]", "_", last)
    if not name[:1].isalpha():
        name = f"dataset_{name}" if name else "dataset"
    return name, version


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return a version as comparable numbers; None if it is not a valid version.

    >>> parse_version("2.10.0"), parse_version("newest")
    ((2, 10, 0), None)
    """
    return tuple(map(int, text.split("."))) if _VERSION.fullmatch(text) else None


def drop_replaced(paths: Sequence[str], read: Callable[[str], bytes | None]) -> list[str]:
    """Return the files that do not belong to a replaced or uncommitted version.

    Files of a replaced version are deleted some time after the commit; until then a listing or a
    pattern finds both versions.

    Args:
        paths: The paths of files, in any directories.
        read: A function that returns the content of the ``dataset_info.json`` of a directory; None
            if there is none.
    """
    parts = [re.fullmatch(r"(.*?)[/\\]?([^/\\]*)", path, re.DOTALL) for path in paths]
    where = [
        ("", path) if each is None else (each[1], each[2])
        for each, path in zip(parts, paths, strict=True)
    ]
    dropped: set[tuple[str, str]] = set()
    # A pattern may match only files of a replaced version, without tokens.
    for directory in {directory for directory, name in where if is_version_file(name)}:
        text = read(directory)
        if text is None:
            continue
        try:
            info = DatasetInfo.from_json(text, f"{directory}/{INFO_FILE}")
        except FormatError:
            if any(has_token(name) for other, name in where if other == directory):
                raise
            continue  # the files can be opened although their metadata is corrupt
        current = {name for split in info.splits for name in split.shard_names(info.name)}
        versions = [split.name for split in info.splits if split.token]
        for other, name in where:
            if other != directory or name in current:
                continue
            if has_token(name) or any(
                parse_version_file(name, info.name, split)[0] for split in versions
            ):
                dropped.add((other, name))
    return [path for path, each in zip(paths, where, strict=True) if each not in dropped]


def check_split_name(name: str) -> None:
    """Check that a name is valid for a split in TFDS.

    Raises:
        FormatError: If it has characters other than letters, digits, ``_`` and ``-``, has neither a
            letter nor a digit, or is ``all``, which is the union of all splits in TFDS.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name) or name == "all":
        raise FormatError(
            f"the name of a split is {brief(name)}; must be letters, digits, '_' and '-', "
            "and not 'all'",
            remedy="rename the split",
        )
    if not any(map(str.isalnum, name)):
        raise FormatError(f"the name of a split is {name!r}; must have a letter or a digit")
    if len(name.encode()) > 100:  # it is part of file names, whose length is limited
        raise FormatError(f"the name of a split is {name[:20]!r}...; must be at most 100 bytes")


@dataclass(frozen=True)
class SplitInfo:
    """A split: the number of records of each shard, and the template of the file names.

    >>> SplitInfo("train", (5, 4), 1000).shard_names("birds")[1]
    'birds-train.tfrecord-00001-of-00002'
    """

    name: str
    shard_lengths: tuple[int, ...]
    """The number of records of each shard."""
    num_bytes: int
    """The total size of the shards."""
    template: str = DEFAULT_TEMPLATE
    """The template of the file names, relative to the dataset's directory, with TFDS variables."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields that covey does not use."""

    def __post_init__(self) -> None:
        check_split_name(self.name)
        object.__setattr__(self, "shard_lengths", tuple(self.shard_lengths))
        for each in (self.num_bytes, *self.shard_lengths):
            if type(each) is not int or not 0 <= each < 2**63:
                raise FormatError(
                    f"split {self.name!r}: {brief(each)} is not a number of records or bytes; must "
                    "be an integer >= 0"
                )
        self._shard("dataset", 0)  # raises if the template is not valid
        if len(self.shard_lengths) > 1 and not any(v in self.template for v in SHARD_VARIABLES):
            raise FormatError(
                f"split {self.name!r}: template {self.template!r} is the same for all shards; "
                f"must contain one of {', '.join(SHARD_VARIABLES)}"
            )

    @property
    def num_examples(self) -> int:
        """The total number of records."""
        return sum(self.shard_lengths)

    @property
    def token(self) -> str | None:
        """The token in the file names; None if there is none."""
        return template_token(self.template)

    def stem(self, dataset: str) -> str:
        """Return the common start of the names of the index files."""
        return f"{dataset}-{self.name}" + (f".{self.token}" if self.token else "")

    def shard_names(self, dataset: str) -> tuple[str, ...]:
        """Return the paths of the shards, relative to the directory of the dataset."""
        return tuple(self._shard(dataset, number) for number in range(len(self.shard_lengths)))

    def _shard(self, dataset: str, number: int) -> str:
        count = max(1, len(self.shard_lengths))
        try:
            return fill_template(self.template, dataset, self.name, number, count)
        except FormatError as error:
            raise FormatError(f"split {self.name!r}: {error}") from None


@dataclass(frozen=True)
class DatasetInfo:
    """The content of ``dataset_info.json``."""

    name: str
    version: str = "1.0.0"
    description: str = ""
    splits: tuple[SplitInfo, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields that covey does not use."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple(self.splits))
        check_name(self.name, "the name of a dataset")
        if not isinstance(self.version, str) or not _VERSION.fullmatch(self.version):
            raise FormatError(
                f"the version is {brief(self.version)}; must be three numbers without leading "
                "zeros, such as 1.0.0"
            )
        if not isinstance(self.description, str):
            raise FormatError("the description is not a string")
        names = [split.name for split in self.splits]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"there are two splits with the name {twice!r}")
        for split in self.splits:
            split._shard(self.name, 0)

    @property
    def has_supervised_keys(self) -> bool:
        """Whether the file has TFDS' supervised keys, of any structure."""
        return _SUPERVISED_KEYS in self.extra

    @property
    def supervised_label(self) -> str | None:
        """The label feature of TFDS' supervised keys; None if they have none."""
        keys: Any = self.extra.get(_SUPERVISED_KEYS)
        try:
            name = keys.get("output")  # of older versions of TFDS
            if name is None:
                second = keys["tuple"]["items"][1]
                name = second.get("featureKey", second.get("feature_key"))
        except (TypeError, KeyError, IndexError, AttributeError):
            return None
        return name if isinstance(name, str) else None

    def with_supervised_keys(self, keys: tuple[str, str] | None) -> DatasetInfo:
        """Return a copy with an input feature and a label feature, or without them."""
        extra = {name: each for name, each in self.extra.items() if name != _SUPERVISED_KEYS}
        if keys is not None:
            items = [{"featureKey": name} for name in keys]
            extra[_SUPERVISED_KEYS] = {"tuple": {"items": items}}
        return dataclasses.replace(self, extra=extra)

    def with_split(self, split: SplitInfo) -> DatasetInfo:
        """Return a copy with a split added, or replaced if the name exists."""
        splits = {each.name: each for each in (*self.splits, split)}
        return dataclasses.replace(self, splits=tuple(splits.values()))

    def to_json(self) -> str:
        """Return the content of the file, deterministic and formatted as by TFDS."""
        content = {
            **self.extra,
            "fileFormat": FILE_FORMAT,
            "name": self.name,
            "splits": [_split_to_json(split) for split in self.splits],
            "version": self.version,
        }
        if self.description:
            content["description"] = self.description
        if not self.splits:
            del content["splits"]
        return json.dumps(content, indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> DatasetInfo:
        """Parse the content of a file, which is not trusted.

        Args:
            text: The content of the file.
            name: The path of the file, for errors.

        Raises:
            FormatError: If it is not valid, or a path leaves its directory.
        """
        content = parse_json(text, name)
        try:
            fields = _fields(content, "a dict")
            if (found := _take(fields, "fileFormat", FILE_FORMAT)) != FILE_FORMAT:
                raise FormatError(
                    f"the file format is {brief(found)}; must be {FILE_FORMAT!r}",
                    remedy="convert the files with `tfds convert_format`",
                )
            keys = _take(fields, _SUPERVISED_KEYS, None)
            if keys is not None:
                fields[_SUPERVISED_KEYS] = keys
            own = _take(fields, "name", "")
            listed = _list(_take(fields, "splits", []), "splits", MAX_SHARDS)
            splits = tuple(map(_split_from_json, listed))
            if sum(len(split.shard_lengths) for split in splits) > MAX_SHARDS:
                raise FormatError(f"there are more than {MAX_SHARDS:,} shards")
            if own == "":
                own = _missing_name(splits, name)
            return cls(
                own,
                _take(fields, "version", None),
                _take(fields, "description", ""),
                splits,
                fields,
            )
        except FormatError as error:
            error.path = name
            raise


def _missing_name(splits: Iterable[SplitInfo], path: str) -> str:
    """Return the name of the directory, for a dataset whose file has no name."""
    for split in splits:
        if "{DATASET}" in split.template:
            raise FormatError(
                f"the name of the dataset is missing, but the files of split {split.name!r} are "
                f"named {split.template!r}"
            )
    return dataset_name(os.path.dirname(path))[0]


def _split_to_json(split: SplitInfo) -> dict[str, Any]:
    # Protobuf's JSON has 64-bit integers as strings, and omits fields that are 0 or empty.
    fields = {
        "filepathTemplate": split.template,
        "name": split.name,
        "numBytes": str(split.num_bytes) if split.num_bytes else "",
        "shardLengths": [str(length) for length in split.shard_lengths],
    }
    return {**split.extra, **{key: each for key, each in fields.items() if each}}


def _split_from_json(content: Any) -> SplitInfo:
    fields = _fields(content, "a dict for every split")
    lengths = _list(_take(fields, "shardLengths", []), "shardLengths", MAX_SHARDS)
    size = _take(fields, "numBytes", 0)
    # Values that are not integers are passed on, for the error message.
    complete: list[Any] = [
        each if (n := parse_int64(each)) is None else n for each in (size, *lengths)
    ]
    template = _take(fields, "filepathTemplate", "") or DEFAULT_TEMPLATE
    return SplitInfo(
        _take(fields, "name", None), tuple(complete[1:]), complete[0], template, fields
    )


def _fields(content: Any, expected: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise FormatError(f"it is {brief(content)}; must be {expected}")
    return dict(content)


def _take(fields: dict[str, Any], name: str, missing: Any) -> Any:
    """Remove and return a field, named ``aName`` or ``a_name``; protobuf's JSON allows both."""
    snake = re.sub(r"([A-Z])", r"_\1", name).lower()
    found = [fields.pop(each) for each in {name, snake} if each in fields]
    if len(found) > 1:
        raise FormatError(f"{name} and {snake} are the same field; must have only one of them")
    return missing if not found or found[0] is None else found[0]


def _list(value: Any, name: str, limit: int) -> Iterable[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{name} is {brief(value)}; must be a list")
    if len(value) > limit:
        raise FormatError(f"{name} has {len(value):,} items; must have at most {limit:,}")
    return value
