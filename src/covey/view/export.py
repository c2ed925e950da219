"""The export of a selection of examples as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.schema import ClassLabel, Feature, Features, Tensor
from covey.schema.codec import row_of
from covey.urls import shown
from covey.view import media
from covey.view.messages import Query, RequestError, Response
from covey.view.server import Handler
from covey.view.session import Session

MAX_IDS = 100_000
"""Maximum number of examples of a file."""
MAX_CELL = 1000
"""Maximum number of characters of a string."""
MAX_BYTES = 64 << 20
"""Maximum size of a file."""

_READ_EXAMPLES = 256
# Spreadsheets evaluate a cell that begins with one of these.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def export(session: Session, query: Query) -> Response:
    """Return the location, the class and the scalar features of examples as a CSV file."""
    content = query.json()
    if not isinstance(content, dict) or content.get("format", "csv") != "csv":
        raise RequestError("the body must be an object whose format is 'csv'")
    split = content.get("split", next(iter(session.splits), ""))
    if not isinstance(split, str):
        raise RequestError("split must be a string")
    dataset = session.open(split)
    ids = check_ids(content.get("ids"), len(dataset))
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    for row in _rows(dataset, ids, session.release_pages):
        writer.writerow(row)
        if buffer.tell() > MAX_BYTES:
            raise RequestError(f"the file is larger than {MAX_BYTES:,} bytes; select fewer", 413)
    data = buffer.getvalue().encode(errors="replace")
    return Response(data, "text/csv; charset=utf-8", filename="examples.csv")


def check_ids(ids: Any, length: int) -> NDArray[np.int64]:
    """Return the ids of a request; they are integers below `length`."""
    if not isinstance(ids, list) or len(ids) > MAX_IDS:
        raise RequestError(f"ids must be a list of at most {MAX_IDS:,} integers")
    wrong = [each for each in ids if type(each) is not int or not 0 <= each < length]
    if wrong:
        raise RequestError(f"ids has {str(wrong[0])[:40]!r}; must be an integer below {length}")
    return np.array(ids, np.int64)


def _rows(
    dataset: Dataset, ids: NDArray[np.int64], after_read: Callable[[], None]
) -> Iterator[list[Any]]:
    names = [name for name, kind in dataset.features.items() if _is_scalar(kind)]
    names = [name for name in names if name != dataset.label]
    features = dataset.features.select(names) if names else Features({})
    yield [cell(each) for each in ("id", "class", "shard", "record", "offset", *names, "error")]
    for begin in range(0, len(ids), _READ_EXAMPLES):
        for part in media.split_by_size(dataset, ids[begin : begin + _READ_EXAMPLES]):
            yield from _read(dataset, features, part)
            after_read()


def _is_scalar(feature: Feature) -> bool:
    if isinstance(feature, ClassLabel):
        return True
    return isinstance(feature, Tensor) and feature.shape == () and feature.dtype != "bytes"


def _read(dataset: Dataset, features: Features, ids: NDArray[np.int64]) -> list[list[Any]]:
    try:
        media.check_size(dataset, ids)
        columns = dataset.decode(features, ids) if len(features) else {}
        rows = [row_of(columns, row) for row in range(len(ids))] if columns else [{} for _ in ids]
    except (CoveyError, OSError) as error:
        if len(ids) > 1:
            return [row for number in ids for row in _read(dataset, features, number.reshape(1))]
        return [_row(dataset, features, int(ids[0]), None, str(error))]
    return [
        _row(dataset, features, number, example, "")
        for number, example in zip(ids.tolist(), rows, strict=True)
    ]


def _row(dataset: Dataset, features: Features, number: int, example: Any, error: str) -> list[Any]:
    place = dataset.place(number)
    label = ""
    if dataset.label is not None:
        label = dataset.class_name(int(dataset.labels_of(np.array([number], np.int64))[0]))
    values = [
        "" if example is None else _text(features.find(example, name), kind)
        for name, kind in features.items()
    ]
    shard = shown(place.name).replace("\\", "/").rpartition("/")[2]
    cells = [number, label, shard, place.record, place.offset, *values, error]
    return [cell(each) for each in cells]


def _text(value: Any, feature: Feature) -> Any:
    if isinstance(feature, ClassLabel):
        number = int(value)
        known = feature.names is not None and 0 <= number < len(feature.names)
        return feature.names[number] if known and feature.names else number
    if isinstance(value, np.floating):
        return float(str(value))  # the shortest decimal that has this value in its own dtype
    return value.item() if isinstance(value, np.generic) else value


def cell(value: Any) -> Any:
    """Return a cell: a number, or a string that no spreadsheet evaluates.

    >>> cell("=1+2"), cell(-1), cell("owl")
    ("'=1+2", -1, 'owl')
    """
    if not isinstance(value, str):
        return value
    text = value[:MAX_CELL].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f"'{text}" if text.startswith(_FORMULAS) else text


ROUTES: dict[str, Handler] = {"/api/export": export}
