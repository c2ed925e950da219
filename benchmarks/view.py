"""The server and the page of `covey view` at 10 million records, and at one million classes.

    python -m benchmarks.view [--records 10000000] [--classes 1000000] [--rounds 7] [--no-browser]

The server is a process of its own, started as by a user; its memory is sampled over the whole
session, which requests every kind of data that the page shows except embeddings. The page is loaded
by a headless chromium, with an empty cache each time. The datasets are written once.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

import covey
from benchmarks.data import FOLDER
from benchmarks.measure import Table, machine

SIDE = 8
LAST_STEP = 10**12
SAMPLE_S = 0.01
RECORD_BYTES = 200
"""More than the bytes of a record with its frame and its index row."""

# Chromium as in the tests of the page: no request leaves the machine.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,800",
)

# Notes when an element first exists, in milliseconds since the navigation.
OBSERVER = """
window.seen = {};
const selectors = {
  usable: "#tabs a[aria-current] ~ a, #tabs a ~ a[aria-current]",
  content: ".view table tbody tr, .view .grid-cell, .view .card, .view img",
  ready: "html[data-state=ready]",
};
new MutationObserver(() => {
  for (const [name, selector] of Object.entries(selectors)) {
    if (!(name in window.seen) && document.querySelector(selector)) {
      window.seen[name] = performance.now();
    }
  }
}).observe(document, {subtree: true, childList: true, attributes: true});
"""


# Datasets.


def write_records(records: int) -> Path:
    """Write the dataset of many records, if it is not there yet."""
    rng = np.random.default_rng(0)
    names = tuple(f"class {number:04d}" for number in range(1000))

    def columns() -> dict[str, Any]:
        weight = rng.random(records, np.float32)
        weight[:: records // 10 or 1] = np.nan
        return {
            "image": rng.integers(0, 256, (records, SIDE, SIDE), np.uint8),
            "weight": weight,
            "label": rng.integers(0, len(names), records),
        }

    features = {
        "image": covey.Tensor("uint8", (SIDE, SIDE), encoding="bytes"),
        "weight": "float32",
        "label": covey.ClassLabel(names=names),
    }
    return write(FOLDER / f"view-{records}", records, columns, features)


def write_classes(classes: int) -> Path:
    """Write the dataset of many classes, with two records of each."""

    def columns() -> dict[str, Any]:
        label = np.repeat(np.arange(classes), 2)
        return {"x": np.arange(len(label), dtype=np.int32), "label": label}

    names = tuple(f"species {number:07d}" for number in range(classes))
    features = {"x": "int32", "label": covey.ClassLabel(names=names)}
    return write(FOLDER / f"view-{classes}-classes", 2 * classes, columns, features)


def write(
    path: Path, records: int, columns: Callable[[], dict[str, Any]], features: dict[str, Any]
) -> Path:
    if path.exists():
        return path
    FOLDER.mkdir(exist_ok=True)
    free = shutil.disk_usage(FOLDER).free
    if records * RECORD_BYTES > free:
        sys.exit(f"{path} needs {records * RECORD_BYTES:,} bytes; {free:,} are free")
    covey.write(columns(), path, split="train", label="label", features=features, progress=False)
    return path


# The server.


class Server:
    """A running `covey view`, and the peak of its memory.

    Args:
        path: The dataset.
    """

    def __init__(self, path: Path) -> None:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "covey", "view", str(path), "--no-browser", "-q"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.peaks = {"RssAnon": 0, "VmRSS": 0}
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.started_s = time.perf_counter() - begin
        found = urlsplit(self.url)
        self.connection = http.client.HTTPConnection(str(found.hostname), found.port)
        response, _ = self.get(f"/?{found.query}")
        self.cookie = str(response.getheader("Set-Cookie")).partition(";")[0]
        self.get("/")
        self.page_s = time.perf_counter() - begin
        self.ask("overview")
        self.overview_s = time.perf_counter() - begin

    cookie = ""

    def get(self, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        """Return the response to a GET request, and its body."""
        self.connection.request("GET", path, headers={"Cookie": self.cookie, **headers})
        response = self.connection.getresponse()
        return response, response.read()

    def ask(self, name: str, **parameters: object) -> bytes:
        """Return the body of a response of the API, which must succeed."""
        response, body = self.get(f"/api/{name}?{urlencode(parameters)}")
        if response.status != http.client.OK:
            raise SystemExit(f"/api/{name}: {response.status}: {body[:300]!r}")
        return body

    def first_line(self, name: str, **parameters: object) -> bytes:
        """Return the first line of a stream, whose connection is closed."""
        connection = http.client.HTTPConnection(self.connection.host, self.connection.port)
        with contextlib.closing(connection):
            headers = {"Cookie": self.cookie}
            connection.request("GET", f"/api/{name}?{urlencode(parameters)}", headers=headers)
            return connection.getresponse().readline()

    def memory(self) -> dict[str, int]:
        """Return the memory of the process in bytes: anonymous, and with mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(status.partition(f"{name}:")[2].split()[0]) << 10 for name in self.peaks}

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            try:
                found = self.memory()
            except (OSError, IndexError):  # the process ends
                return
            for name, size in found.items():
                self.peaks[name] = max(self.peaks[name], size)

    def close(self) -> None:
        self._done.set()
        self._sampler.join()
        self.connection.close()
        self.process.terminate()
        self.process.wait()


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    server = Server(path)
    try:
        yield server
    finally:
        server.close()


# Measurement.


def latencies(count: int, action: Callable[[int], object]) -> str:
    """Return median and 95th percentile of calls in milliseconds."""
    times = []
    for number in range(count):
        begin = time.perf_counter()
        action(number)
        times.append((time.perf_counter() - begin) * 1000)
    return f"{statistics.median(times):.1f} | {float(np.quantile(times, 0.95)):.1f}"


def measure_requests(server: Server, records: int, count: int) -> None:
    """Print the latencies of requests."""
    rng = np.random.default_rng(1)
    table = Table("Requests", ["request", "median, ms", "p95, ms"])
    table.begin()

    def add(name: str, action: Callable[[int], object], times: int = count) -> None:
        table.add(name, *latencies(times, action).split(" | "))

    def numbers(high: int) -> list[int]:
        return [int(each) for each in rng.integers(0, high, count)]

    ids = numbers(records)
    steps = numbers(LAST_STEP)
    add("/api/overview", lambda _: server.ask("overview"))
    add("/api/classes, 1,000 classes", lambda _: server.ask("classes"))
    add("/api/survey", lambda _: server.ask("survey"), 1)
    for classes, examples in ((8, 4), (32, 4), (256, 8)):
        plan = {"classes_per_batch": classes, "examples_per_class": examples, "seed": 7}
        title = f"/api/batch, {classes} x {examples}"

        def batch(number: int, plan: dict[str, int] = plan) -> None:
            server.ask("batch", **plan, step=steps[number])

        add(f"{title}, the first", batch, 1)
        add(f"{title}, steps to 10^12", batch)
    plan = {"classes_per_batch": 32, "examples_per_class": 4, "seed": 7}
    add("/api/batch, 8 ranks", lambda n: server.ask("batch", **plan, step=steps[n], world_size=8))
    add("/api/batch/x, 32 x 4", lambda n: server.ask("batch/x", **plan, step=steps[n], rank=0), 20)
    add("/api/coverage", lambda n: server.ask("coverage", **plan, step=steps[n]), 3)
    add("/api/find, 200 ids anywhere", lambda n: server.ask("find", cursor=ids[n], limit=200))
    add("/api/find, a class", lambda n: server.ask("find", **{"class": ids[n] % 1000}))
    search = {"where": json.dumps([["weight", "nan", None]])}
    add("/api/find, the first line of a search", lambda _: server.first_line("find", **search), 10)
    begin = time.perf_counter()
    lines = server.ask("find", **search).splitlines()
    searched = time.perf_counter() - begin
    listed = [",".join(map(str, each)) for each in rng.integers(0, records, (count, 50)).tolist()]
    add("/api/examples, 50 examples", lambda n: server.ask("examples", ids=listed[n]))
    add(
        "/api/image",
        lambda n: server.ask("image", id=ids[n], feature="image", side=96),
    )
    scanned = json.loads(lines[-1])["scanned"]
    print(f"\nsearched {scanned:,} records in {searched:.1f} s, in {len(lines):,} lines")


def milliseconds(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0f}" if known else "-"


def measure_page(server: Server, targets: list[str], rounds: int) -> None:
    """Print when a page is painted and usable, in a browser with an empty cache."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for each in FLAGS:
        options.add_argument(each)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    table = Table(
        "Page",
        ["page", "first contentful paint, ms", "usable, ms", "first content, ms", "complete, ms"],
    )
    table.begin()
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OBSERVER})
        wait = WebDriverWait(driver, 60, poll_frequency=0.02)
        ready = "return document.documentElement.dataset.state === 'ready'"
        driver.get(server.url)
        wait.until(lambda _: driver.execute_script(ready))
        origin = server.url.partition("?")[0]
        for target in targets:
            found: dict[str, list[float | None]] = {
                name: [] for name in ("paint", "usable", "content", "ready")
            }
            for _ in range(rounds):
                driver.get("about:blank")
                driver.execute_cdp_cmd("Network.clearBrowserCache", {})
                driver.get(f"{origin}{target}")
                wait.until(lambda _: driver.execute_script(ready))
                seen = driver.execute_script("""
                    const paint = performance.getEntriesByName("first-contentful-paint")[0];
                    return {...window.seen, paint: paint?.startTime ?? null};
                """)
                for name in found:
                    found[name].append(seen.get(name))
            table.add(f"`{target}`", *map(milliseconds, found.values()))
        print(f"\n{driver.capabilities['browserName']} {driver.capabilities['browserVersion']}")
    finally:
        driver.quit()


def report_start(server: Server) -> None:
    table = Table("Start", ["from the start of `covey view` to", "seconds"])
    table.begin()
    table.add("the URL is printed", f"{server.started_s:.2f}")
    table.add("the response of the page", f"{server.page_s:.2f}")
    table.add("the response of /api/overview", f"{server.overview_s:.2f}")


def report_memory(server: Server) -> None:
    anonymous, resident = (server.peaks[name] / 1e6 for name in ("RssAnon", "VmRSS"))
    print(
        f"\npeak memory of the server: {anonymous:.0f} MB anonymous, {resident:.0f} MB resident "
        "with pages of mapped files",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=200, help="of each kind")
    parser.add_argument("--rounds", type=int, default=7, help="loads of each page")
    parser.add_argument("--no-browser", action="store_true", help="measure the server only")
    options = parser.parse_args()
    path = write_records(options.records)
    many = write_classes(options.classes)
    print(f"{machine()}, covey {covey.__version__}, numpy {np.__version__}", flush=True)
    print(f"\n{options.records:,} records, 1,000 classes")
    with serving(path) as server:
        report_start(server)
        if not options.no_browser:
            views = ["#/", "#/classes", "#/examples", "#/batches", f"#/batches?step={LAST_STEP}"]
            measure_page(server, views, options.rounds)
        report_memory(server)
        measure_requests(server, options.records, options.requests)
        report_memory(server)
    print(f"\n{2 * options.classes:,} records, {options.classes:,} classes")
    with serving(many) as server:
        report_start(server)
        size = len(server.ask("classes"))
        table = Table("Requests", ["request", "median, ms", "p95, ms"])
        table.begin()
        title = f"/api/classes, {size / 1e6:.0f} MB"
        table.add(title, *latencies(10, lambda _: server.ask("classes")).split(" | "))
        plan = {"classes_per_batch": 32, "examples_per_class": 2}
        steps = np.random.default_rng(1).integers(0, LAST_STEP, options.requests).tolist()
        batches = latencies(options.requests, lambda n: server.ask("batch", **plan, step=steps[n]))
        table.add("/api/batch, 32 x 2", *batches.split(" | "))
        if not options.no_browser:
            measure_page(server, ["#/", "#/classes", "#/batches"], options.rounds)
        report_memory(server)


if __name__ == "__main__":
    main()
