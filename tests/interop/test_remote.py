"""covey.open and covey.write behind URLs, with real servers, judged by what is on a local disk."""

import errno
import io
import itertools
import json
import logging
import operator
import os
import pickle
import shutil
import signal
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import fsspec
import numpy as np
import PIL.Image
import pytest
from aiobotocore.session import AioSession
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer
from opened import as_lists, opened
from servers import directory_server, range_server, stand_alone
from written import TOKEN, content, files, fresh_process, shard_paths, write

from covey import ClassLabel, Image, RecordReader, RecordWriter
from covey.cli import main
from covey.dataset_info import has_token
from covey.errors import (
    CommittedError,
    CorruptRecordError,
    CoveyError,
    DatasetError,
    DatasetExistsError,
    FileChangedError,
    StorageError,
    StoragePermissionError,
)
from covey.reading.open_shards import OpenShards
from covey.storage import cache_directory, cache_entry, retry
from covey.writing.recovery import is_sidecar

COUNTER = itertools.count()
BLOCK = cache_entry.BLOCK_BYTES
SPECIES = ("jay", "owl", "wren")
TRAIN, TEST = 120, 20
BIG = range(1000, 1300)


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


# Datasets on the local disk.


def picture(number):
    file = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), (number, 2, 3)).save(file, "PNG")
    return file.getvalue()


def examples(begin, end):
    """Examples of about 4 KiB, which do not compress; those from 1000 on are all as long."""
    for n in range(begin, end):
        noise = np.random.default_rng(n).bytes(4300 if n in BIG else 3000 + 20 * (n % 100))
        image = picture(7 if n in BIG else n)
        yield {"x": n, "species": SPECIES[n % 3], "image": image, "noise": noise}


def make_covey(directory, compression=None, big=False):
    features = {
        "x": "int64",
        "species": ClassLabel(names=SPECIES),
        "image": Image(),
        "noise": "bytes",
    }
    options = {"features": features, "shuffle": False, "compression": compression}
    if big:
        write(examples(BIG[0], BIG[-1] + 1), directory, **options)
        return
    write(examples(0, TRAIN), directory, shards=3, **options)
    write(examples(TRAIN, TRAIN + TEST), directory, "test", **options)


def make_tfds(directory):
    import tensorflow_datasets as tfds

    class Birds(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("2.0.0")
        name = "birds"
        pkg_dir_path = None

        def _info(self):
            kinds = {
                "x": np.int64,
                "species": tfds.features.ClassLabel(names=SPECIES),
                "image": tfds.features.Image(shape=(None, None, 3)),
                "noise": tfds.features.Tensor(shape=(), dtype=np.bytes_),
            }
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(kinds))

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(0, TRAIN),
                "test": self._generate_examples(TRAIN, TRAIN + TEST),
            }

        def _generate_examples(self, begin, end):
            for each in examples(begin, end):
                yield each["x"], {**each, "image": io.BytesIO(each["image"])}

    tfds.disable_progress_bar()
    builder = Birds(data_dir=directory / "made")
    builder.download_and_prepare()
    shutil.copytree(builder.data_path, directory, dirs_exist_ok=True)
    shutil.rmtree(directory / "made")


def make_foreign(directory, compression=""):
    import tensorflow as tf

    def example(each):
        feature = {
            "x": tf.train.Feature(int64_list=tf.train.Int64List(value=[each["x"]])),
            **{
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                for name, value in [
                    ("label", each["species"].encode()),
                    ("image", each["image"]),
                    ("noise", each["noise"]),
                ]
            },
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    directory.mkdir()
    suffix = ".gz" if compression else ""
    for split, begin, end in [
        ("train-0", 0, 50),
        ("train-1", 50, TRAIN),
        ("test", TRAIN, TRAIN + TEST),
    ]:
        with tf.io.TFRecordWriter(
            str(directory / f"{split}.tfrecord{suffix}"), compression
        ) as writer:
            for each in examples(begin, end):
                writer.write(example(each))


MAKERS = {
    "covey": make_covey,
    "covey GZIP": lambda directory: make_covey(directory, "GZIP"),
    "covey ZLIB": lambda directory: make_covey(directory, "ZLIB"),
    "big": lambda directory: make_covey(directory, big=True),
    "big GZIP": lambda directory: make_covey(directory, "GZIP", big=True),
    "TFDS": make_tfds,
    "foreign": make_foreign,
    "foreign GZIP": lambda directory: make_foreign(directory, "GZIP"),
}
KINDS = [kind for kind in MAKERS if not kind.startswith("big")]
DESCRIBED = [kind for kind in MAKERS if not kind.startswith("foreign")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory of a dataset of some kind, made once."""
    root, there = tmp_path_factory.mktemp("made"), {}

    def get(kind):
        if kind not in there:
            there[kind] = root / kind.replace(" ", "_") / "birds"
            there[kind].parent.mkdir()
            MAKERS[kind](there[kind])
        return there[kind]

    return get


@pytest.fixture(scope="module")
def on_disk(made, tmp_path_factory):
    """What is had of the same dataset on a local disk; opening it leaves no index beside it."""
    root, found = tmp_path_factory.mktemp("disk"), {}

    def get(kind, **options):
        key = kind, *sorted(options.items())
        if key not in found:
            if not (root / kind).exists():
                shutil.copytree(made(kind), root / kind)
            found[key] = everything(opened(root / kind, **options))
        return found[key]

    return get


# Servers, and datasets there.


@dataclass
class Asked:
    """What a server was asked for, and what it refuses."""

    requests: list[tuple[str, str, str]] = field(default_factory=list)
    fault: Any = lambda method, path: 0
    lock: Any = field(default_factory=threading.Lock)


class WatchedApp:
    """An application of a web server that tells what it was asked for, and fails when it should."""

    def __init__(self, app, asked):
        self._app, self._asked = app, asked

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        wanted = environ.get("HTTP_RANGE") or environ.get("HTTP_X_AMZ_COPY_SOURCE", "")
        with self._asked.lock:
            self._asked.requests.append((method, path, wanted))
        status = self._asked.fault(method, path)
        if not status:
            return self._app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(f"{status} Failed", [("Content-Length", "0")])
        return [b""]


@dataclass
class Place:
    """Somewhere behind a URL: how files get there without covey, and what the server was asked."""

    url: str
    put: Any
    remove: Any = None
    files: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    lists: bool = True
    ignores_ranges: bool = False
    asked: Any = None

    def bring(self, directory):
        for name, data in files(directory).items():
            self.put(name, data)

    def path(self, local, kind):
        """What to open: the directory, or all files, if they cannot be listed."""
        if self.lists or kind in DESCRIBED:
            return self.url
        return [f"{self.url}/{name}" for name in files(local)]

    def open(self, local=None, kind="covey", **options):
        path = self.url if local is None else self.path(local, kind)
        return opened(path, storage_options=self.options, **options)


@contextmanager
def watched_s3():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    asked = Asked()
    server._server.app = WatchedApp(server._server.app, asked)
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}", asked
    finally:
        server.stop()


@pytest.fixture(scope="module")
def s3_client():
    with watched_s3() as (endpoint, asked):
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="reader",
            aws_secret_access_key="nothing",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        yield client, asked, endpoint
        client.close()


@pytest.fixture(scope="module")
def session():
    """What takes long to make for every client of S3, and can be shared, but not pickled."""
    return AioSession()


@pytest.fixture
def s3(s3_client, session):
    client, asked, endpoint = s3_client
    directory = f"folder{next(COUNTER)}/birds"
    asked.requests.clear()
    asked.fault = lambda method, path: 0

    def there():
        found = client.list_objects_v2(Bucket="bucket", Prefix=f"{directory}/").get("Contents", [])
        keys = [each["Key"] for each in found]
        objects = [(key, client.get_object(Bucket="bucket", Key=key)) for key in keys]
        return {key.removeprefix(f"{directory}/"): each["Body"].read() for key, each in objects}

    return Place(
        f"s3://bucket/{directory}",
        lambda name, data: client.put_object(Bucket="bucket", Key=f"{directory}/{name}", Body=data),
        lambda name: client.delete_object(Bucket="bucket", Key=f"{directory}/{name}"),
        there,
        {
            "key": "reader",
            "secret": "nothing",
            "client_kwargs": {"endpoint_url": endpoint},
            "session": session,
        },
        asked=asked,
    )


@pytest.fixture
def web():
    """A server of ranges that lists nothing."""
    with range_server() as (url, objects):
        yield Place(
            f"{url}/birds",
            lambda name, data: objects.files.update({f"/birds/{name}": data}),
            lambda name: objects.files.pop(f"/birds/{name}"),
            lists=False,
            asked=objects,
        )


@pytest.fixture
def faulty(web):
    """The same, and every second answer is a failure of one kind or another."""
    of_any = itertools.cycle(["", "500", "", "drop", "", "mute"])
    of_ranges = itertools.cycle(["", "short", "", "500", "", "shift", "", "drop", "", "mute"])
    lock = threading.Lock()

    def fault(method, path, attempt):
        is_whole = method == "HEAD" or path.endswith((".json", ".txt"))
        with lock:
            return next(of_any if is_whole else of_ranges) if attempt < 2 else ""

    web.asked.fault = fault
    return web


@pytest.fixture
def shelf(tmp_path):
    """Python's own server, which lists files and ignores ranges."""
    directory = tmp_path / "served"
    (directory / "birds").mkdir(parents=True)

    def put(name, data):
        path = directory / "birds" / name
        path.write_bytes(data)
        os.utime(path, (next(COUNTER), next(COUNTER)))  # the server's clock knows seconds only

    with directory_server(directory) as url:
        yield Place(
            f"{url}/birds",
            put,
            lambda name: (directory / "birds" / name).unlink(),
            ignores_ranges=True,
        )


@pytest.fixture
def memory():
    return in_memory()


def in_memory():
    url = f"memory://folder{next(COUNTER)}/birds"
    driver, root = fsspec.filesystem("memory"), url.removeprefix("memory:/")
    return Place(
        url,
        lambda name, data: driver.pipe_file(f"{url}/{name}", data),
        lambda name: driver.rm(f"{url}/{name}"),
        lambda: {
            path.removeprefix(f"{root}/"): driver.cat_file(path) for path in driver.find(root)
        },
    )


@pytest.fixture(params=["s3", "web", "faulty", "shelf", "memory"])
def place(request):
    return request.getfixturevalue(request.param)


# Reading.


def ids_of(dataset, seed=0, count=40):
    """Numbers in any order, some several times, some from the end."""
    return np.random.default_rng(seed).integers(-len(dataset), len(dataset), count)


def everything(dataset):
    """What can be had of a dataset, in ways that read it in any order."""
    some = dataset.where(label=[dataset.classes.names[0], dataset.classes.names[-1]])
    ids = ids_of(dataset)
    return {
        "random": as_lists(dataset[ids]),
        "slice": as_lists(dataset[3:20:4]),
        "one": as_lists(dataset[-1]),
        "raw": dataset.raw[ids],
        "where": as_lists(some[::5]),
        "column": as_lists(some.columns(["x"])),
        "all": [as_lists(each) for each in dataset],
        "labels": dataset.labels.tolist(),
        "names": dataset.classes.names,
        "counts": dataset.classes.counts.tolist(),
        "features": dataset.features,
    }


def numbers(dataset, ids):
    """The numbers of examples, each of which is what it should be."""
    columns = dataset[ids]
    for row, n in enumerate(columns["x"].tolist()):
        (example,) = examples(n, n + 1)
        assert columns["noise"][row] == example["noise"]
        assert columns["image"][row] == example["image"]
    return columns["x"].tolist()


WHOLE = {"split": "train"}
PARTS = {"split": "train[25%:60%]+test[-7:]"}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_as_from_disk(place, made, on_disk, kind):
    place.bring(made(kind))
    options = {**PARTS, "decode_images": kind in DESCRIBED}
    with place.open(made(kind), kind, **options) as dataset:
        assert everything(dataset) == on_disk(kind, **options)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_one_split_are_the_same(web, made, on_disk, kind, mmap):
    web.bring(made(kind))
    dataset = web.open(made(kind), kind, **WHOLE, mmap=mmap)
    assert everything(dataset) == on_disk(kind, **WHOLE)


@pytest.fixture(scope="module")
def spawned():
    with fresh_process() as run:
        yield run


@pytest.fixture
def elsewhere(spawned):
    """Runs functions in another process, with the same cache."""
    return partial(spawned, with_cache, str(cache_directory()))


def with_cache(directory, action, *args):
    os.environ["COVEY_CACHE"] = directory
    return action(*args)


@pytest.mark.parametrize("kind", ["covey", "covey GZIP", "covey ZLIB", "foreign"])
def test_batches_are_the_same_after_pickling_and_in_a_spawned_process(web, made, elsewhere, kind):
    web.bring(made(kind))
    dataset = web.open(made(kind), kind, **PARTS)
    ids = ids_of(dataset)
    expected = as_lists(dataset[ids])
    again = pickle.loads(pickle.dumps(dataset))
    assert as_lists(again[ids]) == expected
    assert as_lists(elsewhere(operator.getitem, again, ids)) == expected


def test_a_spawned_process_reads_from_s3(s3, made, elsewhere):
    del s3.options["session"]
    s3.bring(made("covey"))
    dataset = s3.open(**WHOLE)
    assert elsewhere(numbers, dataset, [7, 3, -1]) == [7, 3, TRAIN - 1]
    assert numbers(dataset, [100, 7]) == [100, 7]


def forked(path, options):
    """Use a dataset, then in a forked process, and then here again."""
    dataset = opened(path, split="train", **options)
    assert numbers(dataset, [1, 2]) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if numbers(dataset, [100, 60, 1]) == [100, 60, 1] else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, numbers(dataset, [50, 110, 2])


@pytest.mark.parametrize("kind", ["covey", "covey GZIP", "covey ZLIB", "foreign"])
def test_batches_are_the_same_after_a_fork(web, made, elsewhere, kind):
    web.bring(made(kind))
    assert elsewhere(forked, web.path(made(kind), kind), {}) == (0, [50, 110, 2])


def test_a_forked_process_reads_from_s3(s3, made, elsewhere):
    del s3.options["session"]
    s3.bring(made("covey"))
    options = {"storage_options": s3.options}
    assert elsewhere(forked, s3.url, options) == (0, [50, 110, 2])


@pytest.mark.parametrize("kind", ["covey", "covey GZIP", "covey ZLIB", "foreign"])
def test_four_threads_at_once(faulty, made, kind):
    faulty.bring(made(kind))
    dataset = faulty.open(made(kind), kind, **WHOLE)
    with ThreadPoolExecutor(4) as pool:
        orders = [ids_of(dataset, seed) for seed in range(12)]
        found = list(pool.map(lambda ids: numbers(dataset, ids), orders))
    assert found == [(order % TRAIN).tolist() for order in orders]


# A cache that is too small.

FEW_BLOCKS = 6 * BLOCK  # of the 9 that the shards of a split have


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["covey", "covey GZIP"])
def test_a_cache_that_does_not_hold_everything(web, made, kind, mmap):
    web.bring(made(kind))
    dataset = web.open(**WHOLE, cache_bytes=FEW_BLOCKS, mmap=mmap)
    order = np.random.default_rng(0).permutation(TRAIN).tolist()
    for begin in range(0, TRAIN, 2):
        assert numbers(dataset, order[begin : begin + 2]) == order[begin : begin + 2]
    reads = [each for each in web.asked.asked if each[0] == "GET" and each[2]]
    assert len(set(reads)) < len(reads)  # some of it had to go, and was fetched again
    kept = [
        cache_entry.stored_bytes(str(path)) for path in (cache_directory() / "blocks").iterdir()
    ]
    assert 0 < sum(kept) <= FEW_BLOCKS


KEPT = {}


def read_kept(url, ids, options):
    """Read from a dataset that a process keeps open."""
    if url not in KEPT:
        KEPT[url] = opened(url, **options)
    return numbers(KEPT[url], ids)


@pytest.mark.parametrize("mmap", [True, False])
def test_two_processes_that_evict_each_others_blocks(web, made, elsewhere, mmap):
    web.bring(made("covey"))
    options = {**WHOLE, "cache_bytes": FEW_BLOCKS, "mmap": mmap}
    rng = np.random.default_rng(0)
    for read in (read_kept, partial(elsewhere, read_kept)) * 15:
        ids = rng.integers(0, TRAIN, 2).tolist()
        assert read(web.url, ids, options) == ids
    reads = [each for each in web.asked.asked if each[0] == "GET" and each[2]]
    assert len(set(reads)) < len(reads)


def evict_all():
    """Evict every entry that is not pinned, as another process does that needs room."""
    return [cache_entry.evict(str(path)) for path in (cache_directory() / "blocks").iterdir()]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["big", "big GZIP"])
def test_blocks_in_use_are_not_evicted(web, made, monkeypatch, kind, mmap):
    web.bring(made(kind))
    dataset = web.open(mmap=mmap)
    real, evicted = OpenShards.fetched, []

    @contextmanager
    def fetched_and_evicted(self, *args):
        with real(self, *args) as pinned:
            evicted.extend(evict_all())
            yield pinned

    monkeypatch.setattr(OpenShards, "fetched", fetched_and_evicted)
    assert numbers(dataset, [0, 1]) == [BIG[0], BIG[1]]
    assert evicted == [False]
    assert evict_all() == [True]
    assert numbers(dataset, [0, 1]) == [BIG[0], BIG[1]]


@pytest.mark.parametrize("kind", ["covey", "covey GZIP"])
def test_more_remote_shards_than_can_be_pinned(web, made, monkeypatch, kind):
    monkeypatch.setattr("covey.reading.open_shards.max_open_files", lambda: 4)
    web.bring(made(kind))
    assert numbers(web.open(**WHOLE), [0, 100, 50, 3]) == [0, 100, 50, 3]


def flip(path, place=0.5):
    """Change a byte of a file in place, which those that have it mapped see."""
    at = int(path.stat().st_size * place)
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 16]))


def cached_files():
    directory = cache_directory()
    return [*directory.glob("blocks/*/data"), *directory.glob("unpacked/*")]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["covey", "covey GZIP", "covey ZLIB"])
def test_a_corrupt_byte_of_the_cache_is_fetched_again(web, made, kind, mmap):
    web.bring(made(kind))
    dataset = web.open(**WHOLE, mmap=mmap)
    everything = list(range(TRAIN))
    assert numbers(dataset, everything) == everything
    for _ in range(2):
        for path in cached_files():
            flip(path)
        assert numbers(dataset, everything) == everything
    for path in cached_files():
        flip(path)
    assert len(list(dataset.raw)) == TRAIN
    dataset.close()
    # A process that opens the file finds a block whose checksum is right, and its bytes are not.
    for path in cached_files():
        flip(path)
        marks = path.with_name("map")
        if marks.exists():
            data = path.read_bytes()
            steps = range(0, len(data), cache_entry.BLOCK_BYTES)
            sums = [
                cache_entry._checksum(data[step : step + cache_entry.BLOCK_BYTES]) for step in steps
            ]
            marks.write_bytes(marks.read_bytes()[:16] + np.array(sums, "<u4").tobytes())
    assert numbers(web.open(**WHOLE, mmap=mmap), everything) == everything


@pytest.mark.parametrize("mmap", [True, False])
def test_a_record_that_is_corrupt_there_is_fetched_twice(web, made, mmap):
    web.bring(made("covey"))
    (name,) = [each for each in web.asked.files if "train.tfrecord-00001" in each]
    data = bytearray(web.asked.files[name])
    at = len(data) // 2
    data[at] ^= 16
    web.asked.files[name] = bytes(data)
    dataset = web.open(**WHOLE, mmap=mmap)
    for times in (2, 1):
        forget_requests(web)
        with pytest.raises(CorruptRecordError, match="checksum"):
            dataset.raw[:]
        asked = [wanted for _, path, wanted in web.asked.asked if path == name and wanted]
        ranges = [map(int, wanted.removeprefix("bytes=").split("-")) for wanted in asked]
        assert sum(first <= at <= last for first, last in ranges) == times


@pytest.mark.parametrize("mmap", [True, False])
def test_decompressed_shards_that_the_user_removes(web, made, mmap):
    web.bring(made("covey ZLIB"))
    dataset = web.open(**WHOLE, mmap=mmap)
    assert numbers(dataset, [1]) == [1]
    for path in (cache_directory() / "unpacked").iterdir():
        path.unlink()
    assert numbers(dataset, [100, 50, 1]) == [100, 50, 1]


# Indexes.


def shard_reads(place):
    """The ranges of shards that were read; None is all of one."""
    requests = place.asked.requests if isinstance(place.asked, Asked) else place.asked.asked
    found = []
    for method, path, wanted in requests:
        if method == "GET" and ".tfrecord" in path and not path.endswith((".json", ".npy")):
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            found.append((int(begin), int(end) + 1) if wanted else None)
    return found


def forget_requests(place):
    (place.asked.requests if isinstance(place.asked, Asked) else place.asked.asked).clear()


@pytest.fixture(params=["s3", "web"])
def counting(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("kind", ["big", "big GZIP"])
def test_only_the_needed_blocks_are_read(counting, made, kind):
    counting.bring(made(kind))
    dataset = counting.open()
    _ = len(dataset), dataset.labels[:3], dataset.classes.counts, dataset.where(label="owl")
    assert shard_reads(counting) == []
    assert numbers(dataset, [150, 151]) == [BIG[150], BIG[151]]
    reads = shard_reads(counting)
    assert len(reads) <= 3  # how it begins, how it ends, and the examples
    assert sum(end - begin for begin, end in reads) <= 4 * BLOCK


@pytest.mark.parametrize("kind", ["TFDS", "foreign", "foreign GZIP"])
def test_an_index_is_built_once_and_cached(counting, made, on_disk, kind):
    counting.bring(made(kind))
    counting.open(made(kind), kind, **PARTS).close()
    assert shard_reads(counting)
    forget_requests(counting)
    dataset = counting.open(made(kind), kind, **PARTS)
    assert dataset.labels.tolist() == on_disk(kind, **PARTS)["labels"]
    assert shard_reads(counting) == []
    assert as_lists(dataset[-1]) == on_disk(kind, **PARTS)["one"]


def test_a_file_is_not_read_to_find_out_what_it_is(web, made):
    web.bring(made("foreign"))
    dataset = opened(f"{web.url}/test.tfrecord")
    assert numbers(dataset, [0, -1]) == [TRAIN, TRAIN + TEST - 1]
    assert None not in shard_reads(web)


def test_an_index_beside_shards_of_others_is_used(web, made, tmp_path):
    shutil.copytree(made("foreign"), tmp_path / "birds")
    opened(tmp_path / "birds", **WHOLE)
    shutil.rmtree(cache_directory())
    web.bring(tmp_path / "birds")
    paths = [f"{web.url}/train-{n}.tfrecord" for n in range(2)]
    assert opened(paths).labels.tolist() == [n % 3 for n in range(TRAIN)]
    assert numbers(opened(paths), [60, 3]) == [60, 3]


def test_a_corrupt_remote_index_is_rebuilt_once(web, made):
    web.bring(made("covey"))
    name = next(name for name in files(made("covey")) if name.endswith("train.index.npy"))
    data = bytearray(web.asked.files[f"/birds/{name}"])
    data[-1] ^= 1
    web.put(name, bytes(data))
    assert numbers(web.open(**WHOLE), [5, 100]) == [5, 100]
    assert shard_reads(web)
    forget_requests(web)
    dataset = web.open(**WHOLE)
    assert dataset.classes.names == SPECIES
    assert shard_reads(web) == []


def test_a_corrupt_copy_of_an_index_is_fetched_again(web, made):
    web.bring(made("covey"))
    web.open(**WHOLE)
    (copy,) = (cache_directory() / "indexes").glob("*/*train.index.npy")
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    forget_requests(web)
    assert len(web.open(**WHOLE)) == TRAIN
    assert shard_reads(web) == []


def test_a_server_that_refuses_access_to_missing_files(web, made):
    web.bring(made("TFDS"))
    web.asked.fault = lambda method, path, attempt: "403" if ".index." in path else ""
    assert len(web.open(**WHOLE)) == TRAIN


def test_threads_that_open_at_once(web, made):
    web.bring(made("covey"))
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda n: numbers(web.open(**WHOLE), [n, 0]), range(4))
        assert list(found) == [[n, 0] for n in range(4)]


# Files that change.


@pytest.fixture(params=["s3", "web", "shelf", "memory"])
def sound(request):
    return request.getfixturevalue(request.param)


def backwards(data):
    """A file as long, with the records in the reverse order."""
    with RecordReader(io.BytesIO(data)) as reader:
        records = list(reader)
    file = io.BytesIO()
    with RecordWriter(file) as writer:
        for each in reversed(records):
            writer.write(each)
    assert len(file.getvalue()) == len(data)
    return file.getvalue()


def only_shard(directory):
    (path,) = shard_paths(directory)
    return path.name, path.read_bytes()


def test_replaced_shards_of_other_programs_are_indexed_again(sound, made):
    sound.bring(made("foreign"))
    url = f"{sound.url}/test.tfrecord"
    dataset = opened(url, storage_options=sound.options)
    assert numbers(dataset, [0, 5]) == [TRAIN, TRAIN + 5]
    dataset.close()
    sound.put("test.tfrecord", backwards((made("foreign") / "test.tfrecord").read_bytes()))
    dataset = opened(url, storage_options=sound.options)
    assert numbers(dataset, slice(None)) == list(range(TRAIN, TRAIN + TEST))[::-1]
    assert dataset.labels.tolist() == [n % 3 for n in range(TRAIN, TRAIN + TEST)][::-1]


def test_a_shard_of_covey_that_was_replaced_is_an_error(sound, made):
    sound.bring(made("big"))
    assert numbers(sound.open(), [0]) == [BIG[0]]
    name, data = only_shard(made("big"))
    sound.put(name, backwards(data))
    with pytest.raises(FileChangedError, match="not the one that was indexed") as caught:
        sound.open()[0]
    assert caught.value.path == f"{sound.url}/{name}"
    sound.put(name, data[:-20])
    sizes = f"from {len(data)} to {len(data) - 20} bytes"
    with pytest.raises(DatasetError, match=f"the shard was truncated {sizes}") as caught:
        sound.open()
    assert caught.value.path == f"{sound.url}/{name}"
    sound.put(name, data)
    assert numbers(sound.open(), [7]) == [BIG[7]]


@pytest.mark.parametrize("mmap", [True, False])
def test_a_shard_that_is_replaced_while_it_is_open(sound, made, mmap):
    sound.bring(made("big"))
    dataset = sound.open(mmap=mmap)
    assert numbers(dataset, [0]) == [BIG[0]]
    name, data = only_shard(made("big"))
    sound.put(name, backwards(data))
    errors = []
    for row in range(0, len(BIG), 31):
        try:
            assert numbers(dataset, [row]) == [BIG[row]]
        except CoveyError as error:
            errors.append(error)
    assert {(type(each), each.path) for each in errors} <= {
        (FileChangedError, f"{sound.url}/{name}")
    }
    # What a server gives only as a whole was all there before.
    assert bool(errors) == (not sound.ignores_ranges)


def test_a_shard_that_was_replaced_when_a_pickle_is_opened(web, made):
    web.bring(made("big"))
    pickled = pickle.dumps(web.open())
    name, data = only_shard(made("big"))
    web.put(name, backwards(data))
    with pytest.raises(FileChangedError) as caught:
        pickle.loads(pickled)[150]
    assert caught.value.path == f"{web.url}/{name}"


@pytest.mark.parametrize(
    ("kind", "name"), [("foreign", "test.tfrecord"), ("covey ZLIB", "train.tfrecord-00000")]
)
def test_a_shard_that_is_replaced_while_it_is_opened(web, made, kind, name):
    """Between the first HEAD request and the first GET request."""
    web.bring(made(kind))
    dataset = web.open(**WHOLE) if kind != "foreign" else opened(f"{web.url}/{name}")
    (path,) = [path for path in web.asked.files if name in path and ".index" not in path]
    data = web.asked.files[path]
    is_zlib = kind != "foreign"

    def fault(method, asked, attempt):
        if method == "GET" and asked == path and web.asked.files[path] == data:
            other = backwards(zlib.decompress(data) if is_zlib else data)
            web.asked.files[path] = zlib.compress(other) if is_zlib else other
        return ""

    web.asked.fault = fault
    with pytest.raises(FileChangedError) as caught:
        dataset[0]
    assert caught.value.path.endswith(path)


# Missing files and denied access.


def test_a_missing_shard_is_named(sound, made):
    sound.bring(made("covey"))
    name = shard_paths(made("covey"))[1].name
    dataset = sound.open(**WHOLE)
    sound.remove(name)
    with pytest.raises(DatasetError, match=f"{name}: the shard is missing"):
        sound.open(**WHOLE)
    with pytest.raises(FileChangedError, match="the shard is missing") as caught:
        dataset[50]
    assert caught.value.path == f"{sound.url}/{name}"
    assert numbers(dataset, [3]) == [3]


@pytest.mark.parametrize("name", ["nothing", "nothing.tfrecord", "nothing/*.tfrecord"])
def test_a_path_that_does_not_exist(sound, made, name):
    sound.put("x", b"1")
    reason = "no file matches this pattern" if "*" in name else "no such file or directory"
    with pytest.raises(DatasetError, match=reason) as caught:
        opened(f"{sound.url}/{name}", storage_options=sound.options)
    assert caught.value.path == f"{sound.url}/{name}"


def test_no_such_bucket(s3):
    with pytest.raises(DatasetError, match="s3://absent/birds: there is no such file or directory"):
        opened("s3://absent/birds", storage_options=s3.options)


def test_refused(web, s3, made):
    for each in (web, s3):
        each.bring(made("covey"))
    web.asked.fault = lambda method, path, attempt: "403"
    s3.asked.fault = lambda method, path: 403
    for each, hint in ((web, "headers="), (s3, "key=, secret=")):
        with pytest.raises(StoragePermissionError) as caught:
            each.open()
        assert caught.value.path.startswith(each.url)
        assert hint in caught.value.remedy


def test_refused_later(web, made):
    web.bring(made("covey"))
    dataset = web.open(**WHOLE)
    web.asked.fault = lambda method, path, attempt: "401" if method == "GET" else ""
    with pytest.raises(StoragePermissionError) as caught:
        dataset[0]
    assert caught.value.path == f"{web.url}/{shard_paths(made('covey'))[0].name}"


def test_a_server_that_is_down(web, made):
    web.bring(made("covey"))
    web.asked.fault = lambda method, path, attempt: "503"
    with pytest.raises(StorageError, match=r"failed 5 times.*503"):
        web.open()


def test_storage_options_are_needed(s3, made):
    s3.bring(made("covey"))
    complete = {"endpoint_url": s3.options["client_kwargs"]["endpoint_url"]}
    complete |= {"key": "reader", "secret": "nothing"}
    assert len(opened(s3.url, split="train", storage_options=complete)) == TRAIN
    del complete["key"], complete["secret"]
    with pytest.raises(StoragePermissionError, match="credentials"):
        opened(s3.url, split="train", storage_options=complete)


# Writing.


def more(begin, end):
    """Examples that are quickly written."""
    return [{"x": n, "species": SPECIES[n % 3], "noise": "n" * (n % 50)} for n in range(begin, end)]


@pytest.fixture(params=["s3", "memory"])
def target(request):
    return request.getfixturevalue(request.param)


def put(place, examples, split="train", **options):
    options = {"label": "species", "shards": 2, **options}
    return write(examples, place.url, split, storage_options=place.options, **options)


STEPS = [
    {},
    {"split": "test", "shards": 1},
    {"mode": "append"},
    {"mode": "overwrite", "shards": 4, "compression": "GZIP"},
]


def untokened(names):
    """File names without their tokens, each as often as it is there."""
    return sorted(TOKEN.sub("", name) for name in names)


def check_same(place, directory):
    """What is behind a URL is what is in a directory, but for the tokens of versions."""
    found = place.files()
    with tempfile.TemporaryDirectory() as copy:
        for name, data in found.items():
            Path(copy, name).write_bytes(data)
        assert content(Path(copy)) == content(directory)
    assert untokened(found) == untokened(files(directory))


def test_what_is_written_is_the_same_as_on_disk(target, tmp_path):
    for number, options in enumerate(STEPS):
        batch = more(100 * number, 100 * number + 90)
        written = put(target, batch, **options)
        options = {"label": "species", "shards": 2, **options}
        expected = write(batch, tmp_path / "birds", **options)
        check_same(target, tmp_path / "birds")
        assert written.path == target.url
        shards = [replace(each, name=TOKEN.sub("", each.name)) for each in written.shards]
        assert shards == [replace(each, name=TOKEN.sub("", each.name)) for each in expected.shards]
        assert all(has_token(each.name) for each in written.shards)
    ours, theirs = target.open(split="train+test"), opened(tmp_path / "birds", split="train+test")
    assert as_lists(ours.columns()) == as_lists(theirs.columns())
    assert ours.classes.counts.tolist() == theirs.classes.counts.tolist()


def test_a_version_is_written_where_tfds_has_it(memory, tmp_path):
    memory.url += "/2.1.0"
    put(memory, more(0, 9))
    write(more(0, 9), tmp_path / "birds/2.1.0", label="species", shards=2)
    there = memory.files()
    memory.files = lambda: {name.removeprefix("2.1.0/"): data for name, data in there.items()}
    check_same(memory, tmp_path / "birds/2.1.0")
    assert memory.open().classes.counts.tolist() == [3, 3, 3]


def test_tfds_and_tensorflow_read_what_was_written(s3, tmp_path):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    put(s3, more(0, 30), shuffle=False)
    put(s3, more(30, 40), shuffle=False, mode="append")
    for name, data in s3.files().items():
        (tmp_path / name).write_bytes(data)
    builder = tfds.builder_from_directory(tmp_path)
    options = tfds.ReadConfig(interleave_cycle_length=1)
    found = tfds.as_numpy(builder.as_dataset("train", read_config=options))
    assert [int(each["x"]) for each in found] == list(range(40))
    assert builder.info.features["species"].names == list(SPECIES)
    paths = [str(path) for path in shard_paths(tmp_path)]
    raw = [each.numpy() for each in tf.data.TFRecordDataset(paths)]
    assert raw == s3.open().raw[:]


def puts(place):
    """What was put, in order, and where that was copied from."""
    directory = f"/{place.url.removeprefix('s3://')}/"
    return [
        (path.removeprefix(directory), source.removeprefix(directory).removeprefix(directory[1:]))
        for method, path, source in place.asked.requests
        if method == "PUT" and ".covey-" not in path
    ]


def test_files_are_put_in_order_and_dataset_info_last(s3):
    put(s3, more(0, 30))
    names = [name for name, _ in puts(s3)]
    assert sorted(names) == sorted(s3.files())
    assert [TOKEN.sub("", name) for name in names] == [
        "birds-train.tfrecord-00000-of-00002",
        "birds-train.tfrecord-00001-of-00002",
        "birds-train.by_class.npy",
        "birds-train.classes.npy",
        "birds-train.index.npy",
        "birds-train.index.json",
        "features.json",
        "species.labels.txt",
        "dataset_info.json",
    ]


@pytest.mark.parametrize("keeps", [True, False])
def test_sidecar_files_of_other_features_are_put_after_the_switch(s3, keeps):
    put(s3, more(0, 30))
    forget_requests(s3)
    if keeps:  # of other classes
        put(s3, [{**each, "species": "emu"} for each in more(30, 60)], mode="append")
    else:
        put(s3, [{"x": 1, "species": "emu"}], mode="overwrite", shards=1)
    names = [name for name, _ in puts(s3) if "-train" not in name]
    sidecars = ["features.json", "species.labels.txt"]
    switch = ["dataset_info.json"]
    assert names == (sidecars + switch if keeps else switch + sidecars)


def test_shards_that_stay_are_copied_by_the_server(s3):
    put(s3, more(0, 30))
    (old,) = {TOKEN.search(name)[0] for name in s3.files() if has_token(name)}
    forget_requests(s3)
    put(s3, more(30, 60), mode="append")
    shards = [each for each in puts(s3) if ".tfrecord-" in each[0]]
    (new,) = {TOKEN.search(name)[0] for name, _ in shards}
    assert new != old
    assert shards == [
        *((f"birds-train{new}.tfrecord-{n:05}-of-00004",
           f"birds-train{old}.tfrecord-{n:05}-of-00002") for n in (0, 1)),
        *((f"birds-train{new}.tfrecord-{n:05}-of-00004", "") for n in (2, 3)),
    ]  # fmt: skip
    assert puts(s3)[-1] == ("dataset_info.json", "")


def test_no_file_of_the_replaced_version_is_put_or_deleted(s3):
    put(s3, more(0, 30))
    before = {name: data for name, data in s3.files().items() if has_token(name)}
    forget_requests(s3)
    put(s3, more(30, 60), mode="overwrite")
    changed = {
        path.rpartition("/")[2]
        for method, path, _ in s3.asked.requests
        if method not in ("GET", "HEAD")
    }
    assert changed.isdisjoint(before)
    assert before.items() <= s3.files().items()
    assert len(s3.open()) == 30


def test_versions_before_the_replaced_one_are_deleted(target, monkeypatch):
    versions = []
    for number, retention in enumerate([60, 60, 60, 0]):
        monkeypatch.setattr("covey.writing.versions.RETENTION_S", retention)
        before = {name for name in target.files() if has_token(name)}
        put(target, more(0, 30 + number), mode="overwrite")
        there = {name for name in target.files() if has_token(name)}
        versions.append(there - before)
        assert there == set().union(*(versions if retention else versions[-2:]))
    assert len(target.open()) == 33


# Writing that fails.


@contextmanager
def failing(first, last):
    """Let some changes in memory:// fail, by their numbers; all from the first if last is None.

    Yields the names of the files of those that were tried.
    """
    tried = []

    def watched(name, real):
        def method(self, *args, **options):
            path = args[0] if name in ("pipe_file", "rm_file") else args[1]
            number = len(tried)
            tried.append(path.rpartition("/birds/")[2])
            if first <= number and (last is None or number < last):
                raise PermissionError("no more")
            return real(self, *args, **options)

        return method

    with pytest.MonkeyPatch.context() as patch:
        for name in ("pipe_file", "put_file", "cp_file", "rm_file"):
            real = getattr(MemoryFileSystem, name)
            patch.setattr(MemoryFileSystem, name, watched(name, real))
        yield tried


def emus(count):
    return [{**each, "species": "emu"} for each in more(30, 30 + count)]


@dataclass
class Way:
    """A write to a dataset, or to an empty place."""

    examples: Any
    options: dict[str, Any]
    is_first: bool = False

    def prepare(self):
        place = in_memory()
        if not self.is_first:
            put(place, more(0, 30))
        return place

    def act(self, place):
        put(place, self.examples, **self.options)

    def steps(self):
        """The names of all files that are put or removed, in order."""
        place = self.prepare()
        with failing(0, 0) as tried:
            self.act(place)
        return tried


WAYS = {
    "first": Way(more(30, 60), {}, is_first=True),
    "another": Way(more(30, 60), {"split": "test"}),
    "another, new classes": Way(emus(9), {"split": "test"}),
    "append": Way(more(30, 60), {"mode": "append"}),
    "append, new classes": Way(emus(9), {"mode": "append"}),
    "overwrite": Way(more(30, 60), {"mode": "overwrite"}),
    "overwrite, other classes": Way(emus(9), {"mode": "overwrite"}),
    "overwrite, other features": Way(
        [{"x": n, "colour": f"colour {n % 2}"} for n in range(9)],
        {"mode": "overwrite", "label": "colour"},
    ),
}


def seen(place):
    """The records and class names of all splits, as covey reads them."""
    if "dataset_info.json" not in place.files():
        return {}
    found = {}
    for split in json.loads(place.files()["dataset_info.json"])["splits"]:
        dataset = place.open(split=split["name"])
        found[split["name"]] = (dataset.raw[:], dataset.classes.names)
    return found


def sidecars(place):
    return {name: data for name, data in place.files().items() if is_sidecar(name)}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_one_failed_request_before_the_switch_changes_nothing(way):
    steps, place = way.steps(), way.prepare()
    before = place.files()
    switch = steps.index("dataset_info.json")
    probe = [0, 1]  # a file that is put, and removed at best
    assert all(".tmp" in steps[number] for number in probe)
    for fatal in (each for each in range(switch + 1) if each != probe[1]):
        with failing(fatal, fatal + 1), pytest.raises(StoragePermissionError, match="no more"):
            way.act(place)
        assert place.files() == before
    way.act(place)
    assert seen(place) != {}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_writer_that_is_cut_off_leaves_the_old_or_the_new_dataset(way):
    steps, done = way.steps(), way.prepare()
    old = seen(done)
    way.act(done)
    new = seen(done)
    switch = steps.index("dataset_info.json")
    for first in range(2, len(steps)):
        place = way.prepare()
        before = place.files()
        kind = StoragePermissionError if first <= switch else CommittedError
        with failing(first, None), pytest.raises(kind, match="no more"):
            way.act(place)
        assert seen(place) == (old if first <= switch else new)
        kept = {name: data for name, data in before.items() if has_token(name)}
        assert kept.items() <= place.files().items()
        # The next writer can write; without a dataset, a features.json may be of another program.
        mode = "overwrite" if way.is_first else "error"
        if first <= switch:
            put(place, more(60, 70), "next", mode=mode)
        else:
            put(place, way.examples, **{**way.options, "split": "next", "mode": mode})
            assert sidecars(done).items() <= sidecars(place).items()
        after = seen(place)
        assert len(after.pop("next")[0]) > 0
        assert after == (old if first <= switch else new)


def test_a_failed_put_of_dataset_info_that_was_carried_out_counts(memory):
    put(memory, more(0, 30))
    real = MemoryFileSystem.pipe_file

    def pipe_file(self, path, value, **options):
        real(self, path, value, **options)
        if path.endswith("dataset_info.json"):
            raise PermissionError("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
        written = put(memory, more(0, 60), mode="overwrite")
    assert written.records == len(memory.open()) == 60


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_an_unknown_outcome_of_the_switch_is_reported(memory, is_carried_out):
    put(memory, more(0, 30))
    real, read, is_down = MemoryFileSystem.pipe_file, MemoryFileSystem.cat_file, []

    def pipe_file(self, path, value, **options):
        if not path.endswith("dataset_info.json"):
            return real(self, path, value, **options)
        if is_carried_out:
            real(self, path, value, **options)
        is_down.append(True)
        raise PermissionError("no answer")

    def cat_file(self, path, *args, **options):
        if is_down:
            raise PermissionError("no answer")
        return read(self, path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
        patch.setattr(MemoryFileSystem, "cat_file", cat_file)
        with pytest.raises(DatasetError, match="unknown whether split 'train' is written"):
            put(memory, more(0, 60), mode="overwrite")
    assert len(memory.open()) == (60 if is_carried_out else 30)


@pytest.fixture
def _default_sigint():
    """Python's handler of SIGINT, which a process started in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_sigint")
def test_ctrl_c_while_the_outcome_of_the_switch_is_unknown(memory):
    put(memory, more(0, 30))
    real, read, is_down = MemoryFileSystem.pipe_file, MemoryFileSystem.cat_file, []

    def pipe_file(self, path, value, **options):
        real(self, path, value, **options)
        if path.endswith("dataset_info.json"):
            is_down.append(True)
            signal.raise_signal(signal.SIGINT)
            raise PermissionError("no answer")

    def cat_file(self, path, *args, **options):
        if is_down:
            raise PermissionError("no answer")
        return read(self, path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
        patch.setattr(MemoryFileSystem, "cat_file", cat_file)
        with pytest.raises(KeyboardInterrupt, match="may be written or not") as raised:
            put(memory, more(0, 60), mode="append")
    assert "nothing was changed" not in str(raised.value)
    assert len(memory.open()) == 90  # nothing was taken back


def test_a_local_disk_that_fails_does_not_mean_that_the_split_is_written(memory, monkeypatch):
    put(memory, more(0, 30))
    before = memory.files()

    def fail(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("covey.writing.commit._remove_obsolete", fail)
    with pytest.raises(DatasetError, match=r"No space left.*nothing was changed") as raised:
        put(memory, more(30, 60), mode="append")
    assert not isinstance(raised.value, CommittedError)
    assert memory.files() == before


@pytest.mark.usefixtures("_default_sigint")
@pytest.mark.parametrize("name", [".tmp", "00001-of-00002", "index.json", "dataset_info.json"])
def test_ctrl_c_says_whether_the_split_is_written(memory, name):
    put(memory, more(0, 30))
    before, is_written = memory.files(), name == "dataset_info.json"

    def interrupting(real):
        def method(self, *args, **options):
            real(self, *args, **options)
            if str(args[0]).endswith(name) or str(args[1]).endswith(name):
                signal.raise_signal(signal.SIGINT)

        return method

    state = "is written" if is_written else "is not written, nothing was changed"
    with pytest.MonkeyPatch.context() as patch:
        for method in ("pipe_file", "put_file"):
            real = getattr(MemoryFileSystem, method)
            patch.setattr(MemoryFileSystem, method, interrupting(real))
        with pytest.raises(KeyboardInterrupt) as raised:
            put(memory, more(0, 60), mode="overwrite")
    assert str(raised.value) == f"{memory.url}: interrupted; split 'train' {state}"
    assert len(memory.open()) == (60 if is_written else 30)
    if not is_written:
        there = memory.files()
        assert {each: there[each] for each in there if ".tmp" not in each} == before


@pytest.mark.parametrize("name", ["tfrecord-00001-of-00002", "dataset_info.json"])
def test_an_upload_to_s3_that_fails(s3, name):
    put(s3, more(0, 30))
    before = s3.files()
    times = itertools.count()
    s3.asked.fault = lambda method, path: (
        500 * (method == "PUT" and path.endswith(name) and next(times) < retry.MAX_ATTEMPTS)
    )
    with pytest.raises(StorageError, match=f"{name}: (writing|copying) failed 5 times"):
        put(s3, more(30, 60), mode="overwrite")
    assert s3.files() == before


def test_transient_failures_are_retried(s3, tmp_path):
    lock, faults = threading.Lock(), itertools.cycle([0, 0, 503, 0, 500])

    def fault(method, path):
        with lock:
            return next(faults)

    s3.asked.fault = fault
    for number, options in enumerate([{}, {"mode": "append"}]):
        put(s3, more(30 * number, 30 * number + 30), **options)
        options = {"label": "species", "shards": 2, **options}
        write(more(30 * number, 30 * number + 30), tmp_path / "birds", **options)
    s3.asked.fault = lambda method, path: 0
    check_same(s3, tmp_path / "birds")


def test_old_files_that_cannot_be_deleted_are_reported(s3, monkeypatch):
    monkeypatch.setattr("covey.writing.versions.RETENTION_S", 0)
    put(s3, more(0, 30))
    put(s3, more(0, 30), mode="overwrite")
    s3.asked.fault = lambda method, path: 403 if method == "DELETE" and "-of-" in path else 0
    with pytest.raises(CommittedError, match=r"'train' is written, but .*deleted") as caught:
        put(s3, more(0, 60), mode="overwrite", shards=3)
    assert caught.value.path == s3.url
    assert "do not write the same examples again" in caught.value.remedy
    assert len(s3.open()) == 60


@pytest.mark.parametrize(
    ("where", "split", "is_there"),
    [
        ("s3", "test", True),
        ("memory", "test", True),
        ("memory", "test", False),
        ("memory", "train", True),
        ("memory", "train", False),
    ],
)
def test_another_writer_is_noticed_and_loses_nothing(request, where, split, is_there):
    place, after = request.getfixturevalue(where), {}
    if is_there:
        put(place, more(0, 30), "val")

    def interrupted():
        yield from more(60, 90)
        put(place, more(30, 60), split)
        after.update(place.files())

    with pytest.raises(DatasetError, match=f"{place.url}: another process has changed"):
        put(place, interrupted())
    assert after == place.files()
    assert len(place.open(split=split)) == 30


def test_another_writer_that_comes_while_shards_are_brought(memory, monkeypatch):
    put(memory, more(0, 30), "val")
    real, after = MemoryFileSystem.put_file, {}

    def put_file(self, local, path, **options):
        monkeypatch.setattr(MemoryFileSystem, "put_file", real)
        put(memory, more(30, 60), "train")
        after.update(memory.files())
        real(self, local, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
    with pytest.raises(DatasetError, match="another process has changed the dataset"):
        put(memory, more(60, 90), "test")
    assert memory.files() == after
    assert len(memory.open(split="train")) == 30


def test_write_permission_is_checked_first(s3):
    put(s3, more(0, 30))
    before = s3.files()
    s3.asked.fault = lambda method, path: 403 if method == "PUT" else 0
    examples = iter(more(30, 60))
    with pytest.raises(StoragePermissionError, match=f"{s3.url}.*refused"):
        put(s3, examples, mode="append")
    assert len(list(examples)) == 30
    s3.asked.fault = lambda method, path: 0
    assert s3.files() == before


def test_a_missing_bucket_is_reported_first(s3):
    examples = iter(more(0, 30))
    s3.url = "s3://absent/birds"
    with pytest.raises(StorageError, match="s3://absent/birds"):
        put(s3, examples)
    assert len(list(examples)) == 30


def test_a_web_server_cannot_be_written_to(web):
    with pytest.raises(StorageError, match="http:// does not support writing") as caught:
        put(web, more(0, 3))
    assert caught.value.path.startswith(web.url)


def test_errors_name_the_url_and_leave_no_local_files(target, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    put(target, more(0, 30))
    for examples, options, kind in (
        (more(0, 30), {}, DatasetExistsError),
        (more(0, 30), {"mode": "append", "compression": "GZIP"}, DatasetError),
        ([], {"split": "test"}, DatasetError),
    ):
        with pytest.raises(kind) as caught:
            put(target, examples, **options)
        assert str(caught.value).startswith(f"{target.url}: ")
    assert list((tmp_path / "temporary").iterdir()) == []


class Drawer(MemoryFileSystem):
    """A driver that cannot copy."""

    protocol = "drawer"

    def cp_file(self, path1, path2, **options):
        raise NotImplementedError

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("drawer://", "memory://"))


def test_a_driver_that_cannot_copy(memory, tmp_path):
    fsspec.register_implementation("drawer", Drawer, clobber=True)
    memory.url = memory.url.replace("memory", "drawer")
    for number, options in enumerate(STEPS):
        put(memory, more(100 * number, 100 * number + 90), **options)
        options = {"label": "species", "shards": 2, **options}
        write(more(100 * number, 100 * number + 90), tmp_path / "birds", **options)
        check_same(memory, tmp_path / "birds")


# The command line.


def arguments(place):
    """Its storage options, as a command line has them."""
    endpoint = json.dumps(place.options["client_kwargs"])
    for each in ("key=reader", "secret=nothing", f"client_kwargs={endpoint}"):
        yield from ("--storage-option", each)


def test_the_command_line_writes_to_s3(s3, tmp_path, capsys):
    lines = [json.dumps(each) for each in more(0, 60)]
    (tmp_path / "birds.jsonl").write_text("\n".join(lines))
    command = ["write", str(tmp_path / "birds.jsonl"), s3.url, "--label", "species"]
    command += [*arguments(s3), "--val-fraction", "0.3", "--shards", "2"]
    assert main(command) == 0
    assert f"\n{s3.url}: x, species, noise; label 'species'\n" in capsys.readouterr().out
    assert len(s3.open(split="train+val")) == 60
    assert main(command) == 1
    message = capsys.readouterr().err
    assert f"error: {s3.url}: split 'train' exists; pass --mode overwrite" in message


def test_the_command_line_says_what_is_refused(s3, tmp_path, capsys):
    (tmp_path / "birds.jsonl").write_text(json.dumps(more(0, 1)[0]))
    endpoint = json.dumps(s3.options["client_kwargs"])
    command = ["write", str(tmp_path / "birds.jsonl"), s3.url]
    assert main([*command, "--storage-option", f"client_kwargs={endpoint}"]) == 1
    assert f"covey: error: {s3.url}" in (told := capsys.readouterr().err)
    assert "credentials" in told
    assert s3.files() == {}
