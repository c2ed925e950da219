"""Metrics of embeddings: recall@K, R-precision, MAP@R, and labels that are probably wrong.

Every example is a query, and all others are its references; or other examples are the references.
A reference is relevant if it has the label of the query. All references are compared, in blocks of
queries whose size bounds the memory.

An irrelevant reference that is as similar as a relevant one ranks before it. The result therefore
does not depend on the order of the examples, and embeddings that are all equal have a recall of 0.

Embeddings are arrays of numpy, PyTorch or JAX, which are compared on their own device; TensorFlow
tensors are converted to numpy. No framework is imported: an array exists only if its framework was
imported before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from covey.errors import MetricError, check, check_int, checks_keywords

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

_check_int = partial(check_int, error=MetricError)

DEFAULT_MEMORY_LIMIT = 256 << 20
MAX_VALUE = 1e15
"""Limit of absolute values: sums of their squares are finite in float32."""
_MAX_LISTED_ROWS = 10
# Bytes of a query and a reference in a block: similarities, masks, and copies of them.
_BYTES_PER_PAIR = 20


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


class SuspiciousLabels(NamedTuple):
    """Results of :func:`suspicious_labels`: arrays with an entry per suspicious label."""

    ids: NDArray[np.int64]
    """Rows of the embeddings; record ids, if row i is the embedding of ``ds[i]``."""
    share: NDArray[np.float64]
    """Fraction of the nearest neighbours that have another label."""
    other: NDArray[Any]
    """The most frequent label of the nearest neighbours."""


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
    limits = _check_ks(ks)
    found = np.concatenate([*starmap(_best_rank, queries.blocks())])
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
    limits = _check_ks(ks)
    queries = _Queries.parse(embeddings, labels, **options)
    most = max(limits, default=1)
    parts = starmap(partial(_precisions, most), queries.blocks())
    first, precision, average = np.concatenate([*parts], axis=1)
    return RetrievalMetrics(
        recall={k: float((first < k).mean()) for k in limits},
        r_precision=float(precision.mean()),
        map_at_r=float(average.mean()),
        queries=len(first),
    )


def suspicious_labels(
    embeddings: Any,
    labels: Any,
    k: int = 10,
    *,
    similarity: Similarity = "cosine",
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> SuspiciousLabels:
    """Return the examples whose nearest neighbours have another label more often than theirs.

    Args:
        embeddings: Matrix with a row per example.
        labels: Label of each row: integers or strings.
        k: Number of nearest neighbours.
        similarity: As for :func:`retrieval_metrics`.
        memory_limit: As for :func:`retrieval_metrics`.

    Returns:
        The ids, the largest share first. Of labels that are equally frequent, `other` is the first
        in order.

    Raises:
        MetricError: If an argument is not valid, or an embedding has a value that is nan, infinite
            or above 1e15.

    >>> points = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.1], [0.0, 1.0], [0.1, 0.9], [0.1, 0.8]])
    >>> ids, share, other = suspicious_labels(
    ...     points, ["owl", "wren", "owl", "wren", "wren", "wren"], k=2
    ... )
    >>> ids.tolist(), share.tolist(), other.tolist()
    ([1], [1.0], ['owl'])
    """
    k = _check_int("k", k, 1)
    queries = _Queries.parse(embeddings, labels, similarity=similarity, memory_limit=memory_limit)
    own = queries.query_ids
    count = min(k, len(own) - 1)
    parts = [np.zeros((3, 0), np.int64)]
    for part, similarities in queries.similarities(np.arange(len(own) if count > 0 else 0)):
        nearest = _to_numpy(largest(similarities, count)[1])
        other, most, same = majority(own[nearest], own[part])
        parts.append(np.stack([part, count - same, other])[:, most > same])
    ids, disagreeing, other = np.concatenate(parts, axis=1)
    order = np.lexsort((ids, -disagreeing))
    share = disagreeing[order] / max(1, count)
    return SuspiciousLabels(ids[order], share, queries.names[other[order]])


# Blocks of queries.


def _best_rank(
    similarities: Any, is_other: Any, relevant: Any, counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rank of the first relevant reference of each query, from 0."""
    best = _namespace(relevant).amax(relevant, 1)
    before = (similarities >= best[:, None]) & is_other
    return _to_numpy(before.sum(1)).astype(np.int64)


def _precisions(
    most: int, similarities: Any, is_other: Any, relevant: Any, counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the rank of the first relevant reference, the R-precision, and the AP at R."""
    size = int(counts.max())
    width = min(max(size, most), similarities.shape[1])
    before = _count_before(similarities, is_other, relevant, size, width)
    order = np.arange(size)
    ranks = order + before
    is_counted = (order < counts[:, None]) & (ranks < counts[:, None])
    precision = is_counted.sum(1) / counts
    average = (is_counted * (order + 1) / (ranks + 1)).sum(1) / counts
    return np.stack([before[:, 0], precision, average])


def _count_before(
    similarities: Any, is_other: Any, relevant: Any, size: int, width: int
) -> NDArray[np.int64]:
    """Return how many others, up to `width`, rank before each of the `size` best relevant ones."""
    if not isinstance(similarities, np.ndarray):
        others = _namespace(similarities).where(is_other, similarities, -np.inf)
        # The search needs ascending rows.
        return _search(-largest(others, width)[0], -largest(relevant, size)[0])
    before = np.zeros((len(similarities), size), np.int64)
    for row, is_counted, wanted, out in zip(similarities, is_other, relevant, before, strict=True):
        limits = np.sort(wanted[wanted > -np.inf])
        # Few others are as similar as a relevant reference, and only they are sorted.
        found = row[is_counted & (row >= limits[0])]
        if len(found) > width:
            found = np.partition(found, -width)[-width:]
        ranks = len(found) - np.searchsorted(np.sort(found), limits)
        out[: len(limits)] = ranks[::-1]
    return before


@dataclass(frozen=True, slots=True)
class _Queries:
    """Validated arguments of a metric."""

    queries: Any
    references: Any
    bias: Any
    """Added to the similarities of each reference; None if it is zero."""
    query_ids: NDArray[np.int64]
    reference_ids: NDArray[np.int64]
    names: NDArray[Any]
    """The label of each id."""
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
        allowed = get_args(Similarity)
        check("similarity", similarity, similarity in allowed, allowed, error=MetricError)
        _check_int("memory_limit", memory_limit, 1)
        if (references is None) != (reference_labels is None):
            raise MetricError(
                "references and reference_labels must be given together", option="references"
            )
        is_same = references is None
        queries = others = _check("embeddings", embeddings, embeddings)
        listed = [_check_labels("labels", labels, len(queries))]
        if not is_same:
            others = _check("references", references, queries)
            if others.shape[1] != queries.shape[1]:
                raise MetricError(
                    f"references have {others.shape[1]} columns, embeddings {queries.shape[1]}",
                    option="references",
                )
            dtype = _namespace(queries).result_type(queries, others)
            queries, others = (
                _namespace(queries).asarray(each, dtype=dtype) for each in (queries, others)
            )
            listed.append(_check_labels("reference_labels", reference_labels, len(others)))
            if listed[0].dtype.kind != listed[1].dtype.kind:
                raise MetricError(
                    f"labels are of dtype {listed[0].dtype}, reference_labels of {listed[1].dtype}",
                    option="reference_labels",
                )
        names, ids = np.unique(np.concatenate(listed), return_inverse=True)
        query_ids, reference_ids = ids[: len(queries)], ids[0 if is_same else len(queries) :]
        bias = None
        if similarity == "cosine":
            queries = normalize(queries)
            others = queries if is_same else normalize(others)
        elif similarity == "euclidean":
            # |q - r|^2 = |q|^2 - 2 (q r - |r|^2 / 2); |q| is the same for all references.
            bias = (others * others).sum(1) * -0.5
        return cls(queries, others, bias, query_ids, reference_ids, names, is_same, memory_limit)

    def similarities(self, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yield :func:`similarity_blocks` of some queries."""
        options = {name: getattr(self, name) for name in ("bias", "is_same", "memory_limit")}
        return similarity_blocks(self.queries, self.references, rows, **options)

    def blocks(self) -> Iterator[tuple[Any, Any, Any, NDArray[np.int64]]]:
        """Yield blocks of queries that have relevant references.

        Yields:
            Similarities to all references; whether a reference has another label; similarities to
            relevant references, -inf for others; and the number of relevant references.
        """
        counts = np.bincount(self.reference_ids, minlength=len(self.names))[self.query_ids]
        counts -= self.is_same
        if not counts.any():
            raise MetricError("no query has a reference with the same label", option="labels")
        reference_ids = _integers(self.reference_ids, self.queries)
        for part, similarities in self.similarities(np.flatnonzero(counts)):
            query_ids = _integers(self.query_ids[part], self.queries)
            is_other = query_ids[:, None] != reference_ids[None, :]
            relevant = _namespace(similarities).where(is_other, -np.inf, similarities)
            yield similarities, is_other, relevant, counts[part]


def similarity_blocks(
    queries: Any,
    references: Any,
    rows: NDArray[np.int64],
    *,
    bias: Any = None,
    is_same: bool = False,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Iterator[tuple[NDArray[np.int64], Any]]:
    """Yield blocks of queries: their rows, and their similarities.

    Args:
        queries: Matrix with a row per query.
        references: Matrix with a row per reference.
        rows: The rows of `queries` to compare.
        bias: Added to the similarities of each reference; None for zero.
        is_same: Whether the queries are the references. Their similarity to themselves is -inf.
        memory_limit: Approximate number of bytes of a block.
    """
    size = max(1, memory_limit // (max(1, len(references)) * _BYTES_PER_PAIR))
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        chosen = _integers(part, queries)
        similarities = queries[chosen] @ references.T
        if bias is not None:
            similarities = similarities + bias[None, :]
        if is_same:
            pairs = _namespace(queries).arange(len(part)), chosen
            if _is_jax(queries):
                similarities = similarities.at[pairs].set(-np.inf)
            else:
                similarities[pairs] = -np.inf
        yield part, similarities


def majority(
    neighbours: NDArray[np.int64], own: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the most frequent class of each row, its frequency, and how often `own` occurs.

    Of classes that are equally frequent, the first one is returned.

    >>> majority(np.array([[3, 1, 1, 3, 2]]), np.array([2]))
    (array([1]), array([2]), array([1]))
    """
    classes = int(neighbours.max(initial=0)) + 1
    pairs = np.arange(len(neighbours))[:, None] * classes + neighbours
    pairs, counts = np.unique(pairs, return_counts=True)
    rows, found = np.divmod(pairs, classes)
    order = np.lexsort((found, -counts, rows))
    best = order[np.flatnonzero(np.diff(rows, prepend=-1))]
    return found[best], counts[best], (neighbours == own[:, None]).sum(1)


# Checks.


def _check(option: str, values: Any, like: Any) -> Any:
    """Return embeddings as a matrix of `like`'s framework, whose similarities are finite."""
    try:
        matrix = _convert(values, like)
        functions = _namespace(matrix)
        if matrix.dtype not in (functions.float32, functions.float64):  # float16, integers
            matrix = functions.asarray(matrix, dtype=functions.float32)
    except (TypeError, ValueError) as error:
        raise MetricError(f"it cannot be converted to an array: {error}", option=option) from None
    if matrix.ndim != 2:
        raise MetricError(
            f"its shape is {tuple(matrix.shape)}; must be a row per example", option=option
        )
    is_valid = _to_numpy((abs(matrix) <= MAX_VALUE).all(1))  # false for nan
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
    array = _to_numpy(labels)
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


def _check_ks(ks: Iterable[int]) -> list[int]:
    return [_check_int("ks", k, 1) for k in (ks if isinstance(ks, Iterable) else (ks,))]


# Operations that frameworks name differently; rows are queries, columns are references.


def _is_torch(values: Any) -> bool:
    return isinstance(values, getattr(sys.modules.get("torch"), "Tensor", ()))


def _is_jax(values: Any) -> bool:
    return isinstance(values, getattr(sys.modules.get("jax"), "Array", ()))


def _namespace(values: Any) -> Any:
    """Return the module with the functions of an array: torch, jax.numpy or numpy."""
    name = "torch" if _is_torch(values) else "jax.numpy" if _is_jax(values) else "numpy"
    return sys.modules[name]


def _to_numpy(values: Any) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if _is_torch(values) else values)


def _convert(values: Any, like: Any) -> Any:
    """Return values as an array of the framework and device of `like`."""
    functions = _namespace(like)
    source = values if _namespace(values) is functions else _to_numpy(values)
    if _is_torch(like):
        # Operators of subclasses, of other packages too, may return anything.
        tensor = functions.as_tensor(source, device=like.device)
        return tensor.detach().as_subclass(functions.Tensor)
    return functions.asarray(source)


def _integers(values: NDArray[np.int64], like: Any) -> Any:
    """Return integers below 2**31: JAX has no int64 by default."""
    return _convert(values.astype(np.int32), like)


def normalize(embeddings: Any) -> Any:
    """Return rows of norm 1; rows of zeros stay zeros."""
    functions = _namespace(embeddings)
    norms = functions.linalg.norm(embeddings, None, 1, True)
    return embeddings / functions.clip(norms, functions.finfo(embeddings.dtype).tiny, None)


def largest(values: Any, count: int) -> tuple[Any, Any]:
    """Return the largest values of each row, in descending order, and their columns."""
    if _is_torch(values):
        return values.topk(count, dim=1)  # type: ignore[no-any-return]
    if _is_jax(values):
        return sys.modules["jax"].lax.top_k(values, count)  # type: ignore[no-any-return]
    columns = np.argpartition(values, -count, axis=1)[:, -count:]
    found = np.take_along_axis(values, columns, 1)
    order = np.lexsort((columns, -found), axis=1)
    return np.take_along_axis(found, order, 1), np.take_along_axis(columns, order, 1)


def _search(rows: Any, values: Any) -> NDArray[np.int64]:
    """Return how many entries of each ascending row are not larger than some values."""
    functions = _namespace(rows)
    if _is_torch(rows):
        found = functions.searchsorted(rows.contiguous(), values.contiguous(), right=True)
    else:
        found = sys.modules["jax"].vmap(partial(functions.searchsorted, side="right"))(rows, values)
    return _to_numpy(found).astype(np.int64)
