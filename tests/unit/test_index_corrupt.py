"""Indexes that are corrupt or forged: a reader returns the right examples or raises a CoveyError.

Each case runs in another process, so that a crash fails one test.
"""

import json
import struct
from contextlib import closing
from dataclasses import dataclass, replace
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
from covey.errors import DatasetError
from covey.index.format import content_checksum

COUNT = 240
KINDS = ["plain", "GZIP", "foreign", "stream"]
METADATA = "index.json"
ARRAYS = ["index.npy", "by_class.npy", "classes.npy"]
FILES = [METADATA, *ARRAYS]

# All records have one length, so that a record at the location of another one is valid.
EXAMPLES = [{"x": 1000 + n, "label": n % 3, "pad": "p" * 300} for n in range(COUNT)]
FEATURES = {"x": "int64", "label": "int64", "pad": "bytes"}


@dataclass(frozen=True)
class Change:
    """A change of one file of an index; ``forged`` if all checksums are adapted."""

    file: str
    action: str
    arguments: tuple[Any, ...] = ()
    forged: bool = False


@dataclass
class Directory:
    """A dataset, and the valid files of its index."""

    path: Path
    stem: str

    def __post_init__(self):
        self.valid = self.content()

    def file(self, name):
        return self.path / f"{self.stem}.{name}"

    def content(self):
        return {name: self.file(name).read_bytes() for name in FILES}

    def restore(self):
        for name, content in self.valid.items():
            if self.file(name).is_dir():
                self.file(name).rmdir()
            self.file(name).write_bytes(content)


def make(path, kind):
    if kind in ("plain", "GZIP"):
        compression = "GZIP" if kind == "GZIP" else None
        options = {"features": FEATURES, "label": "label", "compression": compression}
        write(EXAMPLES, path / "set", shuffle=False, shards=3, **options)
        return Directory(path / "set", "set-train")
    for shard in range(3):
        part = EXAMPLES[shard * 80 : shard * 80 + 80]
        compression = "ZLIB" if kind == "stream" else None
        put(path / f"{shard}.tfrecord", part, FEATURES, compression=compression)
    covey.build_index(path, progress=False)
    return Directory(path, "covey-all")


# Changes.


def apply(directory, change):
    path = directory.file(change.file)
    content = path.read_bytes()
    match change.action, *change.arguments:
        case "flip", at, mask:
            changed = bytearray(content)
            changed[at % len(content)] ^= mask
            path.write_bytes(changed)
        case "truncate", size:
            path.write_bytes(content[: size % len(content)])
        case "append", data:
            path.write_bytes(content + data)
        case ("remove",):
            path.unlink()
        case ("directory",):
            path.unlink()
            path.mkdir()
        case "copy of", other:
            path.write_bytes(directory.file(other).read_bytes())
        case "header", header:
            path.write_bytes(npy(header, content[-64:]))
        case "rows", *arguments:
            np.save(path, change_rows(np.load(path), *arguments))
        case "json", position, value:
            path.write_text(json.dumps(change_json(json.loads(content), position, value)))
        case "content", data:
            path.write_bytes(data)
    if change.forged:
        forge(directory)


def npy(header, data):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def change_rows(rows, action, *arguments):
    rows = rows.copy()
    if action in ("set", "add"):
        field, at, value = arguments
        names = rows.dtype.names
        target = rows if names is None else rows[names[field % len(names)]]
        at %= len(rows)
        limits = np.iinfo(target.dtype)
        if action == "add":
            target[at] += target.dtype.type(value % 2**16)
        else:
            target[at] = value if limits.min <= value <= limits.max else value % limits.max
    elif action in ("swap", "copy"):
        a, b = (each % len(rows) for each in arguments)
        rows[[a, b]] = rows[[b, a]] if action == "swap" else rows[[b, b]]
    elif action == "delete":
        rows = np.delete(rows, arguments[0] % len(rows))
    else:
        rows = {
            "reverse": lambda: rows[::-1].copy(),
            "repeat": lambda: np.concatenate([rows, rows[:1]]),
            "big-endian": lambda: rows.astype(rows.dtype.newbyteorder(">")),
            "two dimensions": lambda: rows.reshape(-1, 1),
            "empty": lambda: rows[:0],
        }[action]()
    return rows


def json_paths(content, above=()):
    """The paths of all values of a JSON document, except the document itself."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from json_paths(value, (*above, key))


def change_json(content, position, value):
    """Change the value at a position: a path, or a number in the part of the features or not."""
    if isinstance(position[0], bool):
        in_features, number = position
        paths = [p for p in json_paths(content) if (p[0] == "features") == in_features]
        position = paths[number % len(paths)]
    parent = content
    for key in position[:-1]:
        parent = parent[key]
    if value == "delete":
        del parent[position[-1]]
    elif value == "plus":
        old = parent[position[-1]]
        parent[position[-1]] = old + 1 if isinstance(old, int) else not old
    else:
        parent[position[-1]] = value
    return content


def forge(directory):
    """Adapt all checksums to the content."""
    try:
        content = json.loads(directory.file(METADATA).read_text())
        sums = [_core.crc32c(np.ascontiguousarray(np.load(directory.file(n)))) for n in ARRAYS]
    except (OSError, ValueError):
        return
    if not isinstance(content, dict):
        return
    if isinstance(content.get("checksum"), int):
        content["checksum"] = sums[0]
    if isinstance(content.get("class_checksums"), list):
        content["class_checksums"] = [sums[2], sums[1]]
    content.pop("content_checksum", None)
    content["content_checksum"] = content_checksum(content)
    directory.file(METADATA).write_text(json.dumps(content))


# Outcomes.


def outcome(directory, changes, options):
    """Return "right" or "error"; else what is wrong."""
    directory.restore()
    for change in changes:
        apply(directory, change)
    try:
        with opened(directory.path, **options) as ds:
            return compare(ds)
    except CoveyError:
        return "error"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def compare(ds):
    order = np.random.default_rng(0).permutation(COUNT)
    expected = np.arange(1000, 1000 + COUNT)
    if len(ds) != COUNT:
        return f"wrong length: {len(ds)}"
    for ids in (order, np.arange(COUNT)):
        if (ds[ids]["x"] != expected[ids]).any():
            return "wrong examples"
    for n in order[:20].tolist():
        if not ds[n]["x"] == ds.features.decode(ds.raw[n])["x"] == expected[n]:
            return f"wrong example {n}"
    if (ds.labels != np.arange(COUNT) % 3).any() or (ds.classes.counts != COUNT // 3).any():
        return f"wrong labels: {ds.labels.tolist()}"
    for label in range(3):
        if (ds.where(label=label)[:]["x"] != expected[label::3]).any():
            return f"wrong examples of class {label}"
    return "right"


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))
        return {kind: make(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


@pytest.fixture(scope="module")
def read(tmp_path_factory, directories):
    """A function that changes the index of a dataset, and returns the outcome of reading it."""
    with pytest.MonkeyPatch.context() as patch, closing(Elsewhere()) as run:
        patch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield lambda kind, *changes, **options: run(outcome, directories[kind], changes, options)


kinds = st.sampled_from(KINDS)
positions = st.integers(0, 2**20)
integers = [0, 1, 2, 3, 7, 16, 2**16, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 17, -1]
values = st.one_of(st.sampled_from(integers), st.integers(0, 30_000))
numbers = [0, -1, 1, 2**31, 2**32, 2**63, 2**64, 2**70, 1.5, float("inf"), float("nan")]
others = ["delete", "plus", None, True, False, "", "x", "GZIP", "\ud800", "../x", [], {}, [[]], [1]]
json_values = st.one_of(st.sampled_from(numbers), st.sampled_from(others))
row_changes = st.one_of(
    st.tuples(st.sampled_from(["set", "add"]), positions, positions, values),
    st.tuples(st.sampled_from(["swap", "copy"]), positions, positions),
    st.tuples(st.just("delete"), positions),
    st.tuples(st.sampled_from(["reverse", "repeat", "big-endian", "two dimensions", "empty"])),
)


def rows(*, forged):
    return st.builds(Change, st.sampled_from(ARRAYS), st.just("rows"), row_changes, st.just(forged))


def metadata(*, in_features=False, forged):
    arguments = st.tuples(st.tuples(st.just(in_features), positions), json_values)
    return st.builds(Change, st.just(METADATA), st.just("json"), arguments, st.just(forged))


def corruptions():
    """Changes of a faulty disk or program: bytes, sizes, missing and exchanged files."""
    files = st.sampled_from(FILES)
    at = st.one_of(positions, st.integers(0, 200))
    return st.one_of(
        st.builds(Change, files, st.just("flip"), st.tuples(at, st.integers(1, 255))),
        st.builds(Change, files, st.just("truncate"), st.tuples(positions)),
        st.builds(Change, files, st.just("append"), st.tuples(st.binary(min_size=1, max_size=40))),
        st.builds(Change, files, st.sampled_from(["remove", "directory"])),
        st.builds(Change, files, st.just("copy of"), st.tuples(files)),
        rows(forged=False),
        metadata(forged=False),
    )


@settings(max_examples=30)
@given(kinds, st.lists(corruptions(), min_size=1, max_size=2))
def test_corrupt_index(read, kind, changes):
    by_file = {change.file: change for change in changes}
    # A file that was removed cannot be copied.
    assume(not any(c.action == "copy of" and c.arguments[0] in by_file for c in by_file.values()))
    assert read(kind, *by_file.values()) == "right"  # it is rebuilt


@settings(max_examples=50)
@given(kinds, st.one_of(rows(forged=True), metadata(forged=True)), st.booleans())
def test_forged_index(read, kind, change, mmap):
    assert read(kind, change, mmap=mmap) in ("right", "error")


@settings(max_examples=20)
@given(kinds, metadata(in_features=True, forged=True))
def test_forged_features(read, kind, change):
    """Other features of the same records are not detected, but no value crashes the process."""
    assert read(kind, change).startswith(("right", "error", "wrong", "KeyError: 'x'"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("single_stream", [True, False, None, "x"]),
        ("compression", [None, "GZIP", "ZLIB", "x"]),
        ("order", [{}, {"by": "key"}, None, ["a"]]),
        ("label", [None, "x", "pad", "@file", True]),
        ("label_strings", [None, ["a", "b", "c"], ["a"], "x", {}]),
    ],
)
def test_forged_field(read, kind, name, values):
    # Other names of the same classes are not detected.
    allowed = ("right", "error", "wrong labels") if name == "label_strings" else ("right", "error")
    for value in values:
        change = Change(METADATA, "json", ((name,), value), forged=True)
        assert read(kind, change).startswith(allowed)
        assert read(kind, replace(change, forged=False)) == "right"  # the checksum is wrong


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["plain", "GZIP", "foreign"])
def test_forged_class_id(directories, kind, mmap):
    directory = directories[kind]
    directory.restore()
    apply(directory, Change("index.npy", "rows", ("set", -1, 81, 1), forged=True))
    message = "the class id is 0, but in the index it is 1"
    with opened(directory.path, mmap=mmap) as ds, pytest.raises(DatasetError, match=message) as e:
        ds[[80, 81]]
    assert e.value.record == 1


HEADERS = [
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
]


@pytest.mark.parametrize("file", ARRAYS)
def test_array_with_an_invalid_header(read, file):
    for number, header in enumerate(HEADERS):
        kind = ("plain", "foreign")[number % 2]
        assert read(kind, Change(file, "header", (header,))) == "right", header


@pytest.mark.parametrize("kind", ["plain", "stream"])
def test_invalid_metadata(read, kind):
    for content in (
        b"",
        b"{}",
        b"[]",
        b"null",
        b"1",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"covey_index": 1}',
        b'{"covey_index": 2}',
    ):
        assert read(kind, Change(METADATA, "content", (content,))) == "right", content[:20]


def test_build_index_replaces_a_corrupt_index(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    directory = make(tmp_path / "data", "foreign")
    assert outcome(directory, [Change("index.npy", "flip", (150, 1))], {}) == "right"
    assert directory.content() != directory.valid
    covey.build_index(directory.path, progress=False)
    assert directory.content() == directory.valid
