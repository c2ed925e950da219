"""The examples of similarity learning do what they say, and the documents say what they did."""

import importlib
import json
import re
import subprocess
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


@pytest.fixture(scope="module")
def programs():
    """Both programs, as modules."""
    with warnings.catch_warnings():  # what frameworks warn of when they are imported
        warnings.simplefilter("ignore")
        import similarity_keras
        import similarity_torch
    return {"keras": similarity_keras, "torch": similarity_torch}


# What is measured.


def test_recall_counts_who_finds_one_of_its_class_nearest():
    vectors = np.array([[1, 0], [5, 0.1], [0, 1], [0.2, 2], [1, 1], [-3, 0]], float)
    # The length does not count; the fifth lies between others, the last is alone in its class.
    assert drawings.recall_at_1(vectors, np.array([0, 0, 1, 1, 2, 3])) == pytest.approx(4 / 6)


def test_recall_never_finds_oneself():
    vectors = np.random.default_rng(0).normal(size=(50, 8))
    assert drawings.recall_at_1(vectors, np.arange(50)) == 0
    assert drawings.recall_at_1(vectors, np.zeros(50, int)) == 1


@pytest.mark.parametrize("block", [1, 7, 100, 101, 1024])
def test_recall_is_that_of_a_comparison_one_by_one(block):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 101)
    vectors = rng.normal(size=(101, 5)) + rng.normal(size=(10, 5))[labels]
    hits = 0
    for one, vector in enumerate(vectors):
        cosines = [
            -2 if two == one else vector @ other / np.linalg.norm(vector) / np.linalg.norm(other)
            for two, other in enumerate(vectors)
        ]
        hits += labels[one] == labels[int(np.argmax(cosines))]
    assert 20 < hits < 90
    assert drawings.recall_at_1(vectors, labels, block) == hits / 101


# Drawings.


def save(path, images, labels):
    np.savez(path, images=images, labels=labels)
    return path


def test_drawings_come_from_files(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 9)).astype(np.uint8)
    data = save(tmp_path / "a.npz", images[:20], np.arange(20, dtype=np.int16) % 5)
    other = save(tmp_path / "b.npz", images[20:], np.arange(10) % 2)
    train, test = drawings.load(drawings.parse("", ["--data", str(data), "--eval", str(other)]))
    assert np.array_equal(train.images, images[:20])
    assert np.array_equal(test.images, images[20:])
    assert (train.labels.dtype, train.classes, test.classes) == (np.int64, 5, 2)


def test_of_one_file_some_classes_are_held_out(tmp_path):
    images = np.arange(80, dtype=np.uint8).reshape(80, 1, 1)
    data = save(tmp_path / "a.npz", images, np.arange(80) % 16)
    sides = [drawings.load(drawings.parse("", ["--data", str(data)])) for _ in range(2)]
    train, test = sides[0]
    assert (train.classes, test.classes) == (12, 4)
    assert not set(train.labels) & set(test.labels)
    assert sorted([*train.images.flat, *test.images.flat]) == list(range(80))
    assert np.array_equal(test.labels, sides[1][1].labels)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros(3)}, "has x, but no images or labels"),
        ({"images": np.zeros((3, 2, 2)), "labels": np.zeros(3)}, "images are float64"),
        ({"images": np.zeros((3, 2, 2), np.uint8), "labels": np.zeros(4)}, r"labels \(4,\)"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path, arrays, said):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SystemExit, match=said):
        drawings.read(tmp_path / "a.npz")


def test_glyphs_are_drawn_if_there_is_no_file():
    train, test = drawings.load(drawings.parse("", ["--classes", "8"]))
    assert train.images.shape == (6 * 20, 28, 28)
    assert test.images.shape == (2 * 20, 28, 28)
    assert len(np.unique(train.images, axis=0)) == len(train)


# The programs.


def losses_by_hand(z, y, temperature=0.1):
    """The loss as it is defined, one by one."""
    losses = []
    for i in range(len(y)):
        others = [j for j in range(len(y)) if j != i]
        total = np.log(sum(np.exp(z[i] @ z[j] / temperature) for j in others))
        partners = [j for j in others if y[j] == y[i]]
        if partners:
            losses.append(np.mean([total - z[i] @ z[j] / temperature for j in partners]))
    return np.mean(losses) if losses else 0.0


def loss_in(program, framework, z, y):
    if framework == "keras":
        return float(program.loss_of(y, z))
    torch = program.torch
    return program.loss_of(torch.from_numpy(z), torch.from_numpy(y)).item()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("y", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
def test_loss_is_what_it_is_defined_as(programs, framework, y):
    z = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    found = loss_in(programs[framework], framework, z, np.array(y))
    assert found == pytest.approx(losses_by_hand(z, y), rel=1e-4)


def test_both_programs_have_the_same_net(programs):
    keras_net = programs["keras"].make_net(28, 28)
    torch_net = programs["torch"].make_net(28, 28)
    sizes = sorted(each.numel() for each in torch_net.parameters())
    assert sorted(int(np.prod(each.shape)) for each in keras_net.trainable_weights) == sizes


# Forty classes, whose drawings show their number.
LABELS = np.arange(40).repeat(20)
DRAWN = drawings.Drawings(np.broadcast_to(LABELS[:, None, None], (800, 4, 5)).astype("u1"), LABELS)


def some_batches(program, directory, sampler, *more, seed=3):
    options = drawings.parse("", ["--sampler", sampler, "--seed", str(seed), *more])
    with warnings.catch_warnings():  # that shards are not what the streaming sampler needs
        warnings.simplefilter("ignore" if sampler == "streaming" else "error")
        batches = program.batches(DRAWN, str(directory), options)
    pairs = [pair for pair, _ in zip(batches, range(5), strict=False)]
    return [(np.asarray(x), np.asarray(y)) for x, y in pairs]


def runs_of(y):
    """The classes of the blocks of four that a batch is made of."""
    return [set(block) for block in y.reshape(32, 4).tolist()]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("sampler", ["exact", "streaming", "random"])
def test_batches_are_whole_and_drawings_keep_their_classes(programs, tmp_path, framework, sampler):
    for x, y in some_batches(programs[framework], tmp_path, sampler):
        assert (x.shape, x.dtype, y.shape) == ((128, 4, 5), np.uint8, (128,))
        assert np.array_equal(x[:, 0, 0], y)


def test_exact_batches_have_their_classes_and_examples(programs, tmp_path):
    for _, y in some_batches(programs["torch"], tmp_path, "exact"):
        assert np.unique(y, return_counts=True)[1].tolist() == [4] * 32


def test_streamed_batches_have_four_of_each_shard_in_turn(programs, tmp_path):
    for _, y in some_batches(programs["torch"], tmp_path, "streaming"):
        assert all(len(classes) == 1 for classes in runs_of(y))
        assert 8 <= len(np.unique(y)) <= 16
        assert all(len({*y[at : at + 32].tolist()}) == 8 for at in range(0, 128, 32))


def test_streamed_batches_of_many_shards_are_balanced_too(programs, tmp_path):
    for _, y in some_batches(programs["torch"], tmp_path, "streaming", "--shards", "40"):
        assert all(len(classes) == 1 for classes in runs_of(y))
        assert len(np.unique(y)) == 32


def test_streamed_batches_of_shuffled_shards_are_not(programs, tmp_path):
    for _, y in some_batches(programs["torch"], tmp_path, "streaming", "--shuffled"):
        assert not any(len(classes) == 1 for classes in runs_of(y))


@pytest.mark.parametrize("more", [[], ["--shards", "3"], ["--shuffled"]])
def test_shards_to_stream_from_have_every_drawing_once(tmp_path, more):
    images = np.arange(240 * 2, dtype=np.uint16).view(np.uint8).reshape(240, 2, 2)
    written = drawings.Drawings(images, np.arange(240) % 60)
    drawings.write_shards(written, str(tmp_path), drawings.parse("", more))
    found = covey.open(sorted(tmp_path.glob("*.tfrec")), label="label")[:]
    assert sorted(map(bytes, found["image"])) == sorted(map(bytes, images.reshape(240, 4)))
    assert (np.diff(found["label"]) >= 0).all() == ("--shuffled" not in more)


@pytest.mark.parametrize("sampler", ["exact", "streaming", "random"])
def test_another_seed_gives_other_batches(programs, tmp_path_factory, sampler):
    ours, others = (
        some_batches(programs["torch"], tmp_path_factory.mktemp("seed"), sampler, seed=seed)
        for seed in (3, 4)
    )
    assert not np.array_equal(ours[0][1], others[0][1])


@pytest.mark.parametrize("sampler", ["exact", "streaming", "random"])
def test_both_programs_have_the_same_batches(programs, tmp_path_factory, sampler):
    ours, theirs = (
        some_batches(programs[name], tmp_path_factory.mktemp(name), sampler) for name in FRAMEWORKS
    )
    for (x, y), (same_x, same_y) in zip(ours, theirs, strict=True):
        assert np.array_equal(x, same_x)
        assert np.array_equal(y, same_y)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_program_learns_to_find_classes_that_it_has_not_seen(framework):
    program = ROOT / f"examples/similarity_{framework}.py"
    command = [sys.executable, str(program), "--classes", "120", "--steps", "50"]
    command += ["--threads", "1"]  # other tests run, too
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "90 classes to train with, 30 others to find again." in run.stdout
    before, after = map(float, re.findall(r"recall@1 \w+ training: ([\d.]+)", run.stdout))
    assert after > before + 0.1


# What the documents say.


@pytest.fixture(scope="module")
def results():
    return json.loads((ROOT / "docs/images/recall.json").read_text())


def test_every_way_has_run_with_the_same_seeds(results):
    seeds = {}
    for run in results["runs"]:
        seeds.setdefault((run["arm"], run["framework"]), []).append(run["seed"])
    assert len(results["arms"]) * 2 == len(seeds) == 10
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in seeds.values())


def test_documents_have_the_table_of_the_results(results):
    assert recall_plot.table(results) in (ROOT / "docs/training.md").read_text()


def test_picture_is_that_of_the_results_and_has_a_title_and_a_description(results):
    drawn = (ROOT / "docs/images/recall.svg").read_text()
    assert drawn == recall_plot.draw(results)
    svg = ElementTree.fromstring(drawn)
    names = svg.attrib["aria-labelledby"].split()
    assert [each.attrib["id"] for each in svg[:2]] == names == ["title", "desc"]
    assert "recall@1" in svg[0].text
    assert all(arm in svg[1].text for arm in results["arms"])


@pytest.fixture
def comparison(monkeypatch, tmp_path):
    """The program that compares, with runs that are none; and what was asked of them."""
    asked = []

    def run(framework, arguments):
        asked.append((framework, *arguments))
        return {"untrained": 0.2, "recall": 0.5 + len(asked) / 100}

    monkeypatch.setattr(compare_samplers, "run", run)
    seen = {"classes": 9.5, "partnered": 128.0, "pairs": 7}
    monkeypatch.setattr(compare_samplers, "look_at", lambda arguments: seen)
    save(tmp_path / "a.npz", np.zeros((8, 2, 2), np.uint8), np.arange(8))
    options = ["--data", str(tmp_path / "a.npz"), "--output", str(tmp_path / "out.json")]
    return options, asked


def test_comparison_runs_all_ways_and_goes_on_where_it_was_left(comparison, tmp_path, capsys):
    options, asked = comparison
    compare_samplers.main([*options, "--seeds", "2", "--frameworks", "torch", "keras"])
    assert len(asked) == 20
    compare_samplers.main([*options, "--seeds", "3", "--frameworks", "torch", "keras"])
    assert len(set(asked)) == len(asked) == 30
    assert all(f"{tmp_path / 'a.npz'}" in each for each in asked)
    found = json.loads((tmp_path / "out.json").read_text())
    assert [run["recall"] for run in found["runs"]] == [0.5 + n / 100 for n in range(1, 31)]
    assert str(tmp_path) not in json.dumps(found)
    assert (tmp_path / "out.svg").read_text() == recall_plot.draw(found)
    assert recall_plot.table(found) in capsys.readouterr().out


@pytest.mark.usefixtures("programs")
def test_batches_are_looked_at_by_class_and_by_pair(tmp_path):
    # 45 classes with four drawings to train with, of which a batch has 32.
    images = np.arange(240 * 2, dtype=np.uint16).view(np.uint8).reshape(240, 2, 2)
    data = save(tmp_path / "a.npz", images, np.arange(240) % 60)
    seen = compare_samplers.look_at(["--data", str(data), "--steps", "3"])
    assert seen == {"classes": 32.0, "partnered": 128.0, "pairs": 45 * 6}


def test_results_of_something_else_are_not_gone_on_with(comparison):
    options, _ = comparison
    compare_samplers.main([*options, "--seeds", "2", "--steps", "5"])
    with pytest.raises(SystemExit, match="results of something else"):
        compare_samplers.main([*options, "--seeds", "2", "--steps", "6"])


def test_table_and_picture_tell_mean_and_spread():
    runs = [
        {"arm": "exact", "framework": "torch", "seed": seed, "recall": recall}
        for seed, recall in enumerate([0.70, 0.71, 0.75])
    ]
    seen = {"classes": 32.0, "partnered": 128.0, "pairs": 1234}
    found = {"arms": {"exact": seen}, "runs": runs}
    assert recall_plot.table(found).endswith("\n| exact | 32.0 | 128.0 | 1,234 | 72.0 ± 2.6 |")
    assert "exact, PyTorch: 72.0 ± 2.6" in recall_plot.draw(found)
    assert recall_plot.draw(found).count("<circle") == 3 + 1  # and that of the legend
