"""Encode the examples of an input, on one thread, several threads or several processes."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from covey._threads import ordered_map
from covey.errors import CoveyError, DatasetError
from covey.schema import Features
from covey.writing.encode import Chunk, ItemEncoder
from covey.writing.inputs import Input, copy_arrays, fetch, source_failed
from covey.writing.options import MAX_CHUNK_EXAMPLES, WriteOptions, WriteSchema


def encode_examples(examples: Input, options: WriteOptions, encoder: ItemEncoder) -> None:
    """Encode all examples of an input, on as many threads or processes as the options request.

    Args:
        examples: The input.
        options: Options of the write.
        encoder: The encoder, which has the features and the sink of the chunks.
    """
    if options.encode_workers > 1 and examples.number is None:
        _ParallelEncoder(examples, options, encoder).run()
        return
    encoder.encode(examples.read(), examples.first)


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

    def __init__(self, examples: Input, options: WriteOptions, encoder: ItemEncoder) -> None:
        self._examples = examples
        self._options = options
        self._schema = encoder.schema
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
                # Not fork: the process may have threads, such as threads of TensorFlow.
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
        return fetch(self._examples.items, part) if isinstance(part, range) else part

    def _adapt_part_size(self, chunks: Sequence[Chunk]) -> None:
        records = sum(len(chunk.block) for chunk in chunks)
        if records:
            size = max(1, sum(chunk.block.data.nbytes for chunk in chunks) // records)
            # The next examples may be much larger.
            fitting = self._options.chunk_bytes // size
            self._part_examples = max(1, min(fitting, 4 * self._part_examples, MAX_CHUNK_EXAMPLES))

    def _ranges(self) -> Iterator[tuple[int, range]]:
        first, total = 0, self._examples.length or 0
        while first < total:
            part = range(first, min(first + self._part_examples, total))
            yield first, part
            first = part.stop

    def _lists(self) -> Iterator[tuple[int, list[Any]]]:
        if self._examples.by_index:
            for first, indices in self._ranges():
                yield first, list(fetch(self._examples.items, indices))
            return
        items = iter(self._examples.read())
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


def _encode_part(
    options: WriteOptions,
    schema: WriteSchema,
    items: Iterable[Any],
    first: int,
    fixed: Features | None,
) -> _Encoded:
    sink = _ListSink()
    encoder = ItemEncoder(options, schema, sink, fixed)
    rest = encoder.encode(items, first)
    return _Encoded(sink.chunks, encoder.position, rest)


# State of a worker process.
_process: dict[str, Any] = {}


def _start_process(state: bytes) -> None:
    # Ctrl-C reaches all processes of a terminal; the main process stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _process["source"], _process["options"], _process["schema"] = pickle.loads(state)


def _encode_in_process(indices: range, first: int, fixed: Features | None) -> _Encoded:
    items = fetch(_process["source"], indices)
    result = _encode_part(_process["options"], _process["schema"], items, first, fixed)
    try:
        result.rest = pickle.dumps(result.rest)
    except Exception:  # items that cannot be pickled are fetched again
        result.rest = range(result.position, indices.stop)
    return result
