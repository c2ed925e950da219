"""Values of examples, summarized for JSON and as text: ``covey show`` and ``covey sample``.

A string or a number is its own summary. That of a class is its id and its name. Everything else is
a dict whose ``kind`` is ``"image"``, ``"audio"``, ``"bytes"``, ``"array"``, ``"ragged"`` or
``"sparse"``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._progress import format_bytes
from covey._text import count_of
from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.cli.options import shows_progress, storage_options
from covey.cli.output import shorten
from covey.dataset.dataset import Dataset
from covey.errors import escape
from covey.schema import ClassLabel, Feature, Image
from covey.schema.codec import row_of
from covey.schema.images import read_header
from covey.urls import shown

MAX_FIRST = 6
"""Most values of an array that are listed."""

_MAX_STRING = 60
_MAX_ELEMENT = 24
_MAX_READ_EXAMPLES = 64
_START_BYTES = 16


def open_dataset(options: argparse.Namespace) -> Dataset:
    """Open the dataset whose examples a command prints."""
    import covey

    return covey.open(
        options.path,
        split=options.split or "all",
        label=options.label,
        storage_options=storage_options(options),
        max_pixels=options.max_pixels,
        threads=options.threads,
        progress=shows_progress(options),
    )


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
        labels = None if dataset.label is None else dataset.labels_of(part).tolist()
        for row, number in enumerate(part.tolist()):
            example = row_of(columns, row)
            place = dataset.place(number)
            yield {
                "id": number,
                "class": None
                if labels is None
                else {"id": labels[row], "name": dataset.class_name(labels[row])},
                "shard": shown(place.name),
                "record": place.record,
                "offset": place.offset,
                "values": {
                    name: summarize(features.find(example, name), kind)
                    for name, kind in features.items()
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


def to_json(content: Any) -> Any:
    """Return nested summaries as values of JSON, which has neither NaN nor infinities."""
    if isinstance(content, dict):
        return {name: to_json(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [to_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


# Text.


def example_lines(example: dict[str, Any], hidden: str | None = None) -> Iterator[str]:
    """Yield the lines of an example: its class and its location, then a line for each value.

    Args:
        example: An example of :func:`read_examples`.
        hidden: Feature that is not listed: the label, which is the class.
    """
    shard = example["shard"].replace("\\", "/").rpartition("/")[2]
    where = f"{shard}, record {example['record']:,} at byte {example['offset']:,}"
    of_class = f"class {describe_class(example['class'])}; " if example["class"] else ""
    yield escape(f"example {example['id']:,}: {of_class}{where}")
    values = {name: value for name, value in example["values"].items() if name != hidden}
    width = min(_MAX_ELEMENT, max(map(len, values), default=0))
    for name, value in values.items():
        yield f"  {shorten(name):{width}}  {describe_value(value)}"


def describe_class(found: dict[str, Any]) -> str:
    """Return the name of a class, and its id if that is not the name."""
    name, number = found["name"], found["id"]
    return name if name == str(number) else f"{_quoted(name)} ({number})"


def describe_value(value: Any, width: int | None = None) -> str:
    r"""Return one line for the summary of a value.

    Args:
        value: The summary.
        width: Most characters of the line (default: as many as a summary has).

    >>> print(describe_value("owl\x1b[2J"))
    'owl\u001b[2J'
    >>> print(describe_value(summarize(np.array([0.5, 1.5], "float32"), Tensor("float32"))))
    float32 (2,): 0.5, 1.5; min 0.5, max 1.5, mean 1
    """
    line = _describe(value)
    return line if width is None or len(line) <= width else f"{line[: width - 3]}..."


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if not isinstance(value, dict):
        return _text(value)
    if "kind" not in value:
        return describe_class(value)
    match value["kind"]:
        case "bytes":
            start = f": {value['start']}" if value["start"] else ""
            return f"{count_of(value['bytes'], 'byte')}{start}"
        case "image":
            return _describe_image(value)
        case "audio":
            return _describe_audio(value)
        case "ragged":
            shape = f"{count_of(value['rows'], 'row')} of lengths {_listed(value['lengths'])}"
            if value["rows"] > len(value["lengths"]):
                shape += ", ..."
        case "sparse":
            shape = f"{_shape(value)}, {count_of(value['values'], 'value')} stored"
        case _:
            shape = _shape(value)
    return f"{value['dtype']} {shape}{_contents(value)}"


def _describe_image(value: dict[str, Any]) -> str:
    if value["format"] is None:
        return f"image of unknown format, {format_bytes(value['bytes'])}"
    channels = count_of(value["channels"], "channel")
    bits = "" if value["bits"] == 8 else f", {value['bits']} bits"
    size = f"{value['height']} x {value['width']}"
    return f"{value['format']} {size}, {channels}{bits}, {format_bytes(value['bytes'])}"


def _describe_audio(value: dict[str, Any]) -> str:
    length = "sampling rate unknown"
    if value["seconds"] is not None:
        length = f"{value['seconds']:.3f} s at {value['sample_rate']:,} Hz"
    channels = count_of(value["channels"], "channel")
    return f"{length}, {channels}, {value['dtype']} {_shape(value)}{_contents(value)}"


def _shape(value: dict[str, Any]) -> str:
    return str(tuple(value["shape"]))


def _contents(value: dict[str, Any]) -> str:
    """Return the first values and the statistics, as far as there are any."""
    first = value["first"]
    if not first:
        return ""
    if value["kind"] == "sparse":
        entries = [f"[{_listed(index)}] = {_text(each)}" for index, each in first]
    else:
        is_string = value["dtype"] in ("str", "bytes")
        entries = [_quoted(each, _MAX_ELEMENT) if is_string else _text(each) for each in first]
    size = value["values"] if "values" in value else math.prod(value["shape"])
    text = f": {', '.join(entries)}{', ...' if size > len(first) else ''}"
    if value.get("min") is not None and size > 1:
        text += f"; min {_text(value['min'])}, max {_text(value['max'])}"
        text += f", mean {_text(value['mean'])}"
    if value.get("nan"):
        text += f"; {value['nan']:,} NaN"
    return text


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def _text(value: Any) -> str:
    """Return a number; floats have six significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _quoted(text: str, width: int = _MAX_STRING) -> str:
    """Return a string in quotes, without control characters, shortened to about `width`."""
    escaped = escape(text[: width + 1])
    if len(text) <= width and len(escaped) <= width + 2:
        return f"'{escaped}'"
    return f"'{escaped[:width]}...' ({len(text):,} characters)"
