"""Batches of a split that is stored on the device as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from covey.adapters import convert
from covey.adapters.torch.dataloader import BatchDataLoader, make_dataloader
from covey.adapters.torch.device import DeviceOptions, ImageConverter
from covey.adapters.torch.samplers import EpochSteps
from covey.dataset.dataset import Dataset
from covey.errors import PlanError
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.loader.source import check_classes
from covey.plan import BalancedPlan, Plan, SequentialPlan

# Number of examples that are read at once.
_CHUNK_ROWS = 256

# Number of steps whose record ids are drawn and copied at once.
_BLOCK_STEPS = 64

# Columns with smaller rows are gathered for all steps of a block at once.
_MAX_SMALL_ROW_BYTES = 64


class ResidentSplit:
    """The examples that a plan can draw, decoded and stored on a device.

    A copy in another process reads them again.

    Args:
        loader: The loader.
        options: The device.

    Raises:
        PlanError: If a batch is not a selection of rows of fixed shape, or memory is insufficient.
    """

    def __init__(self, loader: Loader, options: DeviceOptions) -> None:
        self.examples = _check(loader)
        self.options = options
        self._loader = loader.copy()
        plan = loader.plan
        # In ascending order; None if they are all records.
        self._records: NDArray[np.int64] | None = None
        if isinstance(plan, BalancedPlan) and len(plan.records) < len(self.examples):
            self._records = plan.records
        self.device = options.resolved()
        self.structure = self._read()
        """The structure of a batch, with a :class:`DeviceColumn` in place of each tensor."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ResidentSplit, (self._loader, self.options)

    def __deepcopy__(self, memo: Any) -> ResidentSplit:
        return self  # it never changes

    def rows(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """Return the rows of record ids, on the device."""
        rows = ids if self._records is None else np.searchsorted(self._records, ids)
        tensor = torch.from_numpy(np.ascontiguousarray(rows))
        if not self.options.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _read(self) -> Any:
        form = self._loader.format
        assert isinstance(form, BatchFormat)
        examples = self.examples if self._records is None else self.examples.select(self._records)
        rows = len(examples)
        # All ranks read all rows: each draws from all classes.
        options = replace(form.options, rank=0, world_size=1, mode="split")
        plan = partial(SequentialPlan, rows, min(rows, _CHUNK_ROWS))
        loader = Loader(BatchFormat(examples, options), plan, options)
        batches: Any = make_dataloader(loader, DeviceOptions(self.device))
        structure: Any = None
        columns: list[DeviceColumn] = []
        begin = 0
        for batch in batches:
            parts: list[torch.Tensor] = []
            convert(batch, partial(_collect, parts))
            if structure is None:
                self._check_memory(parts, rows)
                columns = [DeviceColumn(part, rows, self.device) for part in parts]
                structure = convert(batch, partial(_next, iter(columns)))
            for column, part in zip(columns, parts, strict=True):
                column.write(begin, part)
            begin += len(parts[0])
        if self.options.is_cuda:
            torch.cuda.synchronize(self.device)  # batches may be gathered on any stream
        return structure

    def _check_memory(self, parts: list[torch.Tensor], rows: int) -> None:
        needed = sum(part[:1].nbytes for part in parts) * rows
        if self.options.is_cuda:
            free, _ = torch.cuda.mem_get_info(self.device)
            if needed > free:
                raise _no_memory(needed, self.device, f", of which {free / 2**30:,.2f} are free")
        try:
            torch.empty(needed, dtype=torch.uint8, device=self.device)
        except RuntimeError:
            raise _no_memory(needed, self.device) from None


def _no_memory(needed: int, device: torch.device, more: str = "") -> PlanError:
    return PlanError(
        f"the decoded split needs {needed / 2**30:,.2f} GiB on {device}{more}",
        option="resident",
        found=True,
        allowed="False",
        remedy="use a smaller image_size=, or select= fewer features",
    )


def _refused(reason: str) -> PlanError:
    return PlanError(reason, option="resident", found=True, allowed="False for these batches")


def _check(loader: Loader) -> Dataset:
    """Return the dataset of a loader whose batches are rows of its columns."""
    form = loader.format
    if not isinstance(form, BatchFormat) or not isinstance(form.examples, Dataset):
        raise _refused("the loader is not one of a dataset")
    if form.has_hooks:
        raise _refused("hooks are called for each batch, on the CPU")
    if form.pads_to_longest:
        raise _refused("rows are padded to the longest one of each batch; pass pad_length=")
    pixels = form.options.pixels
    if form.has_images and (pixels.is_random or pixels.views > 1):
        raise _refused("random crops, flips and views are different in each batch")
    return form.examples


def _collect(parts: list[torch.Tensor], value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        raise _refused(f"a column has values of type {type(value).__name__}")
    if parts and len(value) != len(parts[0]):
        raise _refused("a column has rows of different shapes")
    parts.append(value)


def _next(columns: Iterator[DeviceColumn], _: Any) -> DeviceColumn:
    return next(columns)


class DeviceColumn:
    """One column of a split, on the device.

    Args:
        first: Its first rows.
        rows: Number of rows.
        device: The device.
    """

    def __init__(self, first: torch.Tensor, rows: int, device: torch.device) -> None:
        self.row_shape, self.dtype = first.shape[1:], first.dtype
        row_bytes = first[:1].nbytes
        # Images are converted batch by batch.
        self.is_small = row_bytes <= _MAX_SMALL_ROW_BYTES and first.ndim < 4
        """Whether rows of many steps are gathered at once."""
        values = torch.empty((rows, *self.row_shape), dtype=self.dtype, device=device)
        self._values = self._words = values
        if not self.is_small and row_bytes % 8 == 0:
            # Eight bytes at a time.
            self._words = values.view(rows, -1).view(torch.int64)

    def write(self, begin: int, rows: torch.Tensor) -> None:
        """Store rows from `begin` on."""
        if rows.shape[1:] != self.row_shape or rows.dtype != self.dtype:
            raise _refused(
                f"a column has rows of {self.dtype} {tuple(self.row_shape)} and of {rows.dtype} "
                f"{tuple(rows.shape[1:])}"
            )
        self._values[begin : begin + len(rows)] = rows

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values of `rows`."""
        taken = self._words.index_select(0, rows)
        if self._words is self._values:
            return taken
        return taken.view(self.dtype).view(-1, *self.row_shape)


class ResidentDataLoader(BatchDataLoader):
    """A :class:`BatchDataLoader` whose batches are gathered on the device."""

    split: ResidentSplit
    """The examples."""

    def __iter__(self) -> Any:
        """Iterate over the next epoch, which begins with the first batch that is requested."""
        return ResidentIterator(self)


class ResidentIterator(Iterator[Any]):
    """One iteration over a :class:`ResidentDataLoader`, which advances the position.

    The record ids of many steps are copied to the device at once, and so are small columns, such as
    labels.

    Args:
        batches: The batches.
    """

    def __init__(self, batches: ResidentDataLoader) -> None:
        split = batches.split
        self._split = split
        self._sampler = batches._steps
        self._convert = ImageConverter(split.options.images)
        self._is_cuda = split.options.is_cuda
        self._stream: Any = None
        self._plan: Plan | None = None
        self._epoch: EpochSteps | None = None
        self._is_exhausted = False
        self._step = self._begin = self._end = 0
        self._rows: tuple[torch.Tensor, ...] = ()
        self._small: dict[DeviceColumn, tuple[torch.Tensor, ...]] = {}

    def __next__(self) -> Any:
        sampler = self._sampler
        if self._epoch is None:
            if self._is_exhausted:
                raise StopIteration
            sampler.start()
            self._epoch = sampler.cursor.begin()
        step = self._step
        if step == self._epoch.steps:
            sampler.cursor.end()
            self._epoch, self._is_exhausted = None, True
            raise StopIteration
        stream = torch.cuda.current_stream(self._split.device) if self._is_cuda else None
        if step == self._end or sampler.plan is not self._plan or stream != self._stream:
            self._stream = stream
            self._draw(self._epoch)
        batch = convert(self._split.structure, self._take)
        self._step = step + 1
        sampler.cursor.advance(self._epoch, self._step)
        return batch

    def _take(self, column: DeviceColumn) -> torch.Tensor:
        number = self._step - self._begin
        if column.is_small:
            return self._small[column][number]
        return self._convert(column.take(self._rows[number]))

    def _draw(self, epoch: EpochSteps) -> None:
        """Copy the record ids of the next steps to the device."""
        plan = self._plan = self._sampler.plan
        steps = min(_BLOCK_STEPS, epoch.steps - self._step)
        if not plan.is_endless and steps > 1 and self._step + steps == epoch.steps:
            steps -= 1  # the last one may be shorter
        ids, labels = plan.native.draw(self._step, steps, plan.share(epoch.first))
        if labels is not None:
            classes = labels.repeat(ids.shape[1] // max(1, labels.shape[1]), axis=1)
            check_classes(self._split.examples, ids.reshape(-1), classes.reshape(-1))
        rows = self._split.rows(ids)
        self._begin, self._end = self._step, self._step + steps
        self._rows, self._small = rows.unbind(0), {}
        flat = rows.view(-1)

        def gather(column: DeviceColumn) -> None:
            if column.is_small:
                values = column.take(flat).view(*rows.shape, *column.row_shape)
                self._small[column] = values.unbind(0)

        convert(self._split.structure, gather)
