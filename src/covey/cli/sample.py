"""``covey sample``: a balanced batch of a dataset, to look at."""

from __future__ import annotations

import argparse
import os
import re
import warnings
from typing import TYPE_CHECKING, Any

from covey.cli.formatting import describe_kind, say, shorten, table, tell
from covey.cli.options import add_path, add_running, positive, print_json, shows, storage_options
from covey.errors import FeatureError

if TYPE_CHECKING:
    from covey import Dataset

WHAT = "draw a batch of P classes with K examples of each, list it, and save its images"

EXAMPLES = """\
the batch is that of ds.batches(P, K, seed=SEED) at STEP, and the numbers of its examples are
those of covey.open(PATH, split=SPLIT)

if examples have images, a contact sheet is saved, with a row for each class. Images are, in this
order: encoded ones (PNG, JPEG and others); uint8 tensors of shape (h, w) or (h, w, 1, 3 or 4); and
flat ones of 64 values or more, if a square of grey or of RGB pixels has so many

examples:
  covey sample data/birds -p 8 -k 4
  covey sample data/birds --split test --step 100 --save batch-100.png
  covey sample data/birds --class-weights sqrt --json --no-save
"""

CLASSES_PER_BATCH = 8
EXAMPLES_PER_CLASS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what there is to choose."""
    parser.epilog = EXAMPLES
    add_path(parser)
    parser.add_argument(
        "-p",
        "--classes-per-batch",
        metavar="P",
        type=positive,
        help=f"how many classes (default: {CLASSES_PER_BATCH}, or all if there are fewer)",
    )
    parser.add_argument(
        "-k",
        "--examples-per-class",
        metavar="K",
        type=positive,
        default=EXAMPLES_PER_CLASS,
        help="how many examples of each (default: %(default)s)",
    )
    parser.add_argument(
        "--label",
        metavar="KEY",
        help="the feature that tells the class, or @file (default: as indexed, or what is called "
        "so)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the batches (default: 0)")
    parser.add_argument("--step", type=int, default=0, help="which batch (default: 0, the first)")
    parser.add_argument(
        "--class-weights",
        choices=("sqrt", "size"),
        help="draw classes as often as they are large, or as the root of it (default: all as "
        "often)",
    )
    parser.add_argument(
        "--feature", metavar="NAME", help="the images of the sheet (default: the first that are)"
    )
    parser.add_argument(
        "--max-pixels",
        metavar="N",
        type=positive,
        help="refuse images of more pixels (default: 64,000,000)",
    )
    saving = parser.add_mutually_exclusive_group()
    saving.add_argument(
        "--save",
        metavar="FILE",
        type=_picture,
        help="where the sheet goes, a .png or .jpg (default: <name of the dataset>-sample.png, "
        "here)",
    )
    saving.add_argument("--no-save", action="store_true", help="save no sheet")
    add_running(parser)


def _picture(text: str) -> str:
    if not text.lower().endswith((".png", ".jpg", ".jpeg")):
        raise argparse.ArgumentTypeError(f"{text!r} must end with .png or .jpg")
    return text


def run(options: argparse.Namespace) -> None:
    """Do it."""
    import covey

    with covey.open(
        options.path,
        split=options.split or "all",
        label=options.label,
        storage_options=storage_options(options),
        max_pixels=options.max_pixels,
        threads=options.threads,
        progress=shows(options),
    ) as dataset:
        if options.feature is not None:
            dataset.features.select([options.feature])  # says which there are
        batch = _draw(dataset, options)
        try:
            batch["sheet"] = _save(dataset, batch["classes"], options)
        finally:  # what was drawn is told whatever becomes of the sheet
            if options.json:
                print_json(batch)
            elif not options.quiet:
                say(*_describe(batch))


def _draw(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """The batch, as it is printed."""
    import numpy as np

    from covey.loader.batch import check_classes
    from covey.plan import BalancedPlan
    from covey.urls import shown

    classes, per_class = dataset.classes, options.examples_per_class
    many = options.classes_per_batch or max(1, min(CLASSES_PER_BATCH, len(classes)))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        plan = BalancedPlan(
            classes, many, per_class, options.seed, class_weights=options.class_weights
        )
    for each in said:
        tell(str(each.message))
    ids = plan.batch(options.step).reshape(many, per_class).tolist()
    drawn = plan.classes(options.step)
    check_classes(dataset, plan.batch(options.step).reshape(-1), np.repeat(drawn, per_class))
    labels = drawn.tolist()
    return {
        "path": shown(options.path),
        "split": options.split or "all",
        "label": dataset.label,
        "seed": options.seed,
        "step": options.step,
        "classes": [
            {"name": classes.name(classes.position(label)), "label": label, "ids": each}
            for label, each in zip(labels, ids, strict=True)
        ],
        "sheet": None,
    }


def _describe(batch: dict[str, Any]) -> list[str]:
    """A line for each class, and where the sheet is."""
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
    ]
    if batch["sheet"] is not None:
        lines.append(f"the images of {batch['sheet']['feature']!r} are in {batch['sheet']['file']}")
    return lines


def _save(
    dataset: Dataset, classes: list[dict[str, Any]], options: argparse.Namespace
) -> dict[str, str] | None:
    """Save the sheet, if there are images; gives the file and the feature."""
    from covey.cli.contact_sheet import (
        MOST_COLUMNS,
        MOST_ROWS,
        Row,
        draw_sheet,
        image_features,
        save_sheet,
        thumbnails,
    )
    from covey.schema.images import import_pillow
    from covey.urls import check_local

    if options.no_save:
        return None
    feature = _choose(dataset, image_features(dataset, classes[0]["ids"][0]), options)
    if feature is None:
        return None
    try:
        import_pillow()
    except FeatureError as error:
        if options.save is not None:
            raise
        tell(f"no contact sheet is saved: {error}")
        return None
    rows = [
        Row(each["name"], each["label"], thumbnails(dataset, feature, each["ids"][:MOST_COLUMNS]))
        for each in classes[:MOST_ROWS]
    ]
    path = check_local(options.save or _default_file(options.path))
    save_sheet(draw_sheet(rows), path)
    if len(classes) > MOST_ROWS or len(classes[0]["ids"]) > MOST_COLUMNS:
        tell(f"{path} has the first {MOST_ROWS} classes, and {MOST_COLUMNS} examples of each")
    return {"file": path, "feature": feature}


def _choose(dataset: Dataset, images: list[str], options: argparse.Namespace) -> str | None:
    """The feature that is shown; None if there is none, and nobody asked for one."""
    if options.feature is not None and options.feature not in images:
        kind = describe_kind(dataset.features[options.feature])
        there = f"images are {', '.join(images)}" if images else "and no other is one"
        raise FeatureError(f"feature {options.feature!r} is not an image but {kind}; {there}")
    if not images and options.save is not None:
        from covey.urls import shown

        raise FeatureError(
            f"none of the features {', '.join(dataset.features)} is an image, so that there is "
            f"nothing to save in {shown(options.save)}"
        )
    return options.feature or next(iter(images), None)


def _default_file(path: str) -> str:
    """A file in this directory, named after the directory or the file of a dataset.

    >>> _default_file("s3://bucket/birds/1.0.0"), _default_file("owls/*.tfrec")
    ('birds-sample.png', 'owls-sample.png')
    """
    from covey.dataset_info import parse_version
    from covey.filenames import INFO_FILE
    from covey.urls import Url, local_path

    local = local_path(path)
    place = Url.parse(path).path if local is None else os.path.abspath(local)
    names = [
        part
        for part in re.split(r"[/\\]", place)
        if not re.search(r"[*?\[]", part) and part != INFO_FILE and parse_version(part) is None
    ]
    name = names[-1].partition(".tfrec")[0] if names else ""
    name = re.sub(r"[^\w.-]+", "-", name)[:60].strip(".-")
    return f"{name or 'covey'}-sample.png"
