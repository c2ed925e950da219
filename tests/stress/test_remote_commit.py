"""A commit to S3 is one PUT: a writer that is killed at any request leaves the old or the new."""

import asyncio
import contextlib
import io
import itertools
import json
import logging
import multiprocessing
import os
import shutil
import signal
import threading
import urllib.request
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from aiobotocore.session import AioSession
from moto.server import ThreadedMotoServer
from servers import stand_alone
from written import fresh_process, write

import covey
from covey import RecordReader
from covey.errors import DatasetError
from covey.writing.publish import RemoteStaging

COUNTER = itertools.count()


class KillingServer:
    """Passes requests on to a server of S3, and kills their client at one of them.

    Args:
        app: The server's WSGI application.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self.target = 0
        """The process to be killed."""
        self.count = 0
        """Its requests so far."""
        self.fatal = -1
        """The number of the request at which it is killed."""
        self.moment = "before"
        """``"before"`` the request is carried out, ``"inside"`` of its body, or ``"after"``."""

    def __call__(self, environ: Any, start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path.startswith("/--process/"):
            self.target = int(path.rpartition("/")[2])
            start_response("200 OK", [("Content-Length", "0")])
            return [b""]
        with self._lock:
            number, self.count = self.count, self.count + 1
        is_fatal = number == self.fatal and self.target
        if is_fatal and self.moment == "inside":
            length = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(length // 2)
        if is_fatal and self.moment != "after":
            return self._kill(start_response)
        result = self._app(environ, start_response)
        if is_fatal:
            with contextlib.suppress(Exception):
                b"".join(result)
            os.kill(self.target, signal.SIGKILL)
        return result

    def _kill(self, start_response: Any) -> Any:
        os.kill(self.target, signal.SIGKILL)
        start_response("500 Killed", [("Content-Length", "0")])
        return [b""]


@dataclass
class Bucket:
    """A bucket, and the server that it is on."""

    server: KillingServer
    endpoint: str
    client: Any
    options: dict[str, Any] = field(default_factory=dict)

    def names(self, prefix):
        found = self.client.list_objects_v2(Bucket="bucket", Prefix=f"{prefix}/")
        return [each["Key"].removeprefix(f"{prefix}/") for each in found.get("Contents", [])]

    def read(self, prefix, name):
        return self.client.get_object(Bucket="bucket", Key=f"{prefix}/{name}")["Body"].read()


@pytest.fixture(scope="module")
def bucket():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    killing = server._server.app = KillingServer(server._server.app)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="bucket")
    options = {"key": "key", "secret": "secret", "client_kwargs": {"endpoint_url": endpoint}}
    yield Bucket(killing, endpoint, client, options)
    client.close()
    server.stop()


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        run(_import_driver)
        yield run


SESSION = AioSession()
"""Shared by all clients of a process, for it takes long to make one."""


def _import_driver():
    import s3fs  # noqa: F401

    async def make_client():
        options = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        async with SESSION.create_client("s3", region_name="us-east-1", **options):
            pass

    asyncio.run(make_client())


OLD = [{"x": 1, "label": "ab"[i % 2]} for i in range(40)]
NEW = [{"x": 2, "label": "ab"[i % 2]} for i in range(30)]
OTHERS = [{"x": 2, "label": "bc"[i % 2]} for i in range(30)]

SCENES = {
    "overwrite": (OTHERS, {"mode": "overwrite", "shards": 3}),
    "append": (OTHERS, {"mode": "append"}),
    "new split": (OTHERS, {"split": "test"}),
    "new dataset": (NEW, {}),
}


def put(url, options, examples, **arguments):
    arguments = {"label": "label", "shards": 2, **arguments}
    options = {**options, "session": SESSION}
    return write(examples, url, storage_options=options, **arguments)


def put_in_child(url, endpoint, options, examples, arguments):
    """Write in a process of its own, which the server knows; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            urllib.request.urlopen(f"{endpoint}/--process/{os.getpid()}").close()
            put(url, options, examples, **arguments)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def plain(bucket, prefix):
    """What a plain reader of dataset_info.json finds: the numbers of records, by split."""
    if "dataset_info.json" not in bucket.names(prefix):
        return None
    content = json.loads(bucket.read(prefix, "dataset_info.json"))
    found = {}
    for split in content["splits"]:
        lengths, found[split["name"]] = split["shardLengths"], []
        for shard, length in enumerate(lengths):
            name = split["filepathTemplate"].format(
                DATASET=content["name"],
                SPLIT=split["name"],
                FILEFORMAT="tfrecord",
                SHARD_X_OF_Y=f"{shard:05}-of-{len(lengths):05}",
            )
            numbers = decode(bucket.read(prefix, name))
            assert len(numbers) == int(length), "mixed"
            found[split["name"]] += numbers
        found[split["name"]].sort()
    return found


def decode(data):
    features = covey.Features({"x": "int64"})
    with RecordReader(io.BytesIO(data)) as reader:
        return [int(features.decode(record)["x"]) for record in reader]


def by_covey(url, options):
    """The same, as covey.open finds it."""
    found, options = {}, {**options, "session": SESSION}
    for split in covey.info(url, storage_options=options).splits:
        ds = covey.open(url, split=split.name, storage_options=options, progress=False)
        found[split.name] = sorted(ds[:]["x"].tolist())
    return found


@pytest.fixture(scope="module")
def old_files(bucket, tmp_path_factory):
    """A dataset as it is behind a URL."""
    with pytest.MonkeyPatch.context() as patch:
        stand_alone(patch, tmp_path_factory.mktemp("old"))
        put("s3://bucket/commit-old/birds", bucket.options, OLD)
    return {
        name: bucket.read("commit-old/birds", name) for name in bucket.names("commit-old/birds")
    }


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("overwrite", "before"),
        ("overwrite", "inside"),
        ("overwrite", "after"),
        ("append", "inside"),
        ("new split", "after"),
        ("new dataset", "inside"),
    ],
)
def test_killed_at_every_request(bucket, fresh, old_files, name, moment):
    examples, arguments = SCENES[name]
    server, ends = bucket.server, []
    for fatal in range(100):
        prefix = f"commit{next(COUNTER)}/birds"
        url = f"s3://bucket/{prefix}"
        server.target, server.fatal = 0, -1
        for each, data in old_files.items() if name != "new dataset" else ():
            bucket.client.put_object(Bucket="bucket", Key=f"{prefix}/{each}", Body=data)
        old = plain(bucket, prefix)
        server.count, server.fatal, server.moment = 0, fatal, moment
        status = fresh(put_in_child, url, bucket.endpoint, bucket.options, examples, arguments)
        server.target, server.fatal = 0, -1
        found = plain(bucket, prefix)
        ends.append(found != old)
        if found is not None:
            assert by_covey(url, bucket.options) == found
        if status == 0:
            break
        assert status == -signal.SIGKILL
        split = arguments.get("split", "train")
        before = old["train"] if name == "append" else []
        new = {**(old or {}), split: sorted([*before, *(each["x"] for each in examples)])}
        assert found in (old, new), f"killed at request {fatal}"
        if not ends[-1] and fatal % 7 == 0:  # the next write continues from what is there
            put(url, bucket.options, examples, **arguments)
            assert plain(bucket, prefix) == by_covey(url, bucket.options) == new
    assert status == 0
    assert len(ends) > 15
    assert ends == sorted(ends)  # once it is the new one, it stays the new one


def overwrite_forever(url, options):
    """Write versions of a split, in each of which all records have the same number."""
    for number in itertools.count(2):
        batch = [{"x": number, "label": "ab"[i % 2]} for i in range(40 + number % 5)]
        put(url, options, batch, mode="overwrite", shards=1 + number % 3)


def test_readers_beside_a_writer(bucket):
    """No reader finds records of two versions, a missing file, or a dataset that it refuses."""
    prefix = f"commit{next(COUNTER)}/birds"
    url = f"s3://bucket/{prefix}"
    bucket.server.target, bucket.server.fatal = 0, -1
    put(url, bucket.options, OLD)
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=overwrite_forever, args=(url, bucket.options), daemon=True)
    writer.start()
    options = {**bucket.options, "session": SESSION}
    versions, reads = set(), 0
    try:
        while reads < 300 or len(versions) < 5:
            reads += 1
            (numbers,) = plain(bucket, prefix).values()
            assert len({*numbers}) == 1
            ds = covey.open(url, storage_options=options, progress=False)
            numbers = ds[:]["x"].tolist()
            ds.close()
            assert len({*numbers}) == 1
            versions |= {*numbers}
            assert writer.is_alive()
    finally:
        writer.kill()
        writer.join()
        shutil.rmtree(os.environ["COVEY_CACHE"], ignore_errors=True)


def test_two_writers_that_switch_at_the_same_moment(bucket, monkeypatch):
    """S3 compares and writes in one request: neither split is lost, and one writer is refused."""
    prefix = f"commit{next(COUNTER)}/birds"
    url = f"s3://bucket/{prefix}"
    put(url, bucket.options, OLD)
    real, raced = RemoteStaging._check_unchanged, []

    def check_unchanged(mirror):
        real(mirror)
        if mirror._split == "test" and (mirror.directory / "dataset_info.json").exists():
            raced.append(put(url, bucket.options, NEW, split=f"other{len(raced)}"))

    monkeypatch.setattr(RemoteStaging, "_check_unchanged", check_unchanged)
    with pytest.raises(DatasetError, match="another process has changed the dataset"):
        put(url, bucket.options, NEW, split="test")
    assert raced
    splits = {"train", *(each.split for each in raced)}
    assert {*plain(bucket, prefix)} == {*by_covey(url, bucket.options)} == splits
