"""Writing to a URL: into a local folder that stands for it, which is then brought there.

No file system of the other kind renames a folder, so a split cannot appear there all at once. What
comes closest::

    new shards                      to their places, or copied there from those they were before
    what takes another's place      into .covey-train-<token>.new/, and the other into .old/

Up to here, which takes long, the dataset is as it was. Then, within a moment, what is in ``.new/``
is copied to its place, and what is small follows: the index, what describes the dataset, and last
``dataset_info.json``. If that fails, all is put back; else what is no longer needed is removed.
Whoever has the old index and finds a new shard is told so, for an index knows its shards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from covey.errors import CommittedError, CoveyError, DatasetError, StorageError
from covey.features.tfds import FEATURES_FILE
from covey.index import index_names
from covey.metadata import INFO_FILE, DatasetInfo, dataset_name
from covey.storage import open_storage
from covey.storage.paths import shown

# What is small, and looked at by whoever writes another split. The last is brought there first.
_SMALL = (INFO_FILE, FEATURES_FILE, ".labels.txt", "mapping.json", "shard_info.json", ".index.json")

_PIECE_BYTES = 1 << 20


class Mirror:
    """A local folder in the place of a remote dataset, while a split of it is written.

    Errors that leave it speak of the URL, and not of the folder.

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
        self._hidden = f".covey-{split}-{uuid.uuid4().hex[:8]}"
        self._before: dict[str, tuple[int, int]] = {}
        self._texts: dict[str, bytes] = {}
        self._version = ""

    def __enter__(self) -> Mirror:
        try:
            self._try_to_write()
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
        if isinstance(error, CoveyError):
            here, there = str(self.folder), shown(self._url)
            error.args = tuple(
                each.replace(here, there) if isinstance(each, str) else each for each in error.args
            )

    def _path(self, name: str) -> str:
        return self._storage.join(self._url, name)

    def _try_to_write(self) -> None:
        """Find out whether that is allowed, which nobody wants to learn in the end."""
        path = self._path(self._hidden)
        self._storage.write(path, b"")
        with contextlib.suppress(OSError):
            self._storage.remove([path])

    def _fetch(self) -> None:
        """Bring here what the writer looks at; of the other files only their names."""
        self.folder.mkdir(parents=True)
        self._version = self._info_version()
        try:
            names = [self._storage.name(path) for path in self._storage.list(self._url)]
        except FileNotFoundError:
            return
        self._texts = {
            name: self._storage.read(self._path(name)) for name in names if name.endswith(_SMALL)
        }
        shards = self._files_of_split(names) if self._appends and INFO_FILE in self._texts else ()
        for name in names:
            with open(self.folder / name, "wb") as file:
                file.write(self._texts.get(name, b""))
                if name in shards:
                    with self._storage.open_stream(self._path(name)) as stream:
                        shutil.copyfileobj(stream, file, _PIECE_BYTES)
        self._before = self._snapshot()

    def _files_of_split(self, names: list[str]) -> set[str]:
        """The shards of the split, and the arrays of its index."""
        info = DatasetInfo.from_json(self._texts[INFO_FILE], self._path(INFO_FILE))
        there = [each for each in info.splits if each.name == self._split]
        shards = {name for each in there for name in each.shard_names(info.name)}
        shards.update(index_names(f"{info.name}-{self._split}").values())
        return {name for name in names if name in shards and name not in self._texts}

    def _snapshot(self) -> dict[str, tuple[int, int]]:
        """What tells that a file was changed."""
        found = {path.name: path.stat() for path in self.folder.iterdir() if path.is_file()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    def _info_version(self) -> str:
        (stat,) = self._storage.stat([self._path(INFO_FILE)])
        return "" if stat is None else f"{stat.size} {stat.version}"

    # Bringing it there.

    def publish(self) -> None:
        """Bring what was written to its place.

        Raises:
            DatasetError: If another process has changed the dataset; nothing of it is lost then.
            CommittedError: If it is written, but something that is no longer needed is still there.
        """
        after = self._snapshot()
        changed = [name for name in sorted(after) if self._before.get(name) != after[name]]
        changed.sort(key=_place_in_line)
        large = [name for name in changed if not name.endswith(_SMALL)]
        hidden: list[str] = []
        brought: list[str] = []
        try:
            self._check_unchanged()
            renamed = {state: name for name, state in self._before.items()}
            for name in large:
                if name in self._before:
                    self._set_aside(name, hidden)
                else:
                    self._bring_new(name, renamed.get(after[name]), brought)
            self._switch([name for name in changed if name not in brought], hidden, brought)
        except BaseException:
            self._take_back([*brought, *hidden])
            raise
        gone = [*(name for name in self._before if name not in after), *hidden]
        try:
            self._storage.remove([self._path(name) for name in gone])
        except OSError as error:
            raise CommittedError(
                f"{shown(self._url)}: split {self._split!r} is written, but files that are no "
                f"longer needed could not be removed ({error}): {', '.join(gone[:3])}"
            ) from error

    def _check_unchanged(self) -> None:
        if self._info_version() != self._version:
            raise self._is_changed()

    def _is_changed(self) -> DatasetError:
        return DatasetError(
            f"{shown(self._url)}: another process has changed the dataset while split "
            f"{self._split!r} was written; write it again"
        )

    def _bring_new(self, name: str, old: str | None, brought: list[str]) -> None:
        """Bring a file to a place where there is none; copy it, if it is there by an old name."""
        path = self._path(name)
        if self._storage.stat([path]) != [None]:
            raise self._is_changed()
        brought.append(name)
        if old is None or not self._copy(old, name):
            self._storage.upload(os.fspath(self.folder / name), path)

    def _set_aside(self, name: str, hidden: list[str]) -> None:
        """Bring a file beside its place, where another is, and copy that one beside it, too."""
        old, new = self._aside(name)
        hidden.append(old)
        if self._copy(name, old):
            hidden.append(new)
            self._storage.upload(os.fspath(self.folder / name), self._path(new))

    def _aside(self, name: str) -> tuple[str, str]:
        return f"{self._hidden}.old/{name}", f"{self._hidden}.new/{name}"

    def _copy(self, source: str, target: str) -> bool:
        """Copy a file there; False if that is nothing that the driver can do."""
        try:
            self._storage.copy(self._path(source), self._path(target))
        except StorageError as error:
            if isinstance(error.__cause__, NotImplementedError):
                return False
            raise
        return True

    def _switch(self, names: list[str], hidden: list[str], brought: list[str]) -> None:
        """Bring the rest to its place; put back what was there, if that fails."""
        self._check_unchanged()
        done: list[str] = []
        try:
            for name in names:
                if name == INFO_FILE:
                    self._check_unchanged()
                (done if name in self._before else brought).append(name)
                new = self._aside(name)[1]
                if new not in hidden or not self._copy(new, name):
                    self._storage.upload(os.fspath(self.folder / name), self._path(name))
        except BaseException as error:
            left = [name for name in reversed(done) if not self._put_back(name, hidden)]
            if not left:
                raise
            # The only copies that are left of them are not removed.
            kept = {self._aside(name)[0] for name in left}
            hidden[:] = [name for name in hidden if name not in kept]
            raise DatasetError(
                f"{shown(self._url)}: split {self._split!r} is not written ({error}), and "
                f"{len(left)} files of the old one could not be put back; they are in "
                f"{self._hidden}.old: copy them back, or write the split again"
            ) from error

    def _put_back(self, name: str, hidden: list[str]) -> bool:
        """Put back what was there under a name; False if that fails, too."""
        try:
            if name in self._texts:
                self._storage.write(self._path(name), self._texts[name])
                if name == INFO_FILE:  # some storages call it another state
                    self._version = self._info_version()
            elif self._aside(name)[1] in hidden:
                self._copy(self._aside(name)[0], name)
        except OSError:
            return self._is_as_before(name)
        return True

    def _is_as_before(self, name: str) -> bool:
        """Whether a small file was not changed at all."""
        try:
            return name in self._texts and self._storage.read(self._path(name)) == self._texts[name]
        except OSError:
            return False

    def _take_back(self, names: list[str]) -> None:
        """Remove what was brought, as far as that can be done, and nobody else needs it."""
        with contextlib.suppress(OSError, CoveyError):
            needed = self._needed_by_others()
            self._storage.remove([self._path(name) for name in names if name not in needed])

    def _needed_by_others(self) -> set[str]:
        """The files of the dataset that another process has written meanwhile, if one has."""
        if self._info_version() == self._version:
            return set()
        info = DatasetInfo.from_json(self._storage.read(self._path(INFO_FILE)), self._url)
        written = [path.name for path in self.folder.iterdir()]
        names = {name for name in written if name.endswith(_SMALL[:-1])}
        for split in info.splits:
            names.update(split.shard_names(info.name))
            names.update(index_names(f"{info.name}-{split.name}").values())
        return names


def _place_in_line(name: str) -> int:
    """Shards first, then arrays, then what describes them, and last what describes the dataset."""
    line = (".npy", *reversed(_SMALL))
    return next((place for place, each in enumerate(line, 1) if name.endswith(each)), 0)
