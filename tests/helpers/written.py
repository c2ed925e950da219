"""Helpers of tests of written datasets: their examples, files and index."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from schemas import plain

import covey
from covey import RecordReader
from covey.dataset_info import DatasetInfo
from covey.filenames import OLD_DIRECTORY, is_version_file, name_of_old
from covey.index import IndexMetadata, index_names
from covey.index.format import fingerprint
from covey.writing.versions import referenced_files


def write(
    examples: Any, path: Any, split: str = "train", **options: Any
) -> covey.results.WriteResult:
    """Call covey.write without a progress bar.

    Examples are unlabelled by default, unless one feature is a ClassLabel; the first split decides.
    """
    kinds = [] if options.get("features") is None else covey.Features(options["features"]).values()
    is_labelled = sum(isinstance(kind, covey.ClassLabel) for kind in kinds) == 1
    exists = os.path.exists(f"{os.fspath(path)}/dataset_info.json")
    if not is_labelled and (options.get("mode") == "overwrite" or not exists):
        options.setdefault("label", None)
    return covey.write(examples, path, split=split, progress=False, **options)


def as_items(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns."""
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def files(directory: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory, including hidden ones."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b"<folder>"
        for path in sorted(directory.rglob("*"))
    }


def info(directory: Path) -> DatasetInfo:
    path = directory / "dataset_info.json"
    return DatasetInfo.from_json(path.read_bytes(), str(path))


def shard_paths(directory: Path, split: str = "train") -> list[Path]:
    """Return the shards of a split, in order."""
    about = info(directory)
    (found,) = [each for each in about.splits if each.name == split]
    return [directory / name for name in found.shard_names(about.name)]


def index_paths(directory: Path, split: str = "train") -> dict[str, Path]:
    """Return the index files of a split."""
    about = info(directory)
    (found,) = [each for each in about.splits if each.name == split]
    return {what: directory / name for what, name in index_names(found.stem(about.name)).items()}


def about(directory: Path, split: str = "train") -> IndexMetadata:
    path = index_paths(directory, split)["metadata"]
    return IndexMetadata.from_json(path.read_bytes(), str(path))


def index(directory: Path, what: str = "rows", split: str = "train") -> Any:
    return np.load(index_paths(directory, split)[what])


TOKEN = re.compile(r"\.\d{8}T\d{6}-[0-9a-f]{8}(?=\.)")


def content(directory: Path) -> dict[str, Any]:
    """Return all files of the current version of a dataset, by name without tokens.

    Two datasets are equal if these are.
    """
    found: dict[str, Any] = {}
    current = referenced_files(info(directory))
    for path in sorted(directory.iterdir()):
        name = TOKEN.sub("", path.name)
        if path.name not in current and (is_version_file(path.name) or name == OLD_DIRECTORY):
            continue
        if path.name.endswith(".index.json"):
            described = IndexMetadata.from_json(path.read_bytes(), str(path))
            shards = [replace(each, name=TOKEN.sub("", each.name)) for each in described.shards]
            found[name] = replace(described, shards=tuple(shards))
        elif path.suffix == ".json":
            found[name] = TOKEN.sub("", path.read_text())
        else:
            found[name] = path.read_bytes()
    return found


def replaced(directory: Path, own: Iterable[str] = ()) -> dict[str, bytes]:
    """Return the files of replaced versions, by the names that they had.

    Args:
        directory: The dataset. No other file of it is a shard that other readers find.
        own: Files of the test.
    """
    current = {*referenced_files(info(directory)), *own}
    visible = [path.name for path in directory.iterdir() if is_version_file(path.name)]
    assert {*visible} <= current
    old = directory / OLD_DIRECTORY
    assert not list(old.rglob("*.tfrec*"))
    return {name_of_old(path.name): path.read_bytes() for path in sorted(old.glob("*"))}


def restore_replaced(directory: Path) -> None:
    """Move the files of replaced versions beside the others, where those of a URL stay."""
    for path in (directory / OLD_DIRECTORY).iterdir():
        path.rename(directory / name_of_old(path.name))
    (directory / OLD_DIRECTORY).rmdir()


def records(directory: Path, split: str = "train") -> list[bytes]:
    """Return all records, in the order of the shards."""
    found: list[bytes] = []
    for path in shard_paths(directory, split):
        with RecordReader(path) as reader:
            found += reader
    return found


def read(directory: Path, split: str = "train") -> list[dict[str, Any]]:
    """Return all examples, in the order of the shards, as lists and Python numbers."""
    features = about(directory, split).features
    return [tidy(features.decode(record)) for record in records(directory, split)]


def tidy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: tidy(each) for name, each in value.items()}
    return plain(value)


def column(directory: Path, name: str, split: str = "train") -> list[Any]:
    return [example[name] for example in read(directory, split)]


def check_index(directory: Path, split: str = "train") -> None:
    """Compare the index of a split with its shards."""
    described, rows = about(directory, split), index(directory, split=split)
    paths = shard_paths(directory, split)
    assert [shard.name for shard in described.shards] == [path.name for path in paths]
    assert described.records == len(rows) == sum(shard.records for shard in described.shards)
    for number, (path, shard) in enumerate(zip(paths, described.shards, strict=True)):
        part = rows[rows["shard"] == number]
        with RecordReader(path) as reader:
            places = reader.locations()
            assert reader.compression == described.compression
        assert part["offset"].tolist() == places["offset"].tolist()
        assert part["length"].tolist() == places["length"].tolist()
        if described.compression is not None:
            assert part["inner_offset"].tolist() == places["inner_offset"].tolist()
        assert (shard.records, shard.bytes) == (len(part), path.stat().st_size)
        assert shard.fingerprint == fingerprint(path)
    assert (np.diff(rows["shard"].astype(int)) >= 0).all()
    if described.label is not None:
        check_classes(directory, split)


def check_classes(directory: Path, split: str) -> None:
    described, rows = about(directory, split), index(directory, split=split)
    found = [example_label(each, described.label or "") for each in read(directory, split)]
    if described.label_strings is not None:
        found = [described.label_strings.index(each) for each in found]
    assert rows["label"].tolist() == found
    by_class, classes = index(directory, "by_class", split), index(directory, "classes", split)
    assert classes["label"].tolist() == sorted(set(found))
    assert int(classes["records"].sum()) == len(by_class) == len(rows)
    for label, first, count in classes.tolist():
        numbers = by_class[first : first + count].tolist()
        assert numbers == [number for number, each in enumerate(found) if each == label]


def example_label(example: Any, name: str) -> Any:
    for part in name.split("/"):
        example = example[part]
    return example


@dataclass
class Numbered:
    """Examples that are accessible by index; `bad` ones do not match, `failing` ones raise."""

    size: int
    bad: tuple[int, ...] = ()
    failing: tuple[int, ...] = ()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number in self.failing:
            raise OSError(f"{number} cannot be read")
        return {"x": "bad" if number in self.bad else number, "label": f"class {number % 3}"}


@contextlib.contextmanager
def fresh_process() -> Iterator[Callable[..., Any]]:
    """Yield a function that calls others in a process without threads, which can fork."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda action, *args: pool.submit(action, *args).result()


@contextlib.contextmanager
def limit(what: int, size: int) -> Iterator[None]:
    """Lower a resource limit of the process inside the block."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def files_at_most(free: int) -> Any:
    """Limit the number of files that the process can open in addition to those open now."""
    open_now = {int(name) for name in os.listdir("/proc/self/fd")}
    size = free
    while size - sum(each < size for each in open_now) < free:
        size += 1
    return limit(resource.RLIMIT_NOFILE, size)
