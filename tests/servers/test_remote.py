"""covey.open of URLs, compared with the same dataset on a local disk."""

import gzip
import io
import itertools
import os
import shutil
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from opened import as_lists, opened
from servers import s3_bucket, stand_alone
from storages import location, memory_location
from written import files, files_at_most, fresh_process, shard_paths, write

from covey import ClassLabel, Features, RecordReader, RecordWriter
from covey.errors import (
    CorruptRecordError,
    CoveyError,
    DatasetError,
    FileChangedError,
    StoragePermissionError,
)
from covey.storage.cache import cache_directory, evict, stored_bytes
from covey.storage.range_cache import BLOCK_BYTES as BLOCK

SPECIES = ("jay", "owl", "wren")
TRAIN, TEST, BIG = 120, 20, 300
FEATURES = {"x": "int64", "species": ClassLabel(names=SPECIES), "noise": "bytes"}
CONTENT = {"x": "int64", "label": "string", "noise": "bytes"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


# Datasets on the local disk.


def examples(begin, end, varied=True):
    """Yield examples of about 4 KiB, which cannot be compressed."""
    for n in range(begin, end):
        noise = np.random.default_rng(n).bytes(3000 + 20 * (n % 100) if varied else 4300)
        yield {"x": n, "species": SPECIES[n % 3], "noise": noise}


def write_dataset(directory, compression=None, has_index=True):
    options = {"features": FEATURES, "shuffle": False, "compression": compression}
    write(examples(0, TRAIN), directory, shards=3, **options)
    write(examples(TRAIN, TRAIN + TEST), directory, "test", **options)
    for path in () if has_index else [*directory.glob("*.npy"), *directory.glob("*.index.json")]:
        path.unlink()


def write_big(directory, compression=None):
    """One shard of 20 blocks, whose records have the same length."""
    options = {"features": FEATURES, "shuffle": False, "compression": compression}
    write(examples(0, BIG, varied=False), directory, **options)


def write_records(directory, compression=None):
    """TFRecord files without metadata."""
    directory.mkdir()
    schema = Features(CONTENT)
    limits = {"train-0": (0, 50), "train-1": (50, TRAIN), "test": (TRAIN, TRAIN + TEST)}
    for name, (begin, end) in limits.items():
        file = io.BytesIO()
        with RecordWriter(file) as writer:
            for each in examples(begin, end):
                each["label"] = each.pop("species")
                writer.write(schema.encode(each))
        data = file.getvalue()
        if compression:  # one stream, not the members that covey writes
            data = gzip.compress(data, mtime=0)
        (directory / f"{name}.tfrecord").write_bytes(data)


WRITERS = {
    "covey": write_dataset,
    "covey GZIP": partial(write_dataset, compression="GZIP"),
    "covey ZLIB": partial(write_dataset, compression="ZLIB"),
    "without index": partial(write_dataset, has_index=False),
    "big": write_big,
    "big GZIP": partial(write_big, compression="GZIP"),
    "records": write_records,
    "records GZIP": partial(write_records, compression="GZIP"),
}
KINDS = [kind for kind in WRITERS if not kind.startswith("big")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the directory of a dataset of a kind, written once."""
    root, directories = tmp_path_factory.mktemp("made"), {}

    def get(kind):
        if kind not in directories:
            directories[kind] = root / kind.replace(" ", "_") / "birds"
            directories[kind].parent.mkdir()
            WRITERS[kind](directories[kind])
        return directories[kind]

    return get


# Servers.


@pytest.fixture(scope="module")
def s3_server():
    with s3_bucket() as found:
        yield found


@pytest.fixture
def s3(tmp_path, s3_server):
    with location("s3", tmp_path, s3_server) as found:
        yield found


@pytest.fixture
def without_ranges(tmp_path):
    (tmp_path / "files").mkdir()
    with location("http", tmp_path, None) as found:
        yield found


@pytest.fixture
def memory():
    return memory_location()


@pytest.fixture
def web(tmp_path):
    with location("web", tmp_path, None) as found:
        yield found


@pytest.fixture
def faulty(web):
    """A server of ranges, where every second response has a fault."""
    of_any = itertools.cycle(["", "500", "", "drop", "", "mute"])
    of_ranges = itertools.cycle(["", "short", "", "500", "", "shift", "", "drop", "", "mute"])
    lock = threading.Lock()

    def fault(method, path, attempt):
        is_whole = method == "HEAD" or path.endswith((".json", ".txt"))
        with lock:
            return next(of_any if is_whole else of_ranges) if attempt < 2 else ""

    web.objects.fault = fault
    return web


def upload(site, directory):
    for name, data in files(directory).items():
        site.put(name, data)


def open_site(site, directory=None, **options):
    """Open a directory, or the files of a directory without metadata."""
    path = site.root
    if directory is not None and not (directory / "dataset_info.json").exists():
        path = [site.at(name) for name in files(directory)]
    return opened(path, storage_options=site.options, **options)


def shard_reads(site):
    """Return the ranges of shards that were read; "" for a whole shard."""
    return [
        wanted
        for method, path, wanted in site.objects.asked
        if method == "GET" and ".tfrecord" in path and not path.endswith((".json", ".npy"))
    ]


# Batches.

PARTS = {"split": "train[25%:60%]+test[-7:]"}
WHOLE = {"split": "train"}


def random_ids(dataset, seed=0):
    return np.random.default_rng(seed).integers(-len(dataset), len(dataset), 40)


def everything(dataset):
    """Return what can be read from a dataset."""
    names = tuple(dataset.classes)
    some, ids = dataset.where(label=[names[0], names[-1]]), random_ids(dataset)
    return {
        "random": as_lists(dataset[ids]),
        "slice": as_lists(dataset[3:20:4]),
        "one": as_lists(dataset[-1]),
        "raw": dataset.raw[ids],
        "where": as_lists(some[::5]),
        "column": as_lists(some.columns(["x"])),
        "all": [as_lists(each) for each in dataset],
        "labels": dataset.labels.tolist(),
        "names": names,
        "counts": dataset.classes.counts.tolist(),
        "features": dataset.features,
    }


def numbers(dataset, ids, varied=True):
    """Return the numbers of examples, and check the other features."""
    columns = dataset[ids]
    for row, n in enumerate(columns["x"].tolist()):
        (example,) = examples(n, n + 1, varied)
        assert columns["noise"][row] == example["noise"]
    return columns["x"].tolist()


@pytest.mark.parametrize(
    ("site", "kind", "mmap"),
    [
        *(("faulty", kind, True) for kind in KINDS),
        *(("faulty", kind, False) for kind in ("covey", "covey GZIP")),
        *((site, "covey GZIP", True) for site in ("s3", "without_ranges", "memory")),
    ],
)
def test_same_batches_as_from_disk(request, made, site, kind, mmap):
    site, directory = request.getfixturevalue(site), made(kind)
    upload(site, directory)
    is_listed = (directory / "dataset_info.json").exists()
    local = directory if is_listed else sorted(directory.iterdir())
    for options in (PARTS, WHOLE):
        with open_site(site, directory, **options, mmap=mmap) as dataset:
            assert everything(dataset) == everything(opened(local, **options))


@pytest.fixture(scope="module")
def spawned():
    with fresh_process() as run:
        yield run


@pytest.fixture
def elsewhere(spawned):
    """Run a function in another process, with the same cache."""
    return partial(spawned, with_cache, str(cache_directory()))


def with_cache(directory, action, *args):
    os.environ["COVEY_CACHE"] = directory
    return action(*args)


def read_and_fork(dataset):
    """Read from a dataset, then in a forked process, and then in this process again."""
    found = numbers(dataset, [1, 2])
    child = os.fork()
    if child == 0:
        os._exit(0 if numbers(dataset, [100, 60, 1]) == [100, 60, 1] else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, found, numbers(dataset, [50, 110, 2])


@pytest.mark.parametrize(
    ("site", "kind"),
    [
        ("s3", "covey"),
        *(("web", kind) for kind in ("covey GZIP", "covey ZLIB")),
    ],
)
def test_spawned_and_forked_processes(request, made, elsewhere, site, kind):
    site = request.getfixturevalue(site)
    upload(site, made(kind))
    dataset = open_site(site, made(kind), **WHOLE)
    assert numbers(dataset, [7, 3]) == [7, 3]
    assert elsewhere(read_and_fork, dataset) == (0, [1, 2], [50, 110, 2])
    assert numbers(dataset, [100, 7]) == [100, 7]


@pytest.mark.parametrize("kind", ["covey GZIP", "covey ZLIB"])
def test_threads(faulty, made, kind):
    """Threads open a dataset at the same time, and then share it."""
    upload(faulty, made(kind))
    with ThreadPoolExecutor(4) as pool:
        dataset, *_ = pool.map(lambda _: open_site(faulty, made(kind), **WHOLE), range(4))
        orders = [random_ids(dataset, seed) for seed in range(8)]
        found = list(pool.map(lambda ids: numbers(dataset, ids), orders))
    assert found == [(order % TRAIN).tolist() for order in orders]


# The cache.


def cache_entries():
    paths = map(str, (cache_directory() / "blocks").iterdir())
    return [path for path in paths if not path.endswith(".map")]


FEW_BLOCKS = 6 * BLOCK  # of the 9 that the shards of a split have


def has_repeated_reads(site):
    """Return whether ranges were evicted and read again."""
    reads = [each for each in site.objects.asked if each[0] == "GET" and each[2]]
    return len(set(reads)) < len(reads)


@pytest.mark.parametrize(
    ("kind", "mmap"), [("covey", True), ("covey", False), ("covey GZIP", True)]
)
def test_cache_smaller_than_the_dataset(web, made, kind, mmap):
    upload(web, made(kind))
    dataset = open_site(web, **WHOLE, cache_bytes=FEW_BLOCKS, mmap=mmap)
    order = np.random.default_rng(0).permutation(TRAIN).tolist()
    for begin in range(0, TRAIN, 2):
        assert numbers(dataset, order[begin : begin + 2]) == order[begin : begin + 2]
    assert has_repeated_reads(web)
    assert 0 < sum(map(stored_bytes, cache_entries())) <= FEW_BLOCKS


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["big", "big GZIP"])
def test_eviction_between_batches(web, made, kind, mmap):
    upload(web, made(kind))
    dataset = open_site(web, mmap=mmap)
    for _ in range(2):
        assert numbers(dataset, [0, 1], varied=False) == [0, 1]
        assert [evict(path) for path in cache_entries()] == [True]


def read_with_few_descriptors(dataset, ids):
    with files_at_most(40):
        return numbers(dataset, ids)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_more_shards_than_descriptors(web, tmp_path, elsewhere, compression):
    write(examples(0, 50), tmp_path / "birds", shards=50, shuffle=False, compression=compression)
    upload(web, tmp_path / "birds")
    ids = [*range(50)][::-1]
    assert elsewhere(read_with_few_descriptors, open_site(web), ids) == ids


def flip(path):
    """Change a byte of a file in place, which also changes it for processes that have it mapped."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))


def flip_cached():
    for path in [*cache_directory().glob("blocks/*"), *cache_directory().glob("unpacked/*")]:
        if path.suffix != ".map":
            flip(path)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["covey", "covey GZIP"])
def test_corrupt_cache_is_fetched_again(web, made, kind, mmap):
    upload(web, made(kind))
    dataset, expected = open_site(web, **WHOLE, mmap=mmap), list(range(TRAIN))
    assert numbers(dataset, expected) == expected
    for _ in range(2):
        flip_cached()
        assert numbers(dataset, expected) == expected
    flip_cached()
    assert len(list(dataset.raw)) == TRAIN


@pytest.mark.parametrize("mmap", [True, False])
def test_corrupt_remote_record_is_fetched_twice(web, made, mmap):
    upload(web, made("covey"))
    name = f"/birds/{shard_paths(made('covey'))[1].name}"
    data = bytearray(web.objects.files[name])
    position = len(data) // 2
    data[position] ^= 16
    web.objects.files[name] = bytes(data)
    dataset = open_site(web, **WHOLE, mmap=mmap)
    for times in (2, 1):
        web.objects.asked.clear()
        with pytest.raises(CorruptRecordError, match="checksum"):
            dataset.raw[:]
        reads = [wanted for _, path, wanted in web.objects.asked if path == name and wanted]
        ranges = [map(int, wanted.removeprefix("bytes=").split("-")) for wanted in reads]
        assert sum(first <= position <= last for first, last in ranges) == times


@pytest.mark.parametrize("mmap", [True, False])
def test_removed_decompressed_shards(web, made, mmap):
    upload(web, made("covey ZLIB"))
    dataset = open_site(web, **WHOLE, mmap=mmap)
    assert numbers(dataset, [1]) == [1]
    for path in (cache_directory() / "unpacked").iterdir():
        path.unlink()
    with pytest.raises(FileChangedError, match="open it again"):
        numbers(dataset, [100, 50, 1])
    assert numbers(open_site(web, **WHOLE, mmap=mmap), [100, 50, 1]) == [100, 50, 1]


# Requests.


@pytest.mark.parametrize("site", ["web", "s3"])
def test_number_of_requests(request, made, site):
    """Opening takes a request per file; the reads of a plan are fetched once, in long ranges."""
    place = request.getfixturevalue(site)
    upload(place, made("big"))
    size = only_shard(made("big"))[1].__len__()
    log = (
        place.objects.asked if site == "web" else request.getfixturevalue("s3_server").log.requests
    )
    for threads in (0, 2, 16):
        shutil.rmtree(cache_directory(), ignore_errors=True)
        log.clear()
        dataset = open_site(place, split="train")
        assert len(log) <= 8
        for loader in (
            dataset.sequential(batch_size=4, threads=threads),
            dataset.batches(3, 4, threads=threads),
        ):
            shutil.rmtree(cache_directory() / "blocks", ignore_errors=True)
            log.clear()
            assert sum(len(y) for *_, y in loader) >= 288
            shard = [each for each in log if ".tfrecord" in each[1]]
            sizes = [size_of(wanted) for method, _, wanted in shard if method == "GET"]
            assert sum(sizes) == size
            assert len(shard) <= 12


def size_of(wanted):
    first, last = map(int, wanted.removeprefix("bytes=").split("-"))
    return last + 1 - first


# Indexes.


@pytest.mark.parametrize("kind", ["big", "big GZIP"])
def test_only_needed_blocks_are_read(web, made, kind):
    upload(web, made(kind))
    dataset = open_site(web)
    _ = len(dataset), dataset.labels[:3], dataset.classes.counts, dataset.where(label="owl")
    assert shard_reads(web) == []
    assert numbers(dataset, [150, 151], varied=False) == [150, 151]
    reads = [map(int, each.removeprefix("bytes=").split("-")) for each in shard_reads(web)]
    assert len(reads) <= 3  # the head, the end, and the examples
    assert sum(last + 1 - first for first, last in reads) <= 4 * BLOCK


@pytest.mark.parametrize("kind", ["without index", "records", "records GZIP"])
def test_index_is_built_once_and_cached(web, made, kind):
    upload(web, made(kind))
    open_site(web, made(kind), **PARTS).close()
    assert shard_reads(web)
    web.objects.asked.clear()
    dataset = open_site(web, made(kind), **PARTS)
    assert len(dataset.labels) == len(dataset)
    assert shard_reads(web) == []
    assert numbers(dataset, [-1]) == [TRAIN + TEST - 1]


@pytest.mark.parametrize("is_remote", [True, False])
def test_corrupt_index(web, made, is_remote):
    """A corrupt index is rebuilt once; a corrupt copy of a valid one is fetched again."""
    upload(web, made("covey"))
    if is_remote:
        (name,) = [each for each in web.objects.files if each.endswith("train.index.npy")]
        data = web.objects.files[name]
        web.objects.files[name] = data[:-1] + bytes([data[-1] ^ 1])
    else:
        open_site(web, **WHOLE)
        (copy,) = (cache_directory() / "indexes").glob("*/*train.index.npy")
        copy.write_bytes(copy.read_bytes()[:-1] + bytes([copy.read_bytes()[-1] ^ 1]))
        web.objects.asked.clear()
    assert len(open_site(web, **WHOLE)) == TRAIN
    assert bool(shard_reads(web)) == is_remote
    assert numbers(open_site(web, **WHOLE), [5, 100]) == [5, 100]
    web.objects.asked.clear()
    dataset = open_site(web, **WHOLE)
    assert tuple(dataset.classes) == SPECIES
    assert shard_reads(web) == []


def test_access_to_missing_files_is_denied(web, made):
    upload(web, made("without index"))
    web.objects.fault = lambda method, path, attempt: "403" if ".index." in path else ""
    assert len(open_site(web, **WHOLE)) == TRAIN


# Files that change.


def reverse_records(data):
    """Return a file of the same size, with the records in reverse order."""
    with RecordReader(io.BytesIO(data)) as reader:
        records = list(reader)
    file = io.BytesIO()
    with RecordWriter(file) as writer:
        for each in reversed(records):
            writer.write(each)
    return file.getvalue()


def only_shard(directory):
    (path,) = shard_paths(directory)
    return path.name, path.read_bytes()


def test_replaced_file_is_indexed_again(web, made):
    upload(web, made("records"))
    url = f"{web.root}/test.tfrecord"
    assert numbers(opened(url), [0, 5]) == [TRAIN, TRAIN + 5]
    web.put("test.tfrecord", reverse_records((made("records") / "test.tfrecord").read_bytes()))
    dataset = opened(url)
    assert numbers(dataset, slice(None)) == list(range(TRAIN, TRAIN + TEST))[::-1]
    assert dataset.labels.tolist() == [n % 3 for n in range(TRAIN, TRAIN + TEST)][::-1]


def test_replaced_shard_of_a_dataset(web, made):
    upload(web, made("big"))
    assert numbers(open_site(web), [0], varied=False) == [0]
    name, data = only_shard(made("big"))
    web.put(name, reverse_records(data))
    with pytest.raises(FileChangedError, match="not the one that was indexed") as caught:
        open_site(web)[0]
    assert caught.value.path == f"{web.root}/{name}"
    web.put(name, data[:-20])
    sizes = f"from {len(data)} to {len(data) - 20} bytes"
    with pytest.raises(DatasetError, match=f"the shard was truncated {sizes}") as caught:
        open_site(web)
    assert caught.value.path == f"{web.root}/{name}"
    web.put(name, data)
    assert numbers(open_site(web), [7], varied=False) == [7]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("site", ["web", "without_ranges"])
def test_shard_is_replaced_while_it_is_open(request, made, site, mmap):
    site = request.getfixturevalue(site)
    upload(site, made("big"))
    dataset = open_site(site, mmap=mmap)
    assert numbers(dataset, [0], varied=False) == [0]
    name, data = only_shard(made("big"))
    site.put(name, reverse_records(data))
    errors = []
    for row in range(0, BIG, 31):
        try:
            assert numbers(dataset, [row], varied=False) == [row]
        except CoveyError as error:
            errors.append((type(error), error.path))
    # A server without ranges returned the complete old file.
    has_ranges = site.objects is not None
    assert {*errors} == ({(FileChangedError, f"{site.root}/{name}")} if has_ranges else set())


@pytest.mark.parametrize("kind", ["records", "covey ZLIB"])
def test_shard_is_replaced_while_it_is_opened(web, made, kind):
    """Between the first HEAD request and the first GET request."""
    upload(web, made(kind))
    is_zlib = kind != "records"
    name = shard_paths(made(kind))[0].name if is_zlib else "test.tfrecord"
    # A ZLIB shard is decompressed by open, another one is opened when it is read.
    dataset = None if is_zlib else opened(f"{web.root}/{name}")
    path = f"/birds/{name}"
    data = web.objects.files[path]

    def fault(method, requested, attempt):
        if method == "GET" and requested == path and web.objects.files[path] == data:
            other = reverse_records(zlib.decompress(data) if is_zlib else data)
            web.objects.files[path] = zlib.compress(other) if is_zlib else other
        return ""

    web.objects.fault = fault
    with pytest.raises(FileChangedError) as caught:
        (dataset or open_site(web, **WHOLE))[0]
    assert caught.value.path == f"{web.root}/{name}"


# Missing files and denied access.


def test_missing_shard(web, made):
    upload(web, made("covey"))
    name = shard_paths(made("covey"))[1].name
    dataset = open_site(web, **WHOLE)
    del web.objects.files[f"/birds/{name}"]
    with pytest.raises(DatasetError, match=f"{name}: the shard is missing"):
        open_site(web, **WHOLE)
    with pytest.raises(FileChangedError, match="the shard is missing") as caught:
        dataset[50]
    assert caught.value.path == f"{web.root}/{name}"
    assert numbers(dataset, [3]) == [3]


@pytest.mark.parametrize("site", ["web", "without_ranges", "memory"])
@pytest.mark.parametrize("name", ["missing", "missing.tfrecord", "missing/*.tfrecord"])
def test_missing_path(request, site, name):
    site = request.getfixturevalue(site)
    site.put("x", b"1")
    reason = "no file matches this pattern" if "*" in name else "no such file or directory"
    with pytest.raises(DatasetError, match=reason) as caught:
        opened(f"{site.root}/{name}")
    assert caught.value.path == f"{site.root}/{name}"


def test_access_is_denied(web, made):
    upload(web, made("covey"))
    dataset = open_site(web, **WHOLE)
    web.objects.fault = lambda method, path, attempt: "401" if method == "GET" else ""
    with pytest.raises(StoragePermissionError) as caught:
        dataset[0]
    assert caught.value.path == f"{web.root}/{shard_paths(made('covey'))[0].name}"
    web.objects.fault = lambda method, path, attempt: "403"
    with pytest.raises(StoragePermissionError) as caught:
        open_site(web)
    assert caught.value.path.startswith(web.root)
    assert "headers with Authorization" in caught.value.remedy
