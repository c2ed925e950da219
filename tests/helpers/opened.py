"""TFRecord files, opened datasets, and functions in another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from written import fresh_process

import covey
from covey import Features, RecordWriter

NUMBERS = {"x": "int64", "label": "int64"}


def put(path: Path, examples: Iterable[Mapping[str, Any]], features: Any, **options: Any) -> Path:
    """Write a TFRecord file without metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = Features(features)
    with RecordWriter(path, **options) as writer:
        for example in examples:
            writer.write(schema.encode(example))
    return path


def put_numbers(path: Path, numbers: Iterable[int], **options: Any) -> Path:
    """Write a file of numbered examples of three classes."""
    return put(path, ({"x": n, "label": n % 3} for n in numbers), NUMBERS, **options)


def opened(path: Any, **options: Any) -> covey.Dataset:
    """covey.open, quiet."""
    return covey.open(path, progress=False, **options)


def numbers(dataset: Any, key: Any = slice(None)) -> list[int]:
    """The numbers of examples."""
    found: list[int] = dataset[key]["x"].tolist()
    return found


def as_lists(value: Any) -> Any:
    """Convert an example or columns to lists and values of Python."""
    if isinstance(value, dict):
        return {name: as_lists(each) for name, each in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [as_lists(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by a rename."""
    path.with_name(".new").write_bytes(content)
    os.replace(path.with_name(".new"), path)


# Changes of the second of several shards; `other` is the content of a shard of another dataset.
SHARD_CHANGES: dict[str, Callable[[Path, bytes], Any]] = {
    "truncated": lambda path, other: os.truncate(path, path.stat().st_size // 2),
    "truncated by a byte": lambda path, other: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path, other: os.truncate(path, 0),
    "extended": lambda path, other: path.write_bytes(path.read_bytes() + other[:463]),
    "replaced": replace_file,
    "replaced by another shard": lambda path, other: replace_file(
        path, path.with_name(path.name.replace("00001", "00002")).read_bytes()
    ),
    "missing": lambda path, other: path.unlink(),
    "a directory": lambda path, other: (path.unlink(), path.mkdir()),
}


class Elsewhere:
    """Run functions in another process, which is restarted after a crash."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._run: Callable[..., Any] | None = None

    def __call__(self, action: Callable[..., Any], *args: Any) -> Any:
        if self._run is None:
            self._run = self._stack.enter_context(fresh_process())
        try:
            return self._run(action, *args)
        except BrokenProcessPool:
            self.close()
            raise AssertionError(f"{action.__name__}: the process was killed") from None

    def close(self) -> None:
        """End the process."""
        self._run = None
        self._stack.close()
