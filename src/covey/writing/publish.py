"""Write to a URL: a local directory stands for the remote one, and is published in the end.

An object store renames nothing, but it replaces one file at once. Every version of a split has
names of its own there, so that publishing it is::

    shards, index files             new names; appended shards are copied by the server
    sidecar files                   those that describe old and new records alike
    dataset_info.json               the switch: one PUT
    sidecar files                   those that describe only the new records
    files of old versions           deleted, except those of the version that was replaced

A writer that is killed before the switch leaves the old dataset, and one that is killed after it
the new one. The next writer deletes what it left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from covey.dataset_info import DatasetInfo, dataset_name
from covey.errors import (
    CommittedError,
    CoveyError,
    DatasetError,
    FileChangedError,
)
from covey.filenames import INFO_FILE, LABELS_SUFFIX, SHARD_INFO_FILE, is_sidecar
from covey.index import index_names
from covey.storage import Stat, open_storage
from covey.urls import shown
from covey.writing.locks import DeferredSignals, interrupted
from covey.writing.versions import referenced_files

_PIECE_BYTES = 1 << 20


class RemoteStaging:
    """A local directory in the place of a remote dataset, while a split of it is written.

    Errors that leave the block name the URL, not the directory.

    Args:
        url: Of the dataset.
        split: To be written.
        appends: Whether to existing shards, which are fetched then.
        options: fsspec's storage options.
    """

    def __init__(
        self, url: str, split: str, *, appends: bool, options: Mapping[str, Any] | None
    ) -> None:
        self._storage = open_storage(url, options)
        self._url = self._storage.clean(url)
        self._split = split
        self._appends = appends
        self._temporary = tempfile.mkdtemp(prefix="covey-write-")
        # A directory of the same name, for a dataset is called like its directory.
        name, version = dataset_name("/" + "/".join(self._url.split("/")[-2:]))
        named = version != "1.0.0" or self._url.endswith("/1.0.0")
        self.directory = (
            Path(self._temporary, name, version) if named else Path(self._temporary, name)
        )
        self._before: dict[str, tuple[int, int]] = {}
        self._small: dict[str, bytes] = {}
        """The files that describe the dataset, as they were."""
        self._state: Stat | None = None
        """Of ``dataset_info.json``."""
        self._committed: bool | None = False
        """Whether the switch has happened; None if that is unknown."""
        self._undone = True
        """Whether all that was put before a failed switch was taken back."""

    def __enter__(self) -> RemoteStaging:
        try:
            self._try_to_write()
            self._fetch()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            raise interrupted(
                shown(self._url), self._split, self._committed, undone=self._undone
            ) from error
        if isinstance(error, CommittedError) and not self._committed:
            # It was committed to the local directory only.
            raise DatasetError(
                f"writing split {self._split!r} failed: {error.__cause__}; nothing was changed",
                path=shown(self._url),
            ) from error
        if isinstance(error, CoveyError):
            here, there = str(self.directory), shown(self._url)
            error.args = tuple(
                each.replace(here, there) if isinstance(each, str) else each for each in error.args
            )

    def _path(self, name: str) -> str:
        return self._storage.join(self._url, name)

    def _try_to_write(self) -> None:
        """Raise now, not after all examples were written, if writing is not allowed."""
        path = self._path(f".covey-{uuid.uuid4().hex[:16]}.tmp")
        self._storage.write(path, b"")
        with contextlib.suppress(OSError):
            self._storage.remove([path])

    def _fetch(self) -> None:
        """Fetch what the writer looks at; of other files only their names."""
        self.directory.mkdir(parents=True)
        self._state = self._info_state()
        try:
            names = [self._storage.name(path) for path in self._storage.list(self._url)]
        except FileNotFoundError:
            return
        if INFO_FILE in names:
            self._small[INFO_FILE] = self._storage.read(self._path(INFO_FILE))
        info = self._info()
        splits = () if info is None else info.splits
        current = (
            {index_names(each.stem(info.name))["metadata"] for each in splits} if info else set()
        )
        for name in names:
            if name in current or name == SHARD_INFO_FILE or is_sidecar(name):
                self._small[name] = self._storage.read(self._path(name))
        fetched: set[str] = set()
        if self._appends and info is not None:
            own = tuple(each for each in splits if each.name == self._split)
            fetched = referenced_files(DatasetInfo(info.name, splits=own)) - self._small.keys()
        for name in names:
            with open(self.directory / name, "wb") as file:
                file.write(self._small.get(name, b""))
                if name in fetched:
                    with self._storage.open_stream(self._path(name)) as stream:
                        shutil.copyfileobj(stream, file, _PIECE_BYTES)
        self._before = self._snapshot()

    def _info(self) -> DatasetInfo | None:
        """The dataset as it was."""
        text = self._small.get(INFO_FILE)
        return None if text is None else DatasetInfo.from_json(text, self._path(INFO_FILE))

    def _snapshot(self) -> dict[str, tuple[int, int]]:
        """What tells that a file was changed."""
        found = {path.name: path.stat() for path in self.directory.iterdir() if path.is_file()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    def _info_state(self) -> Stat | None:
        (state,) = self._storage.stat([self._path(INFO_FILE)])
        return state

    # Publishing.

    def publish(self) -> None:
        """Make what was written the split, by one PUT of ``dataset_info.json``.

        SIGINT and SIGTERM are held back during the switch and what follows it.

        Raises:
            DatasetError: If another process has changed the dataset; nothing of it is lost then.
            CommittedError: If the split is written, but old files could not be replaced or deleted.
        """
        after = self._snapshot()
        changed = [name for name in sorted(after) if self._before.get(name) != after[name]]
        early, late = self._order(changed)
        copies = {state: name for name, state in self._before.items()}
        brought: list[str] = []
        try:
            self._check_unchanged()
            sidecars = [name for name in early if is_sidecar(name)]
            for name in early[: len(early) - len(sidecars)]:
                brought.append(name)
                source = copies.get(after[name])
                if source is None or not self._copy(source, name):
                    self._storage.upload(os.fspath(self.directory / name), self._path(name))
            brought += sidecars
            self._replace_sidecars(sidecars)
        except BaseException:
            self._take_back(brought)
            raise
        with DeferredSignals() as signals:
            try:
                signals.deliver()
                self._switch()
            except BaseException:
                if self._committed is False:
                    self._take_back(brought)
                raise
            self._committed = True
            gone = [name for name in self._before if name not in after]
            try:
                self._replace_sidecars(late, gone)
                self._storage.remove([self._path(name) for name in gone])
            except OSError as error:
                raise CommittedError(
                    f"split {self._split!r} is written, but files of the old version could "
                    f"not all be replaced or deleted ({error}); the next write does that: "
                    "do not write the same examples again",
                    path=shown(self._url),
                ) from error

    def _order(self, changed: list[str]) -> tuple[list[str], list[str]]:
        """Return the files to be put before the switch, and those after it.

        What describes old and new records alike is put before; so is a file that is new.
        """
        info = self._info()
        splits = () if info is None else info.splits
        keeps = any(each.name != self._split or self._appends for each in splits)
        early: list[str] = []
        late: list[str] = []
        for name in changed:
            is_early = info is None or name not in self._before or (keeps and is_sidecar(name))
            if name != INFO_FILE:
                (early if is_early and name != SHARD_INFO_FILE else late).append(name)
        return sorted(early, key=_place_in_order), sorted(late, key=_place_in_order)

    def _replace_sidecars(self, names: list[str], gone: Sequence[str] = ()) -> None:
        self._remove_labels((*names, *gone))
        for name in names:
            self._storage.upload(os.fspath(self.directory / name), self._path(name))

    def _remove_labels(self, names: Iterable[str]) -> None:
        """Delete files of class names that are about to be replaced.

        Readers accept classes without names, but not a number of names that is not that of the
        classes in features.json.
        """
        labels = [name for name in names if name.endswith(LABELS_SUFFIX) and name in self._small]
        self._storage.remove([self._path(name) for name in labels])

    def _switch(self) -> None:
        """Replace ``dataset_info.json``; another process must not have done so."""
        self._check_unchanged()
        path, text = self._path(INFO_FILE), (self.directory / INFO_FILE).read_bytes()
        try:
            self._storage.replace(path, text, self._state)
        except BaseException as error:
            # A request that failed may have been carried out.
            try:
                found = self._storage.read(path)
            except FileNotFoundError:
                found = None
            except OSError:
                self._committed = None
                raise DatasetError(
                    f"{INFO_FILE} could not be written ({error}), nor read again: it is "
                    f"unknown whether split {self._split!r} is written; run `covey info` "
                    "to see",
                    path=shown(self._url),
                ) from error
            if found != text and isinstance(error, FileChangedError):
                raise self._is_changed() from error
            self._committed = found == text
            if not self._committed or not isinstance(error, OSError):
                raise

    def _check_unchanged(self) -> None:
        if self._info_state() != self._state:
            raise self._is_changed()

    def _is_changed(self) -> DatasetError:
        return DatasetError(
            f"another process has changed the dataset while split {self._split!r} was "
            "written; write it again",
            path=shown(self._url),
        )

    def _copy(self, source: str, target: str) -> bool:
        """Let the server copy a file; False if the driver cannot do that."""
        try:
            self._storage.copy(self._path(source), self._path(target))
        except NotImplementedError:
            return False
        return True

    def _take_back(self, names: list[str]) -> None:
        """Undo what was put before the switch, unless another process has committed."""
        self._undone = False
        with contextlib.suppress(OSError, CoveyError):
            needed: set[str] = set()
            if self._info_state() != self._state:
                path = self._path(INFO_FILE)
                info = DatasetInfo.from_json(self._storage.read(path), path)
                needed = referenced_files(info) | {name for name in names if is_sidecar(name)}
            gone = [name for name in names if name not in needed]
            self._remove_labels(gone)
            for name in gone:
                if name in self._small:
                    self._storage.write(self._path(name), self._small[name])
            new = [self._path(name) for name in gone if name not in self._small]
            self._storage.remove(new)
            self._undone = True


def _place_in_order(name: str) -> int:
    """Shards first, then arrays of the index, then its description, then sidecar files.

    Of these, class names come last: see :meth:`RemoteStaging._remove_labels`.
    """
    if is_sidecar(name):
        return 4 if name.endswith(LABELS_SUFFIX) else 3
    return 2 if name.endswith(".json") else int(name.endswith(".npy"))
