"""What a worker of a ``DataLoader`` does: it makes its share of the batches of an epoch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from covey.adapters import convert
from covey.adapters.torch.course import Epoch, is_drained
from covey.adapters.torch.sharing import Shared
from covey.adapters.torch.tensors import sent
from covey.errors import PlanError
from covey.loader import Loader
from covey.loader import state as states
from covey.loader.prefetch import BatchBuilder


class Share:
    """The batches of an epoch that one worker makes: every n-th, so that all come in order.

    Args:
        loader: Whose batches.
        epoch: Which ones.
        worker: As PyTorch describes it.
        made: How many of its share the worker has made before.
        shared, number: Where to tell that it is done, and with which iteration.
    """

    def __init__(
        self, loader: Loader, epoch: Epoch, worker: Any, *, made: int, shared: Shared, number: int
    ) -> None:
        plan = loader.plan
        self._steps = range(worker.id, epoch.steps, worker.num_workers)
        self._made = made
        # By itself: a process that is one of many needs no threads.
        self._making = BatchBuilder(loader.recipe, plan, epoch.first)
        self._shared = shared
        self._number = number
        self._has_ended = False
        self._saved = {
            **states.save(plan, epoch.first),
            "drained": epoch.steps == 0,
            "workers": worker.num_workers,
            "world_size": plan.world_size,
            "mode": plan.mode,
        }

    def __iter__(self) -> Share:
        return self

    def __next__(self) -> Any:
        if self._made >= len(self._steps):
            self._end()
            raise StopIteration
        # Counted also if it fails: whatever comes next has its place in the order of all workers.
        self._made += 1
        return convert(self._making(self._steps[self._made - 1]), sent)

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            with self._shared as progress:
                if progress.begun == self._number and progress.working:
                    progress.working -= 1

    def state(self) -> dict[str, Any]:
        """What the worker is at, for one that takes its place."""
        return {**self._saved, "made": self._made}


class Resumed(NamedTuple):
    """What a worker is to go on with: an epoch, and how many batches of it were made."""

    first: int
    is_drained: bool
    made: int

    @classmethod
    def parse(cls, state: Any, loader: Loader, worker: Any) -> Resumed:
        """The same of a state.

        Raises:
            PlanError: If that is one of other batches, or of another number of workers or ranks.
        """
        plan = loader.plan
        _, first = states.load(plan, state)
        made = state.get("made")
        if type(made) is not int or made < 0:
            raise PlanError(f"this is not a state of a worker: it has made {made!r} batches")
        here = {"workers": worker.num_workers, "world_size": plan.world_size, "mode": plan.mode}
        for name, expected in here.items():
            if state.get(name) != expected:
                raise PlanError(
                    f"the state of a worker is for {name}={state.get(name)!r}, here it is "
                    f"{expected!r}: what each has made cannot be shared out otherwise"
                )
        if weights_of(state) != weights_of(states.save(plan, 0)):
            raise PlanError(
                "the state has other weights of classes than the loader; have that load one of its "
                "own states before the DataLoader begins"
            )
        return cls(first, is_drained(state), made)


def weights_of(state: Mapping[str, Any]) -> int:
    """What tells the weights in a state of a loader from others."""
    return zlib.crc32(repr(state.get("weights", [])).encode())
