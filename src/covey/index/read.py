"""Reading of index files. Every array is verified before it is used."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import CLASS_DTYPE, id_dtype
from covey.errors import FileChangedError, FormatError, StorageError
from covey.filenames import find_moved
from covey.index.format import IndexMetadata, index_names
from covey.untrusted import RegularFile, read_file

if TYPE_CHECKING:
    from covey.results import SkippedRecord

# Bytes of a file that are verified at a time.
_CHUNK_BYTES = 1 << 20

MAX_READ_BYTES = 16 << 20
"""Arrays up to this size are read into memory; larger ones are mapped."""

_MAX_HEADER_BYTES = 10_000


@dataclass(frozen=True, eq=False)
class Index:
    """The index of a split: mapped files, or arrays in memory."""

    metadata: IndexMetadata
    rows: NDArray[Any]
    """One row per record; the fields are those of :func:`covey.index.row_dtype`."""
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
        """Check that arrays that were just read are not those of a truncated file.

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


def read_metadata(directory: Path, stem: str) -> IndexMetadata | None:
    """Return the metadata of an index; None if there is no index.

    Raises:
        FormatError: If the file is not valid.
    """
    path = directory / index_names(stem)["metadata"]
    try:
        return IndexMetadata.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None
    except StorageError as error:
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
    head = _MAX_HEADER_BYTES + 12
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
        file = _open_array(path)
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


def _open_array(path: Path) -> ArrayFile:
    try:
        return ArrayFile(path)
    except FileNotFoundError:
        return ArrayFile(Path(find_moved(str(path))))  # the split was overwritten


class ArrayFile:
    """An open ``.npy`` file. Use it as a context manager.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError, StorageError: If it is not a valid ``.npy`` file, or is truncated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = RegularFile(path)
        try:
            head = self._file.read_at(0, 12)
            # numpy allocates the length that the header states, before it checks it.
            size = head[8:10] if head[6:7] == b"\1" else head[8:12]
            if int.from_bytes(size, "little") > _MAX_HEADER_BYTES:
                raise ValueError(f"the header is longer than {_MAX_HEADER_BYTES} bytes")
            version = np.lib.format.read_magic(self._file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} of the format is not supported")
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            self.shape, _, self.dtype = read(self._file)
            if self.dtype.hasobject:
                raise ValueError("it has Python objects")
            self._begin = self._file.tell()
            self.nbytes = math.prod(self.shape) * self.dtype.itemsize
            self.rest = self._file.stat().st_size - self._begin - self.nbytes
            """Number of bytes after the array."""
            if self.rest < 0:
                raise ValueError(f"the file ends {-self.rest} bytes before the array")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def chunks(self, size: int) -> Iterator[memoryview]:
        """Yield the bytes of the array in chunks of complete items, in one reused buffer."""
        item = self.dtype.itemsize
        buffer = memoryview(bytearray(min(self.nbytes, max(1, size // item) * item)))
        self._file.seek(self._begin)
        left = self.nbytes
        while left:
            count = min(left, len(buffer))
            self._fill(buffer[:count])
            yield buffer[:count]
            left -= count

    def load(self, map_from: int | None) -> NDArray[Any]:
        """Return the array: mapped if it has more than ``map_from`` bytes, else read."""
        if map_from is not None and self.nbytes > map_from:
            end = self._begin + self.nbytes
            mapped = _core.map_file(self._file.fileno(), self._begin, end, False)
            return mapped.view(self.dtype).reshape(self.shape)
        array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self._file.seek(self._begin)
            self._fill(array.reshape(-1).view(np.uint8).data)
        return array

    def _fill(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = self._file.readinto(buffer[done:])
            if not count:
                raise FormatError("the file ends before its rows", path=self._path)
            done += count


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
