"""The overview of a dataset: splits, features and classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.schema import ClassLabel, Feature, Image, Ragged, Sparse
from covey.schema.columns import STRINGS
from covey.urls import shown
from covey.view.messages import Columns, Query, Response, exact, json_response
from covey.view.server import Handler
from covey.view.session import Session

MAX_NAME = 1000
"""Most characters of the name of a class."""
MAX_LISTED = 20
"""Most shards that are listed as missing."""


def overview(session: Session, query: Query) -> Response:
    """Return the splits, the features and the loader; no record is read."""
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
    missing = () if files is None else files.missing
    described: dict[str, Any] = {
        "name": name,
        "records": None if files is None or files.records is None else sum(files.records),
        "classes": None,
        "bytes": None if files is None else files.bytes,
        "shards": 0 if files is None else len(files.files.names),
        "missing": list(missing[:MAX_LISTED]),
        "missing_count": len(missing),
        "index": "missing",
        "reason": "",
        "compression": None,
        "label": None,
        "error": None,
    }
    try:
        dataset = session.open(name)
        shards = [shard for table in dataset.tables for shard in table.index.metadata.shards]
        kinds = {table.index.metadata.compression for table in dataset.tables}
        described |= {
            "records": len(dataset),
            "classes": None if dataset.label is None else len(dataset.classes),
            "bytes": sum(shard.bytes for shard in shards),
            "shards": len(shards),
            "index": "fresh",
            "compression": next((kind for kind in kinds if kind is not None), None),
            "label": dataset.label,
        }
    except (CoveyError, OSError) as error:
        described["error"] = str(error)
        return described, None
    return described, dataset


def _describe_features(opened: list[Dataset]) -> list[dict[str, str]]:
    """Return the features of all splits; one that several have is that of the first one."""
    found: dict[str, Feature] = {}
    for dataset in opened:
        for name, feature in dataset.features.items():
            found.setdefault(name, feature)
    return [
        {"name": name, "type": feature.summary, "kind": feature_kind(feature)}
        for name, feature in found.items()
    ]


def feature_kind(feature: Feature) -> str:
    """Return how values of a feature are displayed."""
    if isinstance(feature, Image):
        return "image"
    if isinstance(feature, ClassLabel):
        return "class"
    if hasattr(feature, "sample_rate"):
        return "audio"
    if isinstance(feature, Ragged):
        return "ragged"
    if isinstance(feature, Sparse):
        return "sparse"
    shape, dtype = getattr(feature, "shape", ()), getattr(feature, "dtype", "")
    if shape:
        return "array"
    if dtype in STRINGS:
        return "string" if dtype == "str" else "bytes"
    return "number"


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
    dataset = session.dataset(query)
    columns = Columns(values={"label": dataset.label})
    if dataset.label is None:
        columns.arrays |= {"id": np.zeros(0), "count": np.zeros(0, np.uint32)}
        return columns.response()
    table = dataset.classes
    counts = table.counts
    columns.arrays.update(exact(table.labels))
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
    return columns.response()


ROUTES: dict[str, Handler] = {
    "/api/overview": overview,
    "/api/classes": classes,
}
