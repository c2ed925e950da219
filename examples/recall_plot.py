"""Results of compare_samplers.py as a Markdown table and as an SVG."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any
from xml.sax.saxutils import escape

NAMES = {"keras": "Keras", "torch": "PyTorch"}

# Visible on white and on black. Shapes differ too, for readers who cannot distinguish the colours.
COLORS = {"keras": "#c2572f", "torch": "#3a7fc1"}
GREY = "#787878"

LEFT, RIGHT, TOP, ROW, WIDTH = 230, 30, 64, 58, 760


def by_arm(results: dict[str, Any]) -> dict[tuple[str, str], list[float]]:
    """Return recall@1 of all seeds, by arm and framework."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in results["runs"]:
        found.setdefault((run["arm"], run["framework"]), []).append(run["recall"])
    return found


def format_percent(values: list[float]) -> str:
    """Return mean and standard deviation in percent."""
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    found = by_arm(results)
    frameworks = [name for name in NAMES if any(name == each for _, each in found)]
    titles = ["batches", "classes", "with a partner", "pairs"]
    titles += [NAMES[name] for name in frameworks]
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1)]
    for arm, batches in results["arms"].items():
        cells = [
            arm,
            f"{batches['classes']:.1f}",
            f"{batches['partnered']:.1f}",
            f"{batches['pairs']:,}",
        ]
        lines.append(cells + [format_percent(found[arm, name]) for name in frameworks])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def describe(results: dict[str, Any]) -> str:
    """Return the results as a sentence, for screen readers."""
    found = by_arm(results)
    parts = [
        f"{arm}, {NAMES[framework]}: {format_percent(found[arm, framework])}"
        for arm in results["arms"]
        for framework in NAMES
        if (arm, framework) in found
    ]
    return f"Mean and standard deviation of recall@1 in percent. {'; '.join(parts)}."


def draw(results: dict[str, Any]) -> str:
    """Return the results as an SVG: a point per seed, mean and standard deviation."""
    found = by_arm(results)
    arms = list(results["arms"])
    seeds = len({run["seed"] for run in results["runs"]})
    values = [value for each in found.values() for value in each]
    low, high = int(20 * min(values)), int(20 * max(values)) + 1  # in steps of 0.05
    bottom = TOP + ROW * len(arms)

    def x(value: float) -> float:
        return round(LEFT + (20 * value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    title = f"recall@1 on classes never seen in training, {seeds} seeds"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 44}" role="img" '
        'aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="14" '
        f'fill="{GREY}">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(describe(results))}</desc>',
        f'<text x="{LEFT}" y="22" font-size="16" font-weight="600">{escape(title)}</text>',
    ]
    left = LEFT
    for framework, name in NAMES.items():
        if any(framework == each for _, each in found):
            out += [
                _point(framework, left + 6, 42),
                f'<text x="{left + 18}" y="47">{name}</text>',
            ]
            left += 100
    out.append(f'<text x="{left}" y="47">| mean, with a standard deviation to either side</text>')
    for tick in range(low, high + 1):
        at = x(tick / 20)
        out += [
            f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}" stroke="{GREY}" opacity="0.3"/>',
            f'<text x="{at}" y="{bottom + 20}" text-anchor="middle">{5 * tick}%</text>',
        ]
    for row, arm in enumerate(arms):
        middle = TOP + ROW * (row + 0.5)
        out.append(f'<text x="{LEFT - 14}" y="{middle + 5}" text-anchor="end">{escape(arm)}</text>')
        for framework, beside in (("keras", -11), ("torch", 11)):
            if (arm, framework) in found:
                out += _spread(framework, found[arm, framework], x, middle + beside)
    return "\n".join([*out, "</svg>", ""])


def _spread(framework: str, values: list[float], x: Any, y: float) -> list[str]:
    middle, spread = mean(values), stdev(values)
    color = COLORS[framework]
    return [
        f'<line x1="{x(middle - spread)}" x2="{x(middle + spread)}" y1="{y}" y2="{y}" '
        f'stroke="{color}" stroke-width="8" opacity="0.35"/>',
        *(_point(framework, x(value), y) for value in values),
        f'<line x1="{x(middle)}" x2="{x(middle)}" y1="{y - 9}" y2="{y + 9}" stroke="{color}" '
        'stroke-width="3"/>',
    ]


def _point(framework: str, x: float, y: float) -> str:
    style = f'fill="none" stroke="{COLORS[framework]}" stroke-width="1.5"'
    if framework == "keras":
        return f'<rect x="{x - 4:.1f}" y="{y - 4}" width="8" height="8" {style}/>'
    return f'<circle cx="{x}" cy="{y}" r="4.5" {style}/>'
