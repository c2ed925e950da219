"""Real servers on this machine: one of S3, and ones of HTTP that behave as badly as is wanted."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

from moto.server import ThreadedMotoServer

from covey.storage import retry


class QuietServer(ThreadingHTTPServer):
    """Says nothing about clients that hang up."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


@contextmanager
def serving(handler) -> Iterator[str]:
    """The URL of a server, as long as it runs."""
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
    """Python's own server of a directory: it lists files, and ignores ranges."""
    return serving(partial(_QuietHandler, directory=str(directory)))


class Objects:
    """What a server of ranges has, what it was asked for, and how it misbehaves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.fault: Callable[[str, str, int], str] = lambda method, path, attempt: ""
        """The fault of an answer, by method, path, and how often just this was asked before: a
        status; "mute"; "drop" in the middle of the body; "short"; "shift", by a byte; "whole" in
        spite of a range."""
        self.has_length = True
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
        """The ranges that were read."""
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
                self.send_header("ETag", f'"{etag}"')
                self.end_headers()
                if with_body:
                    self.wfile.write(part[: len(part) // 2] if "drop" in fault else part)
                if "drop" in fault or not objects.has_length:
                    self.close_connection = True

        return Handler


@contextmanager
def range_server() -> Iterator[tuple[str, Objects]]:
    """A server of ranges, and what it has."""
    objects = Objects()
    with serving(objects.handler()) as url:
        yield url, objects


@contextmanager
def s3_server() -> Iterator[dict[str, object]]:
    """The storage options of a server of S3."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield {
            "key": "nobody",
            "secret": "nothing",
            "client_kwargs": {"endpoint_url": f"http://{host}:{port}"},
        }
    finally:
        server.stop()


def stand_alone(monkeypatch, tmp_path):
    """Nothing of this machine's settings, no waiting, and a cache of its own."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "COVEY_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(retry, "BACKOFF_BASE_S", 0.002)
