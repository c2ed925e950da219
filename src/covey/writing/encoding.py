"""Examples, a chunk at a time, to records: in this thread, in others, or in other processes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.features import Features
from covey.features.inference import Inference
from covey.pipeline import run_ahead
from covey.records import Block
from covey.shuffle.ordering import Key
from covey.writing.intake import Intake

OnError = Literal["raise", "skip"]

# A chunk has about this many bytes of records, and no more examples than that.
_CHUNK_BYTES = 1 << 20
_CHUNK_EXAMPLES = 4096


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An example that was not written, because ``on_error="skip"`` was asked for."""

    example: int
    """Its number in the source, from 0."""
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """How items become examples, and examples records. Goes to other processes."""

    features: Features | None = None
    """As declared; None to infer them."""
    otherwise: Features | None = None
    """Tried if those do not fit: the same, with a label whose classes may be new as a text."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    """What the parts of tuples are called."""
    key: str | None = None
    """The feature that is the key."""
    on_error: OnError = "raise"


@dataclass(slots=True)
class Chunk:
    """Some examples, encoded."""

    block: Block
    features: Features
    """What they were encoded with."""
    positions: NDArray[np.uint64]
    """The numbers of the examples in the source."""
    keys: Sequence[Key] | None
    left_out: list[LeftOut]
    inference: Inference | None = None
    """What was found, if the features are inferred and those known did not fit at once."""


def encode_chunk(
    items: Sequence[Any],
    first: int,
    rules: Rules,
    known: Inference | None = None,
    features: Features | None = None,
) -> Chunk:
    """Encode a chunk of items.

    Args:
        items: As :class:`covey.writing.intake.Intake` has them.
        first: The number of the first.
        rules: What to do with them.
        known: If features are inferred, what earlier examples were;
        features: and the features that fit those.
    """
    examples, keys, positions, left_out = _sort_out(items, first, rules)
    chunk = Chunk(_NOTHING, rules.features or features or _NO_FEATURES, positions, keys, left_out)
    if not examples:
        return chunk
    if rules.features is None:
        block = None if features is None else features.encode_exact(_fill_in(features, examples))
        if block is not None:
            chunk.block = block
            return chunk
        together = copy.deepcopy(known) if known is not None else Inference(rules.defaults)
        chunk.inference = Inference(rules.defaults, first)
        if rules.on_error == "skip":
            _drop(chunk, examples, rules, partial(_look_alone, chunk.inference, together))
            if not examples:
                return chunk
        else:
            _drop(chunk, examples, rules, partial(_look_at, chunk.inference, known))
            together.merge(chunk.inference)
        chunk.features = Features(together.kinds())
        # What is None, and was never anything else, has no feature yet.
        unknown = set(rules.defaults).difference(chunk.features)
        if unknown:
            examples = [_without(example, unknown) for example in examples]
    try:
        chunk.block = _encode(chunk.features, examples)
    except FeatureError:
        if rules.otherwise is not None:
            with contextlib.suppress(FeatureError):
                chunk.block = _encode(rules.otherwise, examples)
                chunk.features = rules.otherwise
                return chunk
        _drop(chunk, examples, rules, partial(_try_one, chunk.features))
        chunk.block = _encode(chunk.features, examples)
    return chunk


def _look_at(
    inference: Inference, known: Inference | None, example: Mapping[str, Any], number: int
) -> None:
    """Infer from one more example, which has the same names as those before it."""
    (known or inference).check_names(example)
    inference.add(example, number)


def _look_alone(
    inference: Inference, together: Inference, example: Mapping[str, Any], number: int
) -> None:
    """Infer from one more example, or from none of it, if nothing fits it and those before it."""
    together.check_names(example)
    alone = Inference(together.defaults, number)
    alone.add(example, number)
    together.merge(alone)
    inference.merge(alone)


def _without(example: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name not in names}


def _encode(features: Features, examples: list[Any]) -> Block:
    return features.encode_examples(_fill_in(features, examples))


def _fill_in(features: Features, examples: list[Any]) -> list[Any]:
    """Examples with what they lack, so that every reader finds it in the records."""
    return [features.fill_in(example) for example in examples] if features.optional else examples


def _try_one(features: Features, example: Mapping[str, Any], number: int) -> None:
    features.encode(features.fill_in(example))


_NOTHING = Block(np.zeros(0, np.uint8), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
_NO_FEATURES = Features({})


def _drop(
    chunk: Chunk,
    examples: list[Mapping[str, Any]],
    rules: Rules,
    try_one: Callable[[Mapping[str, Any], int], object],
) -> None:
    """Try examples one by one, and leave out, or tell of, those that fail."""
    failed: list[int] = []
    for at, (example, number) in enumerate(zip(examples, chunk.positions.tolist(), strict=True)):
        try:
            try_one(example, number)
        except FeatureError as error:
            reason = str(error).removeprefix(f"example {number}: ")
            if rules.on_error == "raise":
                key = "" if chunk.keys is None else f" (key {chunk.keys[at]!r})"
                raise FeatureError(f"example {number}{key}: {reason}") from None
            failed.append(at)
            chunk.left_out.append(LeftOut(number, reason))
    if failed:
        for at in reversed(failed):
            del examples[at]
        chunk.positions = np.delete(chunk.positions, failed)
        if chunk.keys is not None:
            gone = set(failed)
            chunk.keys = [key for at, key in enumerate(chunk.keys) if at not in gone]


def _sort_out(
    items: Sequence[Any], first: int, rules: Rules
) -> tuple[list[Any], Sequence[Key] | None, NDArray[np.uint64], list[LeftOut]]:
    """Tell examples, keys and errors apart."""
    positions = np.arange(first, first + len(items), dtype=np.uint64)
    kinds = set(map(type, items))
    left_out: list[LeftOut] = []
    keys: Sequence[Key] | None = None
    examples: list[Any]
    if kinds == {dict}:  # the usual cases in one go
        examples = list(items)
    elif kinds == {tuple} and rules.names is None and all(map(_is_pair, items)):
        keys, pairs = zip(*items, strict=True)
        examples = list(pairs)
    else:
        examples, keys, numbers = _one_by_one(items, first, rules, left_out)
        positions = np.array(numbers, np.uint64)
    if rules.key is not None:
        examples, keys, positions = _take_keys(examples, positions, rules, left_out)
    return examples, keys, positions, left_out


def _take_keys(
    examples: list[Any], positions: NDArray[np.uint64], rules: Rules, left_out: list[LeftOut]
) -> tuple[list[Any], list[Key], NDArray[np.uint64]]:
    """Find the feature in each example that is its key."""
    assert rules.key is not None
    found: list[tuple[Any, Key, int]] = []
    for example, number in zip(examples, positions.tolist(), strict=True):
        try:
            found.append((example, _key_of(example, rules.key, number), number))
        except FeatureError as error:
            _leave_out(error, number, rules, left_out)
    numbers = np.array([number for *_, number in found], np.uint64)
    return [example for example, *_ in found], [key for _, key, _ in found], numbers


def _leave_out(error: CoveyError, number: int, rules: Rules, left_out: list[LeftOut]) -> None:
    if rules.on_error == "raise":
        raise error
    left_out.append(LeftOut(number, str(error).removeprefix(f"example {number}: ")))


def _one_by_one(
    items: Sequence[Any], first: int, rules: Rules, left_out: list[LeftOut]
) -> tuple[list[Any], list[Key] | None, list[int]]:
    examples: list[Any] = []
    keys: list[Key] = []
    numbers: list[int] = []
    for number, item in enumerate(items, first):
        if isinstance(item, CoveyError):
            _leave_out(item, number, rules, left_out)
            continue
        if rules.names is None and isinstance(item, tuple) and _is_pair(item):
            keys.append(item[0])
            item = item[1]
        try:
            examples.append(_as_example(item, rules.names, number))
        except FeatureError as error:
            _leave_out(error, number, rules, left_out)
            continue
        numbers.append(number)
    if keys and len(keys) != len(examples):
        raise FeatureError(
            f"some examples from {first} to {first + len(items) - 1} have keys and some have none"
        )
    return examples, keys or None, numbers


def _is_pair(item: Any) -> bool:
    return len(item) == 2 and isinstance(item[1], Mapping)


def _as_example(item: Any, names: tuple[str, ...] | None, number: int) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    if not isinstance(item, (tuple, list)):
        raise FeatureError(
            f"example {number}: it is of type {type(item).__name__}, must be a dict of values, or "
            "a pair of a key and such a dict"
        )
    if names is None:
        raise FeatureError(
            f"example {number}: it is a {type(item).__name__} of {len(item)} parts; say what they "
            "are called, as in names=('image', 'label')"
        )
    if len(item) != len(names):
        raise FeatureError(
            f"example {number}: it has {len(item)} parts, but there are {len(names)} names: "
            f"{', '.join(names)}"
        )
    return dict(zip(names, item, strict=True))


def _key_of(example: Mapping[str, Any], name: str, number: int) -> Key:
    key: Any = example
    if name in example:
        key = example[name]
    else:
        for part in name.split("/"):
            if not isinstance(key, Mapping) or part not in key:
                raise FeatureError(f"example {number}: it has no {name!r}, which is to be its key")
            key = key[part]
    return key.item() if isinstance(key, np.generic) else key  # type: ignore[no-any-return]


# A chunk after the other.


class Encoding:
    """All chunks of an intake, encoded in order.

    Args:
        intake: Where items come from.
        rules: What to do with them.
        workers: How many chunks to encode at once. Items that can be fetched by number are fetched
            and encoded in as many processes, if they can be sent there; others are encoded in
            threads, while this one goes on fetching.
    """

    def __init__(self, intake: Intake, rules: Rules, workers: int = 1) -> None:
        self._intake = intake
        self._rules = rules
        self._workers = workers
        self._size = 1  # examples in the next chunk
        self._known: Inference | None = None
        self._features: Features | None = None
        self._integers: Callable[[str], tuple[int, int]] | None = None

    @property
    def features(self) -> Features:
        """What fits all examples so far."""
        if self._rules.features is not None:
            return self._rules.features
        if self._known is None:
            raise FeatureError("there are no examples to infer features from; declare them")
        self._known.check_defaults()
        return Features(self._known.kinds())

    def chunks(self, integers: Callable[[str], tuple[int, int]]) -> Iterator[Chunk]:
        """Encode everything.

        Args:
            integers: Tells the range of a feature's integers in the chunks that were handed out.
        """
        self._integers = integers
        if self._workers == 1:
            for task in self._tasks(self._fetched()):
                yield self._learn(task())
            return
        executor, tasks = self._parallel()
        with executor:
            try:
                for chunk in run_ahead(tasks, executor, 2 * self._workers):
                    yield self._learn(chunk)
            except BrokenProcessPool as error:
                raise DatasetError(
                    f"a worker process ended before its work was done ({error}); a script that "
                    "uses workers needs `if __name__ == '__main__':` around what it does, and what "
                    "it fetches must fit the memory; workers=1 does without processes"
                ) from None

    def _parallel(self) -> tuple[Executor, Iterator[Callable[[], Chunk]]]:
        source = self._intake.items
        if self._intake.by_number:
            try:
                sent = pickle.dumps((source, self._rules))
            except Exception:  # whatever a source raises that cannot be pickled
                sent = None
            if sent is not None:
                # Not by fork: the caller may have threads, TensorFlow's for instance.
                pool = ProcessPoolExecutor(
                    self._workers, multiprocessing.get_context("spawn"), _begin, (sent,)
                )
                return pool, self._tasks(self._ranges(), _encode_range)
        threads = ThreadPoolExecutor(self._workers, thread_name_prefix="covey-encode")
        return threads, self._tasks(self._fetched())

    def _tasks(
        self, parts: Iterator[tuple[int, Any]], remote: Callable[..., Chunk] | None = None
    ) -> Iterator[Callable[[], Chunk]]:
        for first, part in parts:
            if remote is not None:
                yield partial(remote, part, self._known, self._features)
            else:
                yield partial(encode_chunk, part, first, self._rules, self._known, self._features)

    def _ranges(self) -> Iterator[tuple[int, range]]:
        first, total = 0, self._intake.length or 0
        while first < total:
            part = range(first, min(first + self._size, total))
            yield first, part
            first = part.stop

    def _fetched(self) -> Iterator[tuple[int, list[Any]]]:
        if self._intake.by_number:
            for first, numbers in self._ranges():
                yield first, _fetch(self._intake.items, numbers)
            return
        items = iter(self._intake.items or ())
        first = 0
        while True:
            part: list[Any] = []
            try:
                part.extend(itertools.islice(items, self._size))
            except CoveyError:
                raise
            except Exception as error:
                raise SourceError(
                    f"example {first + len(part)}: the source failed: "
                    f"{type(error).__name__}: {error}",
                    name="<examples>",
                ) from error
            if not part:
                return
            yield first, part
            first += len(part)

    def _learn(self, chunk: Chunk) -> Chunk:
        """Take in what a chunk says about features, and about the size of examples."""
        if chunk.inference is not None:
            if self._known is None:
                self._known = Inference(self._rules.defaults)
            self._known.merge(chunk.inference, self._integers)
            self._features = Features(self._known.kinds())
        elif self._known is not None:
            self._known.pass_over(len(chunk.block))
        if len(chunk.block):
            each = max(1, chunk.block.data.nbytes // len(chunk.block))
            # Not too sure of it: the next may be much larger.
            wanted = min(_CHUNK_BYTES // each, 4 * self._size, _CHUNK_EXAMPLES)
            self._size = max(1, wanted)
        return chunk


def _fetch(source: Any, numbers: range) -> list[Any]:
    items: list[Any] = []
    for number in numbers:
        try:
            items.append(source[number])
        except CoveyError as error:
            items.append(error)
        except Exception as error:
            items.append(
                SourceError(
                    f"example {number}: the source failed: {type(error).__name__}: {error}",
                    name="<examples>",
                )
            )
    return items


# In another process.

_there: dict[str, Any] = {}


def _begin(sent: bytes) -> None:
    # Ctrl-C goes to all processes of a terminal; the first one sees to it that the others end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _there["source"], _there["rules"] = pickle.loads(sent)


def _encode_range(numbers: range, known: Inference | None, features: Features | None) -> Chunk:
    items = _fetch(_there["source"], numbers)
    return encode_chunk(items, numbers.start, _there["rules"], known, features)


def check_workers(workers: int) -> int:
    """Check the number of workers."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise DatasetError(f"workers is {workers!r}, must be 1 or more")
    return workers
