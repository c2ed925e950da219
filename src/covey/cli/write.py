"""``covey write``: from any source to a dataset."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.wording import RemediedError, in_terms_of_options, say, table, tell, with_article
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, SourceError
from covey.terminal import escape

if TYPE_CHECKING:
    from covey import LeftOut, Source, Written

WHAT = "write labelled data as a split of a TFRecord dataset, shuffled, sharded and indexed"

# What is left out is listed up to here; --report has the rest.
_LISTED = 20


def run(options: argparse.Namespace) -> None:
    """Do it."""
    _check(options)
    source = _open(options)
    parts = _divide(source, options)
    left_out: list[tuple[str, LeftOut]] = []
    done: list[Written] = []
    try:
        for split, part in parts:
            written = _write(part, split, options)
            left_out += [(split, each) for each in _numbered(written, part)]
            done.append(written)
    except BaseException:
        if done:
            tell(f"split {done[0].split!r} was written before what follows, and stays")
        raise
    if not options.quiet:
        say(*summarise(done))
    _report(left_out, source, options)


def _check(options: argparse.Namespace) -> None:
    """Find out beforehand what would be wrong in the end."""
    from covey.metadata import check_split_name
    from covey.urls import shown

    splits = _splits(options)
    if options.val_split is not None and len(splits) == 1:
        options.refuse("--val-split needs --val-fraction or --held-out-classes")
    if len(set(splits)) < len(splits):
        options.refuse(f"--split and the split that is held out are both {options.split!r}")
    for split in splits:
        check_split_name(split)
    _look(options)
    if os.path.realpath(options.source) == os.path.realpath(options.target):
        raise DatasetError(f"{shown(options.target)}: this is SOURCE and TARGET; write elsewhere")
    if options.report is not None:
        folder = os.path.dirname(options.report) or "."
        if not os.access(folder, os.W_OK) or os.path.isdir(options.report):
            raise DatasetError(f"{options.report}: the report cannot be written there")


def _splits(options: argparse.Namespace) -> list[str]:
    divides = options.val_fraction is not None or options.held_out_classes is not None
    return [options.split, options.val_split or "val"] if divides else [options.split]


def _look(options: argparse.Namespace) -> bool:
    """Whether nothing that stays decides about features; an error if a split may not be written."""
    from covey.urls import shown
    from covey.writing.existing import Existing

    try:
        with _folder(options) as folder:
            found = [
                Existing.look(folder, split, options.mode, options.name)
                for split in _splits(options)
            ]
            return all(each.base()[0] is None for each in found)
    except NotADirectoryError:
        raise DatasetError(f"{shown(options.target)}: it is a file, must be a folder") from None


@contextmanager
def _folder(options: argparse.Namespace) -> Iterator[Path]:
    """The folder of the dataset, or one that stands for a URL."""
    from covey.storage import is_remote
    from covey.writing.remote import Mirror

    if not is_remote(options.target):
        yield Path(options.target)
        return
    storage = dict(options.storage_option)
    with Mirror(options.target, options.split, appends=False, options=storage) as mirror:
        yield mirror.folder


def _open(options: argparse.Namespace) -> Source:
    """Open the source, and say what it is."""
    from covey.sources import open_source

    source = open_source(
        options.source,
        kind=options.kind,
        label=options.label,
        split=options.source_split or options.split,
    )
    if not options.quiet:
        seen = "looks like" if options.kind is None else "is read as"
        what = ", ".join(_describe(source))
        say(f"{source.path} {seen} {with_article(source.kind)}{': ' if what else ''}{what}")
        if source.label is None:
            say("  no feature tells the class of an example; --label names one that does")
    return source


def _describe(source: Source) -> Iterator[str]:
    """What is known about a source before it is read."""
    from covey import ClassLabel

    if source.length is not None:
        yield f"{source.length:,} {'images' if source.kind.startswith('image') else 'examples'}"
    if source.label is None:
        return
    kind = None if source.features is None else source.features.get(source.label)
    column: Any = (source.columns or {}).get(source.label)
    if isinstance(kind, ClassLabel) and kind.names is not None:
        yield f"{len(kind.names):,} classes of {source.label!r}"
    elif hasattr(column, "tolist"):
        yield f"{len(set(column.tolist())):,} classes of {source.label!r}"
    else:
        yield f"classes told by {source.label!r}"


def _divide(source: Source, options: argparse.Namespace) -> list[tuple[str, Source]]:
    """The splits to write, and what goes into each."""
    splits = _splits(options)
    if len(splits) == 1:
        return [(options.split, source)]
    from covey.partition import hold_out
    from covey.progress import Progress

    classes = options.held_out_classes
    # Splits that are there already decide about features: what does not know them adapts.
    is_first = _look(options)
    with Progress(_shows(options), source.length, "dividing") as shown, _Blaming(source):
        parts = hold_out(
            source,
            fraction=options.val_fraction,
            classes=classes if isinstance(classes, int) else None,
            class_fraction=classes if isinstance(classes, float) else None,
            key=options.key,
            label=options.label,
            seed=options.val_seed,
            infer=is_first,
            defaults=dict(options.default),
            on_error=options.on_error,
            progress=shown.add,
        )
    return list(zip(splits, parts, strict=True))


def _shows(options: argparse.Namespace) -> bool | None:
    """Whether to show progress; None leaves it to where the output goes."""
    return False if options.quiet or options.no_progress else None


def _write(source: Source, split: str, options: argparse.Namespace) -> Written:
    import covey

    with _Blaming(source):
        return covey.write(
            source,
            options.target,
            split=split,
            label=options.label,
            defaults=dict(options.default),
            key=options.key,
            name=options.name,
            description=options.description,
            shuffle=not options.no_shuffle,
            order=options.order,
            seed=options.seed,
            shards=options.shards,
            records_per_shard=options.records_per_shard,
            shard_bytes=options.shard_size,
            compression=None if options.compression == "none" else options.compression.upper(),
            level=options.level,
            mode=options.mode,
            memory=options.memory,
            workers=options.workers,
            on_error=options.on_error,
            progress=_shows(options),
            storage_options=dict(options.storage_option),
        )


class _Blaming:
    """Errors about examples say which file they are from, and what can be done about them."""

    def __init__(self, source: Source) -> None:
        self._path = source.path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (SourceError, FeatureError)):
            return
        message = str(error)
        about_one = isinstance(error, SourceError) or message.startswith("example ")
        if isinstance(error, FeatureError):
            message = f"{self._path}: {message}"
        remedies = ["  --on-error skip leaves out what cannot be read, and lists it"]
        if not about_one or isinstance(error, DuplicateKeyError):
            remedies = []
        raise RemediedError(message, *remedies) from error


def _numbered(written: Written, source: Source) -> Iterator[LeftOut]:
    """What was left out, by its number in the whole source."""
    from covey.partition import Part

    for each in written.left_out:
        number = source.number(each.example) if isinstance(source, Part) else each.example
        yield replace(each, example=number)


def summarise(written: list[Written]) -> list[str]:
    """The lines of a table of what was written, with a row for each split."""
    from covey.progress import format_bytes

    rows = []
    for each in written:
        counts = sorted(each.classes.values())
        few, many = (counts[0], counts[-1]) if counts else (0, 0)
        per_class = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        rows.append(
            [
                each.split,
                f"{each.records:,}",
                f"{len(counts):,}" if counts else "-",
                per_class if counts else "-",
                f"{len(each.shards):,}",
                format_bytes(each.bytes),
                f"{each.seconds:.2f} s",
            ]
        )
    header = ["split", "examples", "classes", "per class", "shards", "size", "time"]
    features = ", ".join(written[0].features)
    label = "" if written[0].label is None else f"; {written[0].label!r} tells the class"
    lines = [f"{written[0].path}: {features}{label}", *table(header, rows)]
    replaced = sum(len(each.replaced) for each in written)
    if replaced:
        lines.append(
            f"{replaced:,} shards of the replaced version stay until the next write; `covey repair "
            f"{written[0].path}` deletes them"
        )
    return lines


def _report(
    left_out: list[tuple[str, LeftOut]], source: Source, options: argparse.Namespace
) -> None:
    """Tell of what was left out."""
    if options.report is not None:
        with open(options.report, "w", encoding="utf-8") as file:
            for split, each in left_out:
                fields = {"split": split, "example": each.example, "reason": each.reason}
                file.write(escape(json.dumps(fields, ensure_ascii=False)) + "\n")
    if not left_out:
        return
    left_out.sort(key=lambda each: each[1].example)
    lines = [f"left out {len(left_out):,} of the examples of {source.path}:"]
    lines += [f"  example {each.example}: {each.reason}" for _, each in left_out[:_LISTED]]
    if len(left_out) > _LISTED:
        where = f"see {options.report}" if options.report else "--report FILE lists them all"
        lines.append(f"  and {len(left_out) - _LISTED:,} more: {where}")
    tell(*map(in_terms_of_options, lines))
