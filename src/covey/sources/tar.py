"""WebDataset shards: tar files whose members are the fields of samples.

Adjacent members with the same name up to the first dot are one sample::

    000017.jpg  000017.cls  000017.json  000018.jpg  000018.cls  ...
"""

from __future__ import annotations

import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from covey.errors import CoveyError, FeatureError, SourceError
from covey.labels import find_label_name
from covey.schema import ClassLabel, Features, Image, Tensor
from covey.sources.images import image_fault
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    check_label,
    open_split_files,
    source_error,
)
from covey.sources.tar_index import BLOCK_BYTES, GZIP_MAGIC, TarIndex, kind_of, open_shard
from covey.sources.text import decompressed_head
from covey.splits import SPLIT_NAMES
from covey.untrusted import MAX_METADATA_BYTES, RegularFile, brief, read_file

_EXTENSIONS = (".tar", ".tar.gz", ".tgz")
_CLASS_NAMES_FILE = "classnames.txt"
_COMMON_NAMES = {"image": "image", "audio": "audio", "text": "text"}


@dataclass(frozen=True)
class _Samples:
    """Samples as examples."""

    index: TarIndex
    names: Mapping[str, str]
    """Feature of every suffix."""
    label: str | None = None

    def __len__(self) -> int:
        return len(self.index.keys)

    def example(self, position: int, read: Callable[[int, int], bytes]) -> Item:
        """Return a sample.

        Args:
            position: Position of the sample.
            read: Function of an offset and a size that reads the shard.
        """
        index = self.index
        if position in index.errors:
            return index.errors[position]
        path, key = index.files[index.shards[position]], index.keys[position]
        suffixes = list(index.suffixes)
        example: dict[str, Any] = {}
        for member in range(index.first[position], index.first[position + 1]):
            suffix, size = suffixes[index.suffix_ids[member]], index.sizes[member]
            try:
                data = read(index.offsets[member], size)
                if len(data) != size:
                    raise SourceError("the file was changed after it was opened")
                self._add(example, suffix, data)
            except (SourceError, OSError, EOFError, ValueError, zlib.error) as error:
                reason = error.reason if isinstance(error, SourceError) else str(error)
                return source_error(path, f"member {brief(f'{key}.{suffix}')}: {reason}")
        if self.label is not None and example.get(self.label, "") == "":
            reason = f"sample {brief(key)}: the label is missing"
            return source_error(path, reason, feature=self.label)
        return key, example

    def _add(self, example: dict[str, Any], suffix: str, data: bytes) -> None:
        """Add the features of a member to an example."""
        name, kind = self.names[suffix], kind_of(suffix)
        value = _decode(data, kind)
        if kind == "label" and suffix not in self.index.strings:
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


def _decode(data: bytes, kind: str) -> Any:
    """Return the value of a member.

    Raises:
        SourceError: If it is not valid.
    """
    match kind:
        case "image":
            reason = image_fault(data)
            if reason is not None:
                raise SourceError(f"not a valid image: {reason}")
            return data
        case "array":
            return _decode_array(data)
        case "audio" | "bytes":
            return data
    try:
        text = data.decode()
        return json.loads(text) if kind == "json" else text.strip() if kind == "label" else text
    except UnicodeDecodeError as error:
        raise SourceError(f"byte {data[error.start]:#04x} is not valid UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"is not valid JSON: {error}") from None


def _decode_array(data: bytes) -> NDArray[Any]:
    """Return the array of an NPY file, whose size is compared with its header."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read: Any = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
        at = file.tell()
        if dtype.hasobject or len(data) - at != math.prod(shape) * dtype.itemsize:
            raise ValueError("its size does not match its header, or it needs pickle")
        array = np.frombuffer(data, dtype, offset=at)
        return array.reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, EOFError) as error:
        raise SourceError(f"is not a valid NPY file: {error}") from None


class _TarSamples(LazyItems):
    """The samples of shards that are not compressed."""

    def __init__(self, samples: _Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, position: int) -> Item:
        index = self._samples.index
        with RegularFile(index.files[index.shards[position]]) as file:
            return self._samples.example(position, file.read_at)


@dataclass(frozen=True, eq=False)
class _StreamedSamples:
    """The samples of shards of which some are compressed, read in order in every pass."""

    samples: _Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Item]:
        index = self.samples.index
        position = 0
        for shard, path in enumerate(index.files):
            with open_shard(path) as file:

                def read(offset: int, size: int, file: Any = file) -> bytes:
                    file.seek(offset)
                    return cast("bytes", file.read(size))

                while position < len(index.keys) and index.shards[position] == shard:
                    yield self.samples.example(position, read)
                    position += 1


def _is_tar(path: str, head: bytes) -> bool:
    text = decompressed_head(head)
    return text[257:262] == b"ustar" or (path.endswith(_EXTENSIONS) and len(text) >= BLOCK_BYTES)


def _shards(probed: ProbedPath) -> list[str]:
    """Return the tar files at a path."""
    if probed.is_file:
        return [probed.path] if _is_tar(probed.path, probed.head) else []
    return [
        file
        for file in probed.files
        if file.lower().endswith(_EXTENSIONS) and _is_tar(file, read_head(file))
    ]


def _split_directories(probed: ProbedPath) -> dict[str, list[str]]:
    """Return the shards in subdirectories that have the names of splits."""
    found: dict[str, list[str]] = {}
    for directory in probed.directories:
        name = os.path.basename(directory)
        if name.lower() in SPLIT_NAMES:
            found[name] = _shards(ProbedPath.probe(directory))
    return {name: shards for name, shards in found.items() if shards}


@register(
    "WebDataset",
    "a WebDataset tar file, a directory or a pattern of them",
    recognise=lambda probed: bool(_shards(probed) or _split_directories(probed)),
    rank=3,
)
def open_tar(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open tar files of samples, keyed by their names. Nothing is extracted to disk."""
    files = _shards(probed)
    if files:
        return open_split_files(files, partial(_open_shards, probed.path, options.label))
    splits = _split_directories(probed)
    if not splits:
        raise source_error(probed.path, f"found {probed.describe()}, but no tar file")
    return SourceSplits(
        {
            split: partial(_open_shards, probed.path, options.label, shards)
            for split, shards in splits.items()
        }
    )


def _open_shards(path: str, label: str | None, files: list[str]) -> Source:
    """Open the shards of one split."""
    index = TarIndex(files)
    for shard in range(len(files)):
        index.add_shard(shard)
    index.check_keys()
    if len(index.errors) == len(index.keys):
        first = next(iter(index.errors.values()), None)
        raise first or source_error(path, "there is no member of the form KEY.SUFFIX")
    samples = _Samples(index, _feature_names(index))
    compressed = any(read_head(file, 2) == GZIP_MAGIC for file in files)
    items: Any = _StreamedSamples if compressed else _TarSamples
    names = _first_names(items(samples))
    check_label(label, names, path)
    label = label or ("cls" if "cls" in names else find_label_name(names))
    examples = items(_Samples(index, samples.names, label))
    try:
        features = _features(samples, label)
    except FeatureError as error:
        raise as_source_error(error, path) from None
    return Source(
        "WebDataset", path, examples, length=len(index.keys), features=features, label=label
    )


def _first_names(items: Sequence[Item]) -> list[str]:
    """Return the features of the first valid sample.

    Raises:
        SourceError: That of the first sample, if none is valid.
    """
    first: SourceError | None = None
    for item in items:
        if not isinstance(item, CoveyError):
            return list(item[1])
        first = first or item
    assert first is not None
    raise first


def _feature_names(index: TarIndex) -> dict[str, str]:
    """Return the feature of every suffix.

    ``jpg`` is ``image``, ``left.jpg`` is ``left``. Where two suffixes of a sample would be the same
    feature, they are features of their own names.
    """
    suffixes = list(index.suffixes)
    names = {}
    for suffix in suffixes:
        stem = suffix.rpartition(".")[0]
        names[suffix] = stem.replace(".", "_") or _COMMON_NAMES.get(kind_of(suffix), suffix)
    for combination in index.combinations:
        found = [names[suffixes[each]] for each in combination]
        for each, name in zip(combination, found, strict=True):
            if found.count(name) > 1:
                names[suffixes[each]] = suffixes[each].replace(".", "_")
    return names


def _features(samples: _Samples, label: str | None) -> Features | None:
    """Return the schema; None if it must be inferred, because of JSON or arrays."""
    index = samples.index
    kinds: dict[str, Any] = {}
    for suffix, name in samples.names.items():
        kind = kind_of(suffix)
        if kind in ("json", "array"):
            return None
        is_string = kind == "text" or suffix in index.strings
        plain = Tensor("str") if is_string else Tensor("int64" if kind == "label" else "bytes")
        kinds[name] = Image() if kind == "image" else plain
        if name == label == "cls":
            kinds[name] = _class_label(index) or kinds[name]
    return Features(kinds)


def _class_label(index: TarIndex) -> ClassLabel | None:
    """Return the classes of ``cls``: strings, or integers that ``classnames.txt`` names."""
    found = index.classes
    if "cls" in index.strings:
        return ClassLabel(names=tuple(sorted(found)))
    home = os.path.dirname(os.path.abspath(index.files[0]))
    for directory in (home, os.path.dirname(home)):
        path = os.path.join(directory, _CLASS_NAMES_FILE)
        if os.path.isfile(path):
            names = read_file(path, MAX_METADATA_BYTES).decode(errors="replace").splitlines()
            names = [name.strip() for name in names]
            ids = [int(each) for each in found]
            # Two classes of ImageNet have the same name.
            if len(set(names)) == len(names) and all(-1 <= each < len(names) for each in ids):
                return ClassLabel(names=tuple(names))
    return None
