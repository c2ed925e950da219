"""``covey show``: print examples or a balanced batch, and save thumbnails of their images."""

from __future__ import annotations

import argparse
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from covey._text import count_of, table
from covey.cli.options import add_label, add_path, add_running, picture, positive
from covey.cli.output import describe_feature, print_json, print_lines, print_message, shorten
from covey.results import MAX_TABLE_ROWS

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from covey import Dataset

SUMMARY = "print examples, or a batch of P classes with K examples of each"

EXAMPLES = """\
IDS are positions in the split: 17, -1 (the last), 10:20, or several: 0:3,17. With --class, they
count the examples of the class. With --batch, the batch of ds.batches(P, K, seed=SEED) at STEP is
printed instead.

--output saves thumbnails of the first feature with images: encoded images (PNG, JPEG, ...); uint8
tensors of shape (h, w) or (h, w, 1, 3 or 4); flat uint8 tensors of at least 64 values that are a
square of grey or RGB pixels. A row has eight images; with --batch, the images of a class.

examples:
  covey show data/birds
  covey show data/birds --ids 17,100:110 --split test
  covey show data/birds --class owl --select image --output owls.png
  covey show data/birds --batch -p 8 -k 4 --step 100 --output batch.png
  covey show 'photos/*.tfrec' --ids 0 --json
"""

CLASSES_PER_BATCH = 8
EXAMPLES_PER_CLASS = 4
DEFAULT_EXAMPLES = 5

SIDE = 128
"""Maximum side of a thumbnail in pixels."""
GAP = 4
MAX_IMAGES = 2048

_ROW_IMAGES = 8
_BACKGROUND = (236, 236, 236)

_MAX_VALUE_COLUMNS = 4
_MIN_VALUE_WIDTH = 24
_VALUES_WIDTH = 100

_ID = re.compile(r"-?\d{1,18}")
_RANGE = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?(?::(-?[1-9]\d{0,17}))?")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_path(parser)
    parser.add_argument(
        "--ids",
        metavar="IDS",
        type=ids,
        help=f"ids and ranges of examples, separated by commas (default: 0:{DEFAULT_EXAMPLES})",
    )
    parser.add_argument("--class", dest="class_", metavar="NAME", help="only this class")
    add_label(parser)
    parser.add_argument(
        "--select",
        metavar="NAME",
        action="append",
        help="feature to print; may be repeated (default: all)",
    )
    parser.add_argument(
        "--output", metavar="FILE", type=picture, help="save thumbnails of the images, .png or .jpg"
    )
    parser.add_argument(
        "--max-pixels",
        metavar="N",
        type=positive,
        help="limit of the pixels of an image (default: 64,000,000)",
    )
    batch = parser.add_argument_group("batch")
    batch.add_argument("--batch", action="store_true", help="print a balanced batch")
    plan = [
        batch.add_argument(
            "-p",
            "--classes-per-batch",
            metavar="P",
            type=positive,
            help=f"number of classes (default: {CLASSES_PER_BATCH}, or all if there are fewer)",
        ),
        batch.add_argument(
            "-k",
            "--examples-per-class",
            metavar="K",
            type=positive,
            help=f"number of examples of each class (default: {EXAMPLES_PER_CLASS})",
        ),
        batch.add_argument("--seed", type=int, help="seed of the batches (default: 0)"),
        batch.add_argument("--step", type=int, help="step of the batch (default: 0)"),
        batch.add_argument(
            "--class-weights",
            choices=("sqrt", "size"),
            help="draw classes in proportion to their size, or to its square root (default: "
            "equally often)",
        ),
    ]
    parser.set_defaults(plan_options={each.dest: each.option_strings[-1] for each in plan})
    add_running(parser)


def ids(text: str) -> list[tuple[str, int | slice]]:
    """Parse ids and ranges that are separated by commas; return each with its text.

    >>> ids("17,10:20")
    [('17', 17), ('10:20', slice(10, 20, None))]
    """
    found: list[tuple[str, int | slice]] = []
    for part in text.split(","):
        if _ID.fullmatch(part):
            found.append((part, int(part)))
        elif bounds := _RANGE.fullmatch(part):
            numbers = (None if each is None else int(each) for each in bounds.groups())
            found.append((part, slice(*numbers)))
        else:
            raise argparse.ArgumentTypeError(f"{part!r} must be an id, or a range like 10:20")
    return found


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.cli.values import open_dataset

    if options.batch and (options.ids or options.class_):
        options.refuse(f"{'--ids' if options.ids else '--class'} is not allowed with --batch")
    for name, option in options.plan_options.items():
        if getattr(options, name) is not None and not options.batch:
            options.refuse(f"{option} needs --batch")
    with open_dataset(options) as dataset:
        if options.batch:
            _show_batch(dataset, options)
        else:
            _show_examples(dataset, options)


def _show_examples(dataset: Dataset, options: argparse.Namespace) -> None:
    from covey.cli.values import example_lines, to_json
    from covey.urls import shown
    from covey.view.summaries import read_examples

    chosen = choose_ids(dataset, options.ids, options.class_)
    examples = read_examples(dataset, chosen, options.select)
    sheet = _save(dataset, chosen, min(_ROW_IMAGES, len(chosen)), options)
    if options.json:
        content = {
            "path": shown(options.path),
            "split": options.split or "all",
            "label": dataset.label,
            "count": len(dataset),
            "examples": list(examples),
            "sheet": sheet,
        }
        print_json(to_json(content))
    elif not options.quiet:
        print_lines(f"{shown(options.path)}: {count_of(len(dataset), 'example')}")
        hidden = None if options.select else dataset.label
        for example in examples:
            print_lines(*example_lines(example, hidden))
        print_lines(*_describe_sheet(sheet))


def choose_ids(
    dataset: Dataset, selected: Sequence[tuple[str, int | slice]] | None, class_name: str | None
) -> list[int]:
    """Return the ids of the examples to print.

    Args:
        dataset: The dataset.
        selected: Ids and ranges, each with its text; None for the first few.
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
    if selected is None:
        return [int(each) for each in among[:DEFAULT_EXAMPLES]]
    chosen: list[int] = []
    for text, each in selected:
        positions = range(len(among))[each] if isinstance(each, slice) else [each]
        if not positions or not -len(among) <= positions[0] < len(among):
            raise DatasetError(
                f"there is no example {text} among {count_of(len(among), 'example')}"
            )
        chosen += (int(among[position]) for position in positions)
    return chosen


# Batches.


def _show_batch(dataset: Dataset, options: argparse.Namespace) -> None:
    from covey.cli.values import to_json
    from covey.view.summaries import read_examples

    batch = _draw(dataset, options)
    drawn = [number for each in batch["classes"] for number in each["ids"]]
    examples = read_examples(dataset, drawn, options.select)
    for each in batch["classes"]:
        each["examples"] = list(itertools.islice(examples, len(each["ids"])))
    batch["sheet"] = _save(dataset, drawn, len(batch["classes"][0]["ids"]), options)
    if options.json:
        print_json(to_json(batch))
    elif not options.quiet:
        print_lines(*_describe_batch(batch), *_describe_sheet(batch["sheet"]))


def _draw(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Return the batch without the examples, as values of JSON."""
    import numpy as np

    from covey.plan import BalancedPlan
    from covey.urls import shown

    classes, per_class = dataset.classes, options.examples_per_class or EXAMPLES_PER_CLASS
    count = options.classes_per_batch or max(1, min(CLASSES_PER_BATCH, len(classes)))
    seed, step = options.seed or 0, options.step or 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = BalancedPlan(classes, count, per_class, seed, class_weights=options.class_weights)
    for each in caught:
        print_message(str(each.message))
    ids = plan.batch(step).reshape(count, per_class).tolist()
    drawn = plan.classes(step)
    dataset.check_classes(plan.batch(step).reshape(-1), np.repeat(drawn, per_class))
    return {
        "path": shown(options.path),
        "split": options.split or "all",
        "label": dataset.label,
        "seed": seed,
        "step": step,
        "classes": [
            {"name": classes.names[label], "label": label, "ids": each}
            for label, each in zip(drawn.tolist(), ids, strict=True)
        ],
    }


def _describe_batch(batch: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each class and each example."""
    classes, per_class = batch["classes"], len(batch["classes"][0]["ids"])
    width = max(len(str(number)) for each in classes for number in each["ids"])
    rows = [
        [
            shorten(each["name"]),
            str(each["label"]),
            " ".join(str(number).rjust(width) for number in each["ids"]),
        ]
        for each in classes
    ]
    yield (
        f"{batch['path']}: batch {batch['step']:,} of seed {batch['seed']}: "
        f"{count_of(len(classes), 'class', 'classes')} of {batch['label']!r}, "
        f"{count_of(per_class, 'example')}{' each' if len(classes) > 1 else ''}"
    )
    yield from table(["class", "label", "examples"], rows)
    yield from _value_table(batch)


def _value_table(batch: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table with a row for each example and a column for each feature."""
    from covey.cli.values import describe_value

    examples = [
        (each["name"], example) for each in batch["classes"] for example in each["examples"]
    ]
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


# Thumbnails.


def _describe_sheet(sheet: dict[str, str] | None) -> Iterator[str]:
    if sheet is not None:
        yield f"images of {sheet['feature']!r}: {sheet['file']}"


def _save(
    dataset: Dataset, chosen: Sequence[int], columns: int, options: argparse.Namespace
) -> dict[str, str] | None:
    """Save the thumbnails, if they are requested; return the file and the feature."""
    from covey.errors import DatasetError
    from covey.schema.images import import_pillow
    from covey.urls import check_local, shown

    if options.output is None:
        return None
    path = check_local(options.output)
    if not chosen:
        raise DatasetError("there are no examples to save", path=shown(path), option="output")
    feature = _image_feature(dataset, chosen[0], options.select)
    drawn = chosen[:MAX_IMAGES]
    if len(drawn) < len(chosen):
        print_message(f"{shown(path)} has the first {MAX_IMAGES:,} of {len(chosen):,} images")
    cell = SIDE + GAP
    size = (GAP + columns * cell, GAP + -(-len(drawn) // columns) * cell)
    sheet = import_pillow().new("RGB", size, _BACKGROUND)
    for position, number in enumerate(drawn):
        image = _thumbnail(dataset, feature, number)
        if image is not None:
            x = GAP + position % columns * cell + (SIDE - image.width) // 2
            y = GAP + position // columns * cell + (SIDE - image.height) // 2
            sheet.paste(image, (x, y), image)
    try:
        sheet.save(path)
    except OSError as error:
        reason = f"the thumbnails cannot be saved: {error.strerror or error}"
        raise DatasetError(reason, path=shown(path)) from None
    return {"file": path, "feature": feature}


def _image_feature(dataset: Dataset, number: int, selected: Sequence[str] | None) -> str:
    """Return the first feature that is an image in an example; flat tensors come last."""
    from covey.errors import FeatureError
    from covey.schema import Image
    from covey.schema.images import read_header
    from covey.view.pictures import pixels_shape

    kinds = dataset.features if selected is None else dataset.features.select(selected)
    images = [
        name
        for name, kind in kinds.items()
        if isinstance(kind, Image)
        or pixels_shape(kind) is not None
        or (isinstance(value := _value(dataset, name, number), bytes) and read_header(value))
    ]
    if not images:
        listed = ", ".join(f"{name!r} is {describe_feature(kind)}" for name, kind in kinds.items())
        raise FeatureError(f"no feature is an image: {listed}", option="output")
    return min(images, key=lambda name: len(getattr(kinds[name], "shape", ())) == 1)


def _value(dataset: Dataset, name: str, number: int) -> Any:
    """Return the value of a feature of an example; an image stays encoded."""
    import numpy as np

    features = dataset.features.select([name])
    return features.find(dataset.decode(features, np.array([number], np.int64)), name)[0]


def _thumbnail(dataset: Dataset, name: str, number: int) -> Picture | None:
    """Return an RGBA image, enlarged by an integer or reduced; None if it has no pixels."""
    import numpy as np

    from covey.errors import FeatureError
    from covey.schema import Image
    from covey.schema.images import import_pillow
    from covey.view.pictures import pixels_shape

    kind, pixels = dataset.features[name], _value(dataset, name, number)
    if isinstance(pixels, bytes):
        try:
            image = kind if isinstance(kind, Image) else Image(channels=None)
            pixels = image.decode(pixels, max_pixels=dataset.max_pixels)
        except FeatureError as error:
            raise dataset.place(number).error(error, name) from None
    elif pixels.ndim == 1:
        pixels = pixels.reshape(pixels_shape(kind))
    if not pixels.size:
        return None
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.shape[2:] == (1,):
        pixels = pixels[:, :, 0]
    pillow = import_pillow()
    found: Picture = pillow.fromarray(np.ascontiguousarray(pixels)).convert("RGBA")
    factor = SIDE // max(found.size)
    if factor:
        size = (found.width * factor, found.height * factor)
        return found.resize(size, pillow.Resampling.NEAREST)
    found.thumbnail((SIDE, SIDE), pillow.Resampling.LANCZOS, reducing_gap=None)
    return found
