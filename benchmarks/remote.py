"""Compare two builds of covey that read a dataset from a server: seconds, requests and bytes.

python -m benchmarks.remote OLD_PYTHON [NEW_PYTHON] [--protocol http s3] [--rounds 3]

Each argument is the interpreter of an environment with one build. The server is a process of its
own, waits 20 ms before each response, and counts. It serves files by HTTP, which is also what S3
needs for reading; moto copies an object of 168 MB for each range. Each case is a fresh process with
an empty cache. The dataset is one shard of 168 MB, written by the
first build: 200,000 x {784 bytes, int64 label} in 1,000 classes.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_DELAY_S = 0.02
_COUNTS = "/-counts"

# Runs in an environment: writes the dataset, or measures one case.
_PROGRAM = """
import json, sys, time
import numpy as np
import covey

case, path, options, threads = json.loads(sys.argv[1])
if case == "write":
    rng = np.random.default_rng(0)
    columns = {"image": rng.integers(0, 256, (200_000, 784), dtype=np.uint8),
               "label": rng.integers(0, 1000, 200_000)}
    features = {"image": covey.Tensor("uint8", (784,), encoding="bytes"), "label": "int64"}
    covey.write(columns, path, split="train", label="label", features=features, shards=1,
                progress=False)
    sys.exit()
if options:  # the import and the session of the driver are not measured
    from aiobotocore.session import AioSession
    import s3fs
    options["session"] = AioSession()
else:
    import fsspec.implementations.http
begin = time.perf_counter()
ds = covey.open(path, split="train", storage_options=options, progress=False)
if case == "first batch":
    for batch in ds.batches(32, 4, seed=1, threads=threads):
        break
elif case == "epoch":
    for batch in ds.batches(32, 4, seed=1, threads=threads):
        pass
elif case == "sequential":
    rows = sum(len(x) for x, *_ in ds.sequential(batch_size=128, threads=threads))
    assert rows == 200_000, rows
elif case == "half":
    for step, batch in enumerate(ds.sequential(batch_size=128, threads=threads)):
        if step == 800:
            break
print(json.dumps(time.perf_counter() - begin))
"""

_CASES = [
    ("open", None),
    ("first batch", None),
    *((case, threads) for case in ("epoch", "sequential") for threads in (1, 2, 16)),
]


class Counts(NamedTuple):
    """The requests that a server received, and the bytes that it sent."""

    requests: int
    bytes: int


class _Counter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts(0, 0)

    def add(self, size: int) -> None:
        time.sleep(_DELAY_S)
        with self._lock:
            self._counts = Counts(self._counts.requests + 1, self._counts.bytes + size)

    def take(self) -> bytes:
        with self._lock:
            found, self._counts = self._counts, Counts(0, 0)
        return json.dumps(found).encode()


def _serve(directory: str) -> None:
    """Serve a directory with ranges; print the port."""
    counter = _Counter()
    tags = {
        f"/{path.relative_to(directory)}": hashlib.md5(path.read_bytes()).hexdigest()
        for path in Path(directory).rglob("*")
        if path.is_file()
    }

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if self.path == _COUNTS:
                self._send(200, counter.take())
            elif self.path not in tags:
                counter.add(0)
                self._send(404, b"")
            else:
                with open(directory + self.path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    wanted = self.headers.get("Range")
                    begin, end = 0, size
                    if wanted:
                        first, last = wanted.removeprefix("bytes=").split("-")
                        begin, end = int(first), min(int(last) + 1, size)
                    body = os.pread(file.fileno(), end - begin, begin)
                counter.add(len(body) if self.command == "GET" else 0)
                headers = {"ETag": f'"{tags[self.path]}"'}
                if wanted:
                    headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
                self._send(206 if wanted else 200, body, headers)

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
            # One packet for the head and a short body.
            self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
            if self.command == "GET":
                self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: Any) -> None:
            """Do not log connections that clients close."""

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


class Server:
    """A server in a process of its own."""

    def __init__(self, protocol: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.path = f"{self.url}/birds" if protocol == "http" else "s3://birds"
        endpoint = {"client_kwargs": {"endpoint_url": self.url}}
        self.options = {} if protocol == "http" else {"key": "a", "secret": "b", **endpoint}

    def take_counts(self) -> Counts:
        """Return the counts since the last call."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc)
        connection.request("GET", _COUNTS)
        return Counts(*json.loads(connection.getresponse().read()))


@contextmanager
def _served(protocol: str, directory: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "benchmarks.remote", "--serve", directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(protocol, int(process.stdout.readline()))
        finally:
            process.kill()


def _ask(python: str, *command: object) -> str:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "COVEY_CACHE": cache}
        arguments = [python, "-P", "-c", _PROGRAM, json.dumps(command)]
        return subprocess.run(
            arguments, env=environment, check=True, stdout=subprocess.PIPE, text=True, cwd="/"
        ).stdout


def _measure(server: Server, python: str, case: str, threads: int | None) -> tuple[float, Counts]:
    server.take_counts()
    seconds = float(_ask(python, case, server.path, server.options, threads))
    return seconds, server.take_counts()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?")
    parser.add_argument("new", nargs="?", default=sys.executable)
    parser.add_argument("--protocol", nargs="+", default=["http", "s3"], choices=["http", "s3"])
    parser.add_argument("--cases", nargs="+", default=sorted({case for case, _ in _CASES}))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve")
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve)
        return
    # Not resolved: the interpreter of an environment is a link.
    pythons = [os.path.abspath(each) for each in (options.old, options.new) if each]
    with tempfile.TemporaryDirectory() as directory:
        _ask(pythons[0], "write", f"{directory}/birds", None, None)
        (shard,) = Path(directory, "birds").glob("*.tfrecord*-of-00001")
        print(f"one shard of {shard.stat().st_size / 1e6:.0f} MB")
        print("| | threads | " + " | ".join("s | requests | MB" for _ in pythons) + " |")
        print("|---" * (2 + 3 * len(pythons)) + "|")
        for protocol in options.protocol:
            with _served(protocol, directory) as server:
                for case, threads in _CASES:
                    if case in options.cases:
                        found = _in_turn(server, pythons, case, threads, options.rounds)
                        cells = " | ".join(found)
                        name = f"{protocol}, {case}"
                        print(f"| {name} | {threads or 'default'} | {cells} |", flush=True)


def _in_turn(
    server: Server, pythons: list[str], case: str, threads: int | None, rounds: int
) -> list[str]:
    """Return the medians of each build, run in turn."""
    found: list[list[tuple[float, Counts]]] = [[] for _ in pythons]
    for _ in range(rounds):
        for results, python in zip(found, pythons, strict=True):
            results.append(_measure(server, python, case, threads))
    return [
        f"{statistics.median(seconds for seconds, _ in results):.2f} | "
        f"{statistics.median(counts.requests for _, counts in results):.0f} | "
        f"{statistics.median(counts.bytes for _, counts in results) / 1e6:.1f}"
        for results in found
    ]


if __name__ == "__main__":
    main()
