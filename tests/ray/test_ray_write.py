"""Writes by a Ray cluster of three nodes on one machine, some of which are killed."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray
from clusters import SYSTEM_CONFIG
from engines import Squares, digests, write
from kill_points import DIRECTORY, install
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from servers import s3_bucket, stand_alone
from test_write_engines import Deadly, Failing

import covey
from covey.engines import Ray
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, SourceError, TaskError
from covey.writing.commit import Staging

STORE_BYTES = 80 << 20
TEMPORARY = "covey-*"


class TestCluster:
    """A head without CPUs, and nodes of one CPU each."""

    __test__ = False

    def __init__(self, directory, disks):
        self.directory = directory
        self.disks = disks
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "_system_config": SYSTEM_CONFIG,
            },
        )
        self.nodes = []

    def resize(self, count):
        """Have this number of nodes that are alive."""
        while len(self.nodes) < count:
            node = self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
            self.nodes.append(node)
        while len(self.nodes) > count:
            self.cluster.remove_node(self.nodes.pop())
        deadline = time.monotonic() + 300
        while ray.cluster_resources().get("CPU", 0) != count:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def kill(self, node_id):
        (node,) = [each for each in self.nodes if each.node_id == node_id]
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def kill_at(self, *points):
        """Kill the node of the first task that reaches each point; return the thread that waits."""
        for path in self.directory.iterdir():
            path.unlink()
        for point in points:
            (self.directory / point).touch()

        def wait():
            for point in points:
                found = self.directory / f"{point}.node"
                deadline = time.monotonic() + 300
                while not found.exists():
                    if time.monotonic() > deadline:
                        return
                    time.sleep(0.02)
                self.kill(found.read_text())

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("points")
    started = TestCluster(directory, tmp_path_factory.mktemp("disks"))
    paths = [str(Path(__file__).parents[1] / each) for each in ("helpers", "interop")]
    ray.init(
        address=started.cluster.address,
        log_to_driver=False,
        logging_level="error",
        runtime_env={
            "worker_process_setup_hook": install,
            "env_vars": {
                DIRECTORY: str(directory),
                "TMPDIR": str(started.disks),
                "PYTHONPATH": os.pathsep.join(paths),
            },
        },
    )
    started.resize(3)
    yield started
    ray.shutdown()
    started.cluster.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Return the files of a local write of 300 examples, whose string labels become classes."""
    directory = tmp_path_factory.mktemp("local")
    write(Squares(300), directory / "birds", shards=5)
    return digests(directory)


def left_over(cluster):
    """Return the directories that tasks have left on the disks of their nodes."""
    return sorted(cluster.disks.glob(TEMPORARY))


@pytest.mark.parametrize(("nodes", "counts"), [(1, [2]), (2, [1, 7]), (3, [2, 7])])
def test_nodes_and_pieces(cluster, expected, tmp_path, nodes, counts):
    cluster.resize(nodes)
    before = left_over(cluster)
    for pieces in counts:
        path = tmp_path / str(pieces) / "birds"
        result = write(Squares(300), path, shards=5, engine=Ray(pieces=pieces))
        assert result.records == 300
        assert digests(path.parent) == expected
    assert left_over(cluster) == before


def test_parts_committed_by_ray(cluster, expected, tmp_path):
    for part in range(1, 4):
        write(Squares(300), tmp_path / "a" / "birds", part=f"{part}/3", shards=5)
    covey.commit(tmp_path / "a" / "birds", engine="ray", progress=False)
    assert digests(tmp_path / "a") == expected


# Ray Datasets.


def rows(count):
    return [{"id": f"k{i}", "x": i, "label": f"c{i % 7}"} for i in range(count)]


def test_ray_dataset(cluster, tmp_path):
    table = pa.Table.from_pylist(rows(400))
    write(table, tmp_path / "local" / "birds", key="id", shards=3)
    dataset = ray.data.from_items(rows(400), override_num_blocks=7)
    result = write(dataset, tmp_path / "ray" / "birds", key="id", shards=3)
    assert result.records == 400
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")
    for option, value in {"shuffle": False, "engine": "processes", "part": "1/2"}.items():
        with pytest.raises(DatasetError) as caught:
            write(dataset, tmp_path / "other", **{option: value})
        assert caught.value.option == option
    with pytest.raises(DatasetError, match="one split"):
        write({"train": dataset}, tmp_path / "other")
    with pytest.raises(FeatureError) as caught:
        write(dataset, tmp_path / "other", features={"id": "str", "x": "str", "label": "str"})
    assert caught.value.feature == "x"
    assert not (tmp_path / "other").exists()


def test_ray_dataset_of_tensors_and_lists(cluster, tmp_path):
    columns = {
        "id": np.arange(300),
        "tensor": np.arange(2400, dtype=np.float32).reshape(300, 2, 4),
        "bytes": [b"x" * (i % 5) for i in range(300)],
        "ragged": [list(range(i % 4)) for i in range(300)],
        "label": np.arange(300) % 6,
    }
    write(columns, tmp_path / "local" / "birds", key="id", shards=2)
    items = [{name: column[i] for name, column in columns.items()} for i in range(300)]
    dataset = ray.data.from_items(items, override_num_blocks=4)
    write(dataset, tmp_path / "ray" / "birds", key="id", shards=2)
    found, other = (
        covey.open(tmp_path / each / "birds", split="train") for each in ("ray", "local")
    )
    assert len(found) == len(other) == 300
    for a, b in zip(found, other, strict=True):
        for name in columns:
            assert np.array_equal(a[name], b[name]), name


def test_ray_dataset_beyond_the_object_store(cluster, tmp_path):
    """Blocks and results of 200 MB pass through object stores of 80 MB, which spill."""

    def grow(batch):
        count = len(batch["id"])
        return {
            "id": batch["id"],
            "x": np.ones((count, 100_000), np.uint8),
            "label": batch["id"] % 9,
        }

    dataset = ray.data.range(2000, override_num_blocks=16).map_batches(grow, batch_size=64)
    result = write(dataset, tmp_path / "birds", key="id", shards=4)
    assert (result.records, len(result.shards)) == (2000, 4)
    assert covey.verify(tmp_path / "birds", progress=False).is_valid


def test_datasink_without_a_key(cluster, tmp_path):
    sink = covey.adapters.ray.Datasink(tmp_path / "birds", shards=3, progress=False)
    ray.data.from_items(rows(400), override_num_blocks=5).write_datasink(sink)
    assert sink.result.records == 400
    found = covey.open(tmp_path / "birds", split="train")
    assert {row["id"] for row in found} == {row["id"] for row in rows(400)}


def test_a_datasink_that_fails_changes_nothing(cluster, tmp_path):
    before = left_over(cluster)

    def fail(row):
        if row["x"] == 333:
            raise ValueError("no such row")
        return row

    sink = covey.adapters.ray.Datasink(tmp_path / "birds", progress=False)
    dataset = ray.data.from_items(rows(400), override_num_blocks=5).map(fail)
    with pytest.raises(Exception, match="no such row"):
        dataset.write_datasink(sink)
    assert not (tmp_path / "birds").exists()
    doubled = ray.data.from_items(rows(20) + rows(1), override_num_blocks=3)
    sink = covey.adapters.ray.Datasink(tmp_path / "birds", key="id", progress=False)
    with pytest.raises(DuplicateKeyError):
        doubled.write_datasink(sink)
    assert not (tmp_path / "birds").exists()
    assert left_over(cluster) == before
    for option in ("shuffle", "names"):
        with pytest.raises(DatasetError) as caught:
            covey.adapters.ray.Datasink(tmp_path / "birds", **{option: ["x"]})
        assert caught.value.option == option


# Nodes that are killed.


@pytest.mark.parametrize(
    "points",
    [
        ("map begins", "rewrite ends"),
        ("map ends", "reduce begins"),
        ("rewrite begins", "reduce ends"),
    ],
)
def test_two_nodes_are_killed(cluster, expected, tmp_path, points):
    """Ray runs tasks again elsewhere: runs are in the directory that all nodes share."""
    cluster.resize(3)
    thread = cluster.kill_at(*points)
    write(Squares(300), tmp_path / "a" / "birds", shards=5, engine=Ray(pieces=7))
    thread.join()
    assert len(cluster.nodes) == 1
    assert digests(tmp_path / "a") == expected


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_node_is_killed_around_the_commit(cluster, expected, tmp_path, monkeypatch, is_committed):
    cluster.resize(3)
    commit = Staging.commit

    def commit_and_kill(self, *args):
        if is_committed:
            commit(self, *args)
        cluster.kill(cluster.nodes[0].node_id)
        if not is_committed:
            commit(self, *args)

    monkeypatch.setattr(Staging, "commit", commit_and_kill)
    write(Squares(300), tmp_path / "a" / "birds", shards=5, engine=Ray(pieces=7))
    assert digests(tmp_path / "a") == expected


# Placement.


def test_tasks_run_where_the_options_place_them(cluster, tmp_path):
    """One of two nodes has a resource, and memory that exists on paper only."""
    cluster.resize(1)
    chosen = cluster.cluster.add_node(
        num_cpus=1, object_store_memory=STORE_BYTES, resources={"disk": 1}, memory=1 << 44
    )
    cluster.nodes.append(chosen)
    cluster.resize(2)
    affinity = NodeAffinitySchedulingStrategy(chosen.node_id, soft=False)
    for options in (
        {"resources": {"disk": 0.5}},
        {"memory": 1 << 43},
        {"scheduling_strategy": affinity},
    ):
        for pieces in (4, 5):  # without the option, tasks are spread over both nodes
            with pytest.raises(SourceError) as caught:
                write(Failing(40), tmp_path / "birds", engine=Ray(pieces=pieces, **options))
            assert f"({chosen.node_id[:8]})" in caught.value.task
    cluster.kill(chosen.node_id)


# Tasks that fail.


def test_a_task_that_always_fails(cluster, tmp_path):
    cluster.resize(2)
    write(Squares(60), tmp_path / "birds")
    before, files = digests(tmp_path), left_over(cluster)
    with pytest.raises(SourceError, match="the disk is gone") as caught:
        write(Failing(60), tmp_path / "birds", mode="overwrite", engine=Ray(pieces=6))
    assert caught.value.example == 33
    assert "piece 4 of 6 (examples 30 to 39) on node" in caught.value.task
    with pytest.raises(TaskError, match="2 attempts") as caught:
        engine = Ray(pieces=6, max_retries=1)
        write(Deadly(60), tmp_path / "birds", mode="overwrite", engine=engine)
    assert "piece 4 of 6" in caught.value.task
    assert digests(tmp_path) == before
    assert left_over(cluster) == files


def test_features_that_differ_between_blocks(cluster, tmp_path):
    blocks = [{"x": i, "label": 1} for i in range(30)] + [
        {"x": f"{i}", "label": 1} for i in range(9)
    ]
    dataset = ray.data.from_blocks(
        [pa.Table.from_pylist(blocks[:30]), pa.Table.from_pylist(blocks[30:])]
    )
    with pytest.raises(FeatureError) as caught:
        write(dataset, tmp_path / "birds")
    assert caught.value.feature == "x"
    assert "piece 2" in caught.value.task
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize(
    "options",
    [{"num_cpus": 0}, {"num_cpus": "2"}, {"memory": 0}, {"max_retries": -1}, {"pieces": 0}],
)
def test_invalid_options(options):
    with pytest.raises(DatasetError) as caught:
        Ray(**options)
    assert caught.value.option == next(iter(options))


# S3.


def test_s3(cluster, tmp_path, monkeypatch):
    """Nodes upload shards; the content is that of a local write to the same URL."""
    cluster.resize(2)
    stand_alone(monkeypatch, tmp_path)
    with s3_bucket() as server:
        url = "s3://bucket"
        options = {name: each for name, each in server.options.items() if name != "session"}
        engines = {"local": None, "ray": Ray(pieces=2), "processes": "processes"}
        for name, engine in engines.items():
            target = f"{url}/{name}/birds"
            write(Squares(300), target, shards=2, engine=engine, storage_options=options)
        write_parts_to(f"{url}/parts/birds", options)
        found = {
            name: remote_digests(f"{url}/{name}", options, tmp_path / name)
            for name in (*engines, "parts")
        }
        assert len(found["local"]) == 9
        for name in ("ray", "processes", "parts"):
            assert found[name] == found["local"], name
        # A write that fails removes what it uploaded.
        doubled = [
            ("a", {"x": 1, "label": 1}),
            *((f"{i}", {"x": i, "label": 1}) for i in range(99)),
            ("a", {"x": 2, "label": 1}),
        ]
        with pytest.raises(DuplicateKeyError):
            write(
                doubled,
                f"{url}/failed/birds",
                shards=9,
                engine=Ray(pieces=3),
                storage_options=options,
            )
        assert remote_digests(f"{url}/failed", options, tmp_path / "failed") == {}


def write_parts_to(url, options):
    for part in (1, 2, 3):
        write(Squares(300), url, part=f"{part}/3", shards=2, storage_options=options)
    covey.commit(url, progress=False, storage_options=options)


def remote_digests(url, options, directory):
    """Return the digests of the files below a URL, after a download."""
    from covey.storage import open_storage

    storage = open_storage(url, options)
    root = storage.clean(url)
    directory.mkdir(exist_ok=True)
    try:
        files = storage.list(root, recursive=True)
    except FileNotFoundError:
        files = []
    for file in files:
        target = directory / file[len(root) :].strip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(storage.read(file))
    return {name: each for name, each in digests(directory).items() if name != "birds"}
