"""Examples: which ones match a filter, and their values.

The summary of a string of more than :data:`MAX_STRING` characters is ``{"kind": "string", "text",
"length", "truncated": true}``. The summary of an array that is displayed as an image has a
``picture``: its height and width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.schema import Feature, Features
from covey.schema.codec import row_of
from covey.view import media
from covey.view.messages import Query, RequestError, Response, json_response
from covey.view.pictures import find_picture_size, pixels_shape
from covey.view.search import Predicate, SplitExamples, scan
from covey.view.server import Handler
from covey.view.session import Session
from covey.view.summaries import describe_example

MAX_FOUND = 1000
"""Maximum number of ids of a response."""
MAX_READ_EXAMPLES = 200
"""Maximum number of examples of a response."""
MAX_STRING = 20_000
"""Maximum number of characters of a string."""
MAX_LISTED_STRING = 1000
"""Maximum number of characters of a string in an array."""

# Examples are read together up to this number.
_GROUP = 32


def find(session: Session, query: Query) -> Response:
    """Return the ids of examples of a split or a class, in pages.

    Without a feature to compare, the cursor is the position of the first example, so that a page
    can begin anywhere.
    """
    dataset = session.dataset(query)
    class_id = query.integer("class", low=-(2**63)) if query.optional("class") else None
    limit = query.integer("limit", 200, low=1, high=MAX_FOUND)
    cursor = query.integer("cursor", 0)
    predicate = Predicate.parse(dataset.features, query)
    members = SplitExamples(dataset, class_id)
    if predicate is not None:
        release = session.release_pages
        found = scan(members, predicate, cursor, limit, after_read=release)
        content = {"ids": found.ids, "cursor": found.cursor, "scanned": found.scanned}
        total = len(found.ids) if found.cursor is None and cursor == 0 else None
        return json_response(
            {**content, "of": members.length, "total": total, "corrupt": found.corrupt}
        )
    ids = members.slice(cursor, cursor + limit).tolist()
    end = cursor + len(ids)
    following = end if ids and end < members.length else None
    content = {"ids": ids, "cursor": following, "scanned": end}
    return json_response({**content, "total": members.length, "corrupt": 0})


def examples(session: Session, query: Query) -> Response:
    """Return the summaries of examples; one that cannot be read has an error."""
    dataset = session.dataset(query)
    ids = query.ids("ids", len(dataset))
    if len(ids) > MAX_READ_EXAMPLES:
        raise RequestError(f"there are {len(ids)} ids; the limit is {MAX_READ_EXAMPLES}")
    found: list[dict[str, Any]] = []
    for begin in range(0, len(ids), _GROUP):
        found += read_summaries(dataset, ids[begin : begin + _GROUP])
        session.release_pages()
    return json_response({"examples": found})


def read_summaries(dataset: Dataset, ids: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return summaries of examples; one that cannot be read has an error."""
    sizes = dataset.raw.lengths(ids)
    found: list[dict[str, Any]] = []
    for part in media.split_by_size(dataset, ids):
        found += _read(dataset, part)
    for example, size in zip(found, sizes.tolist(), strict=True):
        example["bytes"] = size
    return found


def _read(dataset: Dataset, ids: NDArray[np.int64]) -> list[dict[str, Any]]:
    try:
        media.check_size(dataset, ids)
        columns = dataset.decode(dataset.features, ids)
        return [_summarize(dataset, dataset.features, columns, ids, row) for row in range(len(ids))]
    except (CoveyError, OSError) as error:
        if len(ids) == 1:
            return [_failed(dataset, int(ids[0]), error)]
    # One of the examples cannot be read.
    return [found for number in ids for found in _read(dataset, np.array([number], np.int64))]


def _summarize(
    dataset: Dataset, features: Features, columns: dict[str, Any], ids: NDArray[np.int64], row: int
) -> dict[str, Any]:
    example = row_of(columns, row)
    described = describe_example(dataset, features, example, int(ids[row]))
    values = described["values"]
    for name in values:
        values[name] = _bounded(values[name], features.find(example, name), features[name])
    return described


def _failed(dataset: Dataset, number: int, error: Exception) -> dict[str, Any]:
    """Return an example that cannot be read: where it is, and why."""
    found: dict[str, Any] = {"id": number, "error": str(error)}
    try:
        found |= describe_example(dataset, Features({}), {}, number)
    except (CoveyError, OSError):  # neither can its row in the index
        return found
    del found["values"]
    return found


def _bounded(summary: Any, value: Any, feature: Feature) -> Any:
    """Return a summary with strings of bounded lengths; that of an image with its size."""
    if isinstance(summary, str) and len(summary) > MAX_STRING:
        text = summary[:MAX_STRING]
        return {"kind": "string", "text": text, "length": len(summary), "truncated": True}
    if not isinstance(summary, dict):
        return summary
    if "first" in summary:
        summary["first"] = [
            each[:MAX_LISTED_STRING] if isinstance(each, str) else each for each in summary["first"]
        ]
    if summary.get("kind") == "array":
        shape = pixels_shape(feature)
        is_flat = shape is not None and isinstance(value, np.ndarray) and value.ndim == 1
        size = shape[:2] if is_flat and shape is not None else find_picture_size(value)
        if size is not None:
            summary["picture"] = list(size)
    return summary


ROUTES: dict[str, Handler] = {
    "/api/find": find,
    "/api/examples": examples,
    **media.ROUTES,
}
