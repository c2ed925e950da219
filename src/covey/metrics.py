"""Retrieval metrics of embeddings: recall@K, R-precision and MAP@R.

Every example is a query, and all others are its references; or other examples are the references.
A reference is relevant if it has the label of the query. All references are compared, in blocks of
queries whose size bounds the memory.

An irrelevant reference that is as similar as a relevant one ranks before it. The result therefore
does not depend on the order of the examples, and embeddings that are all equal have a recall of 0.

Embeddings are arrays of numpy, PyTorch or JAX, which are compared on their own device; TensorFlow
tensors are converted to numpy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from covey.errors import MetricError, checks_keywords

if TYPE_CHECKING:
    from typing_extensions import Unpack

Similarity = Literal["cosine", "euclidean", "dot"]


class RetrievalKeywords(TypedDict, total=False):
    """Keyword arguments of all metrics, which :func:`retrieval_metrics` documents."""

    references: Any
    reference_labels: Any
    similarity: Similarity
    memory_limit: int


_OPTIONS = tuple(RetrievalKeywords.__annotations__)

DEFAULT_MEMORY_LIMIT = 256 << 20
MAX_VALUE = 1e15
"""Limit of absolute values: sums of their squares are finite in float32."""
_MAX_LISTED_ROWS = 10
# Bytes of a query and a reference in a block: similarities, masks, and copies of them.
_BYTES_PER_PAIR = 20


class Arrays(Protocol):
    """Operations on the arrays of a framework; rows are queries, columns are references."""

    def embeddings(self, values: Any) -> Any:
        """Return embeddings as a matrix of floats; float16 and integers become float32."""
        ...

    def integers(self, values: NDArray[np.int64]) -> Any:
        """Return integers below 2**31 as an array on the device of the embeddings."""
        ...

    def normalize(self, embeddings: Any) -> Any:
        """Return rows of norm 1; rows of zeros stay zeros."""
        ...

    def mask(self, values: Any, keep: Any) -> Any:
        """Return `values`, with -inf where `keep` is false."""
        ...

    def exclude(self, values: Any, columns: Any) -> Any:
        """Return `values`, with -inf in one column of each row."""
        ...

    def maximum(self, values: Any) -> Any:
        """Return the maximum of each row."""
        ...

    def largest(self, values: Any, count: int) -> Any:
        """Return the largest values of each row, in descending order."""
        ...

    def count_at_least(self, values: Any, thresholds: Any, most: int) -> Any:
        """Return, for each threshold, how many values of its row are not smaller, up to `most`."""
        ...

    def to_numpy(self, values: Any) -> NDArray[Any]:
        """Return an array of numpy."""
        ...


@dataclass(frozen=True, slots=True)
class RetrievalMetrics:
    """Results of :func:`retrieval_metrics`, means over the queries."""

    recall: dict[int, float]
    """Fraction of the queries with a relevant reference among the K most similar, by K."""
    r_precision: float
    """Fraction of relevant references among the R most similar; R is their number."""
    map_at_r: float
    """Mean of the precision at each relevant one of the R most similar references."""
    queries: int
    """Number of queries that have a relevant reference; others are not counted."""


@checks_keywords(_OPTIONS)
def recall_at_k(
    embeddings: Any,
    labels: Any,
    ks: Iterable[int] = (1, 5, 10),
    **options: Unpack[RetrievalKeywords],
) -> dict[int, float]:
    """Return the fraction of queries with a relevant reference among the K most similar.

    Args:
        embeddings: Matrix with a row per query.
        labels: Label of each row: integers or strings.
        ks: Values of K.
        options: Options of :func:`retrieval_metrics`.

    >>> points = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.4]])
    >>> recall_at_k(points, ["owl", "owl", "wren", "wren"], ks=(1, 2))
    {1: 0.75, 2: 0.75}
    """
    queries = _Queries.parse(embeddings, labels, **options)
    limits = _parse_ks(ks)
    found = np.concatenate([np.zeros(0, np.int64), *queries.map(_best_rank)])
    if not len(found):
        raise _no_queries()
    return {k: float((found < k).mean()) for k in limits}


@checks_keywords(_OPTIONS)
def r_precision(embeddings: Any, labels: Any, **options: Unpack[RetrievalKeywords]) -> float:
    """Return the mean R-precision.

    Args:
        embeddings: Matrix with a row per query.
        labels: Label of each row: integers or strings.
        options: Options of :func:`retrieval_metrics`.
    """
    return retrieval_metrics(embeddings, labels, (), **options).r_precision


@checks_keywords(_OPTIONS)
def map_at_r(embeddings: Any, labels: Any, **options: Unpack[RetrievalKeywords]) -> float:
    """Return the mean average precision at R.

    Args:
        embeddings: Matrix with a row per query.
        labels: Label of each row: integers or strings.
        options: Options of :func:`retrieval_metrics`.
    """
    return retrieval_metrics(embeddings, labels, (), **options).map_at_r


@checks_keywords(_OPTIONS)
def retrieval_metrics(
    embeddings: Any,
    labels: Any,
    ks: Iterable[int] = (1, 5, 10),
    **options: Unpack[RetrievalKeywords],
) -> RetrievalMetrics:
    """Return recall@K, R-precision and MAP@R.

    Args:
        embeddings: Matrix with a row per query.
        labels: Label of each row: integers or strings.
        ks: Values of K.
        options: ``references`` and ``reference_labels``: embeddings and labels of the references
            (default: the other queries). ``similarity``: ``"cosine"`` (default), ``"euclidean"``
            (the smallest distance is the most similar) or ``"dot"``. ``memory_limit``: approximate
            number of bytes in use at a time, in addition to the embeddings (default: 256 MiB).

    Raises:
        MetricError: If an argument is not valid, an embedding has a value that is nan, infinite or
            above 1e15, or no query has a relevant reference.

    >>> points = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.4]])
    >>> retrieval_metrics(points, ["owl", "owl", "wren", "wren"], ks=(1,))
    RetrievalMetrics(recall={1: 0.75}, r_precision=0.75, map_at_r=0.75, queries=4)
    """
    limits = _parse_ks(ks)
    queries = _Queries.parse(embeddings, labels, **options)
    most = max(limits, default=1)
    parts = list(queries.map(lambda block: _precisions(block, most)))
    if not parts:
        raise _no_queries()
    first, precision, average = np.concatenate(parts, axis=1)
    return RetrievalMetrics(
        recall={k: float((first < k).mean()) for k in limits},
        r_precision=float(precision.mean()),
        map_at_r=float(average.mean()),
        queries=len(first),
    )


# Blocks of queries.


@dataclass(frozen=True, slots=True)
class _Block:
    """Some queries that have relevant references, and their similarities to all references."""

    arrays: Arrays
    similarities: Any
    relevant: Any
    """Similarities to relevant references, -inf for others."""
    is_other: Any
    """Whether the label differs from that of the query."""
    counts: NDArray[np.int64]
    """Number of relevant references of each query."""


def _best_rank(block: _Block) -> NDArray[np.int64]:
    """Return the rank of the first relevant reference of each query, from 0."""
    best = block.arrays.maximum(block.relevant)
    before = (block.similarities >= best[:, None]) & block.is_other
    return block.arrays.to_numpy(before.sum(1)).astype(np.int64)


def _precisions(block: _Block, most: int) -> NDArray[np.float64]:
    """Return the rank of the first relevant reference, the R-precision, and the AP at R."""
    arrays, counts = block.arrays, block.counts
    size = int(counts.max())
    relevant = arrays.largest(block.relevant, size)
    others = arrays.mask(block.similarities, block.is_other)
    width = min(max(size, most), others.shape[1])
    before = arrays.to_numpy(arrays.count_at_least(others, relevant, width)).astype(np.int64)
    order = np.arange(size)
    ranks = order + before
    is_counted = (order < counts[:, None]) & (ranks < counts[:, None])
    precision = is_counted.sum(1) / counts
    average = (is_counted * (order + 1) / (ranks + 1)).sum(1) / counts
    return np.stack([before[:, 0], precision, average])


@dataclass(frozen=True, slots=True)
class _Queries:
    """Validated arguments of a metric."""

    arrays: Arrays
    queries: Any
    references: Any
    bias: Any
    """Added to the similarities of each reference; None if it is zero."""
    query_ids: NDArray[np.int64]
    reference_ids: NDArray[np.int64]
    is_same: bool
    """Whether the queries are the references."""
    memory_limit: int

    @classmethod
    def parse(
        cls,
        embeddings: Any,
        labels: Any,
        *,
        references: Any = None,
        reference_labels: Any = None,
        similarity: Similarity = "cosine",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> _Queries:
        if similarity not in ("cosine", "euclidean", "dot"):
            raise MetricError(
                option="similarity", found=similarity, allowed="'cosine', 'euclidean' or 'dot'"
            )
        if type(memory_limit) is not int or memory_limit < 1:
            raise MetricError(option="memory_limit", found=memory_limit, allowed="an integer >= 1")
        if (references is None) != (reference_labels is None):
            raise MetricError(
                "references and reference_labels must be given together", option="references"
            )
        is_same = references is None
        arrays = _arrays_of(embeddings)
        queries = _check(arrays, "embeddings", embeddings)
        names = [_check_labels("labels", labels, len(queries))]
        others = queries
        if not is_same:
            others = _check(arrays, "references", references)
            if others.shape[1] != queries.shape[1]:
                raise MetricError(
                    f"references have {others.shape[1]} columns, embeddings {queries.shape[1]}",
                    option="references",
                )
            names.append(_check_labels("reference_labels", reference_labels, len(others)))
            if names[0].dtype.kind != names[1].dtype.kind:
                raise MetricError(
                    f"labels are of dtype {names[0].dtype}, reference_labels of {names[1].dtype}",
                    option="reference_labels",
                )
        ids = np.unique(np.concatenate(names), return_inverse=True)[1].astype(np.int64)
        query_ids, reference_ids = ids[: len(queries)], ids[0 if is_same else len(queries) :]
        bias = None
        if similarity == "cosine":
            queries = arrays.normalize(queries)
            others = queries if is_same else arrays.normalize(others)
        elif similarity == "euclidean":
            # |q - r|^2 = |q|^2 - 2 (q r - |r|^2 / 2); |q| is the same for all references.
            bias = (others * others).sum(1) * -0.5
        return cls(arrays, queries, others, bias, query_ids, reference_ids, is_same, memory_limit)

    def map(self, function: Callable[[_Block], NDArray[Any]]) -> Iterable[NDArray[Any]]:
        """Yield the result of a function for each block of queries with relevant references."""
        totals = np.bincount(self.reference_ids, minlength=int(self.query_ids.max(initial=-1)) + 1)
        counts = totals[self.query_ids] - self.is_same
        counted = np.flatnonzero(counts)
        reference_ids = self.arrays.integers(self.reference_ids)
        blocks = similarity_blocks(
            self.arrays,
            self.queries,
            self.references,
            counted,
            bias=self.bias,
            memory_limit=self.memory_limit,
        )
        for part, chosen, similarities in blocks:
            query_ids = self.arrays.integers(self.query_ids[part])
            is_other = query_ids[:, None] != reference_ids[None, :]
            relevant = self.arrays.mask(similarities, ~is_other)
            if self.is_same:
                relevant = self.arrays.exclude(relevant, chosen)
            yield function(_Block(self.arrays, similarities, relevant, is_other, counts[part]))


def similarity_blocks(
    arrays: Arrays,
    queries: Any,
    references: Any,
    rows: NDArray[np.int64],
    *,
    bias: Any = None,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Iterator[tuple[NDArray[np.int64], Any, Any]]:
    """Yield blocks of queries: their rows, the same on the device, and their similarities.

    Args:
        arrays: Operations on the arrays.
        queries: Matrix with a row per query.
        references: Matrix with a row per reference.
        rows: The rows of `queries` to compare.
        bias: Added to the similarities of each reference; None for zero.
        memory_limit: Approximate number of bytes of a block.
    """
    size = max(1, memory_limit // (max(1, len(references)) * _BYTES_PER_PAIR))
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        chosen = arrays.integers(part)
        similarities = queries[chosen] @ references.T
        if bias is not None:
            similarities = similarities + bias[None, :]
        yield part, chosen, similarities


def _arrays_of(embeddings: Any) -> Arrays:
    """Return the operations for the framework of an array."""
    framework = type(embeddings).__module__.partition(".")[0]
    if framework == "torch":
        adapter: Any = importlib.import_module("covey.adapters.torch.metrics")
        return adapter.TorchArrays(embeddings.device)  # type: ignore[no-any-return]
    if framework in ("jax", "jaxlib"):
        adapter = importlib.import_module("covey.adapters.jax_metrics")
        return adapter.JaxArrays()  # type: ignore[no-any-return]
    return NumpyArrays()


def _check(arrays: Arrays, option: str, values: Any) -> Any:
    """Return embeddings as a matrix of values whose similarities are finite."""
    try:
        matrix = arrays.embeddings(values)
    except (TypeError, ValueError) as error:
        raise MetricError(f"it cannot be converted to an array: {error}", option=option) from None
    if matrix.ndim != 2:
        raise MetricError(
            f"its shape is {tuple(matrix.shape)}; must be a row per example", option=option
        )
    is_valid = arrays.to_numpy((abs(matrix) <= MAX_VALUE).all(1))  # false for nan
    if not is_valid.all():
        raise invalid_rows(np.flatnonzero(~is_valid), len(matrix), option=option)
    return matrix


def invalid_rows(invalid: NDArray[np.intp], rows: int, **fields: Any) -> MetricError:
    """Return the error for embeddings whose similarities may not be finite.

    Args:
        invalid: The rows with values that are nan, infinite or above :data:`MAX_VALUE`.
        rows: The number of all rows.
        fields: Fields of the error.
    """
    few = ", ".join(map(str, invalid[:_MAX_LISTED_ROWS]))
    more = ", ..." if len(invalid) > _MAX_LISTED_ROWS else ""
    return MetricError(
        f"{len(invalid):,} of {rows:,} rows have values that are nan, infinite or above "
        f"{MAX_VALUE:g}: {few}{more}",
        **fields,
    )


def _check_labels(option: str, labels: Any, rows: int) -> NDArray[Any]:
    if type(labels).__module__.partition(".")[0] == "torch":
        labels = labels.detach().cpu()
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # Keras has labels of shape (n, 1)
    if array.dtype.kind == "O":
        array = np.asarray(array.tolist())
    if array.shape != (rows,) or array.dtype.kind not in "biuUS":
        raise MetricError(
            f"it has dtype {array.dtype} and shape {array.shape}; must be {rows} integers or "
            "strings, a label per row",
            option=option,
        )
    return array.astype(np.int64) if array.dtype.kind in "biu" else array


def _parse_ks(ks: Iterable[int]) -> tuple[int, ...]:
    listed = tuple(ks) if isinstance(ks, Iterable) else (ks,)
    for k in listed:
        if not isinstance(k, (int, np.integer)) or k < 1:
            raise MetricError(option="ks", found=k, allowed="integers >= 1")
    return tuple(map(int, listed))


def _no_queries() -> MetricError:
    return MetricError("no query has a reference with the same label", option="labels")


class NumpyArrays:
    """Operations on arrays of numpy."""

    def embeddings(self, values: Any) -> Any:
        array = np.asarray(values)
        is_narrow = array.dtype == np.float16 or array.dtype.kind in "biu"
        return array.astype(np.float32) if is_narrow else array

    def integers(self, values: NDArray[np.int64]) -> Any:
        return values.astype(np.int32)

    def normalize(self, embeddings: Any) -> Any:
        norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings / np.maximum(norms, np.finfo(embeddings.dtype).tiny)

    def mask(self, values: Any, keep: Any) -> Any:
        return np.where(keep, values, np.array(-np.inf, values.dtype))

    def exclude(self, values: Any, columns: Any) -> Any:
        values[np.arange(len(values)), columns] = -np.inf
        return values

    def maximum(self, values: Any) -> Any:
        return values.max(1)

    def largest(self, values: Any, count: int) -> Any:
        result = np.full((len(values), count), -np.inf, values.dtype)
        for row, out in zip(values, result, strict=True):
            found = _largest(row[row > -np.inf], count)
            out[: len(found)] = found[::-1]
        return result

    def count_at_least(self, values: Any, thresholds: Any, most: int) -> Any:
        result = np.empty(thresholds.shape, np.int64)
        for row, limits, out in zip(values, thresholds, result, strict=True):
            # Few values are as large as the thresholds, and only they are sorted.
            least = limits[limits > -np.inf][-1]
            found = _largest(row[row >= least], most)
            out[:] = len(found) - np.searchsorted(found, limits, side="left")
        return result

    def to_numpy(self, values: Any) -> NDArray[Any]:
        return np.asarray(values)


def _largest(values: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the largest values, in ascending order."""
    if len(values) > count:
        values = np.partition(values, len(values) - count)[len(values) - count :]
    return np.sort(values)
