"""Compare ways to make batches: recall@1 of the same network, over several seeds.

Runs similarity_keras.py and similarity_torch.py in processes of their own, and writes their results
as JSON and as a picture. Runs whose results are in the JSON file are not repeated.

Requirements: pip install 'covey[keras,tensorflow,torch,images]' font-roboto
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tempfile
from itertools import combinations, product
from pathlib import Path
from typing import Any

import drawings
import numpy as np
import recall_plot

import covey

HERE = Path(__file__).parent

ARMS = {
    "exact": ["--sampler", "exact"],
    "streaming, 32 shards": ["--sampler", "streaming", "--shards", "32"],
    "streaming, 8 shards": ["--sampler", "streaming"],
    "streaming, shuffled shards": ["--sampler", "streaming", "--shuffled"],
    "random": ["--sampler", "random"],
}

PACKAGES = {"keras": ["keras", "tensorflow-cpu"], "torch": ["torch"]}


def run(framework: str, arguments: list[str]) -> dict[str, float]:
    """Run one program and return its results."""
    command = [sys.executable, str(HERE / f"similarity_{framework}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    before, after = re.findall(r"recall@1 \w+ training: ([\d.]+)", done.stdout)
    return {"untrained": float(before), "recall": float(after)}


def measure_batches(arguments: list[str]) -> dict[str, float]:
    """Return the mean composition of the batches of a run, and its number of different pairs."""
    import similarity_keras

    options = drawings.parse("", arguments)
    train, _ = drawings.load(options)
    classes, partnered = [], []
    numbers: dict[bytes, int] = {}
    pairs: set[tuple[int, int]] = set()
    with tempfile.TemporaryDirectory() as directory:
        batches = similarity_keras.batches(train, directory, options).repeat()
        for x, y in batches.take(options.steps).as_numpy_iterator():
            members: dict[int, set[int]] = {}
            for image, label in zip(x, y.tolist(), strict=True):
                number = numbers.setdefault(image.tobytes(), len(numbers))
                members.setdefault(label, set()).add(number)
            classes.append(len(members))
            partnered.append(sum(len(each) for each in members.values() if len(each) > 1))
            for each in members.values():
                pairs.update(combinations(sorted(each), 2))
    return {
        "classes": float(np.mean(classes)),
        "partnered": float(np.mean(partnered)),
        "pairs": len(pairs),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the combinations without results, and write the results after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--eval", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frameworks", nargs="+", choices=list(PACKAGES), default=list(PACKAGES))
    parser.add_argument("--output", type=Path, default=Path("recall.json"))
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error(f"--seeds is {options.seeds}; must be an integer >= 2")

    given = ["--steps", str(options.steps)]
    for name in ("data", "eval"):
        path = getattr(options, name)
        given += [f"--{name}", str(path)] if path else []
    train, test = drawings.load(drawings.parse("", given))
    names = [package for name in options.frameworks for package in PACKAGES[name]]
    settings = {
        "steps": options.steps,
        "batch": drawings.BATCH_SIZE,
        "train": {"classes": train.classes, "drawings": len(train)},
        "eval": {"classes": test.classes, "drawings": len(test)},
        "versions": {
            "python": platform.python_version(),
            "covey": covey.__version__,
            **{name: importlib.metadata.version(name) for name in names},
        },
    }
    results: dict[str, Any] = {**settings, "arms": {}, "runs": []}
    if options.output.exists():
        results = json.loads(options.output.read_text())
        if {name: results[name] for name in settings} != settings:
            raise SystemExit(f"{options.output} has results of other settings; move it away")

    known = {(each["arm"], each["framework"], each["seed"]) for each in results["runs"]}
    for seed, framework, arm in product(range(options.seeds), options.frameworks, ARMS):
        if (arm, framework, seed) not in known:
            found = run(framework, [*given, *ARMS[arm], "--seed", str(seed)])
            results["runs"].append({"arm": arm, "framework": framework, "seed": seed, **found})
            options.output.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{arm}, {framework}, seed {seed}: {found}", flush=True)
    results["arms"] = {arm: measure_batches([*given, *ARMS[arm]]) for arm in ARMS}
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    options.output.with_suffix(".svg").write_text(recall_plot.draw(results))
    print(recall_plot.table(results))


if __name__ == "__main__":
    main()
