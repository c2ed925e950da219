"""covey.open and covey.write behind URLs, with real servers, judged by what is on a local disk."""

import io
import itertools
import logging
import operator
import os
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import fsspec
import numpy as np
import PIL.Image
import pytest
from moto.server import ThreadedMotoServer
from opened import as_lists, opened
from servers import folder_server, range_server
from written import files, fresh_process, shard_paths, write

from covey.storage import blocks, sparse, tries

COUNTER = itertools.count()
BLOCK = sparse.BLOCK_BYTES
SPECIES = ("jay", "owl", "wren")
TRAIN, TEST = 120, 20


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Nothing of this machine's settings, no waiting, and a cache of its own."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "COVEY_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tries, "BASE_SECONDS", 0.002)
    monkeypatch.setattr(blocks, "_TOUCH_SECONDS", 0.0)


# Datasets on the local disk.


def picture(number):
    file = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), (number, 2, 3)).save(file, "PNG")
    return file.getvalue()


def examples(begin, end):
    """Examples of about 4 KiB, which do not compress."""
    for n in range(begin, end):
        noise = np.random.default_rng(n).bytes(3000 + 20 * (n % 100))
        yield {"x": n, "species": SPECIES[n % 3], "image": picture(n), "noise": noise}


FEATURES = {"x": "int64", "species": "str", "image": "image", "noise": "bytes"}


def make_covey(folder, compression=None):
    import covey

    features = {
        "x": "int64",
        "species": covey.ClassLabel(names=SPECIES),
        "image": covey.Image(),
        "noise": "bytes",
    }
    options = {"features": features, "shuffle": False, "compression": compression}
    write(examples(0, TRAIN), folder, shards=3, **options)
    write(examples(TRAIN, TRAIN + TEST), folder, "test", **options)


def make_tfds(folder):
    import tensorflow_datasets as tfds

    class Birds(tfds.core.GeneratorBasedBuilder):
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
    builder = Birds(data_dir=folder / "made")
    builder.download_and_prepare()
    shutil.copytree(builder.data_path, folder, dirs_exist_ok=True)
    shutil.rmtree(folder / "made")


def make_foreign(folder, compression=""):
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

    folder.mkdir()
    suffix = ".gz" if compression else ""
    for split, begin, end in [
        ("train-0", 0, 50),
        ("train-1", 50, TRAIN),
        ("test", TRAIN, TRAIN + TEST),
    ]:
        with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecord{suffix}"), compression) as writer:
            for each in examples(begin, end):
                writer.write(example(each))


MAKERS = {
    "covey": make_covey,
    "covey GZIP": lambda folder: make_covey(folder, "GZIP"),
    "covey ZLIB": lambda folder: make_covey(folder, "ZLIB"),
    "TFDS": make_tfds,
    "foreign": make_foreign,
    "foreign GZIP": lambda folder: make_foreign(folder, "GZIP"),
}
KINDS = list(MAKERS)
DESCRIBED = [kind for kind in KINDS if not kind.startswith("foreign")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a dataset of some kind, made once."""
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
    asked: Any = None

    def bring(self, folder):
        for name, data in files(folder).items():
            self.put(name, data)

    def path(self, local, kind):
        """What to open: the folder, or all files, if they cannot be listed."""
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
            aws_access_key_id="nobody",
            aws_secret_access_key="nothing",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        yield client, asked, endpoint
        client.close()


@pytest.fixture
def s3(s3_client):
    client, asked, endpoint = s3_client
    folder = f"folder{next(COUNTER)}/birds"
    asked.requests.clear()
    asked.fault = lambda method, path: 0

    def there():
        found = client.list_objects_v2(Bucket="bucket", Prefix=f"{folder}/").get("Contents", [])
        keys = [each["Key"] for each in found]
        return {
            key.removeprefix(f"{folder}/"): client.get_object(Bucket="bucket", Key=key)["Body"].read()
            for key in keys
        }

    return Place(
        f"s3://bucket/{folder}",
        lambda name, data: client.put_object(Bucket="bucket", Key=f"{folder}/{name}", Body=data),
        lambda name: client.delete_object(Bucket="bucket", Key=f"{folder}/{name}"),
        there,
        {"key": "nobody", "secret": "nothing", "client_kwargs": {"endpoint_url": endpoint}},
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
    folder = tmp_path / "served"
    (folder / "birds").mkdir(parents=True)

    def put(name, data):
        path = folder / "birds" / name
        path.write_bytes(data)
        os.utime(path, (next(COUNTER), next(COUNTER)))  # the server's clock knows seconds only

    with folder_server(folder) as url:
        yield Place(f"{url}/birds", put, lambda name: (folder / "birds" / name).unlink())


@pytest.fixture
def memory():
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
        assert (columns["noise"][row], columns["image"][row]) == (example["noise"], example["image"])
    return columns["x"].tolist()


WHOLE = {"split": "train"}
PARTS = {"split": "train[25%:60%]+test[-7:]"}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_as_from_disk(place, made, on_disk, kind):
    place.bring(made(kind))
    for options in (WHOLE, {**PARTS, "decode_images": kind in DESCRIBED}):
        with place.open(made(kind), kind, **options) as dataset:
            assert everything(dataset) == on_disk(kind, **options)


@pytest.mark.parametrize("kind", ["covey", "covey GZIP"])
def test_batches_are_the_same_if_files_are_not_mapped(web, made, on_disk, kind):
    web.bring(made(kind))
    assert everything(web.open(**WHOLE, map_files=False)) == on_disk(kind, **WHOLE)


@pytest.mark.parametrize("kind", ["covey", "covey GZIP", "covey ZLIB", "foreign"])
def test_batches_are_the_same_after_pickling_and_in_a_spawned_process(web, made, kind):
    web.bring(made(kind))
    dataset = web.open(made(kind), kind, **PARTS)
    ids = ids_of(dataset)
    expected = as_lists(dataset[ids])
    again = pickle.loads(pickle.dumps(dataset))
    assert as_lists(again[ids]) == expected
    with fresh_process() as run:
        assert as_lists(run(operator.getitem, again.select(ids), slice(None))) == expected


def test_a_spawned_process_reads_from_s3(s3, made):
    s3.bring(made("covey"))
    dataset = s3.open(**WHOLE)
    with fresh_process() as run:
        assert run(numbers, dataset, [7, 3, -1]) == [7, 3, TRAIN - 1]
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
def test_batches_are_the_same_after_a_fork(web, made, kind):
    web.bring(made(kind))
    with fresh_process() as run:
        assert run(forked, web.path(made(kind), kind), {}) == (0, [50, 110, 2])


def test_a_forked_process_reads_from_s3(s3, made):
    s3.bring(made("covey"))
    with fresh_process() as run:
        assert run(forked, s3.url, {"storage_options": s3.options}) == (0, [50, 110, 2])


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


@pytest.mark.parametrize("map_files", [True, False])
@pytest.mark.parametrize("kind", ["covey", "covey GZIP"])
def test_a_cache_that_does_not_hold_everything(web, made, kind, map_files):
    web.bring(made(kind))
    dataset = web.open(**WHOLE, cache_bytes=FEW_BLOCKS, map_files=map_files)
    order = np.random.default_rng(0).permutation(TRAIN).tolist()
    for begin in range(0, TRAIN, 2):
        assert numbers(dataset, order[begin : begin + 2]) == order[begin : begin + 2]
    reads = [each for each in web.asked.asked if each[0] == "GET" and each[2]]
    assert len(set(reads)) < len(reads)  # some of it had to go, and was fetched again
    kept = [sparse.bytes_present(str(path)) for path in (cache_folder() / "blocks").iterdir()]
    assert 0 < sum(kept) <= FEW_BLOCKS


KEPT = {}


def keep(url, options):
    """In another process: open a dataset, and keep it."""
    KEPT["dataset"] = opened(url, split="train", **options)


def read_kept(ids):
    return numbers(KEPT["dataset"], ids)


@pytest.mark.parametrize("map_files", [True, False])
def test_two_processes_that_take_each_others_blocks_away(web, made, map_files):
    web.bring(made("covey"))
    rng = np.random.default_rng(0)
    with fresh_process() as first, fresh_process() as second:
        for run in (first, second):
            run(keep, web.url, {"cache_bytes": FEW_BLOCKS, "map_files": map_files})
        for run in (first, second) * 15:
            ids = rng.integers(0, TRAIN, 2).tolist()
            assert run(read_kept, ids) == ids
    reads = [each for each in web.asked.asked if each[0] == "GET" and each[2]]
    assert len(set(reads)) < len(reads)


def evict(dataset):
    """What another process does that needs the room."""
    for path in (cache_folder() / "blocks").iterdir():
        sparse.discard(str(path))


@pytest.mark.parametrize("map_files", [True, False])
@pytest.mark.parametrize("kind", ["big", "big GZIP"])
def test_blocks_that_are_taken_away_while_they_are_read(web, made, monkeypatch, kind, map_files):
    """Another process removes them, and another thread then fetches others of the same shard."""
    web.bring(made(kind))
    dataset = web.open(map_files=map_files)
    real, times = LocalShards.fetch, itertools.count()

    def fetch(self, *args):
        held = real(self, *args)
        if next(times) == 0:
            evict(dataset)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(numbers, dataset, [BIG - 1]).result() == [BIG - 1]
        return held

    monkeypatch.setattr(LocalShards, "fetch", fetch)
    assert numbers(dataset, [0, 1]) == [0, 1]
    assert next(times) == 3  # the thread's, and once more


def test_files_that_are_opened_again_after_they_were_taken_away(web, made, monkeypatch):
    web.bring(made("covey"))
    dataset = web.open(**WHOLE, map_files=False)
    monkeypatch.setattr(gather_shards, "_OPEN_FILES", 1)
    real, times = LocalShards.fetch, itertools.count()

    def fetch(self, *args):
        held = real(self, *args)
        if next(times) == 0:
            evict(dataset)
        return held

    monkeypatch.setattr(LocalShards, "fetch", fetch)
    assert numbers(dataset, [0, 50, 100]) == [0, 50, 100]
    assert next(times) > 1


@pytest.mark.parametrize("map_files", [True, False])
def test_unpacked_shards_that_another_process_removes(web, made, monkeypatch, map_files):
    web.bring(made("covey ZLIB"))
    dataset = web.open(**WHOLE, map_files=map_files)
    assert numbers(dataset, [1]) == [1]
    real = LocalShards.open

    def open_and_lose(self, number):
        had = number in self._opened
        shard = real(self, number)
        if not had:
            os.unlink(shard.path)
        return shard

    monkeypatch.setattr(LocalShards, "open", open_and_lose)
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
def test_no_more_is_read_than_is_needed(counting, made, kind):
    counting.bring(made(kind))
    dataset = counting.open()
    _ = len(dataset), dataset.labels[:3], dataset.classes.counts, dataset.where(label="owl")
    assert shard_reads(counting) == []
    assert numbers(dataset, [BIG // 2, BIG // 2 + 1]) == [BIG // 2, BIG // 2 + 1]
    reads = shard_reads(counting)
    assert len(reads) <= 3  # how it begins, how it ends, and the examples
    assert sum(end - begin for begin, end in reads) <= 4 * BLOCK


@pytest.mark.parametrize("kind", ["TFDS", "foreign", "foreign GZIP"])
def test_an_index_is_made_by_reading_once_and_kept(counting, made, on_disk, kind):
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
    shutil.rmtree(cache_folder())
    web.bring(tmp_path / "birds")
    paths = [f"{web.url}/train-{n}.tfrecord" for n in range(2)]
    assert opened(paths).labels.tolist() == [n % 3 for n in range(TRAIN)]
    assert numbers(opened(paths), [60, 3]) == [60, 3]


def test_an_index_that_is_damaged_there_is_made_anew_once(web, made):
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


def test_a_copy_of_an_index_that_is_damaged_is_fetched_again(web, made):
    web.bring(made("covey"))
    web.open(**WHOLE)
    (copy,) = (cache_folder() / "indexes").glob("*/*train.index.npy")
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    forget_requests(web)
    assert len(web.open(**WHOLE)) == TRAIN
    assert shard_reads(web) == []


def test_a_server_that_refuses_what_is_not_there(web, made):
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


def other_records(data):
    """The same file, but with the last record in the place of the first that is as long."""
    with RecordReader(io.BytesIO(data)) as reader:
        records = list(reader)
    sizes = [len(each) for each in records]
    pairs = [(i, j) for i in range(len(sizes)) for j in range(i) if sizes[i] == sizes[j]]
    first, last = max(pairs, key=lambda pair: pair[0] - pair[1])
    records[first], records[last] = records[last], records[first]
    file = io.BytesIO()
    with RecordWriter(file) as writer:
        for each in records:
            writer.write(each)
    assert len(file.getvalue()) == len(data) != 0
    assert file.getvalue() != data
    return file.getvalue()
