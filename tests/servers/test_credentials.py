"""Messages, tracebacks, warnings and output do not show credentials of URLs and storage options."""

import errno
import io
import logging
import pickle
import re
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from servers import Objects, serving

import covey
from covey import samplers
from covey.cli import main
from covey.errors import StorageError
from covey.storage import errors, open_storage
from covey.storage.remote import RemoteStorage
from covey.urls import Url, redact, shown

SECRET = "Zq7secret"
FEATURES = covey.Features({"a": "int64"})


class Leaky(fsspec.AbstractFileSystem):
    """A driver whose errors contain the URL and the options, some of them decoded."""

    protocol = ("leaky", "s3", "ftp")
    errors = (OSError(errno.EINVAL, ""), RuntimeError(), FileNotFoundError(), PermissionError())

    @classmethod
    def _strip_protocol(cls, path):
        return path

    def _fail(self, path, *args, **options):
        kind = type(self.errors[len(path) % len(self.errors)])
        words = f"{path} {unquote(str(path))} {self.storage_options} {urlsplit(str(path)).netloc}"
        try:
            raise ValueError(f"inner: {words}")
        except ValueError as inner:
            raise kind(f"cannot open '{path}' or {words}") from inner

    info = cat_file = ls = find = isdir = pipe_file = put_file = makedirs = rm_file = _fail


class Refusing(Leaky):
    """A driver whose constructor fails."""

    protocol = "refusing"

    def __init__(self, *args, **options):
        raise ValueError(f"bad options {options} {args}")


@pytest.fixture(autouse=True)
def _drivers(monkeypatch, tmp_path):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(errors, "BACKOFF_BASE_S", 0)
    for name, leaky in {"leaky": Leaky, "s3": Leaky, "ftp": Leaky, "refusing": Refusing}.items():
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, name, leaky)


def write(url, options):
    covey.write([{"a": 1}], url, split="train", storage_options=options, progress=False)


ENTRIES = {
    "open": lambda url, options: covey.open(url, storage_options=options),
    "open a list": lambda url, options: covey.open([url, url], storage_options=options),
    "open a path": lambda url, options: covey.open(Path(url), storage_options=options),
    "write": write,
    "write from": lambda url, options: covey.write(url, "x", split="train"),
    "info": lambda url, options: covey.info(url, storage_options=options),
    "verify": lambda url, options: covey.verify(url, storage_options=options),
    "repair": lambda url, options: covey.repair(url, "x", storage_options=options),
    "build_index": lambda url, options: covey.build_index(url, storage_options=options),
    "RecordReader": lambda url, options: covey.RecordReader(url),
    "RecordReader of a path": lambda url, options: covey.RecordReader(Path(url)),
    "RecordWriter": lambda url, options: covey.RecordWriter(url),
    "open_source": lambda url, options: covey.sources.open_source(url),
    "storage": lambda url, options: open_storage(url, options).read(url),
    "stream": lambda url, options: open_storage(url, options).open_stream(url),
    "random access": lambda url, options: open_storage(url, options).open_cached(url),
    "sampler": lambda url, options: samplers.TFRecordDatasetSampler(
        url, None, example_per_class=1, batch_size=2, storage_options=options
    ),
    "file sampler": lambda url, options: samplers.load_image(url),
    **{
        f"covey {command}": lambda url, options, command=command: main([command, url])
        for command in ("info", "verify", "index", "show")
    },
    "covey info, twice": lambda url, options: main(["info", url, url]),
    "covey repair": lambda url, options: main(["repair", url, "--output", "x"]),
    "covey repair to": lambda url, options: main(["repair", "valid.tfrecord", "--output", url]),
    "covey write": lambda url, options: main(["write", __file__, url, "--kind", "CSV"]),
    "covey write from": lambda url, options: main(["write", url, "x"]),
    "covey option": lambda url, options: main(["info", "x", "--storage-option", url.split("=")[0]]),
}


def chain(error, seen=()):
    """Return an error with all its causes and contexts."""
    if error is None or any(error is each for each in seen):
        return []
    found = [error]
    for each in (error.__cause__, error.__context__):
        found += chain(each, (*seen, *found))
    return found


def all_output(entry, url, options):
    """Return the output, the warnings and the errors of a call, with their causes."""
    parts = []
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    logging.getLogger().addHandler(handler)
    with (
        redirect_stdout(output),
        redirect_stderr(output),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        try:
            parts.append(repr(ENTRIES[entry](url, options)))
        except (Exception, SystemExit) as error:
            parts += traceback.format_exception(error)
            for each in chain(error) if isinstance(error, Exception) else ():
                parts += [str(each), repr(each), repr(vars(each))]
    logging.getLogger().removeHandler(handler)
    return "\n".join([*parts, output.getvalue(), *(str(each.message) for each in warned)])


ODD = st.lists(
    st.sampled_from([SECRET, *"/@:?#&=+ *[]%'\"~", "::", "%2F", "%40", "%20", "://", "1"]),
    max_size=4,
).map("".join)


@st.composite
def secrets(draw):
    """A secret between characters that have a meaning in a URL."""
    return f"{draw(ODD)}{SECRET}{draw(ODD)}"


@st.composite
def urls(draw):
    """URLs with credentials."""
    scheme = draw(st.sampled_from(["leaky", "LEAKY", "s3", "ftp", "refusing", "unknown"]))
    host = draw(st.sampled_from(["host", "host:8080", "[::1]:80"]))
    path = draw(st.sampled_from(["", "/", "/x.tfrecord", "/a/b c/x.tfrecord", "/a/*.tfrecord"]))
    userinfo = draw(
        st.one_of(
            st.just(""),
            # A password of digits up to a "/" would be a port, and with an "@" before a "/" a host.
            secrets()
            .filter(lambda each: not each[0].isdigit() and not re.search("@[^?#]*/", each))
            .map(lambda each: f"me:{each}@"),
            secrets().map(lambda each: f"{quote(each, safe='')}@"),
            secrets().map(lambda each: f"me:{quote(each, safe='')}@"),
        )
    )
    query = draw(
        st.one_of(
            st.just(""),
            secrets().map(lambda each: f"?X-Amz-Signature={each}&a[0]=*"),
            secrets().map(lambda each: f"?a=1&sig=x:{each}"),
            secrets().map(lambda each: f"#token={each}"),
        )
    )
    assume(userinfo or query)
    url = f"{scheme}://{userinfo}{host}{path}{query}"
    before = draw(st.sampled_from(["", "", "simplecache::", "zip://x.tfrecord::", "zip://*::"]))
    return f"{before}{url}"


@pytest.mark.parametrize("entry", ENTRIES)
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(url=urls())
def test_credentials_are_not_shown(entry, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "valid.tfrecord").write_bytes(*shards(1))
    options = {"password": f"{SECRET}-of-options", "headers": {"Authorization": f"Bearer {SECRET}"}}
    assert SECRET not in all_output(entry, url, options)


HIDDEN = [
    ("", f"?X-Amz-Signature={SECRET}"),
    ("", f"?a=1:{SECRET}"),
    ("", f"?{SECRET}"),
    ("", f"#{SECRET}"),
    ("", f";token={SECRET}"),
    ("", f";v=2;token=a%2F{SECRET}?sig={SECRET}"),
    ("", f";token=a/{SECRET}"),
    (f"me:{SECRET}@", ""),
    (f"{SECRET}@", ""),
    (f"me:%2F{SECRET}@", f"?sig={SECRET}"),
]


@pytest.mark.parametrize(
    "entry", ["open", "info", "verify", "build_index", "covey index", "storage"]
)
@pytest.mark.parametrize("fault", ["404", "403", "500", "mute"])
def test_errors_of_the_http_driver(entry, fault):
    objects = Objects()
    objects.fault = lambda method, path, attempt: fault
    with serving(objects.handler()) as server:
        for userinfo, query in HIDDEN:
            url = server.replace("://", f"://{userinfo}") + f"/x.tfrecord{query}"
            options = {"headers": {"X-Token": SECRET}} if fault != "404" else None
            found = all_output(entry, url, options)
            assert SECRET not in found
            assert f"{server}/x.tfrecord" in found


@settings(max_examples=200)
@given(url=urls(), around=st.sampled_from(["{}", "cannot open '{}'", "see {} and {} for more"]))
def test_shown_and_redact(url, around):
    assert SECRET not in shown(url)
    assert shown(shown(url)) == shown(url)
    if not any(each.isspace() or each in "'\"" for each in url):
        assert SECRET not in redact(around.format(url, url))


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:secret@host:80/a/x?sig=secret#secret", "https://host:80/a/x"),
        ("https://secret@host/a@b/x", "https://host/a@b/x"),
        ("https://me:secret@host/a@b/x?sig=secret", "https://host/a@b/x"),
        ("https://me:secret@[::1]:80/x", "https://[::1]:80/x"),
        ("https://host/x?role=arn:aws:iam::12:secret", "https://host/x"),
        ("https://me:secret@host/x;token=secret;v=2?sig=secret", "https://host/x"),
        ("https://host/a;token=secret/x", "https://host/a"),
        ("https://me:s/e@host/x;token=secret", "https://host/x"),
        ("zip://a::https://h/z.zip;token=secret", "zip://***"),
        ("https://host/a;b/x;y", "https://host/a;b/x;y"),
        ("s3://bucket/day;hour=3/x", "s3://bucket/day;hour=3/x"),
        ("https://host/a@b/x?sig=c@d", "https://host/a@b/x"),
        ("ftp://me:se/cret@host/x", "ftp://host/x"),
        ("ftp://me:s@e@cr/et@host/x", "ftp://host/x"),
        ("ftp://me:se?cret@host/x", "ftp://***"),
        ("ftp://me:se::cret@host/x", "ftp://host/x"),
        ("HTTPS://me:secret@host/x", "HTTPS://host/x"),
        ("s3://bucket/x?versionId=3", "s3://bucket/x"),
        ("s3://bucket/x-?.tfrecord", "s3://bucket/x-?.tfrecord"),
        ("simplecache::s3://me:secret@b/x", "simplecache::s3://b/x"),
        ("zip://a@b/x::https://me:secret@h/z.zip?s=1", "zip://***"),
        ("https:/me:secret@host/x?sig=secret", "https:/host/x"),
    ],
)
def test_shown_url(url, public):
    assert shown(url) == public


@pytest.mark.parametrize(
    "url",
    [
        "ftp://me:se/cret@host/x",
        "https://me:secret@/a@b",
        "https://me:sec@ret@host/a@b",
        "https://me:a@b?c@host/x",
        "ftp://me:a::b@host/x",
    ],
)
def test_ambiguous_url(url):
    with pytest.raises(StorageError, match="percent-encode"):
        Url.parse(url)


@pytest.mark.parametrize("url", ["simplecache::s3://bucket/x", "zip://a::ftp://me:a/b@host/x"])
def test_a_chain_of_urls_is_an_error(url):
    with pytest.raises(StorageError, match="must be one URL") as caught:
        covey.open(url)
    assert caught.value.path == shown(url)


@pytest.mark.parametrize(
    ("url", "userinfo", "path", "query"),
    [
        ("http://[::1]:80/x", "", "[::1]:80/x", ""),
        ("http://me:p@[::1]/x?a::b", "me:p@", "[::1]/x", "?a::b"),
        ("https://h/x?role=arn:aws:iam::12:role", "", "h/x", "?role=arn:aws:iam::12:role"),
        ("https://u:p@h/a;b/x;token=c@d?e/f", "u:p@", "h/a;b/x", ";token=c@d?e/f"),
        ("https://u:p@h/a@2/x", "u:p@", "h/a@2/x", ""),
        ("https://u:p@h:80/x?to=a@b", "u:p@", "h:80/x", "?to=a@b"),
        ("sftp://me@host/home/me@work/x", "me@", "host/home/me@work/x", ""),
    ],
)
def test_parse_url(url, userinfo, path, query):
    found = Url.parse(url)
    assert (found.userinfo, found.path, found.query) == (userinfo, path, query)
    assert str(found) == url


@pytest.mark.parametrize("path", ["/a;token=secret/birds", "/;token=secret", "/a;t=secret/x?b"])
def test_parameter_that_is_not_at_the_end(path):
    with pytest.raises(StorageError, match="does not follow the last name") as caught:
        Url.parse(f"https://host{path}")
    assert caught.value.path in ("https://host/a", "https://host/")


def test_query_with_colons_and_ipv6_host():
    objects = Objects()
    (objects.files["/a@2/x.tfrecord"],) = shards(1)
    with serving(objects.handler()) as server:
        url = f"{server.replace('://', '://me:p@')}/a@2/x.tfrecord?role=arn:aws:iam::12:role"
        assert covey.open(url)[0]["a"] == 0
    storage = open_storage("http://[::1]:80/x")
    assert storage._driver.filesystem.protocol == ("http", "https")
    assert not storage.is_pattern("http://[::1]:80/x.tfrecord")
    assert storage.is_pattern("http://[::1]:80/*.tfrecord")


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "no space left")])
@pytest.mark.parametrize("entry", ["open", "info", "verify", "covey info"])
def test_errors_without_a_file_name(entry, error, monkeypatch):
    def fail(*args, **kwargs):
        raise error

    for method in ("read", "stat", "is_directory"):
        monkeypatch.setattr(RemoteStorage, method, fail)
    found = all_output(entry, f"http://me:{SECRET}@host/d?sig={SECRET}", None)
    assert SECRET not in found
    assert "host/d" in found


def shards(count):
    """Shards of one example each."""
    for number in range(count):
        file = io.BytesIO()
        with covey.RecordWriter(file) as writer:
            writer.write(FEATURES.encode({"a": number}))
        yield file.getvalue()


@pytest.mark.parametrize(
    "query", ["?sig=*&a[0]=1", "?sig=a:b/c?d", "?X-Amz-Signature=1#2", "?x", ";sig=*"]
)
def test_query_is_not_a_pattern(query):
    objects = Objects()
    (objects.files[f"/a/x.tfrecord{query}".partition("?")[0]],) = shards(1)
    with serving(objects.handler()) as server:
        url = f"{server}/a/x.tfrecord{query}"
        assert len(covey.open(url)) == 1
        assert covey.verify(url).is_valid
        assert not open_storage(url).is_pattern(url)
    asked = {unquote(path) for _, path, wanted in objects.asked if wanted}
    assert asked == {f"/a/x.tfrecord{query.partition('#')[0]}"}


def test_files_with_different_queries():
    objects = Objects()
    objects.files |= {f"/{i}.tfrecord": each for i, each in enumerate(shards(3))}
    objects.fault = lambda method, path, attempt: (
        "" if ".tfrecord?sig=" not in path or path[1] == path[-1] else "403"
    )
    with serving(objects.handler()) as server:
        dataset = covey.open([f"{server}/{i}.tfrecord?sig={i}" for i in range(3)])
        assert dataset[:]["a"].tolist() == [0, 1, 2]


def test_object_version_is_not_a_pattern():
    storage = open_storage("memory://a/x?versionId=3")
    assert not storage.is_pattern("memory://a/x?versionId=3")
    assert storage.is_pattern("memory://a/x-?.tfrecord")
    assert storage.address("memory://a/x") == "memory://a/x?versionId=3"
    assert storage.address("memory://a/y") == "memory://a/y"


def test_user_name_and_password():
    (data,) = shards(1)
    MemoryFileSystem().pipe_file("/me:secret@host/x.tfrecord", data)
    dataset = covey.open("memory://me:secret@host/x.tfrecord")
    assert dataset[0]["a"] == 0
    assert covey.open("memory://me:secret@host")[0]["a"] == 0
    MemoryFileSystem().rm("/me:secret@host", recursive=True)


def test_reports_do_not_show_credentials(capsys):
    objects = Objects()
    one, two = shards(2)
    objects.files["/x.tfrecord"] = one + two[:-3] + b"???"
    with serving(objects.handler()) as server:
        url = f"{server.replace('://', '://me:Zq7secret@')}/x.tfrecord?sig={SECRET}"
        with pytest.warns(covey.errors.SkippedRecordsWarning) as warned:
            dataset = covey.open(url, on_error="skip", progress=False)
        report = covey.verify(url, progress=False)
        with pytest.raises(covey.errors.CorruptRecordError) as caught:
            covey.open(url, progress=False)
        assert main(["verify", url]) == 1
        assert main(["index", url]) == 1
        again = pickle.loads(pickle.dumps(dataset))
        assert again[:]["a"].tolist() == [0]
    found = [
        warned[0].message,
        dataset,
        dataset.skipped,
        report,
        report.to_dict(),
        capsys.readouterr(),
    ]
    found += [caught.value, vars(caught.value)]
    assert not any(SECRET in f"{each} {each!r}" for each in found)
    assert caught.value.path == f"{server}/x.tfrecord"
