"""Embeddings of covey view, judged by numpy's SVD, by sorts, and by loops in Python."""

import contextlib
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import covey
from covey.errors import CoveyError, MetricError, StorageError
from covey.view import embeddings
from covey.view.embeddings import NO_CLASS, NO_NAME, Embeddings, principal_axes, sample_by_class
from covey.view.session import RequestError, Session

CLASSES = 12
ROWS = 300


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    """A dataset with class ids that are not the positions of the classes."""
    path = tmp_path_factory.mktemp("view") / "data"
    labels = np.random.default_rng(3).integers(0, CLASSES, ROWS) * 5 - 10
    covey.write({"x": np.arange(ROWS), "label": labels}, path, label="label")
    with covey.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def labels(ds):
    """The class ids of the examples."""
    return ds.labels


def matrix(rows=ROWS, columns=16, dtype=np.float32, seed=0, offset=3.0):
    """Return vectors whose variances differ, with a mean that is not zero."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** -np.linspace(0, 1, columns)
    return (rng.normal(size=(rows, columns)) * scales + offset).astype(dtype)


def clusters(labels, columns=8, noise=1.0):
    """Return vectors around a centre per class."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(labels.max() - labels.min() + 1, columns))
    return (
        centres[labels - labels.min()] + noise * rng.normal(size=(len(labels), columns))
    ).astype(np.float32)


def session_of(ds, values, **options):
    session = Session.of_dataset(ds)
    session.embeddings = Embeddings(values, session.splits[0], len(ds), **options)
    return session


# Projection.


def judge_points(values):
    """Return the first two principal components, by SVD of the centred matrix."""
    centred = values.astype(np.float64) - values.astype(np.float64).mean(0)
    left, sizes, right = np.linalg.svd(centred, full_matrices=False)
    points = left[:, :2] * sizes[:2]
    signs = np.sign(right[np.arange(2), np.abs(right[:2]).argmax(1)])
    return points * signs, sizes[:2] ** 2 / (sizes**2).sum()


def project(values, **options):
    """Return the points of vectors, and what is known of them."""
    found = Embeddings(values, "train", len(np.load(values) if isinstance(values, str) else values),
                       **options)  # fmt: skip
    with contextlib.closing(found):
        return found.projection()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("shape", [(300, 16), (10, 40), (2, 3)])
@pytest.mark.parametrize("chunk_bytes", [1, 2000, 1 << 20])
def test_points_against_svd(tmp_path, dtype, shape, chunk_bytes):
    values = matrix(*shape).astype(dtype)
    np.save(tmp_path / "emb.npy", values)
    found = project(str(tmp_path / "emb.npy"), chunk_bytes=chunk_bytes)
    expected, variance = judge_points(values)
    rank = min(2, shape[0] - 1)
    points = np.stack([found["x"], found["y"]], 1)
    assert points[:, :rank] == pytest.approx(expected[:, :rank], abs=2e-4)
    assert points[:, rank:] == pytest.approx(0, abs=1e-4)
    assert found["variance"] == pytest.approx(tuple(variance), abs=1e-5)
    norms = np.linalg.norm(values.astype(np.float64), axis=1)
    assert found["norms"] == pytest.approx(norms, rel=1e-4)
    assert found["axes_rows"] == shape[0]


def test_axes_of_products_of_rows_are_those_of_products_of_columns():
    values = matrix(29, 30, np.float64)
    axes, variance = principal_axes(values - values.mean(0))
    repeated = np.repeat(values, 2, axis=0)  # more rows than columns
    others, same = principal_axes(repeated - repeated.mean(0))
    assert axes == pytest.approx(others, abs=1e-8)
    assert variance == pytest.approx(same)


def test_axes_of_many_rows_are_those_of_a_sample(monkeypatch):
    monkeypatch.setattr(embeddings, "MAX_AXES_VALUES", 8 * 5000)
    values = matrix(20_000, 8)
    found = project(values)
    assert found["axes_rows"] == 5000
    expected, _ = judge_points(values)
    assert np.stack([found["x"], found["y"]], 1) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("columns", [1, 2])
def test_points_as_they_are(columns):
    values = matrix(50, columns)
    found = project(values)
    assert np.array_equal(found["x"], values[:, 0])
    assert np.array_equal(found["y"], values[:, 1] if columns == 2 else np.zeros(50))
    assert found["variance"] is None


def test_a_large_mean_keeps_the_digits():
    values = matrix(200, 6, np.float64, offset=1e6)
    expected, _ = judge_points(values)
    found = project(values)
    assert np.stack([found["x"], found["y"]], 1) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_many_vectors_have_a_sample_of_points(ds, chunk_bytes):
    values = matrix(columns=2)
    session = session_of(ds, values, max_points=100, chunk_bytes=chunk_bytes)
    found = embeddings.points(session)
    assert found["stride"] == 3
    assert np.array_equal(found["x"], values[::3, 0])
    assert np.array_equal(found["y"], values[::3, 1])
    assert np.array_equal(ds.classes.labels[found["position"]], ds.labels[::3])


def test_points_without_variance():
    found = project(np.ones((5, 4), np.float32))
    assert found["variance"] == (0, 0)
    assert not found["x"].any()
    assert len(project(np.zeros((0, 4), np.float32))["x"]) == 0
    assert project(np.ones((1, 4), np.float32))["x"].tolist() == [0]


def test_memory_is_bounded(tmp_path, monkeypatch):
    rows, columns = 60_000, 128
    file = np.lib.format.open_memmap(
        tmp_path / "emb.npy", mode="w+", dtype=np.float32, shape=(rows, columns)
    )
    file[:] = np.random.default_rng(0).random((rows, columns), np.float32)
    file.flush()
    del file
    found = Embeddings(tmp_path / "emb.npy", "train", rows, chunk_bytes=1 << 20)
    monkeypatch.setattr(embeddings, "MAX_AXES_VALUES", 1 << 18)
    tracemalloc.start()
    found.projection()
    list(found.neighbours(17, 10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found.close()
    assert peak < 16 << 20  # of 30 MB


# Requests.


def test_points_have_positions_of_classes(ds):
    found = embeddings.points(session_of(ds, matrix()))
    assert found["split"] == "examples"
    assert found["label"] == "label"
    assert (found["dimensions"], found["total"], found["stride"]) == (16, ROWS, 1)
    assert found["is_cosine"] is True
    assert np.array_equal(ds.classes.labels[found["position"]], ds.labels)


@pytest.mark.parametrize("columns", [16, 2])
@pytest.mark.parametrize("options", [{}, {"chunk_bytes": 1000}])
@pytest.mark.parametrize("k", [1, 7, 100])
def test_neighbours_against_a_sort(ds, columns, options, k):
    values = matrix(columns=columns, offset=0.5)
    session = session_of(ds, values, **options)
    exact = values.astype(np.float64)
    for number in (0, 17, ROWS - 1):
        lines = list(embeddings.neighbours(session, number, k))
        assert [line["scanned"] for line in lines][-1] == lines[-1]["total"] == ROWS
        assert len(lines) > 1 if options else len(lines) == 1
        found = lines[-1]["neighbours"]
        if columns == 2:
            scores = -np.sqrt(((exact - exact[number]) ** 2).sum(1))
        else:
            norms = np.sqrt((exact * exact).sum(1))
            scores = exact @ exact[number] / norms / norms[number]
        expected = [each for each in np.argsort(-scores).tolist() if each != number][:k]
        assert [row["id"] for row in found] == expected
        assert ds.classes.labels[lines[-1]["class"]] == ds.labels[number]
        for row in found:
            score = -row["distance"] if columns == 2 else row["similarity"]
            assert score == pytest.approx(scores[row["id"]], abs=1e-5)
            assert ds.classes.labels[row["class"]] == ds.labels[row["id"]]


def test_neighbours_of_zeros(ds):
    values = matrix()
    values[5] = 0
    *_, last = embeddings.neighbours(session_of(ds, values), 5, 3)
    found = last["neighbours"]
    assert [row["similarity"] for row in found] == [0, 0, 0]
    assert 5 not in [row["id"] for row in found]


def judge_disagreements(values, positions, k):
    """Return (id, class, other, share) of examples whose neighbours disagree, by loops."""
    exact = values.astype(np.float64)
    exact /= np.sqrt((exact * exact).sum(1, keepdims=True))
    found = {}
    for number, own in enumerate(positions.tolist()):
        scores = {
            other: float(exact[other] @ exact[number])
            for other in range(len(values))
            if other != number
        }
        nearest = sorted(scores, key=lambda other: -scores[other])[:k]
        counts = Counter(int(positions[other]) for other in nearest)
        most = max(counts.values())
        if most > counts[own]:
            other = min(each for each, count in counts.items() if count == most)
            found[number] = (own, other, most / k, nearest)
    return found


def scan(session, k):
    """Return the rows of a scan, how many examples agree, and the lines of the stream."""
    lines = list(embeddings.disagreements(session, k))
    assert lines[-1]["scanned"] == lines[-1]["total"]
    rows = [row for line in lines for row in line["rows"]]
    return rows, sum(line["agreeing"] for line in lines), lines


@pytest.mark.parametrize("block", [100_000, 1 << 24])
@pytest.mark.parametrize("k", [1, 5, 10])
def test_disagreements_against_a_loop(ds, labels, k, block, monkeypatch):
    monkeypatch.setattr(embeddings, "_BLOCK_BYTES", block)
    values = clusters(labels)
    rows, agreeing, lines = scan(session_of(ds, values), k)
    names = ("class", "other", "share", "neighbours")
    found = {row["id"]: tuple(row[name] for name in names) for row in rows}
    expected = judge_disagreements(values, np.searchsorted(ds.classes.labels, labels), k)
    assert found == expected
    assert 0 < len(found) < ROWS
    assert agreeing == ROWS - len(expected)
    assert (len(lines) == 1) == (block > 100_000)
    assert not any(line["sampled"] for line in lines)


def test_disagreements_of_points_use_distances(ds):
    positions = np.searchsorted(ds.classes.labels, ds.labels)
    points = np.stack([positions * 100, np.arange(ROWS) % 7], 1).astype(np.float32)
    wrong = int(np.flatnonzero(positions == 3)[0])
    points[wrong, 0] = 500
    rows, _, _ = scan(session_of(ds, points), 5)
    found = [(row["id"], row["class"], row["other"], row["share"]) for row in rows]
    assert found == [(wrong, 3, 5, 1.0)]


def test_disagreements_of_many_examples_use_a_sample(ds, labels):
    session = session_of(ds, clusters(labels, noise=0.01), max_compared=60)
    rows, agreeing, (last,) = scan(session, 2)
    assert last["sampled"] is True
    assert last["total"] <= 60
    assert agreeing + len(rows) == last["total"]


@settings(deadline=None, max_examples=30)
@given(most=st.integers(2, ROWS), count=st.integers(1, CLASSES))
def test_sample_by_class(ds, most, count):
    part = ds.select(np.flatnonzero(np.isin(ds.labels, ds.classes.labels[:count])))
    ids = sample_by_class(part, most)
    assert len(np.unique(ids)) == len(ids) <= min(most, len(part))
    assert len(ids) >= min(most, len(part)) // 3
    assert np.array_equal(ids, sample_by_class(part, most))


def test_without_a_label(tmp_path):
    covey.write({"x": np.arange(20)}, tmp_path / "data", label=None)
    with covey.open(tmp_path / "data") as ds:
        session = session_of(ds, matrix(20))
        assert (embeddings.points(session)["position"] == NO_CLASS).all()
        *_, found = embeddings.neighbours(session, 3, 2)
        assert found["neighbours"][0]["class"] is None
        assert found["class"] is None
        with pytest.raises(RequestError, match="no label"):
            scan(session, 2)


def test_one_example_has_no_neighbours(tmp_path):
    covey.write({"label": np.array([4])}, tmp_path / "data", label="label")
    with covey.open(tmp_path / "data") as ds:
        session = session_of(ds, matrix(1))
        assert [line["neighbours"] for line in embeddings.neighbours(session, 0)] == [[]]
        assert scan(session, 10)[:2] == ([], 1)


def test_without_embeddings(ds):
    session = Session.of_dataset(ds)
    for ask in (embeddings.points, embeddings.disagreements):
        with pytest.raises(RequestError, match="--embeddings"):
            list(ask(session))
    with pytest.raises(RequestError, match="must be an integer from 0 to 299"):
        list(embeddings.neighbours(session_of(ds, matrix()), 300))


def test_colours(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "kind": [f"kind {number}" for number in np.minimum(*rng.integers(0, 5, (2, 500)))],
        "many": rng.integers(0, 400, 500),
        "size": np.where(np.arange(500) % 10 == 3, np.nan, rng.random(500)).astype(np.float32),
        "half": np.arange(500) % 3 / 2,
        "label": np.arange(500) % 7,
        "curve": rng.random((500, 4)),
    }
    names = [f"class {number}" for number in range(7)]
    features = covey.Features.infer([{name: each[0] for name, each in columns.items()}])
    features = covey.Features({**features, "label": covey.ClassLabel(names=names)})
    covey.write(columns, tmp_path / "d", label="label", features=features, shuffle=False)
    with covey.open(tmp_path / "d") as ds:
        session = session_of(ds, matrix(500))
        for name in ("kind", "half", "label"):
            found = embeddings.colours(session, name)
            shown = [found["names"][code] for code in found["code"]]
            values = [names[each] for each in columns[name]] if name == "label" else columns[name]
            assert shown == list(map(str, values))
            frequencies = Counter(shown)
            counts = [frequencies[each] for each in found["names"]]
            assert counts == sorted(counts, reverse=True)
        found = embeddings.colours(session, "many")
        assert len(found["names"]) == 64
        for value, code in zip(columns["many"].tolist(), found["code"], strict=True):
            assert code == NO_NAME or found["names"][code] == str(value)
        found = embeddings.colours(session, "size")
        assert len(found["names"]) == 8
        for value, code in zip(columns["size"].tolist(), found["code"], strict=True):
            if np.isnan(value):
                assert code == NO_NAME
            else:
                low, high = map(float, found["names"][code].split(" to "))
                assert low * 0.999 <= value <= high * 1.001
        assert min(Counter(found["code"].tolist()).values()) >= 40
        for wrong in ("curve", "nope"):
            with pytest.raises(RequestError, match="no colours"):
                embeddings.colours(session, wrong)


# Values that are not valid.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5, np.float32), r"its shape is \(5,\); must have two dimensions"),
        (np.zeros((5, 2, 2)), "must have two dimensions"),
        (np.zeros((5, 0)), "0 columns; must have from 1 to 65,536"),
        (np.zeros((5, 3), np.int64), "its dtype is int64; must be float16, float32 or float64"),
        (np.zeros((5, 3), np.complex64), "must be float16, float32 or float64"),
        (np.zeros((4, 3)), "it has 4 rows, but split 'train' has 5 examples"),
    ],
)
@pytest.mark.parametrize("kind", ["array", "file"])
def test_invalid_shapes(tmp_path, values, message, kind):
    path = tmp_path / "emb.npy"
    np.save(path, values)
    with pytest.raises(MetricError, match=message) as error:
        Embeddings(values if kind == "array" else path, "train", 5)
    assert error.value.path == (str(path) if kind == "file" else None)


class Payload:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_pickled_objects_are_refused(tmp_path):
    path = tmp_path / "emb.npy"
    np.save(path, np.array([[Payload(), 1.0]], object), allow_pickle=True)
    with pytest.raises(MetricError, match="not a valid"):
        Embeddings(path, "train", 1)


def test_invalid_files(tmp_path):
    path = tmp_path / "emb.npy"
    np.save(path, matrix(5))
    whole = path.read_bytes()
    for data in (b"", b"PK\3\4", whole[:50], whole[:-1], b"\x93NUMPY\7\0" + whole[8:]):
        path.write_bytes(data)
        with pytest.raises(MetricError) as error:
            Embeddings(path, "train", 5)
        assert error.value.path == str(path)
    np.save(path, np.asfortranarray(matrix(5)))
    with pytest.raises(MetricError, match="stored by columns"):
        Embeddings(path, "train", 5)
    for wrong in (tmp_path / "absent.npy", tmp_path, "s3://bucket/emb.npy"):
        with pytest.raises(StorageError):
            Embeddings(wrong, "train", 5)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_corrupt_files(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzzed.npy"
    np.save(path, matrix(5))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 130))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = Embeddings(path, "train", 5)
    except CoveyError:
        return
    try:
        found.projection()
    except CoveyError:
        pass
    finally:
        found.close()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
def test_values_that_are_not_finite(ds, value):
    values = matrix()
    values[[5, 17, 40], 3] = value
    session = session_of(ds, values, chunk_bytes=2000)
    for ask in (embeddings.points, embeddings.disagreements):
        with pytest.raises(MetricError, match=r"3 of 300 rows .*: 5, 17, 40$"):
            list(ask(session))


def test_a_file_that_is_truncated_later(tmp_path, ds):
    path = tmp_path / "emb.npy"
    np.save(path, matrix())
    session = session_of(ds, path)
    with path.open("rb+") as file:
        file.truncate(2000)
    with pytest.raises(CoveyError, match="truncated"):
        list(embeddings.neighbours(session, 0))
    session.embeddings.close()


def test_embeddings_of_a_session(ds):
    session = Session.of_dataset(ds)
    assert Embeddings.of(session, matrix()).split == "examples"
    with pytest.raises(MetricError, match="300 examples"):
        Embeddings.of(session, matrix(299), "examples")
    with pytest.raises(RequestError):
        Embeddings.of(session, matrix(), "absent")
