"""The overview of a dataset: splits, features, classes, and the values of a sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.maintenance.values import ValueSurvey
from covey.results import ValueSummary
from covey.schema.images import read_header
from covey.view import batches, media
from covey.view.examples import examples, feature_kind, operators_of
from covey.view.session import Ids, Session, read_parts

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
    found = session.embeddings
    return {
        "title": session.title,
        "path": session.path,
        "kind": session.kind,
        "label": next((each.label for each in opened if each.label is not None), None),
        "candidates": session.candidates() if opened else [],
        "code": session.code,
        "features": _describe_features(opened),
        "splits": splits,
        "embeddings": None if found is None else found.describe(session.open(found.split)),
        "loader": _describe_loader(session),
        "first": _first(session) if splits and splits[0]["records"] else None,
    }


def _describe_split(session: Session, name: str) -> dict[str, Any]:
    names = ("records", "classes", "bytes", "shards", "compression", "label")
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


def _describe_loader(session: Session) -> dict[str, Any] | None:
    if session.loader is None:
        return None
    plan = session.loader.plan
    names = ("classes_per_batch", "examples_per_class", "seed", "world_size", "mode")
    return {
        "plan": repr(plan),
        "kind": type(plan).__name__,
        "step": session.loader.step,
        **{name: getattr(plan, name, None) for name in names},
    }


def _first(session: Session) -> dict[str, Any] | None:
    """Return examples of the first split, and a batch with its examples, unless they are large."""
    dataset = session.open()
    step = 0 if session.loader is None else session.loader.step
    try:
        batch = batches.batch(session, dataset, batches.PlanOptions(), step)
        drawn = [each for group in batch["ranks"][0]["classes"] for each in group["ids"]]
    except CoveyError:  # fewer classes than ranks, for instance: the page of batches shows it
        batch, drawn = None, []
    strip = np.arange(FIRST_EXAMPLES) * len(dataset) // FIRST_EXAMPLES
    ids = list(dict.fromkeys([*strip.tolist(), *drawn[:FIRST_BATCH]]))
    sizes = np.cumsum(media.decoded_sizes(dataset, np.array(ids, np.int64)))
    ids = ids[: int(np.searchsorted(sizes, media.MAX_READ_BYTES))]
    try:
        known = {each["id"]: each for each in examples(session, dataset, ids)["examples"]}
    except (CoveyError, OSError):  # of the storage
        return None
    return {
        "split": session.splits[0],
        "examples": [known[each] for each in dict.fromkeys(strip.tolist()) if each in known],
        "batch": batch,
        "batch_examples": [known[each] for each in drawn[:FIRST_BATCH] if each in known],
    }


def classes(dataset: Dataset) -> dict[str, Any]:
    """Return the ids, the numbers of examples and the names of the classes of a split."""
    if dataset.label is None:
        empty = np.zeros(0)
        return {"label": None, "id": empty.astype(np.int64), "count": empty, "name": None}
    table = dataset.classes
    known, names = table.names.known, None
    if known:
        count = len(known)
        ids = table.labels.tolist()
        names = [known[each][:MAX_NAME] if 0 <= each < count else str(each) for each in ids]
    counts = table.counts.astype(np.float64)
    return {"label": dataset.label, "id": table.labels, "count": counts, "name": names}


# The values of a sample.


def survey(session: Session, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the values of a growing sample of a split, which is the same each time."""
    sample = _Sample(dataset)
    deadline = time.monotonic() + _INTERVAL_S
    for ids in sample_parts(len(dataset)):
        if not sample.add(ids):
            break
        session.release_pages()
        if time.monotonic() > deadline:
            yield sample.describe()
            deadline = time.monotonic() + _INTERVAL_S
    yield sample.describe()


def sample_parts(length: int) -> list[Ids]:
    """Return the ids of a sample in parts, each of which is spread over the split.

    >>> [part.tolist() for part in sample_parts(3)]
    [[0], [1], [2]]
    """
    count = min(length, MAX_SAMPLED)
    ids = np.arange(count, dtype=np.int64) * length // max(1, count)
    return [ids[first::_PARTS] for first in range(min(_PARTS, count))]


class _Sample:
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._survey = ValueSurvey(dataset.features, dataset.label, max_values=_MAX_VALUES)
        self._examples = 0
        self._corrupt = 0
        self._left = MAX_SAMPLED_BYTES
        self._error: str | None = None

    def add(self, ids: Ids) -> bool:
        """Add examples; return whether there may be more."""
        dataset = self._dataset
        sizes = np.cumsum(dataset.raw.lengths(ids))
        fits = ids[: int(np.searchsorted(sizes, self._left, side="right"))]
        self._left -= int(sizes[-1])
        for part in media.split_by_size(dataset, fits):
            read = read_parts(lambda some: dataset.decode(dataset.features, some), part)
            for some, columns in read if len(part) else ():
                if isinstance(columns, CoveyError):
                    self._corrupt += 1
                    self._error = self._error or str(columns)
                else:
                    self._survey.add(columns)
                    self._examples += len(some)
        return len(fits) == len(ids)

    def describe(self) -> dict[str, Any]:
        """Return the survey as values of JSON."""
        summaries = self._survey.summaries() if self._examples else {}
        histograms, sizes = self._survey.histograms(), self._survey.image_sizes()
        features = {}
        for name, feature in self._dataset.features.items():
            summary, histogram = summaries.get(name, ValueSummary()), histograms.get(name)
            features[name] = {
                "kind": feature_kind(feature),
                "min": summary.minimum,
                "max": summary.maximum,
                "mean": summary.mean,
                "nan": summary.nan,
                "lengths": summary.lengths,
                "histogram": None,
                "images": None
                if summary.images is None
                else _images(summary.images, sizes.get(name, {})),
            }
            if histogram is not None:
                is_pixels = media.pixels_shape(feature) is not None
                what = "pixels" if is_pixels else "values"
                features[name]["histogram"] = {
                    "edges": histogram.edges.tolist(),
                    "counts": histogram.counts.tolist(),
                    "what": "lengths" if histogram.is_lengths else what,
                }
        return {
            "examples": self._examples,
            "of": len(self._dataset),
            "corrupt": self._corrupt,
            "error": self._error,
            "features": features,
        }


def _images(found: Any, sizes: Any) -> dict[str, Any]:
    frequent = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:MAX_SIZES]
    unknown = {"unknown": found["unknown"]} if found["unknown"] else {}
    return {
        "smallest": found["smallest"],
        "largest": found["largest"],
        "formats": {**found["formats"], **unknown},
        "channels": found["channels"],
        "sizes": [[height, width, count] for (height, width), count in frequent],
    }
