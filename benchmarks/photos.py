"""JPEGs of the image benchmarks, cut from photos, and the datasets made of them.

PHOTOS is a directory of photos; without one, images of similar size and detail are generated.
CUT: 2,048 x 256 x 256, 4:4:4, 24 KB, as in the measurements on which the targets are based.
WIDE: 1,024 x 500 x 375, 4:2:0, 43 KB.
Both have quality 90 and are in an order in which each 128 are P = 16 classes x K = 8.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import FOLDER

PHOTOS = Path(
    os.environ.get("COVEY_PHOTOS", Path(__file__).parents[2] / "shared" / "data" / "photos")
)
P, K = 16, 8
BATCH = P * K
SIZES = {"cut": ((256, 256), 2048), "wide": ((375, 500), 1024)}


def photos(count: int = 400) -> list[NDArray[np.uint8]]:
    """Return photos, 348 x 348 or 464 x 348 pixels, real ones if there are any."""
    from PIL import Image

    paths = sorted(PHOTOS.glob("*.jpg"))[:count]
    if paths:
        return [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return [generated(seed) for seed in range(min(count, 64))]


def generated(seed: int, shape: tuple[int, int] = (464, 348)) -> NDArray[np.uint8]:
    """Return an image with the spectrum of a photo: amplitude inverse to frequency."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(*(np.fft.fftfreq(n) for n in shape), indexing="ij"))
    amplitude = 1 / np.maximum(frequency, 1 / max(shape)) ** 1.1
    # Channels share most of their structure, as in photos.
    noise = rng.normal(size=(1, *shape)) + 0.3 * rng.normal(size=(3, *shape))
    image = np.fft.ifft2(np.fft.fft2(noise) * amplitude).real
    image = 128 + 50 * (image - image.mean()) / image.std()
    return np.ascontiguousarray(image.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))


def encode(pixels: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pixels.save(buffer, "jpeg", quality=90, **options)
    return buffer.getvalue()


def cut(name: str) -> Iterator[bytes]:
    """Yield JPEGs: random parts of the photos, resized."""
    from PIL import Image

    (height, width), count = SIZES[name]
    rng = np.random.default_rng(0)
    sources = [Image.fromarray(each) for each in photos()]
    for number in range(count):
        image = sources[number % len(sources)]
        most = min(image.width, image.height * width // height)
        across = int(rng.integers(most * 5 // 8, most + 1)) if name == "cut" else most
        down = across * height // width
        x = int(rng.integers(image.width - across + 1))
        y = int(rng.integers(image.height - down + 1))
        part = image.resize((width, height), Image.Resampling.BICUBIC, (x, y, x + across, y + down))
        yield encode(part, subsampling=0 if name == "cut" else 2)


def labels(count: int) -> list[int]:
    """Return the classes of images in the order of P x K batches."""
    groups = 8  # of P classes
    return [n // BATCH % groups * P + n % BATCH // K for n in range(count)]


def packed(name: str) -> Path:
    """Return a file of JPEGs, each preceded by its length and its class, as two u32."""
    path = FOLDER / "images" / f"{name}.packed"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            for jpeg, label in zip(cut(name), labels(SIZES[name][1]), strict=True):
                file.write(struct.pack("<II", len(jpeg), label) + jpeg)
        partial.rename(path)
    return path


def unpack(path: Path) -> tuple[list[bytes], list[int]]:
    """Return the JPEGs and their classes."""
    data, at = path.read_bytes(), 0
    jpegs, classes = [], []
    while at < len(data):
        size, label = struct.unpack_from("<II", data, at)
        at += 8
        jpegs.append(data[at : at + size])
        classes.append(label)
        at += size
    return jpegs, classes


def dataset(name: str) -> Path:
    """Return the directory of the dataset that covey reads."""
    import covey

    jpegs, classes = unpack(packed(name))
    directory = FOLDER / "images" / name
    shutil.rmtree(directory, ignore_errors=True)
    covey.write(
        ({"image": jpeg, "label": label} for jpeg, label in zip(jpegs, classes, strict=True)),
        directory,
        split="train",
        label="label",
        features={"image": covey.Image((*SIZES[name][0], 3)), "label": "int64"},
        progress=False,
    )
    return directory
