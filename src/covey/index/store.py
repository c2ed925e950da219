"""Finding and reading of indexes: beside their shards, or in the cache directory.

A reader never writes to a dataset: an index that it builds is stored in the cache. ``covey index``
and writers store the index beside the shards.

Every array is verified before it is used. An index is used only if it matches the current shards.
One that does not match is rebuilt; but if covey wrote it together with the shards, the shards were
modified, which raises DatasetError.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import CLASS_DTYPE, id_dtype
from covey.errors import (
    DatasetError,
    FeatureError,
    FileChangedError,
    FormatError,
    StorageError,
)
from covey.filenames import find_moved
from covey.index.format import (
    BY_FILE,
    MAX_HEADER_BYTES,
    IndexMetadata,
    Shard,
    index_names,
    open_array,
)
from covey.storage import LocalStorage, Stat, Storage
from covey.storage.local import local_version
from covey.untrusted import RegularFile

if TYPE_CHECKING:
    from covey.index.labels import Label, LabelReader
    from covey.results import SkippedRecord
    from covey.schema import Features
    from covey.storage.cache import DiskCache
    from covey.tfrecord.scan import OnError


# Bytes of a file that are verified at a time.
_CHUNK_BYTES = 1 << 20

MAX_READ_BYTES = 16 << 20
"""Arrays up to this size are read into memory; larger ones are mapped."""


@dataclass(frozen=True, eq=False)
class Index:
    """The index of a split: mapped files, or arrays in memory."""

    metadata: IndexMetadata
    rows: NDArray[Any]
    """One row per record; the dtype is :func:`covey.index.row_dtype`."""
    classes: NDArray[Any] | None
    """One row per class, sorted by label: label, first, records. None without a label."""
    by_class: NDArray[Any] | None
    """Record ids, sorted by class."""
    home: tuple[str, str] | None = None
    """Directory and stem of the files; None for an index in memory."""
    skipped: tuple[SkippedRecord, ...] = ()
    """Corrupt records that were skipped when the index was built with ``on_error="skip"``."""
    mmap: bool = True
    """Whether large arrays are mapped when the index is unpickled."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def first_records(self) -> list[int]:
        """The id of the first record of each shard, and the number of records."""
        return [0, *accumulate(shard.records for shard in self.metadata.shards)]

    def check_read(self) -> None:
        """Check that the file of arrays that were just read is not truncated.

        Raises:
            FileChangedError: If a file was truncated while it was mapped.
        """
        for array in (self.rows, self.classes, self.by_class):
            if array is not None and _core.has_faulted(array):
                raise FileChangedError(
                    "a file of the index was truncated while it was mapped",
                    path=None if self.home is None else self.home[0],
                    remedy="open the dataset again",
                )

    def __reduce__(self) -> tuple[Any, ...]:
        # An index on disk is read again, so that a pickle is small. If the files were evicted from
        # the cache, the arrays are pickled.
        if self.home is not None and self._is_on_disk(*self.home):
            return _unpickle, (self.home, self.metadata, self.mmap)
        return Index, (self.metadata, self.rows, self.classes, self.by_class, None, self.skipped)

    def _is_on_disk(self, directory: str, stem: str) -> bool:
        names = index_names(stem)
        parts = ["rows"] if self.classes is None else ["rows", "classes", "by_class"]
        paths = [find_moved(os.path.join(directory, names[part])) for part in parts]
        return all(map(os.path.exists, paths))


def _unpickle(home: tuple[str, str], metadata: IndexMetadata, mmap: bool) -> Index:
    directory = Path(home[0])
    try:
        return read_index(directory, home[1], metadata, mmap=mmap)
    except (FormatError, OSError) as error:
        raise FileChangedError(
            f"the index was removed or replaced after the dataset was pickled ({error})",
            path=directory,
            remedy="open the dataset again; if the index was evicted from the cache, increase "
            "COVEY_CACHE_BYTES",
        ) from None


def read_metadata(
    directory: str | Path,
    stem: str,
    storage: Storage = LocalStorage(),  # noqa: B008
) -> IndexMetadata | None:
    """Return the metadata of an index; None if there is no index.

    Raises:
        FormatError: If the file is not valid.
        StorageError: If a URL cannot be read.
    """
    path = storage.join(os.fspath(directory), index_names(stem)["metadata"])
    try:
        return IndexMetadata.from_json(storage.read(path), path)
    except FileNotFoundError:
        return None
    except StorageError as error:
        if storage.is_remote:
            raise
        raise FormatError(error.reason, path=error.path) from None


def read_index(
    directory: Path,
    stem: str,
    metadata: IndexMetadata,
    *,
    mmap: bool = True,
    max_read_bytes: int | None = None,
) -> Index:
    """Read the arrays of an index, and verify their checksums.

    Args:
        directory: The directory of the files.
        stem: The common start of their names.
        metadata: The metadata of the index.
        mmap: Map large arrays into memory; False reads them.
        max_read_bytes: Maximum size of arrays that are not mapped (default:
            :data:`MAX_READ_BYTES`).

    Raises:
        FormatError: If a file is corrupt, missing, or belongs to another index.
    """
    names, home = index_names(stem), (str(directory), stem)
    check = _row_check(metadata)
    map_from = (MAX_READ_BYTES if max_read_bytes is None else max_read_bytes) if mmap else None
    path = directory / names["rows"]
    rows = _load(path, metadata.row_dtype, metadata.records, metadata.checksum, map_from, check)
    if metadata.class_checksums is None:
        return Index(metadata, rows, None, None, home, mmap=mmap)
    table_checksum, ids_checksum = metadata.class_checksums
    path = directory / names["classes"]
    classes = _load(path, CLASS_DTYPE, None, table_checksum, map_from)
    _check_classes(classes, metadata, path)
    path = directory / names["by_class"]
    ids = id_dtype(metadata.records)
    by_class = _load(path, ids, metadata.records, ids_checksum, map_from, limit=metadata.records)
    return Index(metadata, rows, classes, by_class, home, mmap=mmap)


def max_array_bytes(metadata: IndexMetadata) -> dict[str, int]:
    """Return the maximum size of each array file of an index, by its key in ``index_names``."""
    dtypes = {"rows": metadata.row_dtype}
    if metadata.label is not None:  # no class is empty
        dtypes |= {"classes": CLASS_DTYPE, "by_class": id_dtype(metadata.records)}
    head = MAX_HEADER_BYTES + 12
    return {name: metadata.records * dtype.itemsize + head for name, dtype in dtypes.items()}


def _row_check(metadata: IndexMetadata) -> _core.RowCheck:
    """Return the check that records follow each other within their shards."""
    mode = _core.ADDRESS_PLAIN
    if metadata.compression is not None:
        mode = _core.ADDRESS_SINGLE_STREAM if metadata.single_stream else _core.ADDRESS_MEMBERS
    return _core.RowCheck(
        metadata.row_dtype,
        mode=mode,
        records=np.array([shard.records for shard in metadata.shards], np.uint64),
        bytes=np.array([shard.bytes for shard in metadata.shards], np.uint64),
    )


def _load(
    path: Path,
    dtype: np.dtype[Any],
    rows: int | None,
    checksum: int,
    map_from: int | None,
    check: _core.RowCheck | None = None,
    limit: int | None = None,
) -> NDArray[Any]:
    """Return a verified array; its values are below ``limit``."""
    try:
        file = open_array(path)
    except FileNotFoundError:
        raise FormatError(
            "the file is missing, but the rest of the index exists", path=path
        ) from None
    except StorageError as error:
        raise FormatError(error.reason, path=error.path) from None
    except Exception as error:  # numpy evaluates the header, which may raise anything
        raise FormatError(f"it is not a valid .npy file: {error}", path=path) from None
    with file:
        if len(file.shape) != 1 or file.dtype != dtype:
            raise FormatError(
                f"it has {file.dtype} of shape {file.shape}; must be rows of {dtype}", path=path
            )
        if rows is not None and file.shape[0] != rows:
            raise FormatError(f"it has {file.shape[0]} rows; must be {rows}", path=path)
        if file.rest:
            raise FormatError(f"{file.rest} bytes follow the array", path=path)
        found = done = 0
        for chunk in file.chunks(_CHUNK_BYTES):
            found = _core.crc32c(chunk, found)
            if limit is not None and (most := int(np.frombuffer(chunk, dtype).max())) >= limit:
                reason = f"it has the record id {most}; must be below {limit}"
                raise FormatError(reason, path=path)
            try:
                if check is not None:
                    check.add(chunk)
            except _core.Fault as fault:
                raise FormatError(
                    f"row {done + fault.row} has a record at byte {fault.offset} that is not "
                    "in its shard, or does not follow the previous record",
                    path=path,
                ) from None
            done += len(chunk) // dtype.itemsize
        if found != checksum or (check is not None and not check.is_done()):
            raise FormatError("the rows do not match the metadata of the index", path=path)
        return file.load(map_from)


def _check_classes(classes: NDArray[Any], metadata: IndexMetadata, path: Path) -> None:
    """Raise FormatError unless the classes partition all records, in the order of their labels."""
    labels, records = classes["label"], classes["records"]
    sums = np.cumsum(records)
    total = int(sums[-1]) if len(sums) else 0
    # Counts near 2**64 must not wrap around to the expected total.
    if (records > metadata.records).any() or (records == 0).any() or total != metadata.records:
        raise FormatError(f"the classes do not have {metadata.records} records in total", path=path)
    if (classes["first"] != sums - records).any() or (labels[1:] <= labels[:-1]).any():
        raise FormatError("the classes are not in order", path=path)
    strings = metadata.label_strings
    if strings is not None and len(labels) and not 0 <= labels[0] <= labels[-1] < len(strings):
        raise FormatError(f"a class id is not one of the {len(strings)} label strings", path=path)


# Upper bound of the size of the metadata of an index, to reserve space in the cache.
_METADATA_BYTES = 1 << 16


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
    """The index of a split, if there is one."""

    kind: Literal["fresh", "stale", "corrupt", "missing"] = "missing"
    reason: str = ""
    """Why the index is stale or corrupt."""
    index: Index | None = None
    """The index, if it is fresh."""
    metadata: IndexMetadata | None = None
    """Metadata of the index, if it can be read."""
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
            return FoundIndex("fresh", metadata=metadata, is_beside=is_beside)
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
        return FoundIndex("fresh", "", index, metadata, is_beside)
    return FoundIndex("missing" if corrupt is None else "corrupt", metadata=corrupt)


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
    from covey.index.write import make_room, write_index

    try:
        directory = _cache_location(files, stem, builder.label)
        arrays = (index.rows, index.classes, index.by_class)
        size = sum(each.nbytes for each in arrays if each is not None)
        make_room(directory, size + _METADATA_BYTES)
        write_index(directory, stem, index, private=True)
        return read_index(directory, stem, index.metadata, mmap=builder.mmap)
    # A full or read-only disk, a name that is not valid UTF-8, or a concurrent writer.
    except (OSError, UnicodeError, FormatError):
        return index


def _locations(files: ShardFiles, stem: str, label: object) -> Iterator[tuple[Path, bool]]:
    """Yield the directories that may have an index, and whether they are those of the shards."""
    if files.storage.is_remote:
        from covey.index.write import fetch

        fetched = fetch(files, stem)
        if fetched is not None:
            yield fetched, True
            if not fetched.exists():  # the copy was corrupt, and deleted
                yield fetch(files, stem) or fetched, True
    elif files.keeps_index:
        yield Path(files.directory), True
    with contextlib.suppress(StorageError):  # the cache may be unusable
        yield _cache_location(files, stem, label), False
        if label is not GUESS:  # the guessed label may be the same
            yield _cache_location(files, stem, GUESS), False


def _cache_location(files: ShardFiles, stem: str, label: object) -> Path:
    """Return the directory of the cache for the index that a reader builds of these shards."""
    key = "" if label is GUESS else repr(label)
    location = files.storage.clean(files.directory)
    return Path(open_cache().entry_path("indexes", location, stem, key))


def open_cache() -> DiskCache:
    """Return the cache on disk, which has indexes that readers built."""
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
