"""Examples: which ones match conditions, and summaries of their values as JSON.

A string or a number is its own summary, of a class its id and its name. Everything else is a dict
whose ``kind`` is ``"image"``, ``"audio"``, ``"bytes"``, ``"array"``, ``"ragged"`` or ``"sparse"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.schema import Audio, ClassLabel, Feature, Features, Image, Ragged, Sparse
from covey.schema.codec import row_of
from covey.schema.columns import STRINGS
from covey.schema.images import read_header
from covey.urls import shown
from covey.view import media
from covey.view.session import Ids, RequestError, Session, integer, parse_json, read_parts

MAX_FIRST = 6
"""Most values of an array that are listed."""
MAX_FOUND = 1000
"""Maximum number of ids that a search returns."""
MAX_IDS = 200
"""Maximum number of examples that are read together."""
MAX_STRING = 20_000
"""Maximum number of characters of a string."""
MAX_LISTED_STRING = 1000
"""Maximum number of characters of a string in an array."""

_MAX_READ_EXAMPLES = 64
_START_BYTES = 16

_SEARCHED_EXAMPLES = 4096


# Features.


def feature_kind(feature: Feature) -> str:
    """Return how values of a feature are displayed."""
    for kind, name in ((Image, "image"), (ClassLabel, "class"), (Audio, "audio"),
                       (Ragged, "ragged"), (Sparse, "sparse")):  # fmt: skip
        if isinstance(feature, kind):
            return name
    if media.pixels_shape(feature) is not None:
        return "image"
    if getattr(feature, "shape", ()):
        return "array"
    dtype = getattr(feature, "dtype", "")
    return {"str": "string", "bytes": "bytes"}.get(dtype, "number")


def operators_of(feature: Feature) -> tuple[str, ...]:
    """Return the operators of conditions on a feature; none for an image."""
    if isinstance(feature, Image):
        return ()
    if isinstance(feature, ClassLabel):
        return ("equals", "contains", "less", "greater")
    dtype = str(getattr(feature, "dtype", ""))
    if dtype in STRINGS:
        return ("contains", "equals")
    return ("equals", "less", "greater", *(("nan",) if dtype.startswith("float") else ()))


# Search.


@dataclass(frozen=True)
class Condition:
    """A condition on a feature. An array matches if any of its values does.

    Strings are compared without regard to case by ``contains``. A class matches by its id or by
    its name. Of a sparse tensor, the stored values are compared.
    """

    name: str
    operator: str
    value: str

    def check(self, features: Features) -> None:
        """Raise RequestError if it does not suit the feature."""
        if self.name not in features:
            raise RequestError(f"there is no feature {self.name[:100]!r}", 404)
        feature = features[self.name]
        allowed = operators_of(feature)
        if self.operator not in allowed:
            limits = f"op must be one of {', '.join(allowed)}" if allowed else "it has no search"
            raise RequestError(f"{self.name[:100]!r} is {feature.summary}; {limits}")
        if not (
            self._is_text(feature) or self.operator == "nan" or _number(self.value) is not None
        ):
            raise RequestError(f"value is {self.value[:40]!r}; must be a number")

    def _is_text(self, feature: Feature) -> bool:
        is_named = isinstance(feature, ClassLabel) and self.operator in ("contains", "equals")
        return is_named or getattr(feature, "dtype", "") in STRINGS

    def matches(self, feature: Feature, column: Any) -> NDArray[np.bool_]:
        """Return which rows of a column match."""
        values, splits = _flatten(column)
        if not self._is_text(feature):
            found = compare(values, self.operator, self.value)
        elif isinstance(feature, ClassLabel):
            labels, positions = np.unique(values, return_inverse=True)
            names = dict(enumerate(feature.names or ()))
            found = self._matches_texts([names.get(each, str(each)) for each in labels.tolist()])
            if self.operator == "equals":
                found |= labels.astype(str) == self.value
            found = found[positions]
        else:
            found = self._matches_texts(values.to_numpy((len(values.offsets) - 1,)).tolist())
        if splits is None:
            return found
        is_filled, matching = np.diff(splits) > 0, np.zeros(len(splits) - 1, bool)
        if is_filled.any():
            begins = splits[:-1][is_filled]
            matching[is_filled] = np.logical_or.reduceat(found[: splits[-1]], begins)
        return matching

    def _matches_texts(self, strings: list[Any]) -> NDArray[np.bool_]:
        wanted = self.value.casefold()
        texts = [each.decode(errors="replace") if isinstance(each, bytes) else each
                 for each in strings]  # fmt: skip
        if self.operator == "equals":
            return np.array([each == self.value for each in texts], bool)
        return np.array([wanted in each.casefold() for each in texts], bool)


def _flatten(column: Any) -> tuple[Any, NDArray[np.int64] | None]:
    """Return the values of all rows, and where each row begins; None if a row is a value."""
    if isinstance(column, SparseBatch):
        column = column.values
    splits: NDArray[np.int64] | None = None
    while isinstance(column, RaggedArray):
        splits = column.row_splits if splits is None else column.row_splits[splits]
        column = column.values
    rows = len(column)
    if isinstance(column, StringArray):
        count = len(column.offsets) - 1
    else:
        count, column = column.size, column.reshape(-1)
    width = count // max(1, rows)
    if splits is not None:
        return column, splits * width
    if width == 1 and count == rows:
        return column, None
    return column, np.arange(rows + 1, dtype=np.int64) * width


def compare(values: NDArray[Any], operator: str, text: str) -> NDArray[np.bool_]:
    """Return which numbers match.

    The value is rounded to the type of floats, so that 0.1 equals a float32 that was written as
    0.1. Integers are compared exactly.

    >>> compare(np.array([0.1, np.nan], np.float32), "equals", "0.1").tolist()
    [True, False]
    >>> compare(np.array([2, 3]), "greater", "2.5").tolist()
    [False, True]
    """
    if operator == "nan":
        return np.asarray(np.isnan(values))
    wanted: Any = _number(text)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            wanted = values.dtype.type(text)
    compared = {"equals": np.equal, "less": np.less, "greater": np.greater}[operator]
    return np.asarray(compared(values, wanted))


def _number(text: str) -> float | None:
    """Return a number, an integer if it is one; None if it is not a number."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            number = float(text)
            return int(number) if number.is_integer() else number if number == number else None
    return None


def parse_conditions(name: str, text: str) -> list[Condition]:
    """Return the conditions of a request: a JSON list of (feature, operator, value)."""
    try:
        return [
            Condition(str(feature), str(operator), "" if value is None else str(value))
            for feature, operator, value in parse_json(name, text)
        ]
    except (TypeError, ValueError):
        raise RequestError(f"{name} must be a list of [feature, op, value]") from None


def find(
    dataset: Dataset,
    where: Annotated[Sequence[Condition], parse_conditions] = (),
    class_: Annotated[int | None, integer(-(2**63))] = None,
    cursor: int = 0,
    limit: Annotated[int, integer(1, MAX_FOUND)] = MAX_FOUND,
) -> Iterator[dict[str, Any]]:
    """Yield the ids of examples of a split or a class that match all conditions.

    Args:
        dataset: The split.
        where: The conditions.
        class_: The class; None for all.
        cursor: Position of the first example, among those of the split or class.
        limit: Maximum number of ids.
    """
    for each in where:
        each.check(dataset.features)
    features = dataset.features.select(list(dict.fromkeys(each.name for each in where)))
    members: Any = range(len(dataset))
    if class_ is not None:
        members = dataset.classes.records(dataset.classes.position(class_))
    left, end, size = limit, len(members), _SEARCHED_EXAMPLES if where else limit
    cursor = min(cursor, end)

    def matches(ids: Ids) -> NDArray[np.bool_]:
        columns, found = dataset.decode(features, ids) if where else {}, np.ones(len(ids), bool)
        for each in where:
            found &= each.matches(features[each.name], features.find(columns, each.name))
        return found

    def line(ids: list[int], corrupt: int = 0) -> dict[str, Any]:
        following = None if cursor >= end else cursor
        return {"ids": ids, "scanned": cursor, "of": end, "corrupt": corrupt, "cursor": following}

    if cursor == end:
        yield line([])
    while left and cursor < end:
        part = np.asarray(members[cursor : cursor + size], np.int64)
        for some, found in read_parts(matches, media.split_by_size(dataset, part)[0]):
            is_corrupt = isinstance(found, CoveyError)
            ids = [] if is_corrupt else some[found][:left].tolist()
            left -= len(ids)
            # The next search begins right after the last example that was found.
            cursor += len(some) if left else int(np.searchsorted(some, ids[-1])) + 1
            yield line(ids, int(is_corrupt))
            if not left:
                return


# Summaries.


def parse_ids(name: str, text: str) -> list[int]:
    """Return record ids that are separated by commas."""
    found = [integer()(name, each) for each in text.split(",")]
    if len(found) > MAX_IDS:
        raise RequestError(f"{name} has {len(found):,} ids; the limit is {MAX_IDS}")
    return found


def examples(
    session: Session, dataset: Dataset, ids: Annotated[Sequence[int], parse_ids] = ()
) -> dict[str, Any]:
    """Return the summaries of examples; one that cannot be read has an error."""
    wrong = [each for each in ids if each >= len(dataset)]
    if wrong:
        raise RequestError(f"ids has {wrong[0]}; must be below {len(dataset)}")

    def read(ids: Ids) -> list[dict[str, Any]]:
        media.check_size(dataset, ids)
        return list(read_examples(dataset, ids.tolist(), summary=_summarize_bounded))

    found: list[dict[str, Any]] = []
    numbers = np.array(ids, np.int64)
    for begin in range(0, len(ids), _MAX_READ_EXAMPLES):
        for part in media.split_by_size(dataset, numbers[begin : begin + _MAX_READ_EXAMPLES]):
            for some, read_ones in read_parts(read, part):
                is_error = isinstance(read_ones, CoveyError)
                located = [{**_locate(dataset, int(some[0])), "error": str(read_ones)}]
                found += located if is_error else read_ones
        session.release_pages()
    for example, size in zip(found, dataset.raw.lengths(numbers).tolist(), strict=True):
        example["bytes"] = size
    return {"examples": found}


def _summarize_bounded(value: Any, feature: Feature) -> Any:
    """Return a summary with strings of bounded lengths, and a plot or the size of a picture.

    A longer string is ``{"kind": "string", "text", "length", "truncated": True}``.
    """
    summary = summarize(value, feature)
    if isinstance(summary, str) and len(summary) > MAX_STRING:
        text = summary[:MAX_STRING]
        return {"kind": "string", "text": text, "length": len(summary), "truncated": True}
    if not isinstance(summary, dict) or "first" not in summary:
        return summary
    first = summary["first"]
    cut = [each[:MAX_LISTED_STRING] if isinstance(each, str) else each for each in first]
    size = media.find_picture_size(media.as_picture(value, feature))
    if size is not None and summary["kind"] == "array":
        return {**summary, "first": cut, "picture": size}
    return {**summary, "first": cut, "plot": media.plot(value)}


def read_examples(
    dataset: Dataset,
    ids: Sequence[int],
    names: Sequence[str] | None = None,
    summary: Callable[[Any, Feature], Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield summaries of examples: id, class, location and values.

    Args:
        dataset: The dataset.
        ids: Ids of the examples.
        names: Features to read (default: all).
        summary: Function that returns the summary of a value (default: :func:`summarize`).
    """
    features = dataset.features if names is None else dataset.features.select(names)
    summary = summary or summarize
    for begin in range(0, len(ids), _MAX_READ_EXAMPLES):
        part = np.array(ids[begin : begin + _MAX_READ_EXAMPLES], np.int64)
        columns = dataset.decode(features, part)
        for row, number in enumerate(part.tolist()):
            found = row_of(columns, row)
            values = {
                name: summary(features.find(found, name), features[name]) for name in features
            }
            yield {**_locate(dataset, number), "values": values}


def _locate(dataset: Dataset, number: int) -> dict[str, Any]:
    place, found = dataset.place(number), None
    if dataset.label is not None:
        label = int(dataset.labels_of(np.array([number], np.int64))[0])
        found = {"id": label, "name": dataset.class_name(label)}
    where = {"shard": shown(place.name), "record": place.record, "offset": place.offset}
    return {"id": number, "class": found, **where}


def summarize(value: Any, feature: Feature) -> Any:
    """Return the summary of a value: a dict, a string or a number."""
    if isinstance(feature, ClassLabel):
        number, names = int(value), feature.names or ()
        return {"id": number, "name": names[number]} if 0 <= number < len(names) else number
    if isinstance(value, bytes):
        return _summarize_bytes(value, is_image=isinstance(feature, Image))
    if isinstance(value, (str, np.generic)):
        return _scalar(value)
    flat = media.flat_values(value)
    first = [_scalar(each) for each in flat[:MAX_FIRST]]
    dtype = str(getattr(feature, "dtype", "") if flat.dtype == object else flat.dtype)
    found: dict[str, Any] = {"kind": "array", "dtype": dtype, "first": first}
    if isinstance(value, SparseArray):
        indices = value.indices[:MAX_FIRST].tolist()
        pairs = [[index, each] for index, each in zip(indices, first, strict=True)]
        found |= {"kind": "sparse", "values": len(flat), "first": pairs}
        found["shape"] = list(value.shape)
    elif isinstance(value, RaggedArray):
        lengths = value.row_lengths[:MAX_FIRST].tolist()
        found |= {"kind": "ragged", "rows": len(value), "lengths": lengths, "values": len(flat)}
    else:
        shape = np.shape(value)
        found["shape"] = list(shape)
        if hasattr(feature, "sample_rate"):  # covey.Audio; None is unknown
            rate = feature.sample_rate
            seconds = shape[0] / rate if rate and shape else None
            found |= {"kind": "audio", "seconds": seconds, "sample_rate": rate}
            found["channels"] = shape[1] if len(shape) > 1 else 1
    return {**found, **_statistics(flat)}


def _summarize_bytes(data: bytes, *, is_image: bool) -> dict[str, Any]:
    header = read_header(data)
    if header is None and not is_image:
        return {"kind": "bytes", "bytes": len(data), "start": repr(data[:_START_BYTES])[2:-1]}
    names = ("format", "height", "width", "channels", "bits")
    return {
        "kind": "image",
        **{name: None if header is None else getattr(header, name) for name in names},
        "bytes": len(data),
    }


def _statistics(values: NDArray[Any]) -> dict[str, Any]:
    """Return the range and the mean of numbers, without NaN, and the number of NaN."""
    if values.dtype == object:
        return {}
    found: dict[str, Any] = {"min": None, "max": None, "mean": None}
    valid = values
    if values.dtype.kind == "f":
        valid = values[~np.isnan(values)]
        found["nan"] = values.size - valid.size
    if valid.size:
        with np.errstate(all="ignore"):
            mean = valid.mean(dtype=np.float64)
        found |= {"min": _scalar(valid.min()), "max": _scalar(valid.max()), "mean": _scalar(mean)}
    return found


def _scalar(value: Any) -> Any:
    """Return a single value as a string or a number of Python."""
    if isinstance(value, bytes):
        return repr(value[:_START_BYTES])[2:-1]
    if isinstance(value, (float, np.floating)):
        # The shortest decimal that has this value in its own dtype.
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else value
