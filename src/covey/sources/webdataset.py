"""WebDataset shards: tar files whose members are the fields of samples.

Adjacent members with the same name up to the first dot are one sample::

    000017.jpg  000017.cls  000017.json  000018.jpg  000018.cls  ...

Shards are read in order. One pass over their headers counts the samples and finds the fields.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from covey.errors import SourceError
from covey.schema import ClassLabel, Features, Image, Tensor, images
from covey.schema.images import MAX_IMAGE_BYTES
from covey.sources.media import check_image
from covey.sources.registry import register_files
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    choose_label,
    first_names,
    source_error,
)
from covey.untrusted import RegularFile, brief

EXTENSIONS = (".tar", ".tgz")
MAX_MEMBER_BYTES = MAX_IMAGE_BYTES
"""Maximum size of a member."""
# A pax header, or a long name. tarfile searches it in quadratic time.
_MAX_HEADER_BYTES = 1 << 14

# As in the webdataset library: the suffix begins at the first dot of the file name.
_MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
_METADATA = re.compile(r"__[^/]*__($|/)")
_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")
_KINDS = {
    **dict.fromkeys((each[1:] for each in images.EXTENSIONS), "image"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus", "m4a"), "audio"),
    **dict.fromkeys(("txt", "text", "transcript", "html", "htm"), "text"),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "label"),
    **dict.fromkeys(("json", "jsn"), "json"),
    "npy": "array",
}


def _kind_of(suffix: str) -> str:
    """Return the kind of a field: image, audio, text, label, json, array or bytes."""
    return _KINDS.get(suffix.rpartition(".")[2], "bytes")


# Archives.


def _members(path: str) -> Iterator[tuple[tarfile.TarInfo, Any]]:
    """Yield the members of a shard, and the file to read them from.

    Raises:
        tarfile.TarError, OSError, EOFError, zlib.error: If the rest of the file is not valid.
    """
    with RegularFile(path) as raw, io.BufferedReader(raw) as plain:
        is_compressed = plain.peek(2)[:2] == b"\x1f\x8b"
        file: Any = gzip.GzipFile(fileobj=plain, mode="rb") if is_compressed else plain

        def read_header(size: int) -> bytes:  # tarfile trusts the sizes in headers
            if not 0 <= size <= _MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"a header of {size} bytes")
            return cast("bytes", file.read(size))

        headers: Any = SimpleNamespace(tell=file.tell, seek=file.seek, read=read_header)
        with tarfile.open(fileobj=headers, mode="r:") as tar:
            while (info := tar.next()) is not None:
                if info.size < 0:  # tarfile would read the same headers again
                    raise tarfile.ReadError(f"{brief(info.name)} has {info.size} bytes")
                yield info, file
                tar.members = []  # type: ignore[attr-defined]
            # tarfile takes a header that is not valid for the end of the archive.
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"there is no end of the archive at byte {tar.offset}")


@dataclass
class _TarSample:
    """A sample of a shard."""

    key: str
    fields: dict[str, bytes | None] = field(default_factory=dict)
    """The content of each suffix; None if it was not requested."""
    error: SourceError | None = None


def _fault(info: tarfile.TarInfo, *, is_known: bool) -> str | None:
    """Return the reason why a member is not a field; None if it is."""
    if not info.isreg() or info.issparse():
        return "it is a link, a sparse file or a special file; must be a regular file"
    if info.size > MAX_MEMBER_BYTES:
        return f"it has {info.size:,} bytes; must be at most {MAX_MEMBER_BYTES:,}"
    if info.name.encode(errors="replace").decode() != info.name:
        return "the name is not valid UTF-8"
    return "the sample has two members with this suffix" if is_known else None


def _samples(path: str, is_read: Callable[[int, str], bool]) -> Iterator[_TarSample]:
    """Yield the samples of a shard; the last one has an error if the rest cannot be read.

    Args:
        path: The shard.
        is_read: Function of the position of a sample and a suffix: whether to read the field.
    """
    sample: _TarSample | None = None
    seen: set[str] = set()
    position = -1
    try:
        for info, file in _members(path):
            name = info.name.removeprefix("./")
            found = _MEMBER.fullmatch(name)
            if info.isdir() or found is None or _METADATA.match(name):
                continue
            key, suffix = found[1], found[2].lower()
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                position, sample = position + 1, _TarSample(key)
                if key in seen:
                    reason = f"the key {brief(key)} occurs twice; its members must be adjacent"
                    sample.error = source_error(path, reason)
                seen.add(key)
            fault = _fault(info, is_known=suffix in sample.fields)
            if fault is not None:
                error = source_error(path, f"member {brief(info.name)}: {fault}")
                sample.error = sample.error or error
                continue
            sample.fields[suffix] = None
            if is_read(position, suffix):
                file.seek(info.offset_data)
                data = file.read(info.size)
                if len(data) != info.size:
                    raise EOFError(f"{brief(info.name)} is truncated")
                sample.fields[suffix] = data
    except (tarfile.TarError, OSError, EOFError, zlib.error, RecursionError) as failure:
        if sample is not None:
            yield sample
        reason = (
            f"this member and all that follow cannot be read: {failure or type(failure).__name__}"
        )
        sample = _TarSample(f"/{path}", error=source_error(path, reason))
    if sample is not None:
        yield sample


# Values.


def _decode(data: bytes, kind: str) -> Any:
    """Return the value of a member.

    Raises:
        SourceError: If it is not valid.
    """
    if kind == "image":
        return check_image(data)
    if kind in ("audio", "bytes"):
        return data
    try:
        if kind == "array":
            return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        text = data.decode()
        return json.loads(text) if kind == "json" else text.strip() if kind == "label" else text
    except UnicodeDecodeError as error:
        reason = f"byte {data[error.start]:#04x} is not valid UTF-8"
    except Exception as error:  # also TokenError, of an array whose header is not Python
        reason = f"is not {'a valid NPY file' if kind == 'array' else 'valid JSON'}: {error}"
    raise SourceError(reason)


@dataclass(frozen=True, eq=False)
class _TarItems:
    """The samples of shards as examples, read in order in every pass."""

    files: Sequence[str]
    counts: Sequence[int]
    """Number of samples of each shard."""
    names: Mapping[str, str]
    """Feature of every suffix."""
    strings: frozenset[str]
    """Suffixes of labels that are not all integers."""
    shard_names: Sequence[str] | None
    """Names that precede keys, if two shards have the same key."""
    label: str | None = None

    def __len__(self) -> int:
        return sum(self.counts)

    def __iter__(self) -> Iterator[Item]:
        return self.read_range(0, len(self))

    def read_range(self, begin: int, end: int) -> Iterator[Item]:
        """Yield the items from one position to another; other shards are not opened."""
        first = 0
        for shard, count in enumerate(self.counts):
            if first < end and begin < first + count:
                yield from self._read_shard(shard, begin - first, end - first)
            first += count

    def _read_shard(self, shard: int, begin: int, end: int) -> Iterator[Item]:
        path = self.files[shard]
        prefix = "" if self.shard_names is None else f"{self.shard_names[shard]}/"
        samples = _samples(path, lambda position, suffix: begin <= position < end)
        for position, sample in enumerate(samples):
            if position >= end:
                return
            if position >= begin:
                yield sample.error or self._item(prefix + sample.key, sample, path)

    def _item(self, key: str, sample: _TarSample, path: str) -> Item:
        example: dict[str, Any] = {}
        for suffix, data in sample.fields.items():
            try:
                if suffix not in self.names or data is None:
                    raise SourceError("this member and all that follow cannot be read")
                self._add(example, suffix, data)
            except (SourceError, ValueError) as error:
                reason = error.reason if isinstance(error, SourceError) else str(error)
                return source_error(path, f"member {brief(f'{sample.key}.{suffix}')}: {reason}")
        if self.label is not None and example.get(self.label, "") == "":
            reason = f"sample {brief(sample.key)}: the label is missing"
            return source_error(path, reason, feature=self.label)
        return key, example

    def _add(self, example: dict[str, Any], suffix: str, data: bytes) -> None:
        """Add the features of a member to an example."""
        name, kind = self.names[suffix], _kind_of(suffix)
        value = _decode(data, kind)
        if kind == "label" and suffix not in self.strings:
            value = int(value) if value else value
        if kind == "json" and suffix == name and isinstance(value, dict):
            taken = self.names.values()
            for each, inner in value.items():
                if inner is None:
                    continue
                into = example.setdefault(name, {}) if each in taken else example
                into[each] = inner
            return
        example[name] = value


# Shards.


@dataclass
class _Survey:
    """What the headers and the labels of shards say."""

    counts: list[int] = field(default_factory=list)
    """Number of the samples of each shard."""
    keys: set[str] = field(default_factory=set)
    combinations: dict[tuple[str, ...], None] = field(default_factory=dict)
    """Suffixes that samples have together."""
    strings: set[str] = field(default_factory=set)
    """Suffixes of labels that are not all integers."""
    classes: set[str] = field(default_factory=set)
    """Values of the label ``cls``."""

    def add_shard(self, path: str) -> None:
        """Read the headers of a shard. Its content is read if it is compressed."""
        self.counts.append(0)
        for sample in _samples(path, lambda _, suffix: _kind_of(suffix) == "label"):
            self.counts[-1] += 1
            self.keys.add(sample.key)
            self.combinations[tuple(sample.fields)] = None
            for suffix, data in sample.fields.items():
                value = (data or b"").strip()
                if value and not _INTEGER.fullmatch(value):
                    self.strings.add(suffix)
                if value and suffix == "cls":
                    self.classes.add(value.decode(errors="replace"))

    def feature_names(self) -> dict[str, str]:
        """Return the feature of every suffix.

        ``jpg`` is ``image``, ``left.jpg`` is ``left``. Where two suffixes of a sample would be the
        same feature, they are features of their own names.
        """
        names = {}
        for suffix in (each for combination in self.combinations for each in combination):
            stem, kind = suffix.rpartition(".")[0], _kind_of(suffix)
            common = kind if kind in ("image", "audio", "text") else suffix
            names[suffix] = stem.replace(".", "_") or common
        for combination in self.combinations:
            found = [names[suffix] for suffix in combination]
            for suffix, name in zip(combination, found, strict=True):
                if found.count(name) > 1:
                    names[suffix] = suffix.replace(".", "_")
        return names


@register_files("WebDataset", "WebDataset tar files", EXTENSIONS)
def open_tar_files(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open tar files of samples, keyed by their names. Nothing is extracted to disk."""
    survey = _Survey()
    for file in files:
        survey.add_shard(file)
    shard_names = None
    if len(survey.keys) < sum(survey.counts):
        shard_names = [os.path.basename(file) for file in files]
        shard_names = shard_names if len(set(shard_names)) == len(files) else files
    names = survey.feature_names()
    items = _TarItems(files, survey.counts, names, frozenset(survey.strings), shard_names)
    error = source_error(path, "there is no member of the form KEY.SUFFIX")
    found = first_names(items, error, options.label)
    is_class = options.label is None and "cls" in found
    label = "cls" if is_class else choose_label(options.label, found, path)
    features = _features(survey, names, label)
    items = replace(items, label=label)
    return Source("WebDataset", path, items, length=len(items), features=features, label=label)


def _features(survey: _Survey, names: Mapping[str, str], label: str | None) -> Features | None:
    """Return the schema; None if it must be inferred, because of JSON or arrays."""
    kinds: dict[str, Any] = {}
    for suffix, name in names.items():
        kind = _kind_of(suffix)
        if kind in ("json", "array"):
            return None
        is_string = kind == "text" or suffix in survey.strings
        plain = Tensor("str") if is_string else Tensor("int64" if kind == "label" else "bytes")
        kinds[name] = Image() if kind == "image" else plain
        if name == label == "cls" and is_string:
            kinds[name] = ClassLabel(names=tuple(sorted(survey.classes)))
    return Features(kinds)
