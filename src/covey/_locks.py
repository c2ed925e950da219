"""Locks of dataset directories and of temporary directories, and signals during a commit.

The locks are ``flock`` on the directories themselves: they leave no file, and end with their
process. Some network file systems keep them on one machine; :mod:`covey.writing.commit` therefore
never removes a staging directory of another machine before it is a day old.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from covey._files import remove_any
from covey.errors import CommittedError, CoveyError, DatasetError

LOCK_TIMEOUT_S = 60.0
COMMIT_TIMEOUT_S = 600.0
"""Timeout at the end of a write, which may have taken hours."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def locked(directory: Path, timeout: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a dataset directory, which writers take to read it or to commit.

    Raises:
        DatasetError: If another process holds it for longer than ``timeout`` seconds, or the file
            system has no locks.
    """
    # The caller's path may be a symbolic link.
    descriptor = os.open(os.path.realpath(directory), _DIRECTORY)
    try:
        deadline = time.monotonic() + timeout
        while not _take(descriptor, directory):
            if time.monotonic() > deadline:
                raise DatasetError(
                    f"another process has held the lock of the dataset for over {timeout:g} s",
                    path=directory,
                    remedy="wait for it to end, or stop it",
                )
            time.sleep(0.01)
        yield
    finally:
        unlock(descriptor)


def try_lock(directory: Path) -> int | None:
    """Lock a directory unless a process holds its lock; return the descriptor of the lock."""
    descriptor = os.open(directory, _DIRECTORY)
    if _take(descriptor, directory):
        return descriptor
    os.close(descriptor)
    return None


def unlock(descriptor: int | None) -> None:
    """Release a lock, also if a forked process has inherited its descriptor."""
    if descriptor is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextmanager
def locked_directory(path: Path, mode: int = 0o777) -> Iterator[Path]:
    """Yield a new directory that is locked until the end of the block, which removes it.

    It is locked before it gets its name: :func:`remove_unlocked` finds it with its lock, or after
    its process was killed. The block may rename it, to keep it.
    """
    created = path.with_name(f"{path.name}.new")
    created.mkdir(mode)
    lock = None
    try:
        with contextlib.suppress(DatasetError):  # without locks, it is never removed by others
            lock = try_lock(created)
        created = created.rename(path)
        yield created
    finally:
        remove_any(created)
        unlock(lock)


def remove_unlocked(directory: Path, names: re.Pattern[str]) -> None:
    """Remove the directories of killed processes that :func:`locked_directory` has created.

    Args:
        directory: Their directory, which need not exist.
        names: Pattern of their names.
    """
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if names.fullmatch(path.name):
            # Another process may have removed it, or it belongs to another user.
            with contextlib.suppress(OSError, DatasetError):
                lock = try_lock(path)
                if lock is not None:
                    remove_any(path)
                    unlock(lock)


def _take(descriptor: int, directory: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        raise DatasetError(
            f"the file system does not support locks ({error.strerror}), which writers need",
            path=directory,
            remedy="write to another one and copy the dataset, or mount it with flock",
        ) from error
    return True


def owner() -> str:
    """Return the content of the owner file of a staging directory."""
    return f"process {os.getpid()} on {os.uname().nodename}"


class DeferredSignals:
    """Defers SIGINT and SIGTERM in the main thread, and delivers them at the end of the block.

    Only signals with a handler in Python are deferred: any other ends the process at once.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(number)

    def deliver(self) -> None:
        """Deliver the deferred signals."""
        while self._pending:
            number = self._pending.pop(0)
            self._handlers[number](number, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.deliver()


def interrupted(
    where: str, split: str, committed: bool | None, *, undone: bool = True
) -> KeyboardInterrupt:
    """Return an interrupt that reports whether the split was written.

    Args:
        where: Path or URL of the dataset.
        split: Name of the split.
        committed: Whether the split was written; None if that is unknown.
        undone: Whether the dataset is unchanged, if the split was not written.
    """
    state = "is not written, nothing was changed" if undone else "is not written"
    if committed:
        state = "is written"
    elif committed is None:
        state = "may be written or not; run `covey info`"
    return KeyboardInterrupt(f"{where}: interrupted; split {split!r} {state}")


@contextmanager
def reporting_failures(
    directory: Path | str, split: str, is_committed: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Report in errors and interrupts whether the split was written."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise interrupted(str(directory), split, is_committed()) from interrupt
    except (OSError, MemoryError) as error:
        if isinstance(error, CoveyError):
            raise
        if is_committed():
            raise CommittedError(
                f"split {split!r} is written, but a later step failed: {cause(error)}",
                path=directory,
                remedy="do not write the same examples again",
            ) from error
        raise DatasetError(
            f"writing split {split!r} failed: {cause(error)}; nothing was changed",
            path=directory,
        ) from error


def cause(error: BaseException) -> str:
    """Return what failed: the reason of the system and the file, if the error has them."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    reason = getattr(error, "strerror", None) or str(error)
    file = getattr(error, "filename", None)
    return f"{reason} ({file})" if file else reason
