"""Hostile values: every door returns a result or raises a CoveyError with a printable message."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from written import write

import covey
from covey import CoveyError, _core
from covey.errors import FormatError
from covey.index import IndexMetadata, index_names
from covey.untrusted import parsing

SURROGATE = "\ud800x"
EXAMPLES = [{"x": float(n), "name": f"n{n}", "label": "abc"[n % 3]} for n in range(24)]


@pytest.fixture(autouse=True)
def _directory(tmp_path, monkeypatch, cache, no_fsync):
    monkeypatch.chdir(tmp_path)


# Strings with lone surrogates, which UTF-8 cannot encode.

OPEN = {"split": "train", "progress": False}
LONE = [
    ("items", lambda: covey.write([{"x": 1, "label": SURROGATE}], "new", **OPEN)),
    ("columns", lambda: covey.write({"x": [1, 2], "label": ["a", SURROGATE]}, "new", **OPEN)),
    ("strings", lambda: covey.write({"x": ["a", SURROGATE], "label": [0, 1]}, "new", **OPEN)),
    ("feature", lambda: covey.write({SURROGATE: [1], "label": [0]}, "new", **OPEN)),
    ("npz", lambda: covey.write("a.npz", "new", **OPEN)),
    ("part", lambda: covey.write("a.npz", "new", part="1/2", **OPEN)),
    ("key", lambda: covey.write([(SURROGATE, {"x": 1, "label": 0})], "new", **OPEN)),
    ("path", lambda: covey.write(EXAMPLES, f"{SURROGATE}/birds", **OPEN)),
    ("split", lambda: covey.write(EXAMPLES, "new", split=SURROGATE, progress=False)),
    ("names", lambda: covey.write(
        [{"x": 1, "label": 0}], "new", label="label",
        features={"x": "int64", "label": covey.ClassLabel(["a", SURROGATE])}, **OPEN)),
    ("open", lambda: covey.open(SURROGATE)),
    ("info", lambda: covey.info(SURROGATE)),
    ("verify", lambda: covey.verify(SURROGATE)),
    ("index", lambda: covey.build_index(SURROGATE)),
    ("repair", lambda: covey.repair(SURROGATE, "new")),
    ("commit", lambda: covey.commit(SURROGATE)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call"), LONE, ids=[name for name, _ in LONE])
def test_lone_surrogates(name, call):
    np.savez("a.npz", x=np.arange(4), label=np.array(["a", SURROGATE, "b", "a"]))
    with pytest.raises(CoveyError) as caught:
        call()
    str(caught.value).encode()
    if name != "part":
        assert not Path("new").exists()


# Parts of a write: JSON with values of any type in any place.

VALUES = [None, -1, 2**70, 1.5, "\ud800", "", [], {}, True, "../..", "\0"]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value[:1]) if isinstance(value, list) else items:
        yield from places(each, (*path, key))


def test_content_of_a_part():
    for number in (1, 2):
        covey.write(EXAMPLES, "birds", label="label", part=f"{number}/2", **OPEN)
    files = sorted(Path("birds").glob(".covey-parts-*/*/part.json"))
    contents = [json.loads(file.read_text()) for file in files]
    committed = 0
    for number, path in enumerate(list(places(contents[0]))):
        value = VALUES[number % len(VALUES)]
        changed = json.loads(json.dumps(contents))
        for content in changed if path[:1] == ("write",) else changed[:1]:
            for key in path[:-1]:
                content = content[key]
            if path:
                content[path[-1]] = value
        shutil.copytree("birds", "copy")
        for file, content in zip(files, changed if path else [value, contents[1]], strict=True):
            Path("copy", *file.parts[1:]).write_text(json.dumps(content))
        with suppress(CoveyError):
            covey.commit("copy", progress=False)
            committed += 1
        shutil.rmtree("copy")
    assert committed < number / 4


def test_errors_of_parsing_have_the_path():
    for fail in (lambda: {}["x"], lambda: [] + 1, lambda: int("x"), lambda: 1 / 0):
        with pytest.raises(FormatError) as caught, parsing("here"):
            fail()
        assert caught.value.path == "here"


# The class table of an index, with valid checksums.


def set_ids(first, value):
    return lambda classes, by_class: by_class.__setitem__(first, value)


def set_rows(field, value):
    return lambda classes, by_class: classes.__setitem__(field, value)


TABLES = {
    "out of range": set_ids(3, 10**6),
    "largest": set_ids(slice(None), 2**32 - 1),
    "twice": set_ids(1, 0),
    "swapped": set_ids([0, -1], [2, 0]),
    "other labels": set_rows("label", [5, 6, 7]),
    "large labels": set_rows("label", [-5, 0, 2**60]),
    "first": set_rows("first", [2**62, 1, 2]),
    "records": set_rows("records", [0, 24, 0]),
    "many records": set_rows("records", [2**31, 2**62, 1]),
}


@pytest.mark.parametrize("name", TABLES)
def test_class_table_of_an_index(name):
    write(EXAMPLES, Path("birds"), label="label")
    names = {part: Path("birds", file) for part, file in index_names("birds-train").items()}
    arrays = [np.load(names[part]) for part in ("classes", "by_class")]
    TABLES[name](*arrays)
    for part, array in zip(("classes", "by_class"), arrays, strict=True):
        np.save(names[part], array)
    metadata = IndexMetadata.from_json(names["metadata"].read_bytes(), "x")
    sums = tuple(map(_core.crc32c, arrays))
    names["metadata"].write_text(replace(metadata, class_checksums=sums).to_json())
    errors = 0
    for read in (
        lambda ds: list(ds.batches(2, 8, seed=1)),
        lambda ds: list(ds.batches(2, 8, threads=0, batch_transform=lambda x, y: (x, y))),
        lambda ds: list(ds.raw.batches(ds.batches(2, 8).plan)),
        lambda ds: ds.where(label=["a", "c"])[:],
        lambda ds: [each[:] for each in ds.split_classes(a=1)],
        lambda ds: (list(ds.classes), ds.classes.counts, dict(ds.class_names)),
        lambda ds: list(covey.open("birds", labels="contiguous").batches(2, 8)),
        lambda ds: covey.verify("birds", progress=False),
        lambda ds: covey.repair("birds", "new", mode="overwrite", progress=False),
    ):
        try:
            with covey.open("birds") as ds:
                read(ds)
        except CoveyError as error:
            str(error).encode()
            errors += 1
    with covey.open("birds") as ds:  # a corrupt index is rebuilt
        assert errors or ds.classes.counts.tolist() == [8, 8, 8]


# A full disk, and processes that commit at once.

CALLS = """
import resource, signal, sys
import covey
call, path, size = sys.argv[1:]
if __name__ == "__main__":
    if size != "0":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    examples = [{"x": [float(n)] * 200, "label": "abc"[n % 3]} for n in range(300)]
    options = {"split": "train", "label": "label", "progress": False}
    try:
        if call == "write":
            covey.write(examples, path, **options)
        elif call == "spill":
            covey.write(examples, path, memory_limit=1 << 16, **options)
        elif call == "commit":
            covey.commit(path, progress=False)
        elif call == "repair":
            covey.repair(path, f"{path}-new", progress=False)
        else:
            covey.write(examples, path, part=call, **options)
    except covey.CoveyError as error:
        sys.exit(3)
"""


def start(call, path, size=0):
    Path("calls.py").write_text(CALLS)
    return subprocess.Popen([sys.executable, "calls.py", call, path, str(size)])


def run(call, path, size=0):
    return start(call, path, size).wait()


def test_full_disk_and_concurrent_commits():
    assert run("1/1", "parts") == 0
    for call, path in [("write", "new"), ("spill", "new"), ("1/2", "others"), ("commit", "parts")]:
        assert run(call, path, 20_000) == 3
    assert not Path("new").exists()
    ends = [process.wait() for process in [start("commit", "parts") for _ in range(3)]]
    assert 0 in ends
    assert set(ends) <= {0, 3}  # the others find that it is committed, or that there are no parts
    assert len(covey.open("parts")) == 300
    assert run("repair", "parts", 20_000) == 3
