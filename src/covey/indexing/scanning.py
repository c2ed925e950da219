"""Looking through one shard: where its records are, their classes, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FileChangedError
from covey.features.surveys import survey_block
from covey.indexing.labelling import Labeller
from covey.pipeline import run_ahead
from covey.records import Block, RecordReader, Skipped
from covey.records.places import Places
from covey.records.reader import OnError
from covey.records.streams import RegularFile
from covey.shards import fingerprint_of
from covey.storage import Stat, Storage
from covey.storage.local import local_stat

# Blocks that are under way while one is waited for.
_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Scanned:
    """What was found in a shard."""

    places: Places
    labels: NDArray[np.int64] | None
    surveys: list[_core.Survey]
    compression: str | None
    records: int
    skipped: tuple[Skipped, ...]
    fingerprint: int
    """Of the file that was scanned."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How to look through shards.

    Args:
        storage: Where they are.
        stats: The state of each shard when indexing began; none may change until it is scanned.
        labeller: Tells classes, if any are wanted.
        surveys: Whether to find out what records hold.
        on_error: ``"skip"`` leaves out what is damaged.
        progress: Is told of records and bytes.
        executor: Where the blocks of a shard are looked through, if not one after the other.
        map_files: Map local shards into memory; False reads them.
    """

    storage: Storage
    stats: Sequence[Stat]
    labeller: Labeller | None
    surveys: bool
    on_error: OnError
    progress: Callable[[int, int], None]
    executor: Executor | None = None
    map_files: bool = True

    def __call__(self, number: int, path: str) -> Scanned:
        """Look through a shard.

        Raises:
            FileChangedError: If it is not the file that it was, or changes meanwhile.
        """
        labels: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        surveys: list[_core.Survey] = []
        records = 0
        with (
            open_shard(self.storage, path, self.stats[number]) as file,
            RecordReader(file, on_error=self.on_error, map_files=self.map_files) as reader,
        ):
            places = Places(reader.compression)
            # Whoever decodes the label verifies the data on the way, on its own core; but who skips
            # must know at once, and a survey must not be of damaged data.
            decodes = self.labeller is not None and self.labeller.decodes
            later = decodes and not self.surveys and self.on_error == "raise"
            blocks = reader.blocks(verify_data=not later, members=places.members)
            tasks = (partial(self._look, block, number) for block in _noted(blocks, places))
            with closing(run_ahead(tasks, self.executor, _AHEAD)) as found:
                for classes, survey, count, size in found:
                    if classes is not None:
                        labels.append(classes)
                    if survey is not None:
                        surveys.append(survey)
                    records += count
                    self.progress(count, size)
            skipped = tuple(reader.skipped)
            mark = fingerprint_of(file, self.stats[number].size)
        joined = None if self.labeller is None else np.concatenate(labels)
        return Scanned(places, joined, surveys, reader.compression, records, skipped, mark)

    def _look(
        self, block: Block, shard: int
    ) -> tuple[NDArray[np.int64] | None, _core.Survey | None, int, int]:
        survey = _core.Survey() if self.surveys else None
        if survey is not None:
            survey_block(survey, block)
        classes = None if self.labeller is None else self.labeller.of(block, shard)
        return classes, survey, len(block), int(block.lengths.sum())


def _noted(blocks: Iterator[Block], places: Places) -> Iterator[Block]:
    for block in blocks:
        places.add(block)
        yield block


@contextmanager
def open_shard(storage: Storage, path: str, stat: Stat) -> Iterator[BinaryIO]:
    """Open a shard once, and make sure that it has the state ``stat`` all the time.

    Raises:
        FileChangedError: If it has not, in place of any other error.
    """
    if storage.is_remote:
        with storage.open_stream(path) as stream:
            yield stream
        return
    try:
        file = RegularFile(path)
    except FileNotFoundError:
        raise _changed(path) from None
    with file:
        try:
            yield file
        finally:
            if local_stat(file.stat()) != stat:
                raise _changed(path)


def _changed(path: str) -> FileChangedError:
    return FileChangedError(
        f"{path}: the shard was changed while it was indexed; open the dataset again", path=path
    )


@contextmanager
def open_reader(storage: Storage, path: str, **options: Any) -> Iterator[RecordReader]:
    """A reader of a shard that may be anywhere.

    Raises:
        StorageError: If a local shard is not a regular file.
    """
    source: BinaryIO = storage.open_stream(path) if storage.is_remote else RegularFile(path)
    with source, RecordReader(source, **options) as reader:
        yield reader
