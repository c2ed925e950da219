"""Similarity-learning examples: metric, data, programs, and the results in the documents."""

import importlib
import json
import re
import sys
import warnings
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import covey

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

compare_samplers = importlib.import_module("compare_samplers")
drawings = importlib.import_module("drawings")
recall_plot = importlib.import_module("recall_plot")

FRAMEWORKS = ["keras", "torch"]
SAMPLERS = ["exact", "streaming", "random"]


@pytest.fixture(scope="module")
def programs():
    """Both programs, as modules."""
    with warnings.catch_warnings():  # frameworks warn when they are imported
        warnings.simplefilter("ignore")
        import similarity_keras
        import similarity_torch
    return {"keras": similarity_keras, "torch": similarity_torch}


def save(path, images, labels):
    np.savez(path, images=images, labels=labels)
    return path


# Data.


def test_drawings_are_read_from_files(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 9)).astype(np.uint8)
    data = save(tmp_path / "a.npz", images[:20], np.arange(20, dtype=np.int16) % 5)
    other = save(tmp_path / "b.npz", images[20:], np.arange(10) % 2)
    train, test = drawings.load(drawings.parse("", ["--data", str(data), "--eval", str(other)]))
    assert np.array_equal(train.images, images[:20])
    assert np.array_equal(test.images, images[20:])
    assert (train.labels.dtype, train.classes, test.classes) == (np.int64, 5, 2)


def test_classes_of_a_single_file_are_held_out(tmp_path):
    images = np.arange(80, dtype=np.uint8).reshape(80, 1, 1)
    data = save(tmp_path / "a.npz", images, np.arange(80) % 16)
    train, test = drawings.load(drawings.parse("", ["--data", str(data)]))
    _, same_test = drawings.load(drawings.parse("", ["--data", str(data)]))
    assert (train.classes, test.classes) == (12, 4)
    assert not set(train.labels) & set(test.labels)
    assert sorted([*train.images.flat, *test.images.flat]) == list(range(80))
    assert np.array_equal(test.labels, same_test.labels)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3)}, "arrays images, labels are missing"),
        ({"images": np.zeros((3, 2, 2)), "labels": np.zeros(3)}, "images are float64"),
        ({"images": np.zeros((3, 2, 2), np.uint8), "labels": np.zeros(4)}, r"labels \(4,\)"),
    ],
)
def test_other_files_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SystemExit, match=message):
        drawings.read(tmp_path / "a.npz")


def test_glyphs_are_drawn_without_a_file():
    train, test = drawings.load(drawings.parse("", ["--classes", "8"]))
    assert train.images.shape == (6 * 20, 28, 28)
    assert test.images.shape == (2 * 20, 28, 28)
    assert len(np.unique(train.images, axis=0)) == len(train)


@pytest.mark.parametrize("arguments", [[], ["--shards", "3"], ["--shuffled"]])
def test_shards_of_the_streaming_sampler_have_every_drawing_once(tmp_path, arguments):
    images = np.arange(240 * 2, dtype=np.uint16).view(np.uint8).reshape(240, 2, 2)
    written = drawings.Drawings(images, np.arange(240) % 60)
    drawings.write_shards(written, str(tmp_path), drawings.parse("", arguments))
    found = covey.open(sorted(tmp_path.glob("*.tfrec")), label="label")[:]
    assert sorted(map(bytes, found["image"])) == sorted(map(bytes, images.reshape(240, 4)))
    assert (np.diff(found["label"]) >= 0).all() == ("--shuffled" not in arguments)


# Programs.


def expected_loss(z, y, temperature=0.1):
    """Supervised contrastive loss, by its definition."""
    losses = []
    for i in range(len(y)):
        others = [j for j in range(len(y)) if j != i]
        total = np.log(sum(np.exp(z[i] @ z[j] / temperature) for j in others))
        partners = [j for j in others if y[j] == y[i]]
        if partners:
            losses.append(np.mean([total - z[i] @ z[j] / temperature for j in partners]))
    return np.mean(losses) if losses else 0.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("y", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
def test_loss_equals_its_definition(programs, framework, y):
    program = programs[framework]
    z = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    if framework == "keras":
        loss = program.contrastive_loss(np.array(y), z)
    else:
        loss = program.contrastive_loss(program.torch.from_numpy(z), program.torch.tensor(y))
    assert float(loss) == pytest.approx(expected_loss(z, y), rel=1e-4)


def test_both_programs_have_the_same_network(programs):
    keras_network = programs["keras"].make_network(28, 28)
    torch_network = programs["torch"].make_network(28, 28)
    sizes = sorted(weights.numel() for weights in torch_network.parameters())
    assert sorted(int(np.prod(w.shape)) for w in keras_network.trainable_weights) == sizes


# Forty classes; the pixels of a drawing are its class id.
LABELS = np.arange(40).repeat(20)
DRAWN = drawings.Drawings(np.broadcast_to(LABELS[:, None, None], (800, 4, 5)).astype("u1"), LABELS)


def first_batches(program, directory, sampler, *arguments, seed=3):
    options = drawings.parse("", ["--sampler", sampler, "--seed", str(seed), *arguments])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = program.batches(DRAWN, str(directory), options)
    pairs = [pair for pair, _ in zip(batches, range(5), strict=False)]
    return [(np.asarray(x), np.asarray(y)) for x, y in pairs]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_batches_are_complete_seeded_and_the_same_in_both_programs(
    programs, tmp_path_factory, sampler
):
    made = [
        first_batches(programs[name], tmp_path_factory.mktemp("data"), sampler, seed=seed)
        for name, seed in [("keras", 3), ("torch", 3), ("torch", 4)]
    ]
    for (x, y), (same_x, same_y) in zip(made[0], made[1], strict=True):
        assert (x.shape, x.dtype, y.shape) == ((128, 4, 5), np.uint8, (128,))
        assert np.array_equal(x[:, 0, 0], y)
        assert np.array_equal(x, same_x)
        assert np.array_equal(y, same_y)
    assert not np.array_equal(made[1][0][1], made[2][0][1])


@pytest.mark.parametrize(
    ("sampler", "arguments", "uniform_blocks", "classes"),
    [
        ("exact", [], True, range(32, 33)),
        ("streaming", [], True, range(8, 17)),
        ("streaming", ["--shards", "40"], True, range(32, 33)),
        ("streaming", ["--shuffled"], False, range(30, 41)),
    ],
)
def test_classes_of_a_batch(programs, tmp_path, sampler, arguments, uniform_blocks, classes):
    for _, y in first_batches(programs["torch"], tmp_path, sampler, *arguments):
        blocks = [len(set(block)) == 1 for block in y.reshape(32, 4).tolist()]
        assert set(blocks) == {uniform_blocks}
        assert len(np.unique(y)) in classes
        if sampler == "exact":
            assert np.unique(y, return_counts=True)[1].tolist() == [4] * 32
        elif classes.start == 8:  # 8 shards in turn
            assert all(len(set(y[at : at + 32].tolist())) == 8 for at in range(0, 128, 32))


# TensorFlow cannot change its number of threads; torch is slow if other processes run.
@pytest.mark.parametrize(("framework", "threads"), [("keras", "0"), ("torch", "1")])
def test_training_improves_recall_on_unseen_classes(programs, framework, threads, capsys):
    programs[framework].main(["--classes", "120", "--steps", "40", "--threads", threads])
    printed = capsys.readouterr().out
    assert "90 classes for training, 30 other classes for evaluation." in printed
    before, after = map(float, re.findall(r"recall@1 \w+ training: ([\d.]+)", printed))
    assert after > before + 0.1


# Results in the documents.


@pytest.fixture(scope="module")
def results():
    return json.loads((ROOT / "docs/images/recall.json").read_text())


def test_every_combination_has_the_same_seeds(results):
    seeds = {}
    for run in results["runs"]:
        seeds.setdefault((run["arm"], run["framework"]), []).append(run["seed"])
    assert len(results["arms"]) * 2 == len(seeds) == 10
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in seeds.values())


def test_page_and_picture_show_the_results(results):
    assert recall_plot.table(results) in (ROOT / "docs/training.md").read_text()
    drawn = (ROOT / "docs/images/recall.svg").read_text()
    assert drawn == recall_plot.draw(results)
    svg = ElementTree.fromstring(drawn)
    names = svg.attrib["aria-labelledby"].split()
    assert [element.attrib["id"] for element in svg[:2]] == names == ["title", "desc"]
    assert "recall@1" in svg[0].text
    assert all(arm in svg[1].text for arm in results["arms"])


def test_table_and_picture_show_mean_and_standard_deviation():
    runs = [
        {"arm": "exact", "framework": "torch", "seed": seed, "recall": recall}
        for seed, recall in enumerate([0.70, 0.71, 0.75])
    ]
    batches = {"classes": 32.0, "partnered": 128.0, "pairs": 1234}
    found = {"arms": {"exact": batches}, "runs": runs}
    assert recall_plot.table(found).endswith("\n| exact | 32.0 | 128.0 | 1,234 | 72.0 ± 2.6 |")
    assert "exact, PyTorch: 72.0 ± 2.6" in recall_plot.draw(found)
    assert recall_plot.draw(found).count("<circle") == 3 + 1  # and the one of the legend


# The comparison.


@pytest.fixture
def comparison(monkeypatch, tmp_path):
    """Command-line options of the comparison, and the list of runs, which are simulated."""
    calls = []

    def run(framework, arguments):
        calls.append((framework, *arguments))
        return {"untrained": 0.2, "recall": 0.5 + len(calls) / 100}

    monkeypatch.setattr(compare_samplers, "run", run)
    measured = {"classes": 9.5, "partnered": 128.0, "pairs": 7}
    monkeypatch.setattr(compare_samplers, "measure_batches", lambda arguments: measured)
    save(tmp_path / "a.npz", np.zeros((8, 2, 2), np.uint8), np.arange(8))
    return ["--data", str(tmp_path / "a.npz"), "--output", str(tmp_path / "out.json")], calls


def test_comparison_runs_every_combination_once(comparison, tmp_path, capsys):
    options, calls = comparison
    compare_samplers.main([*options, "--seeds", "2", "--frameworks", "torch", "keras"])
    assert len(calls) == 20
    compare_samplers.main([*options, "--seeds", "3", "--frameworks", "torch", "keras"])
    assert len(set(calls)) == len(calls) == 30
    assert all(f"{tmp_path / 'a.npz'}" in call for call in calls)
    found = json.loads((tmp_path / "out.json").read_text())
    assert [run["recall"] for run in found["runs"]] == [0.5 + n / 100 for n in range(1, 31)]
    assert str(tmp_path) not in json.dumps(found)
    assert (tmp_path / "out.svg").read_text() == recall_plot.draw(found)
    assert recall_plot.table(found) in capsys.readouterr().out


def test_comparison_refuses_results_of_other_settings(comparison):
    options, _ = comparison
    compare_samplers.main([*options, "--seeds", "2", "--steps", "5"])
    with pytest.raises(SystemExit, match="results of other settings"):
        compare_samplers.main([*options, "--seeds", "2", "--steps", "6"])


@pytest.mark.usefixtures("programs")
def test_batches_are_measured_by_class_and_by_pair(tmp_path):
    # 45 classes with four drawings for training, of which a batch has 32.
    images = np.arange(240 * 2, dtype=np.uint16).view(np.uint8).reshape(240, 2, 2)
    data = save(tmp_path / "a.npz", images, np.arange(240) % 60)
    measured = compare_samplers.measure_batches(["--data", str(data), "--steps", "3"])
    assert measured == {"classes": 32.0, "partnered": 128.0, "pairs": 45 * 6}
