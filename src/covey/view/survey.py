"""The values of a sample of a split: ranges, NaN, lengths, image sizes and histograms."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.maintenance.values import Histogram, ValueSurvey
from covey.results import ValueSummary
from covey.view.kinds import feature_kind
from covey.view.media import split_by_size
from covey.view.messages import Query, Response, json_response
from covey.view.pictures import pixels_shape
from covey.view.server import Handler
from covey.view.session import Session

MAX_EXAMPLES = 2000
"""Number of examples of a sample."""
MAX_BYTES = 64 << 20
"""Maximum size of the records of a sample."""
SURVEY_TIMEOUT_S = 2.0
MAX_SIZES = 200
"""Maximum number of image sizes that are listed: the most frequent ones."""

_MAX_VALUES = 50_000
_PARTS = 32


def survey(session: Session, query: Query) -> Response:
    """Return the values of a sample of a split, which is the same each time."""
    found = read_survey(session.dataset(query), after_part=session.release_pages)
    return replace(json_response(found), is_fixed=True)


def read_survey(
    dataset: Dataset,
    *,
    timeout_s: float = SURVEY_TIMEOUT_S,
    after_part: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return a survey as values of JSON.

    Args:
        dataset: The split.
        timeout_s: Time after which no further examples are read.
        after_part: Function that is called after each part of the sample.
    """
    found = _Sample(dataset)
    end = time.monotonic() + timeout_s
    for ids in sample_parts(len(dataset)):
        is_last = not found.add(ids)
        after_part()
        if is_last or time.monotonic() > end:
            break
    return found.to_json()


def sample_parts(length: int) -> list[NDArray[np.int64]]:
    """Return the ids of a sample in parts, each of which is spread over the split.

    >>> [part.tolist() for part in sample_parts(3)]
    [[0], [1], [2]]
    """
    count = min(length, MAX_EXAMPLES)
    ids = np.arange(count, dtype=np.int64) * length // max(1, count)
    return [ids[first::_PARTS] for first in range(min(_PARTS, count))]


class _Sample:
    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._survey = ValueSurvey(dataset.features, dataset.label, max_values=_MAX_VALUES)
        self._examples = 0
        self._corrupt = 0
        self._bytes = 0
        self._error: str | None = None

    def add(self, ids: NDArray[np.int64]) -> bool:
        """Add examples; return whether there may be more."""
        try:
            sizes = self._bytes + np.cumsum(self._dataset.raw.lengths(ids))
            ids = ids[: int(np.searchsorted(sizes, MAX_BYTES, side="right"))]
            self._bytes = int(sizes[len(ids) - 1]) if len(ids) else MAX_BYTES
            for part in split_by_size(self._dataset, ids):
                self._read(part)
        except (CoveyError, OSError) as error:
            self._error = str(error)
            return False
        return len(ids) == len(sizes)

    def _read(self, ids: NDArray[np.int64]) -> None:
        if not len(ids):
            return
        try:
            columns = self._dataset.decode(self._dataset.features, ids)
        except (CoveyError, OSError) as error:
            if len(ids) == 1:
                self._corrupt += 1
                self._error = self._error or str(error)
                return
            half = len(ids) // 2
            self._read(ids[:half])
            self._read(ids[half:])
            return
        self._survey.add(columns)
        self._examples += len(ids)

    def to_json(self) -> dict[str, Any]:
        summaries = self._survey.summaries() if self._examples else {}
        histograms, sizes = self._survey.histograms(), self._survey.image_sizes()
        return {
            "examples": self._examples,
            "of": len(self._dataset),
            "corrupt": self._corrupt,
            "error": self._error,
            "features": {
                name: {
                    "kind": feature_kind(feature),
                    **_describe(summaries.get(name, ValueSummary())),
                    "histogram": _to_json(
                        histograms.get(name), is_pixels=pixels_shape(feature) is not None
                    ),
                    "images": _images(summaries.get(name), sizes.get(name, {})),
                }
                for name, feature in self._dataset.features.items()
            },
        }


def _describe(summary: ValueSummary) -> dict[str, Any]:
    return {
        "min": summary.minimum,
        "max": summary.maximum,
        "mean": summary.mean,
        "nan": summary.nan,
        "lengths": None if summary.lengths is None else list(summary.lengths),
    }


def _to_json(histogram: Histogram | None, *, is_pixels: bool) -> dict[str, Any] | None:
    if histogram is None:
        return None
    what = "lengths" if histogram.is_lengths else "pixels" if is_pixels else "values"
    return {"edges": histogram.edges.tolist(), "counts": histogram.counts.tolist(), "what": what}


def _images(summary: ValueSummary | None, sizes: Any) -> dict[str, Any] | None:
    if summary is None or summary.images is None:
        return None
    found = summary.images
    frequent = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:MAX_SIZES]
    return {
        "smallest": found["smallest"],
        "largest": found["largest"],
        "formats": {
            **found["formats"],
            **({"unknown": found["unknown"]} if found["unknown"] else {}),
        },
        "channels": found["channels"],
        "sizes": [[height, width, count] for (height, width), count in frequent],
    }


ROUTES: dict[str, Handler] = {"/api/survey": survey}
