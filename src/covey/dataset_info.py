"""What a dataset says of itself: its name, version and splits, in TFDS' ``dataset_info.json``.

::

    data/birds/
        dataset_info.json
        birds-train.tfrecord-00000-of-00002      {DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}
        birds-train.tfrecord-00001-of-00002

A split that replaces another one, and every split behind a URL, has file names of its own: its
template has a token, which no two versions share::

        birds-train.20261116T095012-3f9a2c1b.tfrecord-00000-of-00002

Fields of the file that covey has no use for are kept, so that adding a split to a dataset that TFDS
prepared loses nothing.
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
    "this file, and all others that match, are of a version that was replaced; open the directory, "
    "or use a pattern that matches the names of the current version, such as '*-train.*'"
)


_NUMBER = r"(?:0|[1-9][0-9]*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")


def dataset_name(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The name and the version of a dataset, from its directory.

    TFDS opens a directory by any name, but finds, loads and lists only names of letters, digits and
    underscores that begin with a letter; the others are made one.

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
    """A version as numbers that can be compared; None if it is none.

    >>> parse_version("2.10.0"), parse_version("newest")
    ((2, 10, 0), None)
    """
    return tuple(map(int, text.split("."))) if _VERSION.fullmatch(text) else None


def drop_replaced(paths: Sequence[str], read: Callable[[str], bytes | None]) -> list[str]:
    """Return those of the files that are not of a version that was replaced or not committed.

    Files of a replaced version stay beside the current one for a while; what lists a directory, or
    matches a pattern, finds both.

    Args:
        paths: Of files, of any directories.
        read: Returns the content of the ``dataset_info.json`` of a directory; None if it has none.
    """
    parts = [re.fullmatch(r"(.*?)[/\\]?([^/\\]*)", path, re.DOTALL) for path in paths]
    where = [
        ("", path) if each is None else (each[1], each[2])
        for each, path in zip(parts, paths, strict=True)
    ]
    dropped: set[tuple[str, str]] = set()
    # A pattern may match only files without a token, of a version that was replaced.
    for directory in {directory for directory, name in where if is_version_file(name)}:
        text = read(directory)
        if text is None:
            continue
        try:
            info = DatasetInfo.from_json(text, f"{directory}/{INFO_FILE}")
        except FormatError:
            if any(has_token(name) for other, name in where if other == directory):
                raise
            continue  # a pattern opens what a corrupt file describes
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
    """Make sure that TFDS has a way to ask for a split of this name.

    Raises:
        FormatError: If it has other characters than letters, digits, ``_`` and ``-``, no letter or
            digit at all, or is ``all``, which to TFDS means every split together.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name) or name == "all":
        raise FormatError(
            f"the name of a split is {brief(name)}; must be letters, digits, '_' and '-', "
            "and not 'all'; rename the split"
        )
    if not any(map(str.isalnum, name)):
        raise FormatError(f"the name of a split is {name!r}, must have a letter or a digit")
    if len(name.encode()) > 100:  # files are named after it, and their names have limits
        raise FormatError(f"the name of a split is {name[:20]!r}... of over 100 bytes; shorten it")


@dataclass(frozen=True)
class SplitInfo:
    """A split: how many records each of its shards has, and how their files are named.

    >>> SplitInfo("train", (5, 4), 1000).shard_names("birds")[1]
    'birds-train.tfrecord-00001-of-00002'
    """

    name: str
    shard_lengths: tuple[int, ...]
    """Records in each shard."""
    num_bytes: int
    """Of all shards together."""
    template: str = DEFAULT_TEMPLATE
    """How the files are named, relative to the dataset's directory, in variables of TFDS."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Fields of the file that covey has no use for."""

    def __post_init__(self) -> None:
        check_split_name(self.name)
        object.__setattr__(self, "shard_lengths", tuple(self.shard_lengths))
        for each in (self.num_bytes, *self.shard_lengths):
            if type(each) is not int or not 0 <= each < 2**63:
                raise FormatError(
                    f"split {self.name!r}: {brief(each)} is not a number of records or bytes, "
                    "which is whole and 0 or more"
                )
        self._shard("dataset", 0)  # says what is wrong with the template
        if len(self.shard_lengths) > 1 and not any(v in self.template for v in SHARD_VARIABLES):
            raise FormatError(
                f"split {self.name!r}: template {self.template!r} gives all shards one name; "
                f"it must have one of {', '.join(SHARD_VARIABLES)}"
            )

    @property
    def num_examples(self) -> int:
        """Records in all shards."""
        return sum(self.shard_lengths)

    @property
    def token(self) -> str | None:
        """The token of this version; None if its file names have none."""
        return template_token(self.template)

    def stem(self, dataset: str) -> str:
        """The beginning of the names of the index files."""
        return f"{dataset}-{self.name}" + (f".{self.token}" if self.token else "")

    def shard_names(self, dataset: str) -> tuple[str, ...]:
        """The files of the shards, relative to the directory of the dataset."""
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
    """Fields of the file that covey has no use for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", tuple(self.splits))
        check_name(self.name, "the name of a dataset")
        if not isinstance(self.version, str) or not _VERSION.fullmatch(self.version):
            raise FormatError(
                f"the version is {brief(self.version)}; must be three numbers without leading "
                "zeros, such as 1.0.0"
            )
        if not isinstance(self.description, str):
            raise FormatError("the description is not a text")
        names = [split.name for split in self.splits]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"there are two splits with the name {twice!r}")
        for split in self.splits:
            split._shard(self.name, 0)

    def with_split(self, split: SplitInfo) -> DatasetInfo:
        """The same with one more split, or with this one in place of that of the same name."""
        splits = {each.name: each for each in (*self.splits, split)}
        return dataclasses.replace(self, splits=tuple(splits.values()))

    def to_json(self) -> str:
        """The text of the file: the same for the same content, and as TFDS writes it."""
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
        """The content of a file that TFDS or covey wrote, which may be hostile.

        Args:
            text: The file's.
            name: The file, for errors.

        Raises:
            FormatError: If it is not what it should be, or would lead out of its directory.
        """
        content = parse_json(text, name)
        try:
            fields = _fields(content, "a dict")
            if (found := _take(fields, "fileFormat", FILE_FORMAT)) != FILE_FORMAT:
                raise FormatError(
                    f"the files are {brief(found)}, covey reads {FILE_FORMAT!r}; "
                    "convert them with `tfds convert_format`"
                )
            return cls(
                _take(fields, "name", None),
                _take(fields, "version", None),
                _take(fields, "description", ""),
                _splits_from_json(_list(_take(fields, "splits", []), "splits", MAX_SHARDS)),
                fields,
            )
        except FormatError as error:
            raise FormatError(f"{error}", path=name) from None


def _split_to_json(split: SplitInfo) -> dict[str, Any]:
    # Protobuf's JSON has its 64-bit numbers as strings, and leaves out what is 0 or empty.
    fields = {
        "filepathTemplate": split.template,
        "name": split.name,
        "numBytes": str(split.num_bytes) if split.num_bytes else "",
        "shardLengths": [str(length) for length in split.shard_lengths],
    }
    return {**split.extra, **{key: each for key, each in fields.items() if each}}


def _splits_from_json(content: Iterable[Any]) -> tuple[SplitInfo, ...]:
    splits: list[SplitInfo] = []
    shards = 0
    for each in content:
        splits.append(_split_from_json(each))
        shards += len(splits[-1].shard_lengths)
        if shards > MAX_SHARDS:
            raise FormatError(f"there are over {MAX_SHARDS:,} shards; must be fewer")
    return tuple(splits)


def _split_from_json(content: Any) -> SplitInfo:
    fields = _fields(content, "a dict for every split")
    lengths = _list(_take(fields, "shardLengths", []), "shardLengths", MAX_SHARDS)
    size = _take(fields, "numBytes", 0)
    # What is not an integer is left as it is, for the error to show.
    complete: list[Any] = [
        each if (n := parse_int64(each)) is None else n for each in (size, *lengths)
    ]
    template = _take(fields, "filepathTemplate", "") or DEFAULT_TEMPLATE
    return SplitInfo(
        _take(fields, "name", None), tuple(complete[1:]), complete[0], template, fields
    )


def _fields(content: Any, expected: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise FormatError(f"found {brief(content)}, expected {expected}")
    return dict(content)


def _take(fields: dict[str, Any], name: str, missing: Any) -> Any:
    """Take a field out, which protobuf's JSON may also have as ``a_name`` instead of ``aName``."""
    snake = re.sub(r"([A-Z])", r"_\1", name).lower()
    found = [fields.pop(each) for each in {name, snake} if each in fields]
    if len(found) > 1:
        raise FormatError(f"both {name} and {snake} are given, which are the same field")
    return missing if not found or found[0] is None else found[0]


def _list(value: Any, name: str, limit: int) -> Iterable[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{name} is {brief(value)}; must be a list")
    if len(value) > limit:
        raise FormatError(f"{name} has {len(value):,} items; must have at most {limit:,}")
    return value
