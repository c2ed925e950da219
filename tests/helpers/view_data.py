"""Datasets for the tests of ``covey view``, and requests to it."""

from __future__ import annotations

import base64
import http.cookiejar
import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from pictures import png

import covey
from covey import Audio, Image, Ragged, Tensor

SCRIPT = "<script>window.hacked = 1</script>"
HOSTILE = (
    SCRIPT,
    "\"><img src=x onerror='window.hacked = 1'>",
    "javascript:window.hacked=1",
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd",
    "control \x00\x07\x1b[2J\r\n characters",
    "long " + "n" * 10_000,
    "',\"`${window.hacked=1}\\",
    "=cmd|' /C calc'!A0",
)

SPECIES = ("owl", "wren", "robin", "heron", "swift", "crane")
SIZES = ((32, 32), (48, 24), (20, 60), (100, 80), (7, 9), (200, 160))
COLOURS = (
    (200, 60, 40), (60, 140, 60), (220, 160, 40), (70, 90, 190), (150, 70, 160), (60, 160, 170),
)  # fmt: skip
SAMPLE_RATE = 8000

FEATURES: dict[str, Any] = {
    "photo": Image(shape=(None, None, 3)),
    "caption": "str",
    "song": Audio(SAMPLE_RATE),
    "notes": Ragged("float32"),
    "weight": "float32",
    "eggs": "int64",
    "curve": Tensor("float32", (64,)),
}


def picture(number: int, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return an image of the colour of its class, with a dark rectangle in a corner."""
    height, width = SIZES[number // 6 % len(SIZES)] if size is None else size
    pixels = np.broadcast_to(np.array(colour(number), np.uint8), (height, width, 3)).copy()
    pixels[: height // 3, : width // 3] = 30
    return pixels


def colour(number: int) -> tuple[int, int, int]:
    """Return the colour of the image of an example."""
    red, green, blue = COLOURS[number % 6]
    return red, green, min(255, blue + number // 6)


def bird(number: int) -> dict[str, Any]:
    """Return an example of every kind of feature."""
    rng = np.random.default_rng(number)
    time = np.arange(800 + 100 * (number % 5)) / SAMPLE_RATE
    return {
        "photo": png(picture(number)),
        "caption": f"A {SPECIES[number % 6]} on branch {number}.\nIt sings{'.' * (number % 9)}",
        "song": (0.5 * np.sin(2 * np.pi * (200 + 40 * (number % 6)) * time)).astype(np.float32),
        "notes": [rng.random(n).round(2).tolist() for n in range(number % 4)],
        "weight": np.float32(np.nan if number % 10 == 3 else number / 4),
        "eggs": number % 5,
        "curve": np.sin(np.arange(64) / (3 + number % 6)).astype(np.float32),
        "species": SPECIES[number % 6],
    }


def write_birds(path: Path, count: int = 120) -> Path:
    """Write the splits train, test and empty: images, text, sounds and ragged values."""
    features = {**FEATURES, "species": covey.ClassLabel(names=SPECIES)}
    options: dict[str, Any] = {
        "label": "species", "features": features, "shuffle": False, "progress": False
    }  # fmt: skip
    covey.write([bird(n) for n in range(count)], path, split="train", shards=3, **options)
    covey.write([bird(n) for n in range(200, 224)], path, split="test", **options)
    add_empty_split(path)
    return path


def add_empty_split(path: Path) -> None:
    """Add a split with one shard of no records, as TFDS writes it."""
    file = next(path.rglob("dataset_info.json"))
    info = json.loads(file.read_text())
    entry = {**info["splits"][0], "name": "empty", "shardLengths": ["0"], "numBytes": "0"}
    info["splits"].append(entry)
    file.write_text(json.dumps(info))
    template = next(file.parent.glob("*-test.tfrecord*")).name
    (file.parent / template.replace("-test.", "-empty.")).write_bytes(b"")


def write_hostile(path: Path) -> Path:
    """Write class names, feature names and strings that a page must not interpret."""
    examples = [
        {
            f"{SCRIPT} feature": HOSTILE[number % len(HOSTILE)],
            "x": number,
            "species": HOSTILE[number % len(HOSTILE)].replace("\r\n", " "),
        }
        for number in range(40)
    ]
    covey.write(examples, path, split="train", label="species", shuffle=False, progress=False)
    return path


def write_nameless(path: Path) -> Path:
    """Write class names that are empty or white space, which only a label of strings can have."""
    species = ("", "  ", "owl")
    examples = [{"x": number, "species": species[number % 3]} for number in range(30)]
    features: dict[str, Any] = {"x": "int64", "species": "str"}
    options: dict[str, Any] = {"label": "species", "features": features, "shuffle": False}
    covey.write(examples, path, split="train", progress=False, **options)
    return path


def write_uneven(path: Path) -> Path:
    """Write classes of different sizes."""
    species = ["owl"] * 5 + ["wren"] * 40 + ["crane"] * 15
    return _write_train(path, [{"x": n, "species": each} for n, each in enumerate(species)])


def write_similar(path: Path) -> Path:
    """Write class names that are equal at both ends."""
    names = [f"a long name of a class {letter} that ends in the same words" for letter in "abc"]
    return _write_train(path, [{"x": n, "species": names[n % 3]} for n in range(30)])


def write_unlabelled(path: Path) -> Path:
    """Write examples without a label, one feature of which may be it."""
    examples = [{"x": n / 2, "kind": ("owl", "wren")[n % 2]} for n in range(20)]
    return _write_train(path, examples, None)


def write_sounds(path: Path) -> Path:
    """Write short sounds."""
    sounds = [{"sound": bird(n)["song"], "species": SPECIES[n % 4]} for n in range(24)]
    return _write_train(path, sounds, features={"sound": Audio(SAMPLE_RATE), "species": "str"})


def _write_train(path: Path, examples: Any, label: str | None = "species", **options: Any) -> Path:
    covey.write(
        examples, path, split="train", label=label, shuffle=False, progress=False, **options
    )
    return path


LARGE_IDS = (-(2**62), 7, 2**60, 2**60 + 1)


def write_large(path: Path) -> Path:
    """Write class ids that numbers of JavaScript do not represent."""
    columns = {"x": np.arange(40), "label": np.resize(LARGE_IDS, 40)}
    covey.write(columns, path, split="train", label="label", shuffle=False, progress=False)
    return path


def write_corrupt(birds: Path, path: Path) -> Path:
    """Copy a dataset, and change a byte in the middle of record 3 of train."""
    shutil.copytree(birds, path)
    shard = min(path.rglob("*-train.tfrecord*-00000-of-*"))
    with covey.open(path, split="train") as ds:
        place = ds.place(3)
    data = bytearray(shard.read_bytes())
    data[place.offset + 40] ^= 0xFF
    shard.write_bytes(data)
    return path


def write_million(path: Path, classes: int = 1_000_000) -> Path:
    """Write an example of each of a million classes."""
    columns = {"x": np.arange(classes, dtype=np.int32), "label": np.arange(classes)}
    covey.write(columns, path, split="train", label="label", progress=False)
    return path


# Requests.


class Client:
    """Requests to a view, with its cookie.

    Args:
        view: The running view.
    """

    def __init__(self, view: Any) -> None:
        self.base = view.url.partition("?")[0]
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(jar)
        self.opener.open(view.url, timeout=60).read()

    def ask(self, path: str, body: Any = None, **parameters: Any) -> tuple[int, str, bytes]:
        """Return status, content type and content; ``class_`` is the parameter ``class``."""
        given = {name.rstrip("_"): value for name, value in parameters.items() if value is not None}
        data = body.encode() if isinstance(body, str) else body
        url = f"{self.base}api/{path}?{urllib.parse.urlencode(given)}"
        try:
            with self.opener.open(url, data, timeout=60) as found:
                return found.status, found.headers["Content-Type"], found.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read()

    def lines(self, path: str, body: Any = None, **parameters: Any) -> list[Any]:
        """Return the values of a stream."""
        status, _, content = self.ask(path, body, **parameters)
        assert status == 200, content
        return [json.loads(line, object_hook=decode_array) for line in content.splitlines()]

    def json(self, path: str, body: Any = None, **parameters: Any) -> Any:
        """Return the only value of a response."""
        (found,) = self.lines(path, body, **parameters)
        return found

    def error(self, path: str, body: Any = None, **parameters: Any) -> str:
        """Return the message of a request that fails, at once or in its stream."""
        status, _, content = self.ask(path, body, **parameters)
        found = json.loads(content.splitlines()[-1])
        assert status in (200, 400, 404, 413, 415, 422, 501), content
        return str(found["error"])

    def find(self, where: Any = None, **parameters: Any) -> list[int]:
        """Return all ids of a search."""
        ids: list[int] = []
        cursor: int | None = 0
        while cursor is not None:
            text = None if where is None else json.dumps(where)
            for line in self.lines("find", where=text, cursor=cursor, **parameters):
                ids += line["ids"]
                cursor = line["cursor"]
        return ids


def decode_array(found: dict[str, Any]) -> Any:
    """Return the array that an object of JSON is, as the page decodes it."""
    if found.keys() != {"dtype", "shape", "base64"}:
        return found
    data = base64.b64decode(found["base64"])
    return np.frombuffer(data, f"<{found['dtype']}").reshape(found["shape"])
