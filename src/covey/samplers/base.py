"""The base class of samplers: batches by index, epochs, the augmenter, and tensors."""

from __future__ import annotations

import inspect
import operator
import random
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from covey.adapters import FRAMEWORKS, Framework, to_framework
from covey.adapters.keras import (
    EpochCounter,
    KerasDataset,
    Prefetcher,
    backend,
    is_prefetching,
    is_worker,
)
from covey.errors import PlanError, check, check_int
from covey.loader.options import Hook, augment
from covey.plan.balanced import BatchKey
from covey.samplers.inputs import told_of_arrays

Augmenting = Callable[..., tuple[Any, Any]]


def _takes_augmentations(augmenter: Augmenting) -> bool:
    """Return whether the third parameter is the number of augmentations, not of examples."""
    # The parameters of Augmenter.__call__ have other names than those of a subclass's method.
    for function in (augmenter, getattr(augmenter, "augment", augmenter)):
        with suppress(TypeError, ValueError):  # a builtin without a signature
            if [*inspect.signature(function).parameters][2:3] == ["num_augmentations_per_example"]:
                return True
    return False


def _is_empty(batch: Any) -> bool:
    """Return whether an array of x or y has no rows."""
    if isinstance(batch, Mapping):
        return any(map(_is_empty, batch.values()))
    if isinstance(batch, (tuple, list)):
        return not batch or any(map(_is_empty, batch))
    shape = tuple(getattr(batch, "shape", ()))
    return shape[:1] == (0,)


class Sampler(KerasDataset, metaclass=ABCMeta):
    """Batches of P classes with K examples of each; a ``keras.utils.PyDataset`` if Keras exists.

    With Keras 2 (``tf_keras``), it is a ``tf_keras.utils.Sequence`` as well: see
    :class:`covey.adapters.keras.KerasDataset`.

    Subclasses return the examples of a batch in :meth:`get_examples`, or in ``_get_examples``, as
    TensorFlow Similarity calls it since 0.14.

    Args:
        classes_per_batch: P.
        examples_per_class_per_batch: K.
        steps_per_epoch: Number of batches per epoch.
        augmenter: Function of ``(x, y, examples_per_class, is_warmup)`` that returns x and y, with
            any number of examples. If its third parameter is named
            ``num_augmentations_per_example``, it receives that number instead. If it has a
            parameter named ``rng``, ``step`` or ``row``, it receives it, as in
            :class:`covey.loader.LoadOptions`.
        warmup: Number of epochs in which ``is_warmup`` is True; none if it is < 1.
        framework: Type of the batches: ``"tensorflow"``, ``"torch"``, ``"jax"`` or ``"numpy"``
            (default: the backend of Keras, or numpy without Keras).
        augmenter_framework: Type of x and y that the augmenter receives, as for `framework`
            (default: numpy). Its result may be of any type.
        num_augmentations_per_example: Number that is passed to an augmenter whose third parameter
            has this name.
        options: ``workers``, ``use_multiprocessing`` and ``max_queue_size`` of Keras.
    """

    _prefetcher: Prefetcher | None = None

    def __init__(
        self,
        classes_per_batch: int,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        augmenter: Augmenting | None = None,
        warmup: int = -1,
        *,
        framework: Framework | None = None,
        augmenter_framework: Framework = "numpy",
        num_augmentations_per_example: int = 1,
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
        self.framework = backend() if framework is None else framework
        self.augmenter_framework = augmenter_framework
        for option in ("framework", "augmenter_framework"):
            name = getattr(self, option)
            check(option, name, name in FRAMEWORKS, FRAMEWORKS, error=PlanError)
        self.num_augmentations_per_example = check_int(
            "num_augmentations_per_example", num_augmentations_per_example, 0
        )
        self.epoch = 0
        """Index of the epoch. It may be set, to continue with another epoch."""
        self._counter = EpochCounter(self.steps_per_epoch)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {self.classes_per_batch:,} classes x "
            f"{self.examples_per_class_per_batch:,} examples, {self.steps_per_epoch:,} steps per "
            f"epoch, epoch {self.epoch:,}, {self.framework}>"
        )

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the method that returns the examples both of its names."""
        super().__init_subclass__(**options)
        names = {"get_examples", "_get_examples"}
        first = next(base for base in cls.__mro__ if names & vars(base).keys())
        for other in names - vars(first).keys():
            (name,) = names - {other}
            setattr(cls, other, vars(first)[name])

    @abstractmethod
    def get_examples(
        self, batch_id: int, num_classes: int, examples_per_class: int
    ) -> tuple[Any, Any]:
        """Return the examples of a batch, x and y, before the augmenter is called.

        Args:
            batch_id: Index of the batch in its epoch; :meth:`step` returns the index over all
                epochs.
            num_classes: Number of classes.
            examples_per_class: Number of examples of each class.
        """

    _get_examples = get_examples

    @property
    def augmenter(self) -> Augmenting | None:
        """The augmenter. It may be replaced."""
        return None if self._augmenter is None else self._augmenter.function

    @augmenter.setter
    def augmenter(self, augmenter: Augmenting | None) -> None:
        self._augmenter = None if augmenter is None else Hook("augmenter", augmenter)
        self._takes_augmentations = augmenter is not None and _takes_augmentations(augmenter)

    @property
    def batch_size(self) -> int:
        """Number of examples per batch of all ranks, before the augmenter is called."""
        return self.classes_per_batch * self.examples_per_class_per_batch

    @property
    def is_warmup(self) -> bool:
        """Whether the epoch is one of the warm-up."""
        return self.epoch < self.warmup

    def step(self, batch_id: int) -> int:
        """Return the index over all epochs of a batch of this epoch.

        Negative ids count from the end of the epoch; larger ids select batches of later epochs.
        """
        return self.epoch * self.steps_per_epoch + self._batch_id(batch_id)

    def _batch_id(self, batch_id: int) -> int:
        number = operator.index(batch_id)
        return number if number >= 0 else number % self.steps_per_epoch

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self.steps_per_epoch

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch."""
        if self._prefetcher is not None:
            self._prefetcher.random_state = random.getstate()
        self._counter.prepare()
        return self.steps_per_epoch

    def __getitem__(self, batch_id: int) -> tuple[Any, Any]:
        number = self._batch_id(batch_id)
        self._counter.request(number)
        if self._prefetcher is None or is_prefetching():
            return self.generate_batch(number)
        batch: tuple[Any, Any] = self._prefetcher.take(number)
        return batch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the batches of an epoch; after the last one, the next epoch begins.

        Batches are prefetched if ``workers`` is > 1.
        """
        self.on_epoch_begin()
        self._counter.begin(is_open=False)  # after a break, on_epoch_end of the caller counts
        try:
            for batch_id in range(len(self)):
                yield self[batch_id]
        finally:
            self._stop_prefetching()
        self.on_epoch_end()

    def generate_batch(self, batch_id: int) -> tuple[Any, Any]:
        """Return a batch of this epoch, x and y, after the augmenter was called."""
        number = self._batch_id(batch_id)
        if not is_prefetching():
            self._counter.request(number)
        x, y = self.get_examples(number, self.classes_per_batch, self.examples_per_class_per_batch)
        x, y = self._augment(x, y, self.step(number))
        if _is_empty(x) or _is_empty(y):
            raise PlanError(
                "the batch has no examples",
                step=self.step(number),
                remedy="the augmenter must return examples" if self._augmenter else "",
            )
        return self._to_tensors(x, y)

    @property
    def _augmented_examples_per_class(self) -> int:
        """The third argument of the augmenter."""
        if self._takes_augmentations:
            return self.num_augmentations_per_example
        return self.examples_per_class_per_batch

    def _key(self, step: int) -> BatchKey:
        """Return the identity of a batch, for the augmenter."""
        return BatchKey(0, step, 0, self._augmented_examples_per_class)

    def _augment(self, x: Any, y: Any, step: int) -> tuple[Any, Any]:
        if self._augmenter is None:
            return x, y
        if self.augmenter_framework != "numpy":
            check(
                "augmenter_framework",
                self.augmenter_framework,
                not is_worker(),
                "'numpy' in a worker process, because frameworks may hang after a fork",
                error=PlanError,
                remedy="pass use_multiprocessing=False",
            )
            x, y = to_framework(self.augmenter_framework, (x, y))
        with told_of_arrays('pass augmenter_framework="tensorflow" for tensors'):
            x, y = augment(self._augmenter, x, y, self._key(step), is_warmup=self.is_warmup)
        return x, y

    def _to_tensors(self, x: Any, y: Any) -> tuple[Any, Any]:
        if is_worker():  # a framework may hang after a fork: the main process converts
            return x, y
        converted: tuple[Any, Any] = to_framework(self.framework, (x, y))
        return converted

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prefetcher": None}

    # Epochs.

    def on_epoch_begin(self) -> None:
        """Begin an epoch; Keras calls this, and a loop over the sampler."""
        self._stop_prefetching()
        self._counter.begin()
        if self._prefetches:
            self._prefetcher = Prefetcher(self)

    def on_epoch_end(self) -> None:
        """End the epoch; Keras calls this, and a loop over the sampler.

        The epoch advances if a batch was requested since the last call; after
        :meth:`on_epoch_begin`, if all batches of the epoch were requested. Requests of processes
        that the sampler does not start are not known.
        """
        self._stop_prefetching()
        if self._counter.end():
            self.epoch += 1

    def _stop_prefetching(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch as a JSON object."""
        return {"epoch": self.epoch, "steps_per_epoch": self.steps_per_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the epoch of another sampler.

        Raises:
            PlanError: If it is not a valid state, or epochs have another length.
        """
        steps = state.get("steps_per_epoch") if isinstance(state, Mapping) else None
        allowed = f"{self.steps_per_epoch}, as in this sampler"
        check("steps_per_epoch", steps, steps == self.steps_per_epoch, allowed, error=PlanError)
        self.epoch = check_int("epoch", state.get("epoch"), 0, 2**62)
