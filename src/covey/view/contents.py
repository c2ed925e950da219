"""The contents of a batch: x as the loader builds it, with crops, augmentations and transforms.

Rows of a batch are built in chunks where they do not depend on each other, so that the memory of a
request is bounded, and a corrupt record does not hide the others. Random crops and the generators
of transforms depend on the row in the batch, not on the chunk. Functions of a whole batch
(``augmenter``, ``batch_transform``) and padding get the whole batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.errors import CoveyError, FeatureError, PlanError
from covey.loader.batch import BatchFormat, Format
from covey.loader.options import LoadOptions
from covey.view.media import MAX_SIDE, resize
from covey.view.messages import Columns, Query, RequestError, Response
from covey.view.pictures import as_pixels, columns_of, describe, encode_png, find_picture_size
from covey.view.plans import Drawn, ShownPlan, find_plan
from covey.view.session import Session

MAX_THUMBNAIL_SIDE = 128
MAX_ROWS = 512
"""Maximum number of rows in one response."""
MAX_IMAGE_SIDE = 1024
MAX_VIEWS = 8
MAX_PLOTTED = 128
"""Maximum number of values of a row, for a small plot."""

BUILD_TIME_S = 1.0
"""Time after which a response has no more rows."""

_DEFAULT_ROWS = 128
_CHUNK_BYTES = 16 << 20
_MAX_CHUNK_ROWS = 32
_UNKNOWN_PIXELS = 1 << 20
_MAX_TEXT = 400
_MAX_ERROR = 2000
_SHOWN_VALUES = 6
_CROPS = ("squash", "center", "random")

# Batches that are built at the same time.
_BUILDS = threading.BoundedSemaphore(2)


def parse_load_options(query: Query) -> LoadOptions:
    """Return the options of a loader that is set on the page."""
    crop: Any = query.choice("crop", _CROPS, "squash")
    return LoadOptions.of(
        image_size=_parse_size(query),
        crop=crop,
        flip=query.flag("flip"),
        views=query.integer("views", 1, low=1, high=MAX_VIEWS),
        select=query.optional("select"),
        threads=0,
    )


def _parse_size(query: Query) -> int | tuple[int, int] | Literal["ragged"] | None:
    text = query.optional("image_size")
    if text is None:
        return None
    if text == "ragged":
        return "ragged"
    sides = text.split("x") if text.count("x") == 1 else [text, text]
    for side in sides:
        if not (side.isascii() and side.isdigit() and 1 <= int(side[:6]) <= MAX_IMAGE_SIDE):
            raise RequestError(
                f"image_size is {text[:40]!r}; must be an integer from 1 to {MAX_IMAGE_SIDE}, "
                "height and width such as 224x320, or ragged"
            )
    height, width = map(int, sides)
    return height, width


@dataclass(frozen=True)
class BuiltRows:
    """Consecutive rows of a batch: the columns by name, or the error of the only row."""

    first: int
    columns: Mapping[str, Any]
    error: str | None = None

    def __len__(self) -> int:
        return 1 if self.error is not None else min(map(len, self.columns.values()), default=0)


@dataclass
class BatchRows:
    """Builds the rows of the batch of one rank.

    Args:
        shown: The plan.
        format: Contents of a batch.
        drawn: The examples of the rank.
    """

    shown: ShownPlan
    format: Format
    drawn: Drawn

    @property
    def is_separable(self) -> bool:
        """Whether a row does not depend on the other rows."""
        made = self.format
        return isinstance(made, BatchFormat) and not (
            made.augmenter or made.batch_transform or made.options.is_padded
        )

    def build(self, first: int, count: int) -> tuple[int, Iterable[BuiltRows]]:
        """Return the number of rows of the batch, and some of them in chunks."""
        if self.is_separable:
            end = min(first + count, len(self.drawn.ids))
            return len(self.drawn.ids), self._chunks(first, end)
        columns = _without_labels(self._build(0, len(self.drawn.ids)))
        rows = min(map(len, columns.values()), default=0)
        end = min(first + count, rows)
        part = {name: column[first:end] for name, column in columns.items()}
        return rows, [BuiltRows(first, part)] if first < end else []

    def _chunks(self, first: int, end: int) -> Iterator[BuiltRows]:
        rows = self._chunk_rows()
        for begin in range(first, end, rows):
            stop = min(begin + rows, end)
            try:
                yield self._rows(begin, stop)
            except FeatureError:
                raise  # of the options, images of different sizes for instance
            except CoveyError:
                yield from self._one_by_one(begin, stop)

    def _one_by_one(self, begin: int, stop: int) -> Iterator[BuiltRows]:
        """Build rows of which at least one fails, as the batch of the loader does."""
        for row in range(begin, stop):
            try:
                yield self._rows(row, row + 1)
            except CoveyError as error:
                yield BuiltRows(row, {}, str(error)[:_MAX_ERROR])

    def _chunk_rows(self) -> int:
        made = self.format
        assert isinstance(made, BatchFormat)
        if not made.has_images:
            return _MAX_CHUNK_ROWS
        height, width = made.options.images.size or (1, _UNKNOWN_PIXELS)
        row_bytes = 3 * height * width * made.options.images.views * len(made.image_names)
        return max(1, min(_MAX_CHUNK_ROWS, _CHUNK_BYTES // row_bytes))

    def _rows(self, begin: int, end: int) -> BuiltRows:
        made = self.format
        assert isinstance(made, BatchFormat)
        batch = self._build(begin, end)
        has_labels = made.examples.label is not None and not made.options.as_dict
        name = made.names[0] if len(made.names) == 1 else ""
        return BuiltRows(begin, _flatten(name, batch[0] if has_labels else batch))

    def _build(self, begin: int, end: int) -> Any:
        ids, labels, key = self.drawn
        classes = None
        if labels is not None:
            classes = labels.repeat(key.examples_per_class)[begin:end]
        key = key._replace(row=key.row + begin)
        return self.format.build(ids[begin:end], classes, key, lambda: None)


def _without_labels(batch: Any) -> dict[str, Any]:
    """Return the result of a hook as columns, without the class ids."""
    columns = columns_of(batch)
    if isinstance(batch, tuple) and len(columns) > 1:
        columns.pop("y", None)
    return columns


def _flatten(name: str, x: Any) -> dict[str, Any]:
    """Return x as columns: a dict has one for each feature, a tuple one for each view."""
    columns: dict[str, Any] = {}
    if isinstance(x, Mapping):
        for key, each in x.items():
            columns |= _flatten(str(key) if name == "" else f"{name}/{key}", each)
    elif isinstance(x, tuple):
        for number, each in enumerate(x):
            columns |= _flatten(f"{name}[{number}]", each)
    else:  # an array, or a list of rows
        columns[name or "x"] = x
    return columns


def _open(session: Session, query: Query) -> tuple[BatchRows, bool]:
    """Return the batch that a request names, and whether it is always the same."""
    shown = find_plan(session, query)
    plan = shown.plan
    rank = query.integer("rank", 0, high=plan.world_size - 1)
    step = query.integer("step", 0, high=plan.last_step)
    drawn = shown.draw(step, rank)
    if drawn is None:
        raise RequestError(f"rank {rank} has no batch in step {step}, the last of its epoch", 404)
    loader = shown.loader
    if loader is not None:
        return BatchRows(shown, loader.format, drawn), False
    return BatchRows(shown, BatchFormat(shown.dataset, parse_load_options(query)), drawn), True


@dataclass
class _Part:
    """A column of the response: thumbnails, or descriptions and plotted values."""

    name: str
    is_image: bool
    pixels: list[NDArray[np.uint8]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    plots: list[NDArray[np.float32]] = field(default_factory=list)
    low: float = np.inf
    high: float = -np.inf
    kind: str = ""
    shape: tuple[int, ...] | None = None

    def add(self, value: Any) -> None:
        """Add the value of a row."""
        if isinstance(value, np.ndarray):
            self.kind = str(value.dtype)
            is_same = self.shape in (None, value.shape)
            self.shape = value.shape if is_same else ()
            self._add_range(value)
        elif isinstance(value, (RaggedArray, SparseArray)):
            stored = value.values
            while isinstance(stored, RaggedArray):
                stored = stored.values
            is_text = isinstance(stored, StringArray)
            layout = "ragged" if isinstance(value, RaggedArray) else "sparse"
            self.kind = f"{layout} {'strings' if is_text else stored.dtype}"
            if not is_text:
                self._add_range(stored)
        pixels = as_pixels(value) if self.is_image else None
        if pixels is not None:
            self.pixels.append(resize(pixels, MAX_THUMBNAIL_SIDE))
            return
        self.skip()
        if not self.is_image:
            self.texts[-1] = _describe(value)[:_MAX_TEXT]
            if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.size > 1:
                flat = value.reshape(-1)
                step = -(-len(flat) // MAX_PLOTTED)
                self.plots[-1] = flat[::step].astype(np.float32)

    def _add_range(self, values: NDArray[Any]) -> None:
        if values.dtype.kind in "iuf" and values.size:
            self.low = min(self.low, float(np.fmin.reduce(values, None)))
            self.high = max(self.high, float(np.fmax.reduce(values, None)))

    def skip(self) -> None:
        """Add a row without a value."""
        self.pixels.append(np.zeros((0, 0), np.uint8))
        self.texts.append("")
        self.plots.append(np.zeros(0, np.float32))

    def describe(self) -> dict[str, Any]:
        """Return what the column has."""
        described: dict[str, Any] = {
            "name": self.name,
            "kind": "image" if self.is_image else "values",
            "dtype": self.kind,
            "shape": list(self.shape or ()) or None,
            "low": self.low,
            "high": self.high,
        }
        return described if self.is_image else {**described, "texts": self.texts}

    def arrays(self, number: int) -> dict[str, NDArray[Any]]:
        """Return the arrays: pixels one after the other, and (height, width, channels) of each."""
        if not self.is_image:
            ends = np.cumsum([len(each) for each in self.plots])
            return {
                f"{number}.plots": np.concatenate([*self.plots, np.zeros(0, np.float32)]),
                f"{number}.ends": ends.astype(np.uint32),
            }
        flat = [each.reshape(-1) for each in self.pixels]
        sizes = [(*each.shape[:2], *(each.shape[2:] or (1,))) for each in self.pixels]
        return {
            f"{number}.pixels": np.concatenate([*flat, np.zeros(0, np.uint8)]),
            f"{number}.sizes": np.array(sizes, np.uint32).reshape(-1, 3),
        }


@dataclass
class _Table:
    """The rows of a response, reduced to what is shown."""

    parts: dict[str, _Part] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0

    def add(self, chunk: BuiltRows) -> None:
        """Add consecutive rows."""
        if not self.parts:
            for name, column in chunk.columns.items():
                self.parts[name] = _Part(name, find_picture_size(_row(column[0])) is not None)
                for _ in range(self.rows):  # that could not be built
                    self.parts[name].skip()
        if chunk.error is not None:
            self.errors.append({"row": chunk.first, "message": chunk.error})
        for name, part in self.parts.items():
            for row in range(len(chunk)):
                if chunk.error is None:
                    part.add(_row(chunk.columns[name][row]))
                else:
                    part.skip()
        self.rows += len(chunk)


def values(session: Session, query: Query) -> Response:
    """Return rows of x as thumbnails, and as descriptions and plots where they are not images.

    An error of the loader is part of the answer: the options are valid, the batch is not.
    """
    try:
        return _values(session, query)
    except (RequestError, PlanError):
        raise
    except CoveyError as error:
        return Columns(values={"error": str(error)[:_MAX_ERROR]}).response()
    except Exception as error:
        if session.loader is None:
            raise
        # Of a function of the caller.
        message = f"{type(error).__name__}: {error}"[:_MAX_ERROR]
        return Columns(values={"error": message}).response()


def _values(session: Session, query: Query) -> Response:
    batch, is_fixed = _open(session, query)
    first = query.integer("first", 0, high=2**32)
    count = query.integer("rows", _DEFAULT_ROWS, low=1, high=MAX_ROWS)
    table = _Table()
    deadline = time.monotonic() + BUILD_TIME_S
    with _BUILDS:
        total, chunks = batch.build(first, count)
        for chunk in chunks:
            table.add(chunk)
            if time.monotonic() > deadline:
                break
    columns = Columns(
        values={
            "first": first,
            "rows": table.rows,
            "total": total,
            # The rows are those of the plan; an augmenter may return others.
            "is_aligned": total == len(batch.drawn.ids),
            "parts": [part.describe() for part in table.parts.values()],
            "errors": table.errors,
        }
    )
    for number, part in enumerate(table.parts.values()):
        columns.arrays |= part.arrays(number)
    response = columns.response()
    return Response(response.body, response.content_type, is_fixed=is_fixed)


def _describe(value: Any) -> str:
    """Return a short description of the value of a row: the first values, if it is not dense."""
    if isinstance(value, RaggedArray):
        rows = [_describe_row(row) for row in value[:_SHOWN_VALUES]]
        return f"[{', '.join(rows)}{', ...' if len(value) > len(rows) else ''}]"
    if isinstance(value, SparseArray):
        indices, values = value.indices[:_SHOWN_VALUES], value.values[:_SHOWN_VALUES]
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        entries = [f"{index} {each}" for index, each in pairs]
        return f"{', '.join(entries)}{', ...' if len(value.values) > len(entries) else ''}"
    return describe(value)


def _describe_row(row: Any) -> str:
    if isinstance(row, RaggedArray):
        return _describe(row)
    text = np.array2string(
        row,
        threshold=_SHOWN_VALUES,
        edgeitems=_SHOWN_VALUES // 2,
        separator=", ",
        formatter={"float_kind": "{:.4g}".format, "int_kind": str},
    )
    return " ".join(text.split())  # without line breaks


def _row(value: Any) -> Any:
    """Return the value of a row; numbers as arrays, strings as they are."""
    return np.asarray(value) if isinstance(value, np.generic) else value


def image(session: Session, query: Query) -> Response:
    """Return one image of x as PNG."""
    batch, is_fixed = _open(session, query)
    row, number = query.integer("row", high=2**32), query.integer("view", 0, high=2**16)
    with _BUILDS:
        found = next(iter(batch.build(row, 1)[1]), None)
    if found is None:
        raise RequestError(f"the batch has no row {row}", 404)
    if found.error is not None:
        raise RequestError(found.error, 422)
    columns = list(found.columns.values())
    if number >= len(columns):
        raise RequestError(f"x has no part {number}", 404)
    pixels = as_pixels(_row(columns[number][0]))
    if pixels is None:
        raise RequestError("the value is not an image", 415)
    return Response(encode_png(resize(pixels, MAX_SIDE)), "image/png", is_fixed=is_fixed)
