"""Engines and parts give the bytes of a local write; judges are the files of the local write."""

import contextlib
import functools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import typing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from engines import Squares, ThreadEngine, digests, image_bytes, write, write_parts
from hypothesis import given, settings
from hypothesis import strategies as st

import covey
from covey.engines import Processes, Ray
from covey.errors import (
    DatasetError,
    DatasetExistsError,
    DuplicateKeyError,
    FeatureError,
    FormatError,
    SourceError,
    TaskError,
)
from covey.index.format import content_checksum
from covey.index.write import IndexWriter
from covey.writing.typed_json import from_json, to_json

NUMBERS = [{"x": i, "y": i / 2, "label": i % 5} for i in range(100)]
NAMED = [{"x": [i] * (i % 3), "label": f"class {i % 11}"} for i in range(100)]


def keyed(count=60):
    return [(f"key {i}", {"x": i, "label": f"c{i % 3}"}) for i in range(count)]


def generate(begin, end):
    for i in range(begin, end):
        yield {"x": i, "label": f"class {i % 4}"}


def generate_keyed(begin, end):
    for i in range(begin, end):
        yield f"key {i}", {"x": i, "label": f"class {i % 4}"}


def generate_parted(begin, end):
    for i in range(begin, end):
        yield {"x": i, "label": i % 4, "part": ("train", "test")[i % 7 == 0]}


# Sources of every kind, made in a directory.


def make_csv(directory):
    rows = "".join(f"{i},name {i},{'abc'[i % 3]}\n" for i in range(50))
    (directory / "birds.csv").write_text("x,name,label\n" + rows)
    return directory / "birds.csv"


def make_csv_files(directory):
    for number, count in enumerate((3, 40, 0, 9)):
        rows = "".join(f"{number},{i},{'abc'[i % 3]}\n" for i in range(count))
        if rows:
            (directory / f"{number}.csv").write_text("x,y,label\n" + rows)
    return sorted(directory.glob("*.csv"))


def make_jsonl(directory):
    lines = [json.dumps({"text": "abc" * (i % 4), "label": f"{i % 3}"}) for i in range(40)]
    (directory / "texts.jsonl").write_text("\n".join(lines))
    return directory / "texts.jsonl"


def make_parquet(directory):
    table = pa.table({"x": range(200), "label": [f"c{i % 7}" for i in range(200)]})
    pyarrow.parquet.write_table(table, directory / "a.parquet", row_group_size=30)
    pyarrow.parquet.write_table(table, directory / "b.parquet", row_group_size=64)
    return directory


def make_npz(directory):
    np.savez(directory / "a.npz", x=np.arange(60).reshape(30, 2), label=np.arange(30) % 4)
    return directory / "a.npz"


def make_images(directory):
    for i in range(24):
        path = directory / "photos" / "abc"[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(i))
    return directory / "photos"


def make_splits(directory):
    for i in range(30):
        path = directory / "photos" / ("train", "val")[i % 5 == 0] / "abcd"[i % 4] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(i))
    return directory / "photos"


def make_tar(directory):
    with tarfile.open(directory / "a.tar", "w") as tar:
        for i in range(20):
            for suffix, data in (("png", image_bytes(i)), ("cls", str(i % 3).encode())):
                (directory / "member").write_bytes(data)
                tar.add(directory / "member", f"{i:04d}.{suffix}")
    return directory / "a.tar"


def make_tfrecords(directory):
    write(NUMBERS, directory / "old", shards=3)
    return sorted((directory / "old").glob("*.tfrecord-*"))


def make_dataset(directory):
    write(NAMED, directory / "old", shards=3)
    return directory / "old"


def constant(value):
    return lambda directory: value


CASES = {
    "numbers": (constant(NUMBERS), {}),
    "string labels": (constant(NAMED), {}),
    "strings that stay": (
        constant(NAMED),
        {"features": {"x": covey.Tensor("int64", (None,)), "label": "str"}},
    ),
    "map-style": (constant(Squares(100)), {}),
    "keys": (constant(keyed()), {}),
    "key feature": (constant(NUMBERS), {"key": "x"}),
    "unlabelled": (constant([{"x": i} for i in range(30)]), {"label": None}),
    "positions": (constant(NAMED), {"shuffle": False}),
    "positions and keys": (constant(keyed()), {"shuffle": False}),
    "by class": (constant(NUMBERS), {"sort_by_class": True}),
    "by class of strings": (constant(NAMED), {"sort_by_class": True, "shards": 4}),
    "by class and position": (constant(NAMED), {"sort_by_class": True, "shuffle": False}),
    "by class and keys": (constant(keyed()), {"sort_by_class": True}),
    "GZIP": (constant(NAMED), {"compression": "GZIP"}),
    "ZLIB": (constant(NAMED), {"compression": "ZLIB"}),
    "records per shard": (constant(NAMED), {"records_per_shard": 7}),
    "one shard": (constant(NAMED), {"shards": 1}),
    "small shards": (constant(NAMED), {"shard_bytes": 100}),
    "records longer than shards": (
        constant([{"x": b"x" * (2000 if i % 17 == 0 else 3), "label": i % 2} for i in range(60)]),
        {"shard_bytes": 300},
    ),
    "defaults": (
        constant([{"label": i % 3} | ({"x": [i, i]} if i > 70 else {}) for i in range(90)]),
        {"defaults": {"x": []}},
    ),
    "integers, then floats": (
        constant([{"x": i if i < 80 else i / 3, "label": 0} for i in range(100)]),
        {},
    ),
    "large integers and floats": (
        constant([{"x": (1 << 30) + i if i < 9 else np.float32(i), "label": 0} for i in range(70)]),
        {},
    ),
    "shapes": (
        constant([{"x": np.zeros((i // 30 + 1, 2)), "label": i % 2} for i in range(90)]),
        {},
    ),
    "empty lists": (
        constant([{"x": [] if i < 90 else [i], "label": i % 2} for i in range(100)]),
        {},
    ),
    "hold out a fraction": (constant(NAMED), {"hold_out": covey.HoldOut(fraction=0.3)}),
    "hold out by label": (
        constant(NAMED),
        {"hold_out": covey.HoldOut(fraction=0.3, by="label")},
    ),
    "hold out classes": (constant(NAMED), {"hold_out": covey.HoldOut(classes=3)}),
    "hold out integer classes": (constant(NUMBERS), {"hold_out": covey.HoldOut(classes=2)}),
    "split by a feature": (constant(keyed()), {"split_by": "label"}),
    "split by a feature of integers": (constant(NUMBERS), {"split_by": "label", "shards": 2}),
    "split by a column of CSV": (make_csv, {"split_by": "label", "key": "x"}),
    "split by a column of Parquet": (make_parquet, {"split_by": "label"}),
    "split by a feature of functions": (
        constant([partial(generate_parted, 0, 30), partial(generate_parted, 30, 40)]),
        {"split_by": "part"},
    ),
    "columns, split by one of them": (
        constant({"x": np.arange(50), "label": [f"c{i % 3}" for i in range(50)]}),
        {"split_by": "label"},
    ),
    "columns": (constant({"x": np.arange(50), "label": [f"c{i % 3}" for i in range(50)]}), {}),
    "columns, classes held out": (
        constant({"x": np.arange(50), "label": np.arange(50) % 9}),
        {"hold_out": covey.HoldOut(classes=3)},
    ),
    "columns with keys": (
        constant({"x": [str(i) for i in range(50)], "label": [0, 1] * 25}),
        {"key": "x"},
    ),
    "columns by class": (
        constant({"x": np.arange(50), "label": np.arange(50) % 3}),
        {"sort_by_class": True, "shards": 2},
    ),
    "pandas": (constant(pd.DataFrame(NUMBERS)), {}),
    "skipped": (
        constant(
            [{"x": i, "label": 1} if i % 7 else {"x": "bad", "label": 1} for i in range(1, 80)]
        ),
        {"on_error": "skip"},
    ),
    "CSV": (make_csv, {}),
    "CSV files": (make_csv_files, {}),
    "JSON Lines": (make_jsonl, {}),
    "Parquet": (make_parquet, {}),
    "NPZ": (make_npz, {}),
    "images": (make_images, {}),
    "images of splits": (make_splits, {}),
    "tar": (make_tar, {}),
    "TFRecords": (make_tfrecords, {}),
    "dataset": (make_dataset, {}),
    "functions": (
        constant([partial(generate, 0, 30), partial(generate, 0, 0), partial(generate, 30, 40)]),
        {},
    ),
    "functions with keys": (
        constant([partial(generate_keyed, 0, 30), partial(generate_keyed, 30, 33)]),
        {},
    ),
    "one function": (constant(partial(generate, 0, 30)), {}),
    "functions in order": (
        constant([partial(generate, 0, 30), partial(generate, 0, 9)]),
        {"shuffle": False, "shards": 2},
    ),
}


@pytest.fixture
def case(request, tmp_path):
    """Return the source and the options of a case, and the digests of its local write."""
    make, options = CASES[request.param]
    (tmp_path / "source").mkdir()
    source = make(tmp_path / "source")
    options = {"seed": 3, **options}
    if not {"shards", "records_per_shard", "shard_bytes"} & options.keys():
        options["shards"] = 3
    result = write(source, tmp_path / "local" / "birds", **options)
    return source, options, result, digests(tmp_path / "local")


def agrees(result, local):
    """Return whether two results are equal, except for their paths and times."""
    assert result.splits.keys() == local.splits.keys()
    for split, each in local.splits.items():
        own = result.splits[split]
        assert (own.records, own.classes, own.features) == (
            each.records,
            each.classes,
            each.features,
        )
        assert [record.record for record in own.skipped] == [r.record for r in each.skipped]


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_engine_gives_the_same_bytes(case, tmp_path, pieces):
    source, options, local, expected = case
    result = write(source, tmp_path / "engine" / "birds", engine=ThreadEngine(pieces), **options)
    assert digests(tmp_path / "engine") == expected
    agrees(result, local)


@pytest.mark.parametrize("parts", [3])
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_parts_give_the_same_bytes(case, tmp_path, parts):
    source, options, local, expected = case
    result = write_parts(source, tmp_path / "parts" / "birds", parts, **options)
    assert digests(tmp_path / "parts") == expected
    agrees(result, local)


@pytest.mark.parametrize(
    "case", ["string labels", "map-style", "CSV files", "columns"], indirect=True
)
def test_processes_give_the_same_bytes(case, tmp_path):
    source, options, local, expected = case
    engine = Processes(workers=2, pieces=4)
    result = write(source, tmp_path / "engine" / "birds", engine=engine, **options)
    assert digests(tmp_path / "engine") == expected
    agrees(result, local)


def test_a_generator_is_read_by_the_main_process(tmp_path):
    write(generate(0, 50), tmp_path / "local" / "birds")
    write(generate(0, 50), tmp_path / "engine" / "birds", engine=ThreadEngine())
    assert digests(tmp_path / "local") == digests(tmp_path / "engine")


@pytest.mark.parametrize("limit", [1, 4000])
def test_small_memory_limit(tmp_path, limit):
    """Pieces that exceed the memory are several runs, and shards several ranges of buckets."""
    write(Squares(600), tmp_path / "local" / "birds", shards=2)
    options = {"shards": 2, "memory_limit": limit}
    write(Squares(600), tmp_path / "engine" / "birds", engine=ThreadEngine(3), **options)
    assert digests(tmp_path / "local") == digests(tmp_path / "engine")


VALUES = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(width=32, allow_nan=False),
    st.lists(st.integers(-5, 5), max_size=3),
)


@given(
    examples=st.lists(st.fixed_dictionaries({"x": VALUES}), min_size=2, max_size=12),
    pieces=st.integers(2, 5),
)
@settings(max_examples=60)
def test_types_of_pieces(tmp_path_factory, examples, pieces):
    """Types that pieces infer are merged as a local write infers them, or both writes fail."""
    directory = tmp_path_factory.mktemp("types")
    results = []
    for name, engine in (("local", None), ("engine", ThreadEngine(pieces))):
        try:
            write(examples, directory / name / "birds", label=None, engine=engine)
            results.append(digests(directory / name))
        except FeatureError:
            results.append(None)
    assert results[0] == results[1]


# Modes.


@pytest.mark.parametrize("how", ["engine", "parts"])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("label", ["label", None])
def test_modes(tmp_path, mode, how, label):
    more = [{"x": [i], "label": f"class {i % 13}"} for i in range(30)]
    for name in ("local", how):
        directory = tmp_path / name / "birds"
        write(NAMED, directory, shards=2, label=label)
        options = {"mode": mode, "shards": 3}
        if name == "local":
            result = write(more, directory, **options)
        elif how == "engine":
            write(more, directory, engine=ThreadEngine(4), **options)
        else:
            write_parts(more, directory, 3, **options)
    assert result.records == (130 if mode == "append" else 30)
    assert digests(tmp_path / "local") == digests(tmp_path / how)


def test_an_existing_split_is_an_error(tmp_path):
    write(NAMED, tmp_path)
    before = digests(tmp_path)
    for options in ({"engine": ThreadEngine()}, {"part": "1/2"}):
        with pytest.raises(DatasetExistsError):
            write(NAMED, tmp_path, **options)
    assert digests(tmp_path) == before


# Errors.


@pytest.mark.parametrize("order", [{}, {"shuffle": False}, {"sort_by_class": True}])
def test_duplicate_keys_of_different_pieces(tmp_path, order):
    examples = keyed()
    examples[50] = ("key 7", examples[50][1])
    with pytest.raises(DuplicateKeyError, match="'key 7'") as caught:
        write(examples, tmp_path / "a", engine=ThreadEngine(6), **order)
    assert (caught.value.key, caught.value.examples) == ("key 7", (7, 50))
    assert "piece 1 of 6" in caught.value.task
    assert "piece 6 of 6" in caught.value.task
    assert not (tmp_path / "a").exists()


def test_duplicate_keys_of_parts(tmp_path):
    examples = keyed()
    examples[50] = ("key 7", examples[50][1])
    for part in ("1/2", "2/2"):
        write(examples, tmp_path / "a", part=part)
    with pytest.raises(DuplicateKeyError, match="examples 7 and 50"):
        covey.commit(tmp_path / "a", progress=False)


def test_duplicate_keys_of_different_sources(tmp_path):
    sources = [partial(generate_keyed, 0, 20), partial(generate_keyed, 15, 16)]
    for engine in (None, ThreadEngine()):
        with pytest.raises(DuplicateKeyError, match="'key 15'"):
            write(sources, tmp_path / "a", engine=engine)


def test_a_feature_that_differs_between_pieces(tmp_path):
    examples = [{"x": i, "label": 0} for i in range(40)] + [{"x": "text", "label": 0}] * 20
    with pytest.raises(FeatureError, match="x") as caught:
        write(examples, tmp_path / "a", engine=ThreadEngine(6))
    assert caught.value.example == 40
    assert "piece 5 of 6" in caught.value.task
    assert "node" in caught.value.task
    examples = [{"x": i, "label": 0} for i in range(40)] + [{"label": 0}] * 20
    with pytest.raises(FeatureError) as caught:
        write(examples, tmp_path / "a", engine=ThreadEngine(6))
    assert (caught.value.example, caught.value.feature) == (40, "x")


def test_labels_that_differ_between_pieces(tmp_path):
    examples = [{"x": i, "label": i} for i in range(40)] + [{"x": 1, "label": "owl"}] * 20
    with pytest.raises(FeatureError, match="label"):
        write(examples, tmp_path / "a", engine=ThreadEngine(6))
    assert not (tmp_path / "a").exists()


class Failing(Squares):
    def __getitem__(self, index):
        if index == 33:
            raise RuntimeError("the disk is gone")
        return super().__getitem__(index)


def test_a_source_that_fails(tmp_path):
    for engine in (ThreadEngine(6), Processes(workers=2, pieces=6)):
        with pytest.raises(SourceError, match="the disk is gone") as caught:
            write(Failing(60), tmp_path / "a", engine=engine)
        assert caught.value.example == 33
        assert "piece 4 of 6" in caught.value.task
        assert not (tmp_path / "a").exists()


def test_an_error_of_a_list_of_sources_names_the_source(tmp_path):
    files = make_csv_files(tmp_path)
    files[1].write_text("x,y,label\n1,2,a\n1,2\n")
    for engine in (None, ThreadEngine()):
        with pytest.raises(SourceError) as caught:
            write(files, tmp_path / "a", engine=engine)
        assert caught.value.path == str(files[1])
        result = write(files, tmp_path / str(engine), engine=engine, on_error="skip")
        assert [(each.path, each.record) for each in result.skipped] == [(str(files[1]), 1)]


class Deadly(Squares):
    """Source that kills the process that reads it, as the kernel does for lack of memory."""

    def __init__(self, length, marker=None):
        super().__init__(length)
        self.marker = marker

    def __getitem__(self, index):
        if index == 33 and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_process_that_is_killed_once(tmp_path):
    write(Squares(60), tmp_path / "local" / "birds")
    source = Deadly(60, tmp_path / "marker")
    write(source, tmp_path / "engine" / "birds", engine=Processes(workers=2, pieces=6))
    assert (tmp_path / "marker").exists()
    assert digests(tmp_path / "local") == digests(tmp_path / "engine")


def test_a_process_that_is_always_killed(tmp_path):
    write(NAMED, tmp_path / "a")
    before = digests(tmp_path)
    with pytest.raises(TaskError, match="2 attempts") as caught:
        write(Deadly(60), tmp_path / "a", mode="overwrite", engine=Processes(workers=2, pieces=6))
    assert "piece 4 of 6 (examples 30 to 39)" in caught.value.task
    assert digests(tmp_path) == before


class Hungry(Squares):
    def __getitem__(self, index):
        if index == 33:
            raise MemoryError
        return super().__getitem__(index)


def test_a_piece_without_memory(tmp_path):
    with pytest.raises((TaskError, SourceError), match="piece 4 of 6"):
        write(Hungry(60), tmp_path / "a", engine=Processes(workers=2, pieces=6))
    assert not (tmp_path / "a").exists()


def test_a_source_that_cannot_be_pickled_is_read_here(tmp_path):
    class Local(Squares):
        pass

    write(Squares(60), tmp_path / "local" / "birds")
    write(Local(60), tmp_path / "engine" / "birds", engine=Processes(workers=2))
    assert digests(tmp_path / "local") == digests(tmp_path / "engine")


@pytest.mark.parametrize("engine", ["spark", 3, Processes])
def test_unknown_engine(tmp_path, engine):
    with pytest.raises(DatasetError) as caught:
        write(NAMED, tmp_path, engine=engine)
    assert caught.value.option == "engine"


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"pieces": -1}, {"max_retries": True}, {"max_retries": -1}]
)
def test_invalid_options_of_processes(options):
    with pytest.raises(DatasetError) as caught:
        Processes(**options)
    assert caught.value.option == next(iter(options))


def test_the_size_of_a_ray_cluster_is_requested_seldom(monkeypatch):
    """run_tasks reads the slots each time a task ends; a cluster that grows is noticed."""
    requests = []

    def cluster_resources():
        requests.append(1)
        return {"CPU": 4.0 * len(requests)}

    remote = SimpleNamespace(options=lambda **_: None)
    cluster = SimpleNamespace(
        is_initialized=lambda: True,
        remote=lambda function: remote,
        cluster_resources=cluster_resources,
    )
    monkeypatch.setitem(sys.modules, "ray", cluster)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pool = Ray(num_cpus=2).start()
    assert {pool.slots for _ in range(100)} == {2}
    now += 60
    assert {pool.slots for _ in range(100)} == {4}
    assert len(requests) == 2


# The main process is killed.

SCRIPT = """
import os, signal, sys
from pathlib import Path
import covey
from covey.index.write import IndexWriter
from covey.writing.commit import Staging
from engines import Squares

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Killing(Squares):
    def __getitem__(self, index):
        if index == 33:
            os.kill(os.getppid(), signal.SIGKILL)
        return super().__getitem__(index)

if __name__ == "__main__":
    point, path = sys.argv[1:]
    source = Squares(60)
    commit = Staging.commit
    if point == "map":
        source = Killing(60)
    elif point == "reduce":
        IndexWriter.write_at = die
    elif point == "before the commit":
        Staging.commit = die
    else:
        Staging.commit = lambda *args: die(commit(*args))
    engine = covey.engines.Processes(workers=2, pieces=6)
    covey.write(source, path, engine=engine, mode="overwrite", progress=False)
"""


def processes_of(path):
    """Return the processes whose environment has a variable for a directory."""
    found = []
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"COVEY_TEST={path}".encode() in status.read_bytes():
                found.append(status.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("point", ["map", "reduce", "before the commit", "after the commit"])
def test_the_main_process_is_killed(tmp_path, point):
    """The dataset is the old one or the new one, and the workers end with the main process."""
    write(NAMED, tmp_path / "data" / "birds")
    old = digests(tmp_path / "data")
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = [Path(__file__).parents[1] / "helpers", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "COVEY_TEST": str(tmp_path),
    }
    command = [sys.executable, tmp_path / "script.py", point, tmp_path / "data" / "birds"]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while processes_of(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    count = 60 if point == "after the commit" else 100
    assert len(covey.open(tmp_path / "data" / "birds", split="train")) == count
    covey.repair(tmp_path / "data" / "birds")
    if count == 100:
        assert digests(tmp_path / "data") == old
    write(Squares(60), tmp_path / "data" / "birds", mode="overwrite", engine=ThreadEngine())
    hidden = {path.name for path in (tmp_path / "data" / "birds").glob(".*")}
    assert hidden == {".covey-old"}
    assert covey.verify(tmp_path / "data" / "birds", progress=False).is_valid


# Parts.


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "1/0", "a/b", "1/4/2", "", 3, "1/200000"])
def test_invalid_part(tmp_path, part):
    with pytest.raises(DatasetError) as caught:
        write(NAMED, tmp_path, part=part)
    assert caught.value.option == "part"


def test_missing_parts_are_named(tmp_path):
    for part in (1, 3):
        write(NAMED, tmp_path, part=f"{part}/5")
    with pytest.raises(DatasetError, match="parts 2, 4, 5 of 5 are missing") as caught:
        covey.commit(tmp_path, progress=False)
    assert "--part 2/5" in caught.value.remedy
    for part in (2, 4, 5):
        write(NAMED, tmp_path, part=f"{part}/5")
    assert covey.commit(tmp_path, progress=False).records == 100


def test_no_parts(tmp_path):
    with pytest.raises(DatasetError, match="there are no parts"):
        covey.commit(tmp_path, progress=False)


@pytest.mark.parametrize(
    ("examples", "options", "name"),
    [
        (NAMED, {"seed": 1}, "seed is 1, not 0"),
        (NAMED[:-1], {}, "length is 99, not 100"),
        ([*NAMED[:-1], {"x": [0], "label": "class 0"}], {}, "first_and_last_example_crc is"),
        ([{"x": [0], "label": "class 0"}, *NAMED[1:]], {}, "first_and_last_example_crc is"),
        (NAMED, {"shuffle": False}, "shuffle is False"),
        (NAMED, {"key": "label"}, "key is 'label'"),
        (NAMED, {"features": {"x": covey.Tensor("int64", (None,)), "label": "str"}}, "features"),
    ],
)
def test_a_part_that_differs_is_named(tmp_path, examples, options, name):
    for part in (1, 2, 4):
        write(NAMED, tmp_path, part=f"{part}/4")
    write(examples, tmp_path, part="3/4", **options)
    with pytest.raises(DatasetError, match="part 3 of 4 differs") as caught:
        covey.commit(tmp_path, progress=False)
    assert name in caught.value.reason
    write(NAMED, tmp_path, part="3/4")
    assert covey.commit(tmp_path, progress=False).records == 100
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def pairs(*changes, key="key {}"):
    """Return examples with keys, some of which are changed."""
    examples = [(key.format(i), {"x": i, "label": f"c{i % 3}"}) for i in range(30)]
    for position, x in changes:
        examples[position][1]["x"] = x
    return examples


def columns(*changes):
    examples = [example for _, example in pairs(*changes)]
    return {name: np.array([each[name] for each in examples]) for name in ("x", "label")}


class Listed:
    """Map-style dataset."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@pytest.mark.parametrize(
    "make",
    [
        pairs,
        columns,
        lambda *changes: pd.DataFrame(columns(*changes)),
        lambda *changes: Listed(pairs(*changes)),
        lambda *changes: lambda: pairs(*changes),
    ],
)
def test_parts_of_other_data_in_memory(tmp_path, make):
    """Data of the same length is compared by its first and its last example."""
    for change in ((0, 7), (29, 7)):
        write(make(), tmp_path, part="1/2")
        write(make(change), tmp_path, part="2/2")
        with pytest.raises(DatasetError, match=r"2 of 2 differs.* first_and_last_example_crc is"):
            covey.commit(tmp_path, split="train", progress=False)
    write(make(), tmp_path, part="2/2")
    assert covey.commit(tmp_path, split="train", progress=False).records >= 30


def test_parts_of_other_keys(tmp_path):
    write(pairs(), tmp_path, part="1/2")
    write(pairs(key="k{}"), tmp_path, part="2/2")
    with pytest.raises(DatasetError, match=r"2 of 2 differs.* first_and_last_example_crc is"):
        covey.commit(tmp_path, progress=False)


@pytest.mark.parametrize("position", [0, 29])
def test_an_example_that_is_not_valid_is_in_one_part(tmp_path, position):
    examples = [example for _, example in pairs()]
    examples[position] = 3
    numbers = (1, 2) if position else (2, 1)
    write(examples, tmp_path, part=f"{numbers[0]}/2", features={"x": "int64", "label": "str"})
    with pytest.raises(FeatureError) as caught:
        write(examples, tmp_path, part=f"{numbers[1]}/2", features={"x": "int64", "label": "str"})
    assert caught.value.example == position


class Shifted(Listed):
    """Source whose ranges do not meet: an example is missing, and another one occurs twice."""

    def __iter__(self):
        return iter(self.items)

    def read_range(self, begin, end):
        return self.items[begin:9] if begin == 0 else self.items[begin - 1 : end]


def test_records_of_a_part_are_counted(tmp_path):
    with pytest.raises(DatasetError) as caught:
        write_parts(Shifted(NAMED[:20]), tmp_path, 2)
    assert "part 1 of 2 has 9 records and 0 skipped examples; must have 10" in caught.value.reason
    assert "run part 1 again" in caught.value.remedy
    assert not (tmp_path / "dataset_info.json").exists()


def test_a_function_of_another_directory(tmp_path, monkeypatch):
    """The name of a function is not the path of a file."""
    for part in ("1/2", "2/2"):
        directory = tmp_path / part.replace("/", "-")
        directory.mkdir()
        monkeypatch.chdir(directory)
        write(pairs, tmp_path / "birds", part=part)
    assert covey.commit(tmp_path / "birds", progress=False).records == 30


def test_parts_of_different_numbers(tmp_path):
    write(NAMED, tmp_path, part="1/2")
    write(NAMED, tmp_path, part="2/2")
    write(NAMED, tmp_path, part="2/3")
    with pytest.raises(DatasetError, match=r"parts 1, 2 of 2; part 2 of 3"):
        covey.commit(tmp_path, progress=False)


def test_parts_of_several_writes(tmp_path):
    for split in ("train", "val"):
        write(NAMED, tmp_path, split=split, part="1/1")
    with pytest.raises(DatasetError, match="several writes") as caught:
        covey.commit(tmp_path, progress=False)
    assert "split='train'" in caught.value.remedy
    for split in ("val", "train"):
        assert covey.commit(tmp_path, split=split, progress=False).split == split


def test_a_part_that_was_run_twice_is_noted(tmp_path):
    """The first run remains if the second is killed before it removes it."""
    write(NAMED, tmp_path, part="1/1")
    (parts,) = tmp_path.glob(".covey-parts-*")
    (first,) = parts.iterdir()
    shutil.copytree(first, parts / "copy")
    write(NAMED, tmp_path, part="1/1")
    os.rename(parts / "copy", parts / first.name)
    assert len(list(parts.iterdir())) == 2
    result = covey.commit(tmp_path, progress=False)
    assert result.notes == ("part 1 of 1: the last run is used",)


PART_SCRIPT = """
import os, signal, sys
import covey
from engines import Squares

class Stopping(Squares):
    def __getitem__(self, index):
        if index == 3:
            print(flush=True)
            sys.stdin.readline()
        return super().__getitem__(index)

source = Stopping(10)
path, part = sys.argv[1:]
covey.write(source, path, part=part, memory_limit=1, progress=False)
"""


@contextlib.contextmanager
def running_part(path, part):
    """A process that writes a part, and waits at its fourth example."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    command = [sys.executable, "-c", PART_SCRIPT, path, part]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.kill()


def hidden(path):
    """Return the names of incomplete runs, without what identifies them."""
    return sorted(each.name[:16] for each in path.glob(".covey-parts-train/.*"))


def test_a_part_that_is_killed_is_removed(tmp_path):
    """By the next run of this part, and by the commit; runs of other processes remain."""
    source = Squares(10)
    with running_part(tmp_path, "1/2"):
        (killed,) = tmp_path.glob(".covey-parts-train/.00001-of-00002-*.tmp")
        assert list(killed.iterdir())
    assert killed.exists()
    write(source, tmp_path, part="2/2")  # another part
    assert killed.exists()
    with running_part(tmp_path, "1/2"):
        assert not killed.exists()
        write(source, tmp_path, part="1/2")
        assert hidden(tmp_path) == [".00001-of-00002-"]  # the one that runs
    assert hidden(tmp_path) == [".00001-of-00002-"]
    assert covey.commit(tmp_path, progress=False).records == 10
    assert not list(tmp_path.glob(".*"))


def test_a_part_that_runs_during_the_commit_remains(tmp_path):
    source = Squares(10)
    for part in ("1/2", "2/2"):
        write(source, tmp_path, part=part)
    with running_part(tmp_path, "1/2") as process:
        covey.commit(tmp_path, progress=False)
        assert hidden(tmp_path) == [".00001-of-00002-"]
        process.communicate(b"\n")
        assert process.returncode == 0
    (run,) = tmp_path.glob(".covey-parts-train/*")
    assert run.name.startswith("00001-of-00002-")


def test_a_part_that_is_killed_before_it_is_complete_is_missing(tmp_path):
    """Also if it has all its files: its last step is the rename."""
    write(Squares(10), tmp_path, part="1/1")
    (run,) = tmp_path.glob(".covey-parts-train/*")
    run.rename(run.with_name(f".{run.name}.tmp"))
    with pytest.raises(DatasetError, match="no part is complete"):
        covey.commit(tmp_path, progress=False)


def test_local_copies_of_killed_writers_are_removed(tmp_path, monkeypatch):
    """The next write to a URL removes them, but neither those of other processes nor links."""
    temporary = tmp_path / "tmp"
    outside = tmp_path / "outside"
    for path in (temporary, outside):
        path.mkdir()
        (path / "file").write_bytes(b"unchanged")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with running_part("memory://birds", "1/1"):
        (live,) = temporary.glob("covey-*")
        killed = temporary / "covey-write-0123456789abcdef"
        shutil.copytree(live, killed)
        (killed / "link").symlink_to(outside)
        (temporary / "covey-write-fedcba9876543210").symlink_to(outside)
        write(NAMED, "memory://local-copies/birds")
        assert not killed.exists()
        assert live.exists()
        assert stat.S_IMODE(live.stat().st_mode) == 0o700
    write(NAMED, "memory://local-copies/others")
    assert not live.exists()
    assert (outside / "file").read_bytes() == b"unchanged"


def test_a_part_that_is_not_complete_is_missing(tmp_path):
    for part in (1, 2):
        write(NAMED, tmp_path, part=f"{part}/2")
    (parts,) = tmp_path.glob(".covey-parts-*")
    next(parts.glob("00002-*/part.json")).unlink()
    with pytest.raises(DatasetError, match="part 2 of 2 is missing"):
        covey.commit(tmp_path, progress=False)


def prepare_part(tmp_path, **options):
    """Write two parts; return the files of the second one, and the digests of their commit."""
    examples = [{"x": i, "label": f"c{i % 3}"} for i in range(20)]
    write(examples, tmp_path / "good" / "birds", shards=2, **options)
    for part in (1, 2):
        write(examples, tmp_path / "parts" / "birds", part=f"{part}/2", shards=2, **options)
    (run,) = (tmp_path / "parts" / "birds").glob(".covey-parts-*/00002-*")
    return [path for path in sorted(run.rglob("*")) if path.is_file()], digests(tmp_path / "good")


@pytest.mark.parametrize("label", ["label", None])
def test_part_files_are_not_trusted(tmp_path, label):
    """Any change of a file of a part is an error of covey, or makes no difference."""
    rng = np.random.default_rng(0)
    files, expected = prepare_part(tmp_path, label=label)
    shutil.copytree(tmp_path / "parts", tmp_path / "copy")
    errors = 0
    for _ in range(60):
        shutil.rmtree(tmp_path / "parts")
        shutil.copytree(tmp_path / "copy", tmp_path / "parts")
        path = files[rng.integers(len(files))]
        data = bytearray(path.read_bytes())
        at = int(rng.integers(len(data)))
        match rng.integers(3):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.bytes(5)
        path.write_bytes(bytes(data))
        try:
            covey.commit(tmp_path / "parts" / "birds", progress=False)
        except covey.CoveyError:
            errors += 1
            assert not (tmp_path / "parts" / "birds" / "dataset_info.json").exists()
            assert path.exists()
        else:
            assert digests(tmp_path / "parts") == expected, path
    assert errors > 50


@pytest.mark.parametrize("offset", [8, 16, 24])
def test_rows_of_a_part_are_verified(tmp_path, offset):
    """A change of a hash, of a position or of a class id, which no other file shows."""
    files, _ = prepare_part(tmp_path)
    (path,) = [file for file in files if file.suffix == ".rows"]
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="the checksum of its rows does not match"):
        covey.commit(tmp_path / "parts" / "birds", progress=False)


PIECE, RESULT = ("results", 0, 0), ("results", 0, 1)
GROUP = (*RESULT, "groups", 0)
RUN = (*GROUP, "runs", 0)
MISSING = object()


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("results",), [], "a piece is missing|has 10 of 20|have 0 of 20"),
        (("results",), None, r"results is None; must be tuple"),
        (("write",), 3, "not a part"),
        (("covey_part",), 2, "not a part"),
        (("results", 0), [{"piece": 0}], "results"),
        ((*PIECE, "index"), 0, "belongs to two parts"),
        ((*PIECE, "index"), True, r"results\[0\]\[0\].index is True; must be int"),
        (
            (*PIECE, "first"),
            MISSING,
            r"\[0\] is a dict of .*; must be a dict of index,",
        ),
        ((*PIECE, "payload"), {}, "payload"),
        ((*PIECE, "split"), 1, "more than 1 splits"),
        ((*RESULT, "strings"), [], "a class id has no string"),
        ((*RESULT, "has_strings"), False, "a class id has no string"),
        ((*RESULT, "strings", 0), "\ud800", r"strings\[0\] is .*; must be str"),
        ((*RESULT, "has_keys"), [], "has_keys .* is empty"),
        ((*RESULT, "inference", "found", 0, 1, "count"), "1", "count is '1'; must be int"),
        ((*GROUP, "kind", "split"), 7, "more than 1 splits"),
        ((*GROUP, "kind", "split"), -1, "more than 1 splits"),
        ((*GROUP, "kind", "label"), "none", "'none'"),
        ((*GROUP, "kind", "order", "by"), "size", "by is 'size'; must be Literal"),
        ((*GROUP, "kind", "features"), {}, "kind.features: "),
        ((*GROUP, "table"), [], "table"),
        ((*RUN, "path"), "../a.frames", "the name of a run"),
        ((*RUN, "records"), 3, "must have 120 bytes"),
        ((*RUN, "checksum"), None, "a run has no checksum"),
        ((*RUN, "checksum"), 1, "the checksum does not match"),
        (("write", "options", "mode"), "none", "mode"),
        (("write", "options", "shards"), -1, "write.options: .*shards"),
        (("write", "inputs"), [], "it has 0 inputs"),
    ],
)
def test_content_of_a_part_is_not_trusted(tmp_path, place, value, reason):
    """Content with a valid checksum is checked as well."""
    prepare_part(tmp_path)
    for path in tmp_path.glob("parts/birds/.covey-parts-*/*/part.json"):
        content = json.loads(path.read_text())
        content.pop("content_checksum")
        parent = functools.reduce(lambda each, key: each[key], place[:-1], content)
        if value is MISSING:
            del parent[place[-1]]
        else:
            parent[place[-1]] = value
        content["content_checksum"] = content_checksum(content)
        path.write_text(json.dumps(content))
    with pytest.raises(FormatError, match=reason) as caught:
        covey.commit(tmp_path / "parts" / "birds", progress=False)
    assert ".covey-parts-" in str(caught.value.path)
    assert not (tmp_path / "parts" / "birds" / "dataset_info.json").exists()


@pytest.mark.parametrize(
    "value", [3, 0.5, float("inf"), b"\xff", np.float32(2), np.arange(4, dtype=">i2").reshape(2, 2)]
)
def test_defaults_of_parts(value):
    stored = json.loads(json.dumps(to_json({"x": value}), allow_nan=False))
    found = from_json(Mapping[str, typing.Any], stored, "defaults")["x"]
    np.testing.assert_array_equal(found, value)
    assert np.asarray(found).dtype == np.asarray(value).dtype


def test_a_commit_that_fails_keeps_the_parts(tmp_path, monkeypatch):
    files, expected = prepare_part(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(IndexWriter, "write_at", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            covey.commit(tmp_path / "parts" / "birds", progress=False)
    assert all(path.exists() for path in files)
    covey.commit(tmp_path / "parts" / "birds", progress=False)
    assert digests(tmp_path / "parts") == expected


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_a_commit_that_is_killed_before_it_removes_the_parts(tmp_path, monkeypatch, mode):
    """The next commit does not write the examples again."""
    if mode != "error":
        write(NAMED, tmp_path, label="label")
    for part in (1, 2):
        write(NAMED, tmp_path, part=f"{part}/2", mode=mode, label="label")
    with monkeypatch.context() as patch:
        patch.setattr(covey.writing.parts, "_remove_parts", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            covey.commit(tmp_path, progress=False)
    count = 200 if mode == "append" else 100
    for _ in range(2):
        assert len(covey.open(tmp_path, split="train")) == count
        covey.build_index(tmp_path, force=True, progress=False)  # it keeps the names of the parts
        if list(tmp_path.glob(".covey-parts-*")):
            result = covey.commit(tmp_path, progress=False)
            assert (result.records, len(result.notes)) == (count, 1)
    assert {path.name for path in tmp_path.glob(".*")} <= {".covey-old"}


@pytest.fixture(params=["directory", "memory://commits"])
def appended_parts(request, tmp_path):
    """The path of a dataset with parts that append to it."""
    is_url = "://" in request.param
    path = f"{request.param}/{tmp_path.name}" if is_url else f"{tmp_path}/birds"
    write(NAMED, path, label="label")
    for part in (1, 2):
        write(NAMED, path, part=f"{part}/2", mode="append", label="label")
    return path


def test_a_commit_of_parts_that_are_committed(appended_parts, monkeypatch):
    """Between the switch and the removal of the parts: the second commit reports the first."""
    real, second = covey.writing.parts._remove_parts, []

    def commit_again(*arguments):
        second.append(covey.commit(appended_parts, progress=False))
        real(*arguments)

    monkeypatch.setattr(covey.writing.parts, "_remove_parts", commit_again)
    assert covey.commit(appended_parts, progress=False).records == 200
    assert second[0].records == 200
    assert "the parts were committed before" in second[0].notes[0]
    assert len(covey.open(appended_parts, split="train")) == 200


def test_a_commit_of_parts_that_are_committed_meanwhile(appended_parts, monkeypatch):
    """After the second commit has found the parts, but before it reads the dataset."""
    is_url = "://" in appended_parts
    module = covey.writing.publish if is_url else covey.writing.parts
    name = "remove_committed" if is_url else "start_job"
    real, calls = getattr(module, name), []

    def commit_first(*arguments, **settings):
        calls.append(name)
        result = real(*arguments) if is_url else None
        if len(calls) == 1:
            with monkeypatch.context() as patch:  # the first commit is killed before it ends
                patch.setattr(covey.writing.parts, "_remove_parts", lambda *_: None)
                covey.commit(appended_parts, progress=False)
        return result if is_url else real(*arguments, **settings)

    monkeypatch.setattr(module, name, commit_first)
    with pytest.raises(DatasetError, match=r"another process has (changed|committed)"):
        covey.commit(appended_parts, progress=False)
    assert len(calls) == 2
    assert len(covey.open(appended_parts, split="train")) == 200


def test_repair_deletes_parts_at_a_url_on_request():
    url = "memory://parts/birds"
    for part in (1, 3):
        write(NAMED, url, part=f"{part}/3")
    (name, *others) = covey.repair(url).parts
    assert (name, others) == (".covey-parts-train", [])
    with pytest.raises(DatasetError, match="part 2 of 3 is missing"):
        covey.commit(url, progress=False)
    assert covey.repair(url, delete_parts=True).deleted == (name,)
    assert covey.repair(url).parts == ()
    with pytest.raises(DatasetError, match="there are no parts"):
        covey.commit(url, progress=False)


def test_parts_without_a_label_are_refused_with_the_candidates(tmp_path):
    examples = [{"weight": i / 2, "kind": f"c{i % 3}", "nest": i} for i in range(9)]
    with pytest.raises(DatasetError) as caught:
        write_parts(examples, tmp_path, 2)
    assert caught.value.option == "label"
    assert caught.value.reason == "not given; candidates: 'kind', 'nest'"


def test_a_dataset_that_changed_after_the_parts(tmp_path):
    write([{"x": 1, "label": "ant"}, {"x": 2, "label": "bee"}], tmp_path)
    write([{"x": 3, "label": "bee"}], tmp_path, part="1/1", mode="append")
    write([{"x": 1, "label": "aaa"}, {"x": 2, "label": "ant"}], tmp_path, mode="overwrite")
    with pytest.raises(DatasetError, match="has changed since the parts were written"):
        covey.commit(tmp_path, progress=False)


def test_parts_of_another_source(tmp_path, monkeypatch):
    """A relative path may name different files; one file may have several relative paths."""
    for name, first in (("a", 0), ("b", 9)):
        (tmp_path / name).mkdir()
        rows = "".join(f"{first + i},c\n" for i in range(6))
        (tmp_path / name / "s.csv").write_text("x,label\n" + rows)
    for part, directory in ((1, "a"), (2, "b")):
        monkeypatch.chdir(tmp_path / directory)
        write("s.csv", tmp_path / "birds", part=f"{part}/2")
    with pytest.raises(DatasetError, match="part 2 of 2 differs"):
        covey.commit(tmp_path / "birds", progress=False)
    write("../a/s.csv", tmp_path / "birds", part="2/2")
    assert covey.commit(tmp_path / "birds", progress=False).records == 6
    write("../a/s.csv", tmp_path / "other", part="1/2")
    text = (tmp_path / "a" / "s.csv").read_text()
    (tmp_path / "a" / "s.csv").write_text(text.replace("3,c", "7,c"))
    write("../a/s.csv", tmp_path / "other", part="2/2")
    with pytest.raises(DatasetError, match="fingerprint"):
        covey.commit(tmp_path / "other", progress=False)


def test_a_part_that_ends_after_the_commit(tmp_path):
    (parts,) = [tmp_path / ".covey-parts-train"]

    def examples():
        yield {"x": 1, "label": 0}
        if parts.exists():
            shutil.rmtree(parts)

    with pytest.raises(DatasetError, match="committed or removed"):
        write(examples, tmp_path, part="1/1")


def test_a_part_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(SourceError, match="the disk is gone"):
        write(Failing(60), tmp_path / "birds", part="1/1")

    def fail():
        raise ValueError("no data")

    with pytest.raises(SourceError, match="no data"):
        write(fail, tmp_path / "birds", part="1/1")
    assert not (tmp_path / "birds").exists()


def test_sources_that_are_read_once(tmp_path):
    """An iterable that always returns one iterator is read once, by the main process."""
    examples = list(generate(0, 20))

    class Once:
        def __init__(self):
            self.iterator = iter(examples)

        def __iter__(self):
            return self.iterator

    one = iter(examples)
    for number, source in enumerate((lambda: one, Once())):
        result = write(source, tmp_path / str(number), engine=ThreadEngine(3))
        assert result.records == 20


@pytest.mark.parametrize(
    ("make", "several", "calls"),
    [(list, False, 1), (iter, False, 5), (list, True, 3), (iter, True, 5)],
)
@pytest.mark.parametrize("options", [{"part": "1/2"}, {"engine": ThreadEngine(4)}])
def test_calls_of_functions(tmp_path, make, several, calls, options):
    """A list is kept, unless there are several; an iterator is compared with that of a new call."""
    counts = [0, 0]
    examples = list(generate(0, 20))

    def first():
        counts[0] += 1
        return make(examples)

    def second():
        counts[1] += 1
        return make(examples)

    write([first, second] if several else first, tmp_path, **options)
    assert 1 <= counts[0] <= calls
    assert counts[1] <= (calls - 1 if several else 0)


def test_a_function_that_fails(tmp_path):
    def fail():
        raise ValueError("no data")

    for options in ({"engine": ThreadEngine()}, {"part": "1/2"}, {"split_by": "label"}):
        with pytest.raises(SourceError, match="no data") as caught:
            write(fail, tmp_path, **options)
        assert caught.value.path == "fail"


def test_a_url_that_workers_do_not_share(tmp_path):
    """The memory of a worker process is not that of the main process."""
    engine = Processes(workers=1, pieces=2)
    with pytest.raises(DatasetError, match="missing or has another size"):
        write(Squares(20), "memory://engines/birds", engine=engine)
    with pytest.raises(covey.CoveyError):
        covey.open("memory://engines/birds")


def test_errors_name_the_split_of_a_duplicate(tmp_path):
    for name, key in (("train", "a"), ("val", "b")):
        lines = [json.dumps({"x": i, "label": 1, "k": f"{key}{i % 9}"}) for i in range(10)]
        lines = lines[:-1] if name == "train" else lines
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    for engine in (None, ThreadEngine(4)):
        with pytest.raises(DuplicateKeyError, match="'b0'") as caught:
            write(tmp_path / "*.jsonl", tmp_path / "birds", key="k", engine=engine)
        assert caught.value.examples == (0, 9)
    assert caught.value.path.endswith("val.jsonl")


@pytest.mark.parametrize("how", ["local", "engine", "parts"])
@pytest.mark.parametrize(
    ("column", "options", "error", "reason"),
    [
        ([0, 1, 7], {"features": {"x": covey.ClassLabel(num_classes=3)}}, FeatureError, "is 7"),
        ([0, 1, 1], {"key": "x"}, DuplicateKeyError, "examples 1 and 2"),
    ],
)
def test_errors_name_the_split_of_a_row(tmp_path, how, column, options, error, reason):
    """Splits of columns are written together; an error has the file of its row."""
    sources = {}
    for split, x in (("train", [0, 1, 2]), ("test", column)):
        np.savez(tmp_path / f"{split}.npz", x=x)
        sources[split] = covey.sources.open_source(tmp_path / f"{split}.npz")
    options = {"label": "x", **options}
    with pytest.raises(error, match=reason) as caught:
        if how == "parts":
            write_parts(sources, tmp_path / "birds", 2, **options)
        else:
            engine = ThreadEngine(4) if how == "engine" else None
            write(sources, tmp_path / "birds", engine=engine, **options)
    assert caught.value.path == str(tmp_path / "test.npz")
    assert caught.value.example in (2, None)


def test_part_of_a_source_that_is_read_once(tmp_path):
    with pytest.raises(DatasetError) as caught:
        write(generate(0, 9), tmp_path, part="1/2")
    assert caught.value.option == "part"
    with pytest.raises(DatasetError):
        write(NAMED, tmp_path, part="1/2", engine="processes")


def test_a_path_in_a_list_of_sources(tmp_path):
    """The keys of a path begin with its name, so that the order does not depend on the others."""
    files = make_csv_files(tmp_path)
    write(files, tmp_path / "all", shuffle=False, shards=1)
    rows = covey.open(tmp_path / "all", split="train")
    assert [int(row["x"]) for row in rows] == [0] * 3 + [1] * 40 + [3] * 9
    with pytest.raises(SourceError, match="no such file"):
        write([files[0], tmp_path / "missing.csv"], tmp_path / "other")
    with pytest.raises(DatasetError) as caught:
        write([partial(generate, 0, 3)], tmp_path / "other", names=["x"])
    assert caught.value.option == "names"
    assert Path(tmp_path / "other").exists() is False
