"""Loaders: end of threads, memory, exit of the interpreter, corrupt files, signals, processes."""

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
from contextlib import suppress

import numpy as np
import pytest
from loaded import (
    COUNT,
    batch_of,
    copy_batch,
    digest,
    make,
    native_threads,
    numbers_of,
    resident,
    same,
    settles,
)
from opened import opened
from written import index, shard_paths, write

from covey import Tensor
from covey.errors import ClosedError, CorruptRecordError, FileChangedError

# Read by the native core, by Python, and by Python because of a hook.
KINDS = ["numbers", "gzip", "hooked"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("loader")
    for kind in KINDS:
        make(directory / kind, "gzip" if kind == "gzip" else "numbers").close()
    return directory


def load(directory, kind, **options):
    """Return a loader; loaders of all kinds have the same batches."""
    hooks = {"batch_transform": pair} if kind == "hooked" else {}
    return opened(directory / kind).batches(4, 2, seed=9, **hooks, **options)


def pair(x, y):
    return x, y


def digests(batches):
    return [digest(batch) for batch in batches]


def start(loader, steps=1000):
    iterator = loader.take(steps)
    next(iterator)
    return iterator


# The end of an iteration is the end of its threads, also if the iterator is kept.


def abandon(loader):
    start(loader)


def abandon_in_a_cycle(loader):
    cycle = [start(loader)]
    cycle.append(cycle)
    del cycle
    gc.collect()


def raise_an_exception(loader):
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018


def exhaust(loader):
    iterator = loader.take(5)
    assert len(list(iterator)) == 5
    return iterator


ENDS = {
    "abandon": abandon,
    "cycle": abandon_in_a_cycle,
    "exception": raise_an_exception,
    "exhaust": exhaust,
    "close": lambda loader: (start(loader), loader.close()),
    "seek": lambda loader: (start(loader), loader.seek(3)),
    "other iterator": lambda loader: (start(loader), loader.take(10)),
    "not started": lambda loader: loader.take(1000),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_end_of_an_iteration_ends_its_threads(directory, kind, name):
    loader = load(directory, kind, threads=3)
    python, native = threading.active_count(), native_threads()
    kept = ENDS[name](loader)
    assert settles(threading.active_count, python)
    assert settles(native_threads, native)
    del kept


def test_close_waits_for_an_example_and_not_for_a_batch(directory):
    count, size, is_second = 0, 3000, threading.Event()

    def transform(example):
        nonlocal count
        count += 1
        if count > size:
            is_second.set()
            time.sleep(0.001)  # a slow hook
        return example

    loader = opened(directory / "numbers").shuffled(
        size, remainder="fill", threads=1, prefetch=1, transform=transform
    )
    iterator = start(loader)
    assert is_second.wait(20)  # the thread builds the second batch
    iterator.close()
    assert count < 2 * size


# Memory.


def measure_growth(directory, options):
    """Return the growth of memory, and whether threads ended, after many steps and iterations."""
    loader = opened(directory).batches(8, 2, threads=2, **options)
    threads = native_threads()

    def one_iteration():
        assert sum(1 for _ in loader.take(4000)) == 4000

    def many_iterations():
        for _ in range(150):
            for _ in loader.take(1000):
                break

    for work in (one_iteration, many_iterations):
        work()
        gc.collect()
        before = resident()
        work()
        gc.collect()
        yield resident() - before, settles(native_threads, threads)


def list_growth(*arguments):
    return list(measure_growth(*arguments))


@pytest.mark.parametrize(
    "options", [{}, {"reuse_buffers": True}, {"batch_transform": pair}], ids="+".join
)
def test_memory_does_not_grow(tmp_path, run, options):
    # Batches of 64 KiB: 250 MB if one was kept per step.
    columns = {"x": np.zeros((64, 1024), np.float32), "label": np.arange(64) % 8}
    features = {"x": Tensor("float32", (1024,)), "label": "int64"}
    write(columns, tmp_path, features=features, label="label", shuffle=False)
    for growth, have_ended in run(list_growth, tmp_path, options):
        assert growth < 8 << 20
        assert have_ended


# Exit of the interpreter during an iteration.

EXITS = {
    "iterators": """
        iterator = ds.batches(4, 2, threads=3).take(10**6)
        hooked = ds.batches(4, 2, threads=3, transform=dict).take(10**6)
        cycle = [ds.batches(4, 2, threads=3).take(10**6)]
        cycle.append(cycle)
        next(iterator), next(hooked), next(cycle[0])
        kept = list(ds.batches(4, 2, threads=3))
    """,
    "slow hooks": """
        def slow(example):
            time.sleep(0.1)
            return example
        iterator = ds.batches(4, 2, threads=2, prefetch=5000, transform=slow).take(10**6)
        next(iterator)
    """,
    "sys.exit": """
        for x, y in ds.batches(4, 2, threads=3):
            sys.exit()
    """,
    "daemon threads": """
        def iterate(iterator):
            for _ in iterator:
                started.release()
        started = threading.Semaphore(0)
        shared = ds.batches(4, 2, threads=2).take(10**12)
        all_options = ({"threads": 0}, {"threads": 2}, {"threads": 2, "transform": dict})
        iterators = [ds.batches(4, 2, **options).take(10**12) for options in all_options]
        for iterator in (*iterators, shared):
            threading.Thread(target=iterate, args=(iterator,), daemon=True).start()
        for _ in range(300):
            assert started.acquire(timeout=20)
    """,
    "atexit": """
        # Registered before covey was imported, and therefore called after its functions.
        loader = ds.batches(4, 2, threads=2)
        iterator = loader.take(10**6)
        next(iterator)
        def last():
            try:
                for _ in range(100):
                    next(iterator)
            except covey.errors.ClosedError:
                assert len(list(loader.take(20))) == 20
                print("done")
    """,
    "fork": """
        iterator = ds.batches(4, 2, threads=3).take(10**6)
        hooked = ds.batches(4, 2, threads=3, transform=dict).take(10**6)
        next(iterator), next(hooked)
        child = os.fork()
        next(iterator), next(hooked)
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
}
PRELUDE = """
import atexit, os, sys, threading, time
threading.excepthook = print  # errors of daemon threads at exit
last = lambda: None
atexit.register(lambda: last())
import covey
ds = covey.open(sys.argv[1], progress=False)
"""


@pytest.mark.parametrize("name", EXITS)
def test_exit_during_an_iteration(directory, name):
    script = PRELUDE + textwrap.dedent(EXITS[name])
    command = [sys.executable, "-c", script, str(directory / "numbers")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    assert ("done" in found.stdout) == (name == "atexit")


# Corrupt and changed files: the error is raised in the step that has the record.


@pytest.fixture
def copy(directory, tmp_path):
    """Return a dataset that may be modified."""
    shutil.copytree(directory / "numbers", tmp_path / "numbers")
    return tmp_path / "numbers"


READERS = [
    {"threads": 0},
    {"threads": 3, "prefetch": 20},
    {"threads": 0, "batch_transform": pair},
    {"threads": 2, "as_dict": True, "batch_transform": dict},
]


def steps_before_error(loader, kind):
    """Return the number of batches before an error, which must be raised again, and the error."""
    steps = 0
    with pytest.raises(kind) as error:
        for _ in loader:
            steps += 1
    step = loader.step
    with pytest.raises(kind):
        next(iter(loader))
    assert loader.step == step
    return steps, error.value


@pytest.mark.parametrize("options", READERS)
def test_corrupt_record(copy, options):
    row = index(copy)[123]
    path = shard_paths(copy)[row["shard"]]
    os.utime(path, (1e9, 1e9))
    ds = opened(copy)
    ds[:]  # opens all shards
    with open(path, "r+b") as file:
        file.seek(int(row["offset"]) + 20)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(path, (1e9, 1e9))  # a bit error of the disk does not change it
    loader = ds.shuffled(10, seed=3, **options)
    (step,) = (step for step in range(18) if 123 in loader.plan.batch(step))
    assert step > 4
    found, error = steps_before_error(loader, CorruptRecordError)
    assert found == step
    record = 123 - int((index(copy)["shard"] < row["shard"]).sum())
    assert (error.path, error.record, error.offset) == (str(path), record, row["offset"])
    loader.seek(step + 1)
    assert len(list(loader)) == 18 - step - 1
    following = next(n for n in range(18) if 123 in loader.plan.batch(18 + n))
    assert steps_before_error(loader, CorruptRecordError)[0] == following


@pytest.mark.parametrize("options", READERS)
@pytest.mark.parametrize("is_open", [False, True])
def test_missing_shard(copy, options, is_open):
    ds, path = opened(copy), shard_paths(copy)[2]
    shards = index(copy)["shard"].tolist()
    first = shards.index(2)
    if is_open:
        ds[:first]
    path.unlink()
    loader = ds.sequential(9, **options)
    steps, error = steps_before_error(loader, FileChangedError)
    assert (steps, error.path) == (first // 9, str(path))
    loader.seek(-(-shards.index(3) // 9))
    assert len(list(loader)) > 5
    loader.seek(first // 9 - 1)
    assert steps_before_error(loader, FileChangedError)[0] == 1


@pytest.mark.parametrize("options", READERS)
def test_shard_truncated_during_an_iteration(copy, options):
    ds, path = opened(copy), shard_paths(copy)[3]
    ds[:]
    shards = index(copy)["shard"].tolist()
    loader = ds.sequential(4, **{**options, "prefetch": 2})
    with pytest.raises(FileChangedError) as error:
        for _ in loader:
            if loader.step == 5:
                os.truncate(path, 100)
    assert error.value.path == str(path)
    assert loader.step == shards.index(3) // 4
    loader.seek(-(-shards.index(4) // 4))
    assert sum(1 for _ in loader) > 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [0, 2])
def test_dataset_closed_during_an_iteration(directory, kind, threads):
    ds, other = opened(directory / kind), opened(directory / kind)
    hooks = {"batch_transform": pair} if kind == "hooked" else {}
    loader = ds.batches(4, 2, threads=threads, **hooks)
    iterator, found = start(loader, 50), []
    ds.close()
    with suppress(ClosedError):
        for batch in iterator:
            found.append(copy_batch(batch))
    plan = loader.plan
    assert all(same(each, batch_of(other, plan.batch(1 + n))) for n, each in enumerate(found))
    with pytest.raises(ClosedError, match="open it again"):
        next(iter(loader))


# Signals.


@pytest.fixture
def on_signal():
    """Return a function that installs a handler of SIGUSR1, and returns a function to send it."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(action):
        signal.signal(signal.SIGUSR1, lambda *_: action())
        return lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    yield install
    signal.signal(signal.SIGUSR1, before)


class Blocking:
    """A hook that blocks until a signal was handled."""

    def __init__(self, on_signal, action):
        self._action = action
        self._barrier = (
            threading.Lock()
        )  # a signal handler may release a lock, but not set an event
        self._barrier.acquire()
        self._inside, self._is_handled = threading.Event(), False
        self.calls = 0
        self._send = on_signal(self._handle)
        self._sender = threading.Thread(target=self._send_until_handled)

    def __enter__(self):
        self._sender.start()
        return self

    def __exit__(self, *_):
        self._sender.join()

    def __call__(self, example):
        self.calls += 1
        self._inside.set()
        assert self._barrier.acquire(timeout=20)
        self._barrier.release()
        return example

    def _send_until_handled(self):
        assert self._inside.wait(20)
        while not self._is_handled:  # a signal just before a wait does not end it
            self._send()
            time.sleep(0.002)

    def _handle(self):
        if not self._is_handled:
            self._is_handled = True
            try:
                self._action()
            finally:
                self._barrier.release()


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_interrupt_during_a_wait(directory, on_signal, threads):
    ds = opened(directory / "numbers")
    before = threading.active_count()
    with Blocking(on_signal, interrupt) as hook:
        loader = ds.sequential(9, threads=threads, transform=hook)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    assert settles(threading.active_count, before)
    assert loader.step == 0
    assert [number for x, _ in loader for number in numbers_of(x)] == list(range(COUNT))


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("name", ["close", "seek", "load_state_dict", "take"])
def test_signal_handler_that_closes_the_iterator(directory, on_signal, threads, name):
    calls = {
        "close": lambda: loader.close(),
        "seek": lambda: loader.seek(5),
        "load_state_dict": lambda: loader.load_state_dict({**loader.state_dict(), "batch": 5}),
        "take": lambda: loader.take(3),
    }
    ds = opened(directory / "numbers")
    with Blocking(on_signal, calls[name]) as hook:
        loader = ds.sequential(9, remainder="fill", threads=threads, transform=hook)
        with pytest.raises(ClosedError):
            list(loader)
    assert hook.calls <= max(1, threads)  # the rest of the batch is cancelled
    step = 5 if name in ("seek", "load_state_dict") else 0
    assert loader.step == step
    assert len(list(loader)) == 20 - step


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_interrupt_of_the_native_core(directory, on_signal, threads):
    send = on_signal(interrupt)
    loader = opened(directory / "numbers").batches(4, 2, threads=threads, prefetch=1)
    native = native_threads()
    for _ in range(15):
        timer = threading.Timer(0.003, send)  # within a wait or outside of one
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


def resume(directory, kind, saved, threads, steps):
    loader = load(directory, kind, threads=threads, prefetch=1 + threads)
    loader.load_state_dict(json.loads(saved))
    return digests(loader.take(steps)), loader.step


def take_digests(loader, steps):
    return digests(loader.take(steps))


@pytest.mark.parametrize("kind", KINDS)
def test_resume_in_another_process(directory, run, kind):
    loader = load(directory, kind, threads=2, prefetch=9)
    iterator = loader.take(40)
    for _ in range(11):
        next(iterator)
    loader.set_class_weights({3: 7.0})
    next(iterator)
    saved, pickled = json.dumps(loader.state_dict()), pickle.dumps(loader)
    assert len(pickled) < 6000
    expected = digests(iterator)
    for threads in (0, 1, 5):
        assert run(resume, directory, kind, saved, threads, 28) == (expected, 40)
    assert take_digests(pickle.loads(pickled), 28) == expected
    assert run(take_digests, pickle.loads(pickled), 28) == expected


def test_pickle(directory, recwarn):
    ds = opened(directory / "numbers")
    ranks = {"rank": 1, "world_size": 3, "mode": "independent"}
    for loader in (
        ds.shuffled(7, seed=2, as_dict=True, select=["x"], **ranks),
        ds.sequential(7, remainder="fill", threads=0, reuse_buffers=True),
        ds.where(label=[1, 2, 3]).batches(2, 2, class_list=iter([1, 3]), class_weights={1: 2.0}),
        ds.batches(2, 15, small_classes="drop", steps_per_epoch=9),
    ):
        loader.seek(5)
        copy = pickle.loads(pickle.dumps(loader))
        assert (copy.step, copy.plan.description) == (5, loader.plan.description)
        assert digests(copy) == digests(loader)
    assert len(recwarn) == 1  # of the small classes, once


def fork_during_an_iteration(directory, kind, threads):
    """Fork twice during an iteration, which continues in all processes."""
    threads_before = native_threads()
    expected = digests(load(directory, kind, threads=1).take(40))
    loader = load(directory, kind, threads=threads, prefetch=6)
    iterator = loader.take(40)
    found = digests(itertools.islice(iterator, 7))
    children = [os.fork()]
    if children[0] == 0:
        children.append(os.fork())
    signal.alarm(30)  # ends a process that waits for a thread of its parent
    found += digests(itertools.islice(iterator, 20))
    step = loader.step
    found += digests(iterator)
    is_correct = found == expected and (step, loader.step) == (27, 40)
    is_correct = is_correct and settles(native_threads, threads_before)
    if 0 in children:
        is_correct = is_correct and all(exit_code(child) == 0 for child in children if child)
        os._exit(0 if is_correct else 1)
    is_correct = is_correct and exit_code(children[0]) == 0
    signal.alarm(0)
    return is_correct


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_while_another_thread_iterates(directory, kind):
    """Fork while another thread requests batches of the loader; return the exit codes."""
    loader = load(directory, kind, threads=2)
    iterator = loader.take(10**9)
    stopped, started = threading.Event(), threading.Event()

    def work():
        for _ in iterator:
            started.set()
            if stopped.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(20)
    codes = []
    while len(codes) < 12 and not any(codes):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            x, _ = next(loader.take(1))
            is_correct = numbers_of(x) == loader.plan.batch(loader.step - 1).tolist()
            os._exit(0 if is_correct else 1)
        codes.append(exit_code(child))
    stopped.set()
    thread.join()
    iterator.close()
    return codes


def fork_a_pool(directory):
    loader = load(directory, "numbers", threads=2)
    expected = take_digests(loader, 20)
    loader.seek(0)
    iterator = start(loader, 20)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.starmap(take_digests, [(loader, 19)] * 4)
    iterator.close()
    return found == [expected[1:]] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_fork(directory, run, kind):
    for threads in (0, 3):
        assert run(fork_during_an_iteration, directory, kind, threads)
    assert run(fork_while_another_thread_iterates, directory, kind) == [0] * 12


def test_pool_of_forked_processes(directory, run):
    assert run(fork_a_pool, directory)


# Threads.
