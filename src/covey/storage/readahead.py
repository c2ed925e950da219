"""Sequential access to a remote file, with prefetched ranges."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from covey.storage.base import Stat
from covey.storage.filesystem import RemoteFilesystem
from covey.storage.range_cache import CachedFile, fetched
from covey.storage.requests import Request, RequestExecutor, range_call
from covey.urls import shown

# The first range is short, so that reading the head of a file costs little.
_FIRST_RANGE_BYTES = 1 << 18
_MAX_RANGE_BYTES = 1 << 22
_MAX_PREFETCHED = 4


class _Range(NamedTuple):
    """A requested range of the file."""

    begin: int
    end: int
    future: Future[bytes | None]


class RemoteStream(io.RawIOBase):
    """The bytes of a remote file, in order.

    Memory is bounded by the prefetched ranges. A file on a server that ignores ranges is downloaded
    to the cache, and read from there.

    Args:
        filesystem: The filesystem of the file.
        url: The URL of the file, with credentials.
        state: The state of the file when it was opened.
        open_cached: Opens the same file for random access.
    """

    def __init__(
        self,
        filesystem: RemoteFilesystem,
        url: str,
        state: Stat,
        open_cached: Callable[[], CachedFile],
    ) -> None:
        super().__init__()
        self.name = shown(url)
        self._url = url
        self._filesystem = filesystem
        self._path = filesystem.path_of(url)
        self._state = state
        self._open_cached = open_cached
        self._position = 0
        self._reset()

    def _reset(self) -> None:
        """Drop all requests, as a forked child must: they belong to its parent."""
        self._pid = os.getpid()
        self._executor = RequestExecutor()
        self._ranges: deque[_Range] = deque()
        """The range at the position, and those that follow it without gaps."""
        self._requested = 0
        self._downloaded: CachedFile | None = None
        self._pin = ExitStack()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._state.size}
        if whence not in bases:
            raise ValueError(f"whence is {whence}; must be 0, 1 or 2")
        position = bases[whence] + offset
        if position < 0:
            raise ValueError(f"position is {position}; must be an integer >= 0")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        self._check_open()
        if self._pid != os.getpid():
            self._reset()
        view = memoryview(buffer).cast("B")[: max(0, self._state.size - self._position)]
        if not view:
            return 0
        data = self._read(len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Cancel the requests in flight."""
        if not self.closed and self._pid == os.getpid():
            self._stop()
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: the stream is closed; open it again")

    def _stop(self) -> None:
        self._pin.close()
        if self._downloaded is not None:
            self._downloaded.close()
        self._executor.close()
        self._reset()

    def _read(self, size: int) -> bytes | memoryview:
        """Return the next bytes, at most `size` of them."""
        if self._downloaded is None:
            current = self._prefetch()
            data = current.future.result()
            if data is not None:
                begin = self._position - current.begin
                return memoryview(data)[begin : begin + size]
            self._stop()
            self._downloaded = self._open_cached()
            self._downloaded.ignores_ranges = True
            everything = np.array([0]), np.array([self._state.size])
            self._pin.enter_context(fetched([(self._downloaded, *everything)]))
        return self._downloaded.read_at(self._position, self._position + size)

    def _prefetch(self) -> _Range:
        """Return the range at the position, and request those that follow it.

        The number of prefetched ranges grows with the number of ranges that were read in order.
        """
        if self._ranges and not self._ranges[0].begin <= self._position <= self._ranges[-1].end:
            self._stop()
        while self._ranges and self._ranges[0].end <= self._position:
            self._ranges.popleft()
        begin = self._ranges[-1].end if self._ranges else self._position
        prefetched = min(1 + self._requested - len(self._ranges), _MAX_PREFETCHED)
        while begin < self._state.size and len(self._ranges) < prefetched:
            length = min(_FIRST_RANGE_BYTES << min(self._requested, 8), _MAX_RANGE_BYTES)
            end = min(begin + length, self._state.size)
            call = range_call(self._path, begin, end, self._state, check=True)
            action = f"reading bytes {begin} to {end}"
            request = Request(self._filesystem, self._url, action, call)
            self._ranges.append(_Range(begin, end, self._executor.submit(request)))
            self._requested += 1
            begin = end
        return self._ranges[0]
