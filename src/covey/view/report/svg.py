"""Charts as inline SVG, for a page without scripts.

A chart stretches to the width of the page, so it has no text: the labels of its axes are HTML. Its
summary is its text alternative, and each bar has a title, which browsers show as a tooltip. Colors
are those of the classes ``bar`` and ``line`` in the style sheet of the page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

HEIGHT = 100.0
"""Height of the coordinates of a chart."""

# A bar of a small value stays visible.
_MIN_BAR = 1.0


def bar_chart(
    values: Sequence[float],
    summary: str,
    titles: Sequence[str] | None = None,
    *,
    is_log: bool = False,
    slots: int = 1,
) -> str:
    """Return vertical bars.

    Args:
        values: Numbers >= 0.
        summary: Text alternative.
        titles: Tooltip of each bar.
        is_log: Whether heights are logarithms; 1 has a quarter of the height of 10 at least.
        slots: Minimum width in bars.
    """
    heights = [math.log10(1 + value) if is_log else value for value in values]
    highest = max(heights, default=0) or 1
    bars = []
    for position, height in enumerate(heights):
        if height <= 0:
            continue
        tall = max(_MIN_BAR, height / highest * HEIGHT)
        shape = (
            f'x="{_number(position + 0.06)}" y="{_number(HEIGHT - tall)}" width="0.88" '
            f'height="{_number(tall)}"'
        )
        title = "" if titles is None else f"<title>{html.escape(titles[position])}</title>"
        bars.append(f'<rect class="bar" {shape}>{title}</rect>' if title else f"<rect {shape}/>")
    content = "".join(bars)
    if titles is None:
        content = f'<g class="bar">{content}</g>'
    return _svg("plot", (max(slots, len(values)), HEIGHT), summary, content)


def envelope(low: Sequence[float], high: Sequence[float], summary: str) -> str:
    """Return the area between two lines over the same positions; one line if they are equal.

    Values that are not finite are left out.
    """
    finite = [
        (position, bottom, top)
        for position, (bottom, top) in enumerate(zip(low, high, strict=True))
        if math.isfinite(bottom) and math.isfinite(top)
    ]
    smallest = min((bottom for _, bottom, _ in finite), default=0.0)
    largest = max((top for _, _, top in finite), default=0.0)
    scale = HEIGHT / ((largest - smallest) or 1)
    upper = [(position, HEIGHT - (top - smallest) * scale) for position, _, top in finite]
    lower = [(position, HEIGHT - (bottom - smallest) * scale) for position, bottom, _ in finite]
    is_line = upper == lower
    points = upper if is_line else [*upper, *reversed(lower)]
    text = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    shape = f'<polyline class="line" points="{text}"/>' if is_line else ""
    shape = shape or f'<polygon class="line area" points="{text}"/>'
    return _svg("spark", (max(1, len(low) - 1), HEIGHT), summary, shape if points else "")


def scatter(points: Sequence[tuple[float, float, float]], summary: str) -> str:
    """Return points (x, y, weight) >= 0 in a square whose sides begin at 0.

    The area of a point grows with its weight.
    """
    end = max((max(x, y) for x, y, _ in points), default=0) or 1
    heaviest = max((weight for _, _, weight in points), default=0) or 1
    dots = [
        f'<circle cx="{_number(x / end * HEIGHT)}" cy="{_number(HEIGHT - y / end * HEIGHT)}" '
        f'r="{_number(1.2 + 3 * math.sqrt(weight / heaviest))}"/>'
        for x, y, weight in points
    ]
    content = f'<path class="frame" d="M0 0V100H100"/><g class="dot">{"".join(dots)}</g>'
    return _svg("square", (HEIGHT, HEIGHT), summary, content, margin=5, stretches=False)


def _svg(
    kind: str,
    size: tuple[float, float],
    summary: str,
    content: str,
    *,
    margin: float = 0,
    stretches: bool = True,
) -> str:
    box = (-margin, -margin, size[0] + 2 * margin, size[1] + 2 * margin)
    ratio = ' preserveAspectRatio="none"' if stretches else ""
    return (
        f'<svg class="{kind}" role="img" aria-label="{html.escape(summary)}" '
        f'viewBox="{" ".join(map(_number, box))}"{ratio}>{content}</svg>'
    )


def _number(value: float) -> str:
    """Return a coordinate with at most two decimals.

    >>> _number(2.0), _number(1 / 3)
    ('2', '0.33')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")
