"""Write to a URL: write a local directory, and publish it at the end.

An object store cannot rename files, but it replaces a single file atomically. Every version of a
split has file names of its own there. Publishing a version uploads, in this order::

    shards, index files             new names; appended shards are copied by the server
    sidecar files                   those that describe both old and new records
    dataset_info.json               the switch: one PUT
    sidecar files                   those that describe only the new records
    files of old versions           deleted, except those of the version that was replaced

A writer that is killed before the switch leaves the old dataset, and one that is killed after it
the new one. The next writer deletes the files that it left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from covey._files import temporary_name
from covey._locks import (
    DeferredSignals,
    cause,
    interrupted,
)
from covey._progress import Progress
from covey.dataset_info import DatasetInfo, dataset_name
from covey.errors import CommittedError, CoveyError, DatasetError, FileChangedError
from covey.filenames import INFO_FILE, LABELS_SUFFIX, SHARD_INFO_FILE, is_sidecar
from covey.index import index_names
from covey.storage import Stat, open_storage
from covey.urls import shown
from covey.writing.scratch import local_copy
from covey.writing.versions import referenced_files

_PIECE_BYTES = 1 << 20


class RemoteStaging:
    """Local copy of a remote dataset, while splits of it are written.

    Errors that leave the ``with`` block have the URL as their path.

    Args:
        url: URL of the dataset.
        splits: Splits to be written; errors report the first one.
        appends: Whether shards are appended to existing ones, which are downloaded then.
        options: Storage options of fsspec.
    """

    def __init__(
        self, url: str, splits: Sequence[str], *, appends: bool, options: Mapping[str, Any] | None
    ) -> None:
        self._storage = open_storage(url, options)
        self.storage_options = options
        """Storage options of fsspec."""
        self._uploaded: dict[str, int | None] = {}
        """Files that the workers of an engine upload, with their sizes if those are known."""
        self._url = self._storage.clean(url)
        self._split = splits[0]
        self._splits = tuple(splits)
        self._appends = appends
        self._stack = contextlib.ExitStack()
        temporary = self._stack.enter_context(local_copy("write"))
        # A directory of the same name, which is the default name of a dataset.
        name, version = dataset_name("/" + "/".join(self._url.split("/")[-2:]))
        named = version != "1.0.0" or self._url.endswith("/1.0.0")
        self.directory = Path(temporary, name, version) if named else Path(temporary, name)
        self._before: dict[str, tuple[int, int]] = {}
        self._small: dict[str, bytes] = {}
        """Content of the sidecar files and of dataset_info.json before the write."""
        self._state: Stat | None = None
        """State of ``dataset_info.json`` before the write."""
        self._committed: bool | None = False
        """Whether the switch has happened; None if that is unknown."""
        self._undone = True
        """Whether all uploads before a failed switch were undone."""

    def __enter__(self) -> RemoteStaging:
        try:
            self._check_writable()
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
        self._stack.close()
        if error is not None and self._committed is False and self._uploaded:
            self._undo(sorted(self._uploaded))
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
        if isinstance(error, CoveyError) and error.path is not None:
            here, there = str(self.directory), shown(self._url)
            if error.path == here or error.path.startswith(here + os.sep):
                error.path = there + error.path[len(here) :]

    def expect(self, sizes: Mapping[str, int | None]) -> None:
        """Note files that the workers of an engine upload before :meth:`publish`.

        They are removed if the write fails.

        Args:
            sizes: Size of each file; None if it is not uploaded yet.
        """
        self._uploaded.update(sizes)

    def _check_uploaded(self) -> None:
        """Raise DatasetError if a worker has written to another storage than this process."""
        names = sorted(self._uploaded)
        found = self._storage.stat([self._path(name) for name in names])
        for name, state in zip(names, found, strict=True):
            if state is None or state.size != self._uploaded[name]:
                raise DatasetError(
                    "the shard that a worker has uploaded is missing or has another size",
                    path=shown(self._path(name)),
                    remedy="use a URL that all workers share, or omit engine=",
                )

    def _path(self, name: str) -> str:
        return self._storage.join(self._url, name)

    def _check_writable(self) -> None:
        """Raise before any example is encoded if the storage cannot be written."""
        path = self._path(temporary_name())
        self._storage.write(path, b"")
        with contextlib.suppress(OSError):
            self._storage.remove([path])

    def _fetch(self) -> None:
        """Download the files that the writer reads; create the others empty."""
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
            own = tuple(each for each in splits if each.name in self._splits)
            fetched = referenced_files(DatasetInfo(info.name, splits=own)) - self._small.keys()
        for name in names:
            with open(self.directory / name, "wb") as file:
                file.write(self._small.get(name, b""))
                if name in fetched:
                    with self._storage.open_stream(self._path(name)) as stream:
                        shutil.copyfileobj(stream, file, _PIECE_BYTES)
        self._before = self._snapshot()

    def _info(self) -> DatasetInfo | None:
        """Return the content of ``dataset_info.json`` before the write."""
        text = self._small.get(INFO_FILE)
        return None if text is None else DatasetInfo.from_json(text, self._path(INFO_FILE))

    def _snapshot(self) -> dict[str, tuple[int, int]]:
        """Return the inode and mtime of all files, to detect changes."""
        found = {path.name: path.stat() for path in self.directory.iterdir() if path.is_file()}
        return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}

    def _info_state(self) -> Stat | None:
        (state,) = self._storage.stat([self._path(INFO_FILE)])
        return state

    # Publishing.

    def publish(self, progress: Progress | None = None) -> None:
        """Upload the new version, and switch to it by one PUT of ``dataset_info.json``.

        SIGINT and SIGTERM are held back during the switch and what follows it.

        Args:
            progress: Progress bar of the uploaded files.

        Raises:
            DatasetError: If another process has changed the dataset; its changes remain.
            CommittedError: If the split is written, but old files could not be replaced or deleted.
        """
        after = self._snapshot()
        changed = [name for name in sorted(after) if self._before.get(name) != after[name]]
        early, late = self._order(changed)
        if progress is not None:
            progress.begin("uploading", len(early), unit="files")
        copies = {state: name for name, state in self._before.items()}
        uploaded: list[str] = []
        try:
            self._check_unchanged()
            self._check_uploaded()
            sidecars = [name for name in early if is_sidecar(name)]
            for name in early[: len(early) - len(sidecars)]:
                uploaded.append(name)
                source = copies.get(after[name])
                is_done = name in self._uploaded or (source and self._copy(source, name))
                if not is_done:
                    self._storage.upload(os.fspath(self.directory / name), self._path(name))
                if progress is not None:
                    progress.add(1, (self.directory / name).stat().st_size)
            uploaded += sidecars
            self._replace_sidecars(sidecars)
            if progress is not None:
                progress.add(len(sidecars), 0)
        except BaseException:
            self._undo(uploaded)
            raise
        with DeferredSignals() as signals:
            try:
                signals.deliver()
                self._switch()
            except BaseException:
                if self._committed is False:
                    self._undo(uploaded)
                raise
            self._committed = True
            gone = [name for name in self._before if name not in after]
            try:
                self._replace_sidecars(late, gone)
                self._storage.remove([self._path(name) for name in gone])
            except (OSError, MemoryError) as error:
                raise CommittedError(
                    f"split {self._split!r} is written, but some files of the old version could "
                    f"not be replaced or deleted: {cause(error)}",
                    path=shown(self._url),
                    remedy="do not write the same examples again; the next write completes it",
                ) from error

    def _order(self, changed: list[str]) -> tuple[list[str], list[str]]:
        """Return the files to be uploaded before the switch, and those after it.

        New files, and files that describe both old and new records, are uploaded before it.
        """
        info = self._info()
        splits = () if info is None else info.splits
        keeps = any(each.name not in self._splits or self._appends for each in splits)
        early: list[str] = []
        late: list[str] = []
        for name in changed:
            is_early = info is None or name not in self._before or (keeps and is_sidecar(name))
            if name != INFO_FILE:
                (early if is_early and name != SHARD_INFO_FILE else late).append(name)
        return sorted(early, key=_upload_rank), sorted(late, key=_upload_rank)

    def _replace_sidecars(self, names: list[str], gone: Sequence[str] = ()) -> None:
        self._remove_labels((*names, *gone))
        for name in names:
            self._storage.upload(os.fspath(self.directory / name), self._path(name))

    def _remove_labels(self, names: Iterable[str]) -> None:
        """Delete files of class names that are about to be replaced.

        Readers accept a label without class names, but not one whose number of names differs from
        that in features.json.
        """
        labels = [name for name in names if name.endswith(LABELS_SUFFIX) and name in self._small]
        self._storage.remove([self._path(name) for name in labels])

    def _switch(self) -> None:
        """Replace ``dataset_info.json``, unless another process has replaced it."""
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
                    f"{INFO_FILE} could be neither written ({error}) nor read again: it is "
                    f"unknown whether split {self._split!r} is written",
                    path=shown(self._url),
                    remedy="run `covey info`",
                ) from error
            if found != text and isinstance(error, FileChangedError):
                raise self._changed_error() from error
            self._committed = found == text
            if not self._committed or not isinstance(error, OSError):
                raise

    def _check_unchanged(self) -> None:
        if self._info_state() != self._state:
            raise self._changed_error()

    def _changed_error(self) -> DatasetError:
        return DatasetError(
            f"another process has changed the dataset while split {self._split!r} was written",
            path=shown(self._url),
            remedy="write the split again",
        )

    def _copy(self, source: str, target: str) -> bool:
        """Copy a file on the server; return False if the driver does not support it."""
        try:
            self._storage.copy(self._path(source), self._path(target))
        except NotImplementedError:
            return False
        return True

    def _undo(self, names: list[str]) -> None:
        """Undo the uploads before the switch, except files that another commit refers to."""
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


def _upload_rank(name: str) -> int:
    """Return the rank of a file: shards, index arrays, index metadata, sidecar files.

    Class names are last: see :meth:`RemoteStaging._remove_labels`.
    """
    if is_sidecar(name):
        return 4 if name.endswith(LABELS_SUFFIX) else 3
    return 2 if name.endswith(".json") else int(name.endswith(".npy"))
