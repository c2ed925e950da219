"""Encoding all items of an intake: in this thread, in others, or in other processes."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.errors import CoveyError, DatasetError, FeatureError
from covey.features import Features
from covey.features.inference import Inference
from covey.features.ranges import integer_range, join_ranges
from covey.pipeline import run_ahead
from covey.writing.encoding import Chunk, ChunkEncoder, Integers
from covey.writing.intake import Intake
from covey.writing.items import Rules, own, source_failed

# What a worker is given at once has about this many bytes of records.
_PART_BYTES = 1 << 20
_PART_EXAMPLES = 4096


@dataclass(slots=True)
class _Result:
    """What a worker made of a part."""

    chunks: list[Chunk]
    found: Inference
    passed: int
    failed: bool = False


class Encoding:
    """All chunks of an intake, encoded in order.

    Args:
        intake: Where items come from.
        rules: What to do with them.
        workers: How many parts to encode at once. Items that can be fetched by number are fetched
            and encoded in as many processes, if they can be sent there; others are encoded in
            threads, while this one goes on fetching.
    """

    def __init__(self, intake: Intake, rules: Rules, workers: int = 1) -> None:
        self._intake = intake
        self._rules = rules
        self._workers = workers
        self._known = Inference(rules.defaults)
        self._changes = 0  # how often that was changed
        self._size = 1  # examples in the next part
        self._given: deque[tuple[int, Any, int]] = deque()  # (first, part, changes) of tasks

    @property
    def features(self) -> Features:
        """What fits all examples so far."""
        if self._rules.features is not None:
            return self._rules.features
        return Features(self._known.finish())

    def chunks(self, integers: Integers) -> Iterator[Chunk]:
        """Encode everything.

        Args:
            integers: Tells the range of a feature's integers in the chunks that were handed out.
        """
        if self._workers == 1:
            items = () if self._intake.items is None else self._intake.items
            if self._intake.by_number:
                items = fetch(items, range(self._intake.length or 0))
            yield from ChunkEncoder(self._rules, self._known, integers).chunks(items)
            return
        executor, tasks = self._parallel()
        with executor:
            try:
                for result in run_ahead(tasks, executor, 2 * self._workers):
                    yield from self._take(result, integers)
            except BrokenProcessPool as error:
                raise DatasetError(
                    f"a worker process ended before its work was done ({error}); a script that "
                    "uses workers needs `if __name__ == '__main__':` around what it does; what it "
                    "fetches must fit the memory, and be of a class that another process can "
                    "import; workers=1 does without processes"
                ) from None

    def _parallel(self) -> tuple[Executor, Iterator[Callable[[], _Result]]]:
        if self._intake.by_number:
            try:
                sent = pickle.dumps((self._intake.items, self._rules))
            except Exception:  # whatever a source raises that cannot be pickled
                sent = None
            if sent is not None:
                # Not by fork: the caller may have threads, TensorFlow's for instance.
                pool = ProcessPoolExecutor(
                    self._workers, multiprocessing.get_context("spawn"), _begin, (sent,)
                )
                return pool, self._tasks(self._ranges(), _encode_there)
        threads = ThreadPoolExecutor(self._workers, thread_name_prefix="covey-encode")
        return threads, self._tasks(self._lists(), partial(_encode, self._rules))

    def _tasks(
        self, parts: Iterator[tuple[int, Any]], encode: Callable[..., _Result]
    ) -> Iterator[Callable[[], _Result]]:
        for first, part in parts:
            self._given.append((first, part, self._changes))
            yield partial(encode, part, first, copy.deepcopy(self._known))

    def _ranges(self) -> Iterator[tuple[int, range]]:
        first, total = 0, self._intake.length or 0
        while first < total:
            part = range(first, min(first + self._size, total))
            yield first, part
            first = part.stop

    def _lists(self) -> Iterator[tuple[int, list[Any]]]:
        if self._intake.by_number:
            for first, numbers in self._ranges():
                yield first, list(fetch(self._intake.items, numbers))
            return
        items = iter(() if self._intake.items is None else self._intake.items)
        first = 0
        while True:
            part: list[Any] = []
            try:
                part.extend(map(own, itertools.islice(items, self._size)))
            except CoveyError:
                raise
            except Exception as error:
                raise source_failed(first + len(part), error) from error
            if not part:
                return
            yield first, part
            first += len(part)

    def _take(self, result: _Result, integers: Integers) -> Sequence[Chunk] | Iterator[Chunk]:
        """Take in what a worker found out about features, and about the size of examples."""
        first, part, changes = self._given.popleft()
        chunks = result.chunks
        records = sum(len(chunk.block) for chunk in chunks)
        if records:
            each = max(1, sum(chunk.block.data.nbytes for chunk in chunks) // records)
            # Not too sure of it: the next may be much larger.
            self._size = max(1, min(_PART_BYTES // each, 4 * self._size, _PART_EXAMPLES))
        if result.failed:
            return self._again(first, part, integers)  # and fail here, with the right words
        if not self._rules.infers:
            return chunks
        # A worker that did not know of all examples before its own may have taken one of them for
        # the measure that another should have been.
        is_old = changes != self._changes
        known, found = self._known, result.found
        is_other = not (known.is_empty or found.is_empty or known.has_names_of(found))
        if is_other or (is_old and any(chunk.left_out for chunk in chunks)):
            return self._again(first, part, integers)
        try:
            changed = self._known.merge(
                result.found, lambda name: join_ranges(integers(name), _ranges_of(chunks, name))
            )
        except FeatureError:
            if self._rules.on_error == "raise":
                raise
            return self._again(first, part, integers)
        self._known.pass_over(result.passed)
        self._changes += changed
        return chunks

    def _again(self, first: int, part: Any, integers: Integers) -> Iterator[Chunk]:
        """Encode a part here and now, knowing of all examples before it."""
        self._changes += 1
        items = fetch(self._intake.items, part) if isinstance(part, range) else part
        return ChunkEncoder(self._rules, self._known, integers).chunks(items, first)


def fetch(source: Any, numbers: range) -> Iterator[Any]:
    """Items by their numbers; what cannot be fetched comes as the error that it is."""
    for number in numbers:
        try:
            item = source[number]
        except CoveyError as error:
            item = error
        except Exception as error:
            item = source_failed(number, error)
        yield item


def _ranges_of(chunks: Sequence[Chunk], name: str) -> tuple[int, int]:
    found = (integer_range(chunk.features, chunk.block, name) for chunk in chunks)
    return join_ranges((0, 0), *found)


def _encode(rules: Rules, items: Any, first: int, known: Inference) -> _Result:
    chunks: list[Chunk] = []
    encoder = ChunkEncoder(rules, known, lambda name: _ranges_of(chunks, name))
    try:
        chunks.extend(encoder.chunks(items, first))
    except FeatureError:
        return _Result([], encoder.found, 0, failed=True)
    return _Result(chunks, encoder.found, encoder.passed)


# In another process.

_there: dict[str, Any] = {}


def _begin(sent: bytes) -> None:
    # Ctrl-C goes to all processes of a terminal; the first one sees to it that the others end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _there["source"], _there["rules"] = pickle.loads(sent)


def _encode_there(numbers: range, first: int, known: Inference) -> _Result:
    return _encode(_there["rules"], fetch(_there["source"], numbers), first, known)


def check_workers(workers: int) -> int:
    """Check the number of workers."""
    if type(workers) is not int or workers < 1:
        raise DatasetError(f"workers is {workers!r}, must be a whole number, 1 or more")
    return workers
