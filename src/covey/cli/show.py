"""``covey show``: print examples, and save their images."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from covey._text import count_of
from covey.cli.options import (
    add_path,
    add_running,
    picture,
    positive,
)
from covey.cli.output import print_json, print_lines, print_message

if TYPE_CHECKING:
    from covey import Dataset
    from covey.cli.contact_sheet import SheetRow

SUMMARY = "print examples: strings, numbers, arrays, images and sounds"

EXAMPLES = """\
An id is that of ds[id] with ds = covey.open(PATH, split=SPLIT): 17, -1 for the last example, or a
range like 10:20. With --class, ids count the examples of the class.

examples:
  covey show data/birds
  covey show data/birds 17 100:110 --split test
  covey show data/birds --class owl --select image --save owls.png
  covey show 'photos/*.tfrec' 0 --json
"""

DEFAULT_EXAMPLES = 5
_ROW_IMAGES = 8

_ID = re.compile(r"-?\d{1,18}")
_RANGE = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?(?::(-?[1-9]\d{0,17}))?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_path(parser)
    parser.add_argument(
        "ids",
        nargs="*",
        metavar="IDS",
        type=ids,
        help=f"ids or ranges of examples (default: 0:{DEFAULT_EXAMPLES})",
    )
    parser.add_argument(
        "--label",
        metavar="NAME",
        help="label feature, or @file (default: that of the index, or a feature with a common "
        "name)",
    )
    parser.add_argument("--class", dest="class_", metavar="NAME", help="only this class")
    parser.add_argument(
        "--select",
        metavar="NAME",
        action="append",
        help="feature to print; may be repeated (default: all)",
    )
    parser.add_argument(
        "--save", metavar="FILE", type=picture, help="save a contact sheet, .png or .jpg"
    )
    parser.add_argument(
        "--max-pixels",
        metavar="N",
        type=positive,
        help="limit of the pixels of an image (default: 64,000,000)",
    )
    add_running(parser)
    _accept_ids_after_options(parser)


def ids(text: str) -> int | slice:
    """Parse an id or a range.

    >>> ids("17"), ids("10:20"), ids("::-1")
    (17, slice(10, 20, None), slice(None, None, -1))
    """
    if _ID.fullmatch(text):
        return int(text)
    found = _RANGE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be an id, or a range like 10:20")
    return slice(*(None if part is None else int(part) for part in found.groups()))


def _accept_ids_after_options(parser: argparse.ArgumentParser) -> None:
    """Accept ids after options: argparse takes all positional arguments from one place."""
    parse = parser.parse_known_args

    def parse_known_args(given: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, rest = parse(given, namespace)
        others = []
        for each in rest:
            if each.startswith("-") and not _ID.fullmatch(each):
                others.append(each)
                continue
            try:
                found.ids = [*(found.ids or ()), ids(each)]
            except argparse.ArgumentTypeError as error:
                parser.error(f"argument IDS: {error}")
        return found, others

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.cli.values import example_lines, open_dataset, to_json
    from covey.urls import shown
    from covey.view.summaries import read_examples

    with open_dataset(options) as dataset:
        chosen = choose_ids(dataset, options.ids, options.class_)
        examples = read_examples(dataset, chosen, options.select)
        if options.json:
            content = {
                "path": shown(options.path),
                "split": options.split or "all",
                "label": dataset.label,
                "count": len(dataset),
                "examples": list(examples),
            }
            print_json(to_json(content | {"sheet": _save(dataset, chosen, options)}))
            return
        if not options.quiet:
            print_lines(f"{shown(options.path)}: {count_of(len(dataset), 'example')}")
            hidden = None if options.select else dataset.label
            for example in examples:
                print_lines(*example_lines(example, hidden))
        sheet = _save(dataset, chosen, options)
        if sheet is not None and not options.quiet:
            print_lines(f"images of {sheet['feature']!r}: {sheet['file']}")


def choose_ids(
    dataset: Dataset, selected: Sequence[int | slice], class_name: str | None
) -> list[int]:
    """Return the ids of the examples to print.

    Args:
        dataset: The dataset.
        selected: Ids and ranges; empty for the first few.
        class_name: Name or id of the class that they count; None for the dataset.

    Raises:
        DatasetError: If there is no such class, or no such example.
    """
    import numpy as np

    from covey.errors import DatasetError

    among: Any = range(len(dataset))
    if class_name is not None:
        classes = dataset.classes
        try:
            position = classes.position(class_name)
        except DatasetError:
            if not _ID.fullmatch(class_name):
                raise
            position = classes.position(int(class_name))
        among = np.flatnonzero(dataset.labels == classes.labels[position])
    chosen: list[int] = []
    for each in selected or [slice(0, DEFAULT_EXAMPLES)]:
        if isinstance(each, slice):
            chosen += map(int, among[each])
        elif -len(among) <= each < len(among):
            chosen.append(int(among[each]))
        else:
            raise DatasetError(
                f"there is no example {each} among {count_of(len(among), 'example')}"
            )
    return chosen


def _save(
    dataset: Dataset, chosen: Sequence[int], options: argparse.Namespace
) -> dict[str, str] | None:
    """Save the contact sheet, if it is requested; return the file and the feature."""
    from covey.cli.contact_sheet import (
        MAX_COLUMNS,
        MAX_ROWS,
        choose_feature,
        draw_sheet,
        save_sheet,
    )
    from covey.errors import DatasetError
    from covey.urls import check_local, shown

    if options.save is None:
        return None
    path = check_local(options.save)
    if not chosen:
        raise DatasetError("there are no examples to save", path=shown(path), option="save")
    feature = choose_feature(dataset, chosen[0], options.select or (), path)
    assert feature is not None
    rows = _sheet_rows(dataset, feature, chosen)
    save_sheet(draw_sheet(rows), path)
    drawn = sum(len(row.thumbnails) for row in rows)
    if drawn < len(chosen):
        print_message(
            f"{shown(path)} has {drawn:,} of {count_of(len(chosen), 'image')}: the first "
            f"{MAX_COLUMNS} of the first {MAX_ROWS} rows"
        )
    return {"file": path, "feature": feature}


def _sheet_rows(dataset: Dataset, feature: str, chosen: Sequence[int]) -> list[SheetRow]:
    """Return a row for each class, or for some examples if there are no classes."""
    import numpy as np

    from covey.cli.contact_sheet import MAX_COLUMNS, MAX_ROWS, SheetRow, thumbnails

    if dataset.label is None:
        begins = range(0, min(len(chosen), MAX_ROWS * _ROW_IMAGES), _ROW_IMAGES)
        parts = [chosen[begin : begin + _ROW_IMAGES] for begin in begins]
        return [
            SheetRow(f"{part[0]} to {part[-1]}", None, thumbnails(dataset, feature, part))
            for part in parts
        ]
    by_class: dict[int, list[int]] = {}
    labels = dataset.labels_of(np.array(chosen, np.int64)).tolist()
    for number, label in zip(chosen, labels, strict=True):
        by_class.setdefault(label, []).append(number)
    return [
        SheetRow(
            dataset.class_name(label),
            label,
            thumbnails(dataset, feature, part[:MAX_COLUMNS]),
        )
        for label, part in itertools.islice(by_class.items(), MAX_ROWS)
    ]
