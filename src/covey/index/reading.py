"""Reading an index that lies on disk, of which nothing is believed before it was checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError, StorageError
from covey.index.about import About
from covey.index.rows import CLASS_DTYPE, index_names, number_dtype, row_dtype
from covey.records import Skipped
from covey.untrusted import open_file, read_file

# How much of a file is looked at together: no more of it than this takes memory.
_PIECE_BYTES = 1 << 20

# Arrays up to this size are held in memory, others stay mapped.
_HELD_BYTES = 16 << 20

_MAX_HEADER_BYTES = 10_000


@dataclass(frozen=True, eq=False)
class Index:
    """The index of a split: mapped files, or arrays in memory."""

    about: About
    rows: NDArray[Any]
    """One per record; fields as :func:`covey.index.row_dtype` has them."""
    classes: NDArray[Any] | None
    """One row per class, sorted by label: label, first, records. None without a label."""
    by_class: NDArray[Any] | None
    """The numbers of the records, class after class."""
    home: tuple[str, str] | None = None
    """The folder and the stem of the files that it is mapped from."""
    skipped: tuple[Skipped, ...] = ()
    """What was left out of it because it is damaged, if that was asked for."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def first_records(self) -> list[int]:
        """The number of the first record of each shard, and how many there are."""
        return [0, *accumulate(shard.records for shard in self.about.shards)]

    def __reduce__(self) -> tuple[Any, ...]:
        # What is on disk is mapped again by whoever gets this, on the same machine.
        if self.home is not None:
            return _read_again, (self.home, self.about)
        return Index, (self.about, self.rows, self.classes, self.by_class, None, self.skipped)


def _read_again(home: tuple[str, str], about: About) -> Index:
    return read_index(Path(home[0]), home[1], about)


def read_about(folder: Path, stem: str) -> About | None:
    """What an index says of itself, if there is one."""
    path = folder / index_names(stem)["about"]
    try:
        return About.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None
    except StorageError as error:
        raise FormatError(str(error)) from None


def read_index(folder: Path, stem: str, about: About) -> Index:
    """The index of a split, mapped into memory.

    All of it is compared with its checksums, without being held. Where records lie is compared with
    the shards when they are read.

    Raises:
        FormatError: If a file is damaged, or none of this index.
    """
    names, home = index_names(stem), (str(folder), stem)
    dtype = row_dtype(compressed=about.compression is not None, labelled=about.label is not None)
    check = _row_check(about, dtype)
    rows = _map(folder / names["rows"], dtype, about.records, about.checksum, check)
    if about.class_checksums is None:
        return Index(about, rows, None, None, home)
    table, ordered = about.class_checksums
    classes = _map(folder / names["classes"], CLASS_DTYPE, None, table)
    _check_classes(classes, about, str(folder / names["classes"]))
    numbers = number_dtype(about.records)
    by_class = _map(folder / names["by_class"], numbers, about.records, ordered)
    return Index(about, rows, classes, by_class, home)


def _row_check(about: About, dtype: np.dtype[Any]) -> _core.RowCheck:
    """Makes sure that records follow each other, within their shards."""
    fields = dtype.fields
    assert fields is not None
    at = {name: int(field[1]) for name, field in fields.items()}
    reach = _core.REACH_PLAIN
    if about.compression is not None:
        reach = _core.REACH_STREAMED if about.streamed else _core.REACH_MEMBERS
    return _core.RowCheck(
        dtype.itemsize,
        at["shard"],
        at["length"],
        at["offset"],
        at.get("within", 0),
        reach,
        np.array([shard.records for shard in about.shards], np.uint64),
        np.array([shard.bytes for shard in about.shards], np.uint64),
    )


def _map(
    path: Path,
    dtype: np.dtype[Any],
    rows: int | None,
    checksum: int,
    check: _core.RowCheck | None = None,
) -> NDArray[Any]:
    """An array on disk, if it is what it should be."""
    try:
        mapped = map_array(path)
    except FileNotFoundError:
        raise FormatError(f"{path}: it is missing, but the rest of the index is there") from None
    except StorageError as error:
        raise FormatError(str(error)) from None
    except Exception as error:  # a damaged header is Python that cannot be parsed, in any way
        raise FormatError(f"{path}: it is no array that numpy can read: {error}") from None
    if mapped.ndim != 1 or mapped.dtype != dtype:
        raise FormatError(f"{path}: it has {mapped.dtype} {mapped.shape}, expected rows of {dtype}")
    if rows is not None and len(mapped) != rows:
        raise FormatError(f"{path}: it has {len(mapped)} rows, expected {rows}")
    found = 0
    done = 0
    for piece in _pieces(path, mapped.offset, mapped.nbytes, dtype.itemsize):
        found = _core.crc32c(piece, found)
        try:
            if check is not None:
                check.add(piece)
        except _core.Fault as fault:
            raise FormatError(
                f"{path}: row {done + fault.args[1]} is of a record at byte {fault.args[2]}, which "
                "cannot be: it is another shard's, lies outside of it, or does not follow the last"
            ) from None
        done += len(piece) // dtype.itemsize
    if found != checksum or (check is not None and not check.is_done()):
        raise FormatError(f"{path}: its rows are not those that were written with the index")
    # What is small is held: then no file is open, and nobody can cut it under us.
    return np.array(mapped) if mapped.nbytes <= _HELD_BYTES else mapped.view(np.ndarray)


def map_array(path: Path) -> np.memmap[Any, Any]:
    """Map a ``.npy`` file into memory. Whatever is wrong with its header is any exception."""
    with open_file(path) as file:
        head = file.read(12)
        # numpy reads as many bytes as the header says it has, before it looks at the number.
        size = head[8:10] if head[6:7] == b"\1" else head[8:12]
        if int.from_bytes(size, "little") > _MAX_HEADER_BYTES:
            raise ValueError(f"its header is longer than {_MAX_HEADER_BYTES} bytes")
    mapped: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="r")
    return mapped


def _pieces(path: Path, begin: int, size: int, row: int) -> Iterator[memoryview]:
    """The bytes of a file in whole rows, read and not mapped, so that they are not held."""
    buffer = memoryview(bytearray(min(size, _PIECE_BYTES // row * row)))
    with open(path, "rb", buffering=0) as file:
        file.seek(begin)
        while size:
            count = min(size, len(buffer))
            if file.readinto(buffer[:count]) != count:
                raise FormatError(f"{path}: it ends before its rows do")
            yield buffer[:count]
            size -= count


def _check_classes(classes: NDArray[Any], about: About, name: str) -> None:
    """Make sure that the classes cut all records into stretches."""
    labels, records = classes["label"], classes["records"]
    sums = np.cumsum(records)
    total = int(sums[-1]) if len(sums) else 0
    # Counts near 2**64 must not wrap around to what is expected.
    if (records > about.records).any() or (records == 0).any() or total != about.records:
        raise FormatError(f"{name}: its classes do not have {about.records} records together")
    if (classes["first"] != sums - records).any() or (labels[1:] <= labels[:-1]).any():
        raise FormatError(f"{name}: its classes are not in order")
    texts = about.class_texts
    if texts is not None and len(labels) and not 0 <= labels[0] <= labels[-1] < len(texts):
        raise FormatError(f"{name}: it has classes beside the {len(texts)} that have a text")
