"""Batches of a dataset: balanced, shuffled, or in order."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from covey.classes import ClassTable
from covey.errors import SmallClassesWarning
from covey.loader import Examples, Loader
from covey.loader.batch import BatchFormat
from covey.plan import BalancedPlan, Mode, Plan, SequentialPlan, ShuffledPlan
from covey.plan.balanced import Epoch, Weights
from covey.plan.epochs import Remainder
from covey.plan.weights import SmallClasses
from covey.schema.images import parse_size

Transform = Callable[[dict[str, Any]], Any]
BatchTransform = Callable[..., Any]


class Loadable(Examples, ABC):
    """Examples that come in batches."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def classes(self) -> ClassTable:
        """The classes that there are."""

    def batches(
        self,
        classes_per_batch: int,
        examples_per_class: int = 2,
        *,
        seed: int = 0,
        steps_per_epoch: Epoch = "examples",
        class_list: Iterable[int | str | bytes] | None = None,
        total_examples_per_class: int | None = None,
        small_classes: SmallClasses = "repeat",
        class_weights: Weights | None = None,
        rank: int = 0,
        world_size: int = 1,
        mode: Mode = "split",
        select: str | Sequence[str] | None = None,
        as_dict: bool = False,
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        decode_images: bool = True,
        image_size: int | tuple[int, int] | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        reuse_buffers: bool = False,
    ) -> Loader:
        """Balanced batches: exactly P classes, with exactly K different examples of each.

        Args:
            classes_per_batch, examples_per_class: P and K.
            seed, steps_per_epoch, class_list, total_examples_per_class, small_classes,
                class_weights: Which batches, as for :class:`covey.plan.BalancedPlan`.
            rank, world_size, mode: The part of one of several processes, as for
                :meth:`covey.plan.Plan.for_rank`.
            select: The feature that is x, or several of which x is a dict; all but the label by
                default. y is the number of the class.
            as_dict: A batch is a dict of all that, instead of (x, y).
            transform: Takes an example, a dict of those features and the label, and returns what
                takes its place.
            batch_transform: Takes x and y, or the dict, and returns the batch. Both are called by
                several threads.
            decode_images: Images are pixels;
            image_size: and resized to this (height, width), or to this square.
            threads: How many make batches ahead; all CPU cores by default. 0: none is made ahead.
            prefetch: How many batches are made ahead, at the most.
            reuse_buffers: Whether batches may be overwritten: those that native threads
                make are overwritten when the next one is asked for.

        Raises:
            PlanError, DatasetError, FeatureError: If there are no such batches.
        """
        given = _options(locals())
        plan = BalancedPlan(
            self.classes,
            classes_per_batch,
            examples_per_class,
            seed,
            class_list=given["class_list"],
            total_examples_per_class=total_examples_per_class,
            small_classes=small_classes,
            class_weights=class_weights,
            steps_per_epoch=steps_per_epoch,
        )
        return self._load(plan, "batches", given)

    def shuffled(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        remainder: Remainder = "keep",
        rank: int = 0,
        world_size: int = 1,
        mode: Mode = "split",
        select: str | Sequence[str] | None = None,
        as_dict: bool = False,
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        decode_images: bool = True,
        image_size: int | tuple[int, int] | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        reuse_buffers: bool = False,
    ) -> Loader:
        """All examples once an epoch, in an order that is another one each time.

        Args:
            batch_size, seed, remainder: Which batches, as for :class:`covey.plan.ShuffledPlan`.
            rank, world_size, mode, select, as_dict, transform, batch_transform, decode_images,
                image_size, threads, prefetch, reuse_buffers: As for :meth:`batches`. Without classes, a
                batch is x alone.
        """
        given = _options(locals())
        return self._load(
            ShuffledPlan(len(self), batch_size, seed, remainder=remainder), "shuffled", given
        )

    def sequential(
        self,
        batch_size: int,
        *,
        remainder: Remainder = "keep",
        rank: int = 0,
        world_size: int = 1,
        mode: Mode = "split",
        select: str | Sequence[str] | None = None,
        as_dict: bool = False,
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        decode_images: bool = True,
        image_size: int | tuple[int, int] | None = None,
        threads: int | None = None,
        prefetch: int | None = None,
        reuse_buffers: bool = False,
    ) -> Loader:
        """All examples once an epoch, in their order.

        Args:
            batch_size, remainder: Which batches, as for :class:`covey.plan.SequentialPlan`.
            rank, world_size, mode, select, as_dict, transform, batch_transform, decode_images,
                image_size, threads, prefetch, reuse_buffers: As for :meth:`shuffled`.
        """
        given = _options(locals())
        return self._load(
            SequentialPlan(len(self), batch_size, remainder=remainder), "sequential", given
        )

    def _load(self, plan: Plan, method: str, given: dict[str, Any]) -> Loader:
        size = given["image_size"]
        return Loader(
            BatchFormat(
                self,
                given["select"],
                as_dict=given["as_dict"],
                transform=given["transform"],
                batch_transform=given["batch_transform"],
                decode_images=given["decode_images"],
                image_size=None if size is None else parse_size(size),
            ),
            plan.for_rank(given["rank"], given["world_size"], given["mode"]),
            threads=given["threads"],
            prefetch=given["prefetch"],
            reuse_buffers=given["reuse_buffers"],
            factory=partial(_rebuild, self, method, given),
        )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """What a method was called with, so that another process can call it again."""
    options = {name: value for name, value in given.items() if name != "self"}
    if isinstance(options.get("class_list"), Iterator):  # it can be gone through only once
        options["class_list"] = list(options["class_list"])
    return options


def _rebuild(examples: Loadable, method: str, given: dict[str, Any]) -> Loader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)  # it was said once
        loader: Loader = getattr(examples, method)(**given)
        return loader
