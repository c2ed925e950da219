"""The bytes of a request: bounded in size and time, and checked before they are parsed.

``http.server`` accepts more than RFC 9112 allows, and reads 6 MB of headers without a limit of
time. Requests are therefore parsed here, and only those that have one meaning are accepted::

    GET /api/batch?step=7 HTTP/1.1      method, target, version
    Host: 127.0.0.1:4321                name, colon, value; no continuation lines
                                        empty line
    ...                                 Content-Length bytes, of POST only
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from covey.view.messages import RequestError

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 2 << 20
"""Ids of 100,000 examples in JSON."""

IDLE_TIMEOUT_S = 60.0
"""Maximum time between two requests of a connection."""
READ_TIMEOUT_S = 10.0
"""Maximum time from the first byte of a request head to its last one; also of a body."""
WRITE_TIMEOUT_S = 30.0
"""Maximum time in which a client receives a block of a response."""

_LINE = re.compile(rb"[A-Z]{1,20} [!-~]+ HTTP/1\.[01]")
# A token, a colon, and a value without control characters except tabs.
_HEADER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")

# Headers that identify the client, or decide where the request ends. A second one may contradict
# the first.
_SINGLE = frozenset(
    {"host", "origin", "cookie", "connection", "content-length", "expect", "sec-fetch-site"}
)

_BLOCK_BYTES = 64 << 10
_DRAIN_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class RequestHead:
    """The request line and the headers of a request."""

    method: str
    target: str
    headers: Mapping[str, str]
    """Values by lower-case name."""
    is_last: bool
    """Whether the client closes the connection after it."""

    @property
    def path(self) -> str:
        """The path of the URL, as it is encoded."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        """The query string of the URL."""
        return self.target.partition("?")[2]

    @property
    def body_bytes(self) -> int:
        """Size of the body.

        Raises:
            RequestError: If the request has no size, or is too large.
        """
        text = self.headers.get("content-length", "" if self.method == "POST" else "0")
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            raise RequestError("the request has no valid Content-Length", 411)
        if int(text) > (MAX_BODY_BYTES if self.method == "POST" else 0):
            limit = MAX_BODY_BYTES if self.method == "POST" else 0
            raise RequestError(f"the body is longer than {limit:,} bytes", 413)
        return int(text)


class Receiver:
    """Reads the requests of a connection.

    Args:
        connection: The connection.
        idle_timeout: Maximum time in seconds between two requests.
        read_timeout: Maximum time in seconds in which a head, or a body, is received.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        idle_timeout: float = IDLE_TIMEOUT_S,
        read_timeout: float = READ_TIMEOUT_S,
    ) -> None:
        self._connection = connection
        self._idle_timeout = idle_timeout
        self._read_timeout = read_timeout
        self._buffer = bytearray()
        self.is_waiting = True
        """Whether the connection has no request to answer."""

    def head(self) -> RequestHead | None:
        """Return the head of the next request; None at the end of the connection.

        Raises:
            RequestError: If they are not valid, or too long.
            TimeoutError: If they are not received in time.
        """
        self.is_waiting = True
        wait = self._read_timeout if self._buffer else self._idle_timeout
        deadline = time.monotonic() + wait
        while (end := self._buffer.find(b"\r\n\r\n")) < 0 and len(self._buffer) <= MAX_HEAD_BYTES:
            is_first = not self._buffer
            if not self._receive(deadline):
                return None
            if is_first:
                deadline = time.monotonic() + self._read_timeout
            if self._buffer[0] in b"\r\n\x16":  # TLS begins with 0x16
                raise RequestError("the request is not HTTP")
        if not 0 <= end <= MAX_HEAD_BYTES:
            raise RequestError(f"the headers are longer than {MAX_HEAD_BYTES:,} bytes", 431)
        head = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 4]
        self.is_waiting = False
        return parse_head(head)

    def body(self, length: int) -> bytes:
        """Return the body of the request.

        Raises:
            TimeoutError: If it is not received in time.
            ConnectionError: If the client disconnects before the end of the body.
        """
        deadline = time.monotonic() + self._read_timeout
        while len(self._buffer) < length:
            if not self._receive(deadline):
                raise ConnectionError("the client disconnected")
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def drain(self) -> None:
        """Discard what the client still sends, so that it can read the last response.

        The response is lost if a connection is closed that has unread data.
        """
        self._connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        received = 0
        while received < 2 * MAX_BODY_BYTES and self._receive(deadline):
            received += len(self._buffer)
            self._buffer.clear()

    def _receive(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        received = self._connection.recv(_BLOCK_BYTES)
        self._buffer += received
        return bool(received)


def parse_head(head: bytes) -> RequestHead:
    r"""Return the head of a request.

    Raises:
        RequestError: If it is not valid HTTP, or if it is ambiguous where the request ends.

    >>> parse_head(b"GET /?a=b HTTP/1.1\r\nHost: a\r\n").headers
    {'host': 'a'}
    >>> parse_head(b"GET / HTTP/1.1\r\nHost : a\r\n")
    Traceback (most recent call last):
        ...
    covey.view.messages.RequestError: a header of the request is not valid
    """
    line, *lines = head.removesuffix(b"\r\n").split(b"\r\n")
    if _LINE.fullmatch(line) is None:
        raise RequestError("the request line is not valid")
    method, target, version = line.decode("latin-1").split(" ")
    headers: dict[str, str] = {}
    for each in lines:
        if _HEADER.fullmatch(each) is None:
            raise RequestError("a header of the request is not valid")
        name, _, value = each.decode("latin-1").partition(":")
        name = name.lower()
        if name in headers and name in _SINGLE:
            raise RequestError(f"the request has two headers {name!r}")
        if name == "transfer-encoding":
            raise RequestError("Transfer-Encoding is not supported", 501)
        headers[name] = value.strip(" \t")
    is_last = version == "HTTP/1.0" or "close" in headers.get("connection", "").lower()
    return RequestHead(method, target, headers, is_last)


def send(connection: socket.socket, content: bytes) -> None:
    """Send a response; each block of it must be received in time."""
    connection.settimeout(WRITE_TIMEOUT_S)
    view = memoryview(content)
    for begin in range(0, len(view), _BLOCK_BYTES):
        connection.sendall(view[begin : begin + _BLOCK_BYTES])
