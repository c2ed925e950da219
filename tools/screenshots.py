"""Draw the pictures of the documentation: the pages of ``covey view`` with drawn glyphs.

``python tools/screenshots.py [DIRECTORY]`` writes them, by default to docs/images. The modules of
tests/helpers and of examples must be in the path, as with ``make screenshots``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import glyphs
import numpy as np
from browsing import DESKTOP, Page, started
from font_roboto import RobotoMedium
from numpy.typing import NDArray
from PIL import Image, ImageFont

import covey
from covey.view import View
from covey.view.embeddings import Embeddings
from covey.view.session import Session

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
MAX_BYTES = 150_000
CLASSES = 40

PAGES = {
    "overview": "#/overview",
    "classes": "#/classes",
    "examples": "#/examples?size=96",
    "batches": "#/batches?classes_per_batch=8&examples_per_class=6&seed=7&step=1000000000000",
    "embeddings": "#/embeddings?colour=letter",
}
"""The URL of each picture."""


LASSO = [(0.05, 0.05), (0.45, 0.05), (0.45, 0.4), (0.05, 0.4)]


def drawn() -> Iterator[dict[str, Any]]:
    """Yield the examples: some classes have more of them than others."""
    font = ImageFont.truetype(RobotoMedium, 3 * glyphs.SIDE)
    found = [each for each in glyphs.characters(font) if each.isalpha()]
    for label, character in enumerate(found[:CLASSES]):
        for number in range(20 + 480 // (label + 4)):
            rng = np.random.default_rng((label, number))
            pixels = glyphs.draw(character, font, rng)
            yield {"image": pixels, "ink": float(pixels.mean()), "letter": character}


def embed(ds: covey.Dataset) -> NDArray[np.float32]:
    """Return the examples in the space of a linear discriminant analysis."""
    images = ds.columns("image")["image"]
    pixels = images.reshape(len(images), -1).astype(np.float64) / 255
    labels = ds.labels
    means = np.stack([pixels[labels == each].mean(0) for each in range(CLASSES)])
    within = np.cov((pixels - means[labels]).T) + 0.02 * np.eye(pixels.shape[1])
    found = pixels @ np.linalg.solve(within, (means - means.mean(0)).T)
    return np.asarray(found / found.std(0), np.float32)


def main() -> int:
    """Write the pictures."""
    target = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else IMAGES
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # the page shows the path
        covey.write(drawn(), "data/glyphs", split="train", label="letter", shards=4, progress=False)
        session = Session.of_path("data/glyphs")
        session.embeddings = Embeddings.of(session, embed(session.open("train")))
        with View(session) as view, started(Path(directory)) as driver:
            page = Page(driver, view)
            page.theme("light")
            for name, address in PAGES.items():
                page.open(address, size=DESKTOP).settle()
                if name == "embeddings":
                    page.lasso(".cloud-points", LASSO)
                    page.settle()
                save(page, target / f"view-{name}.png")
            if page.console():
                raise SystemExit("The console of the page is not empty.")
        os.chdir(target)
    return 0


def save(page: Page, path: Path) -> None:
    """Save a small picture: 256 colours are enough for it."""
    raw = path.with_suffix(".raw")
    raw.write_bytes(page.driver.get_screenshot_as_png())
    with Image.open(raw) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    raw.unlink()
    if path.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}.")
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
