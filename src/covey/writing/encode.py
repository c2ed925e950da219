"""Examples to records, each when it comes, in features that are declared or found on the way.

Encoding all items of an intake: in this thread, in others, or in other processes.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._threads import ordered_map
from covey.errors import CoveyError, DatasetError, FeatureError
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import ExampleBlock
from covey.schema.infer import Inference
from covey.schema.survey import integer_range, join_ranges
from covey.shuffle.keys import Key
from covey.tfrecord import Block
from covey.tfrecord.block import join_blocks
from covey.writing.inputs import (
    Input,
    Rules,
    has_value,
    own,
    source_failed,
    take_item,
)

# A chunk has about this many bytes of records, and no more examples than that.
_CHUNK_BYTES = 1 << 20
_CHUNK_EXAMPLES = 4096

Integers = Callable[[str], tuple[int, int]]
"""Tells the smallest and the largest integer of a feature in the chunks that were handed out."""


@dataclass(slots=True)
class Chunk:
    """Some examples, encoded."""

    block: Block
    features: Features
    """What they were encoded with."""
    positions: NDArray[np.uint64]
    """The numbers of the examples in the source."""
    keys: Sequence[Key] | None
    left_out: list[SkippedRecord]


class ChunkEncoder:
    """Encodes examples one by one, and hands out chunks of them.

    An example is encoded before the next is asked for, so that a source may use its arrays again.

    While features are inferred, the features are those that fit all examples so far. An example
    that has exactly their types is encoded at once; only another is looked at more closely.

    Args:
        rules: What to do.
        known: If features are inferred: what the examples before these were.
        integers: Asked if a type depends on integers that were not looked at.
    """

    def __init__(
        self, rules: Rules, known: Inference | None = None, integers: Integers | None = None
    ) -> None:
        self.known = Inference(rules.defaults) if known is None else known
        self.found = Inference(rules.defaults)
        """What was looked at, for one who knows of other examples too."""
        self._rules = rules
        self._integers = integers
        self._features = rules.features or Features({})
        if rules.infers and not self.known.is_empty:
            self._features = Features(self.known.kinds())
        self._block: ExampleBlock = self._features.begin_block()
        self._first = 0  # the number of the chunk's first example,
        self._number = 0  # and of the next that comes
        self._gone: list[int] = []  # numbers in the chunk that were left out
        self._keys: list[Key] = []
        self._left_out: list[SkippedRecord] = []
        self._early: list[Block] = []  # blocks of the chunk that were taken out of turn
        self._exact = 0  # examples of the chunk that were not looked at
        self.passed = 0
        """And of all chunks."""

    @property
    def features(self) -> Features:
        """What fits all examples so far."""
        return self._features

    def chunks(self, items: Iterable[Any], first: int = 0) -> Iterator[Chunk]:
        """Encode items, the first of which has this number."""
        self._first = self._number = first
        source = iter(items)
        state = ""
        while state != "end":
            state, item = self._take(source)
            if state == "item":
                yield from self._look_at(item)
            if self._is_full():
                yield self._end()
        if self._number > self._first:
            yield self._end()

    def _take(self, source: Iterator[Any]) -> tuple[str, Any]:
        """Encode what fits at once, up to an item that has to be looked at, or a full chunk.

        Returns:
            ``"end"``, ``"full"``, or ``"item"`` and that item.
        """
        rules, features = self._rules, self._features
        is_direct = (
            rules.key is None
            and rules.names is None
            and not features.optional
            and (features.is_simple or not rules.infers)
        )
        before = len(self._block)
        try:
            if not is_direct:
                for item in source:
                    return "item", item
                return "end", None
            return self._block.extend(
                source,
                self._keys,
                exact=rules.infers,
                bytes=_CHUNK_BYTES,
                count=_CHUNK_EXAMPLES - (self._number - self._first),
            )
        except CoveyError:
            raise
        except Exception as error:
            raise source_failed(self._number + len(self._block) - before, error) from error
        finally:
            self._number += len(self._block) - before
            self._exact += len(self._block) - before

    def _look_at(self, item: Any) -> Iterator[Chunk]:
        """Encode an item that may need other features, or be no example at all."""
        key: Key | None = None
        number = self._number
        try:
            example, key = take_item(item, self._rules)
            if self._try(example):
                self._exact += 1
            else:
                features = self._adapt(example, number)
                if features is not self._features:
                    if number > self._first:
                        yield self._end()
                    self._use(features)
                self._block.append(self._fill_in(example))
        except CoveyError as error:
            self._leave_out(error, number, key)
        else:
            if key is not None:
                self._keys.append(key)
        self._number += 1

    def _is_full(self) -> bool:
        return self._block.bytes >= _CHUNK_BYTES or self._number - self._first >= _CHUNK_EXAMPLES

    def _try(self, example: Mapping[str, Any]) -> bool:
        """Encode an example as it is, if it fits."""
        features = self._features
        try:
            if not self._rules.infers:
                self._block.append(features.fill_in(example))
            elif features.is_simple:
                self._block.append_exact(features.fill_in(example))
            else:
                return False
        except FeatureError:
            return False
        return True

    def _fill_in(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """An example with what it lacks, so that every reader finds it in the record."""
        features = self._features
        if self._rules.infers and self._rules.defaults:
            # What is None, and was never anything else, has no feature yet.
            example = {
                name: value
                for name, value in example.items()
                if value is not None or name in features
            }
        return features.fill_in(example)

    def _adapt(self, example: Mapping[str, Any], number: int) -> Features:
        """The features that an example needs which the present ones do not fit at once."""
        if self._rules.infers:
            label = self._rules.label
            skips = self._rules.on_error == "skip"
            if skips and label is not None and not has_value(example, label):
                # Else the first example without it would decide that there is none.
                raise FeatureError("it is missing, and tells the class", feature=label)
            self.known.check_names(example)
            alone = Inference(self._rules.defaults)
            alone.add(example, number)
            changed = self.known.merge(alone, self._range)
            self.found.merge(alone, self._range)
            return Features(self.known.kinds()) if changed else self._features
        choices = [each for each in (self._rules.features, self._rules.otherwise) if each]
        for features in choices:
            if features is not self._features:
                try:
                    features.encode(features.fill_in(example))
                except FeatureError:
                    continue
                return features
        return self._features  # which will say what is wrong

    def _range(self, name: str) -> tuple[int, int]:
        """The integers of a feature in all examples so far, also those of this chunk."""
        self._early.append(self._block.take())
        return join_ranges(
            (0, 0) if self._integers is None else self._integers(name),
            *(integer_range(self._features, block, name) for block in self._early),
        )

    def _use(self, features: Features) -> None:
        self._features = features
        self._block = features.begin_block()

    def _leave_out(self, error: CoveyError, number: int, key: Key | None) -> None:
        reason = str(error).removeprefix(f"example {number}: ")
        if self._rules.on_error == "raise":
            if not isinstance(error, FeatureError):
                raise error
            named = "" if key is None else f" (key {key!r})"
            raise FeatureError(f"example {number}{named}: {reason}") from None
        self._gone.append(number)
        self._left_out.append(SkippedRecord(number, reason))

    def _end(self) -> Chunk:
        """Hand out the examples of the chunk."""
        number = self._number
        positions = np.arange(self._first, number, dtype=np.uint64)
        if self._gone:
            positions = np.delete(positions, np.array(self._gone) - self._first)
        keys = self._keys or None
        if keys is not None and len(keys) != len(positions):
            raise FeatureError(
                f"some examples from {self._first} to {number - 1} have keys and some have none"
            )
        self.known.pass_over(self._exact)
        self.passed += self._exact
        block = join_blocks([*self._early, self._block.take()])
        chunk = Chunk(block, self._features, positions, keys, self._left_out)
        self._first, self._exact = number, 0
        self._early, self._gone, self._keys, self._left_out = [], [], [], []
        return chunk


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

    def __init__(self, intake: Input, rules: Rules, workers: int = 1) -> None:
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
                for result in ordered_map(tasks, executor, 2 * self._workers):
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
            return self._encode_again(first, part, integers)  # and fail here, with the right words
        if not self._rules.infers:
            return chunks
        # A worker that did not know of all examples before its own may have taken one of them for
        # the measure that another should have been.
        is_old = changes != self._changes
        known, found = self._known, result.found
        is_other = not (known.is_empty or found.is_empty or known.has_names_of(found))
        if is_other or (is_old and any(chunk.left_out for chunk in chunks)):
            return self._encode_again(first, part, integers)
        try:
            changed = self._known.merge(
                result.found, lambda name: join_ranges(integers(name), _ranges_of(chunks, name))
            )
        except FeatureError:
            if self._rules.on_error == "raise":
                raise
            return self._encode_again(first, part, integers)
        self._known.pass_over(result.passed)
        self._changes += changed
        return chunks

    def _encode_again(self, first: int, part: Any, integers: Integers) -> Iterator[Chunk]:
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
        raise DatasetError(option="workers", found=workers, allowed="an integer, 1 or more")
    return workers
