"""Projection of vectors to two dimensions, by principal component analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.metrics import MAX_VALUE, invalid_rows
from covey.view.vectors import Vectors

MAX_POINTS = 2_000_000
"""Maximum number of points; of more vectors, every second, third, ... is a point."""

# Multiplications of a covariance matrix: about a second. More rows are sampled.
MAX_PRODUCTS = 1 << 35
# Columns of a covariance matrix. With more columns, products of fewer rows are used.
MAX_COVARIANCE = 2048
# Values of these rows.
_MAX_VALUES = 1 << 23


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


@dataclass(frozen=True, eq=False)
class Axes:
    """The first two principal axes of vectors."""

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]
    """A row per axis, of norm 1; its largest component is positive."""
    variance: tuple[float, float]
    """Share of the variance along each axis."""
    rows: int


def project(
    vectors: Vectors, *, max_points: int = MAX_POINTS, max_products: int = MAX_PRODUCTS
) -> Projection:
    """Return the points of vectors: two columns as they are, others on their principal axes.

    Args:
        vectors: The vectors.
        max_points: Maximum number of points.
        max_products: Maximum number of multiplications for the axes.

    Raises:
        MetricError: If a vector has values that are not finite, or too large.
    """
    norms, mean = _survey(vectors)
    columns = vectors.shape[1]
    axes = None
    if columns > 2:
        axes = principal_axes(vectors, mean, max_products=max_products)
    stride = max(1, -(-len(vectors) // max_points))
    points = np.zeros((2, -(-len(vectors) // stride)), np.float32)
    for first, chunk in vectors.chunks():
        begin = -(-first // stride)
        part = chunk[begin * stride - first :: stride]
        if axes is None:
            points[:columns, begin : begin + len(part)] = part.T
        else:
            points[:, begin : begin + len(part)] = _apply(axes, part).T
    return Projection(
        points[0],
        points[1],
        stride,
        None if axes is None else axes.variance,
        len(vectors) if axes is None else axes.rows,
        norms,
    )


def principal_axes(
    vectors: Vectors,
    mean: NDArray[np.float64],
    *,
    max_products: int = MAX_PRODUCTS,
    max_covariance: int = MAX_COVARIANCE,
) -> Axes:
    """Return the principal axes of vectors; of a sample of the rows, if there are many.

    Args:
        vectors: The vectors, of at least two columns.
        mean: Their mean.
        max_products: Maximum number of multiplications.
        max_covariance: Maximum number of columns of a covariance matrix.
    """
    columns = vectors.shape[1]
    if columns > max_covariance:
        most = min(max_covariance, max(2, _MAX_VALUES // columns))
        ids = spread(len(vectors), most)
        return _axes_of_rows(vectors.take(ids).astype(np.float64), mean)
    rows = max(1, max_products // columns**2)
    covariance = np.zeros((columns, columns))
    ids = spread(len(vectors), rows)
    is_sample = len(ids) < len(vectors)
    centre = mean.astype(vectors.dtype)
    for begin in range(0, len(ids), vectors.chunk_rows):
        end = min(begin + vectors.chunk_rows, len(ids))
        chunk = vectors.take(ids[begin:end]) if is_sample else vectors.rows(begin, end)
        chunk = chunk - centre
        covariance += chunk.T @ chunk
    values, found = np.linalg.eigh(covariance)
    return _axes(mean, found[:, ::-1][:, :2].T, values[::-1][:2], np.trace(covariance), len(ids))


def _axes_of_rows(rows: NDArray[np.float64], mean: NDArray[np.float64]) -> Axes:
    """Return the axes of a few rows, from their products with each other."""
    centred = rows - mean
    products = centred @ centred.T
    values, found = np.linalg.eigh(products)
    few = found[:, ::-1][:, :2].T @ centred
    return _axes(mean, few, values[::-1][:2], np.trace(products), len(rows))


def _axes(
    mean: NDArray[np.float64],
    axes: NDArray[np.float64],
    values: NDArray[np.float64],
    total: Any,
    rows: int,
) -> Axes:
    full = np.zeros((2, len(mean)))
    full[: len(axes)] = axes
    norms = np.linalg.norm(full, axis=1, keepdims=True)
    full /= np.maximum(norms, np.finfo(np.float64).tiny)
    largest = full[np.arange(2), np.abs(full).argmax(1)]
    full[largest < 0] *= -1
    shares = np.zeros(2)
    if total > 0:
        shares[: len(values)] = np.clip(values / total, 0, 1)
    return Axes(mean, full, (float(shares[0]), float(shares[1])), rows)


def _apply(axes: Axes, rows: NDArray[Any]) -> NDArray[Any]:
    # Centred first: a mean that is large would lose digits in float32.
    centred = rows - axes.mean.astype(rows.dtype)
    projected: NDArray[Any] = centred @ axes.axes.T.astype(rows.dtype)
    return projected


def spread(rows: int, most: int) -> NDArray[np.int64]:
    """Return all of some rows, or `most` of them at equal distances.

    >>> spread(10, 4)
    array([0, 2, 5, 7])
    """
    if rows <= most:
        return np.arange(rows, dtype=np.int64)
    return np.arange(most, dtype=np.int64) * rows // most


def _survey(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the norm of every vector, and the mean; raise MetricError if a value is not valid."""
    norms = np.zeros(len(vectors), np.float32)
    total = np.zeros(vectors.shape[1])
    invalid: list[NDArray[np.intp]] = []
    for first, chunk in vectors.chunks():
        low, high = chunk.min(1), chunk.max(1)
        is_valid = (low >= -MAX_VALUE) & (high <= MAX_VALUE)  # false for nan
        if not is_valid.all():
            invalid.append(np.flatnonzero(~is_valid) + first)
        elif not invalid:
            norms[first : first + len(chunk)] = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
            total += chunk.sum(0, dtype=np.float64)
    if invalid:
        fields = {"path": vectors.path} if vectors.path else {"option": "embeddings"}
        raise invalid_rows(np.concatenate(invalid), len(vectors), **fields)
    return norms, total / max(1, len(vectors))
