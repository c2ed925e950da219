"""``covey show``: print examples or a balanced batch, and save thumbnails of their images."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from covey._text import count_of, table
from covey.cli.options import LABEL, PATH, RUNNING, Rows, add_options, picture, positive
from covey.cli.output import print_json, print_lines, print_message, shorten

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
CELL = SIDE + 4
MAX_IMAGES = 2048

_ROW_IMAGES = 8
_BACKGROUND = (236, 236, 236)

_ID = re.compile(r"-?\d{1,18}")
_RANGE = re.compile(r"(-?\d{1,18})?:(-?\d{1,18})?(?::(-?[1-9]\d{0,17}))?")


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


# fmt: off
_OPTIONS: Rows = (
    ("", "--ids", ids, "IDS",
     f"ids and ranges of examples, separated by commas (default: 0:{DEFAULT_EXAMPLES})"),
    ("", "--class", str, "NAME", "only this class"),
    ("", "--select", [str], "NAME", "feature to print; may be repeated (default: all)"),
    ("", "--output", picture, "FILE", "save thumbnails of the images, .png or .jpg"),
    ("", "--max-pixels", positive, "N",
     "limit of the pixels of an image (default: 64,000,000)"),
    ("batch", "--batch", bool, None, "print a balanced batch"),
)
_OF_BATCH: Rows = (
    ("batch", "-p --classes-per-batch", positive, "P",
     f"number of classes (default: {CLASSES_PER_BATCH}, or all if there are fewer)"),
    ("batch", "-k --examples-per-class", positive, "K",
     f"number of examples of each class (default: {EXAMPLES_PER_CLASS})"),
    ("batch", "--seed", int, None, "seed of the batches (default: 0)"),
    ("batch", "--step", int, None, "step of the batch (default: 0)"),
    ("batch", "--class-weights", ("sqrt", "size"), None,
     "draw classes in proportion to their size, or to its square root (default: equally often)"),
)
# fmt: on


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, *PATH, *LABEL, *_OPTIONS, *_OF_BATCH, *RUNNING)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.cli.values import open_dataset

    if options.batch and (options.ids or getattr(options, "class")):
        options.refuse(f"{'--ids' if options.ids else '--class'} is not allowed with --batch")
    for _, names, *_ in _OF_BATCH:
        name = names.split()[-1]
        if getattr(options, name[2:].replace("-", "_")) is not None and not options.batch:
            options.refuse(f"{name} needs --batch")
    with open_dataset(options) as dataset:
        if options.batch:
            _show_batch(dataset, options)
        else:
            _show_examples(dataset, options)


def _show_examples(dataset: Dataset, options: argparse.Namespace) -> None:
    from covey.cli.values import example_lines, to_json
    from covey.view.examples import read_examples

    chosen = choose_ids(dataset, options.ids, getattr(options, "class"))
    examples = read_examples(dataset, chosen, options.select)
    sheet = _save(dataset, chosen, min(_ROW_IMAGES, len(chosen)), options)
    content = {**_about(dataset, options), "count": len(dataset)}
    if options.json:
        print_json(to_json({**content, "examples": list(examples), "sheet": sheet}))
    elif not options.quiet:
        print_lines(f"{content['path']}: {count_of(len(dataset), 'example')}")
        hidden = None if options.select else dataset.label
        for example in examples:
            print_lines(*example_lines(example, hidden))
        print_lines(*_describe_sheet(sheet))


def _about(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    from covey.urls import shown

    return {
        "path": shown(options.path),
        "split": options.split or "all",
        "label": dataset.label,
    }


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
    from covey.cli.values import example_lines, to_json
    from covey.view.examples import read_examples

    batch = _draw(dataset, options)
    classes = batch["classes"]
    drawn = [number for each in classes for number in each["ids"]]
    examples = list(read_examples(dataset, drawn, options.select))
    per_class = len(classes[0]["ids"])
    for position, each in enumerate(classes):
        each["examples"] = examples[position * per_class : (position + 1) * per_class]
    batch["sheet"] = _save(dataset, drawn, per_class, options)
    if options.json:
        print_json(to_json(batch))
    elif not options.quiet:
        print_lines(
            f"{batch['path']}: batch {batch['step']:,} of seed {batch['seed']}: "
            f"{count_of(len(classes), 'class', 'classes')} of {batch['label']!r}, "
            f"{count_of(per_class, 'example')}{' each' if len(classes) > 1 else ''}"
        )
        width = max(len(str(number)) for number in drawn)
        rows = [
            [
                shorten(each["name"]),
                str(each["label"]),
                " ".join(f"{n:{width}}" for n in each["ids"]),
            ]
            for each in classes
        ]
        print_lines(*table(["class", "label", "examples"], rows))
        for example in examples:
            print_lines(*example_lines(example, None if options.select else dataset.label))
        print_lines(*_describe_sheet(batch["sheet"]))


def _draw(dataset: Dataset, options: argparse.Namespace) -> dict[str, Any]:
    """Return the batch without the examples, as values of JSON."""
    import numpy as np

    from covey.plan import BalancedPlan

    classes, per_class = dataset.classes, options.examples_per_class or EXAMPLES_PER_CLASS
    count = options.classes_per_batch or max(1, min(CLASSES_PER_BATCH, len(classes)))
    seed, step = options.seed or 0, options.step or 0
    plan = BalancedPlan(classes, count, per_class, seed, class_weights=options.class_weights)
    ids, drawn = plan.batch(step), plan.classes(step)
    dataset.check_classes(ids, np.repeat(drawn, per_class))
    rows = zip(drawn.tolist(), ids.reshape(count, per_class).tolist(), strict=True)
    listed = [{"name": classes.names[label], "label": label, "ids": each} for label, each in rows]
    return {**_about(dataset, options), "seed": seed, "step": step, "classes": listed}


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
    size = (columns * CELL, -(-len(drawn) // columns) * CELL)
    sheet = import_pillow().new("RGB", size, _BACKGROUND)
    for position, number in enumerate(drawn):
        image = _thumbnail(dataset, feature, number)
        if image is not None:
            row, column = divmod(position, columns)
            sheet.paste(image, (column * CELL, row * CELL), image)
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
    from covey.view.media import pixels_shape

    kinds = dataset.features if selected is None else dataset.features.select(selected)
    images = [
        name
        for name, kind in kinds.items()
        if isinstance(kind, Image)
        or pixels_shape(kind) is not None
        or (isinstance(value := _value(dataset, name, number), bytes) and read_header(value))
    ]
    if not images:
        listed = ", ".join(f"{name!r} is {kind.summary}" for name, kind in kinds.items())
        raise FeatureError(f"no feature is an image: {listed}", option="output")
    return min(images, key=lambda name: len(getattr(kinds[name], "shape", ())) == 1)


def _value(dataset: Dataset, name: str, number: int) -> Any:
    """Return the value of a feature of an example; an image stays encoded."""
    import numpy as np

    features = dataset.features.select([name])
    return features.find(dataset.decode(features, np.array([number], np.int64)), name)[0]


def _thumbnail(dataset: Dataset, name: str, number: int) -> Picture | None:
    """Return an RGBA image whose longest side is :data:`SIDE`; None if it has no pixels."""
    import numpy as np

    from covey.errors import FeatureError
    from covey.schema import Image
    from covey.schema.images import import_pillow
    from covey.view.media import pixels_shape

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
    scale = SIDE / max(found.size)
    filters = pillow.Resampling
    size = (max(1, round(found.width * scale)), max(1, round(found.height * scale)))
    return found.resize(size, filters.NEAREST if scale > 1 else filters.LANCZOS)
