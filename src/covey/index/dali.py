"""DALI's index files: one per shard, with a line ``offset size`` for every record.

::

    0 262          birds.idx: the first frame of birds.tfrecord begins at byte 0 and has 262 bytes,
    262 270        header and footer included; the next frame follows it
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, FormatError
from covey.filenames import sidecar_stem, unique_sidecar_stem
from covey.index.build import IndexBuilder, ShardFiles
from covey.index.read import Index
from covey.storage import open_storage
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES, RecordLocations

_LINE = re.compile(rb"[ \t]*([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t]*\r?")


def export_dali(index: Index, files: ShardFiles, directory: str | None = None) -> list[str]:
    """Write DALI's index files.

    Args:
        index: The index of the shards.
        files: The shards, which must not be compressed.
        directory: The directory to write to; by default that of the shards.

    Returns:
        The paths of the files: the name of each shard without ``.tfrecord``, and with ``.idx``
        appended.
    """
    if index.metadata.compression is not None:
        raise _compressed(index.metadata.compression, files.directory)
    storage = files.storage if directory is None else open_storage(directory)
    target = files.directory if directory is None else directory
    written = []
    stems = [sidecar_stem(shard.name) for shard in index.metadata.shards]
    counts = Counter(stems)
    for number, shard in enumerate(index.metadata.shards):
        rows = index.rows[index.first_records[number] : index.first_records[number + 1]]
        sizes = rows["length"].astype(np.int64) + FRAME_BYTES
        lines = (f"{a} {b}\n" for a, b in zip(rows["offset"].tolist(), sizes.tolist(), strict=True))
        stem = stems[number] if counts[stems[number]] == 1 else _unique_stem(shard.name)
        written.append(storage.join(target, f"{stem}.idx"))
        storage.write(written[-1], "".join(lines).encode())
    return written


def _unique_stem(name: str) -> str:
    """Return the start of the name of the file if several shards differ only in their suffix."""
    directory, base = posixpath.split(name)
    return posixpath.join(directory, unique_sidecar_stem([base]))


@dataclass(frozen=True)
class DaliIndexBuilder(IndexBuilder):
    """Builder of the index of the records that DALI's index files list.

    Every line is compared with the frame of its record. The data of records is read only as far as
    the label needs it, and its checksums are not verified.

    Args:
        directory: The directory of the index files; by default that of the shards.

    Raises:
        FormatError: If a line is not valid, or does not match the shard. Raised by :meth:`build`.
    """

    directory: str | None = None

    def blocks(
        self,
        files: ShardFiles,
        shard: int,
        file: BinaryIO,
        reader: RecordReader,
        locations: RecordLocations,
        *,
        verify_data: bool,
    ) -> Iterator[Block]:
        if reader.compression is not None:
            raise _compressed(reader.compression, files.paths[shard])
        lines = _DaliLines.parse(*self._read(files, shard), files.paths[shard])
        for block in reader.blocks(verify_data=False):
            rows = lines.rows_in(block)
            if not len(rows):
                continue
            # Verified as far as an import verifies: decoding a label must not read all data.
            yield replace(
                block,
                offsets=block.offsets[rows],
                lengths=block.lengths[rows],
                first=lines.matched - len(rows),
                verified=True,
            )
        lines.check_all_matched()

    def _read(self, files: ShardFiles, shard: int) -> tuple[bytes, str]:
        """Return the content and the path of the index file of a shard."""
        storage = files.storage if self.directory is None else open_storage(self.directory)
        directory = files.directory if self.directory is None else self.directory
        name = files.names[shard]
        # Other programs append the suffix to that of the shard, or replace it.
        stems = (_unique_stem(name), sidecar_stem(name), name, os.path.splitext(name)[0])
        paths = [storage.join(directory, f"{stem}.idx") for stem in stems]
        for path in paths:
            try:
                with storage.open_stream(path) as stream:
                    return stream.read(), path
            except FileNotFoundError:
                continue
        raise DatasetError("DALI's index file of the shard does not exist", path=paths[1])


@dataclass
class _DaliLines:
    """The lines of an index file, matched with the blocks of its shard in order."""

    path: str
    shard: str
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """Sizes of frames."""
    numbers: NDArray[np.int64]
    """Line numbers, from 1."""
    matched: int = 0

    @classmethod
    def parse(cls, data: bytes, path: str, shard: str) -> _DaliLines:
        """Parse an index file; the frames must not overlap."""
        found: list[tuple[int, int, int]] = []
        end = 0
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line.strip():
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise FormatError(
                    f"the line is {line[:60]!r}; must be the offset and the size of a record",
                    path=path,
                    line=number,
                )
            offset, size = int(match[1]), int(match[2])
            if size < FRAME_BYTES or offset < end:
                raise FormatError(
                    f"the line has {size} bytes at byte {offset}; must be at least {FRAME_BYTES} "
                    f"bytes, and not before byte {end}, where the previous record ends",
                    path=path,
                    line=number,
                )
            found.append((offset, size, number))
            end = offset + size
        table = np.array(found, np.int64).reshape(-1, 3)
        return cls(path, shard, table[:, 0], table[:, 1], table[:, 2])

    def rows_in(self, block: Block) -> NDArray[np.int64]:
        """Return the rows of a block that lines list, and check the lines."""
        begins = block.offsets.astype(np.int64) + (block.position - HEADER_BYTES)
        sizes = block.lengths.astype(np.int64) + FRAME_BYTES
        stop = int(np.searchsorted(self.offsets, begins[-1] + sizes[-1])) if len(begins) else 0
        lines = slice(self.matched, max(stop, self.matched))
        offsets = self.offsets[lines]
        rows = np.searchsorted(begins, offsets, side="right") - 1
        wrong = (rows < 0) | (begins[rows] != offsets) | (sizes[rows] != self.sizes[lines])
        if wrong.any():
            row = int(np.argmax(wrong))
            is_frame = rows[row] >= 0 and begins[rows[row]] == offsets[row]
            found = f"has {sizes[rows[row]]} bytes" if is_frame else "does not exist"
            raise self._mismatch(self.matched + row, f"the record there {found}")
        self.matched = lines.stop
        return rows

    def check_all_matched(self) -> None:
        """Raise FormatError if a line is after the end of the shard."""
        if self.matched < len(self.offsets):
            raise self._mismatch(self.matched, "the record there does not exist")

    def _mismatch(self, line: int, reason: str) -> FormatError:
        return FormatError(
            f"the line has {self.sizes[line]} bytes at byte {self.offsets[line]} of {self.shard}; "
            f"{reason}",
            path=self.path,
            line=int(self.numbers[line]),
        )


def _compressed(compression: str, path: str) -> DatasetError:
    return DatasetError(
        f"the shards are compressed ({compression}); DALI reads only uncompressed shards",
        path=path,
    )
