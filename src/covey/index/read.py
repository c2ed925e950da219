"""Reading an index that lies on disk, of which nothing is believed before it was checked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import CLASS_DTYPE, number_dtype
from covey.errors import FileChangedError, FormatError, StorageError
from covey.index.format import IndexMetadata, index_names, row_dtype
from covey.results import SkippedRecord
from covey.tfrecord.streams import RegularFile
from covey.untrusted import read_file

# How much of a file is looked at together: no more of it than this takes memory.
_PIECE_BYTES = 1 << 20

# Arrays up to this size are held in memory, others stay mapped.
_HELD_BYTES = 16 << 20

_MAX_HEADER_BYTES = 10_000


@dataclass(frozen=True, eq=False)
class Index:
    """The index of a split: mapped files, or arrays in memory."""

    metadata: IndexMetadata
    rows: NDArray[Any]
    """One per record; fields as :func:`covey.index.row_dtype` has them."""
    classes: NDArray[Any] | None
    """One row per class, sorted by label: label, first, records. None without a label."""
    by_class: NDArray[Any] | None
    """The numbers of the records, class after class."""
    home: tuple[str, str] | None = None
    """The directory and the stem of the files that it is mapped from."""
    skipped: tuple[SkippedRecord, ...] = ()
    """What was left out of it because it is corrupt, if that was asked for."""
    mmap: bool = True
    """Whether large arrays are mapped when it is read again."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def first_records(self) -> list[int]:
        """The number of the first record of each shard, and how many there are."""
        return [0, *accumulate(shard.records for shard in self.metadata.shards)]

    def check_read(self) -> None:
        """Make sure that what was read from it was still in its files. To be called afterwards.

        Raises:
            FileChangedError: If a file was truncated while it was mapped.
        """
        for array in (self.rows, self.classes, self.by_class):
            if array is not None and _core.has_faulted(array):
                raise self.truncated()

    def truncated(self) -> FileChangedError:
        """The error of an index whose file was truncated while it was mapped."""
        where = "" if self.home is None else f"{self.home[0]}: "
        return FileChangedError(
            f"{where}a file of the index was truncated while it was mapped; open the dataset again",
            path=None if self.home is None else self.home[0],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # An index on disk is read again, so that a pickle is small. The files of an index in the
        # cache may have been removed to make room for others: then its arrays are pickled.
        if self.home is not None and self._is_on_disk(*self.home):
            return _read_again, (self.home, self.metadata, self.mmap)
        return Index, (self.metadata, self.rows, self.classes, self.by_class, None, self.skipped)

    def _is_on_disk(self, directory: str, stem: str) -> bool:
        names = index_names(stem)
        needed = ["rows"] if self.classes is None else ["rows", "classes", "by_class"]
        return all(os.path.exists(os.path.join(directory, names[each])) for each in needed)


def _read_again(home: tuple[str, str], about: IndexMetadata, mmap: bool) -> Index:
    directory = Path(home[0])
    try:
        return read_index(directory, home[1], about, mmap=mmap)
    except (FormatError, OSError) as error:
        raise FileChangedError(
            f"the index was removed or replaced after the dataset was pickled ({error}); "
            "open the dataset again; if the index was evicted from the cache, set "
            "COVEY_CACHE_BYTES to more",
            path=str(directory),
        ) from None


def read_metadata(directory: Path, stem: str) -> IndexMetadata | None:
    """What an index says of itself, if there is one."""
    path = directory / index_names(stem)["metadata"]
    try:
        return IndexMetadata.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None
    except StorageError as error:
        raise FormatError(str(error)) from None


def read_index(directory: Path, stem: str, about: IndexMetadata, *, mmap: bool = True) -> Index:
    """The index of a split; large arrays are mapped into memory, unless ``mmap`` is false.

    All of it is compared with its checksums, without being held. Where records lie is compared with
    the shards when they are read.

    Raises:
        FormatError: If a file is corrupt, or none of this index.
    """
    names, home = index_names(stem), (str(directory), stem)
    dtype = row_dtype(compressed=about.compression is not None, labelled=about.label is not None)
    check = _row_check(about, dtype)
    path = directory / names["rows"]
    rows = _load(path, dtype, about.records, about.checksum, check, mmap=mmap)
    if about.class_checksums is None:
        return Index(about, rows, None, None, home, mmap=mmap)
    table, ordered = about.class_checksums
    classes = _load(directory / names["classes"], CLASS_DTYPE, None, table, mmap=mmap)
    _check_classes(classes, about, str(directory / names["classes"]))
    numbers = number_dtype(about.records)
    path = directory / names["by_class"]
    by_class = _load(path, numbers, about.records, ordered, mmap=mmap)
    return Index(about, rows, classes, by_class, home, mmap=mmap)


def array_limits(about: IndexMetadata) -> dict[str, int]:
    """Return the most bytes that each array of an index can have, by its name."""
    dtype = row_dtype(compressed=about.compression is not None, labelled=about.label is not None)
    dtypes = {"rows": dtype}
    if about.label is not None:  # no class is empty
        dtypes |= {"classes": CLASS_DTYPE, "by_class": number_dtype(about.records)}
    head = _MAX_HEADER_BYTES + 12
    return {name: about.records * each.itemsize + head for name, each in dtypes.items()}


def _row_check(about: IndexMetadata, dtype: np.dtype[Any]) -> _core.RowCheck:
    """Makes sure that records follow each other, within their shards."""
    mode = _core.ADDRESS_PLAIN
    if about.compression is not None:
        mode = _core.ADDRESS_SINGLE_STREAM if about.single_stream else _core.ADDRESS_MEMBERS
    return _core.RowCheck(
        dtype,
        mode=mode,
        records=np.array([shard.records for shard in about.shards], np.uint64),
        bytes=np.array([shard.bytes for shard in about.shards], np.uint64),
    )


def _load(
    path: Path,
    dtype: np.dtype[Any],
    rows: int | None,
    checksum: int,
    check: _core.RowCheck | None = None,
    *,
    mmap: bool,
) -> NDArray[Any]:
    """An array on disk, if it is what it should be."""
    try:
        file = ArrayFile(path)
    except FileNotFoundError:
        raise FormatError("it is missing, but the rest of the index is there", path=path) from None
    except StorageError as error:
        raise FormatError(str(error)) from None
    except Exception as error:  # a corrupt header is Python that cannot be parsed, in any way
        raise FormatError(f"it is not an array that numpy can read: {error}", path=path) from None
    with file:
        if len(file.shape) != 1 or file.dtype != dtype:
            raise FormatError(
                f"it has {file.dtype} {file.shape}, expected rows of {dtype}", path=path
            )
        if rows is not None and file.shape[0] != rows:
            raise FormatError(f"it has {file.shape[0]} rows, expected {rows}", path=path)
        found = 0
        done = 0
        for piece in file.pieces(_PIECE_BYTES):
            found = _core.crc32c(piece, found)
            try:
                if check is not None:
                    check.add(piece)
            except _core.Fault as fault:
                raise FormatError(
                    f"row {done + fault.row} is of a record at byte {fault.offset}, "
                    "which cannot be: it is another shard's, lies outside of it, or does "
                    "not follow the last",
                    path=path,
                ) from None
            done += len(piece) // dtype.itemsize
        if found != checksum or (check is not None and not check.is_done()):
            raise FormatError("its rows are not those that were written with the index", path=path)
        return file.load(mmap=mmap)


class ArrayFile:
    """A file that numpy wrote, opened once. To be closed.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError, StorageError: If it is not a file of an array, or shorter than its array.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = RegularFile(path)
        try:
            head = self._file.read_at(0, 12)
            # numpy reads as many bytes as the header says it has, before it looks at the number.
            size = head[8:10] if head[6:7] == b"\1" else head[8:12]
            if int.from_bytes(size, "little") > _MAX_HEADER_BYTES:
                raise ValueError(f"its header is longer than {_MAX_HEADER_BYTES} bytes")
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
            """How many bytes follow the array."""
            if self.rest < 0:
                raise ValueError(f"it ends {-self.rest} bytes before its array does")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The bytes of the array in whole items, read and not mapped, so that they are not held."""
        item = self.dtype.itemsize
        buffer = memoryview(bytearray(min(self.nbytes, max(1, size // item) * item)))
        self._file.seek(self._begin)
        left = self.nbytes
        while left:
            count = min(left, len(buffer))
            self._fill(buffer[:count])
            yield buffer[:count]
            left -= count

    def load(self, *, mmap: bool) -> NDArray[Any]:
        """The array: in memory if it is small or ``mmap`` is false, else mapped."""
        if mmap and self.nbytes > _HELD_BYTES:
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
                raise FormatError("it ends before its rows do", path=self._path)
            done += count


def _check_classes(classes: NDArray[Any], about: IndexMetadata, name: str) -> None:
    """Make sure that the classes cut all records into stretches."""
    labels, records = classes["label"], classes["records"]
    sums = np.cumsum(records)
    total = int(sums[-1]) if len(sums) else 0
    # Counts near 2**64 must not wrap around to what is expected.
    if (records > about.records).any() or (records == 0).any() or total != about.records:
        raise FormatError(f"its classes do not have {about.records} records together", path=name)
    if (classes["first"] != sums - records).any() or (labels[1:] <= labels[:-1]).any():
        raise FormatError("its classes are not in order", path=name)
    texts = about.label_strings
    if texts is not None and len(labels) and not 0 <= labels[0] <= labels[-1] < len(texts):
        raise FormatError(f"it has classes beside the {len(texts)} that have a string", path=name)
