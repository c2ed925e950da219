"""What a process and its workers know together: where iterations begin."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from multiprocessing import context, sharedctypes
from typing import Any

from covey.adapters.torch.course import Course, Epoch

# Of iterations that workers have begun, so many are remembered.
_REMEMBERED = 16


class _Iteration(ctypes.Structure):
    """One of them."""

    _fields_ = [
        ("key", ctypes.c_int64),  # what tells it from others,
        ("turn", ctypes.c_int64),  # and how often its workers have iterated before
        ("first", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("come", ctypes.c_int64),  # how many workers have begun it
    ]


class Progress(ctypes.Structure):
    """Where the iterations over a loader are."""

    _fields_ = [
        ("owner", ctypes.c_int64),  # the process that has the DataLoader
        ("loader", ctypes.c_int64),  # the batch that its loader was last seen at
        ("weights", ctypes.c_int64),  # what tells the weights of classes from others
        ("working", ctypes.c_int64),  # how many workers are in the midst of the last iteration
        ("begun", ctypes.c_int64),  # how many iterations workers have begun
        ("next", ctypes.c_int64),
        ("is_empty", ctypes.c_bool),
        ("is_given", ctypes.c_bool),
        ("at", ctypes.c_int64),
        ("is_drained", ctypes.c_bool),
        ("iterations", _Iteration * _REMEMBERED),
    ]

    @property
    def course(self) -> Course:
        """The course, which is to be put back when it has changed."""
        return Course(self.next, self.is_empty, self.is_given, self.at, self.is_drained)

    @course.setter
    def course(self, course: Course) -> None:
        self.next, self.is_empty, self.is_given = course.next, course.is_empty, course.is_given
        self.at, self.is_drained = course.at, course.is_drained

    def join(self, key: int, turn: int, workers: int) -> Epoch | None:
        """The epoch of an iteration that another of its workers has begun.

        Two iterations may have the same key, if somebody seeds PyTorch again: the second one begins
        when all workers of the first have come.
        """
        for number in range(self.begun - 1, max(-1, self.begun - 1 - _REMEMBERED), -1):
            found = self.iterations[number % _REMEMBERED]
            if (found.key, found.turn) == (key, turn):
                if found.come >= workers:
                    return None
                found.come += 1
                return Epoch(found.first, found.steps)
        return None

    def add(self, key: int, turn: int, epoch: Epoch) -> None:
        """A worker has begun an iteration."""
        self.iterations[self.begun % _REMEMBERED] = (key, turn, *epoch, 1)
        self.begun += 1


class Shared:
    """Progress in memory that processes share; in a ``with`` block, one of them has it alone.

    A worker gets it when it is forked, or spawned. Any other copy, of pickle or deepcopy, is one of
    its own.

    Args:
        begin: What it is at first.
    """

    def __init__(self, begin: Progress) -> None:
        self._progress: Progress = sharedctypes.RawValue(Progress)
        ctypes.pointer(self._progress)[0] = begin
        self._progress.owner = os.getpid()
        self._is_nameless = "fork" in multiprocessing.get_all_start_methods()
        method = "fork" if self._is_nameless else "spawn"
        self._lock: Any = multiprocessing.get_context(method).Lock()

    def __enter__(self) -> Progress:
        self._lock.acquire()
        return self._progress

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_of(self, process: int) -> bool:
        """Whether this process is the one that has the DataLoader."""
        return bool(self._progress.owner == process)

    def copy(self) -> Shared:
        """The same, of this process alone."""
        with self as progress:
            return Shared(progress)

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            with self as progress:
                return _restore, (bytes(progress),)
        if self._is_nameless:  # a lock for forked children only, which no other process can find
            self._lock, self._is_nameless = multiprocessing.get_context("spawn").Lock(), False
        return _attach, (self._progress, self._lock)


def _restore(progress: bytes) -> Shared:
    return Shared(Progress.from_buffer_copy(progress))


def _attach(progress: Progress, lock: Any) -> Shared:
    shared = Shared.__new__(Shared)
    shared._progress, shared._lock, shared._is_nameless = progress, lock, False
    return shared
