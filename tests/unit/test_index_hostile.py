"""Indexes that are corrupt or forged: the examples are right, or there is an error that says why.

All is done in another process, so that a crash there is a failure here and not the end of all.
"""

import json
import struct
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from opened import Elsewhere, opened, put
from written import write

import covey
from covey import CoveyError, _core
from covey.index.format import _checksum

COUNT = 240
KINDS = ["plain", "GZIP", "foreign", "stream"]
FILES = ["index.json", "index.npy", "by_class.npy", "classes.npy"]

# All records are of one length: one that is taken for another looks sound.
EXAMPLES = [{"x": 1000 + n, "label": n % 3, "pad": "p" * 300} for n in range(COUNT)]
FEATURES = {"x": "int64", "label": "int64", "pad": "bytes"}


@dataclass(frozen=True)
class Change:
    """What is done to one file of an index, and whether its checksums are made to fit."""

    file: str
    action: str
    arguments: tuple[Any, ...] = ()
    forged: bool = False


@dataclass
class Directory:
    """A dataset, and how its index was before anybody touched it."""

    path: Path
    stem: str
    split: str | None = None
    sound: dict[str, bytes] = field(default_factory=dict)

    def remember(self):
        self.sound = {name: (self.path / f"{self.stem}.{name}").read_bytes() for name in FILES}
        return self

    def restore(self):
        for name, content in self.sound.items():
            path = self.path / f"{self.stem}.{name}"
            if path.is_dir():
                path.rmdir()
            path.write_bytes(content)


def make(path, kind):
    if kind in ("plain", "GZIP"):
        write(EXAMPLES, path / "set", features=FEATURES, label="label", shuffle=False, shards=3,
              compression=kind if kind == "GZIP" else None)  # fmt: skip
        return Directory(path / "set", "set-train").remember()
    for shard in range(3):
        part = EXAMPLES[shard * 80 : shard * 80 + 80]
        put(path / f"{shard}.tfrecord", part, FEATURES,
            compression="ZLIB" if kind == "stream" else None)  # fmt: skip
    covey.build_index(path, progress=False)
    return Directory(path, "covey-all").remember()


# What can be done to an index.


def apply(directory, change):
    path = directory.path / f"{directory.stem}.{change.file}"
    content = path.read_bytes()
    match change.action:
        case "flip":
            at, mask = change.arguments
            changed = bytearray(content)
            changed[at % len(content)] ^= mask
            path.write_bytes(changed)
        case "cut":
            path.write_bytes(content[: change.arguments[0] % len(content)])
        case "grow":
            path.write_bytes(content + change.arguments[0])
        case "remove":
            path.unlink()
        case "directory":
            path.unlink()
            path.mkdir()
        case "other":
            path.write_bytes(
                (directory.path / f"{directory.stem}.{change.arguments[0]}").read_bytes()
            )
        case "header":
            path.write_bytes(npy(change.arguments[0], content[-64:]))
        case "rows":
            np.save(path, change_rows(np.load(path), *change.arguments))
        case "json":
            path.write_text(json.dumps(change_json(json.loads(content), *change.arguments)))
        case "text":
            path.write_bytes(change.arguments[0])
    if change.forged:
        forge(directory)


def npy(header, data):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def change_rows(rows, how, *arguments):
    rows = rows.copy()
    match how:
        case "set":
            place, at, value = arguments
            at %= len(rows)
            if rows.dtype.names is None:
                rows[at] = value % 2**32
            else:
                name = rows.dtype.names[place % len(rows.dtype.names)]
                limits = np.iinfo(rows.dtype[name])
                rows[name][at] = value if limits.min <= value <= limits.max else value % limits.max
        case "add":
            place, at, value = arguments
            at %= len(rows)
            target = (
                rows
                if rows.dtype.names is None
                else rows[rows.dtype.names[place % len(rows.dtype.names)]]
            )
            target[at] += target.dtype.type(value % 2**16)
        case "swap":
            a, b = (each % len(rows) for each in arguments)
            rows[[a, b]] = rows[[b, a]]
        case "copy":
            a, b = (each % len(rows) for each in arguments)
            rows[a] = rows[b]
        case "turn":
            rows = rows[::-1].copy()
        case "drop":
            rows = np.delete(rows, arguments[0] % len(rows))
        case "repeat":
            rows = np.concatenate([rows, rows[:1]])
        case "wide":
            rows = rows.astype(rows.dtype.newbyteorder(">"))
        case "grid":
            rows = rows.reshape(-1, 1)
        case "none":
            rows = rows[:0]
    return rows


def leaves(content, above=()):
    """All places in what a JSON file holds."""
    found = [above]
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in items:
        found += leaves(value, (*above, key))
    return found


def change_json(content, place, value):
    places = [each for each in leaves(content) if each and each[0] != "features"]
    if place == "features":
        places = [each for each in leaves(content) if each and each[0] == "features"]
        place = value[0]
        value = value[1]
    path = places[place % len(places)]
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if value == "delete":
        del inner[path[-1]]
    elif value == "plus":
        old = inner[path[-1]]
        inner[path[-1]] = old + 1 if isinstance(old, int) else not old
    else:
        inner[path[-1]] = value
    return content


def forge(directory):
    """Make all checksums fit, as somebody would who wants to be believed."""
    about = directory.path / f"{directory.stem}.index.json"
    try:
        content = json.loads(about.read_text())
        sums = {name: data_checksum(directory, name) for name in FILES[1:]}
    except (OSError, ValueError):
        return
    if not isinstance(content, dict):
        return
    if isinstance(content.get("checksum"), int):
        content["checksum"] = sums["index.npy"]
    if isinstance(content.get("class_checksums"), list):
        content["class_checksums"] = [sums["classes.npy"], sums["by_class.npy"]]
    content.pop("content_checksum", None)
    content["content_checksum"] = _checksum(content)
    about.write_text(json.dumps(content))


def data_checksum(directory, name):
    array = np.load(directory.path / f"{directory.stem}.{name}")
    return _core.crc32c(np.ascontiguousarray(array))


# What comes of it.


def classify(directory, changes, options):
    """What a reader gets after the index was changed."""
    directory.restore()
    for change in changes:
        apply(directory, change)
    try:
        with opened(directory.path, **options) as ds:
            return compare(ds)
    except CoveyError as error:
        return f"error: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def compare(ds):
    order = np.random.default_rng(0).permutation(COUNT)
    expected = [1000 + n for n in range(COUNT)]
    if len(ds) != COUNT:
        return f"{len(ds)} examples"
    for ids in (order, np.arange(COUNT)):
        found = ds[ids]["x"].tolist()
        if found != [expected[n] for n in ids]:
            return f"wrong examples: {found}"
    if [ds[int(n)]["x"] for n in order[:20]] != [expected[n] for n in order[:20]]:
        return "wrong examples, one by one"
    for n in order[:20].tolist():
        if ds.features.decode(ds.raw[n])["x"] != expected[n]:
            return "wrong bytes"
    if ds.labels.tolist() != [n % 3 for n in range(COUNT)]:
        return f"wrong labels: {ds.labels.tolist()}"
    for label in range(3):
        if ds.where(label=label)[:]["x"].tolist() != expected[label::3]:
            return f"wrong examples of class {label}"
    if ds.classes.counts.tolist() != [COUNT // 3] * 3:
        return f"wrong counts: {ds.classes.counts}"
    return "right"


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {kind: make(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def judged(tmp_path_factory, directories):
    """What is read of a dataset of a kind, after its index was changed."""
    with pytest.MonkeyPatch.context() as patch, closing(Elsewhere()) as run:
        patch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield lambda kind, *changes, **options: run(classify, directories[kind], changes, options)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path))


kinds = st.sampled_from(KINDS)
places = st.integers(0, 2**20)
wholes = [0, 1, 2, 3, 7, 16, 2**16, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 17, -1, -5]
values = st.one_of(st.sampled_from(wholes), st.integers(0, 30_000))
numbers = [0, -1, 1, 2**31, 2**32, 2**63, 2**64, 2**70, 1.5, float("inf"), float("nan")]
others = ["delete", "plus", None, True, False, "", "x", "GZIP", "\ud800", "../x", [], {}, [[]], [1]]
odd_json = st.one_of(st.sampled_from(numbers), st.sampled_from(others))


def damages():
    """What an accident does: bytes that change, files that are cut, mixed up or missing."""
    files = st.sampled_from(FILES)
    return st.one_of(
        st.builds(Change, files, st.just("flip"), st.tuples(places, st.integers(1, 255))),
        st.builds(
            Change, files, st.just("flip"), st.tuples(st.integers(0, 200), st.integers(1, 255))
        ),
        st.builds(Change, files, st.just("cut"), st.tuples(places)),
        st.builds(Change, files, st.just("grow"), st.tuples(st.binary(min_size=1, max_size=40))),
        st.builds(Change, files, st.sampled_from(["remove", "directory"])),
        st.builds(Change, files, st.just("other"), st.tuples(files)),
        st.builds(Change, st.sampled_from(FILES[1:]), st.just("rows"), row_changes()),
        st.builds(Change, st.just("index.json"), st.just("json"), st.tuples(places, odd_json)),
    )


def row_changes():
    return st.one_of(
        st.tuples(st.just("set"), places, places, values),
        st.tuples(st.just("add"), places, places, values),
        st.tuples(st.sampled_from(["swap", "copy"]), places, places),
        st.tuples(st.just("drop"), places),
        st.tuples(st.sampled_from(["turn", "repeat", "wide", "grid", "none"])),
    )


@settings(max_examples=200)
@given(kinds, st.lists(damages(), min_size=1, max_size=2))
def test_a_damaged_index_gives_the_right_examples_or_an_error(judged, kind, changes):
    found = judged(kind, *deduplicated(changes))
    assert found == "right" or found.startswith("error: ")


def deduplicated(changes):
    """One change per file; a file that is gone cannot be changed again."""
    by_file = {change.file: change for change in changes}
    assume(not any(c.action == "other" and c.arguments[0] in by_file for c in by_file.values()))
    return tuple(by_file.values())


@settings(max_examples=200)
@given(kinds, st.sampled_from(FILES[1:]), row_changes(), st.booleans())
def test_forged_rows_give_the_right_examples_or_an_error(judged, kind, file, rows, mmap):
    found = judged(kind, Change(file, "rows", rows, forged=True), mmap=mmap)
    assert found == "right" or found.startswith("error: ")


@settings(max_examples=150)
@given(kinds, places, odd_json)
def test_a_forged_description_gives_the_right_examples_or_an_error(judged, kind, place, value):
    found = judged(kind, Change("index.json", "json", (place, value), forged=True))
    assert found == "right" or found.startswith("error: ")


@settings(max_examples=80)
@given(kinds, places, odd_json)
def test_forged_features_are_no_crash(judged, kind, place, value):
    found = judged(kind, Change("index.json", "json", ("features", (place, value)), forged=True))
    assert found.startswith(("right", "error: ", "wrong", "KeyError: 'x'"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["single_stream", "compression", "order", "label", "label_strings"]
)
@pytest.mark.parametrize(
    "value", [True, False, None, "GZIP", "ZLIB", "x", "@file", {}, {"by": "key"}, ["a", "b", "c"]]
)
def test_a_forged_field(judged, directories, kind, name, value):
    content = json.loads(directories[kind].sound["index.json"])
    place = [each for each in leaves(content) if each and each[0] != "features"].index((name,))
    found = judged(kind, Change("index.json", "json", (place, value), forged=True))
    # Other names, or other ways to tell, of the same classes cannot be found out.
    allowed = (
        ("right", "error: ") if name != "label_strings" else ("right", "error: ", "wrong labels")
    )
    assert found.startswith(allowed)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|O', 'fortran_order': False, 'shape': (240,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (10**18,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (1000000000000000000,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<u4', 'fortran_order': True, 'shape': (240,)}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<u4', 'fortran_order': False, 'shape': (240L,)}",
        "{'descr': [('a', '<u4', (2, 3))], 'fortran_order': False, 'shape': (240,)}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (240,)}",
        "{'descr': " + "(" * 5000 + ")" * 5000 + "}",
        "__import__('os').abort()",
        "",
        "\0\0\0",
    ],
    ids=range(14),
)
@pytest.mark.parametrize("file", FILES[1:])
def test_headers_that_no_array_has(judged, file, header):
    for kind in ("plain", "foreign"):
        assert judged(kind, Change(file, "header", (header,))) == "right"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"1",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"covey_index": 1}',
        b'{"covey_index": 2}',
    ],
)
def test_descriptions_that_are_none(judged, text):
    for kind in KINDS:
        assert judged(kind, Change("index.json", "text", (text,))) == "right"


def test_make_index_replaces_a_corrupt_index(tmp_path):
    directory = make(tmp_path / "data", "foreign")
    assert classify(directory, [Change("index.npy", "flip", (150, 1))], {}) == "right"
    now = {name: (directory.path / f"{directory.stem}.{name}").read_bytes() for name in FILES}
    assert [name for name in FILES if now[name] != directory.sound[name]] == ["index.npy"]
    covey.build_index(directory.path, progress=False)
    now = {name: (directory.path / f"{directory.stem}.{name}").read_bytes() for name in FILES}
    assert now == directory.sound
