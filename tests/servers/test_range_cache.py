"""The cache of blocks of remote files, with an HTTP server."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import range_server, s3_session, stand_alone
from storages import content, memory_location, ranges, read_ranges

from covey.errors import ClosedError, StorageError
from covey.storage import open_storage
from covey.storage.cache import DiskCache, cache_directory, evict, stored_bytes
from covey.storage.range_cache import BLOCK_BYTES, fetched, prefetch

BLOCK = BLOCK_BYTES
NAMES = "abcd"


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


@pytest.fixture
def web():
    with range_server() as found:
        yield found


def open_all(web, names, size, **options):
    """Put files on a server, and open them."""
    url, objects = web
    storage = open_storage(url, **options)
    for name in names:
        objects.files[f"/{name}"] = content(size, seed=ord(name))
    return [storage.open_cached(f"{url}/{name}") for name in names]


def entries():
    return sorted(
        path for path in (cache_directory() / "blocks").iterdir() if path.suffix != ".map"
    )


def cached_bytes():
    return sum(stored_bytes(str(path)) for path in entries())


# Fetching.


@settings(max_examples=15)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 40 * BLOCK + 77), st.integers(0, 3 * BLOCK)),
        min_size=1,
        max_size=8,
    )
)
def test_fetch_ranges(tmp_path_factory, pairs):
    with pytest.MonkeyPatch.context() as patch, range_server() as web:
        stand_alone(patch, tmp_path_factory.mktemp("cache"))
        (opened,) = open_all(web, "a", 40 * BLOCK + 77)
        data = web[1].files["/a"]
        web[1].fault = lambda method, path, attempt: ["drop", "500", ""][min(attempt, 2)]
        pairs = [(begin, min(begin + size, len(data))) for begin, size in pairs]
        assert read_ranges(opened, pairs) == [data[begin:end] for begin, end in pairs]


def test_ranges_are_coalesced_and_split(web):
    (opened,) = open_all(web, "a", 100 * BLOCK)
    pairs = [(0, 1), (BLOCK, BLOCK + 1), (5 * BLOCK, 6 * BLOCK), (20 * BLOCK, 21 * BLOCK)]
    for _ in range(2):
        read_ranges(opened, pairs)
    assert sorted(web[1].reads()) == [
        f"bytes=0-{6 * BLOCK - 1}",
        f"bytes={20 * BLOCK}-{21 * BLOCK - 1}",
    ]
    # A range does not contain blocks that are present.
    read_ranges(opened, [(19 * BLOCK, 20 * BLOCK), (21 * BLOCK, 22 * BLOCK)])
    assert read_ranges(opened, [(0, 100 * BLOCK)]) == [web[1].files["/a"]]
    sizes = [size_of(wanted) for wanted in web[1].reads()]
    assert sum(sizes) == 100 * BLOCK
    assert max(sizes) == 32 * BLOCK


def size_of(wanted):
    first, last = map(int, wanted.removeprefix("bytes=").split("-"))
    return last + 1 - first


def test_threads_fetch_no_block_twice(web):
    """Also if they opened the file by different storages, and one of them only prefetches."""
    files = [open_all(web, "a", 64 * BLOCK)[0] for _ in range(3)]
    web[1].asked.clear()
    data = web[1].files["/a"]
    together = threading.Barrier(2, timeout=20)

    def fault(method, path, attempt):
        if len(web[1].reads()) < 3:  # until a second request is in flight
            together.wait()
        return ""

    web[1].fault = fault
    assert prefetch([(files[0], *ranges((0, 8 * BLOCK), (50 * BLOCK, 64 * BLOCK)))], 1) is None
    asked = prefetch([(files[0], *ranges((0, 8 * BLOCK), (50 * BLOCK, 64 * BLOCK)))], 64 * BLOCK)
    assert asked == 22 * BLOCK
    pairs = [(begin * BLOCK, (begin + 40) * BLOCK) for begin in (0, 10, 20, 24)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: read_ranges(files[n % 3], [pairs[n % 4]]), range(12)))
    assert found == [[data[slice(*pairs[n % 4])]] for n in range(12)]
    assert sum(map(size_of, web[1].reads())) == 64 * BLOCK
    assert prefetch([(files[1], *ranges((0, 64 * BLOCK)))], 64 * BLOCK) == 0


def test_files_are_fetched_concurrently_and_not_checked(web):
    files = open_all(web, NAMES, 20 * BLOCK)
    web[1].asked.clear()
    together = threading.Barrier(8, timeout=20)

    def fault(method, path, attempt):
        if method == "GET":
            together.wait()
        return ""

    web[1].fault = fault
    with fetched([(file, *ranges((1, BLOCK), (15 * BLOCK, 16 * BLOCK))) for file in files]):
        for name, file in zip(NAMES, files, strict=True):
            assert file.read_at(1, BLOCK) == web[1].files[f"/{name}"][1:BLOCK]
    assert {method for method, _, _ in web[1].asked} == {"GET"}


def test_closed_file():
    place = memory_location()
    place.put("x", b"0123456789")
    opened = place.storage.open_cached(place.at("x"))
    opened.close()
    with pytest.raises(ClosedError) as caught:
        read_ranges(opened, [(0, 1)])
    assert caught.value.path == place.at("x")


def test_files_without_a_version_are_removed_from_the_cache(web):
    web[1].has_etag = False
    (opened,) = open_all(web, "a", 10)
    read_ranges(opened, [(0, 10)])
    assert len(entries()) == 1
    opened.close()
    assert entries() == []


def test_entries_of_different_servers_differ(web):
    directories = set()
    with range_server() as other:
        for url, objects in (web, other, web):
            objects.files["/birds/x"] = content(100)
            options = {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": url}}
            options["session"] = s3_session()
            opened = open_storage("s3://birds", options).open_cached("s3://birds/x")
            directories.add(opened.path)
    assert len(directories) == 2


# Servers without ranges, or without sizes.


def test_server_ignores_ranges(web):
    (opened,) = open_all(web, "a", 50 * BLOCK + 3)
    data = web[1].files["/a"]
    faults = ["whole drop", "500", "whole"]
    web[1].fault = lambda method, path, attempt: faults[min(attempt, 2)]
    pairs = [(5, 9), (40 * BLOCK, 41 * BLOCK)]
    assert read_ranges(opened, pairs) == [data[begin:end] for begin, end in pairs]
    assert web[1].reads().count("") in (3, 4)  # aiohttp repeats a request on a closed connection
    asked = len(web[1].asked)
    assert read_ranges(opened, [(0, len(data))]) == [data]
    assert len(web[1].asked) == asked


def test_server_without_sizes(web):
    web[1].has_length = False
    with pytest.raises(StorageError, match="does not report the size"):
        open_all(web, "a", 200_000)


def test_server_compresses(web):
    web[1].compresses = True
    (opened,) = open_all(web, "a", 200_000)
    assert open_storage(web[0]).read(f"{web[0]}/a") == web[1].files["/a"]
    assert read_ranges(opened, [(5, 9)]) == [web[1].files["/a"][5:9]]


# Eviction.


def test_least_recently_used_entry_is_evicted(web):
    first, second, third = open_all(web, "abc", 3 * BLOCK, cache_bytes=8 * BLOCK)
    everything = [(0, 3 * BLOCK)]
    for opened in (first, second, first, third):
        read_ranges(opened, everything)
        assert cached_bytes() <= 8 * BLOCK
    assert len(web[1].reads()) == 3
    read_ranges(first, everything)
    assert len(web[1].reads()) == 3
    read_ranges(second, everything)
    assert len(web[1].reads()) == 4


def test_pinned_entry_is_not_evicted(web):
    first, second = open_all(web, "ab", 3 * BLOCK, cache_bytes=4 * BLOCK)
    everything = ranges((0, 3 * BLOCK))
    with fetched([(first, *everything)]):
        assert not evict(first.path)
        cache = DiskCache(4 * BLOCK)
        assert not cache.try_make_room(3 * BLOCK, {})
        with pytest.raises(StorageError, match="COVEY_CACHE_BYTES"):
            cache.make_room(3 * BLOCK, {})
        assert first.read_at(0, 3 * BLOCK) == web[1].files["/a"]
    read_ranges(second, [(0, 3 * BLOCK)])
    assert not os.path.exists(first.path)
    assert read_ranges(first, [(0, 3 * BLOCK)]) == [web[1].files["/a"]]


def test_wait_for_pinned_entries(web, monkeypatch):
    first, second = open_all(web, "ab", 3 * BLOCK, cache_bytes=4 * BLOCK)
    is_waiting, sleep, found = threading.Event(), time.sleep, []

    def wait(seconds):
        is_waiting.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", wait)
    thread = threading.Thread(target=lambda: found.extend(read_ranges(second, [(0, 3 * BLOCK)])))
    with fetched([(first, *ranges((0, 3 * BLOCK)))]):
        thread.start()
        assert is_waiting.wait(20)
    thread.join(20)
    assert found == [web[1].files["/b"]]


def test_pin_of_another_process(web):
    (opened,) = open_all(web, "a", 3 * BLOCK)
    read_ranges(opened, [(0, BLOCK)])
    code = """
import sys
from covey.storage.cache import open_pinned
open_pinned(sys.argv[1], 0)
print("pinned", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, opened.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"pinned\n"
        assert not evict(opened.path)
    assert evict(opened.path)


def test_file_larger_than_the_cache(web):
    (opened,) = open_all(web, "a", 64 * BLOCK, cache_bytes=8 * BLOCK)
    data = web[1].files["/a"]
    for block in np.random.default_rng(3).permutation(64).tolist():
        pair = (block * BLOCK, (block + 1) * BLOCK)
        assert read_ranges(opened, [pair]) == [data[slice(*pair)]]
        assert cached_bytes() <= 8 * BLOCK
    with pytest.raises(StorageError, match=r"589824 bytes.* 524288; raise .*COVEY_CACHE_BYTES"):
        read_ranges(opened, [(0, 9 * BLOCK)])
    assert prefetch([(opened, *ranges((0, 3 * BLOCK)))], 64 * BLOCK) is None
    read_ranges(opened, [(0, 8 * BLOCK)])


# Corruption.


def map_of(entry):
    return entry.with_name(f"{entry.name}.map")


CORRUPTIONS = {
    "size": lambda entry: os.truncate(entry, 5),
    "map": lambda entry: os.truncate(map_of(entry), 25),
    "magic": lambda entry: map_of(entry).write_bytes(b"\1" * 27),
    "missing": lambda entry: entry.unlink(),
    "missing map": lambda entry: map_of(entry).unlink(),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_corrupt_blocks_are_fetched_again(web, corrupt):
    read_ranges(open_all(web, "a", 3 * BLOCK)[0], [(0, 3 * BLOCK)])
    corrupt(entries()[0])
    (again,) = open_all(web, "a", 3 * BLOCK)
    assert read_ranges(again, [(0, 3 * BLOCK)]) == [web[1].files["/a"]]
    assert len(web[1].reads()) == 2


def test_discarded_blocks_are_fetched_again(web):
    (opened,) = open_all(web, "a", 3 * BLOCK)
    read_ranges(opened, [(0, 3 * BLOCK)])
    opened.discard(*ranges((BLOCK + 5, BLOCK + 9)))
    assert read_ranges(opened, [(0, 3 * BLOCK)]) == [web[1].files["/a"]]
    assert web[1].reads()[1:] == [f"bytes={BLOCK}-{2 * BLOCK - 1}"]


def test_removed_cache_directory(web):
    (opened,) = open_all(web, "a", 3 * BLOCK)
    with fetched([(opened, *ranges((0, BLOCK)))]):
        shutil.rmtree(cache_directory())
        assert opened.read_at(0, 9) == web[1].files["/a"][:9]
        assert read_ranges(opened, [(BLOCK, BLOCK + 9)]) == [web[1].files["/a"][BLOCK : BLOCK + 9]]
    assert read_ranges(opened, [(0, 9)]) == [web[1].files["/a"][:9]]


def test_full_disk(web, monkeypatch):
    (opened,) = open_all(web, "a", 3 * BLOCK)

    def pwrite(descriptor, data, offset):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StorageError, match=r"No space left.*COVEY_CACHE ") as caught:
        read_ranges(opened, [(0, BLOCK)])
    assert caught.value.path == str(cache_directory())


# Threads and processes.


def run_script(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)


def test_processes_share_the_cache(web):
    open_all(web, NAMES, 8 * BLOCK)
    code = """
import sys
from storages import content, open_storage, read_at_random

url, seed = sys.argv[1:]
storage = open_storage(url, cache_bytes=20 << 16)
files = [(storage.open_cached(f"{url}/{n}"), content(8 << 16, ord(n))) for n in "abcd"]
read_at_random(files, int(seed), 40)
"""
    processes = [run_script(code, web[0], str(seed)) for seed in range(2)]
    assert [process.wait() for process in processes] == [0, 0]


def test_forked_child(web):
    """A child sends its own requests; that of the parent waits until the child has sent one."""
    open_all(web, "a", 32 * BLOCK)
    third, is_requested = 12 * BLOCK, threading.Event()

    def fault(method, path, attempt):
        if web[1].asked[-1][2].startswith(f"bytes={third}-"):
            is_requested.set() if attempt else is_requested.wait(timeout=0.5)
        return ""

    web[1].fault = fault
    code = """
import os, sys
from covey.storage.cache import evict
from storages import content, fetched, open_storage, ranges, read_ranges

url, data = sys.argv[1], content(32 << 16, ord("a"))
storage = open_storage(url)
opened = storage.open_cached(f"{url}/a")
stream = storage.open_stream(f"{url}/a")

def check(begin, end):
    assert read_ranges(opened, [(begin, begin + 9)]) == [data[begin : begin + 9]]
    assert stream.read(end - begin) == data[begin:end]
    assert storage.exists(f"{url}/a")

check(0, 5 << 16)
with fetched([(opened, *ranges((0, 9)))]):
    child = os.fork()
    if not child:
        try:
            check(5 << 16, 13 << 16)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert opened.read_at(0, 9) == data[:9]
    assert not evict(opened.path)  # the child has not unlocked it
check(5 << 16, 13 << 16)
"""
    assert run_script(code, web[0]).wait(60) == 0
