"""Data, options and metric of the similarity-learning examples.

Training and evaluation have different classes: recall@1 measures whether drawings of unseen classes
are embedded close together.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey

CLASSES_PER_BATCH = 32
EXAMPLES_PER_CLASS = 4
BATCH_SIZE = CLASSES_PER_BATCH * EXAMPLES_PER_CLASS

HELD_OUT = 0.25
GLYPHS_PER_CLASS = 20


@dataclass(frozen=True)
class Drawings:
    """Images, uint8 (n, height, width), and their class ids (n,)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(np.unique(self.labels))

    def __len__(self) -> int:
        return len(self.labels)


def parse(description: str | None, arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of a program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=Path, help="NPZ file with images and labels (default: glyphs)"
    )
    parser.add_argument(
        "--eval",
        type=Path,
        help="NPZ file with other classes (default: a quarter of those of --data)",
    )
    parser.add_argument("--classes", type=int, default=600, help="number of glyphs without --data")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampler", choices=["exact", "streaming", "random"], default="exact")
    parser.add_argument(
        "--shards", type=int, default=8, help="number of shards of the streaming sampler"
    )
    parser.add_argument(
        "--shuffled", action="store_true", help="shuffle the shards of the streaming sampler"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="number of threads; 0: as many as the framework takes",
    )
    options = parser.parse_args(arguments)
    if options.eval and not options.data:
        parser.error("--eval needs --data")
    return options


def load(options: argparse.Namespace) -> tuple[Drawings, Drawings]:
    """Return the drawings for training and those for evaluation, which have other classes."""
    if options.data is None:
        return hold_out(draw_glyphs(options.classes))
    if options.eval is None:
        return hold_out(read(options.data))
    return read(options.data), read(options.eval)


def read(path: Path) -> Drawings:
    """Return the drawings of an NPZ file."""
    with np.load(path) as file:
        missing = {"images", "labels"} - set(file)
        if missing:
            raise SystemExit(
                f"{path}: arrays {', '.join(sorted(missing))} are missing; it has {list(file)}"
            )
        images, labels = file["images"], file["labels"]
    if images.dtype != np.uint8 or images.ndim != 3 or labels.shape != images.shape[:1]:
        raise SystemExit(
            f"{path}: images are {images.dtype} {images.shape} and labels {labels.shape}; must be "
            "uint8 (n, height, width) and (n,)"
        )
    return Drawings(images, labels.astype(np.int64))


def draw_glyphs(classes: int) -> Drawings:
    """Draw characters of a font, rotated, scaled and shifted at random."""
    import glyphs  # needs a font and Pillow
    from font_roboto import RobotoMedium
    from PIL import ImageFont

    font = ImageFont.truetype(RobotoMedium, 3 * glyphs.SIDE)
    characters = glyphs.characters(font)[:classes]
    drawn = glyphs.examples(characters, font, GLYPHS_PER_CLASS, seed=0)
    images = np.stack([np.asarray(example["image"], np.uint8) for example in drawn])
    return Drawings(images, np.arange(len(characters)).repeat(GLYPHS_PER_CLASS))


def hold_out(drawings: Drawings, share: float = HELD_OUT) -> tuple[Drawings, Drawings]:
    """Divide drawings by class: return those of most classes, and those of a share of them."""
    classes = np.random.default_rng(0).permutation(np.unique(drawings.labels))
    held_out = np.isin(drawings.labels, classes[: round(share * len(classes))])
    train, test = (Drawings(drawings.images[i], drawings.labels[i]) for i in (~held_out, held_out))
    return train, test


def stream(drawings: Drawings, directory: str, options: argparse.Namespace) -> Any:
    """Return the batches of a stream as an endless tf.data.Dataset.

    Shards are interleaved in blocks of K records, as TensorFlow Similarity's TFRecordDatasetSampler
    does. This needs no label, but shards in which the examples of a class are adjacent.
    """
    import tensorflow as tf

    write_shards(drawings, directory, options)
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decode(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_raw(example["image"], tf.uint8)
        return tf.reshape(image, drawings.images.shape[1:]), example["label"]

    paths = sorted(map(str, Path(directory).glob("*.tfrec")))
    generator = np.random.default_rng(options.seed)
    epochs = range(options.steps * BATCH_SIZE // len(drawings) + 1)
    orders = tf.data.Dataset.from_tensor_slices([generator.permutation(paths) for _ in epochs])

    def epoch(order: Any) -> Any:
        shards = tf.data.Dataset.from_tensor_slices(order)
        return shards.interleave(
            tf.data.TFRecordDataset, cycle_length=len(paths), block_length=EXAMPLES_PER_CLASS
        )

    records = orders.repeat().flat_map(epoch)
    return records.map(decode, num_parallel_calls=2).batch(BATCH_SIZE).prefetch(1)


def write_shards(drawings: Drawings, directory: str, options: argparse.Namespace) -> None:
    """Write shards for the streaming sampler: complete classes, one after another.

    With ``--shuffled``, records are in random order instead.
    """
    shape = drawings.images.shape[1:]
    features = covey.Features(
        {"image": covey.Tensor("uint8", shape, encoding="bytes"), "label": "int64"}
    )
    if options.shuffled:
        rows = np.random.default_rng(0).permutation(len(drawings))
        parts = np.array_split(rows, options.shards)
    else:
        classes = np.array_split(np.unique(drawings.labels), options.shards)
        rows = np.argsort(drawings.labels, kind="stable")
        parts = [rows[np.isin(drawings.labels[rows], some)] for some in classes]
    for number, part in enumerate(parts):
        columns = {"image": drawings.images[part], "label": drawings.labels[part]}
        with covey.RecordWriter(Path(directory) / f"{number:03}.tfrec") as writer:
            for block in features.encode_blocks(columns):
                writer.write_block(block)
