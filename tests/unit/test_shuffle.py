"""The order of records: hashes, sorted runs, and tasks in order."""

import itertools
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import files_at_most

from covey import Features
from covey._threads import ordered_map
from covey.shuffle import RecordOrder, Spool, hash_keys, hash_positions
from covey.shuffle.keys import ROW_DTYPE, cut_by_bytes
from covey.shuffle.runs import (
    HASH_BITS,
    Sorted,
    bucket_groups,
    join_records,
    scan,
    sort_rows,
)

FEATURES = Features({"x": "bytes"})

ORDERS = [RecordOrder(by_class, by) for by_class in (False, True) for by in ("hash", "position")]
sizes = st.lists(st.integers(0, 300), min_size=1, max_size=60)
words = st.lists(st.integers(0, 3), min_size=60, max_size=60)


def make(lengths, high=None, labels=None):
    """Return records of these lengths, and their rows."""
    block = FEATURES.encode_batch({"x": values(lengths)})
    rows = np.zeros(len(block), ROW_DTYPE)
    rows["position"] = np.arange(len(block))
    rows["length"] = block.lengths
    rows["high"], rows["low"] = hash_positions(rows["position"].copy(), 0)
    if high is not None:
        rows["high"] = high[: len(block)]
    if labels is not None:
        rows["label"] = labels[: len(block)]
    return block, rows


def values(lengths):
    return [b"%05d" % i + b"." * length for i, length in enumerate(lengths)]


def sorted_records(block, rows, order):
    """Return records in the order of Python's sort."""
    records = list(block)
    keys = [tuple(row[name] for name in order.fields) for row in rows]
    return [records[i] for i in sorted(range(len(rows)), key=keys.__getitem__)]


def fill_spool(directory, block, rows, order, memory_limit, cuts=()):
    spool = Spool(directory, memory_limit=memory_limit, order=order)
    for begin, end in itertools.pairwise(sorted({0, len(block), *cuts})):
        spool.add(block[begin:end], rows[begin:end])
    return spool


def read(found, order, size=1000):
    """Return all records, from groups of buckets of about this size."""
    readers = [run.open() for run in found.runs]
    records = []
    for bounds in bucket_groups(found.table, size):
        parts = [reader.read(*bounds) for reader in readers]
        records += join_records(parts, order).copy()
    return records


@settings(max_examples=80)
@given(
    lengths=sizes,
    high=words,
    labels=words,
    reverse=st.booleans(),
    order=st.sampled_from(ORDERS),
    memory_limit=st.sampled_from([1, 1000, 5000, 1 << 20]),
    in_memory=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=20),
)
def test_spool_sorts(lengths, high, labels, reverse, order, memory_limit, in_memory, cuts):
    """Also if the first words of hashes are equal."""
    block, rows = make(lengths, high, labels)
    if reverse:
        rows["low"] = rows["low"][::-1].copy()
    with tempfile.TemporaryDirectory() as name:
        cuts = [cut for cut in cuts if cut < len(block)]
        spool = fill_spool(Path(name), block, rows, order, memory_limit, cuts)
        assert sorted(each for part in spool.blocks() for each in part) == sorted(block)
        found = spool.finish(in_memory=in_memory)
        assert found.table["records"].sum() == len(block)
        assert found.table["bytes"].sum() == sum(len(record) + 16 for record in block)
        assert found.longest == max(map(len, block))
        for run in found.runs:
            scanned = [record for part, _ in scan(run, 1000) for record in part]
            assert len(scanned) == run.records
        assert read(found, order) == sorted_records(block, rows, order)
        if in_memory and memory_limit == 1 << 20:
            assert not list(Path(name).iterdir())


def test_few_files_are_open_at_once(tmp_path):
    block, rows = make(np.arange(200) % 50, labels=np.arange(200) % 5)
    before = len(os.listdir("/proc/self/fd"))
    with files_at_most(16):
        spool = fill_spool(tmp_path, block, rows, RecordOrder(), 1, range(200))
        assert len(list(tmp_path.glob("*.frames"))) == 200
        found = spool.finish()
        assert read(found, RecordOrder()) == sorted_records(block, rows, RecordOrder())
        assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=40)
@given(
    lengths=sizes,
    labels=words,
    order=st.sampled_from(ORDERS),
    chosen=st.sets(st.integers(0, 59)),
)
def test_rows_of_a_table_are_encoded_in_order(lengths, labels, order, chosen):
    """For all rows, and for some of them."""
    block, rows = make(lengths, labels=labels)
    checked = FEATURES.check_columns({"x": values(lengths)})
    records = list(block)
    for some in (range(len(block)), sorted(i for i in chosen if i < len(block))):
        at = np.array(some, np.intp)
        run = sort_rows(rows[at], order, HASH_BITS, checked.encode)
        expected = sorted_records([records[i] for i in some], rows[at], order)
        assert read(Sorted((run,), run.table, 0), order) == expected


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
        # Each sixteenth has its share, within a few standard deviations.
        counts = np.bincount((high >> np.uint64(60)).astype(int), minlength=16)
        assert abs(counts - 6250).max() < 400


def test_hashes_are_the_same_in_every_version():
    """Appended records, and files that are compared, depend on them."""
    high, low = hash_keys(["owl", b"owl", 7], 0)
    positions, _ = hash_positions(np.arange(3, dtype=np.uint64), 0)
    assert high.tolist() == [0x881B1538BB2CBF46, 0xF53D80F1B869339E, 0x6DD5C02F0E957723]
    assert low.tolist() == [0x817A414B92DF6338, 0xE5F6DCAD11321009, 0x4B73E0BE34CAE088]
    assert positions.tolist() == [0x26FD3D0DF341D9E4, 0xBF964932BF6F9413, 0xD3BCE383F21D4246]


@given(lengths=sizes, size=st.integers(1, 2000))
def test_cuts_by_bytes(lengths, size):
    cuts = list(cut_by_bytes(np.array(lengths, np.uint64), size))
    assert [*itertools.chain.from_iterable(range(*cut) for cut in cuts)] == [*range(len(lengths))]
    for begin, end in cuts:
        held = sum(lengths[begin:end]) + 16 * (end - begin)
        assert held <= size or end == begin + 1
        if end < len(lengths):
            assert held + lengths[end] + 16 > size


# ordered_map.


@pytest.mark.parametrize("in_flight", [1, 7])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_results_are_in_order(threads, in_flight):
    """The number of tasks in flight is limited."""
    begun = []
    tasks = (lambda i=i: begun.append(i) or i for i in range(50))
    with ThreadPoolExecutor(threads or 1) as pool:
        results = ordered_map(tasks, None if threads is None else pool, in_flight)
        for expected, result in enumerate(results):
            assert result == expected
            assert len(begun) <= result + in_flight + 2
    assert sorted(begun) == list(range(50))


def fail():
    raise ValueError("a task")


@pytest.mark.parametrize("threads", [None, 2])
def test_errors_are_raised_after_earlier_results(threads):
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


def test_first_error_is_raised():
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
