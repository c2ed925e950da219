"""Datasets of all kinds that are read differently, and comparisons of their batches."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opened import opened, put
from written import write

import covey
from covey import Tensor
from covey.errors import SkippedRecordsWarning
from covey.reading import Gatherer
from covey.storage import open_storage

COUNT, CLASSES = 180, 12

# At least five examples of each class, in random order.
LABELS: NDArray[np.int64] = np.random.default_rng(5).permutation(
    np.concatenate(
        [np.arange(CLASSES).repeat(5), np.random.default_rng(6).integers(0, CLASSES, COUNT - 60)]
    )
)

X = Tensor("float32", (2, 3))
FEATURES = {"x": X, "label": "int64"}


def example(number: int) -> dict[str, Any]:
    """Return an example whose first value is its number."""
    values = np.array([number, 0.5, -number, 1, 2, 1 / (number + 1)], np.float32)
    return {"x": values.reshape(2, 3), "label": int(LABELS[number])}


def class_name(number: int) -> str:
    """Return the name of the class of an example."""
    return f"bird {LABELS[number]:02}"


def examples(numbers: Any = range(COUNT)) -> list[dict[str, Any]]:
    return [example(number) for number in numbers]


def numbers_of(x: Any) -> list[int]:
    """Return the numbers of the examples of a batch."""
    while isinstance(x, dict):
        x = x["x"] if "x" in x else next(iter(x.values()))
    return [int(np.asarray(row).flat[0]) for row in x]


# Datasets.


def make(directory: Path, kind: str) -> covey.Dataset:
    """Return a dataset of one of the kinds in NATIVE and OTHERS."""
    return globals()[f"make_{kind.replace(' ', '_')}"](directory)


def make_numbers(directory: Path, **options: Any) -> covey.Dataset:
    if not directory.exists():
        write_and_open(directory, examples(), FEATURES, shards=5).close()
    return opened(directory, **options)


def make_read(directory: Path) -> covey.Dataset:
    return make_numbers(directory, mmap=False)


def make_unmapped(directory: Path) -> covey.Dataset:
    """Return a dataset with more shards than the maps that are left."""
    return with_maps(make_numbers(directory), 4)


def with_maps(ds: covey.Dataset, max_maps: int) -> covey.Dataset:
    return ds._with(gatherer=Gatherer(ds._gatherer.tables, max_maps=max_maps))


def make_unchecked(directory: Path) -> covey.Dataset:
    return make_numbers(directory, verify=False)


def write_and_open(
    directory: Path, many: list[dict[str, Any]], features: Any, label: str = "label", **options: Any
) -> covey.Dataset:
    write(many, directory, features=features, label=label, shuffle=False, **options)
    return opened(directory)


def make_many(directory: Path) -> covey.Dataset:
    many = [
        {
            **each,
            "half": np.float16(number),
            "flag": number % 2 == 0,
            "bytes": np.arange(5, dtype=np.uint8) + number % 200,
        }
        for number, each in enumerate(examples())
    ]
    kinds = {"half": "float16", "flag": "bool", "bytes": Tensor("uint8", (5,)), **FEATURES}
    features = {name: kinds[name] for name in ("half", "x", "label", "flag", "bytes")}
    return write_and_open(directory, many, features, shards=3)


def make_nested(directory: Path) -> covey.Dataset:
    many = [{"a": {"x": each["x"], "y": 7}, "label": each["label"]} for each in examples()]
    return write_and_open(directory, many, {"a": {"x": X, "y": "int32"}, "label": "int64"})


def make_nested_alone(directory: Path) -> covey.Dataset:
    many = [{"a": {"x": each["x"]}, "b": {"label": each["label"]}} for each in examples()]
    return write_and_open(directory, many, {"a": {"x": X}, "b": {"label": "int64"}}, "b/label")


def make_ragged(directory: Path) -> covey.Dataset:
    many = [
        {"x": np.full(1 + number % 4, number), "label": each["label"]}
        for number, each in enumerate(examples())
    ]
    return write_and_open(directory, many, {"x": Tensor("int64", (None,)), "label": "int64"})


def with_names(numbers: Any = range(COUNT)) -> list[dict[str, Any]]:
    return [{"x": example(number)["x"], "label": class_name(number)} for number in numbers]


def make_strings(directory: Path) -> covey.Dataset:
    return write_and_open(directory, with_names(), {"x": X, "label": "str"}, shards=3)


def make_names(directory: Path) -> covey.Dataset:
    return write_and_open(directory, with_names(), None, shards=3)


def make_files(directory: Path) -> covey.Dataset:
    for label in range(CLASSES):
        numbers = np.flatnonzero(label == LABELS)
        put(directory / f"bird {label:02}.tfrecord", examples(numbers), FEATURES)
    return opened(directory, label="@file", features=FEATURES)


def make_function(directory: Path) -> covey.Dataset:
    return make_numbers(directory, label=class_of)


def class_of(example: dict[str, Any]) -> str:
    return class_name(int(example["x"].flat[0]))


def make_joined(directory: Path) -> covey.Dataset:
    options = {"features": FEATURES, "label": "label", "shuffle": False}
    write(examples(range(130)), directory, "train", shards=3, **options)
    write(examples(range(130, COUNT)), directory, "test", **options)
    return opened(directory, split="train+test")


def make_joined_strings(directory: Path) -> covey.Dataset:
    """Return two splits that have different ids for the same class."""
    is_train = (LABELS > 3) & (np.arange(COUNT) % 3 > 0)
    for split, numbers in (
        ("train", np.flatnonzero(is_train)),
        ("test", np.flatnonzero(~is_train)),
    ):
        features = {"x": X, "label": "str"}
        write(
            with_names(numbers), directory, split, features=features, label="label", shuffle=False
        )
    return opened(directory, split="test+train")


def make_sliced(directory: Path) -> covey.Dataset:
    make_numbers(directory)
    return opened(directory, split="train[:30%]+train[50%:]")


def make_where(directory: Path) -> covey.Dataset:
    return make_numbers(directory).where(label=[0, 2, 3, 5, 7, 8, 11])


def make_selected(directory: Path) -> covey.Dataset:
    return make_numbers(directory).select(np.random.default_rng(1).permutation(COUNT)[:150] - COUNT)


def make_gzip(directory: Path) -> covey.Dataset:
    return write_and_open(directory, examples(), FEATURES, shards=3, compression="GZIP")


def make_foreign_gzip(directory: Path) -> covey.Dataset:
    path = put(directory / "x", examples(), FEATURES)
    (directory / "x.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return opened(directory, label="label", features=FEATURES)


def make_unpacked(directory: Path) -> covey.Dataset:
    """Return a shard that is decompressed to the cache: one long GZIP stream."""
    features = {**FEATURES, "pad": Tensor("uint8", (30_000,), encoding="bytes")}
    pad = np.arange(30_000).astype(np.uint8)
    path = put(directory / "x", ({**each, "pad": pad} for each in examples()), features)
    (directory / "x.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    path.unlink()
    return opened(directory, label="label", features=features)


def make_mixed(directory: Path) -> covey.Dataset:
    put(directory / "a.tfrecord", examples(range(100)), FEATURES)
    put(directory / "b.tfrecord", examples(range(100, COUNT)), FEATURES, compression="GZIP")
    return opened(directory, label="label", features=FEATURES)


def make_skipped(directory: Path) -> covey.Dataset:
    """Return a dataset with a corrupt record, which is skipped."""
    path = put(directory / "a.tfrecord", examples(), FEATURES)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedRecordsWarning)
        return opened(directory, label="label", features=FEATURES, on_error="skip")


def make_remote(directory: Path) -> covey.Dataset:
    make_numbers(directory)
    return opened(_upload(directory))


def _upload(directory: Path) -> str:
    """Return the URL of a copy of a dataset in memory."""
    url = f"memory://{directory.name}-{os.getpid()}-{time.monotonic_ns()}/set"
    storage = open_storage(url)
    for path in directory.iterdir():
        storage.upload(str(path), f"{url}/{path.name}")
    return url


def make_contiguous(directory: Path) -> covey.Dataset:
    """Return classes whose ids are not those of the index."""
    numbers = np.flatnonzero(~np.isin(LABELS, (0, 3, 4, 8)))
    write_and_open(directory, examples(numbers), FEATURES, shards=2).close()
    return opened(directory, labels="contiguous")


def make_sum(directory: Path) -> covey.Dataset:
    """Return two datasets that have some classes in common, with different ids."""
    is_first = (LABELS > 3) & (np.arange(COUNT) % 3 > 0)
    parts = [np.flatnonzero(is_first), np.flatnonzero(~is_first & (LABELS < 9))]
    for name, numbers in zip("ab", parts, strict=True):
        write(with_names(numbers), directory / name, label="label", shuffle=False)
    return opened(directory / "a") + opened(directory / "b")


def make_sum_with_remote(directory: Path) -> covey.Dataset:
    make_sum(directory).close()
    return opened(directory / "a") + opened(_upload(directory / "b"))


# Kinds that the native core reads, and those that Python reads.
NATIVE = ["numbers", "unchecked", "many", "nested", "nested alone", "names", "strings", "files",
          "function", "joined", "joined strings", "sliced", "where", "selected", "unpacked",
          "mixed", "skipped", "contiguous", "sum"]  # fmt: skip
OTHERS = ["read", "unmapped", "ragged", "gzip", "foreign gzip", "remote", "sum with remote"]


# Batches.


def batch_of(ds: covey.Dataset, ids: Any) -> tuple[Any, Any]:
    """Return the batch (x, y) of some examples, read through the dataset."""
    names = [name for name in ds.features if name != ds.label]
    columns = ds.select(ids).columns(names)
    x: Any = columns
    while len(names) == 1 and isinstance(x, dict):  # a single feature is x
        (x,) = x.values()
    return x, ds.labels[ids]


def class_names(ds: covey.Dataset, y: Any) -> list[str]:
    return ds.class_names[y]


def expected_names(ds: covey.Dataset, numbers: list[int]) -> list[str]:
    """Return the names of the classes of examples."""
    is_named = next(iter(ds.classes)).startswith("bird")
    return [class_name(number) if is_named else str(LABELS[number]) for number in numbers]


# threads, prefetch, reuse_buffers
SETTINGS = [
    (0, None, False),
    (0, 3, True),
    (1, 1, False),
    (2, None, True),
    (5, 1, True),
    (5, 40, False),
]


def settings_of(number: int) -> dict[str, Any]:
    threads, prefetch, reuse_buffers = SETTINGS[number % len(SETTINGS)]
    return {"threads": threads, "prefetch": prefetch, "reuse_buffers": reuse_buffers}


def check_batches(ds: covey.Dataset) -> None:
    """Compare the batches of all loaders of a dataset with its examples."""
    for number in range(len(SETTINGS)):
        loader = ds.batches(5, 3, seed=3, **settings_of(number))
        for step, (x, y) in enumerate(loader.take(8)):
            assert same((x, y), batch_of(ds, loader.plan.batch(step)))
            numbers = numbers_of(x)
            assert class_names(ds, y) == expected_names(ds, numbers)
            assert y.dtype == np.int64
            assert len(set(y.tolist())) == 5
            assert y.tolist() == y[::3].repeat(3).tolist()
            assert len(set(numbers)) == 15
        assert loader.step == 8
    orders = [ds.shuffled, ds.sequential]
    for number, (load, remainder) in enumerate(itertools.product(orders, ("keep", "drop"))):
        loader = load(32, remainder=remainder, **settings_of(number + 1))
        found: list[int] = []
        for x, y in loader:
            ids = loader.plan.batch(loader.step - 1)
            assert same((x, y), batch_of(ds, ids))
            assert class_names(ds, y) == expected_names(ds, numbers_of(x))
            found += ids.tolist()
        expected = len(ds) if remainder == "keep" else len(ds) // 32 * 32
        assert len(found) == len(set(found)) == expected
        assert (found == sorted(found)) == (number >= 2)


def same(a: Any, b: Any) -> bool:
    """Return whether two batches have the same structure, types and bytes."""
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and a.tobytes() == b.tobytes()
        )
    if hasattr(a, "tolist"):
        return type(a) is type(b) and same(a.tolist(), b.tolist())
    return type(a) is type(b) and bool(a == b)


def copy_batch(batch: Any) -> Any:
    """Return a batch that is not overwritten."""
    if isinstance(batch, dict):
        return {key: copy_batch(each) for key, each in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(copy_batch, batch))
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def digest(batch: Any) -> str:
    """Return a hash of a batch."""
    if isinstance(batch, dict):
        batch = [each for pair in batch.items() for each in pair]
    if isinstance(batch, (tuple, list)):
        return hashlib.sha256("".join(map(digest, batch)).encode()).hexdigest()[:16]
    if isinstance(batch, np.ndarray):
        content = f"{batch.dtype}{batch.shape}".encode() + batch.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]
    return repr(batch.tolist() if hasattr(batch, "tolist") else batch)


def native_threads() -> int:
    """Return the number of threads of this process, native ones included."""
    return len(os.listdir("/proc/self/task"))


def settles(count: Any, most: int, seconds: float = 20) -> bool:
    """Return whether a count falls to `most`; threads end with a delay."""
    end = time.monotonic() + seconds
    while count() > most and time.monotonic() < end:
        time.sleep(0.001)
    return bool(count() <= most)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
