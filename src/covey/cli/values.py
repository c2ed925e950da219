"""Values as text: the columns that ``covey write`` stored, the examples of ``covey show``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from covey._progress import format_bytes
from covey._text import count_of, table
from covey.cli.options import reading_options
from covey.cli.output import shorten
from covey.errors import escape
from covey.urls import is_remote

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.results import WriteResult

_MAX_COUNTED = 1_000
"""Most examples whose cells are counted."""
_MAX_STRING = 60
_MAX_ELEMENT = 24


def open_dataset(options: argparse.Namespace) -> Dataset:
    """Open the dataset whose examples a command prints."""
    import covey

    given = {**reading_options(options), "split": options.split or "all"}
    return covey.open(
        options.path,
        label=options.label,
        max_pixels=options.max_pixels,
        threads=options.threads,
        **given,
    )


def to_json(content: Any) -> Any:
    """Return nested summaries as values of JSON, which has neither NaN nor infinities."""
    if isinstance(content, dict):
        return {name: to_json(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [to_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


# Columns.


def column_lines(result: WriteResult, target: str, *, reads: bool = True) -> list[str]:
    """Return the lines of a table of the features: types, empty cells, distinct values.

    The first examples of the first split are read back; the order of examples is random. The number
    of classes counts the whole split.

    Args:
        result: What was written.
        target: Path of the dataset.
        reads: Whether to read examples. A URL is never read.
    """
    counted = 0
    columns: dict[str, Any] = {}
    if reads and not is_remote(target):
        import covey

        with covey.open(target, split=result.split, progress=False) as dataset:
            ids = next(dataset.raw.chunks(max_records=_MAX_COUNTED))
            counted = len(ids)
            decoded = dataset.decode(result.features, ids)
            columns = {name: result.features.find(decoded, name) for name in result.features}
    rows = []
    for name, kind in result.features.items():
        empty, distinct = _count_cells(columns[name]) if counted else ("-", "-")
        if name == result.label:
            distinct = f"{len(result.classes):,}"
        rows.append([shorten(name), kind.summary, empty, distinct])
    label = "no label" if result.label is None else f"label {result.label!r}"
    title = f"{result.path}: {label}"
    if 0 < counted < result.records:
        title += f"; columns of {counted:,} of {result.records:,} examples of {result.split!r}"
    elif counted and result.others:
        title += f"; columns of {result.split!r}"
    return [title, *table(["column", "type", "empty", "distinct"], rows, "<<>>")]


def _count_cells(column: Any) -> tuple[str, str]:
    """Return the number of empty cells, and of distinct values if they are numbers or strings."""
    import numpy as np

    empty = 0
    found: set[Any] | None = set()
    for value in column:
        if isinstance(value, (str, bytes)):
            is_empty = not value
        else:
            array = np.asarray(getattr(value, "values", value))  # of a sparse tensor
            is_empty = not array.size or (array.dtype.kind == "f" and bool(np.isnan(array).all()))
            value = array.item() if array.shape == () else None
        empty += is_empty
        if value is None:
            found = None
        elif found is not None:
            found.add("" if is_empty else value)
    return f"{empty:,}", "-" if found is None else f"{len(found):,}"


# Examples.


def example_lines(example: dict[str, Any], hidden: str | None = None) -> Iterator[str]:
    """Yield the lines of an example: its class and its location, then a line for each value.

    Args:
        example: An example of :func:`covey.view.examples.read_examples`.
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


def describe_value(value: Any) -> str:
    r"""Return one line for the summary of a value.

    >>> print(describe_value("owl\x1b[2J"))
    'owl\u001b[2J'
    >>> import numpy as np
    >>> from covey.view.examples import summarize
    >>> print(describe_value(summarize(np.array([0.5, 1.5], "float32"), Tensor("float32"))))
    float32 (2,): 0.5, 1.5; min 0.5, max 1.5, mean 1
    """
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
