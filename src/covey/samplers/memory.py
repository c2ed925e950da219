"""Samplers of examples in memory or in files: several examples of each class, or one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters import Framework
from covey.errors import FeatureError, PlanError, check_int
from covey.plan import BalancedPlan, Mode, Plan, ShuffledPlan
from covey.plan.balanced import BatchKey, Weights, check_option, check_seed
from covey.samplers.base import Augmenting, Sampler
from covey.samplers.inputs import ExampleRows, Ids, labelled, parse_class_list, parse_slice
from covey.schema import Image
from covey.schema.pixels import check_max_pixels, parse_size, read_pixels
from covey.storage import open_storage
from covey.urls import AnyPath, parse_path, shown


class MemorySampler(Sampler):
    """Base class of the samplers of examples in memory.

    Args:
        x: The examples.
        y: The labels of the examples; None for their positions.
        make_plan: A function of the number of classes and of examples per class that returns the
            plan of the batches.
        share: Rank, world size and mode.
        arguments, options: As for :class:`Sampler`.
    """

    def __init__(
        self,
        x: ExampleRows,
        y: NDArray[Any] | None,
        make_plan: Callable[[int, int], Plan],
        share: tuple[int, int, Mode],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._x = x
        self._y: Any = y
        self._make_plan = make_plan
        self._share = share
        self._plans: dict[tuple[int, int], Plan] = {}
        _ = self.plan  # raises the errors of its arguments

    def _plan(self, num_classes: int, examples_per_class: int) -> Plan:
        size = (num_classes, examples_per_class)
        if size not in self._plans:
            self._plans[size] = self._make_plan(*size).for_rank(*self._share)
        return self._plans[size]

    @property
    def plan(self) -> Plan:
        """The plan of the batches."""
        return self._plan(self.classes_per_batch, self.examples_per_class_per_batch)

    def _take(self, ids: Ids) -> tuple[Any, Any]:
        """Return x and y of examples."""
        return self._x.take(ids), ids if self._y is None else self._y[ids]

    def get_examples(
        self, batch_id: int, num_classes: int, examples_per_class: int
    ) -> tuple[Any, Any]:
        ids = self._plan(num_classes, examples_per_class).batch(self.step(batch_id))
        return self._take(ids)

    def _key(self, step: int) -> BatchKey:
        key = self.plan.key(step)
        return key._replace(examples_per_class=self._augmented_examples_per_class)

    @property
    def num_examples(self) -> int:
        """The number of examples that are drawn from."""
        return len(self._x)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self._x.row_shape


class MultiShotMemorySampler(MemorySampler):
    """Batches of exactly P classes with exactly K examples of each, from examples in memory.

    Only the examples of a batch are copied. Every class is drawn once before any is drawn twice,
    and so are the examples of a class.

    Args:
        x: The examples: an array, a tensor or a list; or the arguments of ``load_example_fn``.
        y: The labels of the examples: integers or strings.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, augmenter, warmup: As for
            :class:`Sampler`.
        class_list: The classes to draw from; by default all.
        total_examples_per_class: The maximum number of examples to use of each class.
        load_example_fn: A function that returns the example for an item of x, such as a path. All
            examples must have the same shape. TensorFlow Similarity 0.17 has it before
            `classes_per_batch`: pass it by name.
        seed: The seed of the batches, and of the order of :meth:`get_slice`.
        class_weights: The relative frequencies of the classes, as for
            :class:`covey.plan.BalancedPlan`.
        rank, world_size, mode: The share of one of several processes, as for
            :meth:`covey.plan.Plan.for_rank`.
        framework, options: As for :class:`Sampler`.

    Raises:
        ValueError: If there are fewer classes than a batch has, or a class does not exist.

    >>> from covey.samplers import MultiShotMemorySampler
    >>> x, y = np.arange(12), np.arange(12) % 4
    >>> sampler = MultiShotMemorySampler(x, y, 3, 2, seed=1, framework="numpy")
    >>> sampler[0]
    (array([1, 9, 4, 0, 6, 2]), array([1, 1, 0, 0, 2, 2]))
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        classes_per_batch: int = 2,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        class_list: Iterable[Any] | None = None,
        total_examples_per_class: int | None = None,
        augmenter: Augmenting | None = None,
        load_example_fn: Callable[[Any], Any] | None = None,
        warmup: int = -1,
        *,
        seed: int = 0,
        class_weights: Weights | None = None,
        rank: int = 0,
        world_size: int = 1,
        mode: Mode = "split",
        framework: Framework | None = None,
        **options: Any,
    ) -> None:
        check_option(
            "classes_per_batch",
            classes_per_batch,
            not callable(classes_per_batch),
            "an integer >= 1",
            remedy="pass load_example_fn= by name; it is not the third argument",
        )
        rows, labels, self._classes = labelled(x, y, load_example_fn)
        self._seed = check_seed(seed)
        make_plan = partial(
            BalancedPlan,
            self._classes,
            seed=seed,
            class_list=parse_class_list(class_list),
            total_examples_per_class=total_examples_per_class,
            class_weights=class_weights,
        )
        super().__init__(
            rows,
            labels,
            make_plan,
            (rank, world_size, mode),
            classes_per_batch,
            examples_per_class_per_batch,
            steps_per_epoch,
            augmenter,
            warmup,
            framework=framework,
            **options,
        )

    @property
    def load_example_fn(self) -> Callable[[Any], Any]:
        """The function that returns the example for an item of x."""
        return self._x.load or (lambda item: item)

    @property
    def class_list(self) -> list[Any]:
        """The classes that are drawn from, as in y."""
        positions = np.searchsorted(self._classes.labels, self._balanced.labels)
        first_of_each = self._classes.by_class[self._classes.firsts[positions]]
        return list(self._y[first_of_each].reshape(-1).tolist())

    @property
    def num_examples(self) -> int:
        return int(self.plan.description["examples"])

    @property
    def _balanced(self) -> BalancedPlan:
        assert isinstance(self.plan, BalancedPlan)
        return self.plan

    @cached_property
    def _ids(self) -> Ids:
        """The examples that are drawn from, shuffled."""
        random = np.random.Generator(np.random.Philox(self._seed))
        shuffled: Ids = random.permutation(self._balanced.records)
        return shuffled

    @cached_property
    def index_per_class(self) -> dict[Any, list[int]]:
        """The positions of the examples of each class in the order of :meth:`get_slice`."""
        positions: dict[Any, list[int]] = {}
        for position, label in enumerate(self._y.reshape(-1)[self._ids].tolist()):
            positions.setdefault(label, []).append(position)
        return positions

    def get_slice(self, begin: int = 0, size: int = -1) -> tuple[Any, Any]:
        """Return a slice of the examples that are drawn from, x and y, in an order of the seed.

        The order is that of a shuffle: a slice has examples of many classes, also if those of x are
        sorted by class.

        Args:
            begin: The position of the first example.
            size: The number of examples; -1 is all that follow.
        """
        begin, end = parse_slice(begin, size, self.num_examples)
        ids = self._ids[begin:end]
        return self._to_tensors(*self._take(ids))


def load_image(
    path: AnyPath,
    target_size: int | tuple[int, int] | None = None,
    *,
    max_pixels: int | None = None,
) -> NDArray[np.float32]:
    """Return the image in a file as an array (height, width, 3) with values from 0 to 1.

    Args:
        path: The path or URL of the file.
        target_size: The height and width to resize it to.
        max_pixels: The maximum number of pixels (height x width); 64 million by default.

    Raises:
        FeatureError: If the file is not an image, or exceeds the maximum.
    """
    limit = check_max_pixels(max_pixels)
    text = parse_path(path)
    storage = open_storage(text)
    data = storage.read(storage.clean(text))
    size = None if target_size is None else parse_size(target_size)
    try:
        pixels = read_pixels(Image((None, None, 3)), data, size, max_pixels=limit)
    except FeatureError as error:
        error.path = shown(text)
        raise
    return pixels.astype(np.float32) / np.float32(255)


class MultiShotFileSampler(MultiShotMemorySampler):
    """Balanced batches of examples that are loaded when they are drawn, such as images in files.

    Args:
        x: The paths of the files, or other arguments of ``load_example_fn``.
        y: The labels of the examples.
        load_example_fn: A function that returns the example for an item of x; by default it loads
            an image. All examples must have the same shape:
            ``functools.partial(load_image, target_size=224)``.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, class_list,
            total_examples_per_class, augmenter, warmup, options: As for
            :class:`MultiShotMemorySampler`.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        load_example_fn: Callable[[Any], Any] = load_image,
        classes_per_batch: int = 2,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        class_list: Iterable[Any] | None = None,
        total_examples_per_class: int | None = None,
        augmenter: Augmenting | None = None,
        warmup: int = -1,
        **options: Any,
    ) -> None:
        super().__init__(
            x,
            y,
            classes_per_batch,
            examples_per_class_per_batch,
            steps_per_epoch,
            class_list,
            total_examples_per_class,
            augmenter,
            load_example_fn,
            warmup,
            **options,
        )


class SingleShotMemorySampler(MemorySampler):
    """Batches of distinct examples, each a class of its own, which the augmenter multiplies.

    Every example is drawn once before any is drawn twice. Only the examples of a batch are copied.

    Args:
        x: The examples: an array, a tensor or a list.
        augmenter: A function of (x, y, examples per class, is_warmup), where y are the positions of
            the examples; it returns x and y with that number of examples per class.
        class_per_batch: The number of examples in a batch before augmentation.
        examples_per_batch: Another name of ``class_per_batch``.
        steps_per_epoch, warmup: As for :class:`Sampler`.
        num_augmentations_per_example: The number of examples per class that is passed to the
            augmenter, whatever its third parameter is called.
        seed: The seed of the batches.
        rank, world_size, mode: The share of one of several processes, as for
            :meth:`covey.plan.Plan.for_rank`.
        framework, options: As for :class:`Sampler`.

    >>> from covey.samplers import SingleShotMemorySampler
    >>> twice = lambda x, y, count, is_warmup: (x.repeat(count), y.repeat(count))
    >>> sampler = SingleShotMemorySampler(range(100, 150), twice, 3, seed=1, framework="numpy")
    >>> [part.tolist() for part in sampler[0]]
    [[108, 108, 102, 102, 111, 111], [8, 8, 2, 2, 11, 11]]
    """

    def __init__(
        self,
        x: Any,
        augmenter: Augmenting,
        class_per_batch: int | None = None,
        steps_per_epoch: int = 1000,
        warmup: int = -1,
        *,
        examples_per_batch: int | None = None,
        num_augmentations_per_example: int = 2,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        mode: Mode = "split",
        framework: Framework | None = None,
        **options: Any,
    ) -> None:
        if (class_per_batch is None) == (examples_per_batch is None):
            raise PlanError(
                f"class_per_batch is {class_per_batch} and examples_per_batch is "
                f"{examples_per_batch}; exactly one of them must be passed"
            )
        check_option("augmenter", augmenter, callable(augmenter), "a function")
        rows = ExampleRows(x)
        super().__init__(
            rows,
            None,
            partial(_make_plan, len(rows), seed),
            (rank, world_size, mode),
            examples_per_batch if class_per_batch is None else class_per_batch,
            1,
            steps_per_epoch,
            augmenter,
            warmup,
            framework=framework,
            num_augmentations_per_example=check_int(
                "num_augmentations_per_example", num_augmentations_per_example, 1
            ),
            **options,
        )

    @property
    def _augmented_examples_per_class(self) -> int:
        return self.num_augmentations_per_example

    def get_examples(
        self,
        batch_id: int,
        num_classes: int,
        examples_per_class: int = 1,
        *,
        example_per_class: int = 1,
    ) -> tuple[Any, Any]:
        """Return the examples of a batch and their positions: one example of each class.

        The number of examples per class, by either name, applies to the augmenter only.
        """
        return super().get_examples(batch_id, num_classes, 1)

    def get_slice(self, begin: int = 0, size: int = -1) -> tuple[Any, Any]:
        """Return a slice of the examples, x and y, in order, augmented like the first batch.

        Args:
            begin: The position of the first example.
            size: The number of examples; -1 is all that follow.
        """
        ids = np.arange(*parse_slice(begin, size, self.num_examples))
        return self._to_tensors(*self._augment(*self._take(ids), 0))


def _make_plan(records: int, seed: int, num_classes: int, _: int) -> ShuffledPlan:
    if num_classes > records:
        raise PlanError(f"a batch has {num_classes} examples, but there are only {records}")
    return ShuffledPlan(records, num_classes, seed, remainder="fill")
