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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

import numpy as np

from covey.errors import CoveyError, DatasetError, escape, import_extra
from covey.view import batches, embeddings, examples, media, overview
from covey.view.parameters import arguments, parse_json
from covey.view.session import RequestError, Session

LOOPBACK = "127.0.0.1"
MAX_RUNNING = 8
"""Maximum number of requests that are answered at the same time; each may need memory."""
MAX_BODY_BYTES = 2 << 20

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
    "overview": overview.overview,
    "classes": overview.classes,
    "survey": overview.survey,
    "find": examples.find,
    "examples": examples.examples,
    "image": media.image,
    "audio": media.audio,
    "batch": batches.batch,
    "batch/x": batches.batch_rows,
    "coverage": batches.coverage,
    "points": embeddings.points,
    "colours": embeddings.colours,
    "neighbours": embeddings.neighbours,
    "disagreements": embeddings.disagreements,
}
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
    files: dict[str, tuple[bytes, str]] = {}

    def add(directory: Any, path: str) -> None:
        for file in directory.iterdir():
            kind = _TYPES.get(os.path.splitext(file.name)[1])
            if file.is_dir():
                add(file, f"{path}{file.name}/")
            elif kind is not None:
                files[path + file.name] = file.read_bytes(), kind

    add(resources.files("covey.view").joinpath("page"), "/")
    files["/"] = files["/index.html"]
    return files


class Server:
    """Answers requests until it is closed.

    Args:
        session: What is shown.
        host: Address to bind to.
        port: Port; 0 for any.
        allow_frames: Whether local pages, notebooks for instance, may embed the page.
        routes: The function for each URL path below ``/api/``.

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
        routes: Mapping[str, Callable[..., Any]] = ROUTES,
    ) -> None:
        for module in ("starlette", "uvicorn"):
            import_extra(module, "covey view", "'covey[view]'")
        self.session = session
        self.host = host
        self.token = secrets.token_urlsafe(32)
        self._once: set[str] = set()
        self._policy = _POLICY.format(frames=_NOTEBOOKS if allow_frames else "'none'")
        self._executor = ThreadPoolExecutor(MAX_RUNNING, "covey view")
        self.socket = _bind(host, port)
        self.port = int(self.socket.getsockname()[1])
        self._server = self._make_server(routes)

    def _make_server(self, routes: Mapping[str, Callable[..., Any]]) -> Any:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        paths = [Route(f"/api/{name}", self._answer(each)) for name, each in routes.items()]
        paths += [
            Route(f"/api/{name}", self._answer(each), methods=["POST"])
            for name, each in POSTS.items()
        ]
        paths += [Route(path, _send_file(*file)) for path, file in load_page().items()]
        handlers: Any = {
            HTTPException: lambda _, error: _error(RequestError(error.detail, error.status_code))
        }
        app = Starlette(routes=paths, exception_handlers=handlers)
        config = uvicorn.Config(
            self._guard(app),
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        return uvicorn.Server(config)

    # Life.

    def run(self) -> None:
        """Answer requests until :meth:`stop` is called, or until SIGINT in the main thread."""
        self._server.run(sockets=[self.socket])

    def stop(self) -> None:
        """Let :meth:`run` return, which closes the port and all connections."""
        self._server.should_exit = True

    def release(self) -> None:
        """Detach the sockets of a forked child: they belong to the parent alone."""
        connections = list(self._server.server_state.connections)
        found = [each.transport.get_extra_info("socket") for each in connections]
        null = os.open(os.devnull, os.O_RDWR)
        for each in (self.socket, *found):
            if each.fileno() >= 0:
                os.dup2(null, each.fileno())
        os.close(null)

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
            self._once.add(token)
        name = host or ("localhost" if self.host in ("", "0.0.0.0", "::") else self.host)
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/?token={token}"

    # Requests.

    def _guard(self, app: Any) -> Any:
        """Return an application that checks who sends a request, and adds the headers of all."""
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request

        # Cookies are shared by all ports of a host.
        name = f"covey-{self.port}"

        async def guard(scope: Any, receive: Any, send: Any) -> None:
            request, headers = Request(scope), {**_HEADERS, "Content-Security-Policy": self._policy}

            async def send_guarded(message: Any) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(headers)
                await send(message)

            token = request.query_params.get("token")
            try:
                _check_origin(request)
                if token is not None and self._accepts(token):
                    cookie = f"{name}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers["Set-Cookie"] = cookie
                elif token is not None:
                    raise RequestError("the token is not valid", 403)
                elif not _same(request.cookies.get(name, ""), self.token):
                    reason = "open the URL that `covey view` printed; it has a token"
                    raise RequestError(reason, 403)
            except RequestError as error:
                await _error(error)(scope, receive, send_guarded)
                return
            await app(scope, receive, send_guarded)

        return guard

    def _accepts(self, token: str) -> bool:
        """Return whether the token of a URL is valid."""
        found = next((each for each in list(self._once) if _same(token, each)), None)
        self._once.discard(found or "")
        return found is not None or _same(token, self.token)

    def _answer(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return the endpoint of a function."""
        from starlette.responses import Response, StreamingResponse

        async def answer(request: Any) -> Any:
            in_thread = asyncio.get_running_loop().run_in_executor
            try:
                query = dict(request.query_params)
                if request.method == "POST":
                    query["body"] = await _read_body(request)
                first, rest = await in_thread(self._executor, self._call, function, query)
                if rest is None:
                    return Response(first.data, media_type=first.content_type)
                lines = self._lines(request, first, rest)
                return StreamingResponse(lines, media_type="application/x-ndjson")
            except Exception as error:
                return _error(error)

        return answer

    def _call(self, function: Callable[..., Any], query: Mapping[str, str]) -> tuple[Any, Any]:
        """Return the response of a function, or the first line of a stream and its iterator."""
        found = function(**arguments(function, self.session, query))
        if isinstance(found, Iterator):
            return self._next_line(found), found
        self.session.release_pages()
        if isinstance(found, media.Media):
            return found, None
        return media.Media(encode_json(found), "application/json"), None

    def _next_line(self, lines: Iterator[Any]) -> Any:
        found = next(lines, _END)
        self.session.release_pages()
        return _END if found is _END else encode_json(found)

    async def _lines(self, request: Any, line: Any, rest: Iterator[Any]) -> AsyncIterator[bytes]:
        in_thread = asyncio.get_running_loop().run_in_executor
        # A generator ends only where it yields.
        while line is not _END and not await request.is_disconnected():
            yield line
            try:
                line = await in_thread(self._executor, self._next_line, rest)
            except Exception as error:
                yield encode_json(_describe_error(error))
                return


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    try:
        if os.name == "posix":  # the port can be used again at once
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(128)
    except OverflowError:
        bound.close()
        raise DatasetError(
            option="port", found=port, allowed="an integer from 0 to 65535"
        ) from None
    except OSError as error:
        bound.close()
        raise DatasetError(
            f"cannot bind to {host}: {error.strerror or error}",
            option="port",
            found=port,
            allowed="a port that is not in use, or 0 for any",
        ) from error
    return bound


def _check_origin(request: Any) -> None:
    """Raise RequestError if a page of another site sends a request."""
    headers = request.headers
    own = f"http://{headers.get('host', '')}"
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
    # Browsers send cookies to all ports of a host. Other pages may only open this one.
    opens_page = request.method == "GET" and request.url.path == "/" and mode == "navigate"
    is_other = site not in ("same-origin", "none") and not opens_page
    if is_other or headers.get("origin", own) != own:
        raise RequestError("the request is from another site", 403)


async def _read_body(request: Any) -> str:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"the body is longer than {MAX_BODY_BYTES:,} bytes", 413)
    return body.decode(errors="replace")


def _send_file(data: bytes, kind: str) -> Callable[[Any], Any]:
    from starlette.responses import Response

    async def send(request: Any) -> Any:
        return Response(data, media_type=kind)

    return send


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
