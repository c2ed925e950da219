"""Balanced batches, P = 32 classes x K = 4, against numpy in memory and other libraries."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey
import covey.plan
from benchmarks import opponents
from benchmarks.data import FOLDER, SHARDS, Data
from benchmarks.measure import Table, in_turn, rate
from benchmarks.reading import dataset

P, K = 32, 4
BATCH = P * K
MANY = 10_000_000


def exact(batches: Iterable[NDArray[np.int64]]) -> str:
    """Return the fraction of batches with exactly P classes and K examples of each."""
    right = [sorted(np.unique(y, return_counts=True)[1].tolist()) == [K] * P for y in batches]
    return f"{np.mean(right):.0%} exact"


def use(batches: Iterator[Any], count: int) -> Callable[[], None]:
    """Iterate over a number of batches, continuing where the last call stopped."""

    def run() -> None:
        for _ in islice(batches, count):
            pass

    return run


def endless(again: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    while True:
        yield from again()


def numpy_side(data: Data, names: list[str], plan: Any, count: int) -> Callable[[], None]:
    """Index the columns in memory by ids that were planned before."""
    columns = [data.columns[name] for name in names]
    batches = list(plan.batches(0, count))

    def run() -> None:
        for ids in batches:
            for column in columns:
                _ = column[ids]

    return run


def against_memory(data: Data, table: Table, rounds: int, count: int) -> None:
    ds = dataset(data, data.name)  # random labels: classes lie anywhere
    names = list(data.features)
    options = {"no thread": 0, "one thread": 1, "two threads": 2}
    loaders = {name: ds.batches(P, K, seed=1, threads=n) for name, n in options.items()}
    check(ds, data, loaders["two threads"])
    plan = loaders["no thread"].plan
    sides: dict[str, Callable[[], object]] = {"numpy": numpy_side(data, names, plan, count)}
    for name, loader in loaders.items():
        sides[name] = use(loader.take(10**12), count)
    recycled = ds.batches(P, K, seed=1, threads=2, reuse_buffers=True)
    sides["two threads, `reuse_buffers=True`"] = use(recycled.take(10**12), count)
    for run in sides.values():
        run()
    seconds = in_turn(sides, rounds)
    theirs = seconds.pop("numpy")
    for name, ours in seconds.items():
        table.add(
            f"P x K from {SHARDS} shards, checksums, {name}",
            data.name.upper(),
            f"{rate(count * BATCH, ours)}, {count / ours:,.0f} batches/s",
            f"numpy `x[ids]` of all columns in memory {rate(count * BATCH, theirs)}",
            f"{theirs / ours:.2f}x",
        )
    for loader in (*loaders.values(), recycled):
        loader.close()


def check(ds: Any, data: Data, loader: Any) -> None:
    """Check that batches are exact and hold the planned examples."""
    for step, (x, y) in enumerate(islice(loader.take(50), 50)):
        ids = loader.plan.batch(step)
        image = x if data.name == "small" else x["image"]
        same = np.array_equal(image, data.columns["image"][ids])
        if not same or not np.array_equal(y, data.columns["label"][ids]):
            raise SystemExit("covey gives other examples")
        if exact([y]) != "100% exact":
            raise SystemExit("covey's batches are not exact")
    loader.seek(0)


def against_others(data: Data, table: Table, rounds: int, count: int) -> None:
    """Measure each opponent on the shard layout that it requires."""
    by_class = np.argsort(data.columns["label"], kind="stable")
    for opponent in opponents.of(data, by_class, P, K):
        ds = covey.open(opponent.directory, features=data.features, label="label")
        loader = ds.batches(P, K, seed=1, threads=2)
        ours = use(loader.take(10**12), count)
        few = max(1, count // opponent.slower)
        theirs = use(endless(opponent.batches), few)
        labels = list(islice(endless(opponent.labels), 40))
        ours(), theirs()
        seconds = in_turn({"covey": ours, "other": theirs}, rounds)
        other = seconds["other"] * count / few
        table.add(
            f"P x K, two threads, {opponent.layout}",
            data.name.upper(),
            rate(count * BATCH, seconds["covey"]),
            f"{opponent.name} {rate(count * BATCH, other)}, {exact(labels)}",
            f"{other / seconds['covey']:.0f}x",
        )
        loader.close()


def overhead(data: Data, table: Table) -> None:
    """Measure `next()` of a batch that is already prefetched."""
    ds = covey.open(FOLDER / data.name)
    loader = ds.batches(P, K, seed=1, threads=2, prefetch=16)
    batches = loader.take(10**12)
    times = []
    for _ in range(300):
        time.sleep(0.002)
        for _ in range(6):
            started = time.perf_counter()
            next(batches)
            times.append(time.perf_counter() - started)
    table.add(
        "`next()` when a batch is ready",
        data.name.upper(),
        f"{statistics.median(times) * 1e6:.1f} us (90% within {np.quantile(times, 0.9) * 1e6:.1f})",
        "",
        "",
    )
    loader.close()


def planning(table: Table, rounds: int) -> None:
    count = 20_000
    for classes, each in ((1000, 400), (1_000_000, 10)):
        labels = np.repeat(np.arange(classes), each)
        for weights in (None, "sqrt"):
            plan = covey.plan.BalancedPlan(labels, P, K, class_weights=weights)
            plan.batches(0, 2000)
            seconds = in_turn({"plan": lambda p=plan: p.batches(10**9, 10**9 + count)}, rounds)
            table.add(
                f"plan, {classes:,} classes, {'equal' if weights is None else weights} weights",
                "",
                f"{count / seconds['plan']:,.0f} batches/s",
                "",
                "",
            )


def tiny(records: int, classes: int) -> Path:
    """A dataset of many small records in random order; only its index is measured."""
    rng = np.random.default_rng(0)
    directory = FOLDER / f"tiny-{records}"
    shutil.rmtree(directory, ignore_errors=True)
    columns = {
        "code": rng.integers(0, 256, (records, 16), dtype=np.uint8),
        "label": rng.permutation(np.arange(records) % classes),
    }
    options: dict[str, Any] = {"shuffle": False, "shards": SHARDS, "progress": False}
    covey.write(columns, directory, split="train", label="label", **options)
    return directory


def latency(table: Table, rounds: int) -> None:
    """Time from `batches(...)` to the first batch, for ten million indexed records."""
    directory = tiny(MANY, 100_000)
    times = []
    for seed in range(rounds + 1):
        with covey.open(directory) as ds:
            started = time.perf_counter()
            loader = ds.batches(P, K, seed=seed)
            next(iter(loader))
            times.append(time.perf_counter() - started)
            loader.close()
    table.add(
        f"first batch of {MANY:,} records in 100,000 classes, from `batches(...)` on",
        "",
        f"{statistics.median(times[1:]) * 1000:.1f} ms",
        "",
        "",
    )
    shutil.rmtree(directory)


def curve(table: Table, rounds: int) -> None:
    """Time per batch by number of records: for all classes, and for 100 of them.

    The latter are always 10,000 records, so that what is touched fits the processor's cache.
    """
    sides: dict[str, Callable[[], object]] = {}
    directories = [tiny(10**exponent, 10**exponent // 100) for exponent in range(4, 8)]
    for directory in directories:
        ds = covey.open(directory)
        for chosen, classes in (("all", None), ("100", range(100))):
            loader = ds.batches(P, K, seed=1, threads=0, class_list=classes)
            sides[f"{len(ds):,} records, {chosen} classes"] = use(loader.take(10**12), 2000)
    for run in sides.values():
        run()
    seconds = in_turn(sides, rounds)
    for name, found in seconds.items():
        first = seconds[f"10,000 records, {name.split(', ')[1]}"]
        table.add(
            f"a batch of {name}, no thread",
            "",
            f"{found / 2000 * 1e6:.1f} us",
            "of 10,000 records",
            f"{found / first:.2f}x its time",
        )
    for directory in directories:
        shutil.rmtree(directory)


def run(small: Data, large: Callable[[], Data], rounds: int) -> Table:
    header = ["work", "data", "covey", "other", "ratio"]
    versions = f"covey {covey.__version__}, numpy {np.__version__}, {opponents.versions()}"
    table = Table(f"Balanced batches ({versions})", header)
    table.begin()
    FOLDER.mkdir(exist_ok=True)
    planning(table, rounds)
    against_memory(small, table, rounds, 3000)
    overhead(small, table)
    against_others(small, table, rounds, 3000)
    latency(table, rounds)
    curve(table, rounds)
    del small
    data = large()
    against_memory(data, table, rounds, 300)
    against_others(data, table, rounds, 300)
    return table
