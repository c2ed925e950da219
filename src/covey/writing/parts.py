"""Writes in parts: jobs of a cluster each write one part, and one job commits them all.

A part is the map stage of one piece of the source. Its files are below the dataset::

    data/birds/.covey-parts-train/
        00003-of-00064-01795000000000000000-5e0c11d2/     the last run of part 3
            part.json                                     options, source, features, classes, runs
            runs-.../1-run-000000.frames .rows .table     sorted records, rows, buckets
        .00004-of-00064-....tmp/                          a run of part 4, locked by its process

A part is complete if it has ``part.json``, which is written last. A part that is run again replaces
the earlier run, and removes runs of the same part that were killed. ``commit`` compares the parts
with each other, reduces their runs to shards and commits these; then the parts are removed. No file
of a part is trusted: it is JSON or an array, and is compared with the files that it describes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from covey._locks import reporting_failures
from covey._progress import Progress
from covey._text import list_names
from covey.engines import EngineArgument, find_engine
from covey.engines.pools import Here
from covey.errors import CoveyError, DatasetError, FormatError
from covey.labels import Classes
from covey.results import WriteResult
from covey.schema import Features
from covey.schema.lattice import is_decimal
from covey.shuffle.runs import hash_bits
from covey.storage import Storage, open_storage
from covey.untrusted import reports_errors
from covey.urls import AnyPath, parse_path, shown
from covey.writing.inputs import Input, located, source_failed, with_types
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.part_files import (
    PART_FILE,
    Part,
    find_last_runs,
    find_one,
    list_runs,
    new_run,
    parse_part,
    parts_directory,
    remove_committed,
    remove_empty,
    remove_parts,
    splits_of,
)
from covey.writing.part_format import (
    PartResults,
    PartWrite,
    common_write,
    load_results,
    load_write,
    part_to_json,
    read_content,
)
from covey.writing.pieces import Piece, plan_pieces, plan_tables
from covey.writing.plan import checksum_of_ends, first_inference
from covey.writing.scratch import Scratch
from covey.writing.stages import MapContext, MapResult, map_piece
from covey.writing.tables import prepare_columns
from covey.writing.target import inspect
from covey.writing.typed_json import to_json
from covey.writing.versions import read_info
from covey.writing.write_steps import resolve_schema, start_job, write_ordered


def write_part(
    path: str,
    part: str,
    options: WriteOptions,
    joined: Input,
    inputs: Sequence[Input],
    storage_options: Mapping[str, Any] | None,
    progress: bool | None,
) -> WriteResult:
    """Write one part; see :func:`covey.write`."""
    number, total = parse_part(part)
    inputs = [_with_lengths(each) for each in inputs]
    storage = open_storage(path, storage_options)
    targets = inspect(storage, storage.clean(path), options)
    known = schema = resolve_schema(options, joined, targets, targets[0].known_schema())
    label = None
    if joined.columns is not None:
        classes, tables = prepare_columns(inputs, options, schema)
        schema = schema.with_final(classes.features, classes.label)
        label = classes.label
        plan = plan_tables(tables, workers=1, pieces=total)
        checksums: list[int | None] = [table.checksum_of_ends() for table in tables]
    else:
        classes = None
        plan = plan_pieces(inputs, workers=1, pieces=total, divide_all=True)
        sources = [source for each in inputs for source in each.parts]
        checksums = [checksum_of_ends(source, options, known) for source in sources]
    pieces = list(plan.pieces)
    own = pieces[len(pieces) * (number - 1) // total : len(pieces) * number // total]
    base = None if schema.features is not None else first_inference(inputs, options, schema)
    location = storage.join(storage.clean(path), parts_directory(options.splits))
    with new_run(storage, location, number, total) as directory:
        scratch = Scratch(str(directory))
        context = MapContext(
            options, schema, joined.class_names, base, plan.shared, scratch, hash_bits(0), label
        )
        results = []
        subject = f"part {part} of {', '.join(options.splits)}"
        with Progress(progress, None, "reading", subject=subject) as bar:
            for piece in own:
                with located(inputs[min(piece.split, len(inputs) - 1)]):
                    result = map_piece(Here(context), piece)
                bar.add(result.examples, result.bytes)
                results.append((piece, result))
        write = common_write(options, joined, inputs, known, classes, checksums)
        content = part_to_json(number, total, write, tuple(results), directory)
        (directory / PART_FILE).write_text(json.dumps(content), encoding="utf-8")
    return _summary(shown(path), part, options, [result for _, result in results])


def _summary(
    path: str, part: str, options: WriteOptions, results: Sequence[MapResult]
) -> WriteResult:
    found = []
    for position, split in enumerate(options.splits):
        groups = [
            group for each in results for group in each.groups if group.kind.split == position
        ]
        runs = [run for group in groups for run in group.runs]
        skipped = [each.skipped[position] for each in results if position < len(each.skipped)]
        found.append(
            WriteResult(
                path=path,
                split=split,
                shards=(),
                records=sum(run.records for run in runs),
                bytes=sum(run.bytes for run in runs),
                label=groups[-1].kind.label if groups else None,
                classes={},
                features=_final(groups[-1].kind.features) if groups else Features({}),
                skipped=tuple(record for each in skipped for record in each),
                seconds=0.0,
                part=part,
            )
        )
    return replace(found[0], others=tuple(found[1:]))


def _final(features: Features) -> Features:
    """Return the features of the examples so far, as if none followed."""
    found = [name for name, kind in features.items() if is_decimal(kind)]
    return with_types(features, dict.fromkeys(found, "float32"))


def _with_lengths(examples: Input) -> Input:
    """Return an input whose examples are counted, so that each part reads a range of them."""
    if examples.sources:
        return replace(examples, sources=tuple(map(_with_lengths, examples.sources)))
    if examples.columns is not None or examples.length is not None:
        return examples
    if not examples.is_repeatable:
        raise DatasetError(
            "the source can be read only once, so that it has no parts",
            option="part",
            remedy="pass a path, a sequence, or a function that returns an iterable",
        )
    count = 0
    try:
        for _ in examples.read():
            count += 1
    except CoveyError:
        raise
    except Exception as error:
        raise source_failed(count, error) from error
    return replace(examples, length=count)


@reports_errors()
def commit(
    path: AnyPath,
    *,
    split: str | None = None,
    engine: EngineArgument = None,
    memory_limit: int | None = None,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Commit the parts that ``covey.write(..., part="3/64")`` has written.

    The dataset has the bytes of a write by one process. The parts are removed after the commit; if
    it fails or is killed before, the dataset is not changed, and the parts remain.

    Args:
        path: Directory or URL of the dataset.
        split: A split of the parts, if parts of several writes exist.
        engine: Where shards are written, as for :func:`covey.write`.
        memory_limit: Approximate number of bytes of records in memory, for each task (default: that
            of the parts).
        progress: Whether to show a progress bar. The default is to show it in a terminal.
        storage_options: Options of fsspec for a URL, such as credentials.

    Returns:
        A summary of the written split, or of the first one.

    Raises:
        DatasetError: If parts are missing, or were written with other options or another source;
            the message names them.

    >>> birds = [{"song": [0.5], "species": name} for name in ("owl", "wren", "owl")]
    >>> for part in ("1/2", "2/2"):
    ...     _ = write(birds, "birds", label="species", part=part, progress=False)
    >>> commit("birds", progress=False).classes
    {'owl': 2, 'wren': 1}
    """
    started = time.perf_counter()
    target = parse_path(path)
    storage = open_storage(target, storage_options)
    location = find_one(storage, target, split)
    removed = remove_committed(storage, storage.clean(target)).get(storage.name(location), [])
    if removed and not list_runs(storage, location):
        return _committed(storage, target, splits_of(storage.name(location)))
    parts, notes = find_last_runs(storage, location, removed)
    first = read_content(storage, parts[0])["write"]
    write = load_write(parts[0], first)
    options, inputs = write.options, write.inputs
    if memory_limit is not None:
        options = replace(options, memory_limit=memory_limit)
    if storage.name(location) != parts_directory(options.splits):
        raise FormatError(f"the parts are those of {list_names(options.splits)}", path=location)
    columns = None if write.columns is None else Classes(*write.columns)
    with start_job(
        target,
        options,
        write.joined,
        inputs,
        find_engine(engine),
        storage_options,
        progress,
        columns=columns,
        bits=hash_bits(0),
    ) as (writer, job):
        _check_unchanged(job.schema, write, shown(target))
        writer.parts = tuple(part.name for part in parts)
        if {*writer.parts} - {*list_runs(storage, location)}:
            raise DatasetError(
                "another process has committed or removed parts",
                path=shown(location),
                remedy="run `covey info`",
            )
        pieces = []
        for part in parts:  # one after the other: the tables of all runs are large
            content = read_content(storage, part)
            _check_same(part, content["write"], first, shown(location))
            results = load_results(
                storage, part, content.get("results"), len(options.splits), storage_options
            )
            _check_records(part, results, shown(location))
            for piece, mapped in results:
                pieces.append(piece)
                job.add_result(piece, mapped)
        _check_complete(pieces, inputs, shown(location))
        result = write_ordered(writer, job, job.finish(), inputs)
    with reporting_failures(shown(target), options.split, lambda: True):
        _remove_parts(storage, location, [part.name for part in parts])
    seconds = time.perf_counter() - started
    return replace(result, seconds=seconds, notes=(*notes, *result.notes))


def _check_same(part: Part, write: Any, first: Any, path: str) -> None:
    """Raise DatasetError if a part was written with other options, or from another source."""
    if write != first:
        name, expected, found = _first_difference(first, write)
        raise DatasetError(
            f"part {part.number} of {part.total} differs from part 1: {name} is {found}, not "
            f"{expected}",
            path=path,
            remedy=f"run part {part.number} or part 1 again, with the options and the source of "
            "the others",
        )


def _first_difference(a: Any, b: Any, name: str = "it") -> tuple[str, str, str]:
    """Return where two JSON values differ, and the values there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key):
                return _first_difference(a.get(key), b.get(key), key)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for x, y in zip(a, b, strict=True):
            if x != y:
                return _first_difference(x, y, name)
    brief = [text if len(text := repr(each)) <= 80 else f"{text[:77]}..." for each in (a, b)]
    return name, brief[0], brief[1]


def _check_complete(pieces: Sequence[Piece], inputs: Sequence[Input], path: str) -> None:
    """Raise FormatError unless the parts have all examples of the source, each of them once."""
    if sorted(piece.index for piece in pieces) != list(range(len(pieces))):
        raise FormatError("a piece is missing, or belongs to two parts", path=path)
    for split, examples in enumerate(inputs):
        wanted = sum(part.length or 0 for part in examples.parts)
        found = sum(piece.count or 0 for piece in pieces if piece.split == split)
        if found != wanted:
            raise FormatError(f"the parts have {found:,} of {wanted:,} examples", path=path)


def _check_records(part: Part, results: PartResults, path: str) -> None:
    """Raise DatasetError unless each example of a part is a record or was skipped."""
    wanted = sum(piece.count or 0 for piece, _ in results)
    records = sum(result.records for _, result in results)
    skipped = sum(len(split) for _, result in results for split in result.skipped)
    if records + skipped != wanted:
        raise DatasetError(
            f"part {part.number} of {part.total} has {records:,} records and {skipped:,} "
            f"skipped examples; must have {wanted:,} examples",
            path=path,
            remedy=f"run part {part.number} again, with a source whose length is exact",
        )


def _check_unchanged(schema: WriteSchema, write: PartWrite, path: str) -> None:
    """Raise DatasetError if the dataset has other features or classes than for the parts."""
    before, now = to_json(write.dataset), to_json(schema)
    # Parts that were written without a dataset have inferred features: names, not class ids.
    if now != before and write.dataset.features is not None:
        name, expected, found = _first_difference(before, now)
        raise DatasetError(
            f"the dataset has changed since the parts were written: {name} is {found}, not "
            f"{expected}",
            path=path,
            remedy="run all parts again",
        )


def _committed(storage: Storage, path: str, splits: Sequence[str]) -> WriteResult:
    """Return the result of a commit that was killed before it removed the parts."""
    info = read_info(storage.clean(path), storage)
    assert info is not None
    first, *others = (
        WriteResult(
            path=shown(path),
            split=split.name,
            shards=(),
            records=split.num_examples,
            bytes=split.num_bytes,
            label=None,
            classes={},
            features=Features({}),
            skipped=(),
            seconds=0.0,
            notes=("the parts were committed before; they are removed now",),
        )
        for split in info.splits
        if split.name in splits
    )
    return replace(first, others=tuple(others))


def _remove_parts(storage: Storage, location: str, names: Sequence[str]) -> None:
    """Delete parts after the commit; a part that was run again meanwhile remains."""
    with contextlib.suppress(OSError):
        for name in names:
            remove_parts(storage, storage.join(location, name))
        remove_empty(storage, location)
