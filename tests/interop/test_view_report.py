"""covey report: an HTML file without scripts, which shows what the dataset contains."""

import base64
import hashlib
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import view_data
from PIL import Image as Pillow

import covey
from covey.cli import main
from covey.errors import DatasetError, PlanError, StorageError
from covey.view.report import MAX_BYTES, ReportOptions, check_target, make_report, write_report
from covey.view.report.batch import MAX_CELLS, SIDE
from covey.view.session import Session
from covey.view.survey import read_survey

VOID = {"meta", "link", "img", "br", "rect", "circle", "path", "polyline", "polygon"}
URLS = {"src", "href", "action", "data", "poster", "srcset", "xlink:href", "background"}


class Page(HTMLParser):
    """The elements of a page: (tag, attributes), texts, and whether the tags are balanced."""

    def __init__(self, content):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.texts = []
        self.open = []
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag, **attributes):
        """Return the attributes of the elements with a tag."""
        found = [each for name, each in self.elements if name == tag]
        expected = {name.rstrip("_"): value for name, value in attributes.items()}
        return [each for each in found if expected.items() <= each.items()]


def pixels(source):
    """Return the pixels of a data URL."""
    kind, _, data = source.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    picture = Pillow.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert f"data:image/{picture.format.lower()}" == kind
    return np.asarray(picture)


def report(path, out="report.html", *arguments):
    """Return the page that the command writes."""
    assert main(["report", str(path), str(out), "-q", *map(str, arguments)]) == 0
    with open(out, encoding="utf-8", newline="") as file:
        content = file.read()
    assert len(content.encode()) < MAX_BYTES
    page = Page(content)
    check_safe(page, content)
    return page


def check_safe(page, content):
    """Check that a page runs no script, loads nothing, and has text for its charts."""
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "iframe", "object", "embed", "form", "base", "foreignobject"}
    for tag, attributes in page.elements:
        names = set(attributes)
        assert not any(name.startswith("on") for name in names)
        assert "style" not in names
        for name in names & URLS:
            assert re.match(r"data:(image/(png|jpeg);base64,|,$)", attributes[name]), (tag, name)
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"].strip()
        if tag == "img":
            assert attributes["alt"].strip()
    assert "http:" not in content
    assert "https:" not in content
    assert "url(" not in content
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [each for each in page.all("meta") if "http-equiv" in each]
    assert policy["http-equiv"] == "Content-Security-Policy"
    rules = dict(each.split(maxsplit=1) for each in policy["content"].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    # Only characters that are displayed; others are escaped.
    assert all(each.isprintable() or each == "\n" for each in content)


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return view_data.write_birds(tmp_path_factory.mktemp("report") / "birds")


def test_the_overview_and_the_charts(birds):
    page = report(birds)
    with covey.open(birds, split="train") as ds:
        features = [each.summary for each in ds.features.values()]
    cells = [each for each in page.texts if each.strip()]
    for name in ("train", "test", "empty", "120", "24", *features):
        assert name in cells
    assert "The split has no examples." in page.text
    assert "144 examples in 3 splits, 8 features" in page.text
    charts = [each["aria-label"] for each in page.all("svg")]
    assert "6 classes of species: the largest has 20 examples, the median 20, the smallest 20" in (
        charts
    )
    for name, what in {"weight": "values", "caption": "lengths", "eggs": "values"}.items():
        assert any(each.startswith(f"Histogram of the {what} of {name}: ") for each in charts)
    assert any(each.startswith("6 image sizes") for each in charts)
    assert re.search(r"weight number range 0 to 29\.75 mean \S+ NaN 12 ", page.text)
    assert re.search(r"photo image sizes 7 x 9 to 200 x 160 formats png \(120\)", page.text)


def test_histograms_count_the_examples(birds):
    page = report(birds, "test.html", "--split", "test")
    with covey.open(birds, split="test") as ds:
        eggs = np.bincount([example["eggs"] for example in ds])
    found = re.search(r"eggs number .*? values count (.*?) (?:\w+ \w+ range|curve)", page.text)
    assert found[1].split()[: 2 * len(eggs)] == [
        str(each) for pair in enumerate(eggs) for each in pair
    ]


@pytest.mark.parametrize("step", [0, 7, 10**12])
def test_images_are_those_of_the_batch(tmp_path, step):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 12, 10, 3), np.uint8)
    columns = {"image": images, "label": np.arange(60) % 6}
    covey.write(columns, tmp_path / "data", split="train", label="label", progress=False)
    page = report("data", "out.html", "-p", 3, "-k", 2, "--seed", 5, "--step", step)
    with covey.open("data") as ds:
        x, y = ds.batches(3, 2, seed=5).batch(step)
    found = [pixels(each["src"]) for each in page.all("img")]
    np.testing.assert_array_equal(found, x["image"] if isinstance(x, dict) else x)
    assert f"Step {step:,} of ds.batches(3, 2, seed=5)" in page.text
    batch = page.text.partition(" A batch of train ")[2]
    names = re.findall(r"(?:^|\s)(\d)(?= id [\d,]+ id )", batch)
    assert names == [str(label) for label in y[::2]]


def test_large_images_are_thumbnails(birds):
    page = report(birds, "out.html", "-p", 6)
    shapes = [pixels(each["src"]).shape for each in page.all("img")]
    assert len(shapes) == 24
    assert max(map(max, shapes)) == SIDE
    assert {shape[:2] for shape in shapes} == {
        (32, 32), (48, 24), (20, 60), (100, 80), (7, 9), (112, 90)
    }  # fmt: skip


def test_hostile_strings_are_text(tmp_path):
    page = report(view_data.write_hostile(tmp_path / "hostile"))
    assert view_data.SCRIPT in page.text
    assert "right to left" in page.text
    assert "\\u202e" in page.text
    assert "\\u0000" in page.text
    assert not page.all("img")


def test_without_a_label(tmp_path):
    columns = {"text": [f"line {number}" for number in range(10)]}
    covey.write(
        columns, tmp_path / "data", split="train", label=None, shuffle=False, progress=False
    )
    page = report("data", "out.html", "-p", 2, "-k", 3, "--seed", 9)
    assert "The examples have no label." in page.text
    with covey.open("data") as ds:
        ids = ds.shuffled(6, seed=9).plan.batch(0).tolist()
    shown = re.findall(r"line (\d+) id (\d+)", page.text)
    assert shown == [(str(each), str(each)) for each in ids]


def test_only_empty_splits(tmp_path):
    covey.write({"x": [1, 2]}, tmp_path / "data", split="test", label=None, progress=False)
    view_data.add_empty_split(tmp_path / "data")
    page = report("data", "out.html", "--split", "empty")
    assert "The split has no examples." in page.text
    assert "A batch" not in page.text


def test_corrupt_records(birds, tmp_path):
    path = view_data.write_corrupt(birds, tmp_path / "corrupt")
    page = report(path, "out.html", "-p", 6, "-k", 20, "--split", "train")
    assert "1 example of them cannot be read." in page.text
    assert len(page.all("li", class_="cell failed")) == 1
    assert len(page.all("img")) == 119


def test_missing_shards_and_splits_that_cannot_be_opened(birds, tmp_path):
    path = view_data.write_corrupt(birds, tmp_path / "missing")
    shard = max(path.rglob("*-train.tfrecord*"))
    shard.unlink()
    page = report(path)
    assert shard.name in page.text
    assert "24" in page.texts


def test_sounds_arrays_and_numbers(tmp_path):
    rng = np.random.default_rng(0)
    cases = {
        "audio": ({"x": covey.Audio(8000)}, [rng.random(500, np.float32) for _ in range(8)]),
        "array": ({"x": covey.Tensor("float32", (40,))}, rng.random((8, 40), np.float32)),
        "number": ({"x": "int64"}, np.arange(8)),
        "nan": ({"x": covey.Tensor("float32", (20,))}, np.full((8, 20), np.nan, np.float32)),
    }
    for name, (features, values) in cases.items():
        columns = {"x": list(values), "label": [0, 1] * 4}
        covey.write(
            [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
            tmp_path / name,
            split="train",
            label="label",
            features={**features, "label": "int64"},
            progress=False,
        )
        page = report(tmp_path / name, f"{name}.html")
        plots = page.all("svg", class_="spark")
        assert len(plots) == (0 if name == "number" else 8)


def test_the_size_is_bounded(tmp_path):
    rng = np.random.default_rng(0)
    examples = 400
    columns = {f"{number:03d} {'n' * 500}": rng.random(examples) for number in range(150)}
    columns["noise"] = rng.integers(0, 256, (examples, 120, 120, 3), np.uint8)
    columns["label"] = [f"{number} {'<' * 5000}" for number in range(200)] * 2
    for split in ("train", "test"):
        covey.write(columns, tmp_path / "data", split=split, label="label", progress=False)
    page = report("data", "out.html", "-p", 200, "-k", 2)
    cells = page.all("li", class_="cell")
    assert len(cells) == MAX_CELLS
    assert 0 < len(page.all("img")) < MAX_CELLS
    assert "are not shown" in page.text


def test_a_million_classes(tmp_path):
    page = report(view_data.write_million(tmp_path / "data", 200_000))
    assert "200,000 classes of label: the largest has 1 example" in page.text
    assert len(page.all("rect", class_="bar")) < 500


def test_the_file_is_replaced_at_the_end(birds, tmp_path, monkeypatch):
    monkeypatch.setattr("covey.view.report.make_report", lambda *_: "\ud800")
    out = tmp_path / "out.html"
    out.write_text("before")
    session = Session.of_path(birds)
    with pytest.raises(UnicodeEncodeError):
        write_report(session, out)
    session.close()
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]


def test_the_same_dataset_gives_the_same_bytes(birds, monkeypatch):
    """Also on a machine so slow that the page would show a part of the sample."""
    reports = []
    for timeout_s in (2.0, 0.0):
        monkeypatch.setitem(read_survey.__kwdefaults__, "timeout_s", timeout_s)
        session = Session.of_path(birds)
        reports.append(make_report(session, ReportOptions()))
        session.close()
    assert reports[0] == reports[1]
    assert "Values of 120 of 120 examples" in reports[0]


def test_invalid_targets(tmp_path, capsys):
    (tmp_path / "directory.html").mkdir()
    cases = {"directory.html": DatasetError, "nowhere/out.html": DatasetError, "out": DatasetError}
    for path, kind in cases.items():
        with pytest.raises(kind) as error:
            check_target(path)
        assert error.value.path in (path, "nowhere")
    with pytest.raises(StorageError):
        check_target("s3://bucket/out.html")
    with pytest.raises(SystemExit):
        main(["report", "data", "out.txt"])
    assert "'out.txt' must end with .html" in capsys.readouterr().err
    assert main(["report", "data", "nowhere/out.html"]) == 1
    message = capsys.readouterr().err
    assert message == "covey: error: nowhere: the directory does not exist\n"


@pytest.mark.parametrize(
    "options", [{"classes_per_batch": 0}, {"examples_per_class": 0}, {"seed": -1}, {"step": -1}]
)
def test_invalid_options(options):
    with pytest.raises(PlanError):
        ReportOptions(**options)


def test_a_batch_of_too_many_classes(birds, capsys):
    assert main(["report", str(birds), "out.html", "-p", "7"]) == 1
    assert "--classes-per-batch" in capsys.readouterr().err


def test_a_remote_dataset(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    view_data.write_birds(tmp_path / "birds", 24)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "birds"), "/report", recursive=True)
    try:
        assert len(report("memory://report").all("img")) == 24
    finally:
        memory.rm("/report", recursive=True)
