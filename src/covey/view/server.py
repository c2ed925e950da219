"""The HTTP server of ``covey view``: Starlette and uvicorn.

A request is answered if it has the token: in the URL that is printed, then in a cookie. Any host
name and port is accepted, so that tunnels and proxies work: pages of other sites, which DNS may
resolve to this machine, have neither the token nor the cookie. The files of the page are loaded at
the start; no part of a request is a path of the file system. Nothing is written.

A request calls a function of ``overview``, ``examples``, ``media``, ``batches`` or ``embeddings``
with the arguments that its signature has. A function that yields is a stream: a line of JSON for
each value, until the client disconnects.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import json
import math
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import CoveyError, DatasetError, check_int, escape, import_extra
from covey.storage.driver import ForkAware
from covey.view import batches, embeddings, examples, media, overview
from covey.view.session import RequestError, Session, arguments, parse_json

IFRAME_HEIGHT = 720
LOOPBACK = "127.0.0.1"
MAX_RUNNING = 8
"""Maximum number of requests that are answered at the same time; each may need memory."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors {frames}"
)
_NOTEBOOKS = "http://localhost:* http://127.0.0.1:*"
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
# Integers that numbers of JavaScript represent exactly.
_MAX_EXACT = 2**53
_END = object()


def set_label(session: Session, body: str) -> dict[str, Any]:
    """Open the splits again with the label that the body of a request names."""
    found = parse_json("body", body)
    label = found.get("label") if isinstance(found, dict) else None
    session.set_label(str(label))
    return {}


ROUTES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        overview.overview, overview.classes, overview.survey, examples.find, examples.examples,
        media.image, media.audio, batches.batch, batches.coverage, embeddings.points,
        embeddings.colours, embeddings.neighbours, embeddings.disagreements,
    )
} | {"batch/x": batches.batch_rows}  # fmt: skip
"""The function for each URL path below ``/api/``."""

POSTS: dict[str, Callable[..., Any]] = {"state": batches.state, "label": set_label}
"""The function for each URL path that accepts POST; it has the body as an argument."""


def to_json(content: Any) -> Any:
    """Return nested values as values of JSON that JavaScript represents exactly.

    NaN and infinities become null, large integers strings, and arrays base64.

    >>> to_json({"x": (np.int64(2), float("nan"), 2**60)})
    {'x': [2, None, '1152921504606846976']}
    >>> to_json(np.array([1], np.uint8))
    {'dtype': 'u1', 'shape': [1], 'base64': 'AQ=='}
    """
    if isinstance(content, dict):
        return {str(name): to_json(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        if set(map(type, content)) <= {str}:  # a million names
            return content
        return [to_json(value) for value in content]
    if isinstance(content, np.ndarray):
        data = np.ascontiguousarray(content, content.dtype.newbyteorder("<")).tobytes()
        kind = f"{content.dtype.kind}{content.dtype.itemsize}"
        text = base64.b64encode(data).decode()
        return {"dtype": kind, "shape": list(content.shape), "base64": text}
    if isinstance(content, np.generic):
        content = content.item()
    if isinstance(content, bytes):
        return content.decode(errors="replace")
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, int) and not isinstance(content, bool) and abs(content) > _MAX_EXACT:
        return str(content)
    return content


def encode_json(content: Any) -> bytes:
    """Return a line of JSON."""
    text = json.dumps(to_json(content), allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def load_page() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page by URL path, and their types."""
    root = Path(__file__).parent / "page"
    found = [file for file in root.rglob("*") if file.suffix in _TYPES]
    files = {f"/{file.relative_to(root).as_posix()}": file for file in found}
    return {
        path: (file.read_bytes(), _TYPES[file.suffix])
        for path, file in {**files, "/": root / "index.html"}.items()
    }


class View(ForkAware):
    """A running server; ``ds.view()`` and ``loader.view()`` return it.

    In a notebook it is displayed as the page. It ends with :meth:`close`, or with the process.

    Args:
        session: What is shown; it is closed with the view.
        host: Address to bind to.
        port: Port; 0 for any.
        allow_frames: Whether local pages, notebooks for instance, may embed the page.
        in_thread: Whether a thread answers the requests; otherwise :meth:`run` does.

    Raises:
        DatasetError: If Starlette or uvicorn is not installed, or the address cannot be bound,
            because another process uses the port for instance.
    """

    def __init__(
        self,
        session: Session,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        allow_frames: bool = True,
        in_thread: bool = True,
    ) -> None:
        for module in ("starlette", "uvicorn"):
            import_extra(module, "covey view", "'covey[view]'")
        super().__init__()
        self._process = os.getpid()
        self._session = session
        self._host = host
        self._token = secrets.token_urlsafe(32)
        self._once: set[str] = set()
        self._policy = _POLICY.format(frames=_NOTEBOOKS if allow_frames else "'none'")
        self._executor = ThreadPoolExecutor(MAX_RUNNING, "covey view")
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server = self._make_server()
        self._thread = threading.Thread(target=self.run, name="covey view", daemon=True)
        if in_thread:
            self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the page, with the token that it requires."""
        return self._url(self._token)

    def _url(self, token: str, host: str | None = None) -> str:
        name = host or ("localhost" if self._host in ("", "0.0.0.0", "::") else self._host)
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/?token={token}"

    def __repr__(self) -> str:
        return f"<covey.view.View: {self.url}>"

    def _repr_html_(self) -> str:
        # A cookie is sent to an iframe of the same site: notebooks are served from localhost.
        url = self._url(self._token, "localhost")
        return (
            f'<iframe src="{url}" title="covey view" width="100%" height="{IFRAME_HEIGHT}" '
            f'style="border:0"></iframe><p><a href="{url}" target="_blank" rel="noopener">'
            "Open in a tab</a></p>"
        )

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_browser(self) -> bool:
        """Open the page in the browser of the user; return whether there is one.

        The token of its URL is for one request: all users see the command line of a browser.
        """
        # Without a display, only browsers would be found that take the terminal.
        is_unix = sys.platform not in ("darwin", "win32", "cygwin")
        displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        if is_unix and not any(os.environ.get(each) for each in displays):
            return False
        token = secrets.token_urlsafe(32)
        self._once.add(token)
        return webbrowser.open(self._url(token))

    def run(self) -> None:
        """Answer requests until the view is closed, or until SIGINT in the main thread."""
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Stop the server, free the port, and close the datasets that the view opened."""
        if self._process == os.getpid():  # the connections are those of the parent alone
            self._server.should_exit = True
            if self._thread.ident is not None:
                self._thread.join()
            self._socket.close()
            self._executor.shutdown(wait=False)
        self._session.close()

    def _reset_after_fork(self) -> None:
        # The sockets of a forked child are detached: they belong to the parent alone.
        connections = list(self._server.server_state.connections)
        found = [each.transport.get_extra_info("socket") for each in connections]
        null = os.open(os.devnull, os.O_RDWR)
        for each in (self._socket, *found):
            if each.fileno() >= 0:
                os.dup2(null, each.fileno())
        os.close(null)

    # Requests.

    def _make_server(self) -> Any:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import Response
        from starlette.routing import Route

        def send_file(data: bytes, kind: str) -> Any:
            async def send(request: Any) -> Any:
                return Response(data, media_type=kind)

            return send

        routes = [Route(f"/api/{name}", self._answer(each)) for name, each in ROUTES.items()]
        for name, each in POSTS.items():
            routes.append(Route(f"/api/{name}", self._answer(each), methods=["POST"]))
        routes += [Route(path, send_file(*file)) for path, file in load_page().items()]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _handle})
        options: Any = {"http": "h11", "ws": "none", "lifespan": "off", "server_header": False}
        options |= {"log_config": None, "log_level": "critical", "timeout_graceful_shutdown": 1}
        options["timeout_keep_alive"] = 60
        return uvicorn.Server(uvicorn.Config(self._guard(app), **options))

    def _guard(self, app: Any) -> Any:
        """Return an application that checks who sends a request, and adds the headers of all."""
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request

        name = f"covey-{self.port}"  # cookies are shared by all ports of a host

        async def guard(scope: Any, receive: Any, send: Any) -> None:
            request, headers = Request(scope), {**_HEADERS, "Content-Security-Policy": self._policy}

            async def send_guarded(message: Any) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(headers)
                await send(message)

            token, cookie = request.query_params.get("token"), request.cookies.get(name, "")
            problem = _find_origin_problem(request)
            if token is not None and not self._accepts(token):
                problem = "the token is not valid"
            elif token is None and not _same(cookie, self._token):
                problem = "open the URL that `covey view` printed; it has a token"
            if problem is not None:
                await _error(RequestError(problem, 403))(scope, receive, send_guarded)
                return
            if token is not None:
                attributes = "HttpOnly; SameSite=Strict; Path=/"
                headers["Set-Cookie"] = f"{name}={self._token}; {attributes}"
            await app(scope, receive, send_guarded)

        return guard

    def _accepts(self, token: str) -> bool:
        """Return whether the token of a URL is valid."""
        found = next((each for each in list(self._once) if _same(token, each)), None)
        self._once.discard(found or "")
        return found is not None or _same(token, self._token)

    def _answer(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return the endpoint of a function."""
        from starlette.responses import Response

        async def answer(request: Any) -> Any:
            in_thread = asyncio.get_running_loop().run_in_executor
            try:
                query = dict(request.query_params)
                if request.method == "POST":
                    query["body"] = (await request.body()).decode(errors="replace")
                first, rest = await in_thread(self._executor, self._call, function, query)
                if rest is None:
                    return Response(first.data, media_type=first.content_type)
                return self._stream(request, first, rest)
            except Exception as error:
                return _error(error)

        return answer

    def _call(self, function: Callable[..., Any], query: Mapping[str, str]) -> tuple[Any, Any]:
        """Return the response of a function, or the first line of a stream and its iterator."""
        found = function(**arguments(function, self._session, query))
        if isinstance(found, Iterator):
            return self._next_line(found), found
        self._session.release_pages()
        if isinstance(found, media.Media):
            return found, None
        return media.Media(encode_json(found), "application/json"), None

    def _next_line(self, lines: Iterator[Any]) -> Any:
        found = next(lines, _END)
        self._session.release_pages()
        return _END if found is _END else encode_json(found)

    def _stream(self, request: Any, first: Any, rest: Any) -> Any:
        """Return the response that has a line for each value of a generator."""

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            in_thread, line = asyncio.get_running_loop().run_in_executor, first
            headers = [(b"content-type", b"application/x-ndjson")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = {"type": "http.response.body", "more_body": True}
            try:
                # A generator ends only where it yields.
                while line is not _END and not await request.is_disconnected():
                    await send({**body, "body": line})
                    line = await in_thread(self._executor, self._next_line, rest)
            except Exception as error:
                await send({**body, "body": encode_json(_describe_error(error))})
            finally:
                self._executor.submit(rest.close)
            await send({"type": "http.response.body"})

        return respond


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    check_int("port", port, 0, 65535, error=DatasetError)
    try:
        bound = socket.create_server((host, port), family=family, backlog=128)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # also of connections
        return bound
    except OSError as error:
        raise DatasetError(
            f"cannot bind to {host}: {error.strerror or error}",
            option="port",
            found=port,
            allowed="a port that is not in use, or 0 for any",
        ) from error


def _find_origin_problem(request: Any) -> str | None:
    """Return why a request is refused: a page of another site sends it."""
    headers = request.headers
    own = f"http://{headers.get('host', '')}"
    # Browsers send cookies to all ports of a host. Other pages may only open this one.
    opens_page = request.url.path == "/" and headers.get("sec-fetch-mode") == "navigate"
    is_own = headers.get("sec-fetch-site", "none") in ("same-origin", "none") or opens_page
    if is_own and headers.get("origin", own) == own:
        return None
    return "the request is from another site"


def _handle(request: Any, error: Any) -> Any:
    return _error(RequestError(error.detail, error.status_code))


def _error(error: Exception) -> Any:
    """Return the response to a request that failed."""
    from starlette.responses import Response

    status = getattr(error, "status", 400 if isinstance(error, (CoveyError, OSError)) else 500)
    return Response(encode_json(_describe_error(error)), status, media_type="application/json")


def _describe_error(error: Exception) -> dict[str, str]:
    is_known = isinstance(error, (CoveyError, OSError))
    if not is_known:
        print(escape(f"covey view: {error!r}"), file=sys.stderr)
    message = str(error) if is_known else f"{type(error).__name__}: {error}"
    return {"error": message[:4000], "type": type(error).__name__}


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def is_loopback(name: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
