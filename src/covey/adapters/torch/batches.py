"""The batches of a loader as a dataset of PyTorch, for a ``DataLoader`` with or without workers."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from covey.adapters import convert
from covey.adapters.torch.course import Course, is_drained
from covey.adapters.torch.samplers import ranks
from covey.adapters.torch.sharing import Progress, Shared
from covey.adapters.torch.tensors import tensor
from covey.adapters.torch.working import Resumed, Share, weights_of
from covey.errors import PlanError
from covey.loader import Loader
from covey.plan import Plan


def to_torch(loader: Loader) -> Batches:
    """The batches of a loader, for ``DataLoader(..., batch_size=None)``.

    >>> import covey
    >>> birds = ({"size": n, "species": n % 3} for n in range(30))
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> batches = to_torch(covey.open("birds").batches(2, 2, seed=1))
    >>> next(iter(batches))
    (tensor([11,  5,  7, 28]), tensor([2, 2, 1, 1]))
    """
    return Batches(loader)


# Where the iterations over loaders are: a caller that calls to_torch again goes on.
_SHARED: weakref.WeakKeyDictionary[Loader, Shared] = weakref.WeakKeyDictionary()


class Batches(IterableDataset[Any]):
    """Whole batches as tensors; ``loader.to_torch()`` makes it.

    To be used with ``batch_size=None``: ``DataLoader(loader.to_torch(), batch_size=None)``. Each
    iteration is the next epoch; one that is left early is over, as it is for PyTorch's own
    datasets. Without workers the loader itself makes the batches, ahead in its threads. With n
    workers, each makes every n-th, so that they come in the same order.

    Args:
        loader: Whose batches; it begins where that is. Its reuse_buffers must be False.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        # A tensor is somebody's to keep; and to copy it would cost what recycling is to save.
        if loader.reuse_buffers:
            raise PlanError(
                "reuse_buffers is True: the memory of a tensor would be overwritten while somebody "
                "has it; make the loader with reuse_buffers=False, whose memory is used again when "
                "nobody has it any more"
            )
        _, world_size = ranks()
        if world_size > 1 and loader.plan.world_size == 1:
            warnings.warn(
                f"torch.distributed has {world_size} processes, and this loader makes the same batches "
                "in each; pass rank= and world_size= to ds.batches(), or mode='independent' with them",
                stacklevel=3,
            )
        self.loader = loader
        if loader not in _SHARED:
            state = loader.state_dict()
            begin = Progress(loader=state["batch"], weights=weights_of(state))
            begin.course = Course.of(state["batch"])
            _SHARED[loader] = Shared(begin)
        self._shared = _SHARED[loader]
        # Of a copy that a worker has:
        self._turn = 0  # how often it was iterated,
        self._share: Share | None = None  # what it is at,
        self._resumed: Resumed | None = None  # and what it is to go on with.

    def __len__(self) -> int:
        """The steps of an epoch."""
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<covey.adapters.torch.Batches of {self.loader!r}>"

    @property
    def _plan(self) -> Plan:
        return self.loader.plan

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; in a worker, its share of them."""
        _check_collating(sys._getframe(1))
        worker = get_worker_info()
        if worker is None:
            return self._hand_over()
        self._share = self._join(worker)
        return self._share

    # In the process that has the DataLoader.

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch, also in workers that persist.

        If a state was loaded that is in the midst of it, that is where the iteration goes on.
        """
        with self._own() as progress:
            self._look(progress)
            course = progress.course
            course.set_epoch(epoch, self._plan)
            progress.course, progress.working = course, 0

    def state_dict(self) -> dict[str, Any]:
        """What comes next: a JSON object that :meth:`load_state_dict` takes, and the loader.

        It counts what was returned. What workers make, only a ``StatefulDataLoader`` of
        torchdata can count, which asks for this in each of them; in the process that has a plain
        ``DataLoader`` with workers it is the beginning of the next epoch, and warns in the midst of
        one.
        """
        if self._share is not None and get_worker_info() is not None:
            return self._share.state()
        with self._own() as progress:
            saved = self._look(progress)
            state, is_behind = progress.course.state(saved), progress.working > 0
        if is_behind:
            warnings.warn(
                "workers are in the midst of an epoch, and what was returned of it is not known "
                "here: this is the state of the next epoch; use a StatefulDataLoader of torchdata, "
                "or no workers",
                stacklevel=2,
            )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was; it may also be a state of a loader.

        Raises:
            PlanError: If that had other batches, or it is the state of a worker.
        """
        worker = get_worker_info()
        if worker is not None:
            self._resumed = Resumed.parse(state, self.loader, worker)
            return
        if isinstance(state, Mapping) and "made" in state:
            raise PlanError(
                "this is the state of a worker, for the StatefulDataLoader that has saved it"
            )
        self.loader.load_state_dict(state)
        with self._own() as progress:
            saved = self.loader.state_dict()
            course = Course.of(saved["batch"])
            course.go_to(saved["batch"], is_drained=is_drained(state))
            progress.loader, progress.weights = saved["batch"], weights_of(saved)
            progress.course, progress.working = course, 0

    def _own(self) -> Shared:
        """The progress of this process: a child that is not a worker goes on by itself."""
        if not self._shared.is_of(os.getpid()):
            self._shared = _SHARED[self.loader] = self._shared.copy()
        return self._shared

    def _look(self, progress: Progress) -> dict[str, Any]:
        """The state of the loader; if somebody has moved it, go on from there."""
        saved = self.loader.state_dict()
        _follow(progress, saved)
        return saved

    def _hand_over(self) -> Iterator[Any]:
        shared = self._own()
        with shared as progress:
            at = self._look(progress)["batch"]
            course = progress.course
            epoch = course.begin(self._plan)
            if epoch.first != at:
                self.loader.seek(self._plan.step_at(epoch.first))
            progress.course, progress.loader, progress.working = course, epoch.first, 0
        if not course.is_drained:
            for steps, batch in enumerate(self.loader, 1):
                with shared as progress:
                    course = progress.course
                    course.emit(epoch, steps, self._plan)
                    progress.course, progress.loader = course, course.at
                yield convert(batch, tensor)
        with shared as progress:
            course, saved = progress.course, self.loader.state_dict()
            course.end()
            progress.course = course
            progress.loader, progress.weights = saved["batch"], weights_of(saved)

    # In a worker.

    def _join(self, worker: Any) -> Share:
        """Begin an iteration together with the other workers."""
        # They all have the same seed, but for their numbers.
        key, turn, resumed = worker.seed - worker.id, self._turn, self._resumed
        self._turn, self._resumed = turn + 1, None
        saved = self.loader.state_dict()
        with self._shared as progress:
            _check(progress, saved)
            epoch = progress.join(key, turn, worker.num_workers)
            if epoch is None:
                if turn == 0:  # a copy that is new is as its original was
                    _follow(progress, saved)
                course = progress.course
                if resumed is not None:
                    course.go_to(resumed.first, is_drained=resumed.is_drained)
                epoch = course.begin(self._plan)
                course.end()  # as far as others can know
                progress.course, progress.working = course, worker.num_workers
                progress.add(key, turn, epoch)
            number = progress.begun
        made = 0 if resumed is None else resumed.made
        return Share(self.loader, epoch, worker, made=made, shared=self._shared, number=number)


def _follow(progress: Progress, saved: Mapping[str, Any]) -> None:
    """If somebody has moved the loader, go on from there."""
    if saved["batch"] != progress.loader:
        progress.loader, progress.working = saved["batch"], 0
        progress.course = Course.of(saved["batch"])


def _check(progress: Progress, saved: Mapping[str, Any]) -> None:
    """Make sure that a worker has what the process has that it works for."""
    parent = multiprocessing.parent_process()
    if parent is None or progress.owner != parent.pid:
        raise PlanError(
            "these batches were made for a DataLoader of another process; call to_torch() in the "
            "one that has the DataLoader"
        )
    if progress.weights != weights_of(saved):
        raise PlanError(
            "the weights of classes have changed, which workers of a DataLoader cannot follow; "
            "have num_workers=0: the loader makes batches ahead in its own threads"
        )


def _check_collating(caller: FrameType) -> None:
    """Tell a DataLoader that would make batches of batches what it should do instead."""
    fetcher = caller.f_locals.get("self")
    is_batching = getattr(fetcher, "auto_collation", False)
    if is_batching and getattr(fetcher, "collate_fn", None) is default_collate:
        raise PlanError(
            "a DataLoader is to make batches of what are batches already; pass batch_size=None"
        )
