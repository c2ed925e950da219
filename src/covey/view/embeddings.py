"""Embeddings of the examples of a split: points, nearest neighbours, labels that disagree.

Vectors of two columns are points, and are compared by Euclidean distance; others are projected to
two dimensions, and are compared by cosine similarity in all dimensions. Classes are positions in
``ds.classes``, as in the class table of the page.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import StringArray
from covey.dataset.dataset import Dataset
from covey.errors import FileChangedError, MetricError
from covey.metrics import MAX_VALUE, invalid_rows, largest, majority, normalize, similarity_blocks
from covey.schema import ClassLabel
from covey.untrusted import RegularFile
from covey.urls import check_local, is_path
from covey.view.examples import feature_kind
from covey.view.session import Ids, RequestError, Session, integer, spread

CHUNK_BYTES = 16 << 20
"""Approximate number of bytes of the rows that are read at a time."""
MAX_COLUMNS = 1 << 16
MAX_POINTS = 2_000_000
"""Maximum number of points; of more vectors, every second, third, ... is a point."""
MAX_COMPARED = 20_000
"""Maximum number of examples whose labels are compared with those of their neighbours."""
MAX_COMPARED_BYTES = 64 << 20
"""Maximum number of bytes of their vectors."""
MAX_AXES_VALUES = 1 << 23
"""Maximum number of values from which the axes of a projection are computed."""
MAX_NAMES = 64
"""Maximum number of values of a feature that have a colour."""
NO_CLASS = 0xFFFFFFFF
"""Position of the class of an example without a label."""
NO_NAME = 0xFF
"""Code of a value without a colour."""

DEFAULT_NEIGHBOURS = 10
Neighbours = Annotated[int, integer(1, 100)]

# Examples of a class in a sample: as many as a neighbourhood needs for a majority.
_MIN_PER_CLASS = 2 * DEFAULT_NEIGHBOURS
_BLOCK_BYTES = 24 << 20
_RANGES = 8
_MIN_SHARE = 1e-12


class Embeddings:
    """One vector for each example of a split, of which a few are in memory at a time.

    A file is read, not mapped: a file that is truncated while it is mapped ends the process.

    Args:
        values: An array, or the path of a ``.npy`` file, with a row per example. Files with pickled
            objects are refused.
        split: Name of the split.
        examples: Number of examples of the split.
        max_points: Maximum number of points.
        max_compared: Maximum number of examples whose labels are compared.
        chunk_bytes: Approximate number of bytes of the rows that are read at a time.

    Raises:
        MetricError: If it is not a matrix of float16, float32 or float64 with a row per example.
        StorageError: If the file cannot be read.

    >>> found = Embeddings(np.eye(3, dtype=np.float32), "train", examples=3)
    >>> found.split, found.points, found.dimensions
    ('train', 3, 3)
    """

    def __init__(
        self,
        values: Any,
        split: str,
        examples: int,
        *,
        max_points: int = MAX_POINTS,
        max_compared: int = MAX_COMPARED,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.split = split
        self.path = check_local(values, "embeddings") if is_path(values) else None
        self._file = None if self.path is None else RegularFile(self.path)
        self._array = np.asarray(values) if self.path is None else self._map(self.path)
        shape, dtype = self._array.shape, self._array.dtype
        problem = None
        if dtype.kind != "f" or dtype.itemsize > 8:
            problem = f"its dtype is {dtype}; must be float16, float32 or float64"
        elif len(shape) != 2:
            problem = f"its shape is {shape}; must have two dimensions: a row per example"
        elif not 1 <= shape[1] <= MAX_COLUMNS:
            problem = f"it has {shape[1]:,} columns; must have from 1 to {MAX_COLUMNS:,}"
        elif self._file is not None and not self._array.flags.c_contiguous:
            problem = "the matrix is stored by columns; write it with numpy.ascontiguousarray()"
        elif shape[0] != examples:
            problem = (
                f"it has {shape[0]:,} rows, but split {split!r} has {examples:,} examples; "
                "must have a row per example, in their order"
            )
        if problem is not None:
            self.close()
            raise MetricError(problem, path=self.path, option=None if self.path else "embeddings")
        self.points, self.dimensions = shape
        self._stored = dtype
        if self._file is not None:
            self._offset = getattr(self._array, "offset", 0)
            del self._array  # the file is not mapped any more
        # float16 is converted: arithmetic with it is slow, and its sums are not exact.
        self.dtype = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
        self._chunk_rows = max(1, chunk_bytes // (self.dtype.itemsize * self.dimensions))
        self._max_points = max_points
        self._max_compared = max_compared
        self._projection: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, session: Session, values: Any, split: str | None = None) -> Embeddings:
        """Return the embeddings of a split of a session, by default of the first one."""
        if not session.splits:
            raise MetricError("the dataset has no splits", option="embeddings")
        name = session.splits[0] if split is None else split
        return cls(values, name, len(session.open(name)))

    def _map(self, path: str) -> NDArray[Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a header that only Python 2 could have written
                found: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # the parser of numpy raises many
            self.close()
            reason = f"is not a valid .npy file of numbers: {error}"
            raise MetricError(reason, path=path, remedy="write it with numpy.save") from None
        return found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    @property
    def is_cosine(self) -> bool:
        """Whether similarities are cosines; otherwise they are distances."""
        return bool(self.dimensions > 2)

    # Vectors.

    def rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the vectors from `begin` up to, but not including, `end`."""
        if self._file is None:
            return np.asarray(self._array[begin:end], self.dtype)
        row_bytes = self.dimensions * self._stored.itemsize
        data = self._file.read_at(self._offset + begin * row_bytes, (end - begin) * row_bytes)
        if len(data) != (end - begin) * row_bytes:
            raise FileChangedError("the file was truncated after it was opened", path=self.path)
        stored = np.frombuffer(data, self._stored).reshape(end - begin, self.dimensions)
        return np.asarray(stored, self.dtype)

    def take(self, ids: Ids) -> NDArray[Any]:
        """Return some vectors."""
        if self._file is None:
            return np.asarray(self._array[ids], self.dtype)
        found = np.empty((len(ids), self.dimensions), self.dtype)
        for row, number in enumerate(ids.tolist()):
            found[row] = self.rows(number, number + 1)[0]
        return found

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield all vectors: the first of a chunk, and its vectors."""
        for first in range(0, self.points, self._chunk_rows):
            yield first, self.rows(first, min(first + self._chunk_rows, self.points))

    # Projection.

    def projection(self) -> dict[str, Any]:
        """Return the points, and the norm of every vector; they are computed on first use.

        Point i is the vector i * ``stride``. ``variance`` is the share of the variance in each
        dimension, None if the vectors are points; ``axes_rows`` the number of vectors from which
        the axes were computed.

        Raises:
            MetricError: If a vector has values that are not finite, or too large.
        """
        with self._lock:
            if self._projection is None:
                self._projection = self._project()
            return self._projection

    def _project(self) -> dict[str, Any]:
        norms, mean = self._norms_and_mean()
        axes, variance, rows = np.eye(self.dimensions)[:2], None, self.points
        if self.is_cosine:
            sample = self.take(spread(self.points, max(2, MAX_AXES_VALUES // self.dimensions)))
            axes, variance = principal_axes(sample - mean)
            rows = len(sample)
        else:
            mean *= 0
        stride = max(1, -(-self.points // self._max_points))
        points = np.zeros((2, -(-self.points // stride)), np.float32)
        for first, chunk in self.chunks():
            begin = -(-first // stride)
            # Centred first: a mean that is large would lose digits in float32.
            part = chunk[begin * stride - first :: stride] - mean.astype(self.dtype)
            points[: len(axes), begin : begin + len(part)] = (part @ axes.T.astype(self.dtype)).T
        names = ("x", "y", "norms", "stride", "variance", "axes_rows")
        return dict(zip(names, (*points, norms, stride, variance, rows), strict=True))

    def _norms_and_mean(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        norms, total = np.zeros(self.points, np.float32), np.zeros(self.dimensions)
        invalid: list[NDArray[np.intp]] = []
        for first, chunk in self.chunks():
            is_valid = (chunk.min(1) >= -MAX_VALUE) & (chunk.max(1) <= MAX_VALUE)  # false for nan
            if not is_valid.all():
                invalid.append(np.flatnonzero(~is_valid) + first)
            elif not invalid:
                norms[first : first + len(chunk)] = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
                total += chunk.sum(0, dtype=np.float64)
        if invalid:
            fields = {"path": self.path} if self.path else {"option": "embeddings"}
            raise invalid_rows(np.concatenate(invalid), self.points, **fields)
        return norms, total / max(1, self.points)

    # Comparison.

    def neighbours(self, number: int, count: int) -> Iterator[tuple[int, Ids, NDArray[np.float64]]]:
        """Yield the number of examples that were compared, and the nearest ones of them.

        Args:
            number: The example.
            count: Number of neighbours.

        Yields:
            The number, ids and cosines, or negative distances, the most similar first.
        """
        norms = self.projection()["norms"]
        query = self.rows(number, number + 1)
        ids, values = np.zeros(0, np.int64), np.zeros(0)
        for first, chunk in self.chunks():
            end = first + len(chunk)
            if self.is_cosine:
                _, products = next(similarity_blocks(query, chunk, np.zeros(1, np.int64)))
                scale = norms[first:end].astype(np.float64) * float(norms[number])
                found = products[0] / np.maximum(scale, np.finfo(np.float64).tiny)
            else:
                found = -np.linalg.norm(chunk.astype(np.float64) - query, axis=1)
            if first <= number < end:
                found[number - first] = -np.inf
            best = largest(found[None], min(count, len(found)))[1][0]
            best = best[np.isfinite(found[best])]
            ids, values = np.append(ids, best + first), np.append(values, found[best])
            order = np.lexsort((ids, -values))[:count]
            ids, values = ids[order], values[order]
            yield end, ids, values

    def compared(self, dataset: Dataset) -> tuple[Ids, NDArray[Any], NDArray[Any] | None]:
        """Return the examples whose labels are compared, their vectors, and the bias of each."""
        self.projection()  # values are checked
        row_bytes = self.dimensions * self.dtype.itemsize
        most = max(2, min(self._max_compared, MAX_COMPARED_BYTES // row_bytes))
        ids = np.arange(self.points) if self.points <= most else sample_by_class(dataset, most)
        vectors = self.take(ids)
        if self.is_cosine:
            return ids, normalize(vectors), None
        vectors = vectors.astype(np.float64)
        vectors -= vectors.mean(0) if len(vectors) else 0
        return ids, vectors, (vectors * vectors).sum(1) * -0.5  # as in covey.metrics


def principal_axes(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, ...]]:
    """Return two axes of norm 1, and the share of the variance along each.

    The products of the columns and of the rows have the same values; the fewer are computed.

    Args:
        rows: Vectors with a mean of zero.
    """
    is_wide = rows.shape[1] > rows.shape[0]
    products = rows @ rows.T if is_wide else rows.T @ rows
    values, found = np.linalg.eigh(products)
    values, found = values[::-1][:2], found[:, ::-1][:, :2].T
    total = max(float(np.trace(products)), np.finfo(np.float64).tiny)
    axes, shares = np.zeros((2, rows.shape[1])), np.zeros(2)
    shares[: len(found)] = np.clip(values / total, 0, 1)
    axes[: len(found)] = found @ rows if is_wide else found
    axes[shares < _MIN_SHARE] = 0  # the rows are a point or a line
    axes /= np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    axes[axes[np.arange(2), np.abs(axes).argmax(1)] < 0] *= -1  # the largest is positive
    return axes, tuple(shares.tolist())


def class_positions(dataset: Dataset, ids: Ids) -> Ids:
    """Return the position in ``dataset.classes`` of the class of some examples."""
    return np.searchsorted(dataset.classes.labels, dataset.labels_of(ids)).astype(np.int64)


def sample_by_class(dataset: Dataset, most: int) -> Ids:
    """Return at most `most` ids, in order: as many of each class, and at least a few.

    Of many classes some have no example in the sample: a class needs several, as the neighbours of
    its own examples.
    """
    classes = dataset.classes
    per_class = max(_MIN_PER_CLASS, most // max(1, len(classes)))
    expected = int(np.minimum(classes.counts, per_class).sum())
    chosen = spread(len(classes), max(1, len(classes) * most // max(1, expected)))
    records = [classes.records(position) for position in chosen.tolist()]
    parts = [each[spread(len(each), per_class)] for each in records]
    return np.sort(np.concatenate([*parts, np.zeros(0, np.int64)])[:most])


# Requests.


def _find(session: Session) -> tuple[Embeddings, Dataset]:
    if session.embeddings is None:
        raise RequestError("there are no embeddings; `covey view --embeddings` shows them", 404)
    return session.embeddings, session.open(session.embeddings.split)


def scalars(dataset: Dataset) -> list[str]:
    """Return the features that points can be coloured by."""
    kinds = ("class", "string", "bytes", "number")
    return [name for name, feature in dataset.features.items() if feature_kind(feature) in kinds]


def points(session: Session) -> dict[str, Any]:
    """Return the points, and the position of the class of each."""
    embeddings, dataset = _find(session)
    found = {name: each for name, each in embeddings.projection().items() if name != "norms"}
    ids = np.arange(len(found["x"])) * found["stride"]
    positions = np.full(len(ids), NO_CLASS, np.uint32)
    if dataset.label is not None:
        positions[:] = class_positions(dataset, ids)
    about = {name: getattr(embeddings, name) for name in ("split", "dimensions", "is_cosine")}
    total = {"total": embeddings.points, "label": dataset.label, "position": positions}
    return {**about, **total, **found}


def colours(session: Session, feature: str) -> dict[str, Any]:
    """Return a code for the value of a feature of each point, and the names of the codes.

    Values are named by their frequency; floats with many values have ranges.
    """
    embeddings, dataset = _find(session)
    if feature not in scalars(dataset):
        raise RequestError(f"points have no colours by {feature[:100]!r}", 404)
    kind, column = dataset.features[feature], dataset.columns(feature)[feature]
    values = column.to_numpy() if isinstance(column, StringArray) else np.asarray(column)
    values = values[:: embeddings.projection()["stride"]]
    found, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    if values.dtype.kind == "f" and len(found) > MAX_NAMES:
        edges = np.unique(np.quantile(found[np.isfinite(found)], np.linspace(0, 1, _RANGES + 1)))
        codes = np.searchsorted(edges[1:-1], values, "right")
        codes[np.isnan(values)] = NO_NAME
        names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
        return {"code": codes.astype(np.uint8), "names": names}
    order = np.argsort(-counts, kind="stable")[:MAX_NAMES]
    ranks = np.full(len(found), NO_NAME, np.uint8)
    ranks[order] = np.arange(len(order))
    known: Any = (isinstance(kind, ClassLabel) and kind.names) or ()
    names = [
        known[each] if known and 0 <= each < len(known)
        else each.decode(errors="replace") if isinstance(each, bytes) else str(each)
        for each in found[order].tolist()
    ]  # fmt: skip
    return {"code": ranks[codes], "names": names}


def neighbours(
    session: Session, id: int, k: Neighbours = DEFAULT_NEIGHBOURS
) -> Iterator[dict[str, Any]]:
    """Yield the nearest neighbours of an example among more and more examples."""
    embeddings, dataset = _find(session)
    integer(0, embeddings.points - 1)("id", str(id))
    name, sign = ("similarity", 1) if embeddings.is_cosine else ("distance", -1)
    for scanned, ids, values in embeddings.neighbours(id, k):
        classes: list[int | None] = [None] * (len(ids) + 1)
        if dataset.label is not None:
            classes = [*class_positions(dataset, np.append(ids, id)).tolist()]
        found = [
            {"id": each, name: sign * value, "class": position}
            for each, value, position in zip(ids, values, classes[:-1], strict=True)
        ]
        about = {"scanned": scanned, "total": embeddings.points}
        yield {"neighbours": found, "class": classes[-1], **about}


def disagreements(session: Session, k: Neighbours = DEFAULT_NEIGHBOURS) -> Iterator[dict[str, Any]]:
    """Yield examples whose neighbours have another class more often than theirs.

    A row has the most frequent class of the neighbours, their share of that class, and their ids,
    the nearest first; ``agreeing`` counts the others.
    """
    embeddings, dataset = _find(session)
    if dataset.label is None:
        raise RequestError("the dataset has no label to compare")
    ids, vectors, bias = embeddings.compared(dataset)
    positions = class_positions(dataset, ids)
    total, width = len(ids), min(k, len(ids) - 1)
    about = {"total": total, "sampled": total < embeddings.points}
    if width < 1:
        yield {"rows": [], "agreeing": total, "scanned": total, **about}
        return
    for part, similarities in similarity_blocks(
        vectors, vectors, np.arange(total), bias=bias, is_same=True, memory_limit=_BLOCK_BYTES
    ):
        nearest = largest(similarities, width)[1]
        own = positions[part]
        other, most, same = majority(positions[nearest], own)
        wrong = np.flatnonzero(most > same)
        names = ("id", "class", "other", "share", "neighbours")
        found = zip(
            ids[part[wrong]], own[wrong], other[wrong], most[wrong] / width,
            ids[nearest[wrong]].tolist(), strict=True,
        )  # fmt: skip
        rows = [dict(zip(names, each, strict=True)) for each in found]
        scanned = int(part[-1]) + 1
        yield {"rows": rows, "agreeing": len(part) - len(rows), "scanned": scanned, **about}
