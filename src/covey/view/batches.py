"""Batches of a training run: any step, for any number of ranks, as the loader returns them.

Rows of a batch are built in chunks where they do not depend on each other, so that the memory of a
request is bounded, and a corrupt record does not hide the others. Random crops and the generators
of transforms depend on the row in the batch, not on the chunk. Functions of a whole batch
(``augmenter``, ``batch_transform``) and padding get the whole batch.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray
from covey.dataset.combine import hash_classes
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError, FeatureError, PlanError, check_int
from covey.loader.batch import BatchFormat
from covey.loader.options import LoadOptions
from covey.plan import BalancedPlan, Mode, Plan, SequentialPlan, ShuffledPlan
from covey.plan import state as loader_state
from covey.plan.balanced import BatchKey
from covey.plan.epochs import Remainder
from covey.plan.weights import SmallClasses, collect_warnings
from covey.schema.pixels import Crop
from covey.view import media
from covey.view.session import Ids, RequestError, Session, integer, parse_json, read_parts

Kind = Literal["balanced", "shuffled", "sequential"]

MAX_BATCH = 16_384
"""Maximum number of examples of a batch that is shown."""
MAX_RANKS = 64
MAX_WEIGHTS = 4_000_000
"""Maximum number of class weights of a state: those of all changes together."""
MAX_STATES = 8
"""Maximum number of pasted states that are stored."""

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
        if (self.plan or ("shuffled" if dataset.label is None else "balanced")) == "balanced":
            classes = self.classes_per_batch or min(8, max(1, len(dataset.classes)))
            plan = BalancedPlan(
                dataset.classes,
                classes,
                self.examples_per_class,
                self.seed,
                total_examples_per_class=self.total_examples_per_class,
                small_classes=self.small_classes,
                class_weights=self.class_weights,
                class_list=class_list,
            )
            size = classes * self.examples_per_class
        else:
            size = self.batch_size or min(32, len(dataset))
            if self.plan == "sequential":
                return SequentialPlan(len(dataset), size, remainder=self.remainder)
            return ShuffledPlan(len(dataset), size, self.seed, remainder=self.remainder)
        if size > MAX_BATCH:
            raise RequestError(
                f"a batch of {size:,} examples is too large to be shown; the limit is {MAX_BATCH:,}"
            )
        return plan

    def make_quietly(self, dataset: Dataset) -> tuple[Plan, list[str]]:
        """Return the plan of all ranks, and the warnings about small classes."""
        with collect_warnings() as found:
            return self.make(dataset), found


class Drawn(NamedTuple):
    """What one rank draws in a step."""

    ids: Ids
    labels: Ids | None
    """The class id of each group of consecutive examples; None without classes."""
    key: BatchKey
    """The index of the batch, and of its first row here."""


def find_plan(
    session: Session, dataset: Dataset, options: PlanOptions
) -> tuple[Plan, Sequence[str]]:
    """Return the plan that a request names, for rank 0, and the warnings about it.

    By default it is the plan of the loader, if there is one.
    """
    own = None if session.loader is None else session.loader.plan
    size = options.world_size or (1 if own is None else own.world_size)
    mode: Mode = options.mode or ("split" if own is None else own.mode)
    integer(1, max(MAX_RANKS, 1 if own is None else own.world_size))("world_size", str(size))
    found: Sequence[str] = ()
    if options.state is not None:
        plan = session.states.get(options.state)
        if plan is None:
            raise RequestError("the state is not known; paste it again", 404)
    elif own is not None:
        plan = own
    else:
        plan, found = session.plan(dataset, replace(options, world_size=None, mode=None))
    return session.rank(plan, size, mode), found


def check_step(plan: Plan, step: int) -> int:
    """Return a step that a plan has."""
    return int(integer(0, plan.last_step)("step", str(step)))


def draw(plan: Plan, step: int, rank: int) -> Drawn | None:
    """Return what a rank draws in a step; None if the epoch ends before its batch."""
    integer(0, plan.world_size - 1)("rank", str(rank))
    plan = plan.for_rank(rank, plan.world_size, plan.mode)
    origin = plan.batch_at(check_step(plan, step))
    if plan.steps_left(origin) == 0:
        return None
    ids, labels = plan.native.draw(0, 1, plan.share(origin))
    return Drawn(ids[0], None if labels is None else labels[0], plan.key(0, origin))


def batch(
    session: Session, dataset: Dataset, options: PlanOptions, step: int = 0
) -> dict[str, Any]:
    """Return the ids of the examples of a step, for every rank."""
    plan, found = find_plan(session, dataset, options)
    ranks: list[dict[str, Any]] = []
    left = MAX_BATCH
    while len(ranks) < plan.world_size and left > 0:
        ranks.append(_describe_rank(plan, dataset, step, len(ranks), left))
        left -= ranks[-1]["rows"]
    return {
        "step": step,
        "epoch": plan.batch_at(step) // plan.batches_per_epoch,
        "steps_per_epoch": plan.steps_per_epoch,
        "last_step": plan.last_step,
        "plan": _describe(plan),
        "examples_per_class": getattr(plan, "examples_per_class", None),
        "world_size": plan.world_size,
        "mode": plan.mode,
        "ranks": ranks,
        "omitted_ranks": plan.world_size - len(ranks),
        "warnings": found,
    }


def _describe(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in plan.description.items() if name != "sum"}


def _describe_rank(
    plan: Plan, dataset: Dataset, step: int, rank: int, limit: int
) -> dict[str, Any]:
    """Return the batch of a rank, of which at most `limit` examples are listed."""
    drawn = draw(plan, step, rank)
    if drawn is None:
        return {"rank": rank, "batch": None, "row": 0, "rows": 0, "classes": []}
    ids, labels, key = drawn
    size = len(ids) if labels is None else key.examples_per_class
    groups = []
    for position, begin in enumerate(range(0, min(len(ids), limit), max(1, size))):
        class_id = None if labels is None else int(labels[position])
        name = None if class_id is None else dataset.class_name(class_id)[:_MAX_NAME]
        listed = ids[begin : min(begin + size, limit)].tolist()
        groups.append({"id": class_id, "name": name, "ids": listed})
    return {"rank": rank, "batch": key.step, "row": key.row, "rows": len(ids), "classes": groups}


def coverage(
    session: Session, dataset: Dataset, options: PlanOptions, step: int = 0
) -> dict[str, Any]:
    """Return which part of the classes and examples is drawn before a step."""
    plan: Any = find_plan(session, dataset, options)[0]
    check_step(plan, step)
    if isinstance(plan, BalancedPlan):
        return {"at": asdict(plan.coverage(step))}
    drawn = min(plan.batch_at(step), plan.batches_per_epoch) * plan.batch_size
    examples = min(1.0, drawn / plan.records)
    return {"at": {"steps": step, "classes": None, "examples": examples}}


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
    found = parse_json("state", body)
    if not isinstance(found, dict) or not {"format", "batch", "plan"} <= found.keys():
        raise RequestError(
            "this is not the state of a loader; must be the JSON of loader.state_dict(): "
            '{"format": 1, "batch": 1200, "plan": {"kind": "balanced", ...}}'
        )
    weights = found.get("weights")
    count = len(weights) if isinstance(weights, list) else 0
    if count * len(dataset.classes) > MAX_WEIGHTS:
        raise RequestError(f"the state has {count:,} changes of weights, which is too much")
    if session.loader is not None:
        plan, index = loader_state.load(session.loader.plan, found)
    else:
        plan, index = _find_state(dataset, found)
    digest = hashlib.sha256(body.encode()).hexdigest()[:32]
    session.states[digest] = plan
    while len(session.states) > MAX_STATES:
        del session.states[next(iter(session.states))]
    options = PlanOptions(state=digest, world_size=world_size, mode=mode)
    step = find_plan(session, dataset, options)[0].step_at(index)
    parameters, described = {"state": digest, "step": step}, _describe(plan)
    return {"parameters": parameters, "batch": index, "weights": count > 0, "plan": described}


def _find_state(dataset: Dataset, state: Mapping[str, Any]) -> tuple[Plan, int]:
    """Return the plan of a state, and its next batch."""
    first: PlanError | None = None
    for options, part in _candidates(dataset, state["plan"]):
        try:
            with collect_warnings():
                plan, index = loader_state.load(options.make(part), state)
                if part is not dataset:  # the same examples, by their ids in the split
                    whole = options.make(dataset, part.classes.labels)
                    plan = loader_state.load_weights(whole, state.get("weights", []))
                return plan, index
        except PlanError as error:
            first = first or error
    assert first is not None
    if first.option in ("classes", "examples", "sum"):
        first.remedy = (
            "use loader.view() if the batches have class_list=, or are of a part of "
            "split_classes() with another seed"
        )
    raise first


def _candidates(dataset: Dataset, described: Any) -> Iterator[tuple[PlanOptions, Dataset]]:
    """Yield the options that a state may belong to, and the dataset or a part of it.

    A state does not name all options of its plan: those that are missing follow from the numbers of
    classes and examples. The state is not trusted.
    """
    kind = described.get("kind") if isinstance(described, dict) else None
    if kind not in get_args(Kind):
        raise PlanError("the state is corrupt", option="kind", found=kind, choices=get_args(Kind))
    names = ("classes_per_batch", "examples_per_class", "seed", "batch_size", "remainder")
    options = PlanOptions(
        plan=kind, **{each: described[each] for each in names if each in described}
    )
    yield options, dataset
    if kind != "balanced":
        return
    per_class, classes, examples = (
        check_int(each, described.get(each), 1)
        for each in ("examples_per_class", "classes", "examples")
    )
    dropped, counts = replace(options, small_classes="drop"), dataset.classes.counts
    yield dropped, dataset
    for each, those in ((options, counts), (dropped, counts[counts >= per_class])):
        yield replace(each, total_examples_per_class=_find_limit(those, examples)), dataset
    for part in _parts(dataset, options, classes, examples):
        yield options, part


def _find_limit(counts: NDArray[np.int64], examples: int) -> int:
    """Return the limit of examples per class with which the classes have `examples` examples."""
    limits = range(1, int(counts.max(initial=1)) + 1)
    return 1 + bisect_left(limits, examples, key=lambda most: int(np.minimum(counts, most).sum()))


def _parts(dataset: Dataset, options: PlanOptions, count: int, examples: int) -> Iterator[Dataset]:
    """Yield the parts of split_classes() with these numbers of classes and examples.

    A part has consecutive classes in the order of their hashes. The seed of the parts is not in a
    state: it is the default, or equal to the seed of the batches.
    """
    table = dataset.classes
    for seed in dict.fromkeys((0, options.seed)):
        labels, hashes = hash_classes(dataset, seed)
        if not (options.classes_per_batch or 1) <= count < len(labels):
            return
        counts = table.counts[np.searchsorted(table.labels, labels)]
        ends = np.cumsum(np.append(0, counts[np.argsort(hashes, kind="stable")]))
        begins = np.flatnonzero(ends[count:] - ends[:-count] == examples)
        # The first and the last part are usual.
        begins = begins[np.argsort((begins > 0) & (begins < len(labels) - count), kind="stable")]
        for begin in begins[: max(2, _MAX_PART_EXAMPLES // len(dataset))].tolist():
            before: Any = {"before": begin} if begin else {}
            yield dataset.split_classes(seed=seed, **before, part=count)[len(before)]


# Contents: x as the loader builds it, with crops, augmentations and transforms.


def parse_image_size(name: str, text: str) -> Any:
    """Return a side, height and width such as ``224x320``, or ``"ragged"``."""
    if text == "ragged":
        return text
    height, width = text.split("x") if text.count("x") == 1 else (text, text)
    return integer(1, 1024)(name, height), integer(1, 1024)(name, width)


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
    rows: Annotated[int, integer(1)] = MAX_BATCH,
    side: media.Side = 128,
) -> Iterator[dict[str, Any]]:
    """Yield the number of rows of x, then each row: images, and descriptions and plots of values.

    Args:
        session, dataset, options: As for :func:`batch`.
        contents: Options of the loader; ignored if the session has a loader.
        step: The step.
        rank: The rank.
        rows: Maximum number of rows.
        side: Maximum side of images in pixels.
    """
    drawn = draw(find_plan(session, dataset, options)[0], step, rank)
    if drawn is None:
        raise RequestError(f"rank {rank} has no batch in step {step}, the last of its epoch", 404)
    loader = session.loader
    own = BatchFormat(dataset, LoadOptions.of(**vars(contents), threads=0))
    built: Any = own if loader is None else loader.format
    build = partial(_build, built, drawn)
    everything = np.arange(len(drawn.ids))
    parts: Iterable[tuple[Ids, Any]]
    if built.augmenter or built.batch_transform or built.options.is_padded:
        columns = build(everything)
        total = min(map(len, columns.values()), default=0)
        parts = [(np.arange(min(rows, total)), columns)]
    else:
        total = len(everything)
        chunks = range(0, min(rows, total), _chunk_rows(built))
        parts = chain.from_iterable(
            read_parts(build, everything[begin : min(begin + chunks.step, rows)])
            for begin in chunks
        )
    yield {"total": total, "is_aligned": total == len(everything)}
    for numbers, columns in parts:
        for position, row in enumerate(numbers.tolist()):
            if isinstance(columns, CoveyError):
                yield {"row": row, "error": str(columns)}
            else:
                shown = {name: _show(each[position], side) for name, each in columns.items()}
                yield {"row": row, "values": shown}


def _build(built: BatchFormat, drawn: Drawn, rows: Ids) -> dict[str, Any]:
    """Return some rows of x as columns: one for each feature of a dict, and each view."""
    (ids, labels, key), begin, end = drawn, int(rows[0]), int(rows[-1]) + 1
    chosen = None if labels is None else labels.repeat(key.examples_per_class)[begin:end]
    try:
        key = key._replace(row=key.row + begin)
        batch = built.build(ids[begin:end], chosen, key, lambda: None)
    except FeatureError as error:  # of the options, images of different sizes for instance
        raise RequestError(str(error)) from None
    except CoveyError:
        raise
    except Exception as error:  # of a function of the caller
        raise RequestError(f"{type(error).__name__}: {error}") from error
    if built.augmenter or built.batch_transform:
        columns = media.columns_of(batch)
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


def _chunk_rows(built: BatchFormat) -> int:
    """Return the number of rows that are built together."""
    images = built.options.images
    height, width = images.size or (1, _UNKNOWN_PIXELS)
    row_bytes = 3 * height * width * images.views * len(built.image_names)
    return max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES // max(1, row_bytes)))


def _show(value: Any, side: int) -> dict[str, Any]:
    """Return a value of a row as an image, or as a description and a plot."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    numbers, is_array = media.flat_values(value), isinstance(value, np.ndarray)
    dtype = "str" if numbers.dtype.kind in "OSU" else str(numbers.dtype)
    found: dict[str, Any] = {"dtype": dtype, "shape": list(value.shape) if is_array else None}
    pixels = media.as_pixels(value)
    if pixels is not None:
        data = base64.b64encode(media.encode_png(media.resize(pixels, side))).decode()
        return {**found, "image": f"data:image/png;base64,{data}"}
    if numbers.dtype.kind in "iuf" and numbers.size:
        found |= {"low": np.fmin.reduce(numbers), "high": np.fmax.reduce(numbers)}
    return {**found, "text": _text(value)[:_MAX_TEXT], "plot": media.plot(value)}


def _text(value: Any) -> str:
    """Return a short description of a value: the first rows if it is ragged."""
    if not isinstance(value, RaggedArray):
        return media.describe(value)
    rows = [_text(row) for row in value[:_SHOWN_ROWS]]
    return f"[{', '.join(rows)}{', ...' if len(value) > len(rows) else ''}]"
