"""Reading a remote file from front to back, some pieces ahead of a caller that reads."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.errors import FileChangedError
from covey.storage.base import Stat
from covey.storage.errors import explain
from covey.storage.filesystem import Call, RemoteFilesystem, RequestExecutor
from covey.storage.range_requests import Body, RangeNotSupportedError, range_call, tells_state
from covey.storage.retry import Retry, failure
from covey.urls import shown

# Pieces grow up to this as more of a file is read, so that a glance at its head costs little.
_FIRST_BYTES = 1 << 18
_MOST_BYTES = 1 << 22
_AHEAD = 4
_BODY_BYTES = 1 << 20


@dataclass(slots=True)
class _Piece:
    """A part of the file that was asked for."""

    begin: int
    end: int
    call: Call
    future: Future[bytes]
    data: bytes | None = None


class RemoteStream(io.RawIOBase):
    """The bytes of a remote file, in order.

    Memory is bounded by the pieces that are ahead. No thread is left when it is closed.

    Args:
        connection: To the filesystem.
        url: Of the file.
        state: Of the file, when it was opened.
        state_now: What it is now, for drivers whose answers do not say.
    """

    def __init__(
        self,
        connection: RemoteFilesystem,
        url: str,
        state: Stat,
        state_now: Callable[[], Stat | None],
    ) -> None:
        super().__init__()
        self.name = shown(url)
        self._url = url
        self._connection = connection
        self._path = connection.path_of(url)
        self._state = state
        self._state_now = state_now
        self._position = 0
        self._in_one = False
        """Whether the server gives the file only as a whole."""
        self._forget()

    def _forget(self) -> None:
        """Begin again where the position is, as a forked child has to."""
        self._pid = os.getpid()
        self._launcher: RequestExecutor | None = None
        self._pieces: deque[_Piece] = deque()
        self._asked = self._passed = 0
        """How many pieces were asked for in a row, and how many of them were read."""
        self._body: Body | None = None

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
            raise ValueError(f"the position is {position}, must not be negative")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        self._check_open()
        if self._pid != os.getpid():
            self._forget()
        view = memoryview(buffer).cast("B")[: max(0, self._state.size - self._position)]
        if not view:
            return 0
        data: bytes | memoryview = b""
        if not self._in_one:
            try:
                data = self._from_pieces(len(view))
            except RangeNotSupportedError:
                self._stop()
                self._in_one = True
        if self._in_one:
            doing = f"reading on from byte {self._position}"
            attempts = Retry(self._connection, self._url, doing)
            data = attempts.repeat(partial(self._from_body, len(view)))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Stop reading ahead."""
        if not self.closed and self._pid == os.getpid():
            self._stop()
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name}: this stream is closed; open another")

    def _stop(self) -> None:
        if self._body is not None:
            self._body.close()
        if self._launcher is not None:
            self._launcher.close()
        self._forget()

    def _from_pieces(self, most: int) -> memoryview:
        while self._pieces and self._pieces[0].end <= self._position:
            passed = self._pieces.popleft()
            self._passed += 1
            if passed.data is None:
                self._stop()  # sought past it, so nobody reads in a row
        if self._pieces and self._pieces[0].begin > self._position:
            self._stop()
        self._ask_ahead()
        piece = self._pieces[0]
        if piece.data is None:
            piece.data = self._wait_for(piece)
        begin = self._position - piece.begin
        return memoryview(piece.data)[begin : begin + most]

    def _ask_ahead(self) -> None:
        """Ask for pieces, the more of them the more were read in a row."""
        if self._launcher is None:
            self._launcher = RequestExecutor(self._connection)
        begin = self._pieces[-1].end if self._pieces else self._position
        while begin < self._state.size and len(self._pieces) < min(1 + self._passed, _AHEAD):
            length = min(_FIRST_BYTES << min(self._asked, 8), _MOST_BYTES)
            end = min(begin + length, self._state.size)
            call = range_call(self._path, begin, end, self._state)
            self._pieces.append(_Piece(begin, end, call, self._launcher.start(call)))
            self._asked += 1
            begin = end

    def _wait_for(self, piece: _Piece) -> bytes:
        assert self._launcher is not None
        doing = f"reading bytes {piece.begin} to {piece.end}"
        attempts = Retry(self._connection, self._url, doing)
        while True:
            error = failure(piece.future)
            if error is None:
                data = piece.future.result()
                break
            if isinstance(error, RangeNotSupportedError):
                raise error
            time.sleep(attempts.failed(error))
            piece.future = self._launcher.start(piece.call)
        is_last = piece.end == self._state.size
        if is_last and not tells_state(self._connection) and self._state_now() != self._state:
            raise explain(FileChangedError(), self._url, "reading", 1)
        return data

    def _from_body(self, most: int) -> bytes:
        """Read on in a file that is given only as a whole, from its beginning if need be."""
        try:
            if self._body is not None and self._body.position > self._position:
                self._stop()
            if self._body is None:
                self._body = Body(self._connection, self._path, self._state)
            while self._body.position < self._position:
                self._body.read(min(self._position - self._body.position, _BODY_BYTES))
            return self._body.read(min(most, _BODY_BYTES))
        except BaseException:
            self._stop()
            raise
