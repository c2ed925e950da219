"""What all samplers have in common: batches by number, epochs, the augmenter, and tensors."""

from __future__ import annotations

import operator
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from covey._threads import DaemonThreads, ordered_map
from covey.adapters import Framework, check_framework, tensors
from covey.adapters.keras import PyDataset, backend, is_peek, is_worker
from covey.augmenters.base import takes_step
from covey.errors import PlanError
from covey.plan.base import check_int

Augmenting = Callable[..., tuple[Any, Any]]


class Sampler(PyDataset, metaclass=ABCMeta):
    """Batches of P classes with K examples of each: a ``keras.utils.PyDataset``, if there is Keras.

    Subclasses say which examples a batch has, in :meth:`get_examples`.

    Args:
        classes_per_batch: P.
        examples_per_class_per_batch: K.
        steps_per_epoch: How many batches an epoch has.
        augmenter: Takes (x, y, examples per class, is_warmup), and returns x and y, which may have
            more examples. One that takes ``step=`` is told the number of the batch over all epochs,
            so that what it draws can be a function of it.
        warmup: For how many epochs ``is_warmup`` is true; none, if it is below 1.
        framework: What batches are made of: ``"tensorflow"``, ``"torch"``, ``"jax"`` or
            ``"numpy"``; by default what Keras computes with, or numpy if there is no Keras.
        options: ``workers``, ``use_multiprocessing`` and ``max_queue_size``, as Keras has them.
    """

    def __init__(
        self,
        classes_per_batch: int,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        augmenter: Augmenting | None = None,
        warmup: int = -1,
        *,
        framework: Framework | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.classes_per_batch = check_int("classes_per_batch", classes_per_batch, 1)
        self.examples_per_class_per_batch = check_int(
            "examples_per_class_per_batch", examples_per_class_per_batch, 1
        )
        self.steps_per_epoch = check_int("steps_per_epoch", steps_per_epoch, 1, 2**48)
        self.augmenter = augmenter
        self.warmup = check_int("warmup", warmup, -(2**62))
        self.framework: Framework = backend() if framework is None else check_framework(framework)
        self.epoch = 0
        """How many epochs there were; set it to go on somewhere else."""

    @abstractmethod
    def get_examples(
        self, batch_id: int, num_classes: int, examples_per_class: int
    ) -> tuple[Any, Any]:
        """The examples of a batch, x and y, before they are augmented.

        Args:
            batch_id: The number of the batch in its epoch; :meth:`step` makes one of all epochs.
            num_classes: How many classes it has,
            examples_per_class: and how many examples of each.
        """

    @property
    def augmenter(self) -> Augmenting | None:
        """What is done with a batch; it may be replaced."""
        return self._augmenter

    @augmenter.setter
    def augmenter(self, augmenter: Augmenting | None) -> None:
        if augmenter is not None and not callable(augmenter):
            raise PlanError(
                option="augmenter", found=augmenter, allowed="a function of (x, y, ...)"
            )
        self._augmenter = augmenter
        self._tells_step = augmenter is not None and takes_step(augmenter)

    @property
    def batch_size(self) -> int:
        """How many examples a batch has before they are augmented, of all ranks together."""
        return self.classes_per_batch * self.examples_per_class_per_batch

    @property
    def is_warmup(self) -> bool:
        """Whether the epochs to warm up are not over."""
        return self.epoch < self.warmup

    def step(self, batch_id: int) -> int:
        """The number over all epochs of a batch of this one."""
        number = operator.index(batch_id)
        if not 0 <= number < self.steps_per_epoch:
            raise IndexError(
                f"there is no batch {number}: an epoch has {self.steps_per_epoch}, from 0 on"
            )
        return self.epoch * self.steps_per_epoch + number

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self.steps_per_epoch

    def __getitem__(self, batch_id: int) -> tuple[Any, Any]:
        return self.generate_batch(batch_id)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """The batches of an epoch; at its end, the next one begins.

        They are made ahead if ``workers`` is over 1.
        """
        tasks = (partial(self.generate_batch, batch_id) for batch_id in range(len(self)))
        executor = DaemonThreads(self.workers, "covey-sampler") if self.workers > 1 else None
        try:
            yield from ordered_map(tasks, executor, in_flight=2 * self.workers)
        finally:
            if executor is not None:
                executor.shutdown()
        self.on_epoch_end()

    def generate_batch(self, batch_id: int) -> tuple[Any, Any]:
        """A batch of this epoch, x and y, augmented."""
        step = self.step(batch_id)
        x, y = self.get_examples(
            batch_id, self.classes_per_batch, self.examples_per_class_per_batch
        )
        if self._augmenter is not None:
            x, y = self._augment(x, y, step)
        return self._hand_over(x, y)

    @property
    def _examples_per_class(self) -> int:
        """How many of each class an augmenter is told that there are."""
        return self.examples_per_class_per_batch

    def _augment(self, x: Any, y: Any, step: int) -> tuple[Any, Any]:
        assert self._augmenter is not None
        told = {"step": step} if self._tells_step else {}
        given = self._augmenter(x, y, self._examples_per_class, self.is_warmup, **told)
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise PlanError(f"the augmenter gives {type(given).__name__}, must return (x, y)")
        x, y = map(_array_of_numbers, given)
        return x, y

    def _hand_over(self, x: Any, y: Any) -> tuple[Any, Any]:
        if is_worker():  # it hands arrays back; a framework that was forked may hang
            return x, y
        return self._to_tensors(x), self._to_tensors(y)

    @cached_property
    def _to_tensors(self) -> Callable[[Any], Any]:
        return tensors(self.framework)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_to_tensors"}

    def on_epoch_end(self) -> None:
        """Count the epoch that was; Keras calls this."""
        if not is_peek():
            self.epoch += 1


def _array_of_numbers(given: Any) -> Any:
    """A list of numbers or strings as an array; one of arrays, views for instance, stays a list."""
    is_plain = isinstance(given, list) and all(np.ndim(each) == 0 for each in given)
    return np.asarray(given) if is_plain else given
