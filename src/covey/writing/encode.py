"""Encode examples into records, with features that are declared or inferred.

Inference runs on one thread. Other threads or processes encode with the features that were inferred
so far. They return the examples that do not match these exactly, from which the one thread widens
the features.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey._threads import ordered_map
from covey.errors import CoveyError, DatasetError, FeatureError
from covey.schema import Features
from covey.schema.codec import ExampleBlock
from covey.schema.infer import Inference
from covey.schema.ranges import integer_range, join_ranges
from covey.shuffle.keys import Key
from covey.tfrecord import Block
from covey.tfrecord.block import join_blocks
from covey.writing.inputs import (
    Input,
    SkippedExample,
    copy_arrays,
    get_value,
    source_failed,
    split_item,
)
from covey.writing.options import WriteOptions, WriteSchema

# Limits of a chunk, and of the part of the source that a worker encodes at once.
_CHUNK_BYTES = 1 << 20
_CHUNK_EXAMPLES = 4096


@dataclass(slots=True)
class Chunk:
    """Consecutive examples, encoded."""

    block: Block
    features: Features
    """Features of the records."""
    positions: NDArray[np.uint64]
    """Positions of the examples in the source."""
    keys: Sequence[Key] | None
    skipped: list[SkippedExample]


class ChunkSink(Protocol):
    """Receiver of encoded chunks."""

    def add(self, chunk: Chunk) -> None:
        """Store the next chunk."""
        ...

    def integer_range(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest integer of a feature in all chunks, and 0."""
        ...


class ExampleEncoder:
    """Encodes examples one by one, and adds them to a sink in chunks.

    An example is encoded before the next one is requested: a source may reuse its arrays.

    While features are inferred, they fit all examples so far. An example whose types match them
    exactly is encoded at once; only others are inspected and may widen them.

    Args:
        options: Options of the write.
        schema: Features and label.
        sink: Receiver of the chunks.
        fixed: Inferred features that this encoder must not widen: it is one of several workers.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: WriteSchema,
        sink: ChunkSink,
        fixed: Features | None = None,
    ) -> None:
        self._options = options
        self._schema = schema
        self._sink = sink
        self._infers = schema.features is None
        self._is_worker = fixed is not None
        self._inference = Inference(options.defaults)
        self._features = schema.features or fixed or Features({})
        self._block: ExampleBlock = self._features.begin_block()
        self._early: list[Block] = []  # blocks of the chunk that are complete
        self._first = 0  # position of the first example of the chunk
        self._next = 0  # position of the next example
        self._keys: list[Key] = []
        self._skipped: list[SkippedExample] = []
        self._exact = 0  # examples of the chunk that were not inspected

    @property
    def position(self) -> int:
        """Position of the next example in the source."""
        return self._next

    @property
    def current_features(self) -> Features | None:
        """Features that were inferred from the examples so far; None before the first one."""
        return None if self._inference.is_empty else self._features

    def final_features(self) -> Features:
        """Return the features that fit all examples.

        Raises:
            FeatureError: If they cannot be inferred from the examples.
        """
        return self._schema.features or Features(self._inference.finish())

    def encode(self, items: Iterable[Any], first: int = 0) -> list[Any]:
        """Encode items.

        Args:
            items: Items of the source, or errors in place of items.
            first: Position of the first item in the source.

        Returns:
            The items from the first one that a worker cannot encode; otherwise no items.
        """
        self._first = self._next = first
        source = iter(items)
        rest: list[Any] = []
        state = ""
        while state != "end":
            state, item = self._extend(source)
            if state == "item" and not self._append(item):
                rest, state = [item, *source], "end"
            if self._block.bytes >= _CHUNK_BYTES or self._next - self._first >= _CHUNK_EXAMPLES:
                self._flush()
        if self._next > self._first:
            self._flush()
        return rest

    def accept(self, chunks: Sequence[Chunk], rest: Iterable[Any], position: int) -> None:
        """Add the result of a worker, and encode the items that it returned.

        Args:
            chunks: Chunks that the worker encoded.
            rest: Items that it did not encode.
            position: Position of the first of these in the source.
        """
        for chunk in chunks:
            self._inference.pass_over(len(chunk.block))
            self._sink.add(chunk)
        self.encode(rest, position)

    def _extend(self, source: Iterator[Any]) -> tuple[str, Any]:
        """Encode items natively, up to one that must be inspected, or a full chunk.

        Returns:
            ``"end"``, ``"full"``, or ``"item"`` and that item.
        """
        options, features = self._options, self._features
        is_native = (
            options.key is None
            and options.names is None
            and not features.optional
            and (features.is_simple or not self._infers)
        )
        before = len(self._block)
        try:
            if not is_native:
                for item in source:
                    return "item", item
                return "end", None
            return self._block.extend(
                source,
                self._keys,
                exact=self._infers,
                bytes=_CHUNK_BYTES,
                count=_CHUNK_EXAMPLES - (self._next - self._first),
            )
        except CoveyError:
            raise
        except Exception as error:
            raise source_failed(self._next + len(self._block) - before, error) from error
        finally:
            added = len(self._block) - before
            self._next += added
            self._exact += added

    def _append(self, item: Any) -> bool:
        """Encode or skip one item; return False if only the thread that infers may do that."""
        key: Key | None = None
        try:
            example, key = split_item(item, self._options)
            if self._append_exact(example):
                self._exact += 1
            elif self._infers and self._is_worker:
                return False
            else:
                self._use(self._fit(example))
                self._block.append(self._fill_in(example))
        except CoveyError as error:
            if self._infers and self._is_worker:
                return False
            self._skip(error, key)
        else:
            if key is not None:
                self._keys.append(key)
        self._next += 1
        return True

    def _append_exact(self, example: Mapping[str, Any]) -> bool:
        """Encode an example without widening the features; return whether it fits."""
        features = self._features
        try:
            if not self._infers:
                self._block.append(features.fill_in(example))
            elif features.is_simple:
                self._block.append_exact(features.fill_in(example))
            else:
                return False
        except FeatureError:
            return False
        return True

    def _fill_in(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an example with the defaults of the features that it lacks."""
        features = self._features
        if self._infers and self._options.defaults:
            # A feature that has been None in all examples does not exist yet.
            example = {
                name: value
                for name, value in example.items()
                if value is not None or name in features
            }
        return features.fill_in(example)

    def _fit(self, example: Mapping[str, Any]) -> Features:
        """Return features that fit an example, and all before it."""
        if self._infers:
            return self._widen(example)
        for features in (self._schema.features, self._schema.fallback):
            if features is not None and features is not self._features:
                try:
                    features.encode(features.fill_in(example))
                except FeatureError:
                    continue
                return features
        return self._features  # encoding the example raises the error

    def _widen(self, example: Mapping[str, Any]) -> Features:
        label, inference = self._schema.label, self._inference
        skips = self._options.on_error == "skip"
        if skips and label is not None and get_value(example, label) is None:
            # A first example without a label must not define features without one.
            raise FeatureError("the label is missing", feature=label)
        inference.check_names(example)
        alone = Inference(self._options.defaults)
        alone.add(example, self._next)
        changed = inference.merge(alone, self._integer_range)
        return Features(inference.kinds()) if changed else self._features

    def _integer_range(self, name: str) -> tuple[int, int]:
        """Return the range of the integers of a feature in all examples so far."""
        self._early.append(self._block.take())
        ranges = (integer_range(self._features, block, name) for block in self._early)
        return join_ranges(self._sink.integer_range(name), *ranges)

    def _use(self, features: Features) -> None:
        """Encode the next examples with other features, in another chunk."""
        if features is not self._features:
            if self._next > self._first:
                self._flush()
            self._features = features
            self._block = features.begin_block()

    def _skip(self, error: CoveyError, key: Key | None) -> None:
        if self._options.on_error == "skip":
            error.example = None
            self._skipped.append(SkippedExample(self._next, str(error)))
            return
        if isinstance(error, FeatureError):
            error.example = self._next
            if key is not None:
                error.reason += f" (key {key!r})"
        raise error

    def _flush(self) -> None:
        """Add the examples of the chunk to the sink."""
        positions = np.arange(self._first, self._next, dtype=np.uint64)
        if self._skipped:
            skipped = np.array([each.example for each in self._skipped])
            positions = np.delete(positions, skipped - self._first)
        keys = self._keys or None
        if keys is not None and len(keys) != len(positions):
            raise FeatureError(
                f"some of the examples {self._first} to {self._next - 1} have keys, others do not"
            )
        self._inference.pass_over(self._exact)
        block = join_blocks([*self._early, self._block.take()])
        chunk = Chunk(block, self._features, positions, keys, self._skipped)
        self._first, self._exact = self._next, 0
        self._early, self._keys, self._skipped = [], [], []
        self._sink.add(chunk)


def encode_examples(
    examples: Input, options: WriteOptions, schema: WriteSchema, sink: ChunkSink
) -> ExampleEncoder:
    """Encode all examples of an input, on as many threads or processes as the options request.

    Returns:
        The encoder, which has the features.
    """
    encoder = ExampleEncoder(options, schema, sink)
    if options.encode_workers > 1:
        _ParallelEncoder(examples, options, schema, encoder).run()
    elif examples.by_index:
        encoder.encode(_fetch(examples.items, range(examples.length or 0)))
    else:
        encoder.encode(() if examples.items is None else examples.items)
    return encoder


@dataclass(slots=True)
class _ListSink:
    """Chunks of a worker."""

    chunks: list[Chunk] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def integer_range(self, name: str) -> tuple[int, int]:
        raise AssertionError("workers do not widen features")


@dataclass(slots=True)
class _Encoded:
    """Result of a worker."""

    chunks: list[Chunk]
    position: int
    """Position of the first item that is not encoded."""
    rest: list[Any] | bytes | range
    """Items that are not encoded; pickled, or as positions, if the worker is a process."""


class _ParallelEncoder:
    """Encodes parts of a source in parallel.

    Items that are accessible by index are fetched and encoded in processes, if the source can be
    pickled. Other items are encoded in threads, while this thread fetches the next ones.
    """

    def __init__(
        self, examples: Input, options: WriteOptions, schema: WriteSchema, encoder: ExampleEncoder
    ) -> None:
        self._examples = examples
        self._options = options
        self._schema = schema
        self._encoder = encoder
        self._part_examples = 1  # examples of the next part

    def run(self) -> None:
        executor, parts, encode = self._start()
        with executor:
            try:
                tasks = self._tasks(parts, encode)
                for result in ordered_map(tasks, executor, 2 * self._options.encode_workers):
                    self._adapt_part_size(result.chunks)
                    rest = self._items(result.rest)
                    self._encoder.accept(result.chunks, rest, result.position)
            except BrokenProcessPool as error:
                raise DatasetError(
                    f"a worker process ended unexpectedly ({error})",
                    remedy="a script that uses workers needs `if __name__ == '__main__':`, items "
                    "of classes that can be imported, and memory for what it fetches; workers=1 "
                    "starts no processes",
                ) from None

    def _start(
        self,
    ) -> tuple[
        Executor, Iterator[tuple[int, Any]], Callable[[Any, int, Features | None], _Encoded]
    ]:
        workers = self._options.encode_workers
        if self._examples.by_index:
            try:
                state = pickle.dumps((self._examples.items, self._options, self._schema))
            except Exception:  # errors of any type from the source
                pass
            else:
                # Not fork: the process may have threads, such as those of TensorFlow.
                context = multiprocessing.get_context("spawn")
                pool = ProcessPoolExecutor(workers, context, _start_process, (state,))
                return pool, self._ranges(), _encode_in_process
        threads = ThreadPoolExecutor(workers, thread_name_prefix="covey-encode")
        return threads, self._lists(), partial(_encode_part, self._options, self._schema)

    def _tasks(
        self,
        parts: Iterator[tuple[int, Any]],
        encode: Callable[[Any, int, Features | None], _Encoded],
    ) -> Iterator[Callable[[], _Encoded]]:
        for first, part in parts:
            if self._schema.features is not None:
                yield partial(encode, part, first, None)
            elif self._encoder.current_features is None:  # no worker has started yet
                self._encoder.encode(self._items(part), first)
            else:
                yield partial(encode, part, first, self._encoder.current_features)

    def _items(self, part: Any) -> Iterable[Any]:
        if isinstance(part, bytes):
            items: list[Any] = pickle.loads(part)
            return items
        return _fetch(self._examples.items, part) if isinstance(part, range) else part

    def _adapt_part_size(self, chunks: Sequence[Chunk]) -> None:
        records = sum(len(chunk.block) for chunk in chunks)
        if records:
            size = max(1, sum(chunk.block.data.nbytes for chunk in chunks) // records)
            # The next examples may be much larger.
            limit = min(_CHUNK_BYTES // size, 4 * self._part_examples, _CHUNK_EXAMPLES)
            self._part_examples = max(1, limit)

    def _ranges(self) -> Iterator[tuple[int, range]]:
        first, total = 0, self._examples.length or 0
        while first < total:
            part = range(first, min(first + self._part_examples, total))
            yield first, part
            first = part.stop

    def _lists(self) -> Iterator[tuple[int, list[Any]]]:
        if self._examples.by_index:
            for first, indices in self._ranges():
                yield first, list(_fetch(self._examples.items, indices))
            return
        items = iter(() if self._examples.items is None else self._examples.items)
        first = 0
        while True:
            part: list[Any] = []
            try:
                part.extend(map(copy_arrays, itertools.islice(items, self._part_examples)))
            except CoveyError:
                raise
            except Exception as error:
                raise source_failed(first + len(part), error) from error
            if not part:
                return
            yield first, part
            first += len(part)


def _fetch(source: Any, indices: range) -> Iterator[Any]:
    """Yield items by index, and an error in place of each that cannot be fetched."""
    for index in indices:
        try:
            item = source[index]
        except CoveyError as error:
            item = error
        except Exception as error:
            item = source_failed(index, error)
        yield item


def _encode_part(
    options: WriteOptions,
    schema: WriteSchema,
    items: Iterable[Any],
    first: int,
    fixed: Features | None,
) -> _Encoded:
    sink = _ListSink()
    encoder = ExampleEncoder(options, schema, sink, fixed)
    rest = encoder.encode(items, first)
    return _Encoded(sink.chunks, encoder.position, rest)


# State of a worker process.
_process: dict[str, Any] = {}


def _start_process(state: bytes) -> None:
    # Ctrl-C reaches all processes of a terminal; the main process stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _process["source"], _process["options"], _process["schema"] = pickle.loads(state)


def _encode_in_process(indices: range, first: int, fixed: Features | None) -> _Encoded:
    items = _fetch(_process["source"], indices)
    result = _encode_part(_process["options"], _process["schema"], items, first, fixed)
    try:
        result.rest = pickle.dumps(result.rest)
    except Exception:  # items that cannot be pickled are fetched again
        result.rest = range(result.position, indices.stop)
    return result
