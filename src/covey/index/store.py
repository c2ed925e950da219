"""Finding and storing of indexes: beside their shards, or in the cache directory.

A reader never writes to a dataset: an index that it builds is stored in the cache. ``covey index``
and writers store the index beside the shards.

An index is used only if it matches the current shards. One that does not match is rebuilt; but if
covey wrote it together with the shards, the shards were modified, which raises DatasetError.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from covey import _core
from covey._files import open_private, replacing
from covey.errors import (
    DatasetError,
    FeatureError,
    FormatError,
    StorageError,
    StoragePermissionError,
)
from covey.index.format import BY_FILE, IndexMetadata, Shard, index_names
from covey.index.read import Index, max_array_bytes, read_index, read_metadata
from covey.storage import LocalStorage, Stat, Storage, remove_stale_temporaries
from covey.storage.local import index_temporary, local_version
from covey.untrusted import RegularFile

if TYPE_CHECKING:
    from covey.index.labels import Label, LabelReader
    from covey.schema import Features
    from covey.storage.cache import DiskCache
    from covey.tfrecord.scan import OnError

# Upper bound of the size of the metadata of an index, to reserve space in the cache.
_METADATA_BYTES = 1 << 16

# A longer array is read by concurrent requests.
_MAX_READ_BYTES = 8 << 20


GUESS = object()
"""Value of ``label``: guess the label feature."""


@dataclass(frozen=True)
class ShardFiles:
    """The shards of a split, local or remote."""

    storage: Storage
    directory: str
    """The directory that the names are relative to."""
    names: tuple[str, ...]
    keeps_index: bool = True
    """Whether the directory may contain the index of these shards; it may also be a distant common
    ancestor of them."""

    @cached_property
    def paths(self) -> list[str]:
        """The path of each shard."""
        return [self.storage.join(self.directory, name) for name in self.names]


@dataclass(frozen=True)
class IndexBuilder:
    """Builder of the index of shards.

    Args:
        features: The features of the records; None infers them from all records.
        label: The label feature, a function of an example, or :data:`covey.index.BY_FILE`;
            :data:`GUESS` takes the feature that is most likely the label, if its values are valid.
        declared: The features that the caller declared; the label is decoded with them.
        declared_label: The label that the metadata of the dataset declares; :data:`GUESS` prefers
            it.
        order: How covey ordered the records; empty if covey did not write them.
        on_error: ``"skip"`` skips corrupt records.
        mmap: Map large arrays of an existing index into memory; False reads them.
        threads: The number of threads; by default the number of CPU cores.
        progress: Show a progress bar (default: if stderr is a terminal).
        describe: Function that returns `features` and `declared_label`, called before a scan.
    """

    features: Features | None = None
    label: Label | LabelReader | object = GUESS
    _: KW_ONLY
    declared: Features | None = None
    declared_label: str | None = None
    order: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    mmap: bool = True
    threads: int | None = None
    progress: bool | None = None
    describe: Callable[[], tuple[Features | None, str | None]] | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise DatasetError(option="threads", found=self.threads, allowed="an integer >= 1")

    def like(self, metadata: IndexMetadata) -> IndexBuilder:
        """Return the builder that rebuilds an index with the features and class ids it had."""
        from covey.index.labels import KnownLabels
        from covey.labels import Classes

        label: Label | LabelReader = metadata.label
        if metadata.label not in (None, BY_FILE):
            strings = metadata.label_strings or ()
            label = KnownLabels(Classes(metadata.features, metadata.label, strings))
        return replace(
            self, features=metadata.features, label=label, order=metadata.order, describe=None
        )

    def build(self, files: ShardFiles) -> Index:
        """Return the index of the shards.

        Raises:
            CorruptRecordError, ExampleError: If a record is corrupt.
            DatasetError: If the label is not valid, or a shard is missing.
            FileChangedError: If a shard changes while it is scanned.
        """
        from covey.index.build import build

        return build(self, files)


# Finding.


@dataclass(frozen=True, eq=False)
class FoundIndex:
    """Result of :func:`find_index`."""

    index: Index | None = None
    """The index; None if there is none, or its arrays are corrupt."""
    metadata: IndexMetadata | None = None
    """Metadata that matches the shards; present also if the arrays are corrupt."""
    is_beside: bool = False
    """Whether the index is stored beside the shards, not in the cache."""


def find_index(
    files: ShardFiles,
    stem: str,
    label: object = GUESS,
    *,
    mmap: bool = True,
    metadata_only: bool = False,
) -> FoundIndex:
    """Return the index of shards, from beside them or from the cache. Never builds one.

    Args:
        files: The shards.
        stem: The common start of the names of the index files.
        label: The label that the index must have; GUESS and None match any index.
        mmap: Map large arrays into memory; False reads them.
        metadata_only: Return as soon as matching metadata is found, without the index.

    Raises:
        DatasetError: If covey wrote the index with the shards, and a shard was modified.
    """
    corrupt = None
    for directory, is_beside in _locations(files, stem, label):
        try:
            metadata = read_metadata(directory, stem)
        except FormatError:
            continue  # not an index, or a corrupt one
        if metadata is None or tuple(shard.name for shard in metadata.shards) != files.names:
            continue
        changed = find_changed(files, metadata.shards)
        if changed is not None and metadata.order:
            raise DatasetError(
                changed.reason,
                path=changed.path,
                remedy="run `covey verify` to check the records, or `covey index` to index the "
                "shards as they are",
            )
        if changed is not None or not (label is GUESS or label is None or label == metadata.label):
            continue
        if metadata_only:
            return FoundIndex(metadata=metadata, is_beside=is_beside)
        try:
            index = read_index(directory, stem, metadata, mmap=mmap)
        except (FormatError, FileNotFoundError):
            corrupt = metadata
            if files.storage.is_remote:
                import shutil

                shutil.rmtree(directory, ignore_errors=True)
            continue
        if directory != Path(files.directory):
            with contextlib.suppress(OSError):
                os.utime(directory)  # the time of last use, for LRU eviction
        return FoundIndex(index, metadata, is_beside)
    return FoundIndex(metadata=corrupt)


def find_or_build_index(files: ShardFiles, stem: str, builder: IndexBuilder) -> Index:
    """Return the index of shards: an existing one, or a new one, which is stored in the cache.

    Args:
        files: The shards.
        stem: The common start of the names of the index files.
        builder: The builder of a new index.
    """
    # Only a scan of all records finds the corrupt ones.
    skips = builder.on_error == "skip"
    found = find_index(files, stem, builder.label, mmap=builder.mmap, metadata_only=skips)
    if found.index is not None:
        return found.index
    index = None
    if found.metadata is not None:
        with contextlib.suppress(FeatureError):
            index = builder.like(found.metadata).build(files)
    if index is None:
        index = builder.build(files)
    if skips or callable(builder.label):
        return index
    try:
        directory = _cache_location(files, stem, builder.label)
        arrays = (index.rows, index.classes, index.by_class)
        size = sum(each.nbytes for each in arrays if each is not None)
        _make_room(directory, size + _METADATA_BYTES)
        write_index(directory, stem, index, private=True)
        return read_index(directory, stem, index.metadata, mmap=builder.mmap)
    # A full or read-only disk, a name that is not valid UTF-8, or a concurrent writer.
    except (OSError, UnicodeError, FormatError):
        return index


def _locations(files: ShardFiles, stem: str, label: object) -> Iterator[tuple[Path, bool]]:
    """Yield the directories that may have an index, and whether they are those of the shards."""
    fetched = _fetch(files, stem) if files.storage.is_remote else None
    if fetched is not None:
        yield fetched, True
        if not fetched.exists():  # the copy was corrupt, and deleted
            yield _fetch(files, stem) or fetched, True
    elif not files.storage.is_remote and files.keeps_index:
        yield Path(files.directory), True
    with contextlib.suppress(StorageError):  # the cache may be unusable
        yield _cache_location(files, stem, label), False
        if label is not GUESS:  # the guessed label may be the same
            yield _cache_location(files, stem, GUESS), False


def _cache_location(files: ShardFiles, stem: str, label: object) -> Path:
    """Return the directory of the cache for the index that a reader builds of these shards."""
    key = "" if label is GUESS else repr(label)
    location = files.storage.clean(files.directory)
    return Path(_cache().entry_path("indexes", location, stem, key))


def _cache() -> DiskCache:
    from covey.storage.cache import DiskCache, cache_limit

    return DiskCache(cache_limit())


# Comparing shards with their index.


class ChangedShard(NamedTuple):
    """A shard that does not match its index."""

    path: str
    reason: str


def find_changed(files: ShardFiles, shards: tuple[Shard, ...]) -> ChangedShard | None:
    """Return the first shard that does not match its index.

    Of remote shards only the size and version are compared; the fingerprint is compared when they
    are read.
    """
    if files.storage.is_remote:
        stats = files.storage.stat(files.paths)
        reasons = map(changed_state, shards, stats)
    else:
        states = _core.file_states([os.fsencode(path) for path in files.paths])
        reasons = map(_changed_file, shards, files.paths, states)
    for path, reason in zip(files.paths, reasons, strict=True):
        if reason is not None:
            return ChangedShard(path, reason)
    return None


def _changed_file(shard: Shard, path: str, state: tuple[int, int, int, int] | None) -> str | None:
    """Return how a local shard differs from its index; None if it does not."""
    if state is None:
        if LocalStorage().stat([path]) != [None]:
            RegularFile(path).close()  # raises the reason why it cannot be read
        return changed_state(shard, None)
    size, modified, inode, crc = state
    reason = changed_state(shard, Stat(size, local_version(modified, inode)))
    if reason is None and crc != shard.fingerprint:
        return "the shard is not the one that was indexed"
    return reason


def changed_state(shard: Shard, stat: Stat | None) -> str | None:
    """Return how the state of a shard differs from its index; None if it does not.

    Args:
        shard: The shard as it was indexed.
        stat: Its current state; None if it does not exist.
    """
    if stat is None:
        return "the shard is missing"
    if stat.size != shard.bytes:
        how = "was truncated" if stat.size < shard.bytes else "has grown"
        return f"the shard {how} from {shard.bytes} to {stat.size} bytes"
    if shard.version and stat.version and shard.version != stat.version:
        return "the shard was modified after it was indexed"
    return None


# Storing.


def write_index(directory: Path, stem: str, index: Index, *, private: bool = False) -> None:
    """Write the files of an index. A concurrent reader finds the old index or an incomplete one.

    Args:
        directory: The directory; created if it does not exist.
        stem: The common start of the names of the files.
        index: The index.
        private: Whether only the user may read the files.
    """
    directory.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    remove_stale_temporaries(directory)
    names = index_names(stem)
    arrays = {"rows": index.rows, "classes": index.classes, "by_class": index.by_class}
    with index_temporary(directory) as temporary, contextlib.ExitStack() as stack:
        # The stack renames in reverse order, after all files are written: the metadata, which has
        # the checksums of the arrays, last.
        with _create(stack, temporary, names["metadata"], private=private) as file:
            file.write(index.metadata.to_json().encode())
        for part, array in arrays.items():
            if array is not None:
                with _create(stack, temporary, names[part], private=private) as file:
                    np.save(file, array)


def _create(stack: contextlib.ExitStack, temporary: Path, name: str, *, private: bool) -> BinaryIO:
    """Open a temporary file that replaces a file of an index when the stack is closed.

    The content of a private file, which is part of the cache, is not synced to disk.
    """
    path = temporary.parent / name
    new = replacing(path, temporary=f"{temporary.name}/{name}", durable=not private)
    return open(stack.enter_context(new), "xb", opener=open_private if private else None)


def _make_room(directory: Path, size: int) -> None:
    """Evict other entries of the cache until ``size`` more bytes fit into an index directory."""
    try:
        present = sum(each.lstat().st_size for each in directory.iterdir())
    except FileNotFoundError:
        present = 0
    _cache().make_room(size, {os.fspath(directory): present})


def _fetch(files: ShardFiles, stem: str) -> Path | None:
    """Copy the index of remote shards to the cache, and return the directory of the copy.

    Returns:
        The directory; None if there is no valid index beside the shards.

    Raises:
        StorageError: If it cannot be read, or the cache cannot be written.
    """
    import hashlib

    storage, names = files.storage, index_names(stem)
    path = storage.join(files.directory, names["metadata"])
    try:
        content = storage.read(path)
        limits = max_array_bytes(IndexMetadata.from_json(content, path))
    # Some servers deny access to files that do not exist.
    except (FileNotFoundError, StoragePermissionError, FormatError):
        return None
    cache = _cache()
    directory = Path(cache.entry_path("indexes", hashlib.sha256(content).hexdigest()))
    with cache.wrap_os_errors():
        if (directory / names["metadata"]).exists():
            return directory
        directory.mkdir(mode=0o700, exist_ok=True)
        for part, limit in limits.items():
            try:
                stream = _open_array(storage, storage.join(files.directory, names[part]), limit)
            except FileNotFoundError:  # the index is incomplete
                continue
            with stream:
                _save(directory / names[part], stream, limit)
        # The metadata last: it marks the copy as complete.
        _save(directory / names["metadata"], io.BytesIO(content), len(content))
        with contextlib.suppress(StorageError):  # an index larger than the cache is used once
            _make_room(directory, 0)
    return directory


def _open_array(storage: Storage, path: str, limit: int) -> BinaryIO:
    """Open a file of an index; a short one is read by one request."""
    if limit <= _MAX_READ_BYTES:
        try:
            return io.BytesIO(storage.read(path, limit))
        except FileNotFoundError:
            raise
        except StorageError:  # it is longer than its records
            pass
    return storage.open_stream(path)


def _save(path: Path, stream: BinaryIO, limit: int) -> None:
    """Write at most ``limit`` bytes of a stream to a private file."""
    with (
        index_temporary(path.parent) as temporary,
        contextlib.ExitStack() as stack,
        _create(stack, temporary, path.name, private=True) as file,
    ):
        while limit and (chunk := stream.read(min(limit, 1 << 20))):
            file.write(chunk)
            limit -= len(chunk)
