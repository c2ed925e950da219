"""Where tasks write files that others read: a directory that they share, or a URL."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey._locks import locked_directory, remove_unlocked
from covey.shuffle.runs import RunFile
from covey.storage import open_storage

_LOCAL_COPY = re.compile("covey-(write|part|task)-[0-9a-f]{16}")


@contextlib.contextmanager
def local_copy(kind: str) -> Iterator[Path]:
    """Yield a directory in ``TMPDIR`` for files to be uploaded; remove those of killed processes.

    Args:
        kind: ``"write"``, ``"part"`` or ``"task"``.
    """
    parent = Path(tempfile.gettempdir())
    remove_unlocked(parent, _LOCAL_COPY)
    with locked_directory(parent / f"covey-{kind}-{secrets.token_hex(8)}", mode=0o700) as directory:
        yield directory


@dataclass(frozen=True)
class Scratch:
    """Where map and rewrite tasks write runs."""

    path: str
    """Directory or URL."""
    is_url: bool = False
    storage_options: Mapping[str, Any] | None = None

    @contextlib.contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """Yield a new directory; remove it if the block raises."""
        name = f"runs-{secrets.token_hex(8)}"
        if self.is_url:
            with local_copy("task") as directory:
                yield Attempt(directory, open_storage(self.path).join(self.path, name), self)
            return
        directory = Path(self.path, name)
        directory.mkdir()
        try:
            yield Attempt(directory, None, self)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Delete the files of a URL; those of a directory are removed with it."""
        if self.is_url:
            storage = open_storage(self.path, self.storage_options)
            with contextlib.suppress(FileNotFoundError):
                storage.remove(storage.list(self.path, recursive=True))


@dataclass(frozen=True)
class Attempt:
    """The runs of one attempt of a task."""

    directory: Path
    """Local directory of new runs."""
    url: str | None
    """URL that complete runs are uploaded to."""
    scratch: Scratch

    def publish(self, run: RunFile) -> RunFile:
        """Return a complete run as other tasks find it."""
        if self.url is None:
            return run
        options = self.scratch.storage_options
        storage = open_storage(self.url, options)
        for path in run.files:
            storage.upload(path, storage.join(self.url, os.path.basename(path)))
            os.unlink(path)
        url = storage.join(self.url, os.path.basename(run.path))
        return replace(run, path=url, storage_options=options)
