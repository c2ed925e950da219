"""The HTTP server of ``covey view``: who may ask, and which function answers.

A request is answered if its Host header is an address of this server, and if it has the token: in
the URL that is printed, then in a cookie. The files of the page are loaded at the start; no part of
a request is a path of the filesystem. Nothing is written.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from covey.errors import CoveyError
from covey.view.messages import JSON, Query, RequestError, Response, json_response
from covey.view.session import Session

Handler = Callable[[Session, Query], Response]

LOOPBACK = "127.0.0.1"

MAX_BODY_BYTES = 1 << 20
MAX_CONNECTIONS = 256
READ_TIMEOUT_S = 30

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


def load_page() -> dict[str, Response]:
    """Return the files of the page, by URL path."""
    files = {}
    for file in resources.files("covey.view").joinpath("page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            files[f"/{file.name}"] = Response(file.read_bytes(), _TYPES[suffix], is_fixed=True)
    files["/"] = files["/index.html"]
    return files


class Server(ThreadingHTTPServer):
    """Answers requests in threads, until it is closed.

    Args:
        session: What is shown.
        routes: The function for each URL path below ``/api/``.
        host: Address to bind to.
        port: Port; 0 for any.
        posts: URL paths that accept POST; all others accept GET.
        allow_frames: Whether local pages, notebooks for instance, may embed the page.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        session: Session,
        routes: Mapping[str, Handler],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        posts: frozenset[str] = frozenset(),
        allow_frames: bool = False,
    ) -> None:
        self.session = session
        self.routes = routes
        self.posts = posts
        self.token = secrets.token_urlsafe(32)
        self.page = load_page()
        self.policy = _POLICY.format(frames=_NOTEBOOKS if allow_frames else "'none'")
        self.run_id = secrets.token_hex(8)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.host = host
        super().__init__((host, port), RequestHandler)
        self.is_loopback = _is_loopback(host)

    @property
    def port(self) -> int:
        """The port."""
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies are shared by all ports of a host."""
        return f"covey-{self.port}"

    def url(self, host: str | None = None) -> str:
        """Return the URL of the page, with the token."""
        name = host or ("localhost" if self.host in ("", "0.0.0.0", "::") else self.host)
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/?token={self.token}"

    def accepts_host(self, header: str | None) -> bool:
        """Return whether a Host header is an address of this server, not a name of another site."""
        if header is None:
            return False
        try:
            found = urlsplit(f"//{header}")
            name, port = found.hostname, found.port
        except ValueError:
            return False
        if name is None or port != self.port or found.netloc != header or "@" in header:
            return False
        if name == "localhost" or _is_loopback(name):
            return True
        # A page of another site can only use a name, which DNS resolves to this machine.
        return not self.is_loopback and (_is_address(name) or name == socket.gethostname().lower())

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, TimeoutError)):  # a client that disconnects
            print(f"covey view: {type(error).__name__}: {error}", file=sys.stderr)


class RequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = READ_TIMEOUT_S
    server_version = "covey"
    sys_version = ""

    def do_GET(self) -> None:  # noqa: N802
        """Answer a GET request."""
        self._answer("GET")

    def do_HEAD(self) -> None:  # noqa: N802
        """Answer a HEAD request."""
        self._answer("GET")

    def do_POST(self) -> None:  # noqa: N802
        """Answer a POST request."""
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a URL may have the token."""

    def _answer(self, method: str) -> None:
        try:
            body = self._read_body() if method == "POST" else b""
            response, headers = self._find_response(method, body)
        except RequestError as error:
            response, headers = _error_response(error, error.status), {}
            if error.status in (403, 411, 413, 421):
                self.close_connection = True
        except CoveyError as error:
            response, headers = _error_response(error, 400), {}
        except (OSError, MemoryError) as error:
            response, headers = _error_response(error, 500), {}
        except Exception as error:
            print(f"covey view: {self.path.partition('?')[0][:200]!r}: {error!r}", file=sys.stderr)
            response, headers = _error_response(error, 500), {}
        self._send(response, headers)

    def _read_body(self) -> bytes:
        text = self.headers.get("Content-Length", "")
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            raise RequestError("the request has no Content-Length", 411)
        if int(text) > MAX_BODY_BYTES:
            raise RequestError(f"the body is longer than {MAX_BODY_BYTES:,} bytes", 413)
        return self.rfile.read(int(text))

    def _find_response(self, method: str, body: bytes) -> tuple[Response, dict[str, str]]:
        server = self.server
        if not server.accepts_host(self.headers.get("Host")):
            raise RequestError("the Host header is not an address of this server", 421)
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers['Host']}":
            raise RequestError("the request is from another site", 403)
        path, _, text = self.path.partition("?")
        query = Query(text, body)
        if "token" in query:
            if method != "GET" or not _same(query.string("token"), server.token):
                raise RequestError("the token is not valid", 403)
            return self._set_cookie(path)
        if not self._has_cookie():
            raise RequestError("open the URL that `covey view` printed; it has a token", 403)
        # Only fixed responses of this run have a tag, so that it is known before the response is.
        tag = '"' + hashlib.blake2b(f"{server.run_id} {self.path}".encode()).hexdigest()[:32] + '"'
        if method == "GET" and self.headers.get("If-None-Match") == tag:
            return Response(b"", JSON, 304), {"ETag": tag}
        if path in server.page:
            response = server.page[path]
        elif path in server.routes:
            if (method == "POST") != (path in server.posts):
                raise RequestError(f"{method} is not allowed here", 405)
            response = server.routes[path](server.session, query)
        else:
            raise RequestError("there is no such page", 404)
        if response.is_fixed:
            return response, {"ETag": tag, "Cache-Control": "private, no-cache"}
        return response, {}

    def _set_cookie(self, path: str) -> tuple[Response, dict[str, str]]:
        server = self.server
        if path not in server.page:
            raise RequestError("there is no such page", 404)
        headers = {
            "Set-Cookie": f"{server.cookie}={server.token}; HttpOnly; SameSite=Strict; Path=/",
            "Location": path,
        }
        return Response(b"", "text/plain", 303), headers

    def _has_cookie(self) -> bool:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self.server.token)

    def _send(self, response: Response, headers: Mapping[str, str]) -> None:
        fixed = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if response.filename is not None:
            fixed["Content-Disposition"] = f'attachment; filename="{response.filename}"'
        if self.close_connection:
            fixed["Connection"] = "close"
        self.send_response(response.status, HTTPStatus(response.status).phrase)
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and response.status != 304:
            self.wfile.write(response.body)

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Send the error of a request that is not valid HTTP."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or "GET"
        self.request_version = getattr(self, "request_version", None) or "HTTP/1.1"
        self._send(_error_response(RequestError(message or "the request is not valid"), code), {})


def _error_response(error: BaseException, status: int) -> Response:
    is_known = isinstance(error, (CoveyError, OSError))
    message = str(error) if is_known else f"{type(error).__name__}: {error}"
    content = {"error": message[:4000], "type": type(error).__name__}
    return Response(json_response(content).body, JSON, status)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
