"""Retrieval metrics, judged by pytorch-metric-learning, torchmetrics and a sort in Python."""

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torchmetrics.retrieval import RetrievalHitRate

from covey.errors import MetricError
from covey.metrics import (
    MAX_VALUE,
    map_at_r,
    r_precision,
    recall_at_k,
    retrieval_metrics,
    suspicious_labels,
)

FRAMEWORKS = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}
framework = pytest.mark.parametrize("convert", FRAMEWORKS.values(), ids=FRAMEWORKS)


def embeddings(rows=400, classes=30, seed=0):
    """Return embeddings around a centre per class, and class ids; classes differ in size."""
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, classes, rows) ** 2 // classes)
    rng.shuffle(labels)
    centres = rng.normal(size=(classes, 16))
    return (centres[labels] + rng.normal(size=(rows, 16))).astype(np.float32), labels


def judge(similarity, query, labels, reference=None, reference_labels=None):
    """Return the metrics of pytorch-metric-learning."""
    distance = (
        CosineSimilarity() if similarity == "cosine" else LpDistance(normalize_embeddings=False)
    )
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(
        include=names, k="max_bin_count", knn_func=CustomKNN(distance), device=torch.device("cpu")
    )
    others = (None, None)
    if reference is not None:
        others = (torch.as_tensor(reference), torch.as_tensor(reference_labels))
    found = calculator.get_accuracy(
        torch.as_tensor(query), torch.as_tensor(labels), *others, ref_includes_query=False
    )
    return [found[name] for name in names]


@framework
@pytest.mark.parametrize(
    ("similarity", "memory_limit"), [("cosine", 500_000), ("euclidean", 1 << 28)]
)
def test_against_pytorch_metric_learning(convert, similarity, memory_limit):
    x, y = embeddings()
    options = {"similarity": similarity, "memory_limit": memory_limit}
    found = retrieval_metrics(convert(x), y, ks=(1,), **options)
    expected = judge(similarity, x, y)
    assert [found.recall[1], found.r_precision, found.map_at_r] == pytest.approx(expected, abs=1e-6)
    assert found.queries == np.isin(y, np.flatnonzero(np.bincount(y) > 1)).sum()
    assert recall_at_k(convert(x), y, ks=(1,), **options) == found.recall
    assert r_precision(convert(x), y, **options) == found.r_precision
    assert map_at_r(convert(x), y, **options) == found.map_at_r


@framework
def test_references_against_pytorch_metric_learning(convert):
    x, y = embeddings()
    other, other_labels = embeddings(rows=300, seed=1)
    found = retrieval_metrics(
        convert(x), y, ks=(1,), references=convert(other), reference_labels=other_labels
    )
    expected = judge("cosine", x, y, other, other_labels)
    assert [found.recall[1], found.r_precision, found.map_at_r] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("k", [1, 3, 10, 1000])
def test_recall_against_torchmetrics(k):
    x, y = embeddings()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows, columns = np.nonzero(~np.eye(len(x), dtype=bool))
    rate = RetrievalHitRate(top_k=k, empty_target_action="skip")
    expected = rate(
        torch.as_tensor((unit @ unit.T)[rows, columns]),
        torch.as_tensor(y[rows] == y[columns]),
        torch.as_tensor(rows),
    )
    for convert in FRAMEWORKS.values():
        assert recall_at_k(convert(x), y, ks=(k,))[k] == pytest.approx(float(expected), abs=1e-6)


def ranked(x, y, ks):
    """Return the metrics by a sort; irrelevant references precede relevant ones that tie."""
    first, precisions, averages = [], [], []
    for query in range(len(x)):
        others = [each for each in range(len(x)) if each != query]
        order = sorted(others, key=lambda each: (-float(x[query] @ x[each]), y[each] == y[query]))
        relevant = [y[each] == y[query] for each in order]
        total = sum(relevant)
        if total:
            first.append(relevant.index(True))
            precisions.append(sum(relevant[:total]) / total)
            hits = [sum(relevant[: i + 1]) / (i + 1) for i in range(total) if relevant[i]]
            averages.append(sum(hits) / total)
    recall = {k: np.mean(np.array(first) < k) for k in ks}
    return recall, np.mean(precisions), np.mean(averages)


# Rows and limits of memory; JAX compiles functions for each.
TIES = [
    *((np.asarray, *each) for each in [(2, 1), (5, 1 << 20), (12, 600)]),
    *((torch.as_tensor, *each) for each in [(2, 1 << 20), (5, 600), (12, 1)]),
    (jnp.asarray, 12, 600),
]


@settings(max_examples=40)
@given(data=st.data(), case=st.sampled_from(TIES))
def test_ties(data, case):
    convert, rows, memory_limit = case
    # Few values, so that many similarities are equal; they are exact in float32.
    x = np.array(
        data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=2 * rows, max_size=2 * rows))
    )
    x = x.reshape(rows, 2).astype(np.float32)
    y = np.array(
        [0, 0, *data.draw(st.lists(st.integers(0, 3), min_size=rows - 2, max_size=rows - 2))]
    )
    found = retrieval_metrics(
        convert(x), y, ks=(1, 2, 50), similarity="dot", memory_limit=memory_limit
    )
    recall, precision, average = ranked(x, y, (1, 2, 50))
    assert found.recall == pytest.approx(recall)
    assert (found.r_precision, found.map_at_r) == pytest.approx((precision, average))
    assert recall_at_k(convert(x), y, ks=(1, 2, 50), similarity="dot") == found.recall


def test_equal_embeddings_have_no_recall():
    assert recall_at_k(np.ones((9, 4)), np.arange(9) % 3, ks=(1, 6, 7)) == {1: 0, 6: 0, 7: 1}


INVALID_VALUES = (np.nan, np.inf, -np.inf, 1e20, -1.1e15)
METRICS = (recall_at_k, retrieval_metrics, r_precision, map_at_r, suspicious_labels)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("convert", "similarity"),
    [
        (np.asarray, "cosine"),
        (torch.as_tensor, "euclidean"),
        (jnp.asarray, "dot"),
        (tf.constant, "euclidean"),
    ],
)
def test_values_without_finite_similarities(convert, similarity, metric):
    """They would rank before all others, so that a model that diverged had a recall of 1."""
    x, y = embeddings(rows=60, classes=6)
    cases = [("float32", value) for value in INVALID_VALUES]
    for dtype, value in [*cases, ("float16", np.nan), ("float16", 7e4), ("float64", -1.1e15)]:
        with np.errstate(over="ignore"):
            wrong = np.where(np.isin(np.arange(60), [7, 30])[:, None], value, x).astype(dtype)
        valid = {"references": convert(x.astype(dtype)), "reference_labels": y}
        invalid = {"references": convert(wrong), "reference_labels": y}
        others = [(wrong, valid, "embeddings"), (x.astype(dtype), invalid, "references")]
        has_references = metric is not suspicious_labels
        for values, options, option in [(wrong, {}, "embeddings"), *others * has_references]:
            with pytest.raises(MetricError, match=r"2 of 60 rows .*: 7, 30$") as caught:
                metric(convert(values), y, similarity=similarity, **options)
            assert caught.value.option == option
    signs = np.sign(x)
    expected = metric(signs, y, similarity=similarity)
    large = 2.0 ** int(np.log2(MAX_VALUE)) * signs  # whose products are exact
    found = metric(convert(large), y, similarity=similarity)
    if metric is suspicious_labels:  # neighbours that are equally similar have no order
        assert len(found.ids) > 0
    else:
        assert found == expected


class Wrapped(torch.Tensor):
    """A tensor of another package, whose operators do not return tensors."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("matmul", "__matmul__", "topk", "__ge__"):
            raise TypeError("the operator of a subclass was called")
        return super().__torch_function__(function, types, args, kwargs or {})

    def __array__(self, dtype=None, copy=None):
        raise TypeError("a tensor on a device is not an array of numpy")


def test_inputs():
    x, y = embeddings(rows=60, classes=6)
    expected = recall_at_k(x, y)
    names = np.array(["owl", "wren", "crow", "tit", "jay", "emu"])[y]
    for labels in (
        y.tolist(),
        names,
        names.tolist(),
        torch.as_tensor(y),
        tf.constant(y),
        y[:, None],
    ):
        assert recall_at_k(x, labels) == expected
    assert recall_at_k(tf.constant(x), y) == expected
    assert recall_at_k(torch.as_tensor(x).requires_grad_(), y) == expected
    assert recall_at_k(x.astype(np.float64).tolist(), y) == expected
    assert recall_at_k(torch.as_tensor(x).as_subclass(Wrapped), torch.as_tensor(y)) == expected
    wide = {"references": torch.as_tensor(x, dtype=torch.float64), "reference_labels": y}
    for convert in FRAMEWORKS.values():  # of another type and framework than the queries
        assert recall_at_k(convert(x), y, ks=(1,), **wide) == {1: 1.0}
    half = torch.as_tensor(x).to(torch.bfloat16)
    assert recall_at_k(half, y) == recall_at_k(half.float().numpy(), y)


# Suspicious labels.


def nearest(x, query, k, similarity):
    """Return the k nearest examples of an example, by a sort."""
    if similarity == "euclidean":
        values = -((x - x[query]) ** 2).sum(1)
    else:
        scale = np.linalg.norm(x, axis=1) if similarity == "cosine" else 1
        values = x @ x[query] / scale
    return [each for each in np.argsort(-values, kind="stable").tolist() if each != query][:k]


@framework
@pytest.mark.parametrize(
    ("similarity", "k", "memory_limit"),
    [("cosine", 7, 50_000), ("euclidean", 7, 1), ("dot", 1, 1 << 28), ("dot", 1000, 600)],
)
def test_suspicious_labels_by_a_sort(convert, similarity, k, memory_limit):
    x, y = embeddings(rows=120, classes=6)
    names = np.array(["owl", "wren", "crow", "tit", "jay", "emu"])[y]
    expected = []
    for query in range(len(x)):
        labels = names[nearest(x.astype(np.float64), query, k, similarity)]
        values, counts = np.unique(labels, return_counts=True)
        if counts.max() > (labels == names[query]).sum():
            share = (labels != names[query]).mean()
            expected.append((-share, query, str(values[counts.argmax()])))
    found = suspicious_labels(
        convert(x), names, k, similarity=similarity, memory_limit=memory_limit
    )
    assert list(
        zip(*map(np.ndarray.tolist, (-found.share, found.ids, found.other)), strict=True)
    ) == sorted(expected)
    numbers = suspicious_labels(convert(x), y, k, similarity=similarity).other
    assert numbers.dtype == np.int64


def test_wrong_labels_are_found():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 300)
    x = 5 * np.eye(5)[y] + rng.normal(size=(300, 5))
    wrong = rng.choice(300, 12, replace=False)
    labels = y.copy()
    labels[wrong] = (y[wrong] + 1) % 5
    ids, share, other = suspicious_labels(x, labels)
    assert set(wrong) <= set(ids.tolist())
    assert (other == y[ids]).all()
    assert (np.diff(share) <= 0).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_no_suspicious_labels_without_neighbours(rows):
    assert [len(each) for each in suspicious_labels(np.ones((rows, 2)), np.full(rows, "a"))] == [
        0
    ] * 3


@framework
@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"embeddings": np.zeros((3, 2, 2))}, "embeddings"),
        ({"labels": [0, 1]}, "labels"),
        ({"labels": [0.5, 1.5, 2.5]}, "labels"),
        ({"labels": [0, 1, 2]}, "labels"),
        ({"ks": (0,)}, "ks"),
        ({"similarity": "manhattan"}, "similarity"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"references": np.zeros((3, 1))}, "references"),
        ({"references": np.zeros((3, 5)), "reference_labels": [0, 0, 0]}, "references"),
        ({"references": np.zeros((3, 1)), "reference_labels": list("abc")}, "reference_labels"),
    ],
)
def test_errors(convert, change, option):
    arguments = {"embeddings": np.zeros((3, 1)), "labels": [0, 0, 1], "ks": (1,), **change}
    arguments["embeddings"] = convert(arguments["embeddings"])
    for metric in (recall_at_k, retrieval_metrics):
        with pytest.raises(MetricError) as caught:
            metric(**arguments)
        assert caught.value.option == option
    with pytest.raises(MetricError) as caught:
        suspicious_labels(arguments["embeddings"], [0, 0, 1], k=0)
    assert caught.value.option == "k"
