"""Where indexes are kept: beside their shards, or in the cache directory.

A reader never writes to a dataset: an index that it builds goes to the cache. ``covey index`` and
writers put one beside the shards.

An index that was found is used only if it is of the shards that are there now. One that is not is
rebuilt; but if covey wrote it together with the shards, then these were changed, and that is an
error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from covey.errors import (
    DatasetError,
    FeatureError,
    FormatError,
    StorageError,
    StoragePermissionError,
)
from covey.index.build import GUESS, Indexing, ShardFiles, shard_fingerprint
from covey.index.format import IndexMetadata, IndexWriter, Shard, index_names
from covey.index.read import Index, array_limits, read_index, read_metadata
from covey.storage import Stat, Storage, cache_limit, remove_stale_temporaries
from covey.storage.cache import DiskCache, cache_subdirectory
from covey.storage.local import INDEX_TEMPORARY, new_temporary, remove_temporary

# More than the metadata of an index has, which is not known before it is written.
_METADATA_BYTES = 1 << 16


def find_or_build_index(
    files: ShardFiles, stem: str, indexing: Indexing, *, keep: bool = True
) -> tuple[Index, Path | None]:
    """The index of shards: one that was kept, or a new one, which goes to the cache.

    Args:
        files: The shards.
        stem: How its files are called.
        indexing: How to make it.
        keep: Whether to keep a new one.

    Returns:
        The index, and the directory that it is in, if it was kept.
    """
    index, directory, damaged = find_index(files, stem, indexing)
    if index is not None:
        return index, directory
    if damaged is not None:
        with contextlib.suppress(FeatureError):
            index = indexing.like(damaged).build(files)
    if index is None:
        index = indexing.build(files)
    if not keep or callable(indexing.label) or indexing.on_error == "skip":
        return index, None
    try:
        directory = cached_location(files, stem, indexing)
        arrays = (index.rows, index.classes, index.by_class)
        size = sum(each.nbytes for each in arrays if each is not None)
        _make_room(directory, size + _METADATA_BYTES)
        write_index(directory, stem, index, private=True)
        return read_index(directory, stem, index.metadata, mmap=indexing.mmap), directory
    # A disk that is read-only or full, a name that is not UTF-8, or another process that writes.
    except (OSError, UnicodeError, FormatError):
        return index, None


def find_index(
    files: ShardFiles, stem: str, indexing: Indexing
) -> tuple[Index | None, Path | None, IndexMetadata | None]:
    """Find the index of shards, beside them or in the cache; nothing is built.

    Args:
        files: The shards.
        stem: The common part of the names of its files.
        indexing: The label that the index must have, and how it is read.

    Returns:
        The index and its directory; else the metadata of a corrupt index, if there is one.

    Raises:
        DatasetError: If covey wrote the index with the shards, and a shard was changed.
    """
    corrupt = None
    for directory in _places_to_read(files, stem, indexing):
        about = _look(directory, files, stem)
        if about is None or not _is_wanted(about, indexing):
            continue
        corrupt = about
        if indexing.on_error == "skip":  # corrupt records are found only by reading all of them
            break
        try:
            index = read_index(directory, stem, about, mmap=indexing.mmap)
        except (FormatError, FileNotFoundError):
            if files.storage.is_remote:
                shutil.rmtree(directory, ignore_errors=True)
            continue
        if directory != Path(files.directory):
            _touch(directory)
        return index, directory, about
    return None, None, corrupt


def _look(directory: Path, files: ShardFiles, stem: str) -> IndexMetadata | None:
    """The description of an index that was kept, if it is of these shards as they are now.

    Raises:
        DatasetError: If covey wrote them together, and a shard is another now.
    """
    try:
        about = read_metadata(directory, stem)
    except FormatError:
        return None  # it is not an index, or a corrupt one; the shards are there
    if about is None or tuple(shard.name for shard in about.shards) != files.names:
        return None
    changed = find_changed(files, about.shards)
    if changed is not None and about.order:
        raise DatasetError(
            f"{changed}; run `covey verify` to see what is left, or `covey index` to index the "
            "shards as they are now"
        )
    return None if changed is not None else about


def _is_wanted(about: IndexMetadata, indexing: Indexing) -> bool:
    """Whether an index has the label that was asked for."""
    return indexing.label is GUESS or indexing.label is None or indexing.label == about.label


def _places_to_read(files: ShardFiles, stem: str, indexing: Indexing) -> Iterator[Path]:
    """The directories in which an index may be: first that of the shards, then the cache."""
    fetched = _fetch(files, stem) if files.storage.is_remote else None
    if fetched is not None:
        yield fetched
        if not fetched.exists():  # the copy was corrupt
            yield _fetch(files, stem) or fetched
    elif not files.storage.is_remote and files.keeps_index:
        yield Path(files.directory)
    with contextlib.suppress(StorageError):  # there may be no cache
        yield cached_location(files, stem, indexing)
        if indexing.label is not GUESS:  # it may be the one that was guessed
            yield cached_location(files, stem, replace(indexing, label=GUESS))


def _touch(directory: Path) -> None:
    """Note that an index of the cache was used."""
    with contextlib.suppress(OSError):
        os.utime(directory)


def _make_room(directory: Path, size: int) -> None:
    """Make room for more bytes of an index in the cache; what is there of it stays."""
    try:
        there = sum(each.lstat().st_size for each in directory.iterdir())
    except FileNotFoundError:
        there = 0
    DiskCache(cache_limit()).make_room(size, {os.fspath(directory): there})


def cached_location(files: ShardFiles, stem: str, indexing: Indexing) -> Path:
    """Return the directory of the cache for the index that a reader builds of these shards."""
    label = "" if indexing.label is GUESS else repr(indexing.label)
    text = "\0".join((files.storage.clean(files.directory), stem, label))
    name = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return cache_subdirectory("indexes") / name


def find_changed(files: ShardFiles, shards: tuple[Shard, ...]) -> str | None:
    """What has happened to the first shard that is not as it was, if any.

    Of remote shards only what a listing tells is looked at; the rest is when they are first read.
    """
    storage = files.storage
    for path, shard, stat in zip(files.paths, shards, storage.stat(files.paths), strict=True):
        changed = changed_state(path, shard, stat)
        if changed is None and not storage.is_remote:
            changed = changed_content(storage, path, shard)
        if changed is not None:
            return changed
    return None


def changed_state(path: str, shard: Shard, stat: Stat | None) -> str | None:
    """What has happened to a shard of which its storage says so now; None if it is not there."""
    if stat is None:
        return f"{path}: the shard is missing"
    if stat.size != shard.bytes:
        how = "was cut" if stat.size < shard.bytes else "has grown"
        return f"{path}: the shard {how} from {shard.bytes} to {stat.size} bytes"
    if shard.version and stat.version and shard.version != stat.version:
        return f"{path}: the shard was changed after it was indexed"
    return None


def changed_content(storage: Storage, path: str, shard: Shard) -> str | None:
    """Whether another file has taken the place of a shard."""
    if shard_fingerprint(storage, path, shard.bytes) == shard.fingerprint:
        return None
    return f"{path}: the shard is not the one that was indexed, it was replaced"


def write_index(directory: Path, stem: str, index: Index, *, private: bool = False) -> None:
    """Write an index. A concurrent reader finds the old one, or one that is not complete.

    Args:
        directory: The directory, which is created if it does not exist.
        stem: The common part of the names of its files.
        index: The index.
        private: Whether only the user may read it.
    """
    directory.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    names = index_names(stem)
    about = index.metadata
    remove_stale_temporaries(directory)
    staging = Path(new_temporary(directory))
    try:
        writer = IndexWriter(
            staging / names["rows"],
            len(index.rows),
            compressed=about.compression is not None,
            labelled=about.label is not None,
        )
        try:
            writer.add_rows(index.rows)
            writer.close()
        finally:
            writer.abandon()
        if index.classes is not None and index.by_class is not None:
            np.save(staging / names["classes"], index.classes)
            np.save(staging / names["by_class"], index.by_class)
        (staging / names["metadata"]).write_text(about.to_json(), encoding="utf-8")
        # The description last: it has the checksums of the others.
        for name in ("rows", "classes", "by_class", "metadata"):
            if (staging / names[name]).exists():
                if private:
                    os.chmod(staging / names[name], 0o600)
                os.replace(staging / names[name], directory / names[name])
    finally:
        remove_temporary(os.fspath(staging))


def _fetch(files: ShardFiles, stem: str) -> Path | None:
    """Copy the index of remote shards to the cache, and return the directory of the copy.

    Returns:
        The directory; None if there is no index beside the shards, or not a valid one.

    Raises:
        StorageError: If it cannot be read, or the cache cannot be written.
    """
    storage, names = files.storage, index_names(stem)
    path = storage.join(files.directory, names["metadata"])
    try:
        content = storage.read(path)
        limits = array_limits(IndexMetadata.from_json(content, path))
    # Some servers refuse access to a file that does not exist.
    except (FileNotFoundError, StoragePermissionError, FormatError):
        return None
    name = hashlib.blake2b(content, digest_size=16).hexdigest()
    directory = cache_subdirectory("indexes") / name
    cache = DiskCache(cache_limit())
    with cache.wrap_os_errors():
        if (directory / names["metadata"]).exists():
            return directory
        directory.mkdir(mode=0o700, exist_ok=True)
        for each, limit in limits.items():
            try:
                stream = storage.open_stream(storage.join(files.directory, names[each]))
            except FileNotFoundError:  # the index is not complete
                continue
            with stream:
                _save(directory / names[each], stream, limit)
        _save(
            directory / names["metadata"], io.BytesIO(content), len(content)
        )  # last: it is complete
        with contextlib.suppress(StorageError):  # an index that exceeds the limit is used once
            _make_room(directory, 0)
    return directory


def _save(path: Path, stream: BinaryIO, limit: int) -> None:
    """Write at most so many bytes of a stream to a file, which is replaced as a whole."""
    descriptor, beside = tempfile.mkstemp(prefix=INDEX_TEMPORARY, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            while limit and (piece := stream.read(min(limit, 1 << 20))):
                file.write(piece)
                limit -= len(piece)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
