"""The batch of a report: rows of classes, and one cell for each example."""

from __future__ import annotations

import base64
import html
import math
import warnings
from typing import Any
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from covey._text import count_of, shorten
from covey.errors import CoveyError
from covey.plan import BalancedPlan, ShuffledPlan
from covey.schema.images import read_header
from covey.view import media
from covey.view.kinds import feature_kind
from covey.view.messages import Query
from covey.view.pictures import as_pixels, describe
from covey.view.report.markup import text
from covey.view.report.svg import envelope
from covey.view.session import Session

MAX_CELLS = 256
"""Maximum number of examples that are shown."""
MAX_IMAGE_BYTES = 1_000_000
"""Maximum size of all thumbnails, encoded."""
SIDE = 112
"""Maximum side of a thumbnail in pixels."""
MAX_CHARACTERS = 240
"""Maximum number of characters of a string in a cell."""

_MAX_OTHERS = 2
_MAX_OTHER_CHARACTERS = 60
_SPARK_POINTS = 120
# Images up to this side are enlarged without interpolation.
_PIXELATED_SIDE = 64


class BatchSection:
    """A batch of a split as HTML.

    Args:
        session: The dataset.
        split: Name of the split.
    """

    def __init__(self, session: Session, split: str) -> None:
        self._session = session
        self._split = split
        self.dataset = session.open(split)
        self._features = choose_features(self.dataset)
        self._image_bytes = MAX_IMAGE_BYTES
        self._cells = MAX_CELLS
        self._omitted = 0

    def draw(self, classes: int, examples: int, seed: int, step: int) -> str:
        """Return the batch of a step; that of a shuffled loader if there is no label.

        Args:
            classes: P.
            examples: K.
            seed: Seed of the batches.
            step: The step.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if self.dataset.label is None:
                code = f"ds.shuffled({classes * examples}, seed={seed})"
                found = ShuffledPlan(len(self.dataset), classes * examples, seed).batch(step)
                rows = [self._row("", found)]
            else:
                code = f"ds.batches({classes}, {examples}, seed={seed})"
                rows = self._balanced(classes, examples, seed, step)
        notes = [str(each.message) for each in caught]
        if self._omitted:
            notes.append(f"{count_of(self._omitted, 'example')} or thumbnails are not shown")
        listed = "".join(
            f'<p class="muted">{html.escape(shorten(each, 300))}</p>' for each in notes
        )
        return (
            f'<p class="muted">Step {step:,} of <code>{html.escape(code)}</code>.</p>{listed}'
            f'<ol class="batch">{"".join(rows)}</ol>'
        )

    def _balanced(self, classes: int, examples: int, seed: int, step: int) -> list[str]:
        table = self.dataset.classes
        plan = BalancedPlan(table, classes, examples, seed)
        ids, drawn = plan.batch(step), plan.classes(step)
        self.dataset.check_classes(ids, np.repeat(drawn, examples))
        return [
            self._row(table.names[label], found)
            for label, found in zip(drawn.tolist(), ids.reshape(classes, examples), strict=True)
        ]

    def _row(self, name: str, ids: NDArray[Any]) -> str:
        shown = ids[: self._cells]
        self._cells -= len(shown)
        self._omitted += len(ids) - len(shown)
        if not len(shown):
            return ""
        cells = "".join(self._cell(number) for number in shown.tolist())
        title = f"<h3><bdi>{html.escape(shorten(name, 80))}</bdi></h3>" if name else ""
        wide = "" if name else " all"
        return f'<li class="row{wide}">{title}<ul class="cells">{cells}</ul></li>'

    def _cell(self, number: int) -> str:
        try:
            values = self._read(number)
            main, *others = values
            content = self._value(number, main, values[main])
        except (CoveyError, OSError) as error:
            return (
                f'<li class="cell failed"><div class="value"><span>{text(error)}</span></div>'
                f'<div class="about">id {number:,}</div></li>'
            )
        about = "".join(
            f"<div>{text(name, 30)}: {text(_short(values[name]), _MAX_OTHER_CHARACTERS)}</div>"
            for name in others
        )
        return (
            f'<li class="cell"><div class="value">{content}</div>'
            f'<div class="about"><div class="muted">id {number:,}</div>{about}</div></li>'
        )

    def _read(self, number: int) -> dict[str, Any]:
        features = self.dataset.features.select(self._features)
        columns = self.dataset.decode(features, np.array([number], np.int64))
        return {name: features.find(columns, name)[0] for name in self._features}

    def _value(self, number: int, name: str, value: Any) -> str:
        kind = feature_kind(self.dataset.features[name])
        if kind == "image" or _is_picture(value):
            return self._picture(number, name)
        if kind == "audio" or _is_series(value):
            return _series(name, np.asarray(value))
        return f"<span>{text(_short(value), MAX_CHARACTERS)}</span>"

    def _picture(self, number: int, name: str) -> str:
        query = {"split": self._split, "id": number, "feature": name, "side": SIDE}
        found = media.image(self._session, Query(urlencode(query)))
        data = base64.b64encode(found.body).decode()
        if len(data) > self._image_bytes:
            self._omitted += 1
            return '<span class="muted">not shown: the report would be too large</span>'
        self._image_bytes -= len(data)
        header = read_header(found.body)
        longest = SIDE if header is None else max(header.height, header.width)
        sharp = ' class="pixelated"' if longest <= _PIXELATED_SIDE else ""
        alt = f"{html.escape(shorten(name, 40))} of example {number}"
        return f'<img{sharp} alt="{alt}" src="data:{found.content_type};base64,{data}">'


def choose_features(dataset: Any) -> list[str]:
    """Return the features of a cell: the first by kind, images before all, then short ones."""
    names = [name for name in dataset.features if name != dataset.label] or list(dataset.features)
    kinds = {name: feature_kind(dataset.features[name]) for name in names}

    order = ("image", "audio", "string", "array", "ragged", "bytes", "sparse", "number", "class")
    main = min(names, key=lambda name: order.index(kinds[name]))
    short = [each for each in names if each != main and kinds[each] in ("string", "number")]
    return [main, *short[:_MAX_OTHERS]]


def _is_picture(value: Any) -> bool:
    if isinstance(value, bytes):
        return read_header(value) is not None
    return as_pixels(value) is not None


def _short(value: Any) -> str:
    """Return a value of one line; numbers with six digits."""
    is_float = isinstance(value, (float, np.floating))
    return f"{float(value):.6g}" if is_float else describe(value)


def _is_series(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    return is_array and value.ndim == 1 and len(value) > 8


def _series(name: str, values: NDArray[Any]) -> str:
    """Return numbers as a small chart: the smallest and largest of each part."""
    samples = values.reshape(len(values), -1).astype(np.float64)
    if not samples.size:
        return '<span class="muted">no values</span>'
    parts = min(len(samples), _SPARK_POINTS)
    starts = np.linspace(0, len(samples), parts, endpoint=False).astype(np.int64)
    low = np.fmin.reduceat(np.fmin.reduce(samples, 1), starts)
    high = np.fmax.reduceat(np.fmax.reduce(samples, 1), starts)
    return envelope(low.tolist(), high.tolist(), _range(name, len(samples), low, high))


def _range(name: str, length: int, low: NDArray[Any], high: NDArray[Any]) -> str:
    smallest, largest = float(np.fmin.reduce(low)), float(np.fmax.reduce(high))
    span = "no finite values"
    if math.isfinite(smallest) and math.isfinite(largest):
        span = f"{smallest:.6g} to {largest:.6g}"
    return f"{shorten(name, 40)}: {length:,} values, {span}"
