"""Batches of a training run: any step, for any number of ranks, as the loader returns them.

Rows of a batch are built in chunks where they do not depend on each other, so that the memory of a
request is bounded, and a corrupt record does not hide the others. Random crops and the generators
of transforms depend on the row in the batch, not on the chunk. Functions of a whole batch
(``augmenter``, ``batch_transform``) and padding get the whole batch.
"""

from __future__ import annotations

import base64
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray
from covey.classes import SmallClasses, collect_warnings
from covey.dataset.combine import hash_classes
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError, FeatureError, PlanError
from covey.loader.batch import BatchFormat
from covey.loader.options import LoadOptions
from covey.plan import BalancedPlan, Mode, Plan, SequentialPlan, ShuffledPlan
from covey.plan import state as loader_state
from covey.plan.balanced import BatchKey
from covey.plan.epochs import Remainder
from covey.schema.pixels import Crop
from covey.view.media import Side, as_pixels, encode_png, flat_values, plot, resize
from covey.view.parameters import integer, parse_json
from covey.view.session import Ids, RequestError, Session, read_parts
from covey.view.show import columns_of, describe

Kind = Literal["balanced", "shuffled", "sequential"]

MAX_BATCH = 16_384
"""Maximum number of examples of a batch that is set on the page."""
MAX_RANKS = 64
MAX_IMAGE_SIDE = 1024
MAX_CHANGED_CLASSES = 4_000_000
"""Maximum number of class weights of a state: those of all changes together."""
MAX_POINTS = 100
"""Maximum number of points of a coverage curve."""

DEFAULT_CLASSES_PER_BATCH = 8
DEFAULT_BATCH_SIZE = 32

_MAX_CHANGES = 1000
# Examples that are read to find a part of split_classes(); two parts are compared at least.
_MAX_PART_EXAMPLES = 20_000_000
_MAX_NAME = 1000
_MAX_TEXT = 400
_CHUNK_BYTES = 16 << 20
_MAX_CHUNK_ROWS = 32
_UNKNOWN_PIXELS = 1 << 20
_SHOWN_ROWS = 6

Size = Annotated[int, integer(1, MAX_BATCH)]


# Plans.


@dataclass(frozen=True)
class PlanOptions:
    """Options of ``ds.batches``, ``ds.shuffled`` and ``ds.sequential``, and the ranks.

    With `state`, the digest of a pasted state, the plan is the plan of that state.
    """

    plan: Kind | None = None
    classes_per_batch: Size | None = None
    examples_per_class: Size = 4
    seed: Annotated[int, integer(0, 2**64 - 1)] = 0
    small_classes: SmallClasses = "repeat"
    class_weights: Literal["size", "sqrt"] | None = None
    total_examples_per_class: Annotated[int, integer(1, 2**62)] | None = None
    batch_size: Size | None = None
    remainder: Remainder = "keep"
    state: str | None = None
    world_size: Annotated[int, integer(1, 2**20)] | None = None
    mode: Mode | None = None

    def make(self, dataset: Dataset, class_list: Any = None) -> Plan:
        """Return the plan of all ranks."""
        if not len(dataset):
            raise RequestError("the split has no examples, and no batches")
        kind = self.plan or ("shuffled" if dataset.label is None else "balanced")
        size = self.batch_size or min(DEFAULT_BATCH_SIZE, len(dataset))
        if kind == "shuffled":
            return ShuffledPlan(len(dataset), size, self.seed, remainder=self.remainder)
        if kind == "sequential":
            return SequentialPlan(len(dataset), size, remainder=self.remainder)
        classes = self.classes_per_batch
        classes = classes or min(DEFAULT_CLASSES_PER_BATCH, max(1, len(dataset.classes)))
        if classes * self.examples_per_class > MAX_BATCH:
            raise RequestError(
                f"a batch of {classes:,} x {self.examples_per_class:,} examples is too large to be "
                f"shown; the limit is {MAX_BATCH:,} examples"
            )
        return BalancedPlan(
            dataset.classes,
            classes,
            self.examples_per_class,
            self.seed,
            total_examples_per_class=self.total_examples_per_class,
            small_classes=self.small_classes,
            class_weights=self.class_weights,
            class_list=class_list,
        )


class Drawn(NamedTuple):
    """What one rank draws in a step."""

    ids: Ids
    labels: Ids | None
    """The class id of each group of consecutive examples; None without classes."""
    key: BatchKey
    """The index of the batch, and of its first row here."""


@dataclass(frozen=True)
class ShownPlan:
    """A plan for a number of ranks, and the warnings about it."""

    plan: Plan
    """The plan of rank 0."""
    warnings: tuple[str, ...] = ()

    def check_step(self, step: int) -> int:
        """Return a step that the plan has."""
        return int(integer(0, self.plan.last_step)("step", str(step)))

    def draw(self, step: int, rank: int) -> Drawn | None:
        """Return what a rank draws in a step; None if the epoch ends before its batch."""
        plan = self.plan.for_rank(rank, self.plan.world_size, self.plan.mode)
        origin = plan.batch_at(step)
        if plan.steps_left(origin) == 0:
            return None
        ids, labels = plan.native.draw(0, 1, plan.share(origin))
        return Drawn(ids[0], None if labels is None else labels[0], plan.key(0, origin))


def find_plan(session: Session, dataset: Dataset, options: PlanOptions) -> ShownPlan:
    """Return the plan that a request names; by default the plan of the loader, if there is one."""
    loader = session.loader
    mode: Mode = options.mode or ("split" if loader is None else loader.plan.mode)
    own_size = 1 if loader is None else loader.plan.world_size
    world_size = options.world_size or own_size
    integer(1, max(MAX_RANKS, own_size))("world_size", str(world_size))

    def make() -> ShownPlan:
        if options.state is not None:
            raise RequestError("the state is not known; paste it again", 404)
        if loader is not None:
            return ShownPlan(loader.plan)
        with collect_warnings() as found:
            plan = options.make(dataset)
        return ShownPlan(plan, tuple(found))

    def make_ranked() -> ShownPlan:
        whole = session.find_plan(key, make) if options.state is not None else make()
        return replace(whole, plan=whole.plan.for_rank(0, world_size, mode))

    # Another plan after set_class_weights.
    own = None if loader is None else loader.plan
    key = options.state or (dataset, own, replace(options, world_size=None, mode=None))
    shown: ShownPlan = session.find_plan((key, world_size, mode), make_ranked)
    return shown


def batch(
    session: Session, dataset: Dataset, options: PlanOptions, step: int = 0
) -> dict[str, Any]:
    """Return the ids of the examples of a step, for every rank."""
    shown = find_plan(session, dataset, options)
    plan, step = shown.plan, shown.check_step(step)
    left, ranks = MAX_BATCH, []
    for rank in range(plan.world_size):
        if left == 0:
            break
        described = _describe_rank(shown, dataset, step, rank, left)
        ranks.append(described)
        left -= min(left, described["rows"])
    return {
        "step": step,
        "epoch": plan.batch_at(step) // plan.batches_per_epoch,
        "steps_per_epoch": plan.steps_per_epoch,
        "last_step": plan.last_step,
        "plan": {name: value for name, value in plan.description.items() if name != "sum"},
        "examples_per_class": getattr(plan, "examples_per_class", None),
        "world_size": plan.world_size,
        "mode": plan.mode,
        "ranks": ranks,
        "omitted_ranks": plan.world_size - len(ranks),
        "warnings": shown.warnings,
    }


def _describe_rank(
    shown: ShownPlan, dataset: Dataset, step: int, rank: int, limit: int
) -> dict[str, Any]:
    """Return the batch of a rank, of which at most `limit` examples are listed."""
    drawn = shown.draw(step, rank)
    if drawn is None:
        return {"rank": rank, "batch": None, "row": 0, "rows": 0, "classes": []}
    ids, labels, key = drawn
    size = len(ids) if labels is None else key.examples_per_class
    groups: list[dict[str, Any]] = []
    for position, begin in enumerate(range(0, min(len(ids), limit), max(1, size))):
        class_id = None if labels is None else int(labels[position])
        name = None if class_id is None else dataset.class_name(class_id)[:_MAX_NAME]
        listed = ids[begin : min(begin + size, limit)].tolist()
        groups.append({"id": class_id, "name": name, "ids": listed})
    return {"rank": rank, "batch": key.step, "row": key.row, "rows": len(ids), "classes": groups}


def coverage(
    session: Session,
    dataset: Dataset,
    options: PlanOptions,
    step: int = 0,
    until: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield which part of the classes and examples is drawn up to `step`, and up to others."""
    shown = find_plan(session, dataset, options)
    plan: Any = shown.plan
    shown.check_step(step)
    end = shown.check_step(min(plan.steps_per_epoch, plan.last_step) if until is None else until)

    def covered(step: int) -> dict[str, Any]:
        if isinstance(plan, BalancedPlan):
            return asdict(plan.coverage(step))
        drawn = min(plan.batch_at(step), plan.batches_per_epoch) * plan.batch_size
        examples = float(min(1.0, drawn / plan.records))
        return {"classes": None, "examples": examples, "visits": None, "times": None}

    yield {"at": {**covered(step), "steps": step}, "until": end}
    # By integers: a float near the last step may exceed it.
    for each in dict.fromkeys(end * number // (MAX_POINTS - 1) for number in range(MAX_POINTS)):
        found = covered(each)
        yield {"step": each, "classes": found["classes"], "examples": found["examples"]}


# States.


def state(
    session: Session,
    dataset: Dataset,
    body: str,
    world_size: int | None = None,
    mode: Mode | None = None,
) -> dict[str, Any]:
    """Return the step of a state of a loader, and the digest that names its plan in requests.

    Args:
        session: The session.
        dataset: The split that the state is compared with.
        body: The JSON of ``loader.state_dict()``.
        world_size, mode: Ranks, for the step.
    """
    try:
        found = parse_json("state", body)
    except RequestError:
        found = None
    if not isinstance(found, dict) or not {"format", "batch", "plan"} <= found.keys():
        raise RequestError(
            "this is not the state of a loader; must be the JSON of loader.state_dict(): "
            '{"format": 1, "batch": 1200, "plan": {"kind": "balanced", ...}}'
        )
    loader = session.loader
    plans = [lambda: loader.plan] if loader is not None else _candidates(dataset, found)
    plan, index = _load(plans, found)
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]
    session.find_plan(digest, lambda: ShownPlan(plan))
    options = PlanOptions(state=digest, world_size=world_size, mode=mode)
    step = find_plan(session, dataset, options).plan.step_at(index)
    return {
        "parameters": {"state": digest, "step": step},
        "batch": index,
        "weights": bool(found.get("weights")),
        "plan": {name: value for name, value in plan.description.items() if name != "sum"},
    }


def _load(plans: Any, state: Mapping[str, Any]) -> tuple[Plan, int]:
    """Return the plan of a state, which is one of several, and its next batch."""
    first: PlanError | None = None
    for make in plans:
        try:
            with collect_warnings():
                plan = make()
            return loader_state.load(plan, state)
        except PlanError as error:
            first = first or error
    assert first is not None
    if first.option in ("classes", "examples", "sum"):
        first.allowed = first.allowed and first.allowed.replace("this loader", "this dataset")
        first.remedy = (
            "use loader.view() if the batches have class_list=, or are of a part of "
            "split_classes() with another seed"
        )
    raise first


def _candidates(dataset: Dataset, state: Mapping[str, Any]) -> Iterator[Callable[[], Plan]]:
    """Yield functions that return the plans that a state may belong to.

    A state does not name all options of its plan: those that are missing follow from the numbers of
    classes and examples. The state is not trusted.
    """
    described, weights = state["plan"], state.get("weights", [])
    kind = described.get("kind") if isinstance(described, Mapping) else None
    if kind not in get_args(Kind):
        raise PlanError("the state is corrupt", option="kind", found=kind, choices=get_args(Kind))
    sizes = ("classes_per_batch", "examples_per_class") if kind == "balanced" else ("batch_size",)
    values: dict[str, Any] = {name: described.get(name) for name in ("seed", *sizes)}
    for name, value in values.items():
        low = 0 if name == "seed" else 1
        if type(value) is not int or not low <= value < 2**64:
            raise PlanError(
                "the state is corrupt", option=name, found=value, allowed=f"an integer >= {low}"
            )
    if max(values[name] for name in sizes) > MAX_BATCH:
        raise RequestError(f"batches of more than {MAX_BATCH:,} examples are not shown")
    options = PlanOptions(plan=kind, remainder=described.get("remainder", "keep"), **values)
    yield partial(options.make, dataset)
    if kind != "balanced":
        return
    count = len(weights) if isinstance(weights, list) else 0
    if count > _MAX_CHANGES or count * len(dataset.classes) > MAX_CHANGED_CLASSES:
        raise RequestError(
            f"the state has {count:,} changes of the weights of {len(dataset.classes):,} classes, "
            "which is too much to be shown"
        )
    dropped, counts = replace(options, small_classes="drop"), dataset.classes.counts
    yield partial(dropped.make, dataset)
    if type(described.get("examples")) is not int or type(described.get("classes")) is not int:
        return
    for each, those in (
        (options, counts), (dropped, counts[counts >= options.examples_per_class])
    ):  # fmt: skip
        limit = _find_limit(those, described["examples"])
        yield partial(replace(each, total_examples_per_class=limit).make, dataset)
    for part in _parts(dataset, options, described["classes"], described["examples"]):
        yield partial(options.make, dataset, part)


def _find_limit(counts: NDArray[np.int64], examples: int) -> int:
    """Return the limit of examples per class with which the classes have `examples` examples."""
    limits = range(1, int(counts.max(initial=1)) + 1)
    return 1 + bisect_left(limits, examples, key=lambda most: int(np.minimum(counts, most).sum()))


def _parts(dataset: Dataset, options: PlanOptions, count: int, examples: int) -> Iterator[Ids]:
    """Yield the classes of the parts of split_classes() with these numbers.

    A part has consecutive classes in the order of their hashes. The seed of the parts is not in a
    state: it is the default, or equal to the seed of the batches.
    """
    table = dataset.classes
    for seed in dict.fromkeys((0, options.seed)):
        labels, hashes = hash_classes(dataset, seed)
        if not (options.classes_per_batch or 1) <= count < len(labels):
            return
        order = np.argsort(hashes, kind="stable")
        counts = table.counts[np.searchsorted(table.labels, labels)][order]
        ends = np.cumsum(np.append(0, counts))
        begins = np.flatnonzero(ends[count:] - ends[:-count] == examples)
        # The first and the last part are usual.
        begins = begins[np.argsort((begins > 0) & (begins < len(labels) - count), kind="stable")]
        for begin in begins[: max(2, _MAX_PART_EXAMPLES // len(dataset))].tolist():
            yield np.sort(labels[order[begin : begin + count]])


# Contents: x as the loader builds it, with crops, augmentations and transforms.


def parse_image_size(name: str, text: str) -> Any:
    """Return a side, height and width such as ``224x320``, or ``"ragged"``."""
    if text == "ragged":
        return text
    sides = text.split("x") if text.count("x") == 1 else [text, text]
    height, width = (integer(1, MAX_IMAGE_SIDE)(name, side) for side in sides)
    return height, width


@dataclass(frozen=True)
class ContentOptions:
    """Options of a loader that are set on the page."""

    select: str | None = None
    image_size: Annotated[Any, parse_image_size] = None
    crop: Crop = "squash"
    flip: bool = False
    views: Annotated[int, integer(1, 8)] = 1


def batch_rows(
    session: Session,
    dataset: Dataset,
    options: PlanOptions,
    contents: ContentOptions,
    step: int = 0,
    rank: int = 0,
    first: int = 0,
    rows: Annotated[int, integer(1)] = MAX_BATCH,
    side: Side = 128,
) -> Iterator[dict[str, Any]]:
    """Yield the number of rows of x, then each row: images, and descriptions and plots of values.

    Args:
        session, dataset, options: As for :func:`batch`.
        contents: Options of the loader; ignored if the session has a loader.
        step: The step.
        rank: The rank.
        first: The first row.
        rows: Maximum number of rows.
        side: Maximum side of images in pixels.
    """
    ranked, loader = find_plan(session, dataset, options), session.loader
    integer(0, ranked.plan.world_size - 1)("rank", str(rank))
    drawn = ranked.draw(ranked.check_step(step), rank)
    if drawn is None:
        raise RequestError(f"rank {rank} has no batch in step {step}, the last of its epoch", 404)
    built: Any
    if loader is not None:
        built = loader.format
    else:
        built = BatchFormat(dataset, LoadOptions.of(**vars(contents), threads=0))
    ids, labels, key = drawn
    count = len(ids)
    is_whole = built.augmenter or built.batch_transform or built.options.is_padded

    def build(some: Ids) -> dict[str, Any]:
        begin, end = int(some[0]), int(some[-1]) + 1
        chosen = None if labels is None else labels.repeat(key.examples_per_class)[begin:end]
        try:
            x = built.build(ids[begin:end], chosen, key._replace(row=key.row + begin), lambda: None)
        except FeatureError as error:  # of the options, images of different sizes for instance
            raise RequestError(str(error)) from None
        except CoveyError:
            raise
        except Exception as error:
            if loader is None:
                raise
            # Of a function of the caller.
            raise RequestError(f"{type(error).__name__}: {error}") from error
        return _x_columns(built, x, is_whole=is_whole)

    end = min(first + rows, len(ids))
    parts: Iterable[tuple[Ids, Any]]
    if is_whole:
        whole = build(np.arange(len(ids)))
        count = min(map(len, whole.values()), default=0)
        some = np.arange(first, min(first + rows, count))
        parts = [(some, {name: column[first:] for name, column in whole.items()})]
    else:
        size = _chunk_rows(built)
        chunks = (np.arange(begin, min(begin + size, end)) for begin in range(first, end, size))
        parts = chain.from_iterable(read_parts(build, chunk) for chunk in chunks)
    yield {"total": count, "is_aligned": count == len(ids)}
    for numbers, columns in parts:
        for position, row in enumerate(numbers.tolist()):
            if isinstance(columns, CoveyError):
                yield {"row": row, "error": str(columns)}
            else:
                shown = {name: _show(each[position], side) for name, each in columns.items()}
                yield {"row": row, "values": shown}


def _chunk_rows(built: BatchFormat) -> int:
    """Return the number of rows that are built together."""
    if not built.has_images:
        return _MAX_CHUNK_ROWS
    images = built.options.images
    height, width = images.size or (1, _UNKNOWN_PIXELS)
    row_bytes = 3 * height * width * images.views * len(built.image_names)
    return max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))


def _x_columns(built: BatchFormat, batch: Any, *, is_whole: bool) -> dict[str, Any]:
    """Return x as columns: a dict has one for each feature, a tuple one for each view."""
    if is_whole:  # of functions of the caller
        columns = columns_of(batch)
        if isinstance(batch, tuple) and len(columns) > 1:
            columns.pop("y", None)
        return columns
    has_labels = built.examples.label is not None and not built.options.as_dict
    name = built.names[0] if len(built.names) == 1 else ""
    return dict(_flatten(name, batch[0] if has_labels else batch))


def _flatten(name: str, x: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(x, Mapping):
        for key, each in x.items():
            yield from _flatten(f"{name}/{key}" if name else str(key), each)
    elif isinstance(x, tuple):
        for number, each in enumerate(x):
            yield from _flatten(f"{name}[{number}]", each)
    else:  # an array, or a list of rows
        yield name or "x", x


def _show(value: Any, side: int) -> dict[str, Any]:
    """Return a value of a row as an image, or as a description and a plot."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    found: dict[str, Any] = {"dtype": "str", "shape": []}
    if isinstance(value, np.ndarray):
        found = {"dtype": str(value.dtype), "shape": list(value.shape)}
    elif isinstance(value, (RaggedArray, SparseArray)):
        kind = "ragged" if isinstance(value, RaggedArray) else "sparse"
        found = {"dtype": f"{kind} {flat_values(value).dtype}", "shape": None}
    pixels = as_pixels(value)
    if pixels is not None:
        data = base64.b64encode(encode_png(resize(pixels, side))).decode()
        return {**found, "image": f"data:image/png;base64,{data}"}
    numbers = flat_values(value)
    if numbers.dtype.kind in "iuf" and numbers.size:
        found |= {"low": np.fmin.reduce(numbers), "high": np.fmax.reduce(numbers)}
    points = plot(value)
    found["text"] = _text(value)[:_MAX_TEXT]
    return found if points is None else {**found, "plot": points}


def _text(value: Any) -> str:
    """Return a short description of a value: the first rows if it is ragged."""
    if not isinstance(value, RaggedArray):
        return describe(value)
    rows = [_text(row) for row in value[:_SHOWN_ROWS]]
    return f"[{', '.join(rows)}{', ...' if len(value) > len(rows) else ''}]"
