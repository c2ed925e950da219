"""The plan that a request asks for: its parameters, and a cache of plans.

A plan refers to the class table of the index, which is mapped. It copies a few numbers per class,
so the cache is bounded by the number of classes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.loader import Loader
from covey.plan import BalancedPlan, Mode, Plan, SequentialPlan, ShuffledPlan
from covey.plan import state as loader_state
from covey.plan.balanced import MODES, BatchKey
from covey.plan.epochs import REMAINDERS, Remainder
from covey.plan.weights import NAMED, SMALL_CLASSES, SmallClasses, collect_warnings
from covey.view.messages import Query, RequestError

if TYPE_CHECKING:
    from covey.view.session import Session

Kind = Literal["balanced", "shuffled", "sequential"]
KINDS = get_args(Kind)

MAX_BATCH = 16_384
"""Maximum number of examples of a batch that is set on the page."""
MAX_RANKS = 64
MAX_SEED = 2**64 - 1
MAX_STATES = 8
"""Maximum number of pasted states whose weights are kept."""
MAX_CHANGED_CLASSES = 4_000_000
"""Maximum number of class weights of a state: those of all changes together."""

DEFAULT_CLASSES_PER_BATCH = 8
DEFAULT_EXAMPLES_PER_CLASS = 4
DEFAULT_BATCH_SIZE = 32

_PART = re.compile(r"\d{1,20}:\d{1,10}:\d{1,10}", re.ASCII)

_MAX_PLANS = 8
_MAX_CLASSES = 1_000_000
_MAX_RANKINGS = 4


@dataclass(frozen=True)
class PlanOptions:
    """Options of a plan that is set on the page: those of ``ds.batches`` and ``ds.shuffled``."""

    kind: Kind = "balanced"
    classes_per_batch: int = 1
    examples_per_class: int = 1
    seed: int = 0
    small_classes: SmallClasses = "repeat"
    class_weights: str | None = None
    total_examples_per_class: int | None = None
    class_part: str | None = None
    batch_size: int = 1
    remainder: Remainder = "keep"

    @classmethod
    def parse(cls, query: Query, dataset: Dataset) -> PlanOptions:
        """Return the options that a request names."""
        default = "shuffled" if dataset.label is None else "balanced"
        kind: Any = query.choice("plan", KINDS, default)
        seed = query.integer("seed", 0, high=MAX_SEED)
        if not len(dataset):
            raise RequestError("the split has no examples, and no batches")
        if kind != "balanced":
            size = query.integer(
                "batch_size", min(DEFAULT_BATCH_SIZE, len(dataset)), low=1, high=MAX_BATCH
            )
            remainder: Any = query.choice("remainder", REMAINDERS, "keep")
            seed = 0 if kind == "sequential" else seed
            return cls(kind=kind, seed=seed, batch_size=size, remainder=remainder)
        few = min(DEFAULT_CLASSES_PER_BATCH, max(1, len(dataset.classes)))
        classes = query.integer("classes_per_batch", few, low=1, high=MAX_BATCH)
        each = query.integer(
            "examples_per_class", DEFAULT_EXAMPLES_PER_CLASS, low=1, high=MAX_BATCH
        )
        if classes * each > MAX_BATCH:
            raise RequestError(
                f"a batch of {classes:,} x {each:,} examples is too large to be shown; the limit "
                f"is {MAX_BATCH:,} examples"
            )
        total = query.optional("total_examples_per_class")
        small: Any = query.choice("small_classes", SMALL_CLASSES, "repeat")
        return cls(
            classes_per_batch=classes,
            examples_per_class=each,
            seed=seed,
            small_classes=small,
            class_weights=query.choice("class_weights", ("", *NAMED), "") or None,
            total_examples_per_class=None
            if total is None
            else query.integer("total_examples_per_class", low=1, high=2**62),
            class_part=query.optional("class_part"),
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a request for these options, without those that have defaults."""
        sizes: tuple[str, ...] = ("batch_size",)
        if self.kind == "balanced":
            sizes = "classes_per_batch", "examples_per_class"
        found = {"plan": self.kind, **{name: getattr(self, name) for name in sizes}}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("kind", "batch_size", *found) and value != each.default:
                found[each.name] = value
        return found

    def make(self, dataset: Dataset) -> Plan:
        """Return the plan of all ranks."""
        if self.kind == "shuffled":
            return ShuffledPlan(len(dataset), self.batch_size, self.seed, remainder=self.remainder)
        if self.kind == "sequential":
            return SequentialPlan(len(dataset), self.batch_size, remainder=self.remainder)
        weights: Any = self.class_weights
        chosen = None
        if self.class_part is not None:
            chosen = open_part(dataset, self.class_part).classes.labels
        return BalancedPlan(
            dataset.classes,
            self.classes_per_batch,
            self.examples_per_class,
            self.seed,
            total_examples_per_class=self.total_examples_per_class,
            small_classes=self.small_classes,
            class_weights=weights,
            class_list=chosen,
        )


def open_part(dataset: Dataset, text: str) -> Dataset:
    """Return a part of ``dataset.split_classes``.

    Args:
        dataset: The split.
        text: Its seed, the number of classes of the parts before it, and its number of classes:
            ``0:8:2``.
    """
    if _PART.fullmatch(text) is None:
        raise RequestError(f"class_part is {text[:80]!r}; must be SEED:BEGIN:CLASSES")
    seed, begin, count = map(int, text.split(":"))
    before: Any = {"before": begin} if begin else {}
    return dataset.split_classes(seed=seed, **before, part=count)[len(before)]


class Drawn(NamedTuple):
    """What one rank draws in a step."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    """The class id of each group of consecutive examples; None without classes."""
    key: BatchKey
    """The index of the batch, and of its first row here."""


@dataclass(frozen=True)
class ShownPlan:
    """A plan for a number of ranks, and the dataset that it draws from."""

    dataset: Dataset
    plan: Plan
    """The plan of rank 0."""
    warnings: tuple[str, ...]
    loader: Loader | None = None

    def of_rank(self, rank: int) -> Plan:
        """Return the plan of a rank."""
        return self.plan.for_rank(rank, self.plan.world_size, self.plan.mode)

    def draw(self, step: int, rank: int) -> Drawn | None:
        """Return what a rank draws in a step; None if the epoch ends before its batch."""
        plan = self.of_rank(rank)
        origin = plan.batch_at(step)
        if plan.steps_left(origin) == 0:
            return None
        ids, labels = plan.native.draw(0, 1, plan.share(origin))
        return Drawn(ids[0], None if labels is None else labels[0], plan.key(0, origin))


@dataclass
class _Entry:
    plan: Plan
    warnings: tuple[str, ...] = ()
    # The plan of rank 0 by world size and mode: the length of an epoch is computed once for each.
    rankings: OrderedDict[tuple[int, Mode], Plan] = field(default_factory=OrderedDict)

    @property
    def classes(self) -> int:
        """Number of classes in memory: those of the plan, and of each change of its weights."""
        if not isinstance(self.plan, BalancedPlan):
            return 0
        return int(self.plan.description["classes"]) * (1 + len(self.plan.changes))

    def ranked(self, world_size: int, mode: Mode) -> Plan:
        """Return the plan of rank 0."""
        key = world_size, mode
        if key not in self.rankings:
            self.rankings[key] = self.plan.for_rank(0, world_size, mode)
            if len(self.rankings) > _MAX_RANKINGS:
                self.rankings.popitem(last=False)
        self.rankings.move_to_end(key)
        return self.rankings[key]


class PlanCache:
    """Plans with LRU eviction, and the weights of pasted states; used by all threads of a server.

    Args:
        max_plans: Maximum number of plans.
        max_classes: Maximum number of classes of all plans, unless there is only one.
    """

    def __init__(self, max_plans: int = _MAX_PLANS, max_classes: int = _MAX_CLASSES) -> None:
        self._max_plans = max_plans
        self._max_classes = max_classes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def find(
        self, key: Hashable, make: Callable[[], Plan], world_size: int, mode: Mode
    ) -> tuple[Plan, tuple[str, ...]]:
        """Return the plan of rank 0, and the warnings about it.

        Args:
            key: What identifies the plan.
            make: Function that returns the plan of all ranks.
            world_size: Number of ranks.
            mode: How ranks share the batches.
        """
        with self._lock:
            if key not in self._entries:
                plan, messages = make_quietly(make)
                self._entries[key] = _Entry(plan, messages)
                self._evict()
            self._entries.move_to_end(key)
            entry = self._entries[key]
            return entry.ranked(world_size, mode), entry.warnings

    def _evict(self) -> None:
        while len(self._entries) > 1 and (
            len(self._entries) > self._max_plans
            or sum(entry.classes for entry in self._entries.values()) > self._max_classes
        ):
            self._entries.popitem(last=False)

    def add_weights(self, weights: Any) -> str:
        """Store the weights of a state; return their digest, which is short enough for a URL."""
        digest = hashlib.sha256(json.dumps(weights).encode()).hexdigest()[:32]
        with self._lock:
            self._states[digest] = weights
            self._states.move_to_end(digest)
            if len(self._states) > MAX_STATES:
                self._states.popitem(last=False)
        return digest

    def weights(self, digest: str) -> Any:
        """Return the weights of a state.

        Raises:
            RequestError: If they are not stored.
        """
        found = self._states.get(digest)
        if found is None:
            raise RequestError("the class weights of the state are not known; paste it again", 404)
        return found


def make_quietly(make: Callable[[], Plan]) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan, and the warnings about small classes, which the page shows."""
    with collect_warnings() as found:
        plan = make()
    return plan, tuple(found)


def find_plan(session: Session, query: Query) -> ShownPlan:
    """Return the plan that a request names; that of the loader, if the session has one."""
    dataset, cache, loader = session.dataset(query), session.plans, session.loader
    world_size, mode = parse_ranks(query, loader)
    digest = query.optional("weights")
    weights = None if digest is None else cache.weights(digest)

    def reweighted(plan: Plan) -> Plan:
        return plan if weights is None else loader_state.load_weights(plan, weights)

    if loader is not None:
        plan = loader.plan  # another one after set_class_weights
        found, _ = cache.find((plan, digest), lambda: reweighted(plan), world_size, mode)
        return ShownPlan(dataset, found, (), loader)
    options = PlanOptions.parse(query, dataset)
    key = query.string("split", session.splits[0]), options, digest
    found, messages = cache.find(key, lambda: reweighted(options.make(dataset)), world_size, mode)
    return ShownPlan(dataset, found, messages)


def parse_ranks(query: Query, loader: Loader | None = None) -> tuple[int, Mode]:
    """Return the number of ranks and their mode; by default those of the loader."""
    world_size = 1 if loader is None else loader.plan.world_size
    mode: Any = query.choice("mode", MODES, "split" if loader is None else loader.plan.mode)
    return query.integer("world_size", world_size, low=1, high=max(MAX_RANKS, world_size)), mode
