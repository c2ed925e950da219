"""Commit the parts of a write: compare them, reduce their runs to shards, commit these."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from covey._locks import reporting_failures
from covey._progress import Progress
from covey._text import list_names
from covey.dataset_info import DatasetInfo
from covey.engines import EngineArgument, find_engine
from covey.engines.pools import Threads
from covey.errors import DatasetError, FormatError
from covey.filenames import INFO_FILE
from covey.index.format import content_checksum
from covey.results import WriteResult
from covey.schema import Features
from covey.storage import Storage, open_storage
from covey.untrusted import parse_json, reports_errors
from covey.urls import AnyPath, parse_path, shown
from covey.writing.distributed import DistributedWrite
from covey.writing.distributed_records import records_of
from covey.writing.inputs import Input
from covey.writing.map_stage import MapResult
from covey.writing.options import WriteSchema
from covey.writing.part_files import (
    PART_FILE,
    PARTS_PREFIX,
    find_parts,
    list_runs,
    parts_directory,
    remove_committed,
    remove_empty,
    remove_parts,
)
from covey.writing.part_format import (
    FORMAT_VERSION,
    PartRun,
    parsing,
    result_from_json,
    schema_to_json,
    write_from_json,
)
from covey.writing.pieces import Piece
from covey.writing.split_writer import stage_split
from covey.writing.write_steps import resolve_schema, write_ordered

_NAME = re.compile(r"(\d{5,9})-of-(\d{5,9})-\d{20}-[0-9a-f]{8}")
_MAX_NAMED = 10


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
    location = _find_parts(storage, target, split)
    removed = remove_committed(storage, storage.clean(target)).get(storage.name(location), [])
    if removed and not list_runs(storage, location):
        splits = storage.name(location)[len(PARTS_PREFIX) :].split("+")
        return _committed(storage, target, splits)
    parts, notes = _read_parts(storage, location, removed)
    options, joined, inputs, columns, bits = write_from_json(parts[0], memory_limit)
    if storage.name(location) != parts_directory(options.splits):
        raise FormatError(f"the parts are those of {list_names(options.splits)}", path=location)
    results = [
        result_from_json(each, part, len(options.splits), bits, storage, storage_options)
        for part in parts
        for each in part.content["results"]
    ]
    _check_complete(results, inputs, shown(location))
    _check_records(parts, results, shown(location))
    chosen = find_engine(engine)
    with ExitStack() as stack, stage_split(target, options, storage_options) as writer:
        schema = resolve_schema(options, joined, writer.targets, writer.known_schema())
        _check_unchanged(schema, parts[0], shown(target))
        writer.parts = tuple(part.name for part in parts)
        if {*writer.parts} - {*list_runs(storage, location)}:
            raise DatasetError(
                "another process has committed or removed parts",
                path=shown(location),
                remedy="run `covey info`",
            )
        subject = f"{writer.target.name} {', '.join(options.splits)}"
        bar = stack.enter_context(Progress(progress, None, "reading", subject=subject))
        scratch = stack.enter_context(writer.scratch(chosen))
        with Threads() if chosen is None else chosen.start() as pool:
            work = DistributedWrite(
                pool,
                options,
                schema,
                inputs,
                joined,
                writer.staging.path,
                bar,
                scratch=scratch,
                columns=columns,
                bits=bits,
            )
            for piece, each in results:
                work.add_result(piece, each)
            ordered = records_of(work, work.finish())
            result = write_ordered(writer, ordered, options, inputs, work.skipped, bar)
    with reporting_failures(shown(target), options.split, lambda: True):
        _remove_parts(storage, location, [part.name for part in parts])
    seconds = time.perf_counter() - started
    return replace(result, seconds=seconds, notes=(*notes, *result.notes))


def _find_parts(storage: Storage, path: str, split: str | None) -> str:
    """Return the directory of the parts of a dataset."""
    root = storage.clean(path)
    names = find_parts(storage, root, f"*/{PART_FILE}")
    by_splits = {name: name[len(PARTS_PREFIX) :].split("+") for name in names}
    matching = [name for name, splits in by_splits.items() if split is None or split in splits]
    if len(matching) == 1:
        return storage.join(root, matching[0])
    if not matching:
        raise DatasetError(
            "there are no parts" + ("" if split is None else f" of split {split!r}"),
            path=shown(path),
            remedy="write them with `covey write SOURCE TARGET --part K/N`",
        )
    splits = sorted({each for name in matching for each in by_splits[name]})
    raise DatasetError(
        f"there are parts of several writes, of the splits {list_names(splits)}",
        path=shown(path),
        remedy=f"pass split={splits[0]!r} to commit one of them",
    )


def _read_parts(
    storage: Storage, location: str, removed: Sequence[str]
) -> tuple[list[PartRun], tuple[str, ...]]:
    """Return the last run of each part, in order, and notes about parts that were run again.

    Args:
        storage: Storage of the parts.
        location: Directory of the parts.
        removed: Names of runs that were committed before, for the error.

    Raises:
        DatasetError: If a part is missing, or differs from the others.
    """
    by_number: dict[int, PartRun] = {}
    repeated: list[int] = []
    totals: dict[int, list[int]] = {}
    for name in list_runs(storage, location):  # in the order of their tokens
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        directory = storage.join(location, name)
        file = storage.join(directory, PART_FILE)
        content = parse_json(storage.read(file), file)
        number, total = int(match[1]), int(match[2])
        is_valid = (
            isinstance(content, dict)
            and content.get("covey_part") == FORMAT_VERSION
            and content.pop("content_checksum", None) == content_checksum(content)
            and isinstance(content.get("results"), list)
            and isinstance(content.get("write"), dict)
        )
        if not is_valid or (content.get("part"), content.get("parts")) != (number, total):
            raise FormatError("it is not a part of this version of covey", path=file)
        totals.setdefault(total, []).append(number)
        if number in by_number and by_number[number].total == total:
            repeated.append(number)
        by_number[number] = PartRun(number, total, name, directory, content)
    shown_path = shown(location)
    if not totals:
        raise DatasetError("no part is complete", path=shown_path)
    if len(totals) > 1:
        listed = "; ".join(
            f"{_listed(numbers)} of {total}" for total, numbers in sorted(totals.items())
        )
        raise DatasetError(
            f"there are parts of different numbers of parts: {listed}",
            path=shown_path,
            remedy="remove the parts of one of them",
        )
    (total,) = totals
    missing = [number for number in range(1, total + 1) if number not in by_number]
    if missing:
        before = sorted({int(name.partition("-")[0]) for name in removed})
        raise DatasetError(
            f"{_listed(missing)} of {total} {'is' if len(missing) == 1 else 'are'} missing"
            + (f"; {_listed(before)} of an earlier run were committed before" if before else ""),
            path=shown_path,
            remedy=f"run `covey write SOURCE TARGET --part {missing[0]}/{total}`",
        )
    parts = [by_number[number] for number in range(1, total + 1)]
    _compare(parts, shown_path)
    notes = (f"{_listed(sorted({*repeated}))} of {total}: the last run is used",) * bool(repeated)
    return parts, notes


def _listed(numbers: Sequence[int]) -> str:
    shown_numbers = ", ".join(map(str, numbers[:_MAX_NAMED]))
    more = len(numbers) - _MAX_NAMED
    rest = f" and {more:,} more" if more > 0 else ""
    return f"part{'s' * (len(numbers) > 1)} {shown_numbers}{rest}"


def _compare(parts: Sequence[PartRun], path: str) -> None:
    """Raise DatasetError if a part was written with other options, or from another source."""
    contents = [json.dumps(part.content.get("write"), sort_keys=True) for part in parts]
    ((common, _),) = Counter(contents).most_common(1)
    reference = parts[contents.index(common)]
    for part, content in zip(parts, contents, strict=True):
        if content == common:
            continue
        first, own = reference.content.get("write"), part.content.get("write")
        name, expected, found = _first_difference(first, own)
        raise DatasetError(
            f"part {part.number} of {part.total} differs from part {reference.number}: {name} is "
            f"{found}, not {expected}",
            path=path,
            remedy=f"run part {part.number} again with the options and the source of the others",
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


def _check_complete(
    results: Sequence[tuple[Piece, MapResult]], inputs: Sequence[Input], path: str
) -> None:
    """Raise FormatError unless the parts have all examples of the source, each of them once."""
    indexes = [piece.index for piece, _ in results]
    if sorted(indexes) != list(range(len(indexes))):
        raise FormatError("a piece is missing, or belongs to two parts", path=path)
    for split, examples in enumerate(inputs):
        wanted = sum(part.length or 0 for part in examples.parts)
        found = sum(result.examples for piece, result in results if piece.split == split)
        if found != wanted:
            raise FormatError(f"the parts have {found:,} of {wanted:,} examples", path=path)


def _check_records(
    parts: Sequence[PartRun], results: Sequence[tuple[Piece, MapResult]], path: str
) -> None:
    """Raise DatasetError unless each example of a part is a record or was skipped."""
    remaining = iter(results)
    for part in parts:
        own = list(itertools.islice(remaining, len(part.content["results"])))
        wanted = sum(result.examples for _, result in own)
        records = sum(result.records for _, result in own)
        skipped = sum(len(split) for _, result in own for split in result.skipped)
        if records + skipped != wanted:
            raise DatasetError(
                f"part {part.number} of {part.total} has {records:,} records and {skipped:,} "
                f"skipped examples; must have {wanted:,} examples",
                path=path,
                remedy=f"run part {part.number} again, with a source whose length is exact",
            )


def _check_unchanged(schema: WriteSchema, part: PartRun, path: str) -> None:
    """Raise DatasetError if the dataset has other features or classes than for the parts."""
    now = json.loads(json.dumps(schema_to_json(schema)))
    before = part.content["write"].get("dataset")
    with parsing(part.location):
        # Parts that were written without a dataset have inferred features: names, not class ids.
        is_inferred = before["features"][0] is None
    if now != before and not is_inferred:
        name, expected, found = _first_difference(before, now)
        raise DatasetError(
            f"the dataset has changed since the parts were written: {name} is {found}, not "
            f"{expected}",
            path=path,
            remedy="run all parts again",
        )


def _committed(storage: Storage, path: str, splits: Sequence[str]) -> WriteResult:
    """Return the result of a commit that was killed before it removed the parts."""
    file = storage.join(storage.clean(path), INFO_FILE)
    info = DatasetInfo.from_json(storage.read(file), file)
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
