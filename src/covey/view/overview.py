"""The overview of a dataset: splits, features, classes, and the values of a sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.maintenance.statistics import ValueSurvey
from covey.results import ValueSummary
from covey.schema.images import read_header
from covey.view import batches, media
from covey.view.embeddings import scalars
from covey.view.examples import examples, feature_kind, operators_of
from covey.view.session import Ids, Session, read_parts, spread

MAX_NAME = 1000
"""Maximum number of characters of the name of a class."""
FIRST_EXAMPLES = 12
"""Number of examples of the first screen, beside a batch."""
FIRST_BATCH = 32
"""Number of examples of the batch of the first screen."""
MAX_SAMPLED = 2000
"""Number of examples of a sample."""
MAX_SAMPLED_BYTES = 64 << 20
"""Maximum size of the records of a sample."""
MAX_SIZES = 200
"""Maximum number of image sizes that are listed: the most frequent ones."""

_INTERVAL_S = 0.3
_MAX_VALUES = 50_000
_PARTS = 32


def overview(session: Session) -> dict[str, Any]:
    """Return the splits, the features, the loader, and what the first screen shows."""
    splits = [_describe_split(session, name) for name in session.splits]
    opened = [session.open(each["name"]) for each in splits if each["error"] is None]
    return {
        "title": session.title,
        "path": session.path,
        "kind": session.kind,
        "label": next((each.label for each in opened if each.label is not None), None),
        "candidates": session.candidates() if splits and not splits[0]["error"] else [],
        "features": _describe_features(opened),
        "splits": splits,
        "embeddings": _describe_embeddings(session),
        "loader": _describe_loader(session),
        "first": _first(session) if splits and splits[0]["records"] else None,
    }


def _describe_split(session: Session, name: str) -> dict[str, Any]:
    names = ("records", "classes", "bytes", "shards", "compression", "label", "code")
    try:
        dataset = session.open(name)
    except (CoveyError, OSError) as error:
        return {"name": name, **dict.fromkeys(names), "error": str(error)}
    found = [table.index.metadata for table in dataset.tables]
    shards = [shard.bytes for each in found for shard in each.shards]
    return {
        "name": name,
        "records": len(dataset),
        "classes": None if dataset.label is None else len(dataset.classes),
        "bytes": sum(shards),
        "shards": len(shards),
        "compression": next((each.compression for each in found if each.compression), None),
        "label": dataset.label,
        "code": session.code(name),
        "error": None,
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
        return read_header(media.read_value(dataset, 0, name)) is not None
    except (CoveyError, OSError):
        return False


def _describe_embeddings(session: Session) -> dict[str, Any] | None:
    found = session.embeddings
    if found is None:
        return None
    names = scalars(session.open(found.split))
    sizes = {"points": found.points, "dimensions": found.dimensions}
    return {"split": found.split, **sizes, "features": names}


def _describe_loader(session: Session) -> dict[str, Any] | None:
    if session.loader is None:
        return None
    plan, step = session.loader.plan, session.loader.step
    names = ("classes_per_batch", "examples_per_class", "seed", "world_size", "mode")
    options = {name: getattr(plan, name, None) for name in names}
    return {"plan": repr(plan), "kind": type(plan).__name__, "step": step, **options}


def _first(session: Session) -> dict[str, Any] | None:
    """Return examples of the first split, and a batch with its examples, unless they are large."""
    dataset = session.open()
    step = 0 if session.loader is None else session.loader.step
    try:
        batch = batches.batch(session, dataset, batches.PlanOptions(), step)
        drawn = [each for group in batch["ranks"][0]["classes"] for each in group["ids"]]
    except CoveyError:  # fewer classes than ranks, for instance: the page of batches shows it
        batch, drawn = None, []
    strip = spread(len(dataset), FIRST_EXAMPLES).tolist()
    ids = np.array([*strip, *drawn[:FIRST_BATCH]], np.int64)
    try:
        sizes = np.cumsum(media.decoded_sizes(dataset, ids))
        ids = ids[: int(np.searchsorted(sizes, media.MAX_READ_BYTES))]
        found = examples(session, dataset, ids.tolist())["examples"]
    except (CoveyError, OSError):  # of the storage
        return None
    count = len(strip)
    shown = {"examples": found[:count], "batch": batch, "batch_examples": found[count:]}
    return {"split": session.splits[0], **shown}


def classes(dataset: Dataset) -> dict[str, Any]:
    """Return the ids, the numbers of examples and the names of the classes of a split."""
    if dataset.label is None:
        empty = np.zeros(0)
        return {"label": None, "id": empty.astype(np.int64), "count": empty, "name": None}
    table = dataset.classes
    known, ids = table.names.known, table.labels.tolist()
    names = [known[each][:MAX_NAME] if 0 <= each < len(known) else str(each) for each in ids]
    counts = table.counts.astype(np.float64)
    return {"label": dataset.label, "id": table.labels, "count": counts,
            "name": names if known else None}  # fmt: skip


# The values of a sample.


def survey(session: Session, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the values of a growing sample of a split, which is the same each time."""
    values = ValueSurvey(dataset.features, dataset.label, max_values=_MAX_VALUES)
    about: dict[str, Any] = {"examples": 0, "of": len(dataset), "corrupt": 0, "error": None}
    left, deadline = MAX_SAMPLED_BYTES, time.monotonic() + _INTERVAL_S
    parts = (
        part for ids in sample_parts(len(dataset)) for part in media.split_by_size(dataset, ids)
    )
    for part in parts:
        left -= int(dataset.raw.lengths(part).sum())
        if left < 0:
            break
        for some, columns in read_parts(lambda ids: dataset.decode(dataset.features, ids), part):
            if isinstance(columns, CoveyError):
                about |= {"corrupt": about["corrupt"] + 1, "error": about["error"] or str(columns)}
            else:
                values.add(columns)
                about["examples"] += len(some)
        session.release_pages()
        if time.monotonic() > deadline:
            yield {**about, "features": _describe_values(dataset, values)}
            deadline = time.monotonic() + _INTERVAL_S
    yield {**about, "features": _describe_values(dataset, values)}


def sample_parts(length: int) -> list[Ids]:
    """Return the ids of a sample in parts, each of which is spread over the split.

    >>> [part.tolist() for part in sample_parts(3)]
    [[0], [1], [2]]
    """
    ids = spread(length, MAX_SAMPLED)
    return [ids[first::_PARTS] for first in range(min(_PARTS, len(ids)))]


def _describe_values(dataset: Dataset, values: ValueSurvey) -> dict[str, Any]:
    """Return the values of each feature: ranges, lengths, a histogram, the sizes of images."""
    summaries, histograms, sizes = values.summaries(), values.histograms(), values.image_sizes()
    features = {}
    for name, feature in dataset.features.items():
        summary, found = summaries.get(name, ValueSummary()), histograms.get(name)
        is_pixels = media.pixels_shape(feature) is not None
        what = "pixels" if is_pixels else "values"
        features[name] = {
            "kind": feature_kind(feature),
            "min": summary.minimum,
            "max": summary.maximum,
            "mean": summary.mean,
            "nan": summary.nan,
            "lengths": summary.lengths,
            "histogram": found
            and {
                "edges": found.edges.tolist(),
                "counts": found.counts.tolist(),
                "what": "lengths" if found.is_lengths else what,
            },
            "images": summary.images and _images(summary.images, sizes.get(name, {})),
        }
    return features


def _images(found: Any, sizes: Any) -> dict[str, Any]:
    frequent = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:MAX_SIZES]
    unknown = {"unknown": found["unknown"]} if found["unknown"] else {}
    listed = [[height, width, count] for (height, width), count in frequent]
    return {**found, "formats": {**found["formats"], **unknown}, "sizes": listed}
