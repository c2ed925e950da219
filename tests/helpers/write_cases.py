"""Combinations of options of a write, and what a write of each leaves on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from engines import digests, image_bytes, write, write_parts
from hypothesis import strategies as st

import covey
from covey.engines import Engine, Pool
from covey.errors import CoveyError
from covey.sources import Source

IMAGES = [image_bytes(number) for number in range(4)]
LABELS = {"strings": ["wren", "owl", "crow", "finch", "gull"], "integers": [0, 1, 2, 5, 7]}
MISSING = object()
"""Value of a feature that an example lacks."""


@dataclass(frozen=True)
class WriteCase:
    """A first write, perhaps followed by a second one."""

    first: Any
    """Examples, or the examples of each split."""
    second: Any
    options: dict[str, Any]
    second_options: dict[str, Any] | None
    """Options of the second write, if there is one."""

    def run(self, directory: Path, write: Callable[..., Any]) -> list[Any]:
        """Write; return the results of both writes, None for an error, and the files after each."""
        found = []
        writes = [(self.first, self.options)]
        if self.second_options is not None:
            writes.append((self.second, self.second_options))
        for examples, options in writes:
            try:
                result = summary(write(as_source(examples), directory / "birds", **options))
            except CoveyError:
                result = None
                for parts in (directory / "birds").glob(".covey-parts-*"):
                    shutil.rmtree(parts)
            files = {name: each for name, each in digests(directory).items() if name != "birds"}
            found.append((result, files))
        return found


def as_source(examples: Any) -> Any:
    """Return a list as it is, and a dict of lists as the splits of a source."""
    if isinstance(examples, list):
        return examples
    return {
        split: Source("list", split, each, length=len(each)) for split, each in examples.items()
    }


def summary(result: covey.results.WriteResult) -> Any:
    """Return what all ways of writing report equally. Their errors may be of different types."""
    found = {
        split: (each.records, each.classes, each.label, each.features, _skipped(each))
        for split, each in result.splits.items()
    }
    return found, result.notes


def _skipped(result: covey.results.WriteResult) -> list[int]:
    return [each.record for each in result.skipped]


@dataclass(frozen=True)
class Started(Engine):
    """An engine whose workers are started once."""

    pool: Pool
    pieces: int | None

    def start(self) -> Pool:
        return _Open(self.pool)  # type: ignore[return-value]


class _Open:
    """A pool that is not closed by a write, which waits for its tasks instead."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._submitted: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = self._pool.submit(function, *arguments)
        self._submitted.append(future)
        return future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def __enter__(self) -> _Open:
        return self

    def __exit__(self, *_: object) -> None:
        wait([each for each in self._submitted if not each.cancelled()])


def locally(**options: Any) -> Callable[..., Any]:
    """Return a function that writes with further options."""
    return lambda examples, path, **others: write(examples, path, **others, **options)


def in_parts(parts: int) -> Callable[..., Any]:
    """Return a function that writes in parts, and commits them."""
    return lambda examples, path, **options: write_parts(examples, path, parts, **options)


# Strategies.

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(-(2**40), 2**40),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "number": st.integers(0, 9) | st.sampled_from([0.5, 1.5]),
    # Most are the same in float32; one that is not makes all of them float64.
    "decimal": st.sampled_from([0.1, 0.5, 1e20, 19.99, 1.2345678, 7, 2**30, 1700000000.123, 1 / 3]),
    "numpy": st.sampled_from([np.float32(0.1), np.float32(2), np.float16(0.5), 3, 0.1]),
    "floats": st.lists(st.sampled_from([0.1, 0.5, 1 / 3, 1e-3, 4]), max_size=3),
    "ragged floats": st.lists(st.lists(st.floats(0, 1), max_size=2), min_size=1, max_size=3),
    "string": st.text("ab\u00e9", max_size=3),
    "list": st.lists(st.integers(0, 9), max_size=3),
    "strings": st.lists(st.text("ab", max_size=2), max_size=3),
    "ragged": st.lists(st.lists(st.integers(0, 9), max_size=2), min_size=1, max_size=3),
    "image": st.sampled_from(IMAGES),
}
DEFAULTS = {
    "integer": 3,
    "float": 0.5,
    "number": 1,
    "decimal": 0.3,
    "numpy": 0.5,
    "floats": [0.25],
    "ragged floats": [[0.1]],
    "string": "none",
    "list": [],
    "strings": ["none"],
    "ragged": [[1]],
    "image": IMAGES[0],
}
INVALID = [{"x": object()}, {"unknown": 1}, {"group": "one"}, 7]


@st.composite
def hold_outs(draw: Any) -> covey.HoldOut:
    choice = draw(st.sampled_from(["fraction", "by", "by label", "number", "classes"]))
    seed = draw(st.integers(0, 3))
    match choice:
        case "fraction":
            return covey.HoldOut(fraction=0.5, seed=seed)
        case "by":
            return covey.HoldOut(fraction=0.5, by="group", seed=seed)
        case "by label":
            return covey.HoldOut(fraction=0.5, by="label", seed=seed)
        case "number":
            return covey.HoldOut(classes=draw(st.integers(1, 2)), seed=seed)
    return covey.HoldOut(classes=0.5, seed=seed)


@st.composite
def write_cases(draw: Any) -> WriteCase:
    """Draw a combination."""
    labels = LABELS[draw(st.sampled_from([*LABELS]))]
    kinds = draw(st.lists(st.sampled_from([*VALUES]), max_size=2, unique=True))
    features = {f"x{number}": kind for number, kind in enumerate(kinds)}
    defaults: dict[str, Any] = {
        name: DEFAULTS[kind] for name, kind in features.items() if draw(st.booleans())
    }
    if draw(st.booleans()):
        defaults["label"] = draw(st.sampled_from(labels))
    may_lack = draw(st.booleans())
    skips = draw(st.booleans())
    is_invalid = skips and draw(st.booleans())

    def values(name: str, each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        is_missing = name in defaults or (name == "label" and may_lack)
        return each | st.sampled_from([None, MISSING]) if is_missing else each

    one = st.fixed_dictionaries(
        {
            "group": st.integers(0, 5),
            "label": values("label", st.sampled_from(labels)),
            **{name: values(name, VALUES[kind]) for name, kind in features.items()},
        }
    ).map(lambda row: {name: value for name, value in row.items() if value is not MISSING})
    if is_invalid:
        one = one | st.sampled_from(INVALID)
    rows = st.lists(one, min_size=1, max_size=24)
    keyed = draw(st.booleans())

    def examples() -> Any:
        found = draw(rows)
        if keyed:
            found = [
                (f"key {number}", row) if isinstance(row, dict) else row
                for number, row in enumerate(found)
            ]
        return found

    hold_out = draw(st.none() | hold_outs())
    splits = None if hold_out is not None else draw(st.none() | st.just(["train", "val"]))
    first, second = (
        examples() if splits is None else {split: examples() for split in splits} for _ in range(2)
    )
    options: dict[str, Any] = {
        "seed": draw(st.integers(0, 2)),
        "shards": draw(st.integers(1, 3)),
        "label": draw(st.sampled_from(["auto", "label"])),
        "compression": draw(st.sampled_from([None, "GZIP"])),
        "shuffle": draw(st.booleans()),
        "sort_by_class": draw(st.booleans()),
        "on_error": "skip" if skips else "raise",
        "hold_out": hold_out,
        "defaults": defaults,
    }
    float_kinds = ("decimal", "floats", "ragged floats")
    floats = [name for name, kind in features.items() if kind in float_kinds]
    options["types"] = {name: "float64" for name in floats if draw(st.booleans())}
    mode = draw(st.sampled_from([None, "append", "overwrite"]))
    return WriteCase(first, second, options, None if mode is None else {**options, "mode": mode})
