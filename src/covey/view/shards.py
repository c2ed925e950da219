"""The shards of a split: their sizes, and whether they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.index import ShardFiles
from covey.view.messages import Query, Response, json_response
from covey.view.server import Handler
from covey.view.session import Session

MAX_LISTED = 1000
"""Maximum number of shards of a response."""
MAX_STATS = 4096
"""Maximum number of shards whose existence is part of the overview."""


@dataclass(frozen=True, eq=False)
class KnownShards:
    """The shards of one index, or of a split that cannot be opened."""

    files: ShardFiles
    sizes: Sequence[int | None]
    records: Sequence[int | None]


def find_shards(session: Session, query: Query) -> tuple[list[KnownShards], tuple[str, ...]]:
    """Return the shards of the split that a request names, and the names of those that are missing.

    Raises:
        CoveyError: If the split cannot be opened, and its files are unknown.
    """
    name = query.string("split", next(iter(session.splits), ""))
    layout = None if session.layout is None else session.layout.splits.get(name)
    missing = () if layout is None else layout.missing
    try:
        return [_of_table(table) for table in session.dataset(query).tables], missing
    except (CoveyError, OSError):
        if layout is None:
            raise
    files, unknown = layout.files, [None] * len(layout.files.names)
    return [KnownShards(files, unknown, layout.records or unknown)], missing


def _of_table(table: Any) -> KnownShards:
    metadata = table.index.metadata
    return KnownShards(
        table.files,
        [shard.bytes for shard in metadata.shards],
        [shard.records for shard in metadata.shards],
    )


def shards(session: Session, query: Query) -> Response:
    """Return some of the shards of a split: sizes, records, and whether they are as indexed."""
    known, missing = find_shards(session, query)
    limit = query.integer("limit", MAX_LISTED, low=1, high=MAX_LISTED)
    offset = query.integer("offset", 0)
    total = sum(len(each.files.names) for each in known) + len(missing)
    listed: list[dict[str, Any]] = []
    first = 0
    for each in known:
        begin = max(0, offset - first)
        listed += _states(each, begin, max(begin, offset + limit - first))
        first += len(each.files.names)
    begin = max(0, offset - first)
    absent = missing[begin : max(begin, offset + limit - first)]
    listed += [
        {"name": name, "bytes": None, "records": None, "state": "missing"} for name in absent
    ]
    return json_response({"total": total, "shards": listed})


def _states(known: KnownShards, begin: int, end: int) -> list[dict[str, Any]]:
    names, paths = known.files.names[begin:end], known.files.paths[begin:end]
    stats = known.files.storage.stat(paths) if paths else []
    found = []
    for number, (name, stat) in enumerate(zip(names, stats, strict=True), begin):
        size = known.sizes[number]
        state = "ok"
        if stat is None:
            state = "missing"
        elif size is not None and stat.size != size:
            state = "size differs"
        size = size if stat is None else stat.size
        found.append(
            {"name": name, "bytes": size, "records": known.records[number], "state": state}
        )
    return found


def find_missing(dataset: Dataset) -> tuple[list[str], int]:
    """Return names of shards that are missing, and their number; of the first local shards only."""
    names: list[str] = []
    for table in dataset.tables:
        if not table.files.storage.is_remote:  # each would be a request
            stats = table.files.storage.stat(table.files.paths[:MAX_STATS])
            pairs = zip(table.files.names, stats, strict=False)
            names += [name for name, stat in pairs if stat is None]
    return names[:MAX_LISTED], len(names)


ROUTES: dict[str, Handler] = {"/api/shards": shards}
