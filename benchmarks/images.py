"""JPEGs decoded, cropped and resized on the processor, against other libraries.

python -m benchmarks --only images
python -m benchmarks.images [decoded crops single png faults levels training] [--rounds 5]

Libraries that are not installed beside covey are found in directories given by the environment:
COVEY_BENCH_DALI for DALI, COVEY_BENCH_TORCHVISION for torchvision (`pip install --target`). A side
whose library is missing prints the reason instead of a number.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import photos
from benchmarks.data import FOLDER
from benchmarks.image_sides import SIDES
from benchmarks.measure import Table, in_turn, machine
from benchmarks.photos import BATCH
from benchmarks.sides import Process, SkippedError, compile_native, measure

THREADS = 2
DRAIN, COUNT = 10, 40
HELD = (0, 4, 32)
# Rows against which the targets are set, with the ratio wanted.
TARGETS = {
    "decoded": {
        "bare loop, buffers reused": 0.85,
        "tf.data": 2.0,
        "DataLoader": 2.0,
        "DALI": 1.1,
    },
    "crops": {"torchvision, crop": 2.0, "DALI, crop": 1.2, "tf.data, crop": 1.3},
}
NAMES = {
    "covey": "covey, default options",
    "covey, reuse_buffers": "covey, `reuse_buffers=True`",
    "tf.data": "tf.data, `decode_jpeg`, INTEGER_ACCURATE",
    "tf.data, fast DCT": "the same, INTEGER_FAST",
    "DataLoader": "DataLoader, 2 workers, MPerClassSampler, simplejpeg",
    "DALI": "DALI on the processor, 2 threads",
    "covey, crop": 'covey, `crop="random", flip=True`',
    "covey, crop, fast": 'the same, `decode="fast"`',
    "covey, crop, two views": "the same, exact, `views=2`; images/s, each with two views",
    "torchvision, crop": "torchvision v2, DataLoader with 2 workers",
    "DALI, crop": "DALI on the processor, 2 threads",
    "DALI, crop, not antialiased": "the same, not antialiased",
    "tf.data, crop": "tf.data, `decode_and_crop_jpeg`, INTEGER_ACCURATE, antialiased",
    "tf.data, crop, not antialiased": "the same, not antialiased",
    "tf.data, crop, not antialiased, fast DCT": "the same, not antialiased, INTEGER_FAST",
}


def side(name: str) -> Process:
    """Start a side of `image_sides`, with its library in the path of its process only."""
    data = "wide" if "crop" in name else "cut"
    is_covey = name.startswith("covey")
    path = FOLDER / "images" / data if is_covey else photos.packed(data)
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    for word in ("DALI", "torchvision"):
        if name.startswith(word):
            paths.insert(0, os.environ.get(f"COVEY_BENCH_{word.upper()}", ""))
    command = [sys.executable, "-m", "benchmarks.image_sides", name, str(path)]
    return Process(name, command, {"PYTHONPATH": ":".join(filter(None, paths))})


def bare(threads: int, memory: str) -> Process:
    """Start the loop over libjpeg-turbo."""
    program = compile_native("bare_jpeg.cpp", "-ljpeg")
    command = [str(program), str(photos.packed("cut")), str(threads), str(BATCH), memory]
    return Process(f"bare loop, buffers {memory}", command)


def compare(part: str, starts: dict[str, Callable[[], Process]], rounds: int) -> None:
    """Measure sides in turn; print images/s, and covey's ratio to each."""
    started: list[Process] = []
    skipped: dict[str, str] = {}
    for name, start in starts.items():
        try:
            started.append(start())
        except SkippedError as reason:
            skipped[name] = str(reason)
    settings = {each.name: each.setting for each in started}
    seconds = measure(started, rounds, DRAIN, COUNT)
    header = ["side", "images/s", "covey's ratio to it", "target", "settings"]
    table = Table(
        {
            "decoded": f"P x K of 256 x 256 JPEGs, decoded, {THREADS} cores",
            "crops": f"Random resized crop to 224 x 224 from 500 x 375, {THREADS} cores",
        }[part],
        header,
    )
    table.begin()
    best = "covey" if part == "decoded" else "covey, crop"
    ours = seconds.get(best)
    for name in starts:
        shown = NAMES.get(name, f"{name}, {THREADS} threads, libjpeg-turbo")
        found = seconds.get(name)
        if not isinstance(found, float):
            table.add(shown, "", "", "", f"skipped: {skipped.get(name, found)}")
            continue
        ratio = ""
        if isinstance(ours, float) and not name.startswith("covey"):
            ratio = f"{found / ours:.2f}x"
        target = TARGETS[part].get(name)
        wanted = "" if target is None else f"{target:g}x"
        table.add(shown, f"{BATCH / found:,.0f}", ratio, wanted, settings[name])


def decoded(rounds: int) -> None:
    photos.dataset("cut")
    starts: dict[str, Callable[[], Process]] = {
        name: lambda name=name: side(name) for name in SIDES if "crop" not in name
    }
    for memory in ("reused", "fresh"):
        starts[f"bare loop, buffers {memory}"] = lambda memory=memory: bare(THREADS, memory)
    compare("decoded", starts, rounds)


def crops(rounds: int) -> None:
    photos.dataset("wide")
    compare(
        "crops", {name: lambda name=name: side(name) for name in SIDES if "crop" in name}, rounds
    )


def on_one_core(function: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            function()
        finally:
            os.sched_setaffinity(0, cores)

    return run


def single(rounds: int) -> None:
    """One image at a time: `ds[i]`."""
    import simplejpeg

    import covey

    ds = covey.open(photos.dataset("cut"), decode_images=True)
    with covey.open(FOLDER / "images" / "cut") as encoded:
        jpegs = [encoded[i]["image"] for i in range(500)]

    def by_covey() -> None:
        for i in range(len(jpegs)):
            ds[i]

    def by_simplejpeg() -> None:
        for jpeg in jpegs:
            simplejpeg.decode_jpeg(jpeg)

    if not np.array_equal(ds[3]["image"], simplejpeg.decode_jpeg(jpegs[3])):
        print("ds[i] and simplejpeg return different pixels")
    sides = {"covey": on_one_core(by_covey), "simplejpeg": on_one_core(by_simplejpeg)}
    for run in sides.values():
        run()
    seconds = in_turn(sides, rounds)
    table = Table("One JPEG of 256 x 256, one core", ["work", "us", "ratio", "target"])
    table.begin()
    each = {name: found / len(jpegs) * 1e6 for name, found in seconds.items()}
    version = simplejpeg.__version__
    table.add(
        f"`simplejpeg.decode_jpeg`, simplejpeg {version}", f"{each['simplejpeg']:.0f}", "", ""
    )
    ratio = f"{each['covey'] / each['simplejpeg']:.2f}x its time"
    table.add("`ds[i]`", f"{each['covey']:.0f}", ratio, "1.2x")


def png(rounds: int) -> None:
    """PNG decoders on one thread: libpng, libspng, Pillow and covey's."""
    import io

    from PIL import Image
    from PIL import __version__ as version

    import covey

    table = Table("RGB PNG of 256 x 256, one thread", ["decoder", "images/s"])
    table.begin()
    directory = FOLDER / "images" / "pngs"
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"{number}.png" for number in range(40)]
    for path, image in zip(paths, photos.photos(40), strict=True):
        Image.fromarray(image[40:296, 40:296]).save(path)
    encoded = [path.read_bytes() for path in paths]
    try:
        program = compile_native("png.cpp", "-lpng", "-lspng", "-lz")
        command = [str(program), str(rounds * 0.6), *map(str, paths)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        for name, found in json.loads(run.stdout).items():
            table.add(name, f"{found:,.0f}")
    except SkippedError as reason:
        table.add("libpng, libspng", f"skipped: {reason}")

    def by_pillow() -> None:
        for data in encoded:
            np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    feature = covey.Image((256, 256, 3))

    def by_covey() -> None:
        for data in encoded:
            feature.decode(data)

    by_covey(), by_pillow()
    sides: dict[str, Callable[[], object]] = {f"Pillow {version}": by_pillow, "covey": by_covey}
    for name, found in in_turn(sides, rounds * 2).items():
        table.add(name, f"{len(encoded) / found:,.0f}")


def faults(rounds: int) -> None:
    """Page faults while the consumer holds batches, one process each."""
    photos.dataset("cut")
    header = ["batches held", "options", "faults per image", "images/s"]
    table = Table("Page faults, P x K of 256 x 256 JPEGs (48 pages each)", header)
    table.begin()
    for held in HELD:
        for reuse in (False, True) if held == 0 else (False,):
            command = [sys.executable, "-m", "benchmarks.images", "--hold", str(held)]
            command += ["--reuse"] * reuse
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(run.stdout.splitlines()[-1])
            options = "`reuse_buffers=True`" if reuse else "default"
            table.add(str(held), options, f"{found['faults']:.1f}", f"{found['rate']:,.0f}")


def hold(count: int, reuse: bool) -> dict[str, float]:
    """Return the minor page faults per image and images/s, holding the last `count` batches."""
    import resource

    import covey

    held: list[Any] = [None] * max(count, 1)
    places = cycle(range(len(held)))
    ds = covey.open(FOLDER / "images" / "cut")
    batches = ds.batches(photos.P, photos.K, seed=1, reuse_buffers=reuse).take(10**12)

    def use(number: int) -> None:
        for _ in range(number):
            batch = next(batches)
            if count:
                held[next(places)] = batch
            del batch

    use(count + 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    start = time.perf_counter()
    use(60)
    seconds = time.perf_counter() - start
    found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"faults": found / (60 * BATCH), "rate": 60 * BATCH / seconds}


def levels(rounds: int) -> None:
    from benchmarks import image_quality

    image_quality.levels()


def training(rounds: int) -> None:
    from benchmarks import image_quality

    image_quality.training()


PARTS: dict[str, Callable[[int], None]] = {
    "decoded": decoded,
    "crops": crops,
    "single": single,
    "png": png,
    "faults": faults,
    "levels": levels,
    "training": training,
}


def run(rounds: int, parts: list[str] | None = None) -> None:
    import covey

    source = "photos" if photos.PHOTOS.exists() else "generated images"
    print(f"\ncovey {covey.__version__}, numpy {np.__version__}, JPEGs cut from {source}")
    for part in parts or PARTS:
        try:
            PARTS[part](rounds)
        except Exception as error:  # the other parts do not depend on it
            print(f"{part}: {type(error).__name__}: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--reuse", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold is not None:
        print(json.dumps(hold(options.hold, options.reuse)))
        return
    print(machine())
    run(options.rounds, options.parts)


if __name__ == "__main__":
    main()
