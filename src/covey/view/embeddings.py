"""Embeddings of the examples of a split: points, nearest neighbours, labels that disagree.

Vectors of two columns are points, and are compared by Euclidean distance; others are projected to
two dimensions, and are compared by cosine similarity in all dimensions. Classes are positions in
``ds.classes``, as in the class table of the page.

Nothing of a scan is kept between requests: a request compares for `scan_s` seconds, and returns
what it found and a cursor; the page merges the results.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import MetricError
from covey.metrics import largest, majority, normalize, similarity_blocks
from covey.view.messages import Columns, Query, RequestError, Response, json_response
from covey.view.projection import MAX_POINTS, Projection, project, spread
from covey.view.vectors import CHUNK_BYTES, Vectors

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.view.server import Handler
    from covey.view.session import Session

NO_CLASS = 0xFFFFFFFF
"""Position of the class of an example without a label."""

MAX_COMPARED = 20_000
"""Maximum number of examples whose labels are compared with those of their neighbours."""

MAX_COMPARED_BYTES = 64 << 20
"""Maximum number of bytes of their vectors."""

SCAN_S = 0.3
"""Time that a request compares for, in seconds."""

DEFAULT_NEIGHBOURS = 10
MAX_NEIGHBOURS = 100

# Examples of a class in a sample: as many as a neighbourhood needs for a majority.
_MIN_PER_CLASS = 2 * DEFAULT_NEIGHBOURS
_BLOCK_BYTES = 24 << 20


@dataclass(frozen=True, eq=False)
class Compared:
    """The examples whose labels are compared."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    vectors: NDArray[Any]
    """Of norm 1 if similarities are cosines."""
    bias: NDArray[Any] | None
    is_sample: bool


class Embeddings:
    """One vector for each example of a split.

    Args:
        values: An array, or the path of a ``.npy`` file, with a row per example.
        split: Name of the split.
        examples: Number of examples of the split.
        max_points: Maximum number of points.
        max_compared: Maximum number of examples whose labels are compared.
        chunk_bytes: Approximate number of bytes of the vectors that are read at a time.
        scan_s: Time that a request compares for, in seconds.

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
        scan_s: float = SCAN_S,
    ) -> None:
        self.split = split
        self.vectors = Vectors(values, chunk_bytes=chunk_bytes)
        self.points, self.dimensions = self.vectors.shape
        self.scan_s = scan_s
        self._max_points = max_points
        self._max_compared = max_compared
        self._projection: Projection | None = None
        self._compared: Compared | None = None
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
        if split is None and not session.splits:
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

    def projection(self) -> Projection:
        """Return the points; they are computed on first use.

        Raises:
            MetricError: If a vector has values that are not finite.
        """
        with self._lock:
            if self._projection is None:
                self._projection = project(self.vectors, max_points=self._max_points)
            return self._projection

    def neighbours(
        self, number: int, count: int, begin: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], int | None]:
        """Return the ids of the nearest examples, their similarities, and a cursor.

        Args:
            number: The example.
            count: Number of neighbours.
            begin: The first example to compare with: the cursor of the previous call.

        Returns:
            Ids and cosines, or negative distances, the most similar first; and the cursor for the
            next call, None if all examples were compared.
        """
        deadline = time.monotonic() + self.scan_s
        norms = self.projection().norms
        query = self.vectors.rows(number, number + 1)
        ids, values = np.zeros(0, np.int64), np.zeros(0)
        for first, chunk in self.vectors.chunks(begin):
            if self.is_cosine:
                found = _cosines(query, chunk, float(norms[number]), norms[first:])
            else:
                found = -np.linalg.norm(chunk.astype(np.float64) - query, axis=1)
            if first <= number < first + len(chunk):
                found[number - first] = -np.inf
            best = largest(found[None], min(count, len(found)))[1][0]
            ids = np.concatenate([ids, best + first])
            values = np.concatenate([values, found[best]])
            order = np.lexsort((ids, -values))[:count]
            ids, values = ids[order], values[order]
            end = first + len(chunk)
            if time.monotonic() > deadline and end < self.points:
                return *_finite(ids, values), end
        return *_finite(ids, values), None

    def compared(self, dataset: Dataset) -> Compared:
        """Return the examples whose labels are compared; they are read on first use."""
        self.projection()  # values are checked
        with self._lock:
            if self._compared is None:
                self._compared = self._read_compared(dataset)
            return self._compared

    def _read_compared(self, dataset: Dataset) -> Compared:
        row_bytes = self.dimensions * self.vectors.dtype.itemsize
        most = max(2, min(self._max_compared, MAX_COMPARED_BYTES // row_bytes))
        is_sample = self.points > most
        if is_sample:
            ids = sample_by_class(dataset, most)
        else:
            ids = np.arange(self.points, dtype=np.int64)
        vectors = self.vectors.take(ids)
        bias = None
        if self.is_cosine:
            vectors = normalize(vectors)
        else:
            vectors = vectors.astype(np.float64)
            vectors -= vectors.mean(0) if len(vectors) else 0
            bias = (vectors * vectors).sum(1) * -0.5  # as in covey.metrics
        return Compared(ids, class_positions(dataset, ids), vectors, bias, is_sample)

    def disagreements(
        self, dataset: Dataset, count: int, begin: int = 0
    ) -> tuple[list[dict[str, Any]], int, int]:
        """Return examples whose neighbours have another class more often than theirs.

        Args:
            dataset: The split.
            count: Number of neighbours.
            begin: The first of the compared examples: the cursor of the previous call.

        Returns:
            A row per example: its id, its class, the most frequent class of its neighbours, the
            share of the neighbours of that class, and their ids, the nearest first. The number of
            examples in this scan whose own class is as frequent, and where the scan stopped.
        """
        deadline = time.monotonic() + self.scan_s
        compared = self.compared(dataset)
        total = len(compared.ids)
        width = min(count, total - 1)
        if width < 1:
            return [], total, total
        rows: list[dict[str, Any]] = []
        agreeing, end = 0, begin
        blocks = similarity_blocks(
            compared.vectors,
            compared.vectors,
            np.arange(begin, total),
            bias=compared.bias,
            is_same=True,
            memory_limit=_BLOCK_BYTES,
        )
        for part, similarities in blocks:
            nearest = largest(similarities, width)[1]
            own = compared.positions[part]
            other, most, same = majority(compared.positions[nearest], own)
            differs = most > same
            agreeing += int((~differs).sum())
            for row in np.flatnonzero(differs).tolist():
                rows.append(
                    {
                        "id": compared.ids[part[row]],
                        "class": own[row],
                        "other": other[row],
                        "share": most[row] / width,
                        "neighbours": compared.ids[nearest[row]].tolist(),
                    }
                )
            end = int(part[-1]) + 1
            if time.monotonic() > deadline:
                break
        return rows, agreeing, end


def _cosines(
    query: NDArray[Any], chunk: NDArray[Any], norm: float, norms: NDArray[np.float32]
) -> NDArray[np.float64]:
    blocks = similarity_blocks(query, chunk, np.zeros(1, np.int64))
    _, products = next(blocks)
    scale = np.maximum(norms[: len(chunk)].astype(np.float64) * norm, np.finfo(np.float64).tiny)
    return np.asarray(products[0] / scale)


def _finite(
    ids: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return neighbours without the query itself."""
    is_other = np.isfinite(values)
    return ids[is_other], values[is_other]


def class_positions(dataset: Dataset, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position in ``dataset.classes`` of the class of some examples."""
    return np.searchsorted(dataset.classes.labels, dataset.labels_of(ids)).astype(np.int64)


def sample_by_class(dataset: Dataset, most: int) -> NDArray[np.int64]:
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


def point_positions(dataset: Dataset, stride: int) -> NDArray[np.uint32]:
    """Return the position of the class of every point."""
    points = -(-len(dataset) // stride)
    found = np.full(points, NO_CLASS, np.uint32)
    if dataset.label is None:
        return found
    rows = 1 << 18
    for begin in range(0, points, rows):
        ids = np.arange(begin, min(begin + rows, points), dtype=np.int64) * stride
        found[begin : begin + len(ids)] = class_positions(dataset, ids)
    return found


# Requests.


def _find(session: Session) -> tuple[Embeddings, Dataset]:
    if session.embeddings is None:
        raise RequestError("there are no embeddings; `covey view --embeddings` shows them", 404)
    return session.embeddings, session.open(session.embeddings.split)


def _points(session: Session, query: Query) -> Response:
    embeddings, dataset = _find(session)
    points = embeddings.projection()
    columns = Columns(
        {"x": points.x, "y": points.y, "position": point_positions(dataset, points.stride)},
        {
            "split": embeddings.split,
            "label": dataset.label,
            "total": embeddings.points,
            "stride": points.stride,
            "dimensions": embeddings.dimensions,
            "variance": points.variance,
            "axes_rows": points.rows,
            "is_cosine": embeddings.is_cosine,
        },
    )
    return columns.response()


def _neighbours(session: Session, query: Query) -> Response:
    embeddings, dataset = _find(session)
    number = query.integer("id", high=embeddings.points - 1)
    count = query.integer("k", DEFAULT_NEIGHBOURS, low=1, high=MAX_NEIGHBOURS)
    begin = query.integer("cursor", 0, high=embeddings.points)
    ids, values, cursor = embeddings.neighbours(number, count, begin)
    classes: list[int | None] = [None] * (len(ids) + 1)
    if dataset.label is not None:
        classes = class_positions(dataset, np.append(ids, number)).tolist()
    name, sign = ("similarity", 1) if embeddings.is_cosine else ("distance", -1)
    return json_response(
        {
            "neighbours": [
                {"id": each, name: sign * value, "class": position}
                for each, value, position in zip(
                    ids.tolist(), values.tolist(), classes[:-1], strict=True
                )
            ],
            "class": classes[-1],
            "cursor": cursor,
            "scanned": embeddings.points if cursor is None else cursor,
            "total": embeddings.points,
        }
    )


def _disagreements(session: Session, query: Query) -> Response:
    embeddings, dataset = _find(session)
    if dataset.label is None:
        raise RequestError("the dataset has no label to compare")
    count = query.integer("k", DEFAULT_NEIGHBOURS, low=1, high=MAX_NEIGHBOURS)
    begin = query.integer("cursor", 0, high=embeddings.points)
    rows, agreeing, end = embeddings.disagreements(dataset, count, begin)
    compared = embeddings.compared(dataset)
    total = len(compared.ids)
    return json_response(
        {
            "rows": rows,
            "agreeing": agreeing,
            "scanned": min(end, total),
            "total": total,
            "sampled": compared.is_sample,
            "cursor": end if end < total else None,
        }
    )


ROUTES: dict[str, Handler] = {
    "/api/points": _points,
    "/api/neighbours": _neighbours,
    "/api/disagreements": _disagreements,
}
