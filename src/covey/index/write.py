"""Writing of index files: rows while shards are written, whole indexes, copies of remote ones."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._files import open_private, replacing
from covey.classes import class_table, id_dtype, sort_by_class
from covey.errors import FormatError, StorageError, StoragePermissionError
from covey.index.format import IndexMetadata, index_names, row_dtype
from covey.index.store import Index, ShardFiles, max_array_bytes, open_cache
from covey.storage import Storage, remove_stale_temporaries
from covey.storage.local import index_temporary
from covey.tfrecord.block import FRAME_BYTES

_SCAN_BYTES = 16 << 20

# A longer array is read by concurrent requests.
_MAX_READ_BYTES = 8 << 20


def make_index_rows(
    shard: int, locations: NDArray[Any], labels: NDArray[np.int64] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return the rows of records of a shard.

    Args:
        shard: Number of the shard.
        locations: Locations of the records.
        labels: Their class ids; None if they are unlabelled.
        dtype: Dtype of the rows.
    """
    if len(locations) and locations["length"].max() >= 2**32:
        raise FormatError(f"shard {shard}: a record exceeds 4 GiB, the maximum of an index")
    rows = np.zeros(len(locations), dtype)
    rows["shard"] = shard
    rows["length"] = locations["length"]
    rows["offset"] = locations["offset"]
    if "inner_offset" in (dtype.names or ()):
        rows["inner_offset"] = locations["inner_offset"]
    if "label" in (dtype.names or ()):
        rows["label"] = labels
    return rows


class IndexWriter:
    """Writer of the rows of an index, used while the shards are written.

    Args:
        path: The file of the rows.
        records: The total number of records.
        compressed: Whether the shards are compressed.
        labelled: Whether the records have classes.
        single_stream: Whether records are addressed as :attr:`IndexMetadata.single_stream` says.
    """

    def __init__(
        self,
        path: Path,
        records: int,
        *,
        compressed: bool,
        labelled: bool,
        single_stream: bool = False,
    ) -> None:
        self.path = path
        self.single_stream = single_stream
        self._dtype = row_dtype(compressed=compressed, labelled=labelled)
        self._file = open(path, "w+b")  # noqa: SIM115
        _write_header(self._file, self._dtype, records)
        self._start = self._file.tell()
        self._is_ordered = True
        self._records = records
        self._written = 0
        self.checksum = 0
        """CRC-32C of the rows written so far."""

    def add(self, shard: int, locations: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """Write the rows of the records of the next shard."""
        self.add_rows(self._addressed(make_index_rows(shard, locations, labels, self._dtype)))

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Write existing rows, such as those of an index that is extended."""
        if rows.dtype != self._dtype:
            given, rows = rows, np.zeros(len(rows), self._dtype)
            for name in given.dtype.names or ():
                rows[name] = given[name]
        rows = np.ascontiguousarray(rows)
        self._file.write(rows.data)
        self._written += len(rows)
        self.checksum = _core.crc32c(rows, self.checksum)

    def write_at(self, first: int, rows: NDArray[Any]) -> None:
        """Write the rows of all records of a shard, which may be complete before others.

        Args:
            first: Position of the first row.
            rows: Rows of the dtype of the index.
        """
        if rows.dtype != self._dtype or first + len(rows) > self._records:
            raise AssertionError(f"{len(rows)} rows of {rows.dtype} at {first}")
        self._is_ordered = False
        self._file.seek(self._start + first * self._dtype.itemsize)
        self._file.write(np.ascontiguousarray(self._addressed(rows)).data)
        self._written += len(rows)

    def _addressed(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of a whole shard that covey wrote, addressed as the index does."""
        if self.single_stream:
            rows = rows.copy()
            sizes = rows["length"].astype(np.uint64) + np.uint64(FRAME_BYTES)
            rows["offset"], rows["inner_offset"] = 0, np.cumsum(sizes) - sizes
        return rows

    def close(self) -> None:
        """Flush and close the file."""
        if not self._is_ordered:
            self.checksum = 0
            self._file.seek(self._start)
            while data := self._file.read(_SCAN_BYTES):
                self.checksum = _core.crc32c(data, self.checksum)
        self._file.close()
        if self._written != self._records:
            raise AssertionError(f"{self._written} rows were written of {self._records}")

    def abandon(self) -> None:
        """Close the file without checking that it is complete."""
        self._file.close()


def write_classes(
    rows: Path, by_class: Path, classes: Path
) -> tuple[NDArray[Any], tuple[int, int]]:
    """Write the class table and the record ids sorted by class, in bounded memory.

    Returns:
        The class table; and the checksums of the class table and of the sorted record ids.
    """
    index = np.load(rows, mmap_mode="r")
    table = class_table(index["label"])
    np.save(classes, table)
    ordered = _map_array(by_class, id_dtype(len(index)), len(index))
    sort_by_class(index["label"], table, ordered)
    ordered.flush()
    return table, (_core.crc32c(table), _core.crc32c(ordered))


def _write_header(file: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)


def _map_array(path: Path, dtype: np.dtype[Any], rows: int) -> Any:
    """Return a new, writable, mapped array."""
    with open(path, "wb") as file:
        _write_header(file, dtype, rows)
        # Allocate now: a full disk raises OSError here, but SIGBUS in a mapped write.
        if rows and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), file.tell(), rows * dtype.itemsize)
        else:
            file.write(bytes(rows * dtype.itemsize))
    return np.load(path, mmap_mode="r+")


# Whole indexes.


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


def make_room(directory: Path, size: int) -> None:
    """Evict other entries of the cache until ``size`` more bytes fit into an index directory."""
    try:
        present = sum(each.lstat().st_size for each in directory.iterdir())
    except FileNotFoundError:
        present = 0
    open_cache().make_room(size, {os.fspath(directory): present})


def fetch(files: ShardFiles, stem: str) -> Path | None:
    """Copy the index of remote shards to the cache, and return the directory of the copy.

    Returns:
        The directory; None if there is no valid index beside the shards.

    Raises:
        StorageError: If it cannot be read, or the cache cannot be written.
    """
    storage, names = files.storage, index_names(stem)
    path = storage.join(files.directory, names["metadata"])
    try:
        content = storage.read(path)
        limits = max_array_bytes(IndexMetadata.from_json(content, path))
    # Some servers deny access to files that do not exist.
    except (FileNotFoundError, StoragePermissionError, FormatError):
        return None
    cache = open_cache()
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
            make_room(directory, 0)
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
