"""DALI's index files: one for each shard, a line ``offset size`` for every record in it.

::

    0 262          birds.tfrecord.idx: the first frame begins at byte 0 and has 262 bytes,
    262 270        header and footer included; the next one follows it
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._progress import Progress
from covey._threads import cpu_count, ordered_map
from covey.errors import DatasetError, FileChangedError, FormatError
from covey.index.build import GUESS, Indexing, Scanned, ShardFiles, open_shard
from covey.index.format import fingerprint_of
from covey.index.labels import Label, Labeller
from covey.index.read import Index
from covey.schema import Features
from covey.schema.survey import survey_block
from covey.shuffle.keys import cut_by_bytes
from covey.storage import Stat, open_storage
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES
from covey.tfrecord.locations import RecordLocations
from covey.tfrecord.streams import RegularFile

# How much of a shard is looked at together.
_REGION_BYTES = 8 << 20

_LINE = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t]*\r?")


def export_dali(index: Index, files: ShardFiles, directory: str | None = None) -> list[str]:
    """Write DALI's index files.

    Args:
        index: Of the shards.
        files: The shards, without compression.
        directory: Where to; beside the shards by default.

    Returns:
        The files, each called like its shard, with ``.idx`` behind.
    """
    if index.metadata.compression is not None:
        raise DatasetError(
            f"{files.directory}: the shards are compressed ({index.metadata.compression}), and DALI "
            "reads only those that are not"
        )
    storage = files.storage if directory is None else open_storage(directory)
    written = []
    first = 0
    for shard in index.metadata.shards:
        rows = index.rows[first : first + shard.records]
        first += shard.records
        sizes = rows["length"].astype(np.int64) + FRAME_BYTES
        lines = (f"{a} {b}\n" for a, b in zip(rows["offset"].tolist(), sizes.tolist(), strict=True))
        path = storage.join(
            directory if directory is not None else files.directory, f"{shard.name}.idx"
        )
        storage.write(path, "".join(lines).encode())
        written.append(path)
    return written


def import_dali(
    files: ShardFiles,
    directory: str | None = None,
    *,
    features: Features | None = None,
    label: Label | object = GUESS,
    threads: int | None = None,
    progress: bool | None = None,
) -> Index:
    """Make an index of what DALI's index files say, without looking for records.

    Every line is compared with the length that its record has, and the checksum of that. The data
    of records is read only as far as their classes need it, and its checksums are not verified.

    Args:
        files: The shards.
        directory: Where the index files are; beside the shards by default.
        features, label, threads, progress: As for :class:`Indexing`.

    Raises:
        FormatError: If a line is not right, naming file and line.
    """
    indexing = DaliIndexing(
        features, label, threads=threads, progress=progress, directory=directory
    )
    return indexing.build(files)


@dataclass(frozen=True)
class DaliIndexing(Indexing):
    """How shards are to be indexed by DALI's index files."""

    directory: str | None = None
    """Where these are, if not beside the shards."""

    def _scan(
        self,
        files: ShardFiles,
        stats: Sequence[Stat],
        labeller: Labeller | None,
        *,
        surveys: bool,
    ) -> list[Scanned]:
        threads = self.threads or cpu_count()
        with (
            Progress(self.progress, None, "indexing") as shown,
            ThreadPoolExecutor(threads, thread_name_prefix="covey-index") as pool,
        ):
            look = partial(self._look, files, labeller, surveys)
            tasks = (partial(look, number, stat) for number, stat in enumerate(stats))
            found = []
            for each in ordered_map(tasks, pool, threads):
                shown.add(each.records, 0)
                found.append(each)
            return found

    def _look(
        self, files: ShardFiles, labeller: Labeller | None, surveys: bool, number: int, stat: Stat
    ) -> Scanned:
        """Look at the records of a shard that its index file names."""
        path = files.paths[number]
        places = RecordLocations(None)
        labels: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        seen: list[_core.Survey] = []
        with open_shard(files.storage, path, stat) as file:
            compression = RecordReader(file).compression
            if compression is not None:
                raise DatasetError(
                    f"the shard is compressed ({compression}), and DALI's index files are "
                    "for those that are not; index it without them",
                    path=path,
                )
            idx, data = self._read(files, number)
            lines = _Lines.parse(data, idx, path, stat.size)
            for block in lines.blocks(file, mmap=self.mmap):
                places.add(block)
                if surveys:
                    seen.append(_core.Survey())
                    survey_block(seen[-1], block)
                if labeller is not None:
                    labels.append(labeller.of(block, number))
            mark = fingerprint_of(file, stat.size)
        joined = None if labeller is None else np.concatenate(labels)
        return Scanned(places, joined, seen, None, len(lines.offsets), (), mark)

    def _read(self, files: ShardFiles, number: int) -> tuple[str, bytes]:
        """The index file of a shard: where it is, and what it says."""
        storage = files.storage if self.directory is None else open_storage(self.directory)
        directory = files.directory if self.directory is None else self.directory
        name = files.names[number]
        paths = [storage.join(directory, each) for each in (f"{name}.idx", _replaced(name))]
        for path in paths:
            try:
                with storage.open_stream(path) as stream:
                    return path, stream.read()
            except FileNotFoundError:
                continue
        raise DatasetError(f"{paths[0]}: there is no such index file of DALI's for the shard")


def _replaced(name: str) -> str:
    """The name of an index file that has its suffix in place of that of the shard."""
    return f"{os.path.splitext(name)[0]}.idx"


@dataclass(frozen=True)
class _Lines:
    """What an index file says, of a shard."""

    name: str
    path: str
    """Of the shard."""
    offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    """Of whole frames."""
    numbers: NDArray[np.int64]
    """Of the lines, from 1."""

    @classmethod
    def parse(cls, data: bytes, name: str, path: str, size: int) -> _Lines:
        """Read lines, and make sure that they name frames that a shard of this size can have."""
        found: list[tuple[int, int, int]] = []
        end = 0
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise FormatError(
                    f"line {number}: it is {line[:60]!r}; must be the offset and the size "
                    "of a record",
                    path=name,
                )
            offset, frame = int(match[1]), int(match[2])
            wrong = None
            if frame < FRAME_BYTES:
                wrong = f"a record has {FRAME_BYTES} bytes at least"
            elif offset + frame > size:
                wrong = f"{path} has {size} bytes"
            elif offset < end:
                wrong = f"the record of the line before ends at byte {end}"
            if wrong is not None:
                raise FormatError(
                    f"line {number}: it says {frame} bytes at byte {offset}, but {wrong}", path=name
                )
            found.append((offset, frame, number))
            end = offset + frame
        table = np.array(found, np.int64).reshape(-1, 3)
        offsets, sizes = table[:, 0].astype(np.uint64), table[:, 1].astype(np.uint64)
        return cls(name, path, offsets, sizes, table[:, 2])

    def blocks(self, file: BinaryIO, *, mmap: bool) -> Iterator[Block]:
        """The records, whose frames are those that the lines say."""
        if len(self.offsets):
            read = _reader(file, int(self.offsets[-1] + self.sizes[-1]), mmap=mmap)
            for begin, end in cut_by_bytes(self.sizes - np.uint64(FRAME_BYTES), _REGION_BYTES):
                offsets, sizes = self.offsets[begin:end], self.sizes[begin:end]
                first, last = int(offsets[0]), int(offsets[-1] + sizes[-1])
                data = read(first, last)
                if len(data) < last - first:
                    raise FileChangedError(
                        "the shard was truncated while it was indexed", path=self.path
                    )
                inside = offsets - np.uint64(first)
                self._check(data, inside, begin)
                yield Block(
                    data,
                    inside + np.uint64(HEADER_BYTES),
                    sizes - np.uint64(FRAME_BYTES),
                    self.path,
                    begin,
                    first,
                )

    def _check(self, data: memoryview, inside: NDArray[np.uint64], begin: int) -> None:
        """Compare lines with the headers of their frames."""
        places = inside.astype(np.int64)[:, None] + np.arange(HEADER_BYTES)
        headers = np.frombuffer(data, np.uint8)[places]
        lengths = np.ascontiguousarray(headers[:, :8]).view("<u8")[:, 0]
        sums = np.ascontiguousarray(headers[:, 8:]).view("<u4")[:, 0]
        said = self.sizes[begin : begin + len(inside)] - np.uint64(FRAME_BYTES)
        is_frame = sums == _masked_checksums(headers[:, :8])
        wrong = ~is_frame | (lengths != said)
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        at = begin + row
        what = "no record begins there: the checksum of its length is wrong"
        if is_frame[row]:
            what = f"the record there has {int(lengths[row]) + FRAME_BYTES} bytes with its frame"
        raise FormatError(
            f"line {int(self.numbers[at])}: it says {int(self.sizes[at])} bytes at byte "
            f"{int(self.offsets[at])} of {self.path}, but {what}",
            path=self.name,
        )


def _reader(file: BinaryIO, size: int, *, mmap: bool) -> Callable[[int, int], memoryview]:
    """A way to get bytes of a shard; of one that is mapped, only pages that are looked at."""
    if mmap and isinstance(file, RegularFile):
        complete: Any = _core.map_file(file.fileno(), 0, size, False)
        return lambda begin, end: memoryview(complete[begin:end])

    def read(begin: int, end: int) -> memoryview:
        file.seek(begin)
        return memoryview(file.read(end - begin))

    return read


def _checksum_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0x82F63B78), table >> 1)
    return table


def _masked_checksums(rows: NDArray[Any]) -> NDArray[np.uint32]:
    """The masked CRC32C of each row of bytes, of all at once."""
    table = _checksum_table()
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ crc >> np.uint32(8)
    crc = ~crc
    rotated = crc >> np.uint32(15) | crc << np.uint32(17)
    return rotated + np.uint32(0xA282EAD8)
