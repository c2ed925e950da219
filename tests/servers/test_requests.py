"""Failed requests, retries, and sequential reads, with a server for HTTP and S3."""

import asyncio
import errno
import ssl
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler

import aiohttp
import pytest
from servers import range_server, s3_session, serving, stand_alone
from storages import content, memory_location, read_ranges, web_location

from covey.errors import (
    FileChangedError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.storage import open_storage
from covey.storage.driver import Driver
from covey.storage.errors import UnsupportedOperationError, classify
from covey.urls import Url


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


@pytest.fixture
def web():
    with range_server() as found:
        yield found


@pytest.fixture(params=["http", "s3"])
def faulty(request, web):
    """A file server with faults; it implements as much of S3 as reading needs."""
    url, objects = web
    if request.param == "http":
        return web_location(f"{url}/birds", objects)
    options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": url}}
    return web_location("s3://birds", objects, {**options, "session": s3_session()})


READ = {
    "read": lambda place: place.storage.read(place.at("x")),
    "stat": lambda place: place.storage.stat([place.at("x")]),
    "stream": lambda place: place.storage.open_stream(place.at("x")).read(),
    "cached": lambda place: read_ranges(place.storage.open_cached(place.at("x")), [(5, 9)]),
}
every_read = pytest.mark.parametrize("how", READ)


@pytest.mark.parametrize(
    ("faulty", "fault"),
    [
        (protocol, fault)
        for protocol in ("http", "s3")
        for fault in ("drop", "short", "shift", "500")
        # s3fs does not return the Content-Range: only checksums detect another range.
        if (protocol, fault) != ("s3", "shift")
    ],
    indirect=["faulty"],
)
def test_failed_ranges_are_retried(faulty, fault):
    data = content(2_000_000)
    faulty.put("x", data)
    faulty.objects.fault = lambda method, path, attempt: (
        fault if attempt < 3 and method == "GET" else ""
    )
    opened = faulty.storage.open_cached(faulty.at("x"))
    pairs = [(100_000, 100_009), (500_000, 900_000), (1_999_999, 2_000_000)]
    assert read_ranges(opened, pairs) == [data[begin:end] for begin, end in pairs]
    if fault != "shift":  # the stream begins at byte 0
        with faulty.storage.open_stream(faulty.at("x")) as stream:
            assert stream.read() == data


@every_read
def test_failed_operations_are_retried(faulty, how):
    faulty.put("x", content(100_000))
    faults = ["500", "503", "500", "429", ""]
    faulty.objects.fault = lambda method, path, attempt: faults[min(attempt, 4)]
    assert READ[how](faulty)


TIMEOUTS = {
    "http": {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.2)}},
    "s3": {"config_kwargs": {"read_timeout": 0.2}},
}


def test_timeout_of_a_driver(faulty):
    faulty.put("x", content(100_000))
    given, added = faulty.options, TIMEOUTS[faulty.root.partition(":")[0]]
    client = {**given.get("client_kwargs", {}), **added.get("client_kwargs", {})}
    end = threading.Event()

    def fault(method, path, attempt):
        if method == "GET" and attempt == 0:
            end.wait(300)
        return ""

    faulty.objects.fault = fault
    storage = open_storage(faulty.root, {**given, **added, "client_kwargs": client})
    assert storage.read(faulty.at("x")) == content(100_000)
    end.set()


def test_default_timeout():
    client = open_storage("http://host/x")._driver.filesystem.client_kwargs
    assert client["timeout"].sock_read > 0


def test_timeout_of_a_request():
    driver = Driver(Url.parse("asynchronous://x"), {})
    with pytest.raises(TimeoutError):
        driver.wait(asyncio.sleep, 60, timeout=0.05)


# aiohttp repeats a request by itself if the server closes the connection without a response.
@pytest.mark.parametrize(
    ("fault", "times", "reason"), [("503", 5, "503"), ("mute", 10, "Closed|Disconnected")]
)
@every_read
def test_number_of_attempts(faulty, how, fault, times, reason):
    faulty.put("x", content(100_000))
    faulty.objects.fault = lambda method, path, attempt: fault
    with pytest.raises(StorageError, match=f"failed 5 times.*({reason})") as caught:
        READ[how](faulty)
    assert type(caught.value) is StorageError
    assert caught.value.path == faulty.at("x")
    assert set(Counter(faulty.objects.asked).values()) == {times}


@every_read
def test_refused_and_missing_files_are_not_retried(faulty, how):
    if how != "stat":
        with pytest.raises(StorageNotFoundError) as caught:
            READ[how](faulty)
        assert caught.value.path == faulty.at("x")
        assert len(faulty.objects.asked) <= 2
    faulty.put("x", content(100_000))
    faulty.objects.fault = lambda method, path, attempt: "403"
    faulty.objects.asked.clear()
    with pytest.raises(StoragePermissionError, match="403") as caught:
        READ[how](faulty)
    assert caught.value.path == faulty.at("x")
    assert "storage_options=" in caught.value.remedy
    assert len(faulty.objects.asked) <= 2  # HTTP has two requests for the state of a file


def test_missing_credentials(web):
    storage = open_storage("s3://birds", {"client_kwargs": {"endpoint_url": web[0]}})
    with pytest.raises(StoragePermissionError) as caught:
        storage.read("s3://birds/x")
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy
    assert web[1].asked == []


def test_port_without_a_server():
    with range_server() as (url, _):
        pass
    with pytest.raises(StorageError, match=r"failed 5 times.*Connect"):
        open_storage(url).read(f"{url}/x")


def test_body_without_an_end():
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            for _ in range(64):
                self.wfile.write(bytes(1 << 20))
            complete.append(True)

    complete = []
    with serving(Handler) as url, pytest.raises(StorageError, match="at most 1,048,576"):
        open_storage(url).read(f"{url}/x", 1 << 20)
    assert not complete


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(), None),
        (OSError(errno.EBUSY, "SlowDown"), None),
        (TimeoutError(), None),
        (EOFError(), None),
        (StorageError("explained"), StorageError),
        (NotImplementedError(), UnsupportedOperationError),
        (KeyError("x"), StorageError),
        (IsADirectoryError(), StorageError),
        (FileNotFoundError(), StorageNotFoundError),
        (PermissionError(), StoragePermissionError),
        (FileChangedError(), FileChangedError),
        (ssl.SSLCertVerificationError(), StorageError),
        (type("RefreshError", (Exception,), {})(), StoragePermissionError),
        (type("ClientPayloadError", (Exception,), {})(), None),
        (type("HTTPError", (Exception,), {"code": 412})(), FileChangedError),
        (type("HTTPError", (Exception,), {"status": 502})(), None),
    ],
    ids=repr,
)
def test_classify(error, kind):
    assert classify(error) is kind


# Drivers.


def test_fsspec_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StorageError) as caught:
        open_storage("s3://b/x")
    assert (caught.value.path, caught.value.remedy) == ("s3://b/x", "pip install 'covey[remote]'")


def test_driver_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(StorageError) as caught:
        open_storage("gs://b/x")
    assert "install gcsfs" in caught.value.remedy


def test_unknown_protocol():
    with pytest.raises(StorageError, match=r"unknown protocol 'owl'; supported .*memory.*s3"):
        open_storage("owl://nest")


def test_invalid_storage_options():
    storage = open_storage("dir://x")
    with pytest.raises(StorageError, match=r"the storage options \[\] are not valid") as caught:
        storage.read("dir://x")
    assert caught.value.path == "dir://x"


# Sequential access.


def test_ranges_are_prefetched(web):
    url, objects = web
    objects.files["/x"] = content(12_000_000)
    sixth, in_time = threading.Event(), []

    def fault(method, path, attempt):
        if len(objects.reads()) == 6:
            sixth.set()
        if method == "GET" and len(objects.reads()) == 4:  # wait until two more are requested
            in_time.append(sixth.wait(300))
        return ""

    objects.fault = fault
    with open_storage(url).open_stream(f"{url}/x") as stream:
        assert stream.read() == objects.files["/x"]
    assert in_time == [True]


def test_seek_within_prefetched_ranges(web):
    url, objects = web
    objects.files["/x"] = content(12_000_000)
    with open_storage(url).open_stream(f"{url}/x") as stream:
        assert stream.read(1_000_000) == objects.files["/x"][:1_000_000]
        assert stream.seek(2_000_000) == 2_000_000
        assert stream.read(9) == objects.files["/x"][2_000_000:2_000_009]
    begins = sorted(int(wanted.split("=")[1].split("-")[0]) for wanted in objects.reads())
    assert begins[:4] == [0, 1 << 18, 3 << 18, 7 << 18]
    assert 2_000_000 not in begins


@pytest.mark.parametrize(("offset", "whence"), [(-1, 0), (-11, 2)])
def test_invalid_positions(offset, whence):
    place = memory_location()
    place.put("x", b"0123456789")
    with (
        place.storage.open_stream(place.at("x")) as stream,
        pytest.raises(ValueError, match=">= 0"),
    ):
        stream.raw.seek(offset, whence)
