"""HTTP and S3 servers on this machine, with a log of requests and injected faults."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler
from typing import Any

from covey.storage import errors


class QuietServer(ThreadingHTTPServer):
    """Does not log connections that clients close."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


@contextmanager
def serving(handler) -> Iterator[str]:
    """Run a server; yield its URL."""
    server = QuietServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def directory_server(directory):
    """Run Python's server of a directory, which lists files and ignores ranges."""
    return serving(partial(_QuietHandler, directory=str(directory)))


def tunnel(port):
    """Forward connections to a port of this machine, as ``ssh -L`` does."""

    class Forwarder(BaseRequestHandler):
        def handle(self):
            with socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=_copy, args=(server, self.request), daemon=True)
                back.start()
                _copy(self.request, server)
                back.join()

    return serving(Forwarder)


def _copy(source, target):
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Objects:
    """The files of a server of ranges, the requests that it received, and its faults."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.fault: Callable[[str, str, int], str] = lambda method, path, attempt: ""
        """Returns the fault of a response to a method, a path and an attempt: "" or a status;
        "mute" (no response), "drop" (the connection within the body), "short" (half the body),
        "shift" (the range by a byte), "whole" (the file instead of the range)."""
        self.has_length = True
        self.has_etag = True
        self.compresses = False
        self._times: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, wanted: str) -> str:
        with self._lock:
            self.asked.append((method, path, wanted))
            attempt = self._times[method, path, wanted]
            self._times[method, path, wanted] += 1
        return str(self.fault(method, path, attempt))

    def reads(self) -> list[str]:
        """Return the ranges that were read; "" for a whole file."""
        return [wanted for method, _, wanted in self.asked if method == "GET"]

    def handler(self) -> type[BaseHTTPRequestHandler]:
        objects = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_HEAD(self):
                self.answer(with_body=False)

            def do_GET(self):
                self.answer(with_body=True)

            def answer(self, with_body):
                wanted = self.headers.get("Range", "")
                fault = objects.ask(self.command, self.path, wanted)
                if fault in ("short", "shift") and not wanted:
                    fault = ""  # a whole response has no length but its own
                if fault == "mute":
                    self.close_connection = True
                    return
                data = objects.files.get(self.path.partition("?")[0])
                if data is None or fault.isdecimal():
                    self.send_response(404 if data is None else int(fault))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if objects.compresses and "gzip" in self.headers.get("Accept-Encoding", ""):
                    data = gzip.compress(data)
                etag, size = hashlib.md5(data).hexdigest(), len(data)
                begin, end = 0, size
                if wanted and "whole" not in fault:
                    begin, last = map(int, wanted.removeprefix("bytes=").split("-"))
                    end = min(last + 1, size)
                if fault == "shift":
                    begin, end = begin - 1, end - 1
                self.send_response(206 if (begin, end) != (0, size) else 200)
                if begin or end < size:
                    self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
                part = data[begin:end]
                if "short" in fault:
                    part = part[: len(part) // 2]
                if objects.has_length:
                    self.send_header("Content-Length", str(len(part)))
                else:
                    self.send_header("Connection", "close")
                if objects.has_etag:
                    self.send_header("ETag", f'"{etag}"')
                self.end_headers()
                if with_body:
                    self.wfile.write(part[: len(part) // 2] if "drop" in fault else part)
                if "drop" in fault or not objects.has_length:
                    self.close_connection = True

        return Handler


@contextmanager
def range_server() -> Iterator[tuple[str, Objects]]:
    """Run a server of ranges; yield its URL and its files."""
    objects = Objects()
    with serving(objects.handler()) as url:
        yield url, objects


class RequestLog:
    """A WSGI application that logs the requests of another one, and refuses some of them."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self.requests: list[tuple[str, str, str]] = []
        """Method, path, and range or source of a copy."""
        self.fault: Callable[[str, str], int] | None = None
        """Returns the status of the response to a method and a path; 0 to forward it."""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        wanted = environ.get("HTTP_RANGE") or environ.get("HTTP_X_AMZ_COPY_SOURCE", "")
        with self._lock:
            self.requests.append((method, path, wanted))
            status = 0 if self.fault is None else self.fault(method, path)
        if not status:
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(f"{status} Failed", [("Content-Length", "0")])
        return [b""]


@cache
def s3_session() -> Any:
    """Return a session that is created once per process, because that is slow."""
    from aiobotocore.session import AioSession

    class Session(AioSession):
        def __reduce__(self) -> tuple[Any, ...]:
            return s3_session, ()

    return Session()


@dataclass
class S3:
    """A running S3 server with one bucket."""

    options: dict[str, Any]
    """Storage options."""
    client: Any
    log: RequestLog


@contextmanager
def s3_bucket(bucket: str = "bucket") -> Iterator[S3]:
    """Run an S3 server with a bucket; yield it with a client of another library."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    log = server._server.app = RequestLog(server._server.app)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    options = {
        "key": "user",
        "secret": "nothing",
        "client_kwargs": {"endpoint_url": endpoint},
        "session": s3_session(),
    }
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="user",
        aws_secret_access_key="nothing",
        region_name="us-east-1",
    )
    try:
        client.create_bucket(Bucket=bucket)
        yield S3(options, client, log)
    finally:
        log.fault = None
        delete_bucket(client, bucket)
        client.close()
        server.stop()


def delete_bucket(client: Any, bucket: str) -> None:
    """Delete a bucket with its objects: all servers of a process have the same buckets."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        names = [{"Key": each["Key"]} for each in page.get("Contents", [])]
        if names:
            client.delete_objects(Bucket=bucket, Delete={"Objects": names})
    client.delete_bucket(Bucket=bucket)


def stand_alone(monkeypatch, tmp_path):
    """Remove settings of this machine, use a new cache, and retry without long waits."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "COVEY_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(errors, "BACKOFF_BASE_S", 0.002)
