"""``covey info``: show the content of a dataset."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from covey._text import count_of, table
from covey.cli.options import JSON, PATH, PROGRESS, Rows, add_options, reading_options
from covey.cli.output import TERMINAL_WIDTH, print_json, print_lines, shorten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from covey.classes import ClassTable
    from covey.results import Duplicates, Info, SplitOverview

SUMMARY = "show the features, splits, sizes, classes and values of a dataset"

EXAMPLES = """\
Ranges, NaN and lengths of values come from the first 1,000 examples of each split.
--deep reads all examples and finds duplicates within a split and between splits: examples whose
input is the same (all features except the label and ids, or the only image or sound).

examples:
  covey info data/birds
  covey info data/birds --deep
  covey info 'photos/*.tfrec'
  covey info --build
"""

_LAYOUTS = {
    "dataset": "a dataset in the layout of TFDS",
    "datum": "a dataset in the layout of datum",
    "TFRecords": "TFRecord files",
}

_MAX_BINS = 12
_ROUND_NUMBERS = [first * 10**power for power in range(19) for first in (1, 2, 5)]

# fmt: off
_OPTIONS: Rows = (
    ("", "--deep", bool, None, "read all examples, and find duplicates"),
    ("", "--build", bool, None,
     "show the versions and the image decoders of this installation; no PATH is needed"),
)
# fmt: on


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, *PATH, *_OPTIONS, *PROGRESS, *JSON)
    next(each for each in parser._actions if each.dest == "path").nargs = "?"


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.build:
        found_build = describe_build()
        if options.json:
            print_json(found_build)
        else:
            print_lines(*_build_lines(found_build))
        return
    if options.path is None:
        options.refuse("the following arguments are required: PATH")
    from covey.maintenance.info import info

    found = info(options.path, deep=options.deep, **reading_options(options))
    if options.json:
        print_json(_to_dict(found))
        return
    print_lines(f"{found.path}: {_LAYOUTS[found.kind]}", *_lines(found))


def describe_build() -> dict[str, Any]:
    """Return the versions and the image decoders of this installation, as values of JSON."""
    import platform
    from importlib import metadata

    import numpy as np

    import covey
    from covey import _core

    found = [each.version for each in metadata.distributions(name="pillow")]
    return {
        "covey": covey.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "crc32c": _core.crc32c_implementations()[0],
        "image_decoders": list(_core.image_decoders()),
        "pillow": found[0] if found else None,
    }


def _build_lines(build: dict[str, Any]) -> Iterator[str]:
    for name in ("covey", "python", "numpy"):
        yield f"{name} {build[name]}"
    yield f"CRC-32C: {build['crc32c']}"
    for decoder in build["image_decoders"] or ["none in this build; Pillow decodes images"]:
        yield f"image decoder: {decoder}"
    yield f"pillow: {build['pillow'] or 'not installed'}"


def _lines(found: Info) -> Iterator[str]:
    if found.features:
        kinds = [
            [shorten(name, TERMINAL_WIDTH), kind.summary] for name, kind in found.features.items()
        ]
        note = " (of the first record)" if found.is_guess else ""
        yield from table(["feature", f"type{note}"], kinds, "<<")
    yield from _splits(found)
    for split in found.splits:
        yield from _split_details(split, found)
        yield from _values(split)
    if found.duplicates is not None:
        yield from _duplicates(found.duplicates)


def _splits(found: Info) -> list[str]:
    from covey._progress import format_bytes

    rows = [
        [
            shorten(split.name, TERMINAL_WIDTH),
            "?" if split.records is None else f"{split.records:,}",
            f"{split.shards:,}",
            format_bytes(split.bytes),
            split.compression or "none",
            split.index,
        ]
        for split in found.splits
    ]
    return table(["split", "examples", "shards", "size", "compression", "index"], rows)


def _split_details(split: SplitOverview, found: Info) -> Iterator[str]:
    if split.missing:
        more = f" and {len(split.missing) - 1:,} more" if len(split.missing) > 1 else ""
        yield f"{split.name}: {split.missing[0]}{more}: missing; `covey verify` lists all of them"
    if split.index == "missing":
        yield (
            f"{split.name}: no index, so its classes are unknown; "
            f"`covey index {found.path} --label NAME` builds one"
        )
    elif split.index != "fresh":
        yield f"{split.name}: the index is {split.index}: {split.reason}"
    elif split.classes is None:
        yield (
            f"{split.name}: no label feature; `covey index {found.path} --label NAME` specifies one"
        )
    else:
        yield from _classes(split.name, split.label, split.classes)


def _values(split: SplitOverview) -> Iterator[str]:
    """Yield the lines of images and of a table of values."""
    from covey.schema.images import describe_images

    of_all = split.values_of == split.records
    of = f"{'all' if of_all else 'the first'} {split.values_of:,} examples"
    images = {name: value.images for name, value in split.values.items() if value.images}
    for name, found in (images | dict(split.images)).items():
        note = "" if of_all or name in split.images else f" in {of}"
        yield f"{split.name}: {shorten(name)!r} has {describe_images(found)}{note}"
    if split.values_error:
        yield f"{split.name}: the examples cannot be read: {split.values_error}"
    rows = [
        [
            shorten(name),
            *map(_number, (value.minimum, value.maximum, value.mean, value.nan)),
            *map(_number, value.lengths or (None,) * 3),
        ]
        for name, value in split.values.items()
        if value.images is None
    ]
    if rows:
        yield f"{split.name}: values of {of}"
        header = ["feature", "min", "max", "mean", "NaN", "shortest", "median", "longest"]
        used = [at == 0 or any(row[at] != "-" for row in rows) for at in range(len(header))]
        yield from table(
            list(itertools.compress(header, used)),
            [list(itertools.compress(row, used)) for row in rows],
        )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _duplicates(found: Duplicates) -> Iterator[str]:
    """Yield the lines of the duplicates."""
    names = ", ".join(repr(shorten(name)) for name in found.features)
    within = {name: count for name, count in found.within.items() if count}
    if not within and not found.between:
        yield f"no duplicates by {names}"
        return
    yield f"duplicates by {names}:"
    for (first, second), count in found.between.items():
        yield f"  {shorten(second)}: {count_of(count, 'example')} also in {shorten(first)}"
    for name, count in within.items():
        equal = count_of(count, "example")
        yield f"  {shorten(name)}: {equal} equal to an earlier one of the split"
    if found.conflicts:
        has = "has" if found.conflicts == 1 else "have"
        yield f"  {count_of(found.conflicts, 'duplicate')} {has} conflicting labels"
    rows = [
        [
            f"{shorten(split)} {number}{'' if pair.classes is None else f' ({of_class})'}"
            for split, number, of_class in zip(
                pair.splits, pair.ids, map(shorten, pair.classes or ("", "")), strict=True
            )
        ]
        for pair in found.pairs
    ]
    yield from table(["example", "same content"], rows, "<<")


def _classes(name: str, label: str | None, classes: ClassTable) -> Iterator[str]:
    """Yield the lines of the class sizes and their histogram."""
    of = "by file" if label == "@file" else f"of {label!r}"
    yield f"{name}: {count_of(len(classes), 'class', 'classes')} {of}"
    bins = histogram(classes.counts)
    if not bins:
        return
    if len(bins) == 1 and bins[0][0] == bins[0][1]:
        yield f"  {count_of(bins[0][0], 'example')}{' each' if len(classes) > 1 else ''}"
        return
    for which, (class_name, records) in _balance(classes).items():
        yield f"  {which:8}  {records:>9,}  {shorten(class_name)}"
    names = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high, _ in bins]
    most = max(count for *_, count in bins)
    room = TERMINAL_WIDTH - max(map(len, ("examples", *names))) - max(7, len(f"{most:,}")) - 6
    rows = [
        (name, f"{count:,}", "#" * -(-count * room // most))
        for name, (*_, count) in zip(names, bins, strict=True)
    ]
    yield from table(["examples", "classes", ""], rows, ">><")


def _balance(classes: ClassTable) -> dict[str, tuple[str, int]]:
    """Return the names and sizes of the smallest, the median and the largest class."""
    counts = classes.counts
    order = counts.argsort(kind="stable")
    chosen = {"smallest": 0, "median": (len(order) - 1) // 2, "largest": -1}
    return {
        which: (classes.names[classes.labels[order[at]]], int(counts[order[at]]))
        for which, at in chosen.items()
        if len(order)
    }


def _to_dict(found: Info) -> dict[str, Any]:
    return {
        "path": found.path,
        "kind": found.kind,
        "features": {name: kind.summary for name, kind in (found.features or {}).items()},
        "features_of_first_record_only": found.is_guess,
        "splits": {split.name: _split_to_dict(split) for split in found.splits},
        "duplicates": None if found.duplicates is None else _duplicates_to_dict(found.duplicates),
    }


def _duplicates_to_dict(found: Duplicates) -> dict[str, Any]:
    between = [{"splits": splits, "examples": count} for splits, count in found.between.items()]
    return {**vars(found), "between": between, "pairs": [asdict(pair) for pair in found.pairs]}


def _split_to_dict(split: SplitOverview) -> dict[str, Any]:
    from covey.cli.values import to_json

    content = dict(vars(split))
    del content["name"]
    content["values"] = {name: to_json(vars(each)) for name, each in split.values.items()}
    if split.classes is not None:
        chosen = _balance(split.classes)
        content["classes"] = {
            "count": len(split.classes),
            **{which: {"name": name, "records": count} for which, (name, count) in chosen.items()},
            "histogram": [
                {"from": low, "to": high, "classes": count}
                for low, high, count in histogram(split.classes.counts)
            ],
        }
    return content


def histogram(counts: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Return a histogram of class sizes: (smallest size, largest size, number of classes) per bin.

    There are at most twelve bins: one per size if there are few sizes, else of equal width, or of
    growing width if some classes are much larger than others.

    Args:
        counts: Number of examples of each class.

    >>> import numpy as np
    >>> histogram(np.array([3, 3, 4]))
    [(3, 3, 2), (4, 4, 1)]
    >>> histogram(np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377]))[-1]
    (200, 499, 2)
    """
    import numpy as np

    sizes, classes = np.unique(counts, return_counts=True)
    if not len(sizes):
        return []
    low, high = int(sizes[0]), int(sizes[-1])
    if len(sizes) <= _MAX_BINS:
        bins = [(size, size) for size in sizes.tolist()]
    elif high >= 8 * max(1, low):
        # 1, 2, 5, 10, ..., or 1, 10, 100, ... if those are too many.
        bins = _bins(_ROUND_NUMBERS, low, high)
        if len(bins) > _MAX_BINS:
            bins = _bins(_ROUND_NUMBERS[::3], low, high)
    else:
        step = next(each for each in _ROUND_NUMBERS if each * _MAX_BINS > high - low)
        bins = _bins(range(low // step * step, high + step + 1, step), low, high)
    return [
        (begin, end, int(classes[(sizes >= begin) & (sizes <= end)].sum())) for begin, end in bins
    ]


def _bins(begins: Sequence[int], low: int, high: int) -> list[tuple[int, int]]:
    """Return the bins between successive numbers that overlap a range of sizes."""
    return [
        (begin, following - 1)
        for begin, following in itertools.pairwise(begins)
        if following > low and begin <= high
    ]
