"""A commit to S3 is one PUT: a writer that is killed at any request leaves the old or the new.

A writer that is killed at a request that only reads leaves what the change before it left: the
tests look at the files before each request that changes the bucket.
"""

import asyncio
import io
import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import boto3
import pytest
from aiobotocore.session import AioSession
from moto.server import ThreadedMotoServer
from servers import delete_bucket, stand_alone
from written import fresh_process, write

import covey
from covey import RecordReader
from covey.errors import DatasetError

COUNTER = itertools.count()


class StrikingServer:
    """A server of S3 that calls a function at one of the requests.

    Args:
        app: WSGI application of the server.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._is_striking = False
        self.reset()

    def reset(
        self,
        matches: Callable[[int, Any], bool] = lambda number, environ: False,
        strike: Callable[[], None] = lambda: None,
    ) -> None:
        """Set the function, and count requests from 0.

        Args:
            matches: Returns whether to call the function, for the number and the WSGI environment
                of a request. Requests that the function causes are not counted.
            strike: The function, which is called before the request.
        """
        self.count = 0
        self.matches, self.strike = matches, strike

    @contextmanager
    def before_changes(self, look: Callable[[Any], object]) -> Iterator[None]:
        """Call a function before each request that changes the bucket, and make one at a time."""
        app, lock = self._app, threading.Lock()

        def changed(environ: Any, start_response: Any) -> Any:
            if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                return app(environ, start_response)
            with lock:
                look(environ)
                return list(app(environ, start_response))

        self._app = changed
        try:
            yield
        finally:
            self._app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        with self._lock:
            number = self.count
            is_counted = not self._is_striking
            self.count += is_counted
            is_struck = is_counted and self.matches(number, environ)
            self._is_striking = self._is_striking or is_struck
        if not is_struck:
            return self._app(environ, start_response)
        try:
            self.strike()
        finally:
            self._is_striking = False
        return self._app(environ, start_response)


@dataclass
class Bucket:
    """A bucket and its server."""

    server: StrikingServer
    client: Any
    options: dict[str, Any] = field(default_factory=dict)

    def names(self, prefix):
        found = self.client.list_objects_v2(Bucket="bucket", Prefix=f"{prefix}/")
        return [each["Key"].removeprefix(f"{prefix}/") for each in found.get("Contents", [])]

    def files(self, prefix):
        return {name: self.read(prefix, name) for name in self.names(prefix)}

    def put_files(self, files):
        """Put files below a new prefix; return its URL and the prefix."""
        prefix = f"commit{next(COUNTER)}/birds"
        for name, data in files.items():
            self.client.put_object(Bucket="bucket", Key=f"{prefix}/{name}", Body=data)
        return f"s3://bucket/{prefix}", prefix

    def read(self, prefix, name):
        return self.client.get_object(Bucket="bucket", Key=f"{prefix}/{name}")["Body"].read()


@pytest.fixture(scope="module")
def bucket():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    striking = server._server.app = StrikingServer(server._server.app)
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
    yield Bucket(striking, client, options)
    striking.reset()
    delete_bucket(client, "bucket")
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
"""Shared by all clients of a process: creating one is slow."""


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


def commit(url, options):
    options = {**options, "session": SESSION}
    return covey.commit(url, storage_options=options, progress=False)


def plain(bucket, prefix):
    """Return the numbers that a plain reader of dataset_info.json finds, by split."""
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
    """Return the same as covey.open finds it."""
    found, options = {}, {**options, "session": SESSION}
    for split in covey.info(url, storage_options=options).splits:
        ds = covey.open(url, split=split.name, storage_options=options, progress=False)
        found[split.name] = sorted(ds[:]["x"].tolist())
    return found


@pytest.fixture(scope="module")
def old_files(bucket, tmp_path_factory):
    """The files of a dataset at a URL."""
    with pytest.MonkeyPatch.context() as patch:
        stand_alone(patch, tmp_path_factory.mktemp("old"))
        put("s3://bucket/commit-old/birds", bucket.options, OLD)
    return bucket.files("commit-old/birds")


@pytest.mark.parametrize("name", SCENES)
def test_kill_at_every_change(bucket, old_files, name):
    """A kill before a change leaves the files that the server has at that moment."""
    examples, arguments = SCENES[name]
    before = old_files if name != "new dataset" else {}
    url, prefix = bucket.put_files(before)
    old, states, is_new = plain(bucket, prefix), [], []
    with bucket.server.before_changes(lambda environ: states.append(bucket.files(prefix))):
        put(url, bucket.options, examples, **arguments)
    states.append(bucket.files(prefix))
    split = arguments.get("split", "train")
    kept = old["train"] if name == "append" else []
    new = {**(old or {}), split: sorted([*kept, *(each["x"] for each in examples)])}
    for step, files in enumerate(states):
        url, prefix = bucket.put_files(files)
        found = plain(bucket, prefix)
        assert found in (old, new), f"killed before change {step}"
        is_new.append(found == new)
        if found is not None and (step % 3 == 0 or is_new[-2:] == [False, True]):
            assert by_covey(url, bucket.options) == found
        if not is_new[-1] and step % 7 == 0:
            put(url, bucket.options, examples, **arguments)
            assert plain(bucket, prefix) == by_covey(url, bucket.options) == new
    assert len(states) > 8
    assert is_new == sorted(is_new)
    assert is_new[-1]


def test_parts_after_a_killed_commit(bucket, old_files):
    """A commit deletes parts that are committed, and no others."""
    again = [{"x": 3, "label": "ab"[i % 2]} for i in range(30)]
    url, prefix = bucket.put_files(old_files)
    old, states, committed = plain(bucket, prefix), [], []
    put_parts(url, bucket.options, NEW)

    def look(environ):
        if is_change_of_names(environ):
            states.append(bucket.files(prefix))

    with bucket.server.before_changes(look):
        commit(url, bucket.options)
    for files in states:
        url, prefix = bucket.put_files(files)
        found = plain(bucket, prefix)
        committed.append(found != old)
        put_parts(url, bucket.options, again)
        notes = commit(url, bucket.options).notes
        assert not [each for each in notes if "replaced version" not in each]
        expected = sorted([*found["train"], *(each["x"] for each in again)])
        assert plain(bucket, prefix)["train"] == expected
        assert not [each for each in bucket.names(prefix) if each.endswith("part.json")]
        if committed.count(True) == 2:
            break
    assert committed.count(True) == 2
    assert False in committed


def is_change_of_names(environ):
    """Return whether a request is the switch, or deletes files."""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    is_switch = method == "PUT" and path.endswith("/dataset_info.json")
    return (
        is_switch
        or method == "DELETE"
        or (method == "POST" and "delete" in environ["QUERY_STRING"])
    )


def put_parts(url, options, examples):
    for part in ("1/2", "2/2"):
        put(url, options, examples, mode="append", part=part)


def overwrite(url, options, number):
    """Write a version of which all records have the same number."""
    batch = [{"x": number, "label": "ab"[i % 2]} for i in range(40 + number % 5)]
    put(url, options, batch, mode="overwrite", shards=1 + number % 3)


def test_overwrite_at_every_request_of_a_reader(bucket, fresh):
    prefix = f"commit{next(COUNTER)}/birds"
    url = f"s3://bucket/{prefix}"
    server, versions = bucket.server, set()
    put(url, bucket.options, OLD)
    options = {**bucket.options, "session": SESSION}
    for struck in range(100):
        server.reset(
            lambda number, environ, struck=struck: number == struck,
            partial(fresh, overwrite, url, bucket.options, 2 + struck),
        )
        with closing(covey.open(url, storage_options=options, progress=False)) as ds:
            found = {*ds[:]["x"].tolist()}
        assert len(found) == 1
        versions |= found
        if server.count <= struck:
            break
    server.reset()
    assert struck < 99
    assert len(versions) > 2


def test_two_writers_that_switch_at_the_same_moment(bucket, fresh):
    """S3 compares and writes in one request: no split is lost, and one writer fails."""
    prefix = f"commit{next(COUNTER)}/birds"
    url = f"s3://bucket/{prefix}"
    put(url, bucket.options, OLD)
    switch = f"/bucket/{prefix}/dataset_info.json"
    bucket.server.reset(
        lambda number, environ: (
            environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"] == switch
        ),
        partial(fresh, add_split, url, bucket.options),
    )
    with pytest.raises(DatasetError, match="another process has changed the dataset"):
        put(url, bucket.options, NEW, split="test")
    bucket.server.reset()
    assert {*plain(bucket, prefix)} == {*by_covey(url, bucket.options)} == {"train", "other"}


def add_split(url, options):
    put(url, options, NEW, split="other", mode="overwrite")
