"""The HTTP server of ``covey view``: authentication, and the function for each request.

A request is answered if it has the token: in the URL that is printed, then in a cookie. The files
of the page are loaded at the start; no part of a request is a path of the filesystem. Nothing is
written.

The bytes of a request are read and checked by ``requests``. A connection is closed after a request
that is not valid, so that no byte of it is read as the next request.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import html
import ipaddress
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib import resources
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

from covey.errors import CoveyError, DatasetError, escape
from covey.view.messages import JSON, Query, RequestError, Response, json_response
from covey.view.requests import Receiver, RequestHead, send
from covey.view.session import Session

Handler = Callable[[Session, Query], Response]

LOOPBACK = "127.0.0.1"

MAX_CONNECTIONS = 256
MAX_RUNNING = 8
"""Maximum number of requests that are answered at the same time; each may need memory."""
MAX_SLOW = 2
"""The same for requests that may take seconds, so that the others do not wait for them."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors {frames}"
)
_NOTEBOOKS = "http://localhost:* http://127.0.0.1:*"

_METHODS = "GET, HEAD, POST"
_REFRESH_PAGE = (
    b'<!doctype html><meta http-equiv="refresh" content="0; url=/"><a href="/">covey view</a>'
)


def load_page() -> dict[str, Response]:
    """Return the files of the page, by URL path."""
    files = {}
    for file in resources.files("covey.view").joinpath("page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            files[f"/{file.name}"] = Response(file.read_bytes(), _TYPES[suffix], is_fixed=True)
    files["/"] = files["/index.html"]
    return files


class Server(ThreadingTCPServer):
    """Answers requests in threads, until it is closed.

    Args:
        session: What is shown.
        routes: The function for each URL path below ``/api/``.
        host: Address to bind to.
        port: Port; 0 for any.
        posts: URL paths that accept POST; all others accept GET.
        slow: URL paths of requests that may take seconds.
        allow_frames: Whether local pages, notebooks for instance, may embed the page.
        max_connections: Maximum number of connections; an idle one is closed for another one.

    Raises:
        DatasetError: If the address cannot be bound, because another process uses the port for
            instance.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    # The port can be used again at once. On Windows, two processes could use it at the same time.
    allow_reuse_address = os.name == "posix"
    allow_reuse_port = False

    def __init__(
        self,
        session: Session,
        routes: Mapping[str, Handler],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        posts: frozenset[str] = frozenset(),
        slow: frozenset[str] = frozenset(),
        allow_frames: bool = False,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.session = session
        self.routes = routes
        self.posts = posts
        self.slow = slow
        self.token = secrets.token_urlsafe(32)
        self.page = load_page()
        self.policy = _POLICY.format(frames=_NOTEBOOKS if allow_frames else "'none'")
        self.run_id = secrets.token_hex(8)
        self.host = host
        self.running = threading.BoundedSemaphore(MAX_RUNNING)
        self.running_slow = threading.BoundedSemaphore(MAX_SLOW)
        self._once: set[str] = set()
        self._lock = threading.Lock()
        self._max_connections = max_connections
        self._receivers: dict[socket.socket, Receiver] = {}  # the oldest is the first
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Connection)
        except OSError as error:
            raise DatasetError(
                f"cannot bind to {host}: {error.strerror or error}",
                option="port",
                found=port,
                allowed="a port that is not in use, or 0 for any",
            ) from error
        except OverflowError:
            raise DatasetError(
                option="port", found=port, allowed="an integer from 0 to 65535"
            ) from None

    @property
    def port(self) -> int:
        """The port."""
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies are shared by all ports of a host."""
        return f"covey-{self.port}"

    def url(self, host: str | None = None, *, once: bool = False) -> str:
        """Return the URL of the page, with the token.

        Args:
            host: Name of this machine (default: the address that the server is bound to).
            once: Use a token for one request only. All users of the machine see the command line of
                a browser.
        """
        token = self.token
        if once:
            token = secrets.token_urlsafe(32)
            with self._lock:
                self._once.add(token)
        name = host or ("localhost" if self.host in ("", "0.0.0.0", "::") else self.host)
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/?token={token}"

    def accepts_token(self, token: str) -> bool:
        """Return whether the token of a URL is valid."""
        if _same(token, self.token):
            return True
        with self._lock:
            found = next((each for each in self._once if _same(token, each)), None)
            self._once.discard(found or "")
            return found is not None

    # Connections.

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._receivers) >= self._max_connections:
                waiting = (each for each, found in self._receivers.items() if found.is_waiting)
                oldest = next(waiting, request)
                self._receivers.pop(oldest, None)
                _disconnect(oldest)
            if len(self._receivers) < self._max_connections:
                self._receivers[request] = Receiver(request)
        super().process_request(request, client_address)

    def receiver(self, connection: socket.socket) -> Receiver | None:
        """Return the reader of a connection; None if it was closed in favour of another one."""
        with self._lock:
            return self._receivers.get(connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._receivers.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close the port and all connections."""
        super().server_close()
        with self._lock:
            for each in self._receivers:
                _disconnect(each)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # a client that disconnects, or a timeout
            _report(error)


class Connection(BaseRequestHandler):
    """Answers the requests of one connection."""

    server: Server
    request: socket.socket

    def handle(self) -> None:
        """Answer requests until one of them is not valid, or the last one."""
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        receiver = self.server.receiver(self.request)
        is_last = receiver is None
        while receiver is not None and not is_last:
            is_head = False
            extra: Mapping[str, str] = {}
            head: RequestHead | None = None
            try:
                head = receiver.head()
                if head is None:
                    return
                is_last, is_head = head.is_last, head.method == "HEAD"
                response, extra = self._answer(head, receiver)
            except RequestError as error:
                # Its body may not have been read.
                is_last, response = True, _error_response(error, error.status)
                if head is not None and head.headers.get("sec-fetch-dest") in (
                    "document",
                    "iframe",
                ):
                    response = _error_page(error)
            if response.status == 405:
                extra = {"Allow": _METHODS}
            self._send(response, extra, is_head=is_head, is_last=is_last)
            if is_last:
                receiver.drain()

    def _answer(self, head: RequestHead, receiver: Receiver) -> tuple[Response, Mapping[str, str]]:
        """Return the response to a request whose client is known, and further headers of it.

        Raises:
            RequestError: If the connection must be closed.
        """
        if head.method not in _METHODS.split(", "):
            raise RequestError(f"{head.method} is not allowed", 405)
        size = head.body_bytes
        token = self._check_client(head)
        if size and head.headers.get("expect", "").lower() == "100-continue":
            send(self.request, b"HTTP/1.1 100 Continue\r\n\r\n")
        body = receiver.body(size)
        try:
            if token is not None:
                return self._set_cookie(head)
            return self._find_response(head, body)
        except RequestError as error:
            return _error_response(error, error.status), {}
        except CoveyError as error:
            return _error_response(error, 400), {}
        except Exception as error:
            _report(error, head.path)
            return _error_response(error, 500), {}

    def _check_client(self, head: RequestHead) -> str | None:
        """Raise RequestError if the client may not ask; return the token that it has in the URL."""
        # Tunnels have another port and proxies another name, so that any host is accepted. Pages of
        # other sites, which DNS may resolve to this machine, have neither the token nor the cookie.
        host = head.headers.get("host", "")
        if not _is_host(host):
            raise RequestError("the Host header is not valid")
        own = f"http://{host}"
        if head.headers.get("origin", own) != own:
            raise RequestError("the request is from another site", 403)
        # Browsers send cookies to all ports of a host. Other pages may only open this one.
        is_other = head.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        opens_page = head.method == "GET" and head.path == "/"
        if is_other and not (opens_page and head.headers.get("sec-fetch-mode") == "navigate"):
            raise RequestError("the request is from another site", 403)
        token = Query(head.query).optional("token")
        if token is not None:
            if head.method == "POST" or not self.server.accepts_token(token):
                raise RequestError("the token is not valid", 403)
        elif not self._has_cookie(head):
            raise RequestError("open the URL that `covey view` printed; it has a token", 403)
        return token

    def _has_cookie(self, head: RequestHead) -> bool:
        # Other servers of this host may set cookies of any form, also of the same name.
        cookies = (
            each.strip().partition("=") for each in head.headers.get("cookie", "").split(";")
        )
        values = [value for name, _, value in cookies if name == self.server.cookie]
        return any(_same(each, self.server.token) for each in values)

    def _find_response(self, head: RequestHead, body: bytes) -> tuple[Response, Mapping[str, str]]:
        server, path = self.server, head.path
        # Only fixed responses of this run have a tag, so that it is known before the response is.
        tag = f'"{hashlib.blake2b(f"{server.run_id} {head.target}".encode()).hexdigest()[:32]}"'
        if head.method != "POST" and head.headers.get("if-none-match") == tag:
            return Response(b"", JSON, 304), {"ETag": tag}
        if path in server.routes:
            if (head.method == "POST") != (path in server.posts):
                raise RequestError(f"{head.method} is not allowed here", 405)
            with server.running_slow if path in server.slow else server.running:
                response = server.routes[path](server.session, Query(head.query, body))
                server.session.release_pages()
        elif path in server.page and head.method != "POST":
            response = server.page[path]
        else:
            raise RequestError("there is no such page", 404)
        if response.is_fixed:
            return response, {"ETag": tag, "Cache-Control": "private, no-cache"}
        return response, {}

    def _set_cookie(self, head: RequestHead) -> tuple[Response, Mapping[str, str]]:
        server = self.server
        if head.path != "/":
            raise RequestError("there is no such page", 404)
        headers = {
            "Set-Cookie": f"{server.cookie}={server.token}; HttpOnly; SameSite=Strict; Path=/",
        }
        if head.headers.get("sec-fetch-site") == "cross-site":
            # The cookie is not sent after a redirect of a link in another site.
            return Response(_REFRESH_PAGE, _TYPES[".html"]), headers
        return Response(b"", "text/plain", 303), {**headers, "Location": "/"}

    def _send(
        self, response: Response, extra: Mapping[str, str], *, is_head: bool, is_last: bool
    ) -> None:
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            **({"Connection": "close"} if is_last else {}),
            **extra,
        }
        phrase = HTTPStatus(response.status).phrase
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {response.status} {phrase}", *lines, "", ""])
        send(self.request, head.encode("ascii"))
        if not is_head:
            send(self.request, response.body)


def _error_response(error: BaseException, status: int) -> Response:
    is_known = isinstance(error, (CoveyError, OSError))
    message = str(error) if is_known else f"{type(error).__name__}: {error}"
    content = {"error": message[:4000], "type": type(error).__name__}
    return Response(json_response(content).body, JSON, status)


def _error_page(error: RequestError) -> Response:
    """Return an error for a browser that shows the response as a page."""
    text = f"<!doctype html><title>covey view</title><p>{html.escape(str(error))}</p>"
    return Response(text.encode(), _TYPES[".html"], error.status)


def _report(error: BaseException | None, path: str = "") -> None:
    print(escape(f"covey view: {path[:200]} {error!r}"), file=sys.stderr)


def _disconnect(connection: socket.socket) -> None:
    """End a connection; its thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _is_host(header: str) -> bool:
    """Return whether a Host header is a name or an address, with or without a port."""
    try:
        found = urlsplit(f"//{header}")
        is_port = found.port is None or found.port > 0
    except ValueError:  # of the address, or of the port
        return False
    return is_port and found.hostname is not None and found.netloc == header and "@" not in header


def is_loopback(name: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
