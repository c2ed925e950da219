"""Embeddings of the examples of a split: points, nearest neighbours, labels that disagree.

Vectors of two columns are points, and are compared by Euclidean distance; others are projected to
two dimensions, and are compared by cosine similarity in all dimensions. Classes are positions in
``ds.classes``, as in the class table of the page.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.errors import FileChangedError, MetricError
from covey.metrics import MAX_VALUE, invalid_rows, largest, majority, normalize, similarity_blocks
from covey.schema import ClassLabel
from covey.untrusted import RegularFile
from covey.urls import check_local, is_path
from covey.view.examples import feature_kind
from covey.view.parameters import integer
from covey.view.session import Ids, RequestError, Session

CHUNK_BYTES = 16 << 20
"""Approximate number of bytes of the rows that are read at a time."""
MAX_COLUMNS = 1 << 16
MAX_POINTS = 2_000_000
"""Maximum number of points; of more vectors, every second, third, ... is a point."""
MAX_COMPARED = 20_000
"""Maximum number of examples whose labels are compared with those of their neighbours."""
MAX_COMPARED_BYTES = 64 << 20
"""Maximum number of bytes of their vectors."""
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
# Values from which the axes of a projection are computed.
_MAX_AXES_VALUES = 1 << 23
_RANGES = 8
_READ_EXAMPLES = 8192


class Vectors:
    """A matrix with a row per example, of which a few rows are in memory at a time.

    A file is read, not mapped: a file that is truncated while it is mapped ends the process.

    Args:
        values: An array, or the path of a ``.npy`` file. Files with pickled objects are refused.
        chunk_bytes: Approximate number of bytes of the rows that are read at a time.

    Raises:
        MetricError: If it is not a matrix of float16, float32 or float64.
        StorageError: If the file cannot be read.
    """

    def __init__(self, values: Any, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path: str | None = None
        self._file: RegularFile | None = None
        if is_path(values):
            self.path = check_local(values, "embeddings")
            self._file = RegularFile(self.path)
            values = self._read_header()
        self._array = np.asanyarray(values)
        self.shape: tuple[int, ...] = self._array.shape
        problem = None
        if self._array.dtype.kind != "f" or self._array.dtype.itemsize > 8:
            problem = f"its dtype is {self._array.dtype}; must be float16, float32 or float64"
        elif len(self.shape) != 2:
            problem = f"its shape is {self.shape}; must have two dimensions: a row per example"
        elif not 1 <= self.shape[1] <= MAX_COLUMNS:
            problem = f"it has {self.shape[1]:,} columns; must have from 1 to {MAX_COLUMNS:,}"
        elif self._file is not None and min(self.shape) > 1 and not self._array.flags.c_contiguous:
            problem = "the matrix is stored by columns; write it with numpy.ascontiguousarray()"
        if problem is not None:
            self.close()
            raise MetricError(problem, path=self.path, option=None if self.path else "embeddings")
        self._dtype = self._array.dtype
        if self._file is not None:
            self._offset = self._array.offset  # type: ignore[attr-defined]
            self._array = np.zeros(0)  # the file is not mapped any more
        # float16 is converted: arithmetic with it is slow, and its sums are not exact.
        self.dtype = np.dtype(np.float64 if self._dtype.itemsize == 8 else np.float32)
        self.chunk_rows = max(1, chunk_bytes // (self.dtype.itemsize * self.shape[1]))

    def _read_header(self) -> NDArray[Any]:
        """Return the array of the file, which must not be read: it is mapped."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a header that only Python 2 could have written
                found: NDArray[Any] = np.lib.format.open_memmap(self.path, mode="r")
        except Exception as error:  # the parser of numpy raises many
            self.close()
            raise MetricError(
                f"is not a valid .npy file of numbers: {error}",
                path=self.path,
                remedy="write it with numpy.save",
            ) from None
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the rows from `begin` up to, but not including, `end`."""
        if self._file is None:
            return self._array[begin:end].astype(self.dtype, copy=False)
        row_bytes = self.shape[1] * self._dtype.itemsize
        data = self._file.read_at(self._offset + begin * row_bytes, (end - begin) * row_bytes)
        if len(data) != (end - begin) * row_bytes:
            raise FileChangedError("the file was truncated after it was opened", path=self.path)
        stored = np.frombuffer(data, self._dtype).reshape(end - begin, self.shape[1])
        return stored.astype(self.dtype, copy=False)

    def take(self, ids: Ids) -> NDArray[Any]:
        """Return some rows."""
        if self._file is None:
            return self._array[ids].astype(self.dtype, copy=False)
        found = np.empty((len(ids), self.shape[1]), self.dtype)
        for row, number in enumerate(ids.tolist()):
            found[row] = self.rows(number, number + 1)[0]
        return found

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield all rows: the first row of a chunk, and its rows."""
        for first in range(0, len(self), self.chunk_rows):
            yield first, self.rows(first, min(first + self.chunk_rows, len(self)))


# Projection.


@dataclass(frozen=True, eq=False)
class Projection:
    """Points in two dimensions."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    stride: int
    """Point i is the vector i * stride."""
    variance: tuple[float, float] | None
    """Share of the variance in each dimension; None if the vectors are points."""
    rows: int
    """Number of vectors from which the axes were computed."""
    norms: NDArray[np.float32]
    """Norm of every vector."""


def project(
    vectors: Vectors, *, max_points: int = MAX_POINTS, max_values: int = _MAX_AXES_VALUES
) -> Projection:
    """Return the points of vectors: two columns as they are, others on their principal axes.

    Args:
        vectors: The vectors.
        max_points: Maximum number of points.
        max_values: Maximum number of values from which the axes are computed.

    Raises:
        MetricError: If a vector has values that are not finite, or too large.
    """
    norms, mean = _norms_and_mean(vectors)
    columns = vectors.shape[1]
    axes, variance, rows = np.eye(columns)[:2], None, len(vectors)
    if columns > 2:
        rows = max(2, max_values // columns)
        sample = vectors.take(spread(len(vectors), rows)).astype(np.float64) - mean
        axes, variance = principal_axes(sample)
        rows = len(sample)
    centre = mean.astype(vectors.dtype) if columns > 2 else np.zeros(columns, vectors.dtype)
    stride = max(1, -(-len(vectors) // max_points))
    points = np.zeros((2, -(-len(vectors) // stride)), np.float32)
    for first, chunk in vectors.chunks():
        begin = -(-first // stride)
        part = chunk[begin * stride - first :: stride]
        # Centred first: a mean that is large would lose digits in float32.
        projected = (part - centre) @ axes.T.astype(vectors.dtype)
        points[: len(axes), begin : begin + len(part)] = projected.T
    return Projection(points[0], points[1], stride, variance, rows, norms)


def principal_axes(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Return two axes of norm 1, and the share of the variance along each.

    The products of the columns and of the rows have the same values; the fewer are computed.

    Args:
        rows: Vectors with a mean of zero.
    """
    is_wide = rows.shape[1] > rows.shape[0]
    products = rows @ rows.T if is_wide else rows.T @ rows
    values, found = np.linalg.eigh(products)
    found = found[:, ::-1][:, :2].T
    axes = np.zeros((2, rows.shape[1]))
    axes[: len(found)] = found @ rows if is_wide else found
    axes /= np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    axes[axes[np.arange(2), np.abs(axes).argmax(1)] < 0] *= -1  # the largest is positive
    shares, total = np.zeros(2), np.trace(products)
    if total > 0:
        shares[: len(values)] = np.clip(values[::-1][:2] / total, 0, 1)
    return axes, (float(shares[0]), float(shares[1]))


def spread(rows: int, most: int) -> Ids:
    """Return all of some rows, or `most` of them at equal distances.

    >>> spread(10, 4)
    array([0, 2, 5, 7])
    """
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    return np.arange(most, dtype=np.int64) * rows // most


def _norms_and_mean(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the norm of every vector, and the mean; raise MetricError if a value is not valid."""
    norms = np.zeros(len(vectors), np.float32)
    total = np.zeros(vectors.shape[1])
    invalid: list[NDArray[np.intp]] = []
    for first, chunk in vectors.chunks():
        is_valid = (chunk.min(1) >= -MAX_VALUE) & (chunk.max(1) <= MAX_VALUE)  # false for nan
        if not is_valid.all():
            invalid.append(np.flatnonzero(~is_valid) + first)
        elif not invalid:
            norms[first : first + len(chunk)] = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
            total += chunk.sum(0, dtype=np.float64)
    if invalid:
        fields = {"path": vectors.path} if vectors.path else {"option": "embeddings"}
        raise invalid_rows(np.concatenate(invalid), len(vectors), **fields)
    return norms, total / max(1, len(vectors))


class Embeddings:
    """One vector for each example of a split.

    Args:
        values: An array, or the path of a ``.npy`` file, with a row per example.
        split: Name of the split.
        examples: Number of examples of the split.
        max_points: Maximum number of points.
        max_compared: Maximum number of examples whose labels are compared.
        chunk_bytes: Approximate number of bytes of the vectors that are read at a time.

    Raises:
        MetricError: If it is not a matrix of floats with a row per example.
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
        self.vectors = Vectors(values, chunk_bytes=chunk_bytes)
        self.points, self.dimensions = self.vectors.shape
        self._max_points = max_points
        self._max_compared = max_compared
        self._projection: Projection | None = None
        self._lock = threading.Lock()
        if self.points != examples:
            self.close()
            raise MetricError(
                f"it has {self.points:,} rows, but split {split!r} has {examples:,} examples; "
                "must have a row per example, in their order",
                path=self.vectors.path,
                option=None if self.vectors.path else "embeddings",
            )

    @classmethod
    def of(cls, session: Session, values: Any, split: str | None = None) -> Embeddings:
        """Return the embeddings of a split of a session, by default of the first one."""
        if not session.splits:
            raise MetricError("the dataset has no splits", option="embeddings")
        name = session.splits[0] if split is None else split
        return cls(values, name, len(session.open(name)))

    def close(self) -> None:
        """Close the file."""
        self.vectors.close()

    @property
    def is_cosine(self) -> bool:
        """Whether similarities are cosines; otherwise they are distances."""
        return self.dimensions > 2

    def describe(self, dataset: Dataset) -> dict[str, Any]:
        """Return the size, and the features to colour points by."""
        kinds = ("class", "string", "bytes", "number")
        names = [name for name, kind in dataset.features.items() if feature_kind(kind) in kinds]
        return {
            "split": self.split,
            "points": self.points,
            "dimensions": self.dimensions,
            "features": names,
        }

    def projection(self) -> Projection:
        """Return the points; they are computed on first use.

        Raises:
            MetricError: If a vector has values that are not finite.
        """
        with self._lock:
            if self._projection is None:
                self._projection = project(self.vectors, max_points=self._max_points)
            return self._projection

    def neighbours(self, number: int, count: int) -> Iterator[tuple[int, Ids, NDArray[np.float64]]]:
        """Yield the number of examples that were compared, and the nearest ones of them.

        Args:
            number: The example.
            count: Number of neighbours.

        Yields:
            The number, ids and cosines, or negative distances, the most similar first.
        """
        norms = self.projection().norms
        query = self.vectors.rows(number, number + 1)
        ids, values = np.zeros(0, np.int64), np.zeros(0)
        for first, chunk in self.vectors.chunks():
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
            ids = np.concatenate([ids, best + first])
            values = np.concatenate([values, found[best]])
            order = np.lexsort((ids, -values))[:count]
            ids, values = ids[order], values[order]
            yield end, ids, values

    def compared(self, dataset: Dataset) -> tuple[Ids, NDArray[Any], NDArray[Any] | None]:
        """Return the examples whose labels are compared, their vectors, and the bias of each."""
        self.projection()  # values are checked
        row_bytes = self.dimensions * self.vectors.dtype.itemsize
        most = max(2, min(self._max_compared, MAX_COMPARED_BYTES // row_bytes))
        ids = np.arange(self.points)
        if self.points > most:
            ids = sample_by_class(dataset, most)
        vectors = self.vectors.take(ids)
        if self.is_cosine:
            return ids, normalize(vectors), None
        vectors = vectors.astype(np.float64)
        vectors -= vectors.mean(0) if len(vectors) else 0
        return ids, vectors, (vectors * vectors).sum(1) * -0.5  # as in covey.metrics


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
    parts = [np.zeros(0, np.int64)]
    for position in chosen.tolist():
        records = classes.records(position)
        parts.append(records[spread(len(records), per_class)])
    return np.sort(np.concatenate(parts)[:most])


# Requests.


def _find(session: Session) -> tuple[Embeddings, Dataset]:
    if session.embeddings is None:
        raise RequestError("there are no embeddings; `covey view --embeddings` shows them", 404)
    return session.embeddings, session.open(session.embeddings.split)


def points(session: Session) -> dict[str, Any]:
    """Return the points, and the position of the class of each."""
    embeddings, dataset = _find(session)
    found = embeddings.projection()
    ids = np.arange(len(found.x)) * found.stride
    positions = np.full(len(ids), NO_CLASS, np.uint32)
    if dataset.label is not None:
        positions[:] = class_positions(dataset, ids)
    return {
        "split": embeddings.split,
        "label": dataset.label,
        "total": embeddings.points,
        "stride": found.stride,
        "dimensions": embeddings.dimensions,
        "variance": found.variance,
        "axes_rows": found.rows,
        "is_cosine": embeddings.is_cosine,
        "x": found.x,
        "y": found.y,
        "position": positions,
    }


def colours(session: Session, feature: str) -> dict[str, Any]:
    """Return a code for the value of a feature of each point, and the names of the codes.

    Values are named by their frequency; floats with many values have ranges.
    """
    embeddings, dataset = _find(session)
    if feature not in embeddings.describe(dataset)["features"]:
        raise RequestError(f"points have no colours by {feature[:100]!r}", 404)
    ids = np.arange(len(embeddings.projection().x)) * embeddings.projection().stride
    kind, features = dataset.features[feature], dataset.features.select([feature])
    values: list[Any] = []
    for begin in range(0, len(ids), _READ_EXAMPLES):
        columns = dataset.decode(features, ids[begin : begin + _READ_EXAMPLES])
        column = features.find(columns, feature)
        values += column.tolist() if isinstance(column, np.ndarray) else list(column)
    frequent = Counter(values).most_common(MAX_NAMES + 1)
    if isinstance(next(iter(values), None), float) and len(frequent) > MAX_NAMES:
        return _ranges(np.array(values))
    named = {value: code for code, (value, _) in enumerate(frequent[:MAX_NAMES])}
    labels = kind.names if isinstance(kind, ClassLabel) and kind.names else None
    return {
        "code": np.array([named.get(value, NO_NAME) for value in values], np.uint8),
        "names": [
            labels[each] if labels and 0 <= each < len(labels) else _name(each) for each in named
        ],
    }


def _name(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _ranges(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return codes of ranges with about as many values each; NaN has none."""
    known = values[np.isfinite(values)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, _RANGES + 1)))
    codes = np.clip(np.searchsorted(edges, values, "right") - 1, 0, max(0, len(edges) - 2))
    codes = np.where(np.isfinite(values), codes, NO_NAME).astype(np.uint8)
    names = [f"{low:.4g} to {high:.4g}" for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return {"code": codes, "names": names}


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
        yield {
            "neighbours": [
                {"id": each, name: sign * value, "class": position}
                for each, value, position in zip(
                    ids.tolist(), values.tolist(), classes[:-1], strict=True
                )
            ],
            "class": classes[-1],
            "scanned": scanned,
            "total": embeddings.points,
        }


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
    every = np.arange(total)
    blocks = similarity_blocks(
        vectors, vectors, every, bias=bias, is_same=True, memory_limit=_BLOCK_BYTES
    )
    for part, similarities in blocks:
        nearest = largest(similarities, width)[1]
        own = positions[part]
        other, most, same = majority(positions[nearest], own)
        rows = [
            {
                "id": ids[part[row]],
                "class": own[row],
                "other": other[row],
                "share": most[row] / width,
                "neighbours": ids[nearest[row]].tolist(),
            }
            for row in np.flatnonzero(most > same).tolist()
        ]
        scanned = int(part[-1]) + 1
        yield {"rows": rows, "agreeing": len(part) - len(rows), "scanned": scanned, **about}
