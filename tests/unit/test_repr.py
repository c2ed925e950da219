"""repr() and suggestions: short, bounded, without control characters."""

import pickle

import numpy as np
import pytest

import covey
from covey._text import outline
from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.classes import ClassTable
from covey.errors import DatasetError, closest
from covey.plan import BalancedPlan, SequentialPlan, ShuffledPlan

LONG = "\x1b[2J" + "x" * 100_000


def check(value):
    """Return the repr, after the checks that every repr passes."""
    text = repr(value)
    lines = text.splitlines()
    assert len(lines) <= 10
    assert all(line.isprintable() and len(line) <= 250 for line in lines)
    return text


def test_arrays():
    assert check(StringArray.of(["wren", "owl"])) == "<StringArray (2,): 'wren', 'owl'>"
    assert check(StringArray.of([b"\xff"] * 9)) == (
        r"<StringArray (9,): b'\xff', b'\xff', b'\xff', ...>"
    )
    assert check(StringArray.of([])) == "<StringArray (0,): >"
    assert check(StringArray.of([LONG] * 5)[2:]).count("...") == 3
    ragged = RaggedArray.of([[1, 2, 3, 4, 5], [], [6]])
    assert check(ragged) == (
        "<RaggedArray: 3 rows of 0 to 5 values, int64: [1, 2, 3, 4, ...], [], [6]>"
    )
    assert check(RaggedArray.of([])).startswith("<RaggedArray: 0 rows, ")
    assert check(RaggedArray(ragged, np.array([0, 2, 3]))) == (
        "<RaggedArray: 2 rows of 1 to 2 values, ragged: [2 rows], [1 rows]>"
    )
    strings = RaggedArray(StringArray.of([LONG, "b", "c"]), np.array([0, 2, 3]))
    assert "2 rows of 1 to 2 values, strings" in check(strings)
    sparse = SparseArray(np.array([[1], [3]]), np.array([5.0, 7.0]), (4,))
    assert check(sparse) == "<SparseArray (4,): 2 values of float64>"
    batch = SparseBatch((RaggedArray.of([[1], [2]]),), RaggedArray.of([[1.0], [2.0]]), (4,))
    assert check(batch) == "<SparseBatch: 2 tensors of shape (4,), 2 values of float64>"


def test_features():
    assert repr(covey.Features({"x": "int64"})) == (
        "Features({'x': Tensor(dtype='int64', shape=(), encoding='list')})"
    )
    many = covey.Features({f"feature {n}": covey.ClassLabel([LONG, "owl"]) for n in range(50)})
    assert check(many).splitlines()[0] == "<Features: 50 features>"
    assert check(many).endswith("  and 42 more")
    assert check(covey.ClassLabel(num_classes=3)) == "ClassLabel(num_classes=3)"
    assert check(covey.ClassLabel(["owl"], default="owl")) == (
        "ClassLabel(names=['owl'], default=0)"
    )
    names = covey.ClassLabel([f"class {n}" for n in range(10_000)])
    assert check(names).endswith("and 9,994 more])")
    assert names.summary == "ClassLabel of 10,000 classes"
    assert covey.Tensor("float32", (None, 3), encoding="bytes").summary == "float32 (any, 3)"


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (BalancedPlan([0, 0, 1, 1], 2, 2), "<BalancedPlan: seed=0, classes_per_batch=2, "),
        (ShuffledPlan(10, 3, 5), "<ShuffledPlan: seed=5, records=10, batch_size=3, "),
        (SequentialPlan(10, 3), "<SequentialPlan: "),
        (BalancedPlan([0, 0, 1, 1] * 4, 2, 2).for_rank(1, 2), "<BalancedPlan: "),
        (
            BalancedPlan([0, 0, 1, 1], 2, 2).reweighted(np.array([1.0, 2.0]), batch=3),
            "<BalancedPlan: ",
        ),
    ],
)
def test_plans(plan, expected):
    assert check(plan).startswith(expected)
    assert "sum=" not in repr(plan)


def test_a_dataset_its_loader_and_its_results(tmp_path):
    path = tmp_path / "birds"
    examples = [{"song": [0.5], "species": name} for name in ("owl", "wren") * 6]
    result = covey.write(examples, path, split="train", label="species", progress=False)
    assert "split 'train', 12 examples, 2 classes of 'species', 1 shard, " in check(result)
    ds = covey.open(path, split="train")
    assert check(ds).startswith("<covey.Dataset: 12 examples, 2 classes of 'species'>\n  song ")
    assert check(ds.raw) == "<RawRecords: 12 records>"
    loader = ds.batches(2, 2, seed=3, select="song", transform=len)
    assert check(loader).splitlines()[2:] == ["  select     'song'", "  transform  len"]
    info = covey.info(path)
    assert "  train  12 examples, 2 classes of 'species', 1 shard, " in check(info)
    assert check(info.splits[0]).startswith("<SplitOverview: train: 12 examples, ")
    assert "12 records" in check(covey.verify(path, progress=False))
    (index,) = covey.build_index(path, progress=False)
    assert check(index) == (
        "<IndexResult: split 'train', 12 records, 2 classes of 'species', kept>"
    )
    assert "12 records copied" in check(covey.repair(path, tmp_path / "new", progress=False))
    assert check(ds.select([])).startswith("<covey.Dataset: 0 examples, 0 classes ")


def test_sources(tmp_path):
    (tmp_path / "birds.csv").write_text("song,species\n1,owl\n2,wren\n")
    source = covey.sources.open_source(tmp_path / "birds.csv", label="species")
    first, *features = check(source).splitlines()
    assert (first[:13], "label 'species'>" in first) == ("<Source: CSV ", True)
    assert [line.split()[0] for line in features] == ["song", "species"]
    np.savez(tmp_path / "birds.npz", x=np.zeros((100, 500)), label=np.arange(100) % 5)
    assert "100 examples" in check(covey.sources.open_source(tmp_path / "birds.npz"))


def test_outline_is_bounded():
    text = outline("title", ((LONG, LONG) for _ in range(1000)))
    assert len(text) < 2000
    assert text.endswith("and 992 more")
    assert all(line.isprintable() for line in text.splitlines())


# Suggestions.


def test_similar_names():
    names = ["species", "image", "Song", "train_2"]
    assert closest("specie", names) == "species"
    assert closest("SONG", names) == "Song"
    assert closest("train-2", names) == "train_2"
    assert closest(b"imag", names) == "image"
    for name in ("zebra", "", None, 3, LONG, "x"):
        assert closest(name, names) is None
    assert closest("owl", []) is None
    assert closest("owl", [3, None, "owls"]) == "owls"


def test_the_search_is_bounded():
    taken = 0

    def names():
        nonlocal taken
        for number in range(10_000_000):
            taken += 1
            yield f"class {number}"

    assert closest("clas 7", names()) is not None
    assert taken <= 100_000


def test_a_handled_error_searches_nothing():
    class Table(ClassTable):
        def __iter__(self):
            raise AssertionError("the names were searched")

    table = Table.of(np.arange(10), [f"class {n}" for n in range(10)])
    with pytest.raises(DatasetError):
        table.position("clas 3")


def test_a_suggestion_is_pickled_without_the_choices():
    error = DatasetError(option="split", found="trian", choices=["train"] * 1000)
    again = pickle.loads(pickle.dumps(error))
    assert (again.suggestion, str(again)) == ("train", str(error))
    assert len(pickle.dumps(error)) < 1000
