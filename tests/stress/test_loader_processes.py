"""Loaders and their threads: how they end and what they leave; other processes; what goes wrong."""

import gc
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from loaded import (
    COUNT,
    batch_of,
    copied,
    digest,
    make,
    make_numbers,
    native_threads,
    numbers_of,
    resident,
    same,
    settles,
)
from opened import opened
from written import fresh_process, index, shard_paths, write

from covey import Tensor, _core
from covey.errors import ClosedError, CorruptRecordError, FileChangedError, FormatError
from covey.index.format import content_checksum

# Read by the native core, by Python, and by Python because of a hook.
KINDS = ["numbers", "gzip", "hooked"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("loader")
    for kind in KINDS:
        make(directory / kind, "gzip" if kind == "gzip" else "numbers")
    return directory


def load(directory, kind, **options):
    """A loader of batches, the same ones of all kinds."""
    hooks = {"batch_transform": pair} if kind == "hooked" else {}
    return opened(directory / kind).batches(4, 2, seed=9, **hooks, **options)


def pair(x, y):
    return x, y


def digests(loop):
    return [digest(batch) for batch in loop]


# The end of a loop is the end of its threads. Some of these keep what must not keep them.


def leave_by_break(loader):
    for _ in loader:
        break


def leave_by_exception(loader):
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018


def leave_by_closing(loader):
    loop = loader.take(1000)
    next(loop)
    loader.close()
    return loop


def leave_by_seeking(loader):
    loop = loader.take(1000)
    next(loop)
    loader.seek(3)
    return loop


def leave_by_another_loop(loader):
    loop = loader.take(1000)
    next(loop)
    return loop, loader.take(10)


def leave_by_forgetting(loader):
    loop = loader.take(1000)
    next(loop)


def leave_a_cycle(loader):
    cycle = [loader.take(1000)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()


def leave_at_the_end(loader):
    loop = loader.take(5)
    assert len(list(loop)) == 5
    return loop


def leave_before_the_first(loader):
    return loader.take(1000)


LEAVE = [leave_by_break, leave_by_exception, leave_by_closing, leave_by_seeking,
         leave_by_another_loop, leave_by_forgetting, leave_a_cycle, leave_at_the_end,
         leave_before_the_first]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leave", LEAVE)
def test_leaving_a_loop_ends_its_threads(directory, kind, leave):
    loader = load(directory, kind, threads=3)
    python, native = threading.active_count(), native_threads()
    kept = leave(loader)
    assert settles(threading.active_count, python)
    assert settles(native_threads, native)
    del kept


def test_a_loop_that_the_garbage_collector_finds_in_its_own_thread(directory):
    inside, forgotten, collected = (threading.Event() for _ in range(3))

    def collect(x, y):
        if numbers_of(x) != first:
            inside.set()
            assert forgotten.wait(20)
            gc.collect()
            collected.set()
        return x, y

    loader = opened(directory / "numbers").batches(4, 2, threads=1, batch_transform=collect)
    first = loader.plan.batch(0).tolist()
    before = threading.active_count()
    gc.disable()
    try:
        cycle = [loader.take(1000)]
        next(cycle[0])
        assert inside.wait(20)  # the thread is at the second batch
        cycle.append(cycle)
        del cycle
        forgotten.set()
        assert collected.wait(20)
    finally:
        gc.enable()
    assert settles(threading.active_count, before)


def test_leaving_waits_for_an_example_and_not_for_a_batch(directory):
    seen, size = 0, 3000

    def count(example):
        nonlocal seen
        seen += 1
        if seen > size:
            behind.set()
            time.sleep(0.001)
        return example

    behind = threading.Event()
    ds = opened(directory / "numbers")
    loader = ds.shuffled(size, remainder="fill", threads=1, prefetch=1, transform=count)
    for _ in loader.take(10):
        assert behind.wait(20)  # the thread is at the second batch
        break
    assert seen < 2 * size


# Nothing leaks.

WIDE = {"x": Tensor("float32", (1024,)), "label": "int64"}


def make_wide(directory):
    """Batches of 64 KiB: whatever keeps one for every step or loop is seen."""
    columns = {"x": np.zeros((64, 1024), np.float32), "label": np.arange(64) % 8}
    write(columns, directory, features=WIDE, label="label", shuffle=False)
    return opened(directory)


def iterate(directory, options, steps, loops):
    """How many bytes and threads there are more after so many steps, and after so many loops."""
    ds = opened(directory)
    loader = ds.batches(8, 2, threads=2, **options)
    threads = native_threads()

    def grown(work):
        work(300)
        gc.collect()
        before = resident()
        work(steps if work is one_loop else loops)
        gc.collect()
        return resident() - before, settles(native_threads, threads)

    def one_loop(count):
        assert sum(1 for _ in loader.take(count)) == count

    def many_loops(count):
        for _ in range(count):
            for _ in loader.take(1000):
                break

    return grown(one_loop), grown(many_loops)


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 10_000), ({"reuse_buffers": True}, 10_000), ({"batch_transform": pair}, 10_000)],
    ids=[False, True, "hooked"],
)
def test_nothing_leaks(tmp_path, options, steps):
    make_wide(tmp_path / "set")
    with fresh_process() as run:
        for size, threads_are_back in run(iterate, tmp_path / "set", options, steps, 300):
            assert size < 8 << 20
            assert threads_are_back


# The end of the interpreter, in the middle of a loop.

EXITS = {
    "a loop that is left where it is": """
        loop = ds.batches(4, 2, threads=3).take(10**6)
        next(loop)
    """,
    "a loop of hooks": """
        loop = ds.batches(4, 2, threads=3, transform=dict).take(10**6)
        next(loop)
    """,
    "hooks that would take an hour": """
        def slow(example):
            time.sleep(0.1)
            return example
        loop = ds.batches(4, 2, threads=2, prefetch=5000, transform=slow).take(10**6)
        next(loop)
    """,
    "within the loop": """
        for x, y in ds.batches(4, 2, threads=3):
            sys.exit()
    """,
    "in a cycle": """
        cycle = [ds.batches(4, 2, threads=3).take(10**6)]
        cycle.append(cycle)
        next(cycle[0])
    """,
    "batches that are kept": """
        kept = list(ds.batches(4, 2, threads=3))
    """,
    "daemon threads that go on": """
        def go_on(**options):
            for _ in ds.batches(4, 2, **options).take(10**12):
                started.release()
        started = threading.Semaphore(0)
        for options in ({"threads": 2}, {"threads": 0}, {"threads": 1, "prefetch": 1}):
            threading.Thread(target=go_on, kwargs=options, daemon=True).start()
        for _ in range(300):
            assert started.acquire(timeout=20)
    """,
    "daemon threads that share a loop": """
        def go_on():
            for _ in loop:
                started.release()
        started = threading.Semaphore(0)
        loop = ds.batches(4, 2, threads=2).take(10**12)
        for _ in range(3):
            threading.Thread(target=go_on, daemon=True).start()
        for _ in range(300):
            assert started.acquire(timeout=20)
    """,
    "what is done at exit": """
        # It was registered before covey was imported, and so comes after what covey does.
        loader = ds.batches(4, 2, threads=2)
        loop = loader.take(10**6)
        next(loop)
        def last():
            try:
                for _ in range(100):
                    next(loop)
            except covey.errors.ClosedError:
                pass
            assert len(list(loader.take(20))) == 20
            print("done")
    """,
    "in a forked child": """
        loop = ds.batches(4, 2, threads=3).take(10**6)
        hooked = ds.batches(4, 2, threads=3, transform=dict).take(10**6)
        next(loop), next(hooked)
        child = os.fork()
        next(loop), next(hooked)
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
}
PRELUDE = """
import atexit, os, sys, threading, time
threading.excepthook = print  # what a daemon thread says at the end
last = lambda: None
atexit.register(lambda: last())
import covey
ds = covey.open(sys.argv[1], progress=False)
"""


@pytest.mark.parametrize("name", EXITS)
def test_the_interpreter_ends_in_the_middle_of_a_loop(directory, name):
    script = PRELUDE + textwrap.dedent(EXITS[name])
    path = str(directory / "numbers")
    run = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert ("done" in run.stdout) == ("at exit" in name)


# What goes wrong is heard of in its turn, with its place.


@pytest.fixture
def copy(directory, tmp_path):
    """A dataset that may be corrupt."""
    shutil.copytree(directory / "numbers", tmp_path / "numbers")
    return tmp_path / "numbers"


WAYS = [{"threads": 0}, {"threads": 1, "prefetch": 1}, {"threads": 3, "prefetch": 20},
        {"threads": 3, "batch_transform": pair}, {"threads": 0, "batch_transform": pair},
        {"threads": 2, "as_dict": True, "batch_transform": dict}]  # fmt: skip


def run_into(loader, error, match):
    """How many batches there are before an error; the same again if one goes on."""
    before = 0
    with pytest.raises(error, match=match):
        for _ in loader:
            before += 1
    step = loader.step
    with pytest.raises(error, match=match):
        next(iter(loader))
    assert loader.step == step
    return before


@pytest.mark.parametrize("options", WAYS)
def test_a_damaged_record(copy, options):
    row, path = index(copy)[123], shard_paths(copy)[index(copy)[123]["shard"]]
    os.utime(path, (1e9, 1e9))
    ds = opened(copy)
    ds[:]  # all shards are open
    with open(path, "r+b") as file:
        file.seek(int(row["offset"]) + 20)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(path, (1e9, 1e9))  # as if a disk had lost a bit: the file was not written to
    loader = ds.shuffled(10, seed=3, **options)
    (step,) = (step for step in range(18) if 123 in loader.plan.batch(step))
    within = 123 - int((index(copy)["shard"] < row["shard"]).sum())
    assert step > 4
    place = rf"{path.name}: record {within} at byte {row['offset']}"
    assert run_into(loader, CorruptRecordError, place) == step
    loader.seek(step + 1)
    assert len(list(loader)) == 18 - step - 1
    again = next(n for n in range(18) if 123 in loader.plan.batch(18 + n))
    assert run_into(loader, CorruptRecordError, place) == again


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("used", [False, True])
def test_a_shard_that_is_gone(copy, options, used):
    ds = opened(copy)
    first = index(copy)["shard"].tolist().index(2)  # of five shards
    if used:
        ds[:first]
    shard_paths(copy)[2].unlink()
    loader = ds.sequential(9, **options)
    assert run_into(loader, FileChangedError, shard_paths(copy)[2].name) == first // 9
    loader.seek(-(-index(copy)["shard"].tolist().index(3) // 9))
    assert len(list(loader)) > 5
    # Near to what is gone, from the other side.
    loader.seek(first // 9 - 1)
    assert run_into(loader, FileChangedError, "missing") == 1


@pytest.mark.parametrize("options", WAYS)
def test_a_shard_that_is_cut_under_a_loop(copy, options):
    ds = opened(copy)
    ds[:]
    shards = index(copy)["shard"].tolist()
    loader = ds.sequential(4, **{**options, "prefetch": 2})
    first = shards.index(3) // 4
    with pytest.raises(FileChangedError) as caught:
        for _ in loader:
            if loader.step == 5:
                os.truncate(shard_paths(copy)[3], 100)
    assert caught.value.path == str(shard_paths(copy)[3])
    assert loader.step == first
    loader.seek(-(-shards.index(4) // 4))
    assert sum(1 for _ in loader) > 3


@pytest.mark.parametrize("options", WAYS)
def test_an_index_that_has_records_in_the_wrong_class(copy, options):
    path = copy / "numbers-train.by_class.npy"
    by_class = np.load(path)
    by_class[[0, -1]] = by_class[[-1, 0]]
    for wrong in (by_class, np.where(np.arange(COUNT) == 0, COUNT, by_class)):
        np.save(path, wrong.astype(by_class.dtype))
        forge(copy / "numbers-train.index.json", wrong.astype(by_class.dtype))
        ds = opened(copy)
        loader = ds.batches(4, 2, **options)
        plan, before = loader.plan, 0
        with pytest.raises(FormatError, match="covey index"):
            for _ in loader.take(200):
                before += 1
        for step in range(before + 1):
            ids = plan.batch(step)
            sound = (ids < COUNT).all() and (ds.labels[ids] == plan.classes(step).repeat(2)).all()
            assert sound == (step < before)


def forge(about, by_class):
    """Make the checksums of an index fit."""
    content = json.loads(about.read_text())
    content["class_checksums"][1] = _core.crc32c(by_class)
    del content["content_checksum"]
    content["content_checksum"] = content_checksum(content)
    about.write_text(json.dumps(content))


def test_a_dataset_that_is_closed_under_a_loop(directory):
    for kind, threads in itertools.product(KINDS, (0, 2)):
        ds, again = opened(directory / kind), opened(directory / kind)
        hooks = {"batch_transform": pair} if kind == "hooked" else {}
        loader = ds.batches(4, 2, threads=threads, **hooks)
        plan, loop = loader.plan, loader.take(50)
        next(loop)
        ds.close()
        found = []
        with suppress(ClosedError):
            for batch in loop:
                found.append(copied(batch))
        assert all(same(each, batch_of(again, plan.batch(1 + n))) for n, each in enumerate(found))
        with pytest.raises(ClosedError, match="open it again"):
            next(iter(loader))


# Signals.


@pytest.fixture
def on_signal():
    """Has SIGUSR1 do something in the main thread; returns what sends it there."""
    before = signal.getsignal(signal.SIGUSR1)

    def prepare(action):
        signal.signal(signal.SIGUSR1, lambda *_: action())
        return lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    yield prepare
    signal.signal(signal.SIGUSR1, before)


class Waiting:
    """A hook that waits until a signal was handled."""

    def __init__(self, on_signal, action):
        self._action = action
        self._door = threading.Lock()  # which a signal handler may open
        self._door.acquire()
        self._inside, self._handled = threading.Event(), False
        self._send = on_signal(self._handle)
        self._sender = threading.Thread(target=self._send_until_it_is_handled)

    def __enter__(self):
        self._sender.start()
        return self

    def __exit__(self, *_):
        self._sender.join()

    def __call__(self, example):
        self._inside.set()
        assert self._door.acquire(timeout=20)
        self._door.release()
        return example

    def _send_until_it_is_handled(self):
        assert self._inside.wait(20)
        while not self._handled:  # one that comes just before a wait does not end it
            self._send()
            time.sleep(0.002)

    def _handle(self):
        if not self._handled:
            self._handled = True
            self._door.release()
            self._action()


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_interrupt_during_a_wait(directory, on_signal, threads):
    ds = opened(directory / "numbers")
    python = threading.active_count()
    with Waiting(on_signal, interrupt) as hook:
        loader = ds.sequential(9, threads=threads, transform=hook)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    assert settles(threading.active_count, python)
    assert loader.step == 0
    # Nothing is lost.
    assert [number for x, _ in loader for number in numbers_of(x)] == list(range(COUNT))


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("end", ["close", "seek", "load_state_dict", "take"])
def test_a_signal_handler_may_end_the_loop(directory, on_signal, threads, end):
    ends = {
        "close": lambda: loader.close(),
        "seek": lambda: loader.seek(5),
        "load_state_dict": lambda: loader.load_state_dict({**loader.state_dict(), "batch": 5}),
        "take": lambda: loader.take(3),
    }
    ds = opened(directory / "numbers")
    with Waiting(on_signal, ends[end]) as hook:
        loader = ds.sequential(9, remainder="fill", threads=threads, transform=hook)
        with pytest.raises(ClosedError):
            list(loader)
    step = 5 if end in ("seek", "load_state_dict") else 0
    assert loader.step == step
    assert len(list(loader)) == 20 - step


def test_interrupts_of_the_native_wait(directory, on_signal):
    send = on_signal(interrupt)
    ds = opened(directory / "numbers")
    for threads in (0, 1, 2):
        loader = ds.batches(4, 2, threads=threads, prefetch=1)
        native = native_threads()
        for _ in range(20):
            # Wherever it comes, in the wait or out of it.
            timer = threading.Timer(0.003, send)
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                for _ in loader.take(10**9):
                    pass
            timer.join()
            loader.close()
            x, _ = next(loader.take(1))
            assert numbers_of(x) == loader.plan.batch(loader.step - 1).tolist()
        del x
        assert settles(native_threads, native)


# Other processes.


def go_on(directory, kind, state, threads, steps):
    loader = load(directory, kind, threads=threads, prefetch=1 + threads)
    loader.load_state_dict(json.loads(state))
    return digests(loader.take(steps)), loader.step


def test_other_processes_go_on(directory):
    with fresh_process() as run:
        for kind, threads in itertools.product(KINDS, (0, 1, 2, 5)):
            expected = digests(load(directory, kind, threads=2).take(40))
            loader = load(directory, kind, threads=(threads + 1) % 3, prefetch=9)
            assert digests(loader.take(11)) == expected[:11]
            loader.set_class_weights(None)  # which is another schedule
            expected = expected[:11] + digests(itertools.islice(loader.take(29), 5))
            state = json.dumps(loader.state_dict())
            expected += digests(loader.take(24))
            assert run(go_on, directory, kind, state, threads, 24) == (expected[16:], 40)


def go_on_with(loader, steps):
    return digests(loader.take(steps))


def test_a_loader_can_be_pickled_in_the_middle_of_a_loop(directory):
    with fresh_process() as run:
        for kind in KINDS:
            loader = load(directory, kind, threads=2, prefetch=5)
            loop = loader.take(30)
            for _ in range(5):
                next(loop)
            loader.set_class_weights({3: 7.0})
            pickled = pickle.dumps(loader)
            assert len(pickled) < 6000
            expected = digests(loop)
            assert digests(pickle.loads(pickled).take(25)) == expected
            assert run(go_on_with, pickle.loads(pickled), 25) == expected


def test_other_loaders_can_be_pickled(directory):
    ds = opened(directory / "numbers")
    for loader in (
        ds.shuffled(
            7, seed=2, rank=1, world_size=3, mode="independent", as_dict=True, select=["x"]
        ),
        ds.sequential(7, remainder="fill", threads=0, reuse_buffers=True),
        ds.where(label=[1, 2, 3]).batches(2, 2, class_list=iter([1, 3]), class_weights={1: 2.0}),
    ):
        loader.seek(5)
        again = pickle.loads(pickle.dumps(loader))
        assert (again.step, again.plan.description) == (5, loader.plan.description)
        assert digests(again) == digests(loader)


def test_a_pickle_says_nothing_a_second_time(directory, recwarn):
    loader = opened(directory / "numbers").batches(2, 15, small_classes="drop")
    assert len(recwarn) == 1
    again = pickle.loads(pickle.dumps(loader))
    assert digests(again.take(3)) == digests(loader.take(3))
    assert len(recwarn) == 1


def fork_in_a_loop(directory, kind, threads):
    """Fork while a loop runs; both go on."""
    threads_before = native_threads()
    expected = digests(load(directory, kind, threads=1).take(40))
    loader = load(directory, kind, threads=threads, prefetch=6)
    loop = loader.take(40)
    found = digests(itertools.islice(loop, 7))
    children = [os.fork()]
    if children[0] == 0:
        children.append(os.fork())  # and again
    signal.alarm(30)  # a caller that waits for a thread that is not there waits for ever
    found += digests(itertools.islice(loop, 20))
    at = loader.step
    found += digests(loop)
    right = found == expected and (at, loader.step) == (27, 40)
    right = right and settles(native_threads, threads_before)
    if 0 in children:
        right = right and all(waited(child) == 0 for child in children if child)
        os._exit(0 if right else 1)
    return right and waited(children[0]) == 0


def waited(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_in_the_middle_of_a_loop(directory, kind):
    with fresh_process() as run:
        for threads in (0, 3):
            assert run(fork_in_a_loop, directory, kind, threads)


def fork_while_another_thread_loops(directory, kind):
    """Fork while another thread is at a loop, which has its locks."""
    loader = load(directory, kind, threads=2)
    loop = loader.take(10**9)
    stopped, started = threading.Event(), threading.Event()

    def work():
        for _ in loop:
            started.set()
            if stopped.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(20)
    codes = []
    for _ in range(20):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            x, _ = next(loop)
            right = numbers_of(x) == loader.plan.batch(loader.step - 1).tolist()
            os._exit(0 if right else 1)
        codes.append(waited(child))
    stopped.set()
    thread.join()
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_while_another_thread_loops(directory, kind):
    with fresh_process() as run:
        assert run(fork_while_another_thread_loops, directory, kind) == [0] * 20


def fork_a_pool(directory):
    loader = load(directory, "numbers", threads=2)
    expected = digests(loader.take(20))
    loader.seek(0)
    next(loader.take(20))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.starmap(go_on_with, [(loader, 19)] * 4)
    return found == [expected[1:]] * 4


def test_a_pool_of_forked_processes(directory):
    with fresh_process() as run:
        assert run(fork_a_pool, directory)


# Several threads.


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_share_a_loop(directory, kind):
    steps = 400
    expected = digests(load(directory, kind, threads=0).take(steps))
    loader = load(directory, kind, threads=3)
    loop = loader.take(steps)
    barrier = threading.Barrier(6)

    def work(_):
        barrier.wait()
        return digests(loop)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(6)))
    assert sorted(itertools.chain(*found)) == sorted(expected)
    order = {each: step for step, each in enumerate(expected)}
    assert all([order[each] for each in part] == sorted(map(order.get, part)) for part in found)
    assert loader.step == steps


def test_threads_may_have_loaders_of_one_dataset(directory):
    ds = make_numbers(directory / "numbers")
    expected = digests(ds.batches(4, 2, seed=9, threads=0).take(100))

    def work(number):
        return digests(ds.batches(4, 2, seed=9, threads=number % 3).take(100))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [expected] * 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_may_be_ended_by_another_thread(directory, kind):
    native = native_threads()
    for _ in range(20):
        loader = load(directory, kind, threads=2)
        loop, begun = loader.take(10**9), threading.Event()

        def work(loop=loop, begun=begun):
            for _ in loop:
                begun.set()

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            assert begun.wait(20)
            loader.close()
            assert isinstance(working.exception(20), ClosedError)
        x, _ = next(loader.take(1))
        assert numbers_of(x) == loader.plan.batch(loader.step - 1).tolist()
    del loop, loader, x, working, work
    assert settles(native_threads, native)


def test_weights_that_another_thread_sets(directory):
    loader = load(directory, "numbers", threads=2)
    loop, found, seen = loader.take(10**9), [], threading.Semaphore(0)
    done = threading.Event()

    def work():
        for x, _ in loop:
            found.append(numbers_of(x))
            seen.release()
            if done.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        for number in range(30):
            for _ in range(20):
                seen.acquire()
            loader.set_class_weights({number % 12: 4.0})
        done.set()
        working.result(20)
    # Whenever they came, the loader knows: it would do all of it again.
    again = load(directory, "numbers", threads=0)
    again.load_state_dict({**loader.state_dict(), "batch": 0})
    assert [numbers_of(x) for x, _ in again.take(len(found))] == found
