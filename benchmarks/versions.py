"""Compare two builds of covey, in turn in one run.

python -m benchmarks.versions OLD_PYTHON [NEW_PYTHON] [--rounds 25]

Each argument is the interpreter of an environment with one build. The datasets that are read are
written by the first. Reading is measured in elapsed time, writing in CPU time, because it syncs
files to disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

# Runs in each environment: measures one case each time it is asked.
_PROGRAM = """
import itertools, json, shutil, sys, time
import numpy as np
import covey

ROWS = 20_000
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 28, 28), np.uint8)
FEATURES = {"image": covey.Tensor("uint8", (28, 28), encoding="bytes"), "label": "int64"}

def columns():
    return {"image": IMAGES, "label": np.arange(ROWS) % 1_000}

def dicts(label):
    data = [each.tobytes() for each in IMAGES]
    return [{"image": image, "label": label(n % 1_000)} for n, image in enumerate(data)]

def write(examples, path, features, shards):
    covey.write(examples, path, split="train", label="label", features=features, shards=shards,
                progress=False)

def gather(ds):
    ids = np.random.default_rng(1).integers(0, len(ds), (200, 128))
    steps = itertools.cycle(ids)
    return lambda: ds[next(steps)]

def load(ds, **options):
    loader = ds.batches(32, 4, seed=1, **options)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return lambda: next(batches)

def iterate(ds):
    examples = itertools.chain.from_iterable(itertools.repeat(ds))
    return lambda: [next(examples) for _ in range(128)]

READS = {
    "`ds[ids]`, 128 records": gather,
    "a batch of 32 x 4": load,
    "the same, no thread": lambda ds: load(ds, threads=0),
    "the same, a hook": lambda ds: load(ds, batch_transform=lambda x, y: (x, y)),
    "128 examples, iterated": iterate,
}
WRITES = {
    "columns": (columns, FEATURES),
    "dicts": (lambda: dicts(int), {"image": "bytes", "label": "int64"}),
    "dicts, inferred": (lambda: dicts(int), None),
    "dicts, inferred, string labels": (lambda: dicts(lambda n: f"class {n}"), None),
}

actions = {}
for line in sys.stdin:
    command, case, path, *arguments = json.loads(line)
    if command == "prepare":
        write(columns(), path, FEATURES, *arguments)
        answer = None
    elif command == "write":
        make, features = WRITES[case]
        if case not in actions:
            actions[case] = make()
        shutil.rmtree(path, ignore_errors=True)
        begin = time.process_time()
        write(actions[case] if case == "columns" else iter(actions[case]), path, features, 8)
        answer = (time.process_time() - begin) * 1e6
    else:
        if (case, path) not in actions:
            actions[case, path] = READS[case](covey.open(path))
        action, calls = actions[case, path], 0
        begin = time.perf_counter()
        while (passed := time.perf_counter() - begin) < arguments[0]:
            action()
            calls += 1
        answer = passed / calls * 1e6
    print(json.dumps(answer), flush=True)
"""
_READS = [
    "`ds[ids]`, 128 records",
    "a batch of 32 x 4",
    "the same, no thread",
    "the same, a hook",
    "128 examples, iterated",
]
_WRITES = ["columns", "dicts", "dicts, inferred", "dicts, inferred, string labels"]


class Build:
    """A process with one build of covey."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *command: object):
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    builds = [Build(options.old), Build(options.new)]
    with tempfile.TemporaryDirectory() as directory:
        cases: list[tuple[str, list[object]]] = []
        for shards in (8, 128):
            path = f"{directory}/{shards}/birds"
            builds[0].ask("prepare", "", path, shards)
            cases += [
                (f"{case}, {shards} shards", ["read", case, path, options.seconds])
                for case in _READS
            ]
        cases += [
            (f"write 20,000 examples: {case}", ["write", case, f"{directory}/written"])
            for case in _WRITES
        ]
        print("| | old, us | new, us | new / old |\n|---|---|---|---|")
        for name, command in cases:
            times: list[list[float]] = [[], []]
            for number in range(options.rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    times[which].append(builds[which].ask(*command))
            old, new = map(statistics.median, times)
            ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
            print(f"| {name} | {old:,.1f} | {new:,.1f} | {ratio:.2f} |", flush=True)
    for build in builds:
        build.process.terminate()


if __name__ == "__main__":
    main()
