"""The overview of a dataset: splits, features and classes. At most the first record is read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from covey.dataset.dataset import Dataset
from covey.dataset.layout import SplitFiles
from covey.errors import CoveyError
from covey.index.store import FoundIndex
from covey.maintenance.info import find_index_state
from covey.schema.images import read_header
from covey.urls import shown
from covey.view import shards, survey
from covey.view.kinds import feature_kind, operators_of
from covey.view.media import read_value
from covey.view.messages import Columns, Query, Response, json_response
from covey.view.server import Handler
from covey.view.session import Session

MAX_NAME = 1000
"""Maximum number of characters of the name of a class."""
MAX_LISTED = 20
"""Maximum number of shards that are listed as missing."""


def overview(session: Session, query: Query) -> Response:
    """Return the splits, the features and the loader."""
    splits = [_describe_split(session, name) for name in session.splits]
    opened = [dataset for _, dataset in splits if dataset is not None]
    content = {
        "title": session.title,
        "path": None if session.path is None else shown(session.path),
        "kind": "dataset" if session.layout is None else session.layout.kind,
        "label": next((dataset.label for dataset in opened if dataset.label is not None), None),
        "code": session.code,
        "features": _describe_features(opened),
        "splits": [described for described, _ in splits],
        "embeddings": _describe_embeddings(session),
        "loader": _describe_loader(session),
    }
    return json_response(content)


def _describe_split(session: Session, name: str) -> tuple[dict[str, Any], Dataset | None]:
    files = None if session.layout is None else session.layout.splits.get(name)
    try:
        dataset = session.open(name)
        return _describe_open(name, dataset, () if files is None else files.missing), dataset
    except (CoveyError, OSError) as error:
        return _describe_closed(name, files, error), None


def _describe_open(name: str, dataset: Dataset, absent: tuple[str, ...]) -> dict[str, Any]:
    found = [shard for table in dataset.tables for shard in table.index.metadata.shards]
    kinds = (table.index.metadata.compression for table in dataset.tables)
    missing, count = shards.find_missing(dataset)
    return {
        "name": name,
        "records": len(dataset),
        "classes": None if dataset.label is None else len(dataset.classes),
        "bytes": sum(shard.bytes for shard in found),
        "shards": len(found),
        "missing": [*missing, *absent][:MAX_LISTED],
        "missing_count": count + len(absent),
        "index": "fresh",
        "reason": "",
        "compression": next((kind for kind in kinds if kind is not None), None),
        "label": dataset.label,
        "error": None,
    }


def _describe_closed(name: str, files: SplitFiles | None, error: Exception) -> dict[str, Any]:
    """Return what is known of a split that cannot be opened."""
    state, missing = FoundIndex(), () if files is None else files.missing
    if files is not None:
        with suppress(CoveyError, OSError):
            state = find_index_state(files)
        with suppress(OSError, CoveyError):
            stats = files.files.storage.stat(files.files.paths)
            pairs = zip(files.files.names, stats, strict=True)
            missing = (*(each for each, stat in pairs if stat is None), *missing)
    return {
        "name": name,
        "records": None if files is None or files.records is None else sum(files.records),
        "classes": None,
        "bytes": None if files is None else files.bytes,
        "shards": 0 if files is None else len(files.files.names),
        "missing": list(missing[:MAX_LISTED]),
        "missing_count": len(missing),
        "index": state.kind,
        "reason": state.reason,
        "compression": None if state.metadata is None else state.metadata.compression,
        "label": None if state.metadata is None else state.metadata.label,
        "error": str(error),
    }


def _describe_features(opened: list[Dataset]) -> list[dict[str, Any]]:
    """Return the features of all splits; one that several have is that of the first one."""
    found: dict[str, dict[str, Any]] = {}
    for dataset in opened:
        for name, feature in dataset.features.items():
            if name not in found:
                found[name] = {
                    "name": name,
                    "type": feature.summary,
                    "kind": "image" if _has_image(dataset, name) else feature_kind(feature),
                    "operators": operators_of(feature),
                }
    return list(found.values())


def _has_image(dataset: Dataset, name: str) -> bool:
    """Return whether the bytes of the first example are an encoded image."""
    if feature_kind(dataset.features[name]) != "bytes" or not len(dataset):
        return False
    try:
        return read_header(read_value(dataset, 0, name)) is not None
    except (CoveyError, OSError):
        return False


def _describe_embeddings(session: Session) -> dict[str, Any] | None:
    found = session.embeddings
    if found is None:
        return None
    return {"split": found.split, "points": found.points, "dimensions": found.dimensions}


def _describe_loader(session: Session) -> dict[str, Any] | None:
    loader = session.loader
    if loader is None:
        return None
    plan = loader.plan
    return {
        "plan": repr(plan),
        "kind": type(plan).__name__,
        "classes_per_batch": getattr(plan, "classes_per_batch", None),
        "examples_per_class": getattr(plan, "examples_per_class", None),
        "seed": getattr(plan, "seed", None),
        "step": loader.step,
        "world_size": plan.world_size,
        "mode": plan.mode,
    }


def classes(session: Session, query: Query) -> Response:
    """Return the ids, the numbers of examples and the names of the classes of a split."""
    return replace(_class_columns(session.dataset(query)).response(), is_fixed=True)


def _class_columns(dataset: Dataset) -> Columns:
    columns = Columns(values={"label": dataset.label})
    if dataset.label is None:
        columns.arrays |= {"id": np.zeros(0, np.int64), "count": np.zeros(0, np.uint32)}
        return columns
    table = dataset.classes
    counts = table.counts
    columns.arrays["id"] = table.labels
    is_large = bool(len(counts)) and int(counts.max()) >= 2**32
    columns.arrays["count"] = counts.astype(np.float64 if is_large else np.uint32)
    known = table.names.known
    if known:
        limit = len(known)
        columns.add_strings(
            "name",
            [
                known[each][:MAX_NAME] if 0 <= each < limit else str(each)
                for each in table.labels.tolist()
            ],
        )
    return columns


ROUTES: dict[str, Handler] = {
    "/api/overview": overview,
    "/api/classes": classes,
    **survey.ROUTES,
    **shards.ROUTES,
}
