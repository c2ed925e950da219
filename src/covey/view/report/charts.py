"""Charts of the report: the label distribution, and the values of features."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from covey._text import count_of, shorten
from covey.dataset.dataset import Dataset
from covey.view.report.markup import number_text, table, text
from covey.view.report.svg import bar_chart, scatter

MAX_BARS = 200
"""Maximum number of bars of the label distribution; more classes share bars."""
MAX_CLASSES = 10
"""Maximum number of classes that are listed as the largest ones, and as the smallest ones."""

# The largest class has so many times the examples of the median if counts are drawn as logarithms.
_LOG_RATIO = 30
# Width of the label distribution in bars, so that a few bars are not wide.
_MIN_SLOTS = 12


def label_panel(dataset: Dataset) -> str:
    """Return the number of examples of the classes: sorted bars, and the largest and smallest."""
    if dataset.label is None:
        return '<p class="muted wide">The examples have no label.</p>'
    classes = dataset.classes
    count = len(classes)
    if not count:
        return '<p class="muted wide">There are no classes.</p>'
    counts = classes.counts.astype(np.int64)
    order = np.argsort(-counts, kind="stable")
    ordered = counts[order]
    names = classes.names

    def name(position: int) -> str:
        return names[int(classes.labels[order[position]])]

    largest, median, smallest = (int(ordered[at]) for at in (0, count // 2, count - 1))
    ends = np.linspace(0, count, min(count, MAX_BARS) + 1).astype(np.int64).tolist()
    heights, titles = [], []
    for first, last in pairwise(ends):
        heights.append(float(ordered[first:last].mean()))
        if last - first == 1:
            titles.append(f"{shorten(name(first), 80)}: {ordered[first]:,}")
        else:
            low, high = int(ordered[last - 1]), int(ordered[first])
            titles.append(f"classes {first + 1:,} to {last:,}: {low:,} to {high:,} examples each")
    is_log = largest > _LOG_RATIO * max(1, median)
    summary = (
        f"{count_of(count, 'class', 'classes')} of {shorten(dataset.label, 80)}: the largest has "
        f"{count_of(largest, 'example')}, the median {median:,}, the smallest {smallest:,}"
    )
    rows = [[text(name(at)), f"{ordered[at]:,}"] for at in range(min(count, MAX_CLASSES))]
    tables = table("Largest classes", ["class", "examples"], rows, [1])
    if count > MAX_CLASSES:
        last = range(count - 1, max(MAX_CLASSES, count - MAX_CLASSES) - 1, -1)
        rows = [[text(name(at)), f"{ordered[at]:,}"] for at in last]
        tables += table("Smallest classes", ["class", "examples"], rows, [1])
    scale = "; logarithmic scale" if is_log else ""
    return (
        f'<div class="panel wide"><h3>Classes of {text(dataset.label)}</h3><figure>'
        f"{bar_chart(heights, summary, titles, is_log=is_log, slots=_MIN_SLOTS)}"
        f'<div class="axis"><span>largest: {largest:,}</span><span>smallest: {smallest:,}</span>'
        f"</div><figcaption>{html.escape(summary)}{scale}.</figcaption></figure>"
        f"<details><summary>Largest and smallest classes</summary>{tables}</details></div>"
    )


def value_panel(name: str, found: Mapping[str, Any]) -> str:
    """Return the summary of a feature, and its histogram."""
    facts: list[tuple[str, str]] = []
    if found.get("min") is not None:
        low, high = number_text(found["min"]), number_text(found["max"])
        facts.append(("range", f"{low} to {high}"))
    if found.get("mean") is not None:
        facts.append(("mean", number_text(found["mean"])))
    if found.get("nan") is not None:
        facts.append(("NaN", f"{found['nan']:,}"))
    if found.get("lengths"):
        low, median, high = (number_text(each) for each in found["lengths"])
        facts.append(("lengths", f"{low} to {high}, median {median}"))
    images = found.get("images")
    if images:
        facts += _image_facts(images)
    listed = "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in facts)
    largest = found["lengths"][2] if found.get("lengths") else found.get("max")
    charts = _histogram(name, found.get("histogram"), largest)
    if images and len(images.get("sizes") or ()) > 1:
        charts += _sizes(images["sizes"])
    facts_list = f"<dl>{listed}</dl>" if listed else ""
    if not facts_list and not charts:
        facts_list = '<p class="muted">no values</p>'
    kind = f'<span class="type">{text(found.get("kind", ""))}</span>'
    return f'<div class="panel"><h3>{text(name)} {kind}</h3>{facts_list}{charts}</div>'


def _image_facts(images: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = []
    small, large = images.get("smallest"), images.get("largest")
    if small and large:
        first, last = ("{:,} x {:,}".format(*each) for each in (small, large))
        facts.append(("sizes", first if first == last else f"{first} to {last}"))
    for key in ("formats", "channels"):
        counts = images.get(key) or {}
        if counts:
            listed = ", ".join(f"{text(each)} ({count:,})" for each, count in counts.items())
            facts.append((key, listed))
    return facts


def _histogram(name: str, found: Mapping[str, Any] | None, largest: float | None) -> str:
    if not found or not found.get("counts"):
        return ""
    counts: list[int] = found["counts"]
    what = str(found.get("what", "values"))
    ranges = _ranges(found["edges"], largest)
    titles = [f"{span}: {count:,}" for span, count in zip(ranges, counts, strict=True)]
    highest = max(range(len(counts)), key=counts.__getitem__)
    ends = [ranges[0].partition(" to ")[0], ranges[-1].rpartition(" to ")[2]]
    summary = (
        f"Histogram of the {what} of {shorten(name, 80)}: {' to '.join(ends)}, most in "
        f"{titles[highest]}"
    )
    rows = [[span, f"{count:,}"] for span, count in zip(ranges, counts, strict=True)]
    values = table("", [html.escape(what), "count"], rows, [1])
    return (
        f"<figure>{bar_chart(counts, summary, titles)}"
        f'<div class="axis"><span>{ends[0]}</span><span>{html.escape(what)}</span>'
        f"<span>{ends[1]}</span></div></figure>"
        f"<details><summary>Numbers of the histogram</summary>{values}</details>"
    )


def _ranges(edges: Sequence[float], largest: float | None = None) -> list[str]:
    """Return the range of each bin; that of integers, whose edges are between them, as integers.

    Args:
        edges: The edges of the bins.
        largest: The largest value; the last bin of integers may be wider than they need.

    >>> _ranges([0.5, 1.5, 2.5]), _ranges([-0.5, 2.5], 1), _ranges([0, 0.25])
    (['1', '2'], ['0 to 1'], ['0 to 0.25'])
    """
    if any(edge % 1 != 0.5 for edge in edges):
        return [f"{number_text(low)} to {number_text(high)}" for low, high in pairwise(edges)]
    spans = [(math.ceil(low), math.floor(high)) for low, high in pairwise(edges)]
    if largest is not None and spans[-1][0] <= largest < spans[-1][1]:
        spans[-1] = spans[-1][0], int(largest)
    return [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in spans]


def _sizes(sizes: Sequence[Sequence[int]]) -> str:
    points = [(float(width), float(height), float(count)) for height, width, count in sizes]
    end = int(max(max(width, height) for width, height, _ in points))
    summary = f"{len(sizes):,} image sizes by width and height, up to {end:,} pixels"
    return (
        f"<figure>{scatter(points, summary)}"
        f"<figcaption>Height by width, 0 to {end:,} pixels; {len(sizes):,} sizes, larger points "
        "for more images.</figcaption></figure>"
    )
