"""Examples: which ones match a filter, and their values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.dataset.summaries import read_examples
from covey.errors import CoveyError
from covey.view import media
from covey.view.messages import Query, RequestError, Response, json_response
from covey.view.server import Handler
from covey.view.session import Session

MAX_FOUND = 1000
"""Maximum number of ids of a response."""
MAX_READ_EXAMPLES = 200
"""Maximum number of examples of a response."""
MAX_STRING = 20_000
"""Most characters of a string."""


class Candidates:
    """The examples of a split, or of one of its classes, in the order of their ids.

    Args:
        dataset: The split.
        class_id: The class; None for all examples.
    """

    def __init__(self, dataset: Dataset, class_id: int | None) -> None:
        self._by_class: NDArray[Any] | None = None
        self._first = 0
        self.length = len(dataset)
        if class_id is not None:
            table = dataset.classes
            position = table.position(class_id)
            self._by_class = table.by_class
            self._first = int(table.firsts[position])
            self.length = int(table.counts[position])

    def slice(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the ids at some positions."""
        end = min(end, self.length)
        if self._by_class is None:
            return np.arange(begin, max(begin, end), dtype=np.int64)
        return self._by_class[self._first + begin : self._first + end].astype(np.int64)


def find(session: Session, query: Query) -> Response:
    """Return the ids of examples."""
    dataset = session.dataset(query)
    class_id = query.integer("class", low=-(2**63)) if query.optional("class") else None
    limit = query.integer("limit", 200, low=1, high=MAX_FOUND)
    cursor = query.integer("cursor", 0)
    candidates = Candidates(dataset, class_id)
    ids = candidates.slice(cursor, cursor + limit)
    end = cursor + len(ids)
    return json_response(
        {
            "ids": ids.tolist(),
            "cursor": end if len(ids) and end < candidates.length else None,
            "scanned": end,
            "total": candidates.length,
        }
    )


def examples(session: Session, query: Query) -> Response:
    """Return the summaries of examples; one that cannot be read has an error."""
    dataset = session.dataset(query)
    ids = query.ids("ids", len(dataset))
    if len(ids) > MAX_READ_EXAMPLES:
        raise RequestError(f"there are {len(ids)} ids; the limit is {MAX_READ_EXAMPLES}")
    return json_response({"examples": read_summaries(dataset, ids)})


def read_summaries(dataset: Dataset, ids: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return summaries of examples; one that cannot be read has an error."""
    sizes = dataset.raw.lengths(ids).tolist()
    found: list[dict[str, Any]] = []
    try:
        found = list(read_examples(dataset, ids.tolist()))
    except (CoveyError, OSError):
        found = [_read_one(dataset, number) for number in ids.tolist()]
    for example, size in zip(found, sizes, strict=True):
        example["bytes"] = size
        for name, value in example.get("values", {}).items():
            example["values"][name] = _cut(value)
    return found


def _read_one(dataset: Dataset, number: int) -> dict[str, Any]:
    try:
        return next(read_examples(dataset, [number]))
    except (CoveyError, OSError) as error:
        return {"id": number, "error": str(error)}


def _cut(value: Any) -> Any:
    """Return a summary with strings of bounded lengths."""
    if isinstance(value, str) and len(value) > MAX_STRING:
        return {
            "kind": "string",
            "text": value[:MAX_STRING],
            "length": len(value),
            "truncated": True,
        }
    return value


ROUTES: dict[str, Handler] = {
    "/api/find": find,
    "/api/examples": examples,
    **media.ROUTES,
}
