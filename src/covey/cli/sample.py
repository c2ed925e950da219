"""``covey sample``: draw a balanced batch and save its images."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from covey._text import count_of, table
from covey.cli.options import (
    CLASSES_PER_BATCH,
    add_batch,
    add_path,
    add_running,
    picture,
    positive,
)
from covey.cli.output import print_json, print_lines, print_message, shorten
from covey.errors import FeatureError
from covey.results import MAX_TABLE_ROWS

if TYPE_CHECKING:
    from covey import Dataset

SUMMARY = "draw a batch of P classes with K examples of each, list it, and save its images"

EXAMPLES = """\
The batch is that of ds.batches(P, K, seed=SEED) at STEP. The ids are those of
covey.open(PATH, split=SPLIT).

A contact sheet of the images is saved, with a row for each class. These features are images, in
this order: encoded images (PNG, JPEG, ...); uint8 tensors of shape (h, w) or (h, w, 1, 3 or 4);
flat uint8 tensors of at least 64 values that are a square of grey or RGB pixels.

examples:
  covey sample data/birds -p 8 -k 4
  covey sample data/birds --split test --step 100 --save batch-100.png
  covey sample data/birds --class-weights sqrt --json --no-save
"""

_MAX_VALUE_COLUMNS = 4
_MIN_VALUE_WIDTH = 24
_VALUES_WIDTH = 100


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_path(parser)
    add_batch(parser)
    parser.add_argument(
        "--class-weights",
        choices=("sqrt", "size"),
        help="draw classes in proportion to their size, or to its square root (default: equally "
        "often)",
    )
    parser.add_argument(
        "--select", metavar="NAME", help="image feature of the sheet (default: the first)"
    )
    parser.add_argument(
        "--max-pixels",
        metavar="N",
        type=positive,
        help="limit of the pixels of an image (default: 64,000,000)",
    )
    saving = parser.add_mutually_exclusive_group()
    saving.add_argument(
        "--save",
        metavar="FILE",
        type=picture,
        help="path of the sheet, .png or .jpg (default: <name of the dataset>-sample.png)",
    )
    saving.add_argument("--no-save", action="store_true", help="do not save a sheet")
    add_running(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.cli.values import open_dataset, to_json

    with open_dataset(options) as dataset:
        if options.select is not None:
            dataset.features.select([options.select])  # raises if it does not exist
        batch = _draw(dataset, options)
        try:
            _read(dataset, batch["classes"])
            batch["sheet"] = _save(dataset, batch["classes"], options)
        finally:  # the batch is printed even if the sheet fails
            if options.json:
                print_json(to_json(batch))
            elif not options.quiet:
                print_lines(*_describe(batch))


def _draw(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Return the batch, as values of JSON."""
    import numpy as np

    from covey.plan import BalancedPlan
    from covey.urls import shown

    classes, per_class = dataset.classes, options.examples_per_class
    count = options.classes_per_batch or max(1, min(CLASSES_PER_BATCH, len(classes)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = BalancedPlan(
            classes, count, per_class, options.seed, class_weights=options.class_weights
        )
    for each in caught:
        print_message(str(each.message))
    ids = plan.batch(options.step).reshape(count, per_class).tolist()
    drawn = plan.classes(options.step)
    dataset.check_classes(plan.batch(options.step).reshape(-1), np.repeat(drawn, per_class))
    labels = drawn.tolist()
    return {
        "path": shown(options.path),
        "split": options.split or "all",
        "label": dataset.label,
        "seed": options.seed,
        "step": options.step,
        "classes": [
            {"name": classes.names[label], "label": label, "ids": each}
            for label, each in zip(labels, ids, strict=True)
        ],
        "sheet": None,
    }


def _read(dataset: Dataset, classes: list[dict[str, Any]]) -> None:
    """Add the summaries of the examples to the classes of a batch."""
    from covey.view.summaries import read_examples

    examples = read_examples(dataset, [number for each in classes for number in each["ids"]])
    for each in classes:
        each["examples"] = list(itertools.islice(examples, len(each["ids"])))


def _describe(batch: dict[str, Any]) -> list[str]:
    """Return a line for each class and each example, and the path of the sheet."""
    width = max(len(str(number)) for each in batch["classes"] for number in each["ids"])
    rows = [
        [
            shorten(each["name"]),
            str(each["label"]),
            " ".join(str(number).rjust(width) for number in each["ids"]),
        ]
        for each in batch["classes"]
    ]
    classes, examples = len(rows), len(batch["classes"][0]["ids"])
    lines = [
        f"{batch['path']}: batch {batch['step']:,} of seed {batch['seed']}: {classes:,} "
        f"{'class' if classes == 1 else 'classes'} of {batch['label']!r}, {examples:,} "
        f"{'example' if examples == 1 else 'examples'}{' each' if classes > 1 else ''}",
        *table(["class", "label", "examples"], rows),
        *_value_table(batch),
    ]
    if batch["sheet"] is not None:
        lines.append(f"images of {batch['sheet']['feature']!r}: {batch['sheet']['file']}")
    return lines


def _value_table(batch: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table with a row for each example and a column for each feature."""
    from covey.cli.values import describe_value

    examples = [
        (each["name"], example) for each in batch["classes"] for example in each.get("examples", ())
    ]
    if not examples:
        return
    names = [name for name in examples[0][1]["values"] if name != batch["label"]]
    shown = names[:_MAX_VALUE_COLUMNS]
    width = max(_MIN_VALUE_WIDTH, _VALUES_WIDTH // max(1, len(shown)))
    rows = [
        [
            str(example["id"]),
            shorten(name, 20),
            *(describe_value(example["values"][each], width) for each in shown),
        ]
        for name, example in examples[:MAX_TABLE_ROWS]
    ]
    header = ["example", "class", *(shorten(each, width) for each in shown)]
    yield from table(header, rows, "><" + "<" * len(shown))
    if len(names) > len(shown):
        yield f"  and {count_of(len(names) - len(shown), 'more feature')}; --json prints all"
    if len(examples) > MAX_TABLE_ROWS:
        yield f"  and {count_of(len(examples) - MAX_TABLE_ROWS, 'more example')}; --json prints all"


def _save(
    dataset: Dataset, classes: list[dict[str, Any]], options: argparse.Namespace
) -> dict[str, str] | None:
    """Save the sheet, if there are images; return the file and the feature."""
    from covey.cli.contact_sheet import (
        MAX_COLUMNS,
        MAX_ROWS,
        SheetRow,
        choose_feature,
        draw_sheet,
        save_sheet,
        thumbnails,
    )
    from covey.schema.images import import_pillow
    from covey.urls import check_local

    if options.no_save:
        return None
    selected = [] if options.select is None else [options.select]
    feature = choose_feature(dataset, classes[0]["ids"][0], selected, options.save)
    if feature is None:
        return None
    try:
        import_pillow()
    except FeatureError as error:
        if options.save is not None:
            raise
        print_message(f"no contact sheet is saved: {error}")
        return None
    rows = [
        SheetRow(
            each["name"], each["label"], thumbnails(dataset, feature, each["ids"][:MAX_COLUMNS])
        )
        for each in classes[:MAX_ROWS]
    ]
    path = check_local(options.save or _default_file(options.path))
    save_sheet(draw_sheet(rows), path)
    if len(classes) > MAX_ROWS or len(classes[0]["ids"]) > MAX_COLUMNS:
        print_message(f"{path} has the first {MAX_ROWS} classes and {MAX_COLUMNS} examples of each")
    return {"file": path, "feature": feature}


def _default_file(path: str) -> str:
    """Return a file name after the directory or file of a dataset.

    >>> _default_file("s3://bucket/birds/1.0.0"), _default_file("owls/*.tfrec")
    ('birds-sample.png', 'owls-sample.png')
    """
    from covey.dataset_info import parse_version
    from covey.filenames import INFO_FILE
    from covey.urls import Url, local_path

    local = local_path(path)
    full = Url.parse(path).path if local is None else os.path.abspath(local)
    names = [
        part
        for part in re.split(r"[/\\]", full)
        if not re.search(r"[*?\[]", part) and part != INFO_FILE and parse_version(part) is None
    ]
    name = names[-1].partition(".tfrec")[0] if names else ""
    name = re.sub(r"[^\w.-]+", "-", name)[:60].strip(".-")
    return f"{name or 'covey'}-sample.png"
