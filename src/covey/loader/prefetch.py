"""Producers: build the batches of consecutive steps in order, prefetched by threads."""

from __future__ import annotations

import atexit
import contextlib
import math
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError
from covey.loader.batch import BatchFormat, Format, Ids, Prefetch
from covey.loader.options import LoadOptions
from covey.plan import Plan
from covey.plan.balanced import BatchKey
from covey.schema.codec import RowArray
from covey.schema.pixels import ImageColumn

if TYPE_CHECKING:
    from covey.loader.read_ahead import ReadAhead

# The shards of the examples of the first steps are opened before the first batch is built.
_STEPS_OPENED_FIRST = 4

# Limits of the default number of prefetched batches.
_MAX_PREFETCHED_BATCHES = 16
_MAX_PREFETCHED_BYTES = 16 << 20
# Batches that all threads build together: two of them in work, the others finished.
_MIN_PREFETCHED_BATCHES = 4
_MIN_PART_IMAGES = 4


Allocate = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Returns an array of a shape and dtype. Views of it must hold a reference to it, by which the
native core detects that the array is in use: its memory must not belong to another array."""


@dataclass(frozen=True, eq=False)
class NativeSource:
    """What the native core needs to read and decode examples without Python.

    Args:
        gather: Mapped shards.
        decoder: Decoder of the features.
        check: Level of verification of a record frame.
        label: Column of the class id, or -1.
        has_labels: Whether the index stores class ids; they are compared with those of the plan.
        numbers: Record id of each example, if they differ from the example ids.
        class_ids: Class id of each example, if they differ from those of the index.
        columns: Shape and dtype of one row of each column.
        images: For each column of decoded images its index, and how images are decoded.
    """

    gather: _core.Gather
    decoder: _core.Decoder
    check: int
    label: int
    has_labels: bool
    numbers: Ids | None
    class_ids: Ids | None
    columns: tuple[RowArray, ...]
    images: tuple[tuple[int, ImageColumn], ...] = ()

    @property
    def add_labels(self) -> bool:
        """Whether the class ids are appended as a column."""
        return self.label < 0 and self.has_labels

    @property
    def outputs(self) -> tuple[RowArray, ...]:
        """Shape and dtype of one row of each output.

        The columns, the labels if they are added, and the further views of images.
        """
        labels: list[RowArray] = [((), np.dtype(np.int64))] if self.add_labels else []
        further: list[RowArray] = []
        for _, image in self.images:
            further += [(image.shape, image.dtype)] * (image.options.views - 1)
        return (*self.columns, *labels, *further)

    @property
    def views(self) -> dict[int, list[int]]:
        """The outputs of each column of images, by the index of the column."""
        following = len(self.columns) + self.add_labels
        outputs: dict[int, list[int]] = {}
        for column, image in self.images:
            outputs[column] = [column, *range(following, following + image.options.views - 1)]
            following += image.options.views - 1
        return outputs

    @property
    def row_bytes(self) -> int:
        """Size in bytes of one decoded example."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.outputs)


class BatchBuilder:
    """Builds the batch of a step in the calling thread.

    Args:
        format: Contents of a batch.
        plan: Record ids of a batch.
        origin: Batch index of step 0.
    """

    def __init__(self, format: Format, plan: Plan, origin: int) -> None:
        self.format = format
        self.plan = plan
        self.share = plan.share(origin)
        self._origin = origin
        self._cancelled = False

    def cancel(self) -> None:
        """Abort the batches that are being built."""
        self._cancelled = True

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise ClosedError("the batch was cancelled")

    def __call__(self, step: int) -> Any:
        self._check_cancelled()
        return self.format.build(*self.draw(step), self._check_cancelled)

    def draw(self, step: int) -> tuple[Ids, Ids | None, BatchKey]:
        """Return the example ids, the class ids and the identity of the batch of a step."""
        drawn, labels = self.plan.native.draw(step, 1, self.share)
        ids, classes = drawn[0], None
        if labels is not None:
            classes = np.repeat(labels[0], len(ids) // max(1, labels.shape[1]))
        return ids, classes, self.plan.key(step, self._origin)


def start_producer(
    format: Format,
    plan: Plan,
    origin: int,
    *,
    steps: int,
    options: LoadOptions,
    allocate: Allocate | None = None,
) -> Producer:
    """Return a producer of the `steps` batches from the batch `origin` on.

    The native core builds them if it can; otherwise Python threads do.

    Args:
        format: Contents of a batch.
        plan: Record ids of a batch.
        origin: Index of the first batch.
        steps: Number of batches.
        options: Threads and prefetching.
        allocate: Allocates the arrays that the native core writes (default: page-aligned ones).
    """
    builder = BatchBuilder(format, plan, origin)
    if isinstance(format, BatchFormat) and format.is_native:
        ids = [builder.draw(step)[0] for step in range(min(steps, _STEPS_OPENED_FIRST))]
        source = format.native_source(np.concatenate(ids))
        if source is not None:
            rows, allocate = len(ids[0]), allocate or allocate_aligned
            return NativeProducer(builder, format, source, steps, rows, options, allocate)
    return ThreadedProducer(builder, steps, options, format.prefetch)


class Producer(ABC):
    """Builds the batches of consecutive steps."""

    def __init__(self) -> None:
        self._process = os.getpid()
        _RUNNING.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether its threads exist only in the parent process, which has forked this one."""
        return self._process != os.getpid()

    @abstractmethod
    def next(self) -> Any:
        """Return the next batch."""

    @abstractmethod
    def interrupt(self) -> None:
        """Cancel all work without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """Cancel all work, and wait until the threads have stopped."""


# Threads that still run at exit would use modules that the interpreter has torn down.
_RUNNING: weakref.WeakSet[Producer] = weakref.WeakSet()

# Tasks of the parent process, whose locks may be held by threads that a child does not have.
_INHERITED: list[object] = []


@atexit.register
def _close_all() -> None:
    running = [each for each in _RUNNING if not each.is_inherited]
    for producer in running:
        producer.interrupt()
    for producer in running:
        with contextlib.suppress(Exception):  # the others must be closed nevertheless
            producer.close()


class NativeProducer(Producer):
    """Lets the native core build batches, and builds in Python those that it cannot.

    These are a shorter last batch of an epoch, a batch whose shards are not mapped yet, and a batch
    with an error, so that the error is reported in full. Images in formats that the native core
    does not support are decoded when their batch is requested.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        format: BatchFormat,
        source: NativeSource,
        steps: int,
        rows: int,
        options: LoadOptions,
        allocate: Allocate,
    ) -> None:
        threads = min(options.thread_count, steps)
        # A small batch is built by one thread, a batch of images by all of them.
        parts = min(rows // _MIN_PART_IMAGES, 2 * threads) if source.images else 1
        prefetch = options.prefetch
        if prefetch is None:
            fitting = _MAX_PREFETCHED_BYTES // max(1, source.row_bytes * rows)
            needed = _MIN_PREFETCHED_BATCHES if parts > 1 else options.thread_count + 1
            prefetch = max(needed, min(_MAX_PREFETCHED_BATCHES, fitting))
        self._builder = builder
        self._format = format
        self._source = source
        self._compose = format.native_composer(source)
        self._closed = False
        self._step = 0
        outputs = source.outputs
        self._prefetcher = _core.Prefetcher(
            source.gather,
            source.decoder,
            builder.plan.native,
            builder.share,
            steps=steps,
            check=source.check,
            label=source.label,
            add_labels=source.add_labels,
            check_classes=source.has_labels,
            record_ids=source.numbers,
            class_ids=source.class_ids,
            threads=threads,
            depth=min(steps, prefetch),
            allocate=lambda rows: tuple(
                allocate((rows, *shape), dtype) for shape, dtype in outputs
            ),
            reuse_buffers=options.reuse_buffers,
            images=[(column, image.spec, source.views[column]) for column, image in source.images],
            seed=builder.plan.seed,
            parts=max(1, parts),
        )
        super().__init__()

    def next(self) -> Any:
        try:
            columns = self._prefetcher.next()
        except ValueError:
            if self._closed:
                raise ClosedError("the producer is closed") from None
            raise
        step = self._step
        self._step = step + 1
        if columns is None:
            return self._builder(step)
        if self._source.images and self._prefetcher.pending:
            ids, _, key = self._builder.draw(step)
            self._format.complete(self._source, columns, self._prefetcher.pending, ids, key)
        return columns if self._compose is None else self._compose(columns)

    def interrupt(self) -> None:
        self._closed = True
        self._prefetcher.close()

    close = interrupt


# Smaller arrays are not worth a system call.
_MIN_ALIGNED_BYTES = 256 << 10


def allocate_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array; a large one begins at a page, so that frameworks use it without a copy.

    TensorFlow and JAX require an alignment of 64 bytes, which numpy does not guarantee.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _MIN_ALIGNED_BYTES:
        return np.empty(shape, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # fewer page faults
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray(shape, dtype, memory)


class ThreadedProducer(Producer):
    """Lets Python threads build batches, one batch per task.

    It pays where decoding releases the interpreter lock: images, compressed and remote shards.

    Args:
        builder: Builds a batch.
        steps: Number of steps.
        options: Threads and prefetching.
        fetch: Starts to fetch remote examples; None if they are local.
    """

    def __init__(
        self, builder: BatchBuilder, steps: int, options: LoadOptions, fetch: Prefetch | None
    ) -> None:
        from covey._threads import DaemonThreads, ordered_map

        self._builder = builder
        self._steps = steps
        self._ahead: ReadAhead | None = None
        if fetch is not None:
            from covey.loader.read_ahead import ReadAhead

            self._ahead = ReadAhead(lambda step: builder.draw(step)[0], fetch, steps)
        threads = min(options.thread_count, steps)
        prefetch = 2 * threads if options.prefetch is None else options.prefetch
        self._threads = DaemonThreads(threads, "covey-loader") if threads else None
        # A generator: a StopIteration of a hook becomes a RuntimeError.
        self._batches = ordered_map(self._tasks(), self._threads, prefetch)
        super().__init__()

    def _tasks(self) -> Iterator[Callable[[], Any]]:
        for step in range(self._steps):
            if self._ahead is not None:
                self._ahead.fetch(step)
            yield partial(self._builder, step)

    def next(self) -> Any:
        return next(self._batches)

    def interrupt(self) -> None:
        self._builder.cancel()

    def close(self) -> None:
        self.interrupt()
        if self.is_inherited:
            _INHERITED.append(self._batches)
        elif self._threads is not None:
            self._threads.shutdown()
