"""Options of a loader, and calls of its hooks with arguments derived from the seed and the step."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

import numpy as np

from covey.errors import FeatureError, PlanError, check, check_int, cpu_count
from covey.plan import Mode, Plan
from covey.plan.balanced import BatchKey
from covey.schema.pixels import Crop, Decode, ImageOptions

SEEDED = ("rng", "step", "row")

_IMAGES = ImageOptions()


class Hook:
    """A user function, and which of ``rng``, ``step`` and ``row`` it accepts.

    Args:
        option: Name of the argument that it was passed as.
        function: The function.

    >>> hook = Hook("batch_transform", lambda x, rng, step: (x, rng.integers(100), step))
    >>> hook(0, key=BatchKey(seed=1, step=5)) == hook(0, key=BatchKey(seed=1, step=5))
    True
    """

    def __init__(self, option: str, function: Callable[..., Any]) -> None:
        check(option, function, callable(function), "a function", error=FeatureError)
        self.option = option
        self.function = function
        self._names = accepted(function)

    def __call__(self, *arguments: Any, key: BatchKey, row: int | None = None) -> Any:
        seeded: dict[str, Any] = {}
        for name in self._names:
            if name == "rng":
                seeded[name] = key.generator(row)
            else:
                seeded[name] = key.step if name == "step" else key.row + (row or 0)
        return self.function(*arguments, **seeded)


def accepted(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return those of ``rng``, ``step`` and ``row`` that a function accepts as keywords."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name in SEEDED if name in parameters and parameters[name].kind in kinds)


def augment(hook: Hook, x: Any, y: Any, key: BatchKey, *, is_warmup: bool = False) -> Any:
    """Return x and y as an augmenter returns them; lists of scalars become arrays.

    Raises:
        PlanError: If it does not return a pair.
    """
    result = hook(x, y, key.examples_per_class, is_warmup, key=key)
    check(
        "result of the augmenter",
        type(result).__name__,
        isinstance(result, (tuple, list)) and len(result) == 2,
        "a pair (x, y)",
        error=PlanError,
        step=key.step,
    )
    return tuple(map(_stack_scalars, result))


def _stack_scalars(value: Any) -> Any:
    # A list of arrays, views for instance, remains a list.
    is_flat = isinstance(value, list) and all(np.ndim(item) == 0 for item in value)
    return np.asarray(value) if is_flat else value


def add_location(error: Exception, location: str) -> None:
    """Add to an error of a user function where it was raised."""
    if hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(location)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({location})", *error.args[1:])


MAX_THREADS = 1024
MAX_PREFETCH = 2**20
MAX_PAD_LENGTH = 2**31 - 1


class LoadKeywords(TypedDict, total=False):
    """Keyword arguments of batches: the fields of LoadOptions and of ImageOptions."""

    rank: int | None
    world_size: int | None
    mode: Mode
    select: str | Iterable[str] | None
    as_dict: bool
    transform: Callable[..., Any] | None
    batch_transform: Callable[..., Any] | None
    augmenter: Callable[..., Any] | None
    decode_images: bool
    image_size: int | tuple[int, int] | Literal["ragged"] | None
    crop: Crop
    crop_scale: tuple[float, float]
    crop_ratio: tuple[float, float]
    flip: bool
    views: int
    decode: Decode
    pad: float | Mapping[str, Any] | None
    pad_length: int | Mapping[str, int] | None
    pad_lengths: bool
    truncate: bool
    threads: int | None
    prefetch: int | None
    reuse_buffers: bool


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of :meth:`covey.Dataset.batches`, ``shuffled`` and ``sequential``.

    The fields of `images` are arguments of these methods, too: ``image_size=224``.

    Args:
        rank: Index of this process, as for :meth:`covey.plan.Plan.for_rank` (default: 0). If
            neither `rank` nor `world_size` is given, they are those of ``ray.train.get_context()``
            in a worker of Ray Train, and ``to_torch`` takes them from ``torch.distributed``.
        world_size: Number of processes (default: 1).
        mode: ``"split"`` divides every batch among the ranks; ``"independent"`` gives every rank
            batches of its own.
        select: Name of the feature that is x; names, for a dict of them; or ``"all"`` features
            except the label (default: the input, which is the only image or sound, else the only
            feature that is neither a class label nor named like a file name or an id; all features
            if there is no such feature, or more than one). y is the class id.
        as_dict: Return one dict of features and label instead of ``(x, y)``.
        transform: Function of one example, a dict of the selected features and the label. It
            returns a dict, whose features except the label are x, or one value, which is x. All
            examples must have the same features. It is called in several threads, as are the next
            two.
        batch_transform: Function of x and y, or of the dict; returns the batch.
        augmenter: Function of ``(x, y, examples_per_class, is_warmup)`` that returns ``(x, y)``,
            called before `batch_transform`; a :class:`covey.augmenters.Augmenter`, for instance.
        decode_images: Decode images to pixels.
        images: Options of :class:`covey.schema.pixels.ImageOptions`.
        pad: Value with which ragged features are padded to the longest row of a batch, True for 0;
            or a dict of the features to pad and their values, among them features that `transform`
            returns. Strings are padded with ``""``. x then is a dict, with the lengths of the rows
            of the feature ``tokens`` as ``tokens_length`` (int64), unless `pad_lengths` is False.
        pad_length: Length of padded features, or a dict of lengths by feature (default: that of the
            longest row of a batch). A longer row raises FeatureError.
        pad_lengths: Add the lengths of padded features to x. With False, a single feature is x
            itself: an array, as models of one input require.
        truncate: Truncate rows that are longer than `pad_length`.
        threads: Number of threads that prefetch batches (default: one per CPU core). 0 disables
            prefetching.
        prefetch: Maximum number of prefetched batches (default: depends on their size).
        reuse_buffers: Overwrite the arrays of a batch when the next one is requested.

    A `transform`, `batch_transform` or `augmenter` with a parameter named ``rng``, ``step`` or
    ``row`` receives it as a keyword argument: a numpy Generator that is a function of (seed, step)
    and, for `transform`, of the row; the index of the batch; the index of the row in the batch of
    all ranks, which is the first row of this rank for the other two. Results depend neither on
    threads and workers nor on the number of ranks.
    """

    rank: int | None = None
    world_size: int | None = None
    mode: Mode = "split"
    select: str | Iterable[str] | None = None
    as_dict: bool = False
    transform: Callable[..., Any] | None = None
    batch_transform: Callable[..., Any] | None = None
    augmenter: Callable[..., Any] | None = None
    decode_images: bool = True
    images: ImageOptions = _IMAGES
    pad: float | Mapping[str, Any] | None = None
    pad_length: int | Mapping[str, int] | None = None
    pad_lengths: bool = True
    truncate: bool = False
    threads: int | None = None
    prefetch: int | None = None
    reuse_buffers: bool = False

    @classmethod
    def of(cls, **options: Any) -> LoadOptions:
        """Return the options of keyword arguments.

        >>> LoadOptions.of(image_size=224, threads=2).images.size
        (224, 224)
        """
        names = [each.name for each in fields(ImageOptions) if each.name in options]
        images = {name: options.pop(name) for name in names}
        return cls(images=ImageOptions(**images), **options)

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_int("threads", self.threads, 0, MAX_THREADS)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, 1, MAX_PREFETCH)
        if self.select is not None and not isinstance(self.select, str):
            object.__setattr__(self, "select", _names(self.select))
        _check("pad_lengths", self.pad_lengths, isinstance(self.pad_lengths, bool), "True or False")
        pad, lengths = self.pad, self.pad_length
        is_valid = not isinstance(pad, Mapping) or all(isinstance(key, str) for key in pad)
        _check("pad", pad, is_valid, "a dict of feature names")
        for length in lengths.values() if isinstance(lengths, Mapping) else [lengths]:
            if length is not None:
                check_int("pad_length", length, 1, MAX_PAD_LENGTH)
        for option, needed, is_valid in (
            ("pad_length", "pad", lengths is None or self.is_padded),
            ("pad_lengths", "pad", self.pad_lengths or self.is_padded),
            ("truncate", "pad_length", not self.truncate or bool(lengths)),
        ):
            found = getattr(self, option)
            _check(option, found, is_valid, "omitted", reason=f"{needed}= is not given")

    @property
    def is_padded(self) -> bool:
        """Whether ragged features are padded."""
        return self.pad is not None and self.pad is not False

    def changes(self) -> list[tuple[str, str]]:
        """Return the names and values of the options that differ from their defaults."""
        return [
            (each.name, getattr(value, "__qualname__", None) or repr(value))
            for options in (self, self.images)
            for each in fields(options)
            if each.name != "images"
            and (value := getattr(options, each.name)) is not each.default
            and value != each.default
        ]

    @property
    def thread_count(self) -> int:
        """Number of threads that prefetch batches."""
        return cpu_count() if self.threads is None else self.threads

    @property
    def has_rank(self) -> bool:
        """Whether `rank` or `world_size` is given."""
        return self.rank is not None or self.world_size is not None

    def share(self, plan: Plan) -> Plan:
        """Return the part of `plan` for this rank."""
        if not self.has_rank:
            return plan.for_rank(*find_ray_rank(), self.mode)
        rank = 0 if self.rank is None else self.rank
        return plan.for_rank(rank, 1 if self.world_size is None else self.world_size, self.mode)


def _check(option: str, found: Any, ok: object, allowed: str, reason: str = "") -> None:
    check(option, found, ok, allowed, error=FeatureError, reason=reason)


def _names(select: Any) -> tuple[str, ...]:
    """Return the names in any iterable, which may be an array or an iterator."""
    names = list(select) if isinstance(select, Iterable) else []
    is_valid = bool(names) and all(isinstance(each, str) for each in names)
    _check("select", names or select, is_valid, "a name, or at least one name in a list")
    return tuple(map(str, names))  # of numpy, too


def find_ray_rank() -> tuple[int, int]:
    """Return rank and world size of a worker of Ray Train; 0 and 1 in any other process."""
    train: Any = sys.modules.get("ray.train")  # a worker has imported it
    if not hasattr(train, "get_context"):
        return 0, 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray Train V1 warns in other processes
            context = train.get_context()
            found = context.get_world_rank(), context.get_world_size()
    except (RuntimeError, DeprecationWarning):  # V2 raises them, the latter in a worker of Ray Tune
        return 0, 1
    rank, world_size = found
    return (0, 1) if rank is None or world_size is None else (rank, world_size)
