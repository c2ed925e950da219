"""The commit of a split at a URL: one PUT makes a written version visible.

An object store cannot rename files, but it replaces a single file atomically. Every version of a
split has file names of its own there. The splits are staged in a local directory; the commit
uploads, in this order::

    shards, index files             new names; appended shards are copied by the server
    sidecar files                   new ones, and those that describe both old and new records
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from covey._files import temporary_name
from covey._locks import DeferredSignals, interrupted, reporting_failures
from covey._progress import Progress
from covey.errors import CoveyError, DatasetError, FileChangedError
from covey.filenames import INFO_FILE, LABELS_SUFFIX, SHARD_INFO_FILE, is_sidecar
from covey.storage import Stat, open_storage
from covey.urls import shown
from covey.writing.commit import Change, committed_error
from covey.writing.part_files import remove_committed
from covey.writing.scratch import local_copy
from covey.writing.versions import list_names, read_info, referenced_files


@contextmanager
def published(
    url: str, splits: Sequence[str], options: Mapping[str, Any] | None
) -> Iterator[RemoteStaging]:
    """Yield the staging of splits at a URL; undo its uploads if the block raises before the switch.

    Args:
        url: URL of the dataset.
        splits: Splits to be written; errors report the first one.
        options: Storage options of fsspec.
    """
    with local_copy("write") as directory:
        staging = RemoteStaging(url, splits[0], directory, options)
        try:
            with reporting_failures(shown(url), splits[0], lambda: staging.committed is True):
                staging.open()
                yield staging
        except BaseException as error:
            undone = staging.committed is not False or staging.undo()
            if isinstance(error, KeyboardInterrupt):
                state = staging.committed
                raise interrupted(shown(url), splits[0], state, undone=undone) from error
            raise


class RemoteStaging:
    """Local files of splits at a URL, until they are committed; see :func:`published`."""

    is_remote = True
    unique = True
    """Whether a version needs file names that no other version has."""

    def __init__(
        self, url: str, split: str, directory: Path, options: Mapping[str, Any] | None
    ) -> None:
        self.path = directory
        """Local directory of staged files."""
        self.storage = open_storage(url, options)
        self.storage_options = options
        """Storage options of fsspec."""
        self.location = self.storage.clean(url)
        self.committed: bool | None = False
        """Whether the switch has happened; None if that is unknown."""
        self._split = split
        self._names: set[str] = set()
        self._sidecars: dict[str, bytes] = {}
        """Content of the sidecar files and of ``shard_info.json`` before the write."""
        self._state: Stat | None = None
        """State of ``dataset_info.json`` before the write."""
        self._uploaded: list[str] = []
        """Names of the files that are uploaded before the switch."""

    def open(self) -> None:
        """Check that the storage can be written, and read the sidecar files."""
        path = self._path(temporary_name())
        self.storage.write(path, b"")
        with contextlib.suppress(OSError):
            self.storage.remove([path])
        # First: parts that another process commits after this are not committed again.
        self._state = self._info_state()
        remove_committed(self.storage, self.location)
        self._names = list_names(self.storage, self.location)
        for name in self._names:
            if name == SHARD_INFO_FILE or is_sidecar(name):
                self._sidecars[name] = self.storage.read(self._path(name))

    def locked(self) -> AbstractContextManager[None]:
        """Do nothing: files at a URL have no locks; :meth:`commit` compares the dataset."""
        return nullcontext()

    def expect(self, names: Iterable[str]) -> None:
        """Note files that workers upload, which are removed if the write fails."""
        self._uploaded.extend(names)

    def _path(self, name: str) -> str:
        return self.storage.join(self.location, name)

    def _info_state(self) -> Stat | None:
        (state,) = self.storage.stat([self._path(INFO_FILE)])
        return state

    def commit(
        self,
        change: Change,
        progress: Progress | None = None,
    ) -> None:
        """Upload the new version, and switch to it by one PUT of ``dataset_info.json``.

        SIGINT and SIGTERM are deferred during the switch and after it.

        Args:
            change: Staged changes.
            progress: Progress bar of the uploaded files.

        Raises:
            DatasetError: If another process has changed the dataset; its changes remain.
            CommittedError: If the split is written, but old files could not be replaced or deleted.
        """
        self._check_unchanged()
        change.check_foreign(self._names)
        info = change.new_info(read_info(self.location, self.storage))
        journal = change.journal(self._sidecars, (), self.location)
        files = sorted(change.files, key=lambda name: (_upload_rank(name), name))
        if progress is not None:
            progress.begin("uploading", len(files), unit="files")
        uploaded = {name: size for split in change.splits for name, size in split.uploaded.items()}
        copied = {name: old for split in change.splits for name, old in split.copied.items()}
        self._check_uploaded(uploaded)
        for name in files:
            size = 0
            if name not in uploaded:
                self._uploaded.append(name)
                size = self._upload(name, copied.get(name))
            if progress is not None:
                progress.add(1, size)
        early = {**change.new_sidecars(journal), **journal.early}
        self._uploaded.extend(early)
        self._replace_sidecars(_encoded(early))
        with DeferredSignals() as signals:
            signals.deliver()
            self._switch(info.to_json().encode())
            self.committed = True
            try:
                self._replace_sidecars(_encoded(journal.late), journal.stale)
                obsolete = change.find_obsolete(self._names, info)
                gone = [*journal.stale, *obsolete]
                self.storage.remove([self._path(name) for name in gone])
            except (OSError, MemoryError) as error:
                raise committed_error(self._split, shown(self.location), error) from error

    def _check_uploaded(self, sizes: Mapping[str, int]) -> None:
        """Raise DatasetError if a worker has written to another storage than this process."""
        found = self.storage.stat([self._path(name) for name in sizes])
        for (name, size), state in zip(sizes.items(), found, strict=True):
            if state is None or state.size != size:
                raise DatasetError(
                    "the shard that a worker has uploaded is missing or has another size",
                    path=shown(self._path(name)),
                    remedy="use a URL that all workers share, or omit engine=",
                )

    def _upload(self, name: str, source: str | None) -> int:
        """Upload a staged file, or copy a file of the dataset; return the number of bytes."""
        staged = self.path / name
        if source is not None:
            try:
                self.storage.copy(self._path(source), self._path(name))
                return 0
            except NotImplementedError:  # the driver does not support it
                with self.storage.open_stream(self._path(source)) as old, open(staged, "wb") as new:
                    shutil.copyfileobj(old, new, 1 << 20)
        self.storage.upload(os.fspath(staged), self._path(name))
        return staged.stat().st_size

    def _replace_sidecars(self, files: Mapping[str, bytes], stale: Sequence[str] = ()) -> None:
        """Replace sidecar files; class names are deleted first, and written last.

        Readers accept a label without class names, but not one whose number of names differs from
        that in features.json.
        """
        gone = [name for name in (*files, *stale) if name.endswith(LABELS_SUFFIX)]
        self.storage.remove([self._path(name) for name in gone if name in self._sidecars])
        for name in sorted(files, key=lambda name: (name.endswith(LABELS_SUFFIX), name)):
            self.storage.write(self._path(name), files[name])

    def _switch(self, text: bytes) -> None:
        """Replace ``dataset_info.json``, unless another process has replaced it."""
        self._check_unchanged()
        path = self._path(INFO_FILE)
        try:
            self.storage.replace(path, text, self._state)
        except BaseException as error:
            # A request that failed may have been carried out.
            try:
                found = self.storage.read(path)
            except FileNotFoundError:
                found = None
            except OSError:
                self.committed = None
                raise DatasetError(
                    f"{INFO_FILE} could be neither written ({error}) nor read again: it is "
                    f"unknown whether split {self._split!r} is written",
                    path=shown(self.location),
                    remedy="run `covey info`",
                ) from error
            if found != text and isinstance(error, FileChangedError):
                raise self._changed_error() from error
            self.committed = found == text
            if not self.committed or not isinstance(error, OSError):
                raise

    def _check_unchanged(self) -> None:
        if self._info_state() != self._state:
            raise self._changed_error()

    def _changed_error(self) -> DatasetError:
        return DatasetError(
            f"another process has changed the dataset while split {self._split!r} was written",
            path=shown(self.location),
            remedy="write the split again",
        )

    def undo(self) -> bool:
        """Undo the uploads before the switch, except files that another commit refers to.

        Returns:
            Whether all of them were undone.
        """
        with contextlib.suppress(OSError, CoveyError):
            needed: set[str] = set()
            if self._uploaded and self._info_state() != self._state:
                info = read_info(self.location, self.storage)
                needed = {*filter(is_sidecar, self._uploaded)}
                needed.update(() if info is None else referenced_files(info))
            gone = [name for name in self._uploaded if name not in needed]
            before = {name: self._sidecars[name] for name in gone if name in self._sidecars}
            self._replace_sidecars(before)
            self.storage.remove([self._path(name) for name in gone if name not in before])
            return True
        return False


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in files.items()}


def _upload_rank(name: str) -> int:
    """Return the rank of a file: shards, index arrays, index metadata."""
    return 2 if name.endswith(".json") else int(name.endswith(".npy"))
