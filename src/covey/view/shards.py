"""The shards of a split: sizes, whether they are there, and the check of their records."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.index import ShardFiles
from covey.maintenance.scan import ExampleCheck, ShardScanner
from covey.schema import Features
from covey.view.messages import Query, RequestError, Response, json_response
from covey.view.server import Handler
from covey.view.session import Session

MAX_LISTED = 1000
"""Maximum number of shards of a response."""
MAX_PROBLEMS = 100
"""Maximum number of problems of a response."""
MAX_STATS = 4096
"""Maximum number of shards whose existence is part of the overview."""
CHECK_TIMEOUT_S = 20.0
"""Time after which a check ends, and time that it waits for another one."""

_checking = threading.Lock()


@dataclass(frozen=True, eq=False)
class KnownShards:
    """The shards of one index, or of a split that cannot be opened."""

    files: ShardFiles
    sizes: Sequence[int | None]
    records: Sequence[int | None]
    features: Features | None


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
    features = None if session.layout is None else session.layout.features
    return [KnownShards(files, unknown, layout.records or unknown, features)], missing


def _of_table(table: Any) -> KnownShards:
    metadata = table.index.metadata
    return KnownShards(
        table.files,
        [shard.bytes for shard in metadata.shards],
        [shard.records for shard in metadata.shards],
        metadata.features,
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


def check(session: Session, query: Query) -> Response:
    """Verify the checksums and the examples of a shard, for a limited time."""
    known, missing = find_shards(session, query)
    name = query.string("shard")
    if name in missing:
        raise RequestError("the shard is missing", 404)
    matching = [each for each in known if name in each.files.names]
    if not matching:
        raise RequestError(f"there is no shard {name[:100]!r}", 404)
    if not _checking.acquire(timeout=CHECK_TIMEOUT_S):
        raise RequestError("another shard is being checked; try again when it is done", 429)
    try:
        return json_response(_check_all(matching, name, CHECK_TIMEOUT_S))
    finally:
        _checking.release()


def _check_all(known: Sequence[KnownShards], name: str, timeout_s: float) -> dict[str, Any]:
    """Return the check of all shards of a name; a sum of datasets may have several."""
    end = time.monotonic() + timeout_s
    first, *others = (_check(each, name, end - time.monotonic()) for each in known)
    for each in others:
        for key in ("records", "problems", "unlisted"):
            first[key] += each[key]
        first["stopped"] |= each["stopped"]
    return first


def _check(known: KnownShards, name: str, timeout_s: float) -> dict[str, Any]:
    end = time.monotonic() + timeout_s
    scanner = ShardScanner(
        "",
        known.files,
        ExampleCheck(known.features),
        lambda records, size: None,
        should_stop=lambda: time.monotonic() > end,
    )
    shard = scanner.scan(known.files.names.index(name))
    listed = shard.problems.listed
    return {
        "records": shard.records,
        "problems": [
            {"record": each.record, "offset": each.offset, "reason": each.reason}
            for each in listed[:MAX_PROBLEMS]
        ],
        "unlisted": len(listed[MAX_PROBLEMS:]) + shard.problems.unlisted,
        "stopped": shard.is_stopped,
    }


def find_missing(dataset: Dataset) -> tuple[list[str], int]:
    """Return names of shards that are missing, and their number; of the first local shards only."""
    names: list[str] = []
    for table in dataset.tables:
        if not table.files.storage.is_remote:  # each would be a request
            stats = table.files.storage.stat(table.files.paths[:MAX_STATS])
            pairs = zip(table.files.names, stats, strict=False)
            names += [name for name, stat in pairs if stat is None]
    return names[:MAX_LISTED], len(names)


ROUTES: dict[str, Handler] = {"/api/shards": shards, "/api/check": check}
