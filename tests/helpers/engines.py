"""Helpers of tests of engines: the files of a dataset, and an engine of threads."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import covey
from covey.engines import Engine, Pool
from covey.engines.pools import Here, Shared
from covey.engines.tasks import Outcome, run_call
from covey.index.format import content_checksum

TOKEN = re.compile(rb"\d{8}T\d{6}-[0-9a-f]{8}")


def digests(directory: Path) -> dict[str, str]:
    """Return the sha256 of every file below a directory, without what identifies a write.

    These are the tokens of versions, and the names of parts in the index of a commit of parts.
    """
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        data = path.read_bytes() if path.is_file() else b"directory"
        if path.suffix == ".json":
            content = json.loads(data)
            if content.pop("parts", None):
                content.pop("content_checksum")
                content["content_checksum"] = content_checksum(content)
                data = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
            data = TOKEN.sub(b"TOKEN", data)
            if TOKEN.search(path.name.encode()):  # its checksum covers the names of the shards
                content = json.loads(data)
                content.pop("content_checksum", None)
                data = json.dumps(content).encode()
        name = str(path.relative_to(directory)).encode()
        found[TOKEN.sub(b"TOKEN", name).decode()] = hashlib.sha256(data).hexdigest()
    return found


@dataclass(frozen=True)
class ThreadEngine(Engine):
    """Threads of this process; tasks and results are pickled as for another process."""

    pieces: int | None = None
    workers: int = 2

    def start(self) -> Pool:
        return ThreadPool(self.workers)


class ThreadPool(Pool):
    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._executor = ThreadPoolExecutor(workers)

    @property
    def slots(self) -> int:
        return self._workers

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Outcome]:
        data = pickle.dumps((function, arguments))
        return self._executor.submit(lambda: pickle.loads(pickle.dumps(_run(data))))

    def share(self, value: Any, directory: Path) -> Shared:
        return Here(pickle.loads(pickle.dumps(value)))

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


def _run(data: bytes) -> Outcome:
    function, arguments = pickle.loads(data)
    return run_call(function, *arguments)


class Squares:
    """Map-style dataset, whose items are computed."""

    def __init__(self, length: int, kinds: int = 7) -> None:
        self.length = length
        self.kinds = kinds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return {
            "x": np.arange(index % 4 + 1, dtype=np.int64) * index,
            "name": f"row {index}",
            "label": f"class {index * index % self.kinds}",
        }


def image_bytes(number: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    size = 4 + number % 3, 5
    Image.new("RGB", size, (number % 256, 7, 200)).save(file, "PNG")
    return file.getvalue()


def write(examples: Any, path: Path, **options: Any) -> covey.results.WriteResult:
    return covey.write(examples, path, progress=False, **options)


def write_parts(examples: Any, path: Path, parts: int, **options: Any) -> Any:
    """Write in parts, the last one first, and commit."""
    for part in range(parts, 0, -1):
        write(examples, path, part=f"{part}/{parts}", **options)
    return covey.commit(path, progress=False)
