"""Writing to a URL: into a local folder that stands for it, which is then brought there.

No file system of the other kind renames a folder, so a split cannot appear there all at once. What
comes closest: shards first, then the index, then what describes the dataset, ``dataset_info.json``
last, and only then is removed what it no longer needs. Whoever has the old index and finds a new
shard is told so, for an index knows its shards.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from covey.errors import CommittedError, DatasetError
from covey.features.tfds import FEATURES_FILE
from covey.metadata import INFO_FILE, DatasetInfo, dataset_name
from covey.storage import open_storage

# What is small, and looked at by whoever writes another split. The last is brought there first.
_SMALL = (INFO_FILE, FEATURES_FILE, ".labels.txt", "mapping.json", "shard_info.json", ".index.json")


class Mirror:
    """A local folder in the place of a remote dataset, while a split of it is written.

    Args:
        url: Of the dataset.
        split: That is to be written.
        appends: Whether to the shards that are there, which are fetched then.
        options: What fsspec needs.
    """

    def __init__(
        self, url: str, split: str, *, appends: bool, options: Mapping[str, Any] | None
    ) -> None:
        self._storage = open_storage(url, options)
        self._url = self._storage.clean(url)
        self._split = split
        self._appends = appends
        self._temporary = tempfile.mkdtemp(prefix="covey-write-")
        # A folder of the same name, for a dataset is called like its folder.
        name, version = dataset_name("/" + "/".join(self._url.split("/")[-2:]))
        named = version != "1.0.0" or self._url.endswith("/1.0.0")
        self.folder = Path(self._temporary, name, version) if named else Path(self._temporary, name)
        self._before: dict[str, tuple[int, int]] = {}
        self._version = ""

    def __enter__(self) -> Mirror:
        try:
            self._fetch()
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _path(self, name: str) -> str:
        return self._storage.join(self._url, name)

    def _fetch(self) -> None:
        """Bring here what the writer looks at; of the other files only their names."""
        self.folder.mkdir(parents=True)
        self._version = self._info_version()
        try:
            names = [self._storage.name(path) for path in self._storage.list(self._url)]
        except FileNotFoundError:
            return
        wanted = {name for name in names if name.endswith(_SMALL)}
        if self._appends and INFO_FILE in wanted:
            wanted |= self._files_of_split(names)
        for name in names:
            with open(self.folder / name, "wb") as file:
                if name in wanted:
                    with self._storage.open_stream(self._path(name)) as stream:
                        shutil.copyfileobj(stream, file, 1 << 20)
        self._before = self._snapshot()

    def _files_of_split(self, names: list[str]) -> set[str]:
        """The shards of the split, and its index."""
        info = DatasetInfo.from_json(self._storage.read(self._path(INFO_FILE)), self._url)
        there = [each for each in info.splits if each.name == self._split]
        shards = {name for each in there for name in each.shard_names(info.name)}
        return {n for n in names if n in shards or n.startswith(f"{info.name}-{self._split}.")}

    def _snapshot(self) -> dict[str, tuple[int, int]]:
        """What tells that a file was changed."""
        found = {path.name: path.stat() for path in self.folder.iterdir() if path.is_file()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    def _info_version(self) -> str:
        (stat,) = self._storage.stat([self._path(INFO_FILE)])
        return "" if stat is None else f"{stat.size} {stat.version}"

    def publish(self) -> None:
        """Bring what was written to its place.

        Raises:
            DatasetError: If another process has changed the dataset; nothing of it is lost then.
            CommittedError: If it is written, but something that is no longer needed is still there.
        """
        after = self._snapshot()
        changed = [name for name, state in after.items() if self._before.get(name) != state]
        was = {state: name for name, state in self._before.items()}
        changed.sort(key=_place_in_line)
        brought: list[str] = []
        try:
            for name in changed:
                if name == INFO_FILE and self._info_version() != self._version:
                    raise DatasetError(
                        f"{self._url}: another process has changed the dataset while split "
                        f"{self._split!r} was written; write it again"
                    )
                brought.append(name)
                old = was.get(after[name])  # a shard that has another name now
                if old is not None:
                    self._storage.copy(self._path(old), self._path(name))
                else:
                    self._storage.upload(os.fspath(self.folder / name), self._path(name))
        except BaseException:
            self._take_back(brought)
            raise
        gone = [self._path(name) for name in self._before if name not in after]
        try:
            self._storage.remove(gone)
        except OSError as error:
            raise CommittedError(
                f"{self._url}: split {self._split!r} is written, but files that are no longer "
                f"needed could not be removed ({error}): {', '.join(gone[:3])}"
            ) from error

    def _take_back(self, brought: list[str]) -> None:
        """Remove what was brought and was not there before, as far as that can be done."""
        new = [self._path(name) for name in brought if name not in self._before]
        try:
            self._storage.remove(new)
        except OSError:  # the error that led here is the one to tell
            return


def _place_in_line(name: str) -> int:
    """Shards and arrays first, what describes them later, what describes the dataset last."""
    return next((i for i, each in enumerate(reversed(_SMALL), 1) if name.endswith(each)), 0)
