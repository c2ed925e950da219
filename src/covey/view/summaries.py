"""Summaries of examples: JSON values for ``covey show`` and ``covey view``.

A string or a number is its own summary. That of a class is its id and its name. Everything else is
a dict whose ``kind`` is ``"image"``, ``"audio"``, ``"bytes"``, ``"array"``, ``"ragged"`` or
``"sparse"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.dataset.dataset import Dataset
from covey.schema import ClassLabel, Feature, Features, Image
from covey.schema.codec import row_of
from covey.schema.images import read_header
from covey.urls import shown

MAX_FIRST = 6
"""Most values of an array that are listed."""

_MAX_READ_EXAMPLES = 64
_START_BYTES = 16


def read_examples(
    dataset: Dataset, ids: Sequence[int], names: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield summaries of examples: id, class, location and values.

    Args:
        dataset: The dataset.
        ids: Ids of the examples.
        names: Features to read (default: all).
    """
    features = dataset.features if names is None else dataset.features.select(names)
    for begin in range(0, len(ids), _MAX_READ_EXAMPLES):
        part = np.array(ids[begin : begin + _MAX_READ_EXAMPLES], np.int64)
        columns = dataset.decode(features, part)
        for row, number in enumerate(part.tolist()):
            yield describe_example(dataset, features, row_of(columns, row), number)


def describe_example(
    dataset: Dataset, features: Features, example: dict[str, Any], number: int
) -> dict[str, Any]:
    """Return the summary of an example: id, class, location and values.

    Args:
        dataset: The dataset.
        features: Features of `example`.
        example: The values.
        number: Id of the example.
    """
    place = dataset.place(number)
    found = None
    if dataset.label is not None:
        label = int(dataset.labels_of(np.array([number], np.int64))[0])
        found = {"id": label, "name": dataset.class_name(label)}
    return {
        "id": number,
        "class": found,
        "shard": shown(place.name),
        "record": place.record,
        "offset": place.offset,
        "values": {
            name: summarize(features.find(example, name), kind) for name, kind in features.items()
        },
    }


def summarize(value: Any, feature: Feature) -> Any:
    """Return the summary of a value: a dict, a string or a number."""
    if isinstance(feature, ClassLabel):
        number = int(value)
        known = feature.names is not None and 0 <= number < len(feature.names)
        return {"id": number, "name": feature.names[number]} if known and feature.names else number
    if isinstance(value, bytes):
        return _summarize_bytes(value, is_image=isinstance(feature, Image))
    if isinstance(value, (str, np.generic)):
        return _scalar(value)
    if isinstance(value, SparseArray):
        return {
            "kind": "sparse",
            "dtype": str(value.values.dtype),
            "shape": list(value.shape),
            "values": len(value.values),
            "first": [
                [index, _scalar(each)]
                for index, each in zip(
                    value.indices[:MAX_FIRST].tolist(), value.values[:MAX_FIRST], strict=True
                )
            ],
            **_statistics(value.values),
        }
    if isinstance(value, RaggedArray):
        flat = _flat(value)
        return {
            "kind": "ragged",
            "dtype": _dtype(flat, feature),
            "rows": len(value),
            "lengths": value.row_lengths[:MAX_FIRST].tolist(),
            "values": len(flat),
            "first": [_scalar(each) for each in flat[:MAX_FIRST]],
            **_statistics(flat),
        }
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    found: dict[str, Any] = {
        "kind": "array",
        "dtype": _dtype(array, feature),
        "shape": list(array.shape),
        "first": [_scalar(each) for each in array.reshape(-1)[:MAX_FIRST]],
        **_statistics(array),
    }
    # covey.Audio; a sampling rate of None is unknown.
    if hasattr(feature, "sample_rate"):
        rate = feature.sample_rate
        found["kind"] = "audio"
        found["seconds"] = array.shape[0] / rate if rate and array.ndim else None
        found["sample_rate"] = rate
        found["channels"] = array.shape[1] if array.ndim > 1 else 1
    return found


def _summarize_bytes(data: bytes, *, is_image: bool) -> dict[str, Any]:
    header = read_header(data)
    if header is not None or is_image:
        return {
            "kind": "image",
            "format": None if header is None else header.format,
            "height": None if header is None else header.height,
            "width": None if header is None else header.width,
            "channels": None if header is None else header.channels,
            "bits": None if header is None else header.bits,
            "bytes": len(data),
        }
    return {"kind": "bytes", "bytes": len(data), "start": repr(data[:_START_BYTES])[2:-1]}


def _flat(value: RaggedArray) -> Any:
    """Return the values of all rows as one array."""
    values: Any = value.values
    if isinstance(values, RaggedArray):
        return _flat(values)
    if isinstance(values, StringArray):
        values = values.to_numpy()
    return values.reshape(-1)


def _dtype(array: NDArray[Any], feature: Any) -> str:
    return str(feature.dtype if array.dtype == object else array.dtype)


def _statistics(array: NDArray[Any]) -> dict[str, Any]:
    """Return the range and the mean of numbers, without NaN, and the number of NaN."""
    if array.dtype == object:
        return {}
    found: dict[str, Any] = {"min": None, "max": None, "mean": None}
    valid = array.reshape(-1)
    if array.dtype.kind == "f":
        valid = valid[~np.isnan(valid)]
        found["nan"] = array.size - valid.size
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
