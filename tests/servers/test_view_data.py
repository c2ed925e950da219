"""The data of ``covey view``: overview, classes, search, examples, images and sounds.

Requests go through a running server. The expected results come from Python, Pillow, and
soundfile, not from covey.
"""

import io
import itertools
import json
import math
import os
import tracemalloc
import wave
from collections import Counter

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from view_data import HOSTILE, Client, write_birds, write_corrupt, write_hostile

import covey
from covey import Audio, ClassLabel, Features, Image, Ragged, Sparse, Tensor, _core
from covey.errors import StorageError
from covey.view import View, examples
from covey.view.overview import sample_parts
from covey.view.session import Session


@pytest.fixture(scope="module")
def serve():
    """Return a function that returns a client of the dataset at a path."""
    views = []

    def start(path, **options):
        session = Session.of_path(path, progress=False, **options)
        views.append(View(session))
        return Client(views[-1])

    yield start
    for view in views:
        view.close()


@pytest.fixture(scope="module")
def birds_path(tmp_path_factory):
    return write_birds(tmp_path_factory.mktemp("view_data") / "birds")


@pytest.fixture(scope="module")
def birds(birds_path, serve):
    return serve(birds_path)


@pytest.fixture(scope="module")
def corrupt(birds_path, serve, tmp_path_factory):
    return serve(write_corrupt(birds_path, tmp_path_factory.mktemp("corrupt") / "birds"))


# Overview.


def test_overview(birds, birds_path):
    found = birds.json("overview")
    assert found["path"] == str(birds_path)
    assert (found["kind"], found["label"]) == ("dataset", "species")
    assert found["candidates"] == []
    kinds = {each["name"]: each["kind"] for each in found["features"]}
    assert kinds == {
        "photo": "image",
        "caption": "string",
        "song": "audio",
        "notes": "ragged",
        "weight": "number",
        "eggs": "number",
        "curve": "array",
        "species": "class",
    }
    assert next(each["name"] for each in found["splits"]) == "train"  # on disk, test is first
    splits = {each["name"]: each for each in found["splits"]}
    assert len(eval(splits["test"]["code"], {"covey": covey})) == 24
    counts = {name: (each["records"], each["classes"]) for name, each in splits.items()}
    assert counts == {"train": (120, 6), "test": (24, 6), "empty": (0, 0)}
    train = splits["train"]
    files = sorted(birds_path.rglob("*-train.tfrecord-*"))
    assert (train["shards"], train["bytes"]) == (3, sum(file.stat().st_size for file in files))
    assert train["error"] is None


def test_the_first_screen_has_examples_and_a_batch(birds, birds_path):
    first = birds.json("overview")["first"]
    assert first["split"] == "train"
    assert [each["id"] for each in first["examples"]] == list(range(0, 120, 10))
    assert first["batch"] == birds.json("batch", split="train")
    with covey.open(birds_path, split="train") as ds:
        drawn = ds.batches(6, 4, select="eggs").plan.batch(0).tolist()
    assert [each["id"] for each in first["batch_examples"]] == drawn
    ids = ",".join(map(str, drawn))
    assert first["batch_examples"] == birds.json("examples", split="train", ids=ids)["examples"]


def test_a_split_that_cannot_be_opened(serve, tmp_path):
    path = write_birds(tmp_path / "birds")
    opened = serve(path)
    assert opened.json("overview")["first"] is not None
    for shard in path.rglob("*-train.tfrecord-*"):
        shard.unlink()
    assert opened.json("overview")["splits"][0]["records"] == 120
    found = serve(path).json("overview")
    splits = {each["name"]: each for each in found["splits"]}
    assert "missing" in splits["train"]["error"]
    assert (splits["train"]["records"], splits["test"]["records"]) == (None, 24)
    assert found["first"] is None


def test_overview_of_an_open_dataset(birds_path):
    with (
        covey.open(birds_path, split="train[:50]") as ds,
        View(Session.of_dataset(ds)) as view,
    ):
        found = Client(view).json("overview")
        assert (found["path"], found["splits"][0]["code"]) == (None, "ds")
        assert found["splits"][0]["records"] == 50


def test_bytes_with_an_image_are_an_image(serve, tmp_path):
    features = {
        "photo": Tensor("bytes"),
        "other": Tensor("bytes"),
        "pixels": Tensor("uint8", (784,)),
    }
    example = {
        "photo": encode(gradient(8, 9)),
        "other": b"\x00\xff",
        "pixels": np.arange(784) % 251,
    }
    covey.write([example] * 3, tmp_path / "data", label=None, features=features, progress=False)
    client = serve(tmp_path / "data")
    kinds = {each["name"]: each["kind"] for each in client.json("overview")["features"]}
    assert kinds == {"photo": "image", "other": "bytes", "pixels": "image"}
    pixels = decode(client.ask("image", id=0, feature="pixels")[2])
    assert (pixels.reshape(-1) == np.arange(784) % 251).all()
    summary = client.json("examples", ids=0)["examples"][0]["values"]["pixels"]
    assert summary["picture"] == [28, 28]


# Classes.


def test_classes(birds, birds_path):
    found = birds.json("classes", split="train")
    assert found["label"] == "species"
    with covey.open(birds_path, split="train") as ds:
        labels = [ds[n]["species"] for n in range(len(ds))]
        names = [ds.class_name(label) for label in sorted(set(labels))]
    assert found["id"].tolist() == sorted(set(labels))
    assert found["count"].tolist() == [labels.count(label) for label in sorted(set(labels))]
    assert found["name"] == names


def test_classes_of_integers_have_no_names(serve, tmp_path):
    ids = [7, -3, 7, 2**60 + 1, -3, 7]
    covey.write({"x": np.arange(6), "y": np.array(ids)}, tmp_path / "d", label="y", progress=False)
    client = serve(tmp_path / "d", label="y")
    found = client.json("classes")
    counts = dict(zip(found["id"].tolist(), found["count"].tolist(), strict=True))
    assert counts == {-3: 2, 7: 3, 2**60 + 1: 1}
    assert found["name"] is None
    assert len(client.find(class_=-3)) == 2
    (found,) = client.json("examples", ids=client.find(class_=2**60 + 1)[0])["examples"]
    assert found["class"] == {"id": str(2**60 + 1), "name": str(2**60 + 1)}


# Search.

WORDS = ("owl", "OWL", "wren", "Straße", "strasse", "", "=1+1", "a\tb", "\N{OWL}", "o" * 300)
NUMBERS = (0.1, -1.5, 0.0, 3.0, 2.5, math.nan, math.inf, 1e30)


def make_example(number):
    rng = np.random.default_rng(number)

    def some(values, most=3):
        return [values[n] for n in rng.integers(0, len(values), rng.integers(0, most + 1))]

    return {
        "word": WORDS[number % len(WORDS)],
        "raw": WORDS[number % 7].encode(),
        "number": NUMBERS[number % len(NUMBERS)],
        "count": int(rng.integers(-3, 4)) if number % 9 else 2**62,
        "small": int(rng.integers(0, 256)),
        "pair": [NUMBERS[n] for n in rng.integers(0, len(NUMBERS), 2)],
        "list": some(NUMBERS),
        "words": some(WORDS),
        "nested": [some(NUMBERS, 2) for _ in range(rng.integers(0, 3))],
        "sparse": ([[1], [4]], [1.5, 2.5]) if number % 2 else ([], []),
        "kind": WORDS[number % 3],
        "label": ("crow", "owl", "wren")[(number + number // 5) % 3],
    }


SCHEMA = {
    "word": "str",
    "raw": "bytes",
    "number": "float32",
    "count": "int64",
    "small": "uint8",
    "pair": Tensor("float32", (2,)),
    "list": Tensor("float32", (None,)),
    "words": Tensor("str", (None,)),
    "nested": Ragged("float32"),
    "sparse": Sparse("float32", (6,)),
    "kind": ClassLabel(names=["owl", "OWL", "wren"]),
    "label": ClassLabel(names=["crow", "owl", "wren"]),
}


class Mixed:
    """Examples of all kinds, and a client of them; hypothesis must not print them."""

    def __init__(self, client, written, path):
        self.client, self.written, self.path = client, written, path


@pytest.fixture(scope="module")
def mixed(serve, tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "data"
    written = [make_example(number) for number in range(700)]
    features = Features(SCHEMA)
    covey.write(
        written, path, split="train", label="label", features=features, shuffle=False,
        shards=3, progress=False,
    )  # fmt: skip
    # The order of the shards is that of the examples.
    return Mixed(serve(path), written, path)


def flat(value):
    if isinstance(value, tuple):  # sparse
        return value[1]
    if isinstance(value, list):
        return [each for item in value for each in (flat(item))]
    return [value]


def matches(example, feature, op, value):
    """Return whether an example matches, in plain Python."""
    kind = SCHEMA[feature]
    values = flat(example[feature])
    if feature in ("word", "raw", "words", "kind", "label"):
        texts = [each.decode() if isinstance(each, bytes) else each for each in values]
        if op == "contains":
            return any(value.casefold() in text.casefold() for text in texts)
        names = kind.names if isinstance(kind, ClassLabel) else ()
        return any(
            text == value or (text in names and str(names.index(text)) == value) for text in texts
        )
    if op == "nan":
        return any(isinstance(each, float) and math.isnan(each) for each in values)
    if feature in ("count", "small"):
        wanted = int(value) if value.lstrip("-").isdigit() else float(value)
    else:
        wanted = float(np.float32(value))
        values = [float(np.float32(each)) for each in values]
    compare = {
        "equals": lambda each: each == wanted,
        "less": lambda each: each < wanted,
        "greater": lambda each: each > wanted,
    }[op]
    return any(compare(each) for each in values)


STRING_FEATURES = ("word", "raw", "words", "kind", "label")
FLOATS = ("number", "pair", "list", "nested", "sparse")
string_queries = st.tuples(
    st.sampled_from(STRING_FEATURES),
    st.sampled_from(["contains", "equals"]),
    st.one_of(st.sampled_from([*WORDS, "1", "2", "ST", "o", "RO", "\t"]), st.text(max_size=3)),
)
number_text = st.one_of(
    st.sampled_from(["0.1", "-1.5", "0", "3", "2.5", "1e30", "-0.0", "256", "-1", str(2**62)]),
    st.floats(-5, 5).map(str),
    st.integers(-(2**70), 2**70).map(str),
)
float_queries = st.tuples(
    st.sampled_from(FLOATS), st.sampled_from(["equals", "less", "greater", "nan"]), number_text
)
integer_queries = st.tuples(
    st.sampled_from(["count", "small"]), st.sampled_from(["equals", "less", "greater"]), number_text
)


queries = st.one_of(string_queries, float_queries, integer_queries)


@settings(max_examples=120)
@given(
    st.lists(queries, max_size=3),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([7, 100, 1000]),
)
def test_find_equals_a_filter(mixed, where, class_id, limit):
    expected = [
        number
        for number, example in enumerate(mixed.written)
        if (class_id is None or SCHEMA["label"].names[class_id] == example["label"])
        and all(matches(example, *each) for each in where)
    ]
    assert mixed.client.find(where, class_=class_id, limit=limit) == expected


def test_a_page_begins_anywhere(mixed):
    client = mixed.client
    page = client.json("find", cursor=345, limit=10)
    line = {"ids": list(range(345, 355)), "cursor": 355, "scanned": 355, "of": 700, "corrupt": 0}
    assert page == line
    assert client.json("find", cursor=695, limit=10)["cursor"] is None
    assert client.json("find", cursor=10**15)["ids"] == []


def test_a_search_is_a_stream(mixed, monkeypatch):
    """A line for each part that is read, so that the first matches appear at once."""
    monkeypatch.setattr(examples, "_SEARCHED_EXAMPLES", 256)
    where = json.dumps([["word", "contains", "owl"]])
    lines = mixed.client.lines("find", where=where)
    assert [line["scanned"] for line in lines] == [256, 512, 700]
    assert [line["cursor"] for line in lines] == [256, 512, None]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"where": [["number", "contains", "1"]]}, "must be one of equals"),
        ({"where": [["word", "less", "1"]]}, "must be one of contains"),
        ({"where": [["number", "less", "x"]]}, "must be a number"),
        ({"where": [["number", "less", "nan"]]}, "must be a number"),
        ({"where": [["number", "less", None]]}, "must be a number"),
        ({"where": [["word", "contains", "a"], ["count", "nan", None]]}, "must be one of equals"),
        ({"where": [["flock", "nan", None]]}, "no feature"),
        ({"where": [["number"]]}, "must be a list of"),
        ({"where": {"number": 1}}, "must be a list of"),
        ({"where": 7}, "must be a list of"),
        ({"class_": 5}, "no record of class 5"),
        ({"class_": "owl"}, "must be an integer"),
        ({"limit": 0}, "must be an integer from 1"),
        ({"limit": 1001}, "must be an integer from 1"),
        ({"cursor": -1}, "must be an integer from 0"),
    ],
)
def test_a_search_that_is_not_valid(mixed, parameters, message):
    where = parameters.pop("where", None)
    text = None if where is None else json.dumps(where)
    assert message in mixed.client.error("find", where=text, **parameters)


def test_a_storage_that_fails_ends_a_search(mixed, monkeypatch):
    """It is not asked for every example: each error may take as long as all retries."""
    reads = []

    def fail(self, feature, column):
        reads.append(len(column))
        raise StorageError("the network is down")

    monkeypatch.setattr(examples.Condition, "matches", fail)
    where = json.dumps([["word", "contains", "owl"]])
    assert mixed.client.error("find", where=where) == "the network is down"
    assert reads == [700]


# Examples.


def test_examples_are_those_of_show(birds, birds_path, capsys):
    from covey.cli import main

    main(["show", str(birds_path), "--ids", "5,17", "--split", "train", "--json"])
    shown = json.loads(capsys.readouterr().out)["examples"]
    found = birds.json("examples", split="train", ids="5,17")["examples"]
    with covey.open(birds_path, split="train") as ds:
        assert [each.pop("bytes") for each in found] == [len(ds.raw[5]), len(ds.raw[17])]
    for each in found:
        plots = {name for name, value in each["values"].items() if plot_of(value) is not None}
        assert plots <= {"song", "notes", "curve"}
    assert found == shown


def plot_of(summary):
    """Return the plot of a summary, which is removed from it."""
    return summary.pop("plot", None) if isinstance(summary, dict) else None


def test_a_long_string_is_cut(serve, tmp_path):
    text = "long \N{OWL} " * 10_000
    covey.write([{"text": text, "list": [text, "b"]}], tmp_path / "d", label=None, progress=False)
    client = serve(tmp_path / "d")
    (found,) = client.json("examples", ids=0)["examples"]
    assert found["values"]["text"] == {
        "kind": "string",
        "text": text[:20_000],
        "length": len(text),
        "truncated": True,
    }
    assert found["values"]["list"]["first"] == [text[:1000], "b"]


@pytest.mark.parametrize("ids", ["120", "-1", "x", "1,,2", "1.5", ",".join(["1"] * 201)])
def test_examples_that_do_not_exist(birds, ids):
    assert birds.ask("examples", split="train", ids=ids)[0] == 400


# Images.


def gradient(height, width, channels=3, dtype=np.uint8):
    rng = np.random.default_rng(height * width)
    base = np.linspace(0, 200, height)[:, None, None] + rng.integers(
        0, 50, (height, width, channels)
    )
    scale = 257 if dtype == np.uint16 else 1
    return (base * scale).astype(dtype)


def encode(pixels, format="PNG", **options):
    buffer = io.BytesIO()
    shown = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    Pillow.fromarray(shown).save(buffer, format, **options)
    return buffer.getvalue()


def decode(data):
    return np.asarray(Pillow.open(io.BytesIO(data)))


@pytest.fixture(scope="module")
def pictures(serve, tmp_path_factory):
    """Return a client and its images, as they were written."""
    rgba = gradient(40, 30, 4)
    palette = Pillow.fromarray(gradient(20, 30)).convert("P")
    buffer = io.BytesIO()
    palette.save(buffer, "PNG")
    written = {
        "png": encode(gradient(50, 70)),
        "grey": encode(gradient(33, 20, 1)),
        "alpha": encode(rgba),
        "palette": buffer.getvalue(),
        "gif": encode(gradient(16, 16, 1), "GIF"),
        "webp": encode(gradient(60, 60), "WEBP", lossless=True),
        "jpeg": encode(gradient(300, 200), "JPEG", quality=95),
        "large": encode(gradient(2500, 30)),
        "trailing": encode(gradient(10, 10)) + b"<script>alert(1)</script>",
    }
    names = list(written)
    path = tmp_path_factory.mktemp("pictures") / "data"
    covey.write(
        [{"image": data} for data in written.values()], path, label=None,
        features={"image": Image(channels=None)}, shuffle=False, progress=False,
    )  # fmt: skip
    return serve(path), names, written


def expected_pixels(data):
    with Pillow.open(io.BytesIO(data)) as picture:
        mode = {"P": "RGB", "L": "L", "RGBA": "RGBA"}.get(picture.mode, "RGB")
        return np.asarray(picture.convert(mode))


@pytest.mark.parametrize("name", ["png", "grey", "alpha", "palette", "webp", "trailing"])
def test_images_are_those_of_pillow(pictures, name):
    client, names, written = pictures
    status, kind, body = client.ask("image", id=names.index(name), feature="image")
    assert (status, kind) == (200, "image/png")
    assert (decode(body) == expected_pixels(written[name])).all()
    assert b"script" not in body  # the stored bytes are not sent


def test_images_of_16_bits_and_with_alpha(serve, tmp_path):
    deep = gradient(20, 15, 1, np.uint16)
    alpha = io.BytesIO()
    Pillow.fromarray(gradient(12, 10, 2), "LA").save(alpha, "PNG")
    example = {"deep": encode(deep), "raw": encode(deep), "alpha": alpha.getvalue()}
    features = {
        "deep": Image(dtype="uint16", channels=1),
        "raw": Tensor("bytes"),
        "alpha": Image(channels=None),
    }
    covey.write([example], tmp_path / "d", label=None, features=features, progress=False)
    client = serve(tmp_path / "d")
    for name in ("deep", "raw"):
        pixels = decode(client.ask("image", id=0, feature=name)[2])
        assert (pixels == deep[:, :, 0] >> 8).all()
    pixels = decode(client.ask("image", id=0, feature="alpha")[2])
    expected = Pillow.open(alpha).convert("RGBA")
    assert (pixels == np.asarray(expected)).all()


def test_a_jpeg_stays_one(pictures):
    client, names, written = pictures
    status, kind, body = client.ask("image", id=names.index("jpeg"), feature="image")
    assert (status, kind) == (200, "image/jpeg")
    found, expected = decode(body).astype(int), decode(written["jpeg"]).astype(int)
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 12  # of noise
    assert body != written["jpeg"]


@pytest.mark.parametrize("name", ["png", "grey", "alpha", "jpeg"])
@pytest.mark.parametrize("side", [16, 25, 64])
def test_thumbnails(pictures, name, side):
    client, names, written = pictures
    body = client.ask("image", id=names.index(name), feature="image", side=side)[2]
    found = Pillow.open(io.BytesIO(body))
    full = Pillow.open(io.BytesIO(written[name]))
    factor = min(1, side / max(full.size))
    size = tuple(max(1, round(each * factor)) for each in full.size)
    assert found.size == size
    expected = np.asarray(full.resize(size, Pillow.Resampling.BILINEAR)).astype(int)
    limit = 8 if found.format == "JPEG" else 1.5
    assert np.abs(np.asarray(found).astype(int) - expected).mean() < limit


def test_an_image_has_a_maximum_side(pictures):
    client, names, _ = pictures
    body = client.ask("image", id=names.index("large"), feature="image")[2]
    assert decode(body).shape == (2048, 25, 3)


ARRAYS = {
    "grey": np.arange(30 * 20, dtype=np.uint8).reshape(30, 20),
    "rgb": gradient(12, 9),
    "first": np.ascontiguousarray(gradient(12, 9).transpose(2, 0, 1)),
    "deep": gradient(9, 9, 1, np.uint16)[:, :, 0],
    "float": np.linspace(-3, 5, 25, dtype=np.float32).reshape(5, 5),
    "nan": np.where(np.eye(6), np.nan, 1.0).astype(np.float32),
    "huge": (np.add.outer(np.arange(3000), np.arange(40)) % 200).astype(np.uint8),
    "line": np.arange(50, dtype=np.float32),
    "text": "owl",
}


@pytest.fixture(scope="module")
def arrays(serve, tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / "data"
    covey.write([ARRAYS], path, label=None, progress=False)
    return serve(path)


def test_arrays_as_images(arrays):
    def get(name, **options):
        return decode(arrays.ask("image", id=0, feature=name, **options)[2])

    assert (get("grey") == ARRAYS["grey"]).all()
    assert (get("rgb") == ARRAYS["rgb"]).all()
    assert (get("first") == ARRAYS["rgb"]).all()
    assert (get("deep") == ARRAYS["deep"] >> 8).all()
    numbers = get("float").reshape(-1)
    assert (numbers[0], numbers[-1]) == (0, 255)
    assert (np.diff(numbers.astype(int)) >= 0).all()
    assert set(get("nan").reshape(-1).tolist()) == {0, 255}
    assert get("huge").shape == (2048, 27)
    small = Pillow.fromarray(ARRAYS["grey"]).resize((16, 24), Pillow.Resampling.BILINEAR)
    assert np.abs(get("grey", side=24).astype(int) - np.asarray(small)).mean() < 1.5
    summaries = arrays.json("examples", ids=0)["examples"][0]["values"]
    pictures = {name for name, each in summaries.items() if "picture" in (each or ())}
    assert pictures == {"grey", "rgb", "first", "deep", "float", "nan", "huge"}
    for name in pictures:
        assert arrays.ask("image", id=0, feature=name)[0] == 200
    for name in ("line", "text"):
        assert arrays.ask("image", id=0, feature=name)[0] == 415


def test_other_files_are_not_images(serve, tmp_path):
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    files = [svg, b"<html>", b"", encode(gradient(9, 9))[:40], b"II*\x00tiff"]
    features = {"file": Tensor("bytes"), "image": Image()}
    examples = [{"file": file, "image": encode(gradient(9, 9))} for file in files]
    covey.write(
        examples, tmp_path / "d", label=None, features=features, shuffle=False, progress=False
    )
    client = serve(tmp_path / "d")
    for number, file in enumerate(files):
        status, kind, body = client.ask("image", id=number, feature="file")
        assert status in (415, 422)
        assert kind == "application/json"
        assert not file or file not in body
        assert client.ask("image", id=number, feature="image")[0] == 200


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"id": 120, "feature": "photo"}, 404),
        ({"id": -1, "feature": "photo"}, 400),
        ({"feature": "photo"}, 400),
        ({"id": 0}, 400),
        ({"id": 0, "feature": "flock"}, 404),
        ({"id": 0, "feature": "caption"}, 415),
        ({"id": 0, "feature": "photo", "split": "flock"}, 404),
    ],
)
def test_images_that_do_not_exist(birds, parameters, status):
    for path in ("image", "audio"):
        assert birds.ask(path, **{"split": "train", **parameters})[0] == status


# Sounds and plots.


@pytest.fixture(scope="module")
def sounds(serve, tmp_path_factory):
    rng = np.random.default_rng(0)
    written = {
        "mono": rng.uniform(-1.2, 1.2, 4000).astype(np.float32),
        "stereo": rng.integers(-(2**15), 2**15, (3000, 2)).astype(np.int16),
        "silent": np.zeros(0, np.float32),
        "odd": np.array([np.nan, np.inf, -np.inf, 0.5], np.float32),
        "unknown": np.zeros(10, np.float32),
    }
    features = {
        "mono": Audio(8000),
        "stereo": Audio(22_050, "int16", shape=(None, 2)),
        "silent": Audio(8000),
        "odd": Audio(8000),
        "unknown": Audio(),
    }
    path = tmp_path_factory.mktemp("sounds") / "data"
    covey.write([written], path, label=None, features=features, progress=False)
    return serve(path), written


def test_sounds_are_those_of_soundfile(sounds):
    client, written = sounds
    status, kind, body = client.ask("audio", id=0, feature="mono")
    assert (status, kind) == (200, "audio/wav")
    samples, rate = soundfile.read(io.BytesIO(body), dtype="float32")
    assert rate == 8000
    clipped = np.clip(written["mono"], -1, 32767 / 32768)
    assert len(samples) == 4000
    assert np.abs(samples - clipped).max() <= 0.5 / 32768 + 1e-7
    body = client.ask("audio", id=0, feature="stereo")[2]
    samples, rate = soundfile.read(io.BytesIO(body), dtype="int16")
    assert rate == 22_050
    assert (samples == written["stereo"]).all()
    with wave.open(io.BytesIO(body)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getnframes()) == (2, 2, 3000)


def test_sounds_with_odd_samples(sounds):
    client, _ = sounds
    with wave.open(io.BytesIO(client.ask("audio", id=0, feature="silent")[2])) as file:
        assert file.getnframes() == 0
    body = client.ask("audio", id=0, feature="odd")[2]
    samples, _ = soundfile.read(io.BytesIO(body), dtype="int16")
    assert samples.tolist() == [0, 32767, -32768, 16384]
    assert client.ask("audio", id=0, feature="unknown")[0] == 415


def test_waveforms(sounds):
    client, written = sounds
    values = client.json("examples", ids=0)["examples"][0]["values"]
    for name, columns in (("mono", 1), ("stereo", 2)):
        samples = written[name].astype(float).reshape(-1, columns)
        ends = np.linspace(0, len(samples), 129).astype(int)
        parts = [samples[a:b] for a, b in itertools.pairwise(ends)]
        plot = values[name]["plot"]
        assert plot["low"] == pytest.approx([each.min() for each in parts], rel=1e-3)
        assert plot["high"] == pytest.approx([each.max() for each in parts], rel=1e-3)
    assert values["silent"]["plot"] is None


def test_plots(serve, tmp_path):
    line = np.sin(np.arange(5000) / 7)
    line[17] = np.nan
    example = {
        "short": np.arange(128, dtype=np.float32) / 3,
        "line": line,
        "nested": [[1.0, 2.0], [], [3.0]],
        "integers": np.array([2**62, -5], np.int64),
        "words": ["a", "b"],
        "empty": np.zeros(0, np.float32),
        "dots": ([[1], [3]], [5.0, 7.0]),
    }
    features = {"nested": Ragged("float32"), "dots": Sparse("float32", (9,))}
    features |= {"line": Tensor("float64", (5000,)), "empty": Tensor("float32", (None,))}
    known = Features.infer([{n: v for n, v in example.items() if n not in features}])
    schema = Features({**known, **features})
    covey.write([example], tmp_path / "d", label=None, features=schema, progress=False)
    values = serve(tmp_path / "d").json("examples", ids=0)["examples"][0]["values"]
    plots = {name: each["plot"] for name, each in values.items()}
    assert plots["short"] == {"low": [float(f"{each / 3:.4g}") for each in range(128)]}
    assert len(plots["line"]["low"]) == len(plots["line"]["high"]) == 128
    assert min(plots["line"]["low"]) == pytest.approx(np.nanmin(line), rel=1e-3)
    assert max(plots["line"]["high"]) == pytest.approx(np.nanmax(line), rel=1e-3)
    assert plots["nested"] == {"low": [1, 2, 3]}
    assert plots["integers"]["low"] == pytest.approx([2**62, -5], rel=1e-3)
    assert plots["dots"] == {"low": [5, 7]}
    assert plots["words"] is plots["empty"] is None


# Survey.


def test_a_survey_equals_numpy(mixed):
    client, written = mixed.client, mixed.written
    found = client.json("survey")
    assert (found["examples"], found["of"], found["corrupt"]) == (700, 700, 0)
    numbers = np.array([each["number"] for each in written], np.float32)
    survey = found["features"]["number"]
    assert survey["nan"] == int(np.isnan(numbers).sum())
    assert survey["min"] == -1.5
    assert survey["max"] is None
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    counts, edges = np.histogram(finite, 40)
    assert np.allclose(survey["histogram"]["edges"], edges)
    assert survey["histogram"]["counts"] == counts.tolist()
    small = found["features"]["small"]
    values = np.array([each["small"] for each in written])
    assert small["mean"] == pytest.approx(values.mean())
    edges = small["histogram"]["edges"]
    counts = [int(((values >= a) & (values < b)).sum()) for a, b in itertools.pairwise(edges)]
    assert small["histogram"]["counts"] == counts
    assert sum(counts) == 700
    word = found["features"]["word"]
    lengths = sorted(len(each["word"]) for each in written)
    assert word["lengths"] == [lengths[0], lengths[349], lengths[-1]]
    assert word["histogram"]["what"] == "lengths"
    assert sum(word["histogram"]["counts"]) == 700


def test_a_survey_of_images(birds, birds_path):
    images = birds.json("survey", split="train")["features"]["photo"]["images"]
    with covey.open(birds_path, split="train") as ds:
        opened = [Pillow.open(io.BytesIO(each["photo"])) for each in ds]
    assert images["formats"] == {"png": len(opened)}
    assert images["channels"] == {"3": len(opened)}
    sizes = {(height, width): count for height, width, count in images["sizes"]}
    assert sizes == Counter((each.height, each.width) for each in opened)
    assert images["smallest"] == list(min(sizes, key=math.prod))
    assert images["largest"] == list(max(sizes, key=math.prod))


@given(st.integers(0, 10**12))
def test_a_sample_is_spread_over_the_split(length):
    ids = np.concatenate([np.zeros(0, np.int64), *sample_parts(length)])
    assert len(ids) == min(length, 2000) == len(set(ids.tolist()))
    if length:
        assert ids.min() == 0
        assert ids.max() < length
        assert np.diff(np.sort(ids)).max(initial=0) <= -(-length // len(ids))
        assert sample_parts(length)[0].max() >= length * 0.9 or length < 2000


def test_a_survey_is_a_stream(mixed, monkeypatch):
    monkeypatch.setattr("covey.view.overview._INTERVAL_S", -1)
    lines = mixed.client.lines("survey")
    counts = [line["examples"] for line in lines]
    assert counts == sorted(counts)
    assert 0 < counts[0] < 100
    assert counts[-1] == 700
    assert lines[-1]["features"]["small"]["histogram"] is not None
    monkeypatch.setattr("covey.view.overview.MAX_SAMPLED_BYTES", 10_000)
    assert 0 < mixed.client.lines("survey")[-1]["examples"] < 100


# Corrupt records, empty splits, no label, hostile names.


def test_a_corrupt_record_is_an_error_of_its_own(corrupt, birds):
    found = corrupt.json("examples", split="train", ids="1,2,3,4")["examples"]
    assert [each["id"] for each in found] == [1, 2, 3, 4]
    assert [("error" in each, "values" in each) for each in found] == [
        (False, True),
        (False, True),
        (True, False),
        (False, True),
    ]
    assert "checksum" in found[2]["error"]
    healthy = birds.json("examples", split="train", ids="1,2,3,4")["examples"]
    assert [each["offset"] for each in found] == [each["offset"] for each in healthy]
    assert [each.get("values") for each in found[:2]] == [each["values"] for each in healthy[:2]]
    status, _kind, body = corrupt.ask("image", split="train", id=3, feature="photo")
    assert status == 400
    assert "checksum" in json.loads(body)["error"]
    assert corrupt.ask("image", split="train", id=4, feature="photo")[0] == 200


def test_a_search_counts_corrupt_records(corrupt, birds):
    where = [["caption", "contains", "branch"]]
    lines = corrupt.lines("find", split="train", where=json.dumps(where))
    assert sum(line["corrupt"] for line in lines) == 1
    expected = [each for each in birds.find(where, split="train") if each != 3]
    assert [number for line in lines for number in line["ids"]] == expected


def test_a_survey_counts_corrupt_records(corrupt):
    found = corrupt.json("survey", split="train")
    assert (found["examples"], found["corrupt"]) == (119, 1)
    assert "checksum" in found["error"]


def test_an_empty_split(birds):
    line = {"ids": [], "cursor": None, "scanned": 0, "of": 0, "corrupt": 0}
    assert birds.json("find", split="empty") == line
    assert birds.find([["caption", "contains", "a"]], split="empty") == []
    assert birds.json("examples", split="empty", ids="")["examples"] == []
    found = birds.json("classes", split="empty")
    assert len(found["id"]) == len(found["count"]) == 0
    survey = birds.json("survey", split="empty")
    assert (survey["examples"], survey["of"], survey["error"]) == (0, 0, None)
    assert set(survey["features"]) == {each["name"] for each in birds.json("overview")["features"]}
    for path in ("image", "audio"):
        assert birds.ask(path, split="empty", id=0, feature="photo")[0] == 404


def test_a_dataset_without_a_label(serve, tmp_path):
    columns = {"x": np.arange(6), "y": np.arange(6) / 2, "kind": ["a", "b", "c"] * 2}
    covey.write(columns, tmp_path / "d", label=None, progress=False)
    client = serve(tmp_path / "d")
    found = client.json("overview")
    assert (found["label"], found["splits"][0]["classes"]) == (None, None)
    assert found["first"]["batch"]["plan"]["kind"] == "shuffled"
    classes = client.json("classes")
    assert (classes["label"], len(classes["id"]), len(classes["count"])) == (None, 0, 0)
    assert client.json("examples", ids=0)["examples"][0]["class"] is None
    assert client.ask("find", class_=0)[0] == 400
    assert len(client.find([["x", "greater", "2"]])) == 3


def test_a_label_is_chosen(serve, tmp_path):
    """The features that can be the label are offered; all splits are opened again with it."""
    columns = {"x": np.arange(6), "y": np.arange(6) / 2, "kind": ["a", "b", "c"] * 2}
    covey.write(columns, tmp_path / "d", split="train", label=None, shuffle=False, progress=False)
    client = serve(tmp_path / "d")
    assert client.json("overview")["candidates"] == ["x", "kind"]
    for wrong in ("y", "nope", None):
        assert "must be one of ['x', 'kind']" in client.error("label", json.dumps({"label": wrong}))
    assert client.json("label", json.dumps({"label": "kind"})) == {}
    found = client.json("overview")
    assert (found["label"], found["candidates"]) == ("kind", [])
    assert client.json("classes")["name"] == ["a", "b", "c"]
    assert client.find(class_=1) == [1, 4]
    assert client.json("batch")["plan"]["classes_per_batch"] == 3
    code = found["splits"][0]["code"]
    assert eval(code, {"covey": covey}).label == "kind"


def test_the_label_of_an_open_dataset_stays(tmp_path):
    covey.write({"x": np.arange(6)}, tmp_path / "d", label=None, progress=False)
    with covey.open(tmp_path / "d") as ds, ds.view(browser=False) as view:
        client = Client(view)
        assert client.json("overview")["candidates"] == []
        assert client.ask("label", '{"label": "x"}')[0] == 400


def test_a_dataset_without_splits():
    def never(split, label):
        raise AssertionError

    with View(Session("nothing", (), never)) as view:
        client = Client(view)
        found = client.json("overview")
        assert (found["splits"], found["first"]) == ([], None)
        for path in ("classes", "find", "survey", "examples", "image", "batch"):
            assert client.ask(path)[0] in (400, 404)


@pytest.fixture(scope="module")
def hostile(serve, tmp_path_factory):
    path = write_hostile(tmp_path_factory.mktemp("hostile") / "data")
    return serve(path), path


def test_hostile_names_arrive_unchanged(hostile):
    client, path = hostile
    with covey.open(path) as ds:
        names, text = list(ds.classes), next(iter(ds.features))
        values = [ds[n][text] for n in range(len(HOSTILE))]
    assert client.json("classes")["name"] == [name[:1000] for name in names]
    assert next(each["name"] for each in client.json("overview")["features"]) == text
    found = client.json("examples", ids=",".join(map(str, range(len(HOSTILE)))))["examples"]
    assert [each["values"][text] for each in found] == values
    for value in HOSTILE:
        ids = client.find([[text, "equals", value]])
        assert len(ids) == 5
        assert all(
            client.json("examples", ids=n)["examples"][0]["values"][text] == value for n in ids
        )


# Remote datasets, compression, memory.


def test_a_remote_dataset(birds_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for file in birds_path.rglob("*"):
        if file.is_file():
            memory.pipe(f"/view_data/{file.relative_to(birds_path)}", file.read_bytes())
    with View(Session.of_path("memory://view_data", progress=False)) as view:
        client = Client(view)
        found = client.json("overview")
        assert [each["records"] for each in found["splits"]] == [120, 24, 0]
        example = client.json("examples", split="train", ids=17)["examples"][0]
        assert example["shard"].startswith("memory://")
        with covey.open(birds_path, split="train") as ds:
            assert example["values"]["caption"] == ds[17]["caption"]
            pixels = decode(client.ask("image", split="train", id=17, feature="photo")[2])
            assert (pixels == decode(ds[17]["photo"])).all()
        assert len(client.find([["eggs", "equals", "2"]], split="train")) == 24
    memory.rm("/view_data", recursive=True)


def test_compressed_shards(birds_path, serve, tmp_path):
    with covey.open(birds_path, split="test") as ds:
        captions = [each["caption"] for each in ds]
        covey.write(
            list(ds), tmp_path / "d", split="test", label="species", features=ds.features,
            compression="GZIP", shuffle=False, progress=False,
        )  # fmt: skip
    client = serve(tmp_path / "d")
    assert client.json("overview")["splits"][0]["compression"] == "GZIP"
    found = client.json("examples", ids=",".join(map(str, range(24))))["examples"]
    assert [each["values"]["caption"] for each in found] == captions


linux = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only on Linux")


def resident(of):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(of))


@linux
def test_pages_of_mapped_files_are_released(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, 96 << 20, np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    with open(tmp_path / "file", "rb") as file:
        mapped = _core.map_file(file.fileno(), 0, len(data), False)
    before = resident("RssFile")
    total = int(mapped.sum(dtype=np.int64))
    assert resident("RssFile") > before + (90 << 20)
    _core.release_pages()
    assert resident("RssFile") < before + (8 << 20)
    assert int(mapped.sum(dtype=np.int64)) == total == int(data.sum(dtype=np.int64))


@linux
def test_memory_of_scattered_reads(serve, tmp_path):
    rng = np.random.default_rng(0)
    columns = {"x": np.arange(3000), "data": rng.integers(0, 256, (3000, 65_536), np.uint8)}
    covey.write(columns, tmp_path / "d", label=None, progress=False)  # 190 MB
    client = serve(tmp_path / "d")
    client.json("overview")
    before = resident("VmRSS")
    for begin in range(0, 3000, 40):
        client.json("examples", ids=",".join(map(str, range(begin, 3000, 77))))
        assert resident("VmRSS") < before + (110 << 20)


def test_compressed_records_are_not_decoded_together(serve, tmp_path):
    """48 records of 4 kB, each of which has an array of 4 MB."""
    zeros = np.zeros(4 << 20, np.uint8)
    features = {"x": Tensor("uint8", (None,), encoding="zlib"), "label": "int64"}
    examples = ({"x": zeros, "label": number % 2} for number in range(48))
    covey.write(examples, tmp_path / "set", features=features, label="label", progress=False)
    client = serve(tmp_path / "set")
    client.json("overview")
    for path, parameters in {
        "examples": {"ids": ",".join(map(str, range(48)))},
        "find": {"where": '[["x", "greater", "1"]]'},
        "survey": {},
    }.items():
        tracemalloc.start()
        try:
            client.lines(path, **parameters)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 120 << 20, path
