"""Draw a dataset of many classes, write it, read it back, and draw balanced batches from it.

Every class is a character of a font; every example is that character, rotated, scaled and shifted
at random. Nothing is downloaded; the font is part of a Python package.

Requirements: pip install 'covey[images]' font-roboto
"""

from __future__ import annotations

import argparse
import json
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from font_roboto import RobotoMedium
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import covey
from covey.cli import main as run_command

SIDE = 28
RANGES = [(0x21, 0x7F), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x1E00, 0x1F00)]


def characters(font: ImageFont.FreeTypeFont) -> list[str]:
    """Return the letters, digits and signs of the font that have different glyphs."""
    missing = font.getmask("\uffff").getbbox(), bytes(font.getmask("\uffff"))
    seen = {missing}
    found = []
    for begin, end in RANGES:
        for character in map(chr, range(begin, end)):
            mask = font.getmask(character)
            glyph = mask.getbbox(), bytes(mask)
            if unicodedata.category(character)[0] in "LNPS" and glyph not in seen and any(glyph[1]):
                seen.add(glyph)
                found.append(character)
    return found


def draw(
    character: str, font: ImageFont.FreeTypeFont, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return an image of a character: drawn large, rotated, and scaled down."""
    canvas = Image.new("L", (4 * SIDE, 4 * SIDE))
    ImageDraw.Draw(canvas).text((2 * SIDE, 2 * SIDE), character, fill=255, font=font, anchor="mm")
    angle, scale = rng.uniform(-15, 15), rng.uniform(0.85, 1.15)
    shift = rng.uniform(-0.08, 0.08, size=2) * 4 * SIDE
    turned = canvas.rotate(angle, resample=Image.Resampling.BILINEAR, translate=tuple(shift))
    side = round(SIDE * scale)
    small = turned.resize((side, side), Image.Resampling.BILINEAR)
    image = Image.new("L", (SIDE, SIDE))
    image.paste(small, ((SIDE - side) // 2, (SIDE - side) // 2))
    return np.asarray(image)


def examples(
    classes: list[str], font: ImageFont.FreeTypeFont, per_class: int, seed: int
) -> Iterator[dict[str, object]]:
    """Yield all examples, class by class."""
    for label, character in enumerate(classes):
        for number in range(per_class):
            rng = np.random.default_rng((seed, label, number))
            yield {"image": draw(character, font, rng), "label": character}


def read_back(ds: covey.Dataset, drawn: list[dict[str, object]], per_class: int) -> None:
    """Read all examples in random order and compare them with those that were written."""
    order = np.random.default_rng(0).permutation(len(ds))
    counts = np.zeros(len(ds.classes), int)
    ink = 0.0
    start = time.perf_counter()
    for begin in range(0, len(ds), 128):
        batch = ds[order[begin : begin + 128]]
        np.add.at(counts, batch["label"], 1)
        ink += float(batch["image"].mean(dtype=np.float64)) * len(batch["label"])
    seconds = time.perf_counter() - start
    print(
        f"Read in random batches of 128, every checksum verified, in {seconds:.3f} s "
        f"({counts.sum() / seconds:,.0f} examples/s)."
    )
    if not (counts == per_class).all():
        raise SystemExit("Examples are missing. This is a bug in covey.")
    expected = float(np.mean([example["image"] for example in drawn]))
    if abs(ink / len(drawn) - expected) > 1e-9:
        raise SystemExit("Pixels differ. This is a bug in covey.")
    print(
        f"{counts.size} classes with {per_class} examples each, "
        f"and the same pixels as written (mean {expected:.3f})."
    )


def show_class(ds: covey.Dataset, name: str) -> None:
    """Print three examples of one class."""
    chosen = ds.where(label=name)
    print(f"The first three of the {len(chosen)} examples of '{name}':")
    for lines in np.hstack(chosen[:3]["image"])[::2]:
        print("    " + "".join(" .:*#"[pixel // 52] for pixel in lines))


def draw_batches(ds: covey.Dataset, classes: int, examples: int) -> None:
    """Draw an epoch of balanced batches, check each, and resume from the saved state."""
    loader = ds.batches(classes, examples, seed=0)
    start = time.perf_counter()
    for _, labels in loader:  # one epoch, which uses every example
        _, counts = np.unique(labels, return_counts=True)
        if len(counts) != classes or (counts != examples).any():
            raise SystemExit("A batch is not balanced. This is a bug in covey.")
    seconds = time.perf_counter() - start
    print(
        f"Each of the {len(loader)} batches of an epoch has exactly {classes} classes with "
        f"{examples} examples of each ({len(loader) / seconds:,.0f} batches/s)."
    )

    saved = json.dumps(loader.state_dict())
    resumed = ds.batches(classes, examples, seed=0)  # usually in another process
    resumed.load_state_dict(json.loads(saved))
    for (x, y), (same_x, same_y) in zip(loader.take(10), resumed.take(10), strict=True):
        if not (np.array_equal(x, same_x) and np.array_equal(y, same_y)):
            raise SystemExit("A batch differs. This is a bug in covey.")
    print(f"The next 10 batches after resuming from {saved} are the same.")


def main() -> None:
    """Run all steps and print their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    parser.add_argument("--classes", type=int, default=600)
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--shards", type=int, default=4)
    options = parser.parse_args()

    font = ImageFont.truetype(RobotoMedium, 3 * SIDE)
    classes = characters(font)[: options.classes]
    print(f"Drawing {len(classes)} characters of Roboto, {options.per_class} examples of each.")
    drawn = list(examples(classes, font, options.per_class, seed=0))

    directory = options.output / "glyphs"
    written = covey.write(
        drawn, directory, split="train", label="label", shards=options.shards, mode="overwrite"
    )
    print("Written, shuffled and indexed, in the layout of TFDS (TensorFlow Datasets):")
    print(written)
    for path in sorted(directory.iterdir()):
        print(f"    {path.stat().st_size:>12,}  {path.name}")

    ds = covey.open(directory, split="train")
    read_back(ds, drawn, options.per_class)
    show_class(ds, classes[-1])
    draw_batches(ds, min(32, len(classes)), min(4, options.per_class))

    command = ["show", str(directory), "--batch"]
    command += ["-p", str(min(8, len(classes))), "-k", str(min(4, options.per_class))]
    print(f"$ covey {' '.join(command)}")
    status = run_command(command)
    print(f"Run `covey view {directory}` to show the dataset in the browser.")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
