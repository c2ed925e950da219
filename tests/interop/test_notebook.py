"""HTML in notebooks: a real notebook is executed, and hostile content is escaped."""

import base64
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import covey
from covey._html import MAX_ROWS
from covey.view.media import encode_png

SCRIPT = "<script>alert(1)</script>"
HOSTILE = (SCRIPT, '"><img src=x onerror=alert(1)>', "\x1b[2J\u202eowl", "&lt;b&gt;" + "x" * 5000)
MAX_HTML_BYTES = 200_000


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.images = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert {name for name, _ in attrs} <= {"style", "src", "alt"}
        if tag == "img":
            self.images.append(dict(attrs)["src"])

    def handle_data(self, data):
        self.texts.append(data)


def parse(page):
    """Return the content of a page, and check what every page must be."""
    assert len(page.encode()) <= MAX_HTML_BYTES
    assert page.isprintable()
    found = Tags(page)
    allowed = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "img", "pre"}
    assert set(found.tags) <= allowed
    assert found.tags.count("tr") <= 2 * (MAX_ROWS + 1)
    for source in found.images:
        header, _, data = source.partition(",")
        assert header == "data:image/png;base64"
        picture = Pillow.open(io.BytesIO(base64.b64decode(data)))
        picture.load()
        assert max(picture.size) <= 48
    return found


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """Noisy images, which do not compress, with hostile class names."""
    path = tmp_path_factory.mktemp("notebook") / "birds"
    rng = np.random.default_rng(0)
    shapes = [(90, 60, 3), (48, 48), (300, 20, 3), (7, 9, 4)]
    examples = [
        {
            "photo": Pillow.fromarray(rng.integers(0, 256, shapes[n % 4], np.uint8)).convert("RGB"),
            "species": HOSTILE[n % 4],
            "note": SCRIPT,
            "song": rng.random(n % 5).astype(np.float32),
        }
        for n in range(40)
    ]
    covey.write(examples, path, split="train", label="species", progress=False)
    return path


def reject(*arguments, **options):
    raise AssertionError("a hook was called")


def test_datasets_and_loaders_are_displayed_without_files_and_hooks(birds, tmp_path):
    path = shutil.copytree(birds, tmp_path / "birds")
    ds = covey.open(path, split="train")
    loaders = {
        "photo": ds.batches(4, 8, seed=3, image_size=32, transform=reject),
        "note": ds.sequential(3, select="note", batch_transform=reject, augmenter=reject),
        "": ds.raw.batches(ds.shuffled(5, select="note").plan),
    }
    shutil.rmtree(path)
    for _ in range(2):
        found = parse(ds._repr_html_())
        assert "covey.Dataset: 40 examples, 4 classes of 'species'" in found.texts
        assert {*ds.features} <= set(found.texts)
        assert {kind.summary for kind in ds.features.values()} <= set(found.texts)
        for name, loader in loaders.items():
            found = parse(loader._repr_html_())
            assert {"photo", "note"} & set(found.texts) == {name} - {""}
            assert any(text.startswith("covey.Loader: ") for text in found.texts)
            assert any(type(loader.plan).__name__ in text for text in found.texts)
            assert (name == "photo") == ("image_size" in found.texts)
            assert loader.step == 0
        ds.close()


def test_info_and_features(birds):
    found = parse(covey.info(birds)._repr_html_())
    assert any(text.startswith("40 examples, 4 classes of 'species'") for text in found.texts)
    assert "ClassLabel of 4 classes" in found.texts
    found = parse(covey.Features({SCRIPT: "int64", "x": covey.Image()})._repr_html_())
    assert SCRIPT in found.texts


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_batch(make):
    x = np.random.default_rng(0).random((30, 3, 20, 20), np.float32)
    view = covey.show((make(x), make(np.arange(30) % 3)), names=["owl", SCRIPT, "wren"])
    found = parse(view._repr_html_())
    assert len(found.images) == MAX_ROWS
    assert {"owl", "wren", SCRIPT} <= set(found.texts)
    assert repr(view) == "<batch of 30 examples: x float32 (30, 3, 20, 20), y int64 (30,)>"


@pytest.mark.parametrize(
    "batch",
    [
        {"a": np.zeros((3, 4)), SCRIPT: np.array(["x", SCRIPT, "y"], object)},
        (np.zeros((0, 4, 4)), np.zeros(0)),
        ((np.zeros((2, 8, 8, 3)), np.ones((2, 8, 8, 3))), np.zeros(2)),
        ([np.zeros((8, 8)), np.zeros((9, 9))], [1, 2]),
        covey.arrays.RaggedArray.of([[1, 2], []]),
        (covey.arrays.StringArray.of(["a", SCRIPT]), np.array([[1, 0], [0, 1]])),
        np.full((2, 5, 5), np.nan),
        np.full((2, 5, 5), np.inf),
        ({"x": torch.zeros(2, 3, dtype=torch.bfloat16)}, torch.zeros(2)),
        np.float32(3),
        {},
        (),
        [],
    ],
    ids=range(13),
)
def test_any_batch(batch):
    view = covey.show(batch, names=[SCRIPT])
    parse(view._repr_html_())
    assert len(repr(view)) <= 400


@pytest.mark.parametrize("shape", [(4, 4), (5, 7, 3), (3, 2, 4)])
def test_pillow_reads_the_png(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert (np.asarray(Pillow.open(io.BytesIO(encode_png(pixels)))) == pixels).all()


def test_many_features_and_long_names(tmp_path):
    example = {f"{SCRIPT}{'n' * 3000}{number}": number for number in range(200)}
    covey.write([{**example, "label": 0}] * 3, tmp_path / "x", split="train", label="label")
    ds = covey.open(tmp_path / "x", split="train")
    parse(ds._repr_html_())
    parse(covey.info(tmp_path / "x")._repr_html_())
    for each in (ds, ds.features, covey.info(tmp_path / "x"), ds.batches(1, 2)):
        assert len(repr(each).splitlines()) <= 10
        assert max(map(len, repr(each).splitlines())) <= 200


def test_notebook(birds, tmp_path, monkeypatch):
    """A notebook with this interpreter displays datasets, loaders, results and batches."""
    kernel = tmp_path / "kernels" / "covey-test"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "covey-test", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [
        f"import covey\nds = covey.open({str(birds)!r}, split='train')\nds",
        "ds.batches(2, 3, select='photo', image_size=24)",
        f"covey.info({str(birds)!r})",
        "x, y = next(iter(ds.batches(2, 3, select='photo', image_size=24)))\n"
        "covey.show((x, y), names=ds.class_names)",
        "ds.features",
        "ds.classes",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="covey-test", timeout=120).execute()
    data = [cell.outputs[-1]["data"] for cell in notebook.cells]
    pages = [parse(each["text/html"]) for each in data[:5]]
    assert [len(page.images) for page in pages] == [0, 0, 0, 6, 0]
    assert "text/html" not in data[5]
    assert re.fullmatch(r"<4 classes, .*>", data[5]["text/plain"])
    assert data[0]["text/plain"].startswith("<covey.Dataset: 40 examples")
