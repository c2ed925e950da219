"""Reading in Ray: Ray Datasets of every feature type, and ranks in workers of Ray Train."""

import gzip
import logging
import os
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray
import ray.cloudpickle
import ray.data
import ray.train
from clusters import local_ray
from opened import as_lists, opened, put, put_numbers
from pictures import draw, png
from ray.train.torch import TorchConfig, TorchTrainer
from servers import range_server
from written import shard_paths, write

import covey
from covey import Audio, ClassLabel, Image, Ragged, Sparse, Tensor
from covey.adapters.ray import Datasource, find_schema, make_block, read
from covey.adapters.torch_samplers import find_rank
from covey.dataset.export import ExportColumns
from covey.errors import (
    CorruptRecordError,
    DatasetError,
    FeatureError,
    FileChangedError,
    SkippedRecordsWarning,
)

RANKS, P, K, STEPS = 2, 10, 3, 6

FEATURES = {
    "n": "int64",
    "small": "uint8",
    "flag": "bool",
    "text": "str",
    "data": "bytes",
    "vector": Tensor("float32", (2,)),
    "flags": Tensor("bool", (3,)),
    "none": Tensor("int64", (0,)),
    "matrix": Tensor("uint8", (2, 3)),
    "raw": Tensor("int16", (2,), encoding="bytes"),
    "zipped": Tensor("float64", (2, 2), encoding="zlib"),
    "length": Tensor("int64", (None,)),
    "rows": Tensor("int64", (None, 2)),
    "columns": Tensor("float32", (2, None)),
    "areas": Tensor("uint8", (None, None), encoding="bytes"),
    "words": Tensor("str", (None,)),
    "pair": Tensor("bytes", (2,)),
    "table": Tensor("str", (2, None)),
    "deep": Ragged("int64"),
    "deeper": Ragged("str", 3),
    "boxes": Ragged("float32", shape=(2,)),
    "sparse": Sparse("float32", (4,)),
    "grid": Sparse("int64", (2, 2)),
    "sound": Audio(8000, "int16"),
    "meta": {"half": "float16", "double": "float64", "inner": {"x": Tensor("int64", (None,))}},
    "coarse": ClassLabel(num_classes=5),
    "label": ClassLabel(["owl", "wren"]),
}


def example(n):
    return {
        "n": n - 3,
        "small": n,
        "flag": n % 2 == 0,
        "text": "é" * (n % 5),
        "data": bytes([255, n]),
        "vector": [n, 0.5],
        "flags": [True, n % 2 == 0, False],
        "none": [],
        "matrix": np.full((2, 3), n, np.uint8),
        "raw": [n, -n],
        "zipped": [[n / 3, 0], [1, -n]],
        "length": list(range(n % 3)),
        "rows": np.full((n % 3, 2), n),
        "columns": np.full((2, n % 4), n, np.float32),
        "areas": np.full((n % 3, n % 2 + 1), n, np.uint8),
        "words": ["a" * k for k in range(n % 3)],
        "pair": [b"", bytes([n])],
        "table": [["x"] * (n % 3), ["y"] * (n % 3)],
        "deep": [[1] * k for k in range(n % 3)],
        "deeper": [[["a"], []]] * (n % 2),
        "boxes": [[[1, n]] * (n % 3)],
        "sparse": [0, n, 0, 0.5],
        "grid": [[0, n], [1, 0]],
        "sound": np.arange(n % 7, dtype=np.int16),
        "meta": {"half": n, "double": n / 3, "inner": {"x": [n] * (n % 2)}},
        "coarse": n % 5,
        "label": n % 3 - 1,
    }


@pytest.fixture(scope="module", autouse=True)
def _cluster(ray_context):
    """Run Ray; keep the order of blocks, and do not log tasks that fail on purpose."""
    ray_context.execution_options.preserve_order = True
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    with local_ray(sys.modules[__name__]):
        yield


def flatten(example, prefix=""):
    """Return an example of covey with the full names of its features, as lists."""
    found = {}
    for name, value in example.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{prefix}{name}/")
        else:
            dense = value.to_dense() if hasattr(value, "to_dense") else value
            found[prefix + name] = as_lists(dense)
    return found


def check_equal(found, dataset):
    """Compare a Ray Dataset with a dataset."""
    assert found.count() == len(dataset)
    rows = found.take_all()
    assert [{name: as_lists(each) for name, each in row.items()} for row in rows] == [
        flatten(each) for each in dataset
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A dataset of every feature type, in several shards."""
    path = tmp_path_factory.mktemp("ray") / "data"
    examples = [example(n) for n in range(57)]
    write(examples, path, features=FEATURES, label="label", shuffle=False, shards=3)
    return path


# Datasets.


def test_every_feature(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    found = read("data", split="train", override_num_blocks=4)
    with opened(path) as ds:
        check_equal(found, ds)
        check_equal(read(path, override_num_blocks=100), ds)  # more tasks than examples
    schema = found.schema()
    types = dict(zip(schema.names, map(str, schema.types), strict=True))
    assert types["n"] == types["label"] == types["coarse"] == "int64"
    assert (types["small"], types["text"], types["data"]) == ("uint8", "string", "binary")
    assert types["length"] == types["meta/inner/x"] == "list<item: int64>"
    assert types["table"] == "list<item: list<item: string>>"
    batch = next(iter(found.iter_batches(batch_size=11)))
    assert (batch["vector"].shape, batch["vector"].dtype) == ((11, 2), np.float32)
    assert (batch["matrix"].shape, batch["matrix"].dtype) == ((11, 2, 3), np.uint8)
    assert (batch["sparse"].shape, batch["small"].dtype) == ((11, 4), np.uint8)


def test_slices_and_selections(path):
    with opened(path, split="train[:50%]") as ds:
        found = read(path, split="train[:50%]", select=["label", "meta/half"])
        assert found.schema().names == ["label", "meta/half"]
        halves = ds.columns("meta/half")["meta"]["half"]
        assert found.take_all() == [
            {"label": label, "meta/half": half}
            for label, half in zip(ds.labels, halves, strict=True)
        ]
    options = {"concurrency": 1, "ray_remote_args": {"num_cpus": 0.5}}
    rows = read(path, select="n", **options).take_all()
    assert [row["n"] for row in rows] == list(range(-3, 54))
    assert read(path, split="train[10:12]", select="n").take_all() == [{"n": 7}, {"n": 8}]


def test_blocks_have_the_declared_schema(path):
    """The schema is known before a record is read, and sizes are estimated."""
    source = Datasource(path)
    tasks = source.get_read_tasks(5)
    assert sum(task.metadata.num_rows for task in tasks) == 57
    assert sum(task.metadata.size_bytes for task in tasks) == pytest.approx(
        source.estimate_inmemory_data_size(), abs=5
    )
    with opened(path) as ds:
        columns = ExportColumns(ds, None)
        schema = find_schema(columns.kinds, pixels=False)
        blocks = [make_block(columns.read(ids), schema) for ids in ds.raw.chunks(max_records=20)]
    assert all(block.schema == schema == task.schema for block in blocks for task in tasks)
    size = sum(block.nbytes for block in blocks)
    assert size / 3 < source.estimate_inmemory_data_size() < size * 3


def test_blocks_are_bounded(tmp_path, monkeypatch):
    examples = ({"data": bytes(n % 100) * 1000, "n": n} for n in range(400))
    write(examples, tmp_path / "data", shuffle=False)
    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "target_max_block_size", 1 << 20)
    found = read(tmp_path / "data", override_num_blocks=1).materialize()
    blocks = ray.get(found.get_internal_block_refs())
    assert len(blocks) > 10
    assert max(block.nbytes for block in blocks) < 2 << 20
    assert [n for block in blocks for n in block["n"].to_pylist()] == list(range(400))


def test_tfrecords_of_another_program(tmp_path):
    """The same values as ray.data.read_tfrecords, which has no features and no empty lists."""
    features = {
        "n": "int64",
        "x": "float32",
        "data": "bytes",
        "list": Tensor("int64", (None,)),
        "vector": Tensor("float32", (3,)),
        "a/b": "int64",
    }
    examples = [
        {"n": n, "x": n / 2, "data": bytes([n]), "list": range(n % 3 + 2), "vector": [n, 0, 0.5],
         "a/b": -n} for n in range(20)
    ]  # fmt: skip
    for shard in range(2):
        put(tmp_path / f"{shard}.tfrecord", examples[shard::2], features)
    judge = ray.data.read_tfrecords(str(tmp_path), concurrency=1).take_all()
    found = read(tmp_path / "*.tfrecord").take_all()
    key = lambda row: row["n"]  # noqa: E731
    assert [
        {name: as_lists(each) for name, each in row.items()} for row in sorted(found, key=key)
    ] == [dict(sorted(row.items())) for row in sorted(judge, key=key)]


def test_gzip(tmp_path):
    """Shards of several GZIP members, as covey writes them, and of one."""
    examples = ({"x": n, "label": n % 3} for n in range(100))
    write(examples, tmp_path / "data", shuffle=False, compression="GZIP", shards=2)
    paths = [tmp_path / f"{shard}.tfrecord.gz" for shard in range(2)]
    for shard, path in enumerate(paths):
        plain = put_numbers(tmp_path / "plain", range(shard * 50, shard * 50 + 50))
        path.write_bytes(gzip.compress(plain.read_bytes()))
    for given in (tmp_path / "data", paths):
        rows = read(given, override_num_blocks=3).take_all()
        assert [row["x"] for row in rows] == list(range(100))


def test_images(tmp_path):
    """Images are encoded bytes; with decode_images, tensors of one shape or of different ones."""
    features = {"same": Image((8, 9, 3)), "any": Image(), "label": "int64"}
    examples = [
        {"same": png(draw((8, 9, 3), n)), "any": png(draw((5 + n % 3, 7, 3), n)), "label": n % 2}
        for n in range(12)
    ]
    write(examples, tmp_path, features=features, label="label", shuffle=False)
    rows = read(tmp_path).take_all()
    assert [row["any"] for row in rows] == [each["any"] for each in examples]
    found = read(tmp_path, decode_images=True, override_num_blocks=2)
    for n, row in enumerate(found.take_all()):
        assert (row["same"] == draw((8, 9, 3), n)).all()
        assert (row["any"] == draw((5 + n % 3, 7, 3), n)).all()
    assert next(iter(found.iter_batches(batch_size=4)))["same"].shape == (4, 8, 9, 3)


def test_an_empty_file(tmp_path):
    path = put(tmp_path / "x.tfrecord", [], FEATURES)
    found = read(path, features=FEATURES)
    assert (found.count(), found.take_all()) == (0, [])
    assert len(found.schema().names) == len(covey.Features(FEATURES))


def test_a_label_that_is_not_a_feature_is_a_column(tmp_path):
    for bird in ("owl", "wren"):
        put(tmp_path / f"{bird}.tfrecord", [{"x": 1}, {"x": 2}], {"x": "int64"})
    rows = read(tmp_path, label="@file").take_all()
    assert [(row["x"], row["label"]) for row in rows] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    found = read(tmp_path, label=lambda row: int(row["x"]) * 10)  # its index is in memory
    assert [row["label"] for row in found.take_all()] == [10, 20, 10, 20]


def test_urls(path):
    with range_server() as (url, objects):
        for file in path.iterdir():
            objects.files[f"/data/{file.name}"] = file.read_bytes()
        found = read(f"{url}/data", split="train", storage_options={}, select=["n", "text"])
        assert [row["n"] for row in found.take_all()] == [n - 3 for n in range(57)]


# Errors.


def test_errors_of_arguments(path, tmp_path):
    with pytest.raises(DatasetError, match="no such file"):
        read(tmp_path / "missing")
    with pytest.raises(FeatureError):
        read(path, select="m")
    with pytest.raises(TypeError, match="did you mean 'split'"):
        read(path, spilt="train")
    wide = {"x": Sparse("float32", (2**40,)), "n": "int64"}
    write([{"x": ([2**39], [0.5]), "n": 1}], tmp_path, features=wide)
    with pytest.raises(DatasetError, match="2 GiB") as caught:
        read(tmp_path)
    assert caught.value.feature == "x"
    assert read(tmp_path, select="n").take_all() == [{"n": 1}]


def test_a_corrupt_record(tmp_path):
    examples = ({"x": n, "data": bytes(1000)} for n in range(40))
    write(examples, tmp_path, shuffle=False, shards=2)
    shard = shard_paths(tmp_path)[1]
    with opened(tmp_path) as ds:
        row = ds._gatherer.rows.take(np.array([27]))[0]
    content = bytearray(shard.read_bytes())
    content[int(row["offset"][0]) + 40] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptRecordError) as caught:
        read(tmp_path, override_num_blocks=4).materialize()
    assert (caught.value.path, caught.value.record) == (str(shard), 7)
    assert f"{shard}: record 7 at byte" in str(caught.value)
    with pytest.warns(SkippedRecordsWarning):
        found = read(tmp_path, on_error="skip", override_num_blocks=2)
    assert [row["x"] for row in found.take_all()] == [n for n in range(40) if n != 27]


def test_a_node_without_the_index(tmp_path):
    """The index is in the cache directory of this process, as on another node."""
    files = [put_numbers(tmp_path / f"{n}.tfrecord", range(n * 5, n * 5 + 5)) for n in range(2)]
    found = read(files)
    shutil.rmtree(os.environ["COVEY_CACHE"])
    assert [row["x"] for row in found.take_all()] == list(range(10))
    found = read(files)
    shutil.rmtree(os.environ["COVEY_CACHE"])
    put_numbers(files[1], range(7))
    with pytest.raises(FileChangedError) as caught:
        found.take_all()
    assert caught.value.path == str(tmp_path)


def test_a_replaced_dataset(tmp_path):
    write([{"x": n} for n in range(10)], tmp_path / "data", shuffle=False)
    found = read(tmp_path / "data")
    write([{"x": n} for n in range(20)], tmp_path / "data", shuffle=False, mode="overwrite")
    assert [row["x"] for row in found.take_all()] == list(range(10))  # the old version
    assert read(tmp_path / "data").count() == 20


# Ranks.


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """A dataset of 17 classes, in several shards."""
    path = tmp_path_factory.mktemp("birds") / "data"
    examples = [{"x": n, "label": n * n % 17 if n % 2 else n % 17} for n in range(400)]
    write(examples, path, label="label", shards=3)
    return path


def draw_batches(config):
    """Save the batches of this worker, as arrays and as tensors."""
    import torch.distributed
    from torch.utils.data import DataLoader

    from covey.adapters.torch import BalancedBatchSampler

    context = ray.train.get_context()
    assert torch.distributed.get_backend() == "gloo"
    rank = context.get_world_rank()
    assert torch.distributed.get_rank() == rank
    with covey.open(config["path"], progress=False) as ds:
        loader = ds.batches(P, K, seed=7)
        sampler = BalancedBatchSampler(ds.labels, P, K, seed=7, steps_per_epoch=STEPS)
        numbers = DataLoader(ds.columns("x")["x"], batch_sampler=sampler)
        tensors = ds.batches(P, K, seed=7, steps_per_epoch=STEPS).to_torch()
        found = {
            "plan": (loader.plan.rank, loader.plan.world_size),
            "plain": list(loader.take(STEPS)),
            "unpickled": list(pickle.loads(pickle.dumps(loader)).take(2)),
            "shuffled": list(ds.shuffled(40, seed=7)),
            "independent": list(ds.batches(P, K, seed=7, mode="independent").take(2)),
            "whole": ds.batches(P, K, seed=7, rank=0, world_size=1).batch(0),
            "given": ds.batches(P, K, seed=7, rank=1, world_size=5).batch(0),
            "torch": [(x.numpy(), y.numpy()) for x, y in tensors],
            "sampler": [each.numpy() for each in numbers],
        }
    Path(config["output"], f"{rank}.pickle").write_bytes(pickle.dumps(found))


def check_batches(found, expected):
    """Compare the parts of the ranks with the batches of one process: P classes, K of each."""
    for parts, (x, y) in zip(zip(*found, strict=True), expected, strict=True):
        numbers, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        assert np.unique(labels, return_counts=True)[1].tolist() == [K] * P
        assert sum(len(np.unique(part[1])) for part in parts) == P  # the parts are disjoint
        assert (numbers.tolist(), labels.tolist()) == (x.tolist(), y.tolist())


def test_ranks_of_ray_train(tmp_path):
    path, output = tmp_path / "data", tmp_path / "output"
    examples = [{"x": n, "label": n * n % 17 if n % 2 else n % 17} for n in range(400)]
    write(examples, path, label="label", shards=3)
    output.mkdir()
    TorchTrainer(
        draw_batches,
        train_loop_config={"path": str(path), "output": str(output)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=RANKS, resources_per_worker={"CPU": 0.5}
        ),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path / "runs")),
    ).fit()
    found = [pickle.loads((output / f"{rank}.pickle").read_bytes()) for rank in range(RANKS)]
    assert [each["plan"] for each in found] == [(rank, RANKS) for rank in range(RANKS)]
    with opened(path) as ds:
        loader = ds.batches(P, K, seed=7)
        expected = [loader.batch(step) for step in range(STEPS + 2)]
        for name in ("plain", "torch"):
            check_batches([each[name] for each in found], expected[:STEPS])
        check_batches([each["unpickled"] for each in found], expected[STEPS:])
        for step, (x, _) in enumerate(expected[:STEPS]):
            assert np.concatenate([each["sampler"][step] for each in found]).tolist() == x.tolist()
        for rank, each in enumerate(found):
            own = [x.tolist() for x, _ in each["independent"]]
            assert own == [expected[step * RANKS + rank][0].tolist() for step in range(2)]
            given = ds.batches(P, K, seed=7, rank=1, world_size=5).batch(0)
            for name, batch in (("whole", expected[0]), ("given", given)):
                assert each[name][0].tolist() == batch[0].tolist()
        drawn = [number for each in found for x, _ in each["shuffled"] for number in x.tolist()]
        assert sorted(drawn) == list(range(400))


def test_accelerate_in_a_worker(path, monkeypatch):
    """Accelerator.prepare divides the batches, which are therefore complete."""
    context = SimpleNamespace(get_world_rank=lambda: 1, get_world_size=lambda: 2)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    # Another test of this process may have used accelerate.
    none = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "accelerate.state", none)
    assert find_rank() == (1, 2)
    assert find_rank(0, 4) == (0, 4)
    with opened(path) as ds:
        loader = ds.batches(2, 2, select="n")
        assert (loader.plan.rank, loader.plan.world_size) == (1, 2)
        state = SimpleNamespace(is_initialized=lambda: True)
        monkeypatch.setitem(sys.modules, "accelerate.state", state)
        assert find_rank() == (0, 1)
        _, y = next(iter(loader.to_torch()))
        assert len(y) == 4
