"""``covey report``: the overview, the charts and one batch of a dataset as one HTML file.

The file has no script and loads nothing: charts are inline SVG (``svg``), thumbnails are ``data:``
URLs, and a Content-Security-Policy allows its style sheet only, by hash. The numbers are those of
the page, from the same functions. Every string of the dataset is escaped and shortened, and every
list is bounded, so that a report is smaller than :data:`MAX_BYTES`.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey._files import atomic_write
from covey._progress import format_bytes
from covey._text import count_of
from covey.errors import CoveyError, DatasetError, PlanError
from covey.plan.base import check_int, check_seed
from covey.urls import check_local, shown
from covey.view import ROUTES
from covey.view.messages import Query, to_json
from covey.view.plans import DEFAULT_CLASSES_PER_BATCH, DEFAULT_EXAMPLES_PER_CLASS
from covey.view.report.batch import BatchSection
from covey.view.report.charts import label_panel, value_panel
from covey.view.report.markup import document, number_text, table, text
from covey.view.session import Session
from covey.view.survey import read_survey

MAX_BYTES = 2_000_000
"""Maximum size of a report."""
MAX_SPLITS = 12
"""Maximum number of splits with charts."""
MAX_FEATURES = 100
"""Maximum number of features that are listed."""
MAX_CHARTS = 60
"""Maximum number of features with charts, of all splits."""
MAX_LISTED = 10
"""Maximum number of missing shards that are listed."""


@dataclass(frozen=True)
class ReportOptions:
    """Which batch a report shows."""

    classes_per_batch: int | None = None
    """P; by default :data:`DEFAULT_CLASSES_PER_BATCH`, or all classes if there are fewer."""
    examples_per_class: int = DEFAULT_EXAMPLES_PER_CLASS
    """K."""
    seed: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if self.classes_per_batch is not None:
            check_int("classes_per_batch", self.classes_per_batch, 1)
        check_int("examples_per_class", self.examples_per_class, 1)
        check_seed(self.seed)
        check_int("step", self.step, 0)


def check_target(path: object) -> Path:
    """Return the path of a report to be written.

    Raises:
        DatasetError, StorageError: If the name does not end with ``.html``, the directory does not
            exist, or the path is a directory or a URL.
    """
    target = Path(check_local(path, "out"))
    name = shown(str(target))
    if target.suffix.lower() != ".html":
        raise DatasetError("the name of a report must end with .html", path=name)
    if target.is_dir():
        raise DatasetError("this is a directory; must be a file", path=name)
    if not target.parent.is_dir():
        raise DatasetError("the directory does not exist", path=shown(str(target.parent)))
    return target


def write_report(session: Session, path: object, options: ReportOptions | None = None) -> int:
    """Write a report, and return its size in bytes.

    Args:
        session: The dataset.
        path: File to be created or replaced, by one rename.
        options: Which batch is shown.
    """
    target = check_target(path)
    data = make_report(session, options or ReportOptions()).encode()
    atomic_write(target, data)
    return len(data)


def make_report(session: Session, options: ReportOptions) -> str:
    """Return a report as HTML."""
    overview = _ask(session, "/api/overview")
    valid = [each for each in overview["splits"] if each["error"] is None]
    charts = _Charts(session)
    sections = [_header(overview), _splits(overview["splits"]), _features(overview["features"])]
    sections += [charts.section(each) for each in valid[:MAX_SPLITS]]
    if len(valid) > MAX_SPLITS:
        omitted = count_of(len(valid) - MAX_SPLITS, "more split")
        sections.append(f'<p class="muted">{omitted} without charts; --split selects one.</p>')
    chosen = next((each for each in valid if each["records"]), None)
    if chosen is not None:
        sections.append(_batch(session, chosen["name"], options))
    return document(f"{overview['title']}: report", "\n".join(sections))


def _ask(session: Session, path: str) -> dict[str, Any]:
    """Return what the server answers to a request of the page."""
    response = ROUTES[path](session, Query(""))
    content: dict[str, Any] = json.loads(response.body)
    return content


# Sections.


def _header(overview: Mapping[str, Any]) -> str:
    records = [each["records"] for each in overview["splits"]]
    total = count_of(sum(each or 0 for each in records), "example")
    path = overview["path"]
    is_title = path is None or path == overview["title"]
    listed = "" if is_title else f"<p><code>{text(path, 500)}</code></p>"
    splits = count_of(len(records), "split")
    kind = {"TFRecords": "TFRecord files"}.get(overview["kind"], f"a {overview['kind']}")
    return (
        f"<header><h1>{text(overview['title'], 200)}</h1>{listed}"
        f'<p class="muted">{html.escape(kind.capitalize())}: {total} in {splits}, '
        f"{count_of(len(overview['features']), 'feature')}.</p></header>"
    )


def _splits(splits: Sequence[Mapping[str, Any]]) -> str:
    header = ["split", "examples", "classes", "shards", "missing shards", "size", "compression"]
    rows = [
        [
            text(each["name"]),
            number_text(each["records"]),
            number_text(each["classes"]),
            number_text(each["shards"]),
            number_text(each["missing_count"]),
            "-" if each["bytes"] is None else format_bytes(each["bytes"]),
            text(each["compression"] or "none"),
        ]
        for each in splits[:MAX_FEATURES]
    ]
    notes = []
    for each in splits[:MAX_FEATURES]:
        if each["error"] is not None:
            notes.append(f"Split {text(each['name'])} cannot be opened: {text(each['error'], 500)}")
        elif each["missing_count"]:
            names = ", ".join(text(name) for name in each["missing"][:MAX_LISTED])
            more = each["missing_count"] - min(len(each["missing"]), MAX_LISTED)
            others = f" and {more:,} more" if more else ""
            notes.append(f"Missing shards of {text(each['name'])}: {names}{others}")
    listed = "".join(f'<p class="error">{each}</p>' for each in notes[:MAX_SPLITS])
    content = table("", header, rows, range(1, 6))
    return f"<section><h2>Splits</h2>{content}{_more(len(splits), MAX_FEATURES)}{listed}</section>"


def _features(features: Sequence[Mapping[str, Any]]) -> str:
    rows = [[text(each["name"]), text(each["type"], 200)] for each in features[:MAX_FEATURES]]
    content = table("", ["feature", "type"], rows)
    more = _more(len(features), MAX_FEATURES)
    return f"<section><h2>Features</h2>{content}{more}</section>"


def _more(count: int, limit: int) -> str:
    return f'<p class="muted">and {count - limit:,} more</p>' if count > limit else ""


def _batch(session: Session, split: str, options: ReportOptions) -> str:
    count = options.classes_per_batch
    try:
        section = BatchSection(session, split)
        if section.dataset.label is not None and count is None:
            count = max(1, min(DEFAULT_CLASSES_PER_BATCH, len(section.dataset.classes)))
        content = section.draw(
            count or DEFAULT_CLASSES_PER_BATCH,
            options.examples_per_class,
            options.seed,
            options.step,
        )
    except PlanError:  # the options are not valid
        raise
    except (CoveyError, OSError) as error:
        content = f'<p class="error">{text(error, 500)}</p>'
    return f"<section><h2>A batch of {text(split)}</h2>{content}</section>"


class _Charts:
    """Charts of splits, until there are too many.

    Args:
        session: The dataset.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left = MAX_CHARTS

    def section(self, split: Mapping[str, Any]) -> str:
        """Return the label distribution and the values of a split."""
        name = split["name"]
        panels = [
            self._guarded(lambda: label_panel(self._session.open(name))),
            self._guarded(lambda: self._values(split)),
        ]
        content = "".join(panels)
        return f'<section><h2>{text(name)}</h2><div class="panels">{content}</div></section>'

    def _guarded(self, make: Callable[[], str]) -> str:
        """Return HTML; an error in place of what cannot be read."""
        try:
            return make()
        except (CoveyError, OSError) as error:
            return f'<p class="error wide">{text(error, 500)}</p>'

    def _values(self, split: Mapping[str, Any]) -> str:
        if not split["records"]:
            return '<p class="muted wide">The split has no examples.</p>'
        # All of the sample, however long it takes: the same dataset gives the same report.
        dataset, release = self._session.open(split["name"]), self._session.release_pages
        survey = to_json(read_survey(dataset, timeout_s=math.inf, after_part=release))
        found = {name: each for name, each in survey["features"].items() if name != split["label"]}
        note = f"Values of {survey['examples']:,} of {survey['of']:,} examples"
        panels = [f'<p class="muted wide">{note}, spread over the split.</p>']
        if survey.get("corrupt"):
            corrupt = count_of(survey["corrupt"], "example")
            panels.append(f'<p class="error wide">{corrupt} of them cannot be read.</p>')
        if survey.get("error"):
            panels.append(f'<p class="error wide">{text(survey["error"], 500)}</p>')
        names = list(found)[: self._left]
        self._left -= len(names)
        panels += [value_panel(name, found[name]) for name in names]
        if len(found) > len(names):
            more = count_of(len(found) - len(names), "more feature")
            panels.append(f'<p class="muted wide">{more} without charts.</p>')
        return "".join(panels)
