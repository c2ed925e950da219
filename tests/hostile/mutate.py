"""Open datasets whose metadata was mutated: the outcome is a result or a CoveyError.

Run by tests/interop/test_hostile_datasets.py in a separate process, because it limits the memory of
the process, and records every file that is opened.
"""

import json
import os
import random
import resource
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np

import covey
from covey.index.format import content_checksum

ROUNDS = 100
MAX_MEMORY_BYTES = 1 << 30

HOSTILE = [
    None,
    True,
    -1,
    0,
    3,
    2**31,
    2**63,
    10**400,
    1.5,
    1e308,
    "",
    "x",
    "train",
    "int64",
    "-1",
    "9" * 50,
    ".",
    "..",
    "../secret",
    "../secret/x.tfrecord",
    "/etc/passwd",
    "..\\secret",
    "C:x",
    "\0",
    "\x1b[2J\n",
    "\ud800",
    "{SPLIT}",
    "{DATASET}" * 100,
    "x" * 300,
    "x" * 1_000_000,
    [],
    {},
    [[]],
    [None],
    {"x": 1},
    ["x"] * 200_000,
    list(range(50_000)),
    {str(n): n for n in range(50_000)},
]


def deep(depth: int) -> object:
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE += [deep(50), deep(250), deep(600)]


def json_paths(value: object, path: tuple = ()) -> list[tuple]:
    """The paths of all values in JSON."""
    found = [path]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in items:
        found += json_paths(each, (*path, key))
    return found


def mutate(value: object, rng: random.Random) -> object:
    """Return the same JSON with one value changed, removed, renamed or repeated."""
    value = json.loads(json.dumps(value))
    path = rng.choice(json_paths(value))
    if not path:
        return rng.choice(HOSTILE)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    action = rng.random()
    if action < 0.7:
        parent[path[-1]] = rng.choice(HOSTILE)
    elif action < 0.85:
        del parent[path[-1]]
    elif isinstance(parent, dict):
        name = rng.choice([each for each in HOSTILE if isinstance(each, str)])
        parent[name] = parent.pop(path[-1])
    else:
        parent += [parent[path[-1]]] * rng.choice([1, 1000])
    return value


def corrupt(data: bytes, rng: random.Random) -> bytes:
    """Return data with some bytes changed or removed."""
    corrupted = bytearray(data)
    for _ in range(rng.choice([1, 3])):
        at = rng.randrange(len(corrupted))
        if rng.random() < 0.5:
            corrupted[at] = rng.randrange(256)
        else:
            del corrupted[at : at + rng.choice([1, 20, 2000])]
        corrupted = corrupted or bytearray(b" ")
    return bytes(corrupted)


def make(root: Path) -> list[Path]:
    examples = [
        {"x": [n, n], "name": str(n), "label": ("owl", "wren")[n % 2], "box": {"y": n / 2}}
        for n in range(20)
    ]
    covey.write(examples, root / "tfds", split="train", label="label", shards=2, progress=False)
    covey.write(examples, root / "tfds", split="test", label="label", progress=False)
    datum = root / "datum"
    datum.mkdir()
    features = covey.Features({"x": "int64", "label": "int64"})
    with covey.RecordWriter(datum / "a.tfrecord") as writer:
        for n in range(5):
            writer.write(features.encode({"x": n, "label": n % 2}))
    (datum / "shard_info.json").write_text(json.dumps({"train": {"a.tfrecord": 5}}))
    entry = {"type": "int", "shape": [], "dense": True}
    mapping = {"x": entry, "label": entry}
    (datum / "datum_to_type_and_shape_mapping.json").write_text(json.dumps(mapping))
    secret = root / "secret"
    secret.mkdir()
    shutil.copy(datum / "a.tfrecord", secret / "x.tfrecord")
    return [root / "tfds", datum]


def outcome(function: object) -> bool:
    """Return whether there is a result; other errors than a CoveyError end the process."""
    try:
        function()
    except covey.CoveyError as error:
        str(error)
        return False
    return True


def read_dataset(directory: Path) -> list[bool]:
    def read() -> None:
        with covey.open(directory, split="all", progress=False, threads=1) as ds:
            _ = len(ds), repr(ds), ds[:3], ds.raw[:2]
            if ds.label is not None and len(ds.classes):
                _ = tuple(ds.classes)[:3], ds.where(label=next(iter(ds.classes)))
                next(iter(ds.batches(1, 2, threads=0)))

    return [
        outcome(lambda: repr(covey.info(directory))),
        outcome(lambda: str(covey.verify(directory, progress=False, threads=1))),
        outcome(read),
        outcome(lambda: covey.sources.open_source(directory, split="train")),
        outcome(lambda: covey.build_index(directory, progress=False, threads=1)),
    ]


def main(root: Path) -> None:
    warnings.simplefilter("ignore", covey.errors.SmallClassesWarning)
    sources = make(root)
    target = root / "target"
    opened: set[str] = set()
    recording = False

    def hook(event: str, args: tuple) -> None:
        if recording and event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            opened.add(os.path.abspath(os.fsdecode(args[0])))

    sys.addaudithook(hook)
    for source in sources:  # import all modules before memory is limited
        found = read_dataset(shutil.copytree(source, target))
        assert all(found), found
        shutil.rmtree(target)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_MEMORY_BYTES,) * 2)
    allowed = [
        str(target),
        os.environ["COVEY_CACHE"],
        sys.prefix,
        sys.base_prefix,
        str(Path(covey.__file__).parent),
        str(Path(np.__file__).parent),
        "/proc",
        "/sys",
    ]
    results = 0
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        source = rng.choice(sources)
        shutil.copytree(source, target)
        texts = [path for path in target.iterdir() if path.suffix in (".json", ".txt")]
        path = rng.choice(sorted(texts))
        if path.suffix == ".json" and rng.random() < 0.85:
            content = mutate(json.loads(path.read_bytes()), rng)
            if path.name.endswith(".index.json") and isinstance(content, dict):
                content.pop("content_checksum", None)
                content["content_checksum"] = content_checksum(content)
            path.write_text(json.dumps(content))
        else:
            path.write_bytes(corrupt(path.read_bytes(), rng))
        recording = True
        try:
            results += sum(read_dataset(target))
        except BaseException:
            print(f"round {seed}, {path.name}", file=sys.stderr)
            raise
        recording = False
        shutil.rmtree(target)
    outside = [path for path in opened if not path.startswith(tuple(allowed))]
    assert not outside, outside
    assert ROUNDS < results < 5 * ROUNDS
    print(f"{ROUNDS} examples, {results} results, {len(opened)} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
