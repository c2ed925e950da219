"""covey.verify and covey.build_index in workers return the results of this process.

tests/ray/test_ray_maintenance.py runs the tests that have the fixture `engine` or `new_engine`.
"""

import gzip
import hashlib
import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from corrupt_files import example, flip, frame
from hypothesis import given
from hypothesis import strategies as st
from opened import put
from servers import directory_server, s3_bucket, stand_alone
from written import index_paths, shard_paths, write

import covey
from covey._progress import Progress
from covey.cli import main
from covey.engines import Engine, Pool, Processes
from covey.engines.shards import ShardItem, ShardPool, group_shards, scan_located
from covey.errors import CorruptRecordError, DatasetError, FeatureError, TaskError
from covey.schema.infer import RecordCounts, record_kinds, survey_kinds

CHOSEN = Processes(workers=2)
NAMES = ("crow", "owl", "wren")
PLAIN = {"x": "int64", "species": "str"}


@pytest.fixture
def new_engine():
    """An engine as a caller makes it."""
    return CHOSEN


@dataclass(frozen=True)
class Started(Engine):
    """An engine whose workers are not stopped, because starting processes is slow."""

    engine: Engine
    pool: Pool
    pieces: int | None = None

    @property
    def name(self):
        return self.engine.name

    def start(self):
        return self.pool


@contextmanager
def started(chosen):
    """Start the pool of an engine; yield an engine that uses it."""
    pool = chosen.start()
    close, pool.close = pool.close, lambda: None
    yield Started(chosen, pool)
    close()


@pytest.fixture(scope="module")
def engine():
    with started(CHOSEN) as found:
        yield found


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


def check(path, **options):
    """Return the report of a verification, without its duration."""
    return replace(covey.verify(path, progress=False, **options), seconds=0.0)


def sums(directory, pattern="*.index*"):
    """Return the SHA-256 of the index files in a directory."""
    found = {path.name: path.read_bytes() for path in sorted(Path(directory).glob(pattern))}
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def build(path, **options):
    return covey.build_index(path, force=True, progress=False, **options)


def check_same_index(path, directory, engine, **options):
    """Compare the index files that workers build with those of this process."""
    before = {each: each.read_bytes() for each in directory.glob("*.index*")}
    local = build(path, **options)
    expected = sums(directory)
    assert expected
    for each in directory.glob("*.index*"):
        each.unlink()
    for each, data in before.items():
        each.write_bytes(data)
    found = build(path, engine=engine, **options)
    assert sums(directory) == expected
    for a, b in zip(local, found, strict=True):
        assert a.index.metadata == b.index.metadata
        assert (a.split, a.is_new, a.differences) == (b.split, b.is_new, b.differences)
    return found


def error_of(function, *arguments, **options):
    with pytest.raises(covey.CoveyError) as caught:
        function(*arguments, **options)
    return caught.value


def fields(error):
    return type(error), error.reason, error.path, error.record, error.offset, error.feature


def birds(count, first=0):
    return [
        {"size": n, "song": [n / 2, 1.0], "species": NAMES[n % 3]}
        for n in range(first, first + count)
    ]


# Datasets.


@pytest.fixture(scope="module", params=[(1, None), (20, None), (20, "GZIP")], ids=str)
def valid(request, tmp_path_factory):
    """A valid dataset of two splits."""
    shards, compression = request.param
    directory = tmp_path_factory.mktemp("valid") / "birds"
    write(birds(200), directory, label="species", shards=shards, compression=compression)
    write(birds(9), directory, "test", compression=compression)
    return directory


@pytest.fixture
def directory(tmp_path):
    write(birds(200), tmp_path / "birds", label="species", shards=20)
    write(birds(9), tmp_path / "birds", "test")
    return tmp_path / "birds"


def test_valid_dataset(valid, engine):
    report = check(valid, engine=engine)
    assert report == check(valid)
    assert report.is_valid
    assert report.records == 209
    assert check(valid, engine=engine, split="test", mmap=False, threads=2).records == 9


def test_index_of_a_dataset(valid, tmp_path, engine):
    directory = shutil.copytree(valid, tmp_path / "birds")
    check_same_index(directory, directory, engine)  # with the classes of the old index
    for split in ("train", "test"):
        index_paths(directory, split)["metadata"].unlink()
    check_same_index(directory, directory, engine, threads=2)
    (kept, _) = covey.build_index(directory, engine=engine, progress=False)
    assert not kept.is_new
    assert check(directory, engine=engine).is_valid


def flip_record(path, record=3):
    """Change a byte of the data of a record of a plain file."""
    with covey.RecordReader(path) as reader:
        offset = int(reader.locations()["offset"][record])
    path.write_bytes(flip(path.read_bytes(), 8 * (offset + 14)))


def corrupt(directory):
    """Make every kind of problem in a dataset of 20 shards."""
    shards = shard_paths(directory)
    flip_record(shards[2])
    os.truncate(shards[5], shards[5].stat().st_size - 7)
    shards[7].unlink()
    shards[8].unlink()
    shards[8].mkdir()
    with open(shards[11], "ab") as file:
        file.write(frame(b"not an example") + frame(example(size=[1])))
    shutil.copy(shards[13], shards[14])
    rows = index_paths(directory)["rows"]
    data = bytearray(rows.read_bytes())
    data[-200] ^= 1
    rows.write_bytes(data)
    shards[16].rename(directory / "birds-train.tfrecord-00099-of-00020")


def test_problems_are_those_of_this_process(directory, engine):
    corrupt(directory)
    report = check(directory, engine=engine)
    assert report == check(directory)
    files = {problem.file for problem in report.problems}
    assert {shard_paths(directory)[n].name for n in (2, 5, 7, 8, 11, 14, 16)} <= files
    assert index_paths(directory)["rows"].name in files
    assert len(report.problems) > 10


def test_problems_without_metadata(directory, engine):
    corrupt(directory)
    (directory / "dataset_info.json").write_text("{")
    assert check(directory, engine=engine) == check(directory)
    (directory / "features.json").unlink()
    for path in (*directory.glob("*.index*"), directory / "dataset_info.json"):
        path.unlink()
    shard_paths_left = sorted(path for path in directory.glob("*tfrecord*") if path.is_file())
    report = check(shard_paths_left, engine=engine)
    assert report == check(shard_paths_left)
    assert not report.is_valid


# Files without an index.


@pytest.mark.parametrize(
    ("features", "label", "compression"),
    [
        ({"x": "int64", "label": "int64"}, None, None),
        ({"x": "int64", "species": "str"}, None, None),
        ({"x": "int64", "species": "str"}, None, "GZIP"),
        ({"x": "int64", "species": "str"}, None, "ZLIB"),
        ({"x": "int64", "name": "bytes"}, "name", None),
        ({"x": "int64", "colour": "str"}, None, None),
        ({"x": "int64", "colour": "str"}, None, "GZIP"),
        ({"x": "int64"}, "@file", "GZIP"),
    ],
    ids=["integer", "string", "string-GZIP", "string-ZLIB", "bytes", "none", "none-GZIP", "file"],
)
def test_foreign_files(tmp_path, engine, features, label, compression):
    for shard in range(5):
        # Each shard has a string that no other has; the first are not the first in order.
        values = [
            {"label": n % 4, "species": f"{9 - shard} {n % 3}", "name": f"b{n % shard}".encode()}
            if shard
            else {"label": 9, "species": "zebra", "name": b"z"}
            for n in range(10 + shard)
        ]
        examples = [
            {name: each.get(name, "red" if name == "colour" else n) for name in features}
            for n, each in enumerate(values)
        ]
        put(tmp_path / f"{shard}.tfrecord", examples, features, compression=compression)
    pattern = f"{tmp_path}/*.tfrecord"
    (result,) = check_same_index(pattern, tmp_path, engine, label=label)
    metadata = result.index.metadata
    assert metadata.compression == compression
    expected = {"label", "species"} & {*features} or {label}
    assert {metadata.label} == expected
    if metadata.label == "species":
        assert metadata.label_strings[0] == "5 0"
        assert metadata.label_strings[-1] == "zebra"
    assert check(pattern, engine=engine) == check(pattern)


def test_one_gzip_member(tmp_path, engine):
    for shard in range(3):
        path = put(tmp_path / f"{shard}.tfrecord", [{"x": shard, "species": "owl"}] * 5, PLAIN)
        path.write_bytes(gzip.compress(path.read_bytes()))
    (result,) = check_same_index(tmp_path, tmp_path, engine)
    assert result.index.metadata.compression == "GZIP"
    assert check(tmp_path, engine=engine) == check(tmp_path)


def test_features_are_inferred_from_all_shards(tmp_path, engine):
    records = [
        [example(a=[1], b=[1.0, 2.0]), example(a=[2], b=[1.0, 2.0])],
        [example(a=[1], b=[1.0], c=[b"x"])],
        [],
        [example(a=[3]), example(a=[4], b=[0.5] * 3, c=[b"y", b"z"])],
    ]
    for shard, each in enumerate(records):
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, each)))
    (result,) = check_same_index(tmp_path, tmp_path, engine)
    assert list(result.index.metadata.features) == ["a", "b", "c"]
    assert result.index.metadata.records == 5

    (tmp_path / "4.tfrecord").write_bytes(frame(example(a=[b"text"])))
    local, found = (error_of(build, tmp_path, engine=each) for each in (None, engine))
    assert fields(local) == fields(found)
    assert "record 5 has bytes, record 0 has int64" in str(found)


def test_images_are_summarized(tmp_path, engine):
    from pictures import draw, png

    features = {"image": covey.Image(), "label": "int64"}
    examples = [{"image": png(draw((8 + n % 3, 8, 3))), "label": n % 2} for n in range(12)]
    write(examples, tmp_path / "birds", features=features, label="label", shards=4)
    for path in (tmp_path / "birds").glob("*.index*"):
        path.unlink()
    (result,) = check_same_index(tmp_path / "birds", tmp_path / "birds", engine)
    assert result.index.metadata.images["image"].images == 12


def test_invalid_label_falls_back_to_none(tmp_path, engine):
    """In all shards but the first, the feature only has the name of a label."""
    for shard in range(4):
        labels = [1] if shard == 0 else [1, 2]
        records = [example(label=labels, x=[shard]) for _ in range(6)]
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    (result,) = check_same_index(tmp_path, tmp_path, engine)
    assert result.index.metadata.label is None


def test_dali(tmp_path, engine, monkeypatch):
    for shard in range(3):
        put(tmp_path / f"{shard}.tfrecord", [{"x": n, "species": "owl"} for n in range(5)], PLAIN)
    monkeypatch.chdir(tmp_path)
    build("*.tfrecord", to_dali="dali")
    check_same_index("*.tfrecord", tmp_path, engine, from_dali="dali")


def test_empty_files(tmp_path, engine):
    for shard in range(3):
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"")
    (result,) = check_same_index(tmp_path, tmp_path, engine)
    assert len(result.index) == 0


def test_a_relative_path(directory, engine, monkeypatch):
    """The working directory of workers is another one."""
    monkeypatch.chdir(directory.parent)
    report = check("birds", engine=engine)
    assert report == check("birds")
    assert report.is_valid
    check_same_index("birds", directory, engine)


# URLs.


def test_verify_a_url(directory, engine):
    flip_record(shard_paths(directory)[4])
    with directory_server(directory.parent) as url:
        report = check(f"{url}/birds", engine=engine)
        assert report == check(f"{url}/birds")
        assert (len(report.problems), report.records) == (1, 208)


def test_index_of_a_url(tmp_path, engine):
    for shard in range(3):
        put(tmp_path / f"{shard}.tfrecord", [{"x": n, "species": f"{n}"} for n in range(5)], PLAIN)
    with s3_bucket("index") as s3:  # servers of one process share their buckets
        options = {name: each for name, each in s3.options.items() if name != "session"}
        for name in ("local", "workers"):
            for path in tmp_path.glob("*.tfrecord"):
                s3.client.upload_file(str(path), "index", f"{name}/{path.name}")
        for name, chosen in (("local", None), ("workers", engine)):
            build(f"s3://index/{name}", storage_options=options, engine=chosen)
        found = s3.client.list_objects_v2(Bucket="index")["Contents"]
        tags = {each["Key"]: each["ETag"] for each in found if each["Key"].endswith("npy")}
        assert len(tags) == 6
        for key, tag in tags.items():
            assert tag == tags[f"local/{key.partition('/')[2]}"]
        url = "s3://index/workers"
        assert check(url, storage_options=options, engine=engine).is_valid


# Errors.


def test_the_error_is_that_of_the_first_shard(tmp_path, engine):
    """Errors of later shards occur earlier."""
    for shard in range(12):
        examples = [{"x": n, "species": "owl"} for n in range(2000 if shard == 2 else 10)]
        path = put(tmp_path / f"{shard:02}.tfrecord", examples, PLAIN)
        if shard >= 2:
            flip_record(path, 1990 if shard == 2 else 1)
    chosen = replace(engine, pieces=12)
    local, found = (error_of(build, tmp_path, engine=each) for each in (None, chosen))
    assert isinstance(found, CorruptRecordError)
    assert fields(local) == fields(found)
    assert found.path == str(tmp_path / "02.tfrecord")
    assert found.record == 1990
    assert found.task.startswith("shard 02.tfrecord on node ")
    assert f", process {os.getpid()}" not in found.task
    assert found.task in str(found)


def test_a_missing_shard(directory, engine):
    shard_paths(directory)[3].unlink()
    local, found = (error_of(build, directory, engine=each) for each in (None, engine))
    assert isinstance(found, DatasetError)
    assert fields(local) == fields(found)


def test_an_error_without_a_location_has_that_of_its_shard(directory, engine):
    """A string that is not a class of the index that is rebuilt."""
    shard = shard_paths(directory)[3]
    build_again = partial(build, directory, label="species")
    put(shard, [{"size": 1, "song": [1.0, 1.0], "species": 7}], {
        "size": "int64", "song": covey.Tensor("float32", (2,)), "species": "int64"})  # fmt: skip
    local, found = (error_of(build_again, engine=each) for each in (None, engine))
    assert type(local) is type(found)
    assert local.reason == found.reason
    assert found.path == str(shard)


def scan(context, shards, progress):
    """Scan shards: the path of a shard is what to do."""
    found = []
    for number, payload in shards:
        progress(1, 10)
        found.append(scan_located(f"/{number}", partial(act, context, number, payload)))
    return found


def act(marker, number, payload):
    if payload == "kill":
        try:
            with open(marker, "x"):
                pass
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
    if payload == "kill always":
        os.kill(os.getpid(), signal.SIGKILL)
    if payload == "fail late":
        time.sleep(0.5)
    if payload in ("fail", "fail late"):
        raise ZeroDivisionError("a bug")
    if payload == "deny":
        raise PermissionError(13, "Permission denied")
    return number


def run(engine, marker, *actions):
    """Scan one shard for each action; return the results in order."""
    items = [ShardItem(n, f"/{n}", 100) for n in range(len(actions))]
    with ShardPool(engine) as pool, Progress(False, None, "scanning") as bar:
        parts = dict(
            pool.scan(scan, str(marker), items, bar, "scanning", payload=actions.__getitem__)
        )
    return [number for group in sorted(parts, key=min) for number in parts[group]]


def test_a_lost_worker_is_replaced(tmp_path, new_engine):
    assert run(new_engine, tmp_path / "marker", *["-"] * 5, "kill", *["-"] * 5) == [*range(11)]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("kill always", TaskError),
        ("fail", TaskError),
        ("deny", covey.errors.StoragePermissionError),
    ],
)
def test_a_task_that_fails(tmp_path, new_engine, action, kind):
    chosen = replace(new_engine, max_retries=0, pieces=2)
    error = error_of(run, chosen, tmp_path / "marker", "-", "-", "-", action)
    assert type(error) is kind
    assert error.task.startswith("shards 2 to 3")
    if action == "kill always":
        assert "1 attempt" in error.reason
        assert "memory_limit" in error.remedy
    else:
        assert error.path == "/3"
        assert " on node " in error.task
        assert error.reason.startswith(("ZeroDivisionError: a bug", "Permission denied"))


def test_the_error_of_the_first_task_is_raised(tmp_path, new_engine):
    chosen = replace(new_engine, pieces=5)
    error = error_of(run, chosen, tmp_path / "marker", "-", "fail late", "-", "fail", "fail")
    assert error.path == "/1"


def test_no_shards():
    assert run(CHOSEN, "none") == []


def test_engine_is_checked(directory):
    for function in (covey.verify, covey.build_index):
        error = error_of(function, directory, engine="threads")
        assert (error.option, error.found) == ("engine", "threads")


# Groups.


@given(st.lists(st.integers(0, 1 << 32), min_size=1, max_size=60), st.integers(1, 80))
def test_groups_are_consecutive_and_bounded(sizes, count):
    groups = group_shards(sizes, count)
    assert [n for group in groups for n in group] == [*range(len(sizes))]
    assert all(groups)
    assert len(groups) <= count
    if min(sizes) == max(sizes):
        assert len(groups) == min(count, len(sizes))


@given(st.lists(st.lists(st.sampled_from([
    {"a": [1]}, {"a": [1, 2], "b": [b"x"]}, {"b": [b"x"]}, {"c": [0.5], "a": [1]}, {"a": [2.5]},
]), max_size=4), min_size=1, max_size=5))  # fmt: skip
def test_counts_of_parts_are_those_of_all_records(parts):
    from covey import _core

    surveys = []
    for part in parts:
        survey = _core.Survey()
        for record in part:
            survey.add(example(**record))
        surveys.append(survey)

    def kinds(function, argument):
        try:
            return list(function(argument).items())
        except FeatureError as error:
            return str(error)

    halves = [RecordCounts.join(map(RecordCounts.of, each)) for each in (surveys[:2], surveys[2:])]
    assert kinds(record_kinds, RecordCounts.join(halves)) == kinds(survey_kinds, surveys)


# The command line.


def test_commands(directory, new_engine, capsys):
    name = new_engine.name
    assert main(["verify", str(directory), "--engine", name, "--json", "--max-retries", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["problems"]) == (209, [])
    more = ["--workers", "1"] if name == "processes" else ["--num-cpus", "0.5"]
    expected = sums(directory)
    assert main(["index", str(directory), "--engine", name, "--force", "-q", *more]) == 0
    assert sums(directory) == expected
    flip_record(shard_paths(directory)[1])
    assert main(["verify", str(directory), "--engine", name]) == 1
    assert "1 problem" in capsys.readouterr().out
    assert main(["index", str(directory), "--engine", name, "--force"]) == 1
    message = capsys.readouterr().err
    assert shard_paths(directory)[1].name in message
    assert " on node " in message
    assert "covey repair" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2"], "--workers needs --engine processes"),
        (["--workers", "2", "--engine", "ray"], "--workers needs --engine processes"),
        (["--num-cpus", "2", "--engine", "processes"], "--num-cpus needs --engine ray"),
        (["--max-retries", "2"], "--max-retries needs --engine"),
        (["--max-retries", "-1"], "must be an integer >= 0"),
        (["--num-cpus", "0"], "must be a number > 0"),
        (["--num-cpus", "nan"], "must be a number > 0"),
        (["--engine", "rey"], "did you mean ray?"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "index"])
def test_options_of_engines(command, arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, str(tmp_path), *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_progress(directory, capsys):
    assert covey.verify(directory, engine=CHOSEN, progress=True).is_valid
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("verifying (21/21 shards): 100%")
    assert "209/209" in last
    assert last.endswith("kB]")
