"""The order of records: the same whatever the memory is, and with every record in it once."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import files_at_most

from covey import Features
from covey._threads import ordered_map
from covey.errors import DuplicateKeyError
from covey.shuffle import RecordOrder, Spool, hash_keys, hash_positions
from covey.shuffle.keys import ROW_DTYPE, cut_by_bytes
from covey.writing.columns import ColumnOrder

FEATURES = Features({"x": "bytes"})

orderings = st.builds(RecordOrder, by_class=st.booleans(), by=st.sampled_from(["hash", "position"]))
sizes = st.lists(st.integers(0, 300), min_size=1, max_size=60)
words = st.lists(st.integers(0, 3), min_size=60, max_size=60)


def make(lengths, high=None, labels=None):
    """Records of these lengths, and their rows."""
    block = FEATURES.encode_batch({"x": [b"%05d" % i + b"." * n for i, n in enumerate(lengths)]})
    rows = np.zeros(len(block), ROW_DTYPE)
    rows["position"] = np.arange(len(block))
    rows["length"] = block.lengths
    rows["high"], rows["low"] = hash_positions(rows["position"].copy(), 0)
    if high is not None:
        rows["high"] = high[: len(block)]
    if labels is not None:
        rows["label"] = labels[: len(block)]
    return block, rows


def expected(block, rows, ordering):
    """What Python's own sort makes of it."""
    records = list(block)
    order = sorted(range(len(rows)), key=lambda i: tuple(rows[i][name] for name in ordering.fields))
    return [records[i] for i in order]


def through_a_spool(directory, block, rows, ordering, memory_limit, cuts=(), **options):
    spool = Spool(directory, memory_limit=memory_limit, order=ordering, **options)
    for begin, end in itertools.pairwise(sorted({0, len(block), *cuts})):
        spool.add(block[begin:end], rows[begin:end])
    return spool


def run(ordered):
    """The records of all parts in their order."""
    return [record for task in ordered.tasks() for record in task()[0]]


@settings(max_examples=150)
@given(
    lengths=sizes,
    high=words,
    labels=words,
    ordering=orderings,
    memory_limit=st.sampled_from([1, 1000, 5000, 1 << 20]),
    cuts=st.lists(st.integers(0, 60), max_size=20),
)
def test_a_spool_is_sorted(tmp_path_factory, lengths, high, labels, ordering, memory_limit, cuts):
    block, rows = make(lengths, high, labels)
    cuts = [cut for cut in cuts if cut < len(block)]
    directory = tmp_path_factory.mktemp("spool")
    spool = through_a_spool(directory, block, rows, ordering, memory_limit, cuts)
    assert spool.records == len(block)
    assert spool.bytes == sum(len(record) + 16 for record in block)
    assert run(spool) == expected(block, rows, ordering)
    assert not list(directory.iterdir())  # a run is let go of when it was read


@pytest.mark.parametrize("ordering", [RecordOrder(), RecordOrder(by_class=True)])
def test_many_runs_are_merged_in_several_levels(tmp_path, ordering):
    block, rows = make(np.arange(600) % 50, labels=np.arange(600) % 5)
    with files_at_most(16):
        # Windows of a few records.
        spool = through_a_spool(tmp_path, block, rows, ordering, 1, range(600), window_bytes=700)
        assert len(list(tmp_path.glob("*.frames"))) == 600
        assert run(spool) == expected(block, rows, ordering)


@settings(max_examples=40)
@given(high=words, memory_limit=st.sampled_from([1, 3000]))
def test_equal_first_words_are_sorted_by_the_second(tmp_path_factory, high, memory_limit):
    block, rows = make([10] * 60, high)
    rows["low"] = rows["low"][::-1].copy()
    directory = tmp_path_factory.mktemp("ties")
    spool = through_a_spool(directory, block, rows, RecordOrder(), memory_limit, range(0, 60, 7))
    assert run(spool) == expected(block, rows, RecordOrder())


def test_all_ties(tmp_path):
    block, rows = make([5] * 40, np.zeros(40))
    rows["low"] = rows["low"][::-1].copy()
    for memory_limit in [1, 1 << 20]:
        spool = through_a_spool(tmp_path, block, rows, RecordOrder(), memory_limit, range(0, 40, 3))
        assert run(spool) == list(block)[::-1]


@given(lengths=sizes, labels=words, ordering=orderings, seed=st.integers(0, 2**64 - 1))
def test_columns_are_sorted_as_a_spool_is(tmp_path_factory, lengths, labels, ordering, seed):
    values = [b"%05d" % i + b"." * n for i, n in enumerate(lengths)]
    block, rows = make(lengths, labels=labels)
    rows["high"], rows["low"] = hash_positions(rows["position"].copy(), seed)
    checked = FEATURES.check_columns({"x": values})
    classes = np.array(labels[: len(values)], np.int64)
    columns = ColumnOrder(checked, classes, None, ordering, seed)
    spool = through_a_spool(tmp_path_factory.mktemp("x"), block, rows, ordering, 1, [5, 20])
    assert (columns.records, columns.bytes) == (spool.records, spool.bytes)
    if ordering.by_class:
        for name in ["labels", "records", "bytes"]:
            found = getattr(columns.classes(), name).tolist()
            assert found == getattr(spool.classes(), name).tolist()
    assert run(columns) == run(spool) == expected(block, rows, ordering)


keys = st.lists(st.one_of(st.text(max_size=3), st.integers(0, 9)), min_size=2, max_size=30)


@given(keys=keys, by_class=st.booleans(), by=st.sampled_from(["hash", "position"]))
@pytest.mark.parametrize("memory_limit", [1, 2000, 1 << 20])
def test_duplicate_keys_in_a_spool(tmp_path_factory, keys, by_class, by, memory_limit):
    block, rows = make([3] * len(keys), labels=np.arange(len(keys)) % 4)
    rows["high"], rows["low"] = hash_keys(keys, 0)
    ordering, directory = RecordOrder(by_class=by_class, by=by), tmp_path_factory.mktemp("keys")
    spool = Spool(directory, memory_limit=memory_limit, order=ordering, unique=True)
    for begin in range(0, len(keys), 3):
        part = slice(begin, begin + 3)
        spool.add(block[part], rows[part], keys[part])
    # The number 1 is another key than the text "1".
    if len({(type(key), key) for key in keys}) == len(keys):
        assert run(spool) == expected(block, rows, ordering)
        return
    with pytest.raises(DuplicateKeyError) as caught:
        run(spool)
    first, second = caught.value.examples
    assert first < second
    assert keys[first] == keys[second] == caught.value.key


@given(keys=st.lists(st.text(max_size=5), unique=True, max_size=50), seed=st.integers(0, 2**64 - 1))
def test_hashes_of_keys(keys, seed):
    high, low = hash_keys(keys, seed)
    assert len({*zip(high.tolist(), low.tolist(), strict=True)}) == len(keys)
    again = [hash_keys([key], seed) for key in keys]
    assert [int(word[0]) for word, _ in again] == high.tolist()
    assert [int(word[0]) for _, word in again] == low.tolist()


def test_hashes_of_positions_differ():
    for seed in [0, 1, 2**64 - 1]:
        high, _ = hash_positions(np.arange(100_000, dtype=np.uint64), seed)
        assert len(np.unique(high)) == 100_000
        # As many in each sixteenth as there should be, within a few standard deviations.
        counts = np.bincount((high >> np.uint64(60)).astype(int), minlength=16)
        assert abs(counts - 6250).max() < 400


def test_orders_never_change():
    # What was written with one version is written so by the next: appending relies on it, and so
    # does everybody who compares files.
    high, low = hash_keys(["owl", b"owl", 7], 0)
    positions, _ = hash_positions(np.arange(3, dtype=np.uint64), 0)
    assert high.tolist() == HIGH
    assert low.tolist() == LOW
    assert positions.tolist() == POSITIONS


HIGH = [0x881B1538BB2CBF46, 0xF53D80F1B869339E, 0x6DD5C02F0E957723]
LOW = [0x817A414B92DF6338, 0xE5F6DCAD11321009, 0x4B73E0BE34CAE088]
POSITIONS = [0x26FD3D0DF341D9E4, 0xBF964932BF6F9413, 0xD3BCE383F21D4246]


@given(lengths=sizes, size=st.integers(1, 2000))
def test_cuts_by_bytes(lengths, size):
    cuts = list(cut_by_bytes(np.array(lengths, np.uint64), size))
    assert [*itertools.chain.from_iterable(range(*cut) for cut in cuts)] == [*range(len(lengths))]
    for begin, end in cuts:
        held = sum(lengths[begin:end]) + 16 * (end - begin)
        assert held <= size or end == begin + 1
        if end < len(lengths):  # one more would have been too much
            assert held + lengths[end] + 16 > size


# Work that runs ahead.


@pytest.mark.parametrize("ahead", [1, 2, 7])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_results_are_in_order(threads, ahead):
    tasks = [lambda i=i: i for i in range(50)]
    if threads is None:
        assert list(ordered_map(tasks, None, ahead)) == list(range(50))
        return
    with ThreadPoolExecutor(threads) as pool:
        assert list(ordered_map(tasks, pool, ahead)) == list(range(50))


def test_the_number_of_tasks_in_flight_is_limited():
    begun = []
    with ThreadPoolExecutor(2) as pool:
        for number in ordered_map((lambda i=i: begun.append(i) or i for i in range(50)), pool, 3):
            assert len(begun) <= number + 5
    assert sorted(begun) == list(range(50))


def fail():
    raise ValueError("a task")


@pytest.mark.parametrize("threads", [None, 2])
def test_errors_are_raised_after_the_results_before_them(threads):
    pool = None if threads is None else ThreadPoolExecutor(threads)

    def tasks():
        yield lambda: 0
        yield lambda: 1
        raise KeyError("the tasks")

    for coming, error in [(tasks(), KeyError), ([lambda: 0, lambda: 1, fail], ValueError)]:
        found = []
        with pytest.raises(error):
            found.extend(ordered_map(coming, pool, 8))
        assert found == [0, 1]
    if pool is not None:
        pool.shutdown()


def test_the_first_error_is_raised():
    def tasks():
        yield fail
        raise KeyError("the tasks")

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="a task"):
        list(ordered_map(tasks(), pool, 8))


def test_closing_cancels_the_remaining_tasks():
    hold, begun = threading.Event(), []

    def work(number):
        begun.append(number)
        if number:
            hold.wait(30)
        return number

    with ThreadPoolExecutor(1) as pool:
        results = ordered_map([lambda i=i: work(i) for i in range(20)], pool, 10)
        assert next(results) == 0
        results.close()
        hold.set()
    assert len(begun) <= 2


def test_spools_close_their_files(tmp_path):
    block, rows = make([10] * 50)
    before = len(os.listdir("/proc/self/fd"))
    spool = through_a_spool(tmp_path, block, rows, RecordOrder(), 1, range(50))
    tasks = spool.tasks()
    next(tasks)
    assert len(os.listdir("/proc/self/fd")) == before
