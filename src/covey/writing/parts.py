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
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey._files import sync
from covey._locks import locked_directory
from covey._progress import Progress
from covey.engines.pools import Here
from covey.errors import CoveyError, DatasetError
from covey.index.format import content_checksum
from covey.results import WriteResult
from covey.schema import Features
from covey.schema.lattice import is_decimal
from covey.shuffle.buckets import hash_bits
from covey.storage import LocalStorage, is_remote, open_storage
from covey.urls import shown
from covey.writing.columns import prepare_columns
from covey.writing.inputs import Input, located, source_failed, with_types
from covey.writing.map_stage import MapContext, MapResult, map_piece
from covey.writing.options import WriteOptions
from covey.writing.part_files import (
    PART_FILE,
    list_runs,
    parts_directory,
    remove_killed,
    remove_parts,
    temporary_run,
)
from covey.writing.part_format import FORMAT_VERSION, parse_part, result_to_json, write_to_json
from covey.writing.pieces import plan_pieces, plan_tables
from covey.writing.publish import RemoteStaging
from covey.writing.scratch import Scratch, local_copy
from covey.writing.survey import checksum_of_ends, first_inference
from covey.writing.target import TargetSplit
from covey.writing.write_steps import resolve_schema


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
    with inspected(path, options, storage_options) as targets:
        known = schema = resolve_schema(options, joined, targets, targets[0].known_schema())
    label = None
    if joined.columns is not None:
        classes, tables = prepare_columns(inputs, options, schema)
        schema = schema.with_final(classes.features, classes.label)
        label = classes.label
        plan = plan_tables(tables, workers=1, pieces=total)
        checksums: list[list[int | None]] = [[table.checksum_of_ends()] for table in tables]
    else:
        classes = None
        plan = plan_pieces(inputs, workers=1, pieces=total, divide_all=True)
        checksums = [
            [checksum_of_ends(source, options, known) for source in each.parts] for each in inputs
        ]
    pieces = list(plan.pieces)
    own = pieces[len(pieces) * (number - 1) // total : len(pieces) * number // total]
    bits = hash_bits(0)
    base = None if schema.features is not None else first_inference(inputs, options, schema)
    target = _PartTarget(path, options, storage_options)
    with target.new_run(number, total) as directory:
        context = MapContext(
            options,
            schema,
            joined.class_names,
            base,
            plan.shared,
            Scratch(str(directory)),
            bits,
            label,
        )
        results = []
        subject = f"part {part} of {', '.join(options.splits)}"
        with Progress(progress, None, "reading", subject=subject) as bar:
            for piece in own:
                with located(inputs[min(piece.split, len(inputs) - 1)]):
                    result = map_piece(Here(context), piece)
                bar.add(result.examples, result.bytes)
                results.append((piece, result))
        content: dict[str, Any] = {
            "covey_part": FORMAT_VERSION,
            "part": number,
            "parts": total,
            "write": write_to_json(options, joined, inputs, known, classes, bits, checksums),
            "results": [result_to_json(piece, result, directory) for piece, result in results],
        }
        content["content_checksum"] = content_checksum(content)
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


@contextmanager
def inspected(
    path: str, options: WriteOptions, storage_options: Mapping[str, Any] | None
) -> Iterator[tuple[TargetSplit, ...]]:
    """Yield the splits to be written, without locking the dataset."""
    with ExitStack() as stack:
        if is_remote(path):
            # Without the shards: only metadata is read.
            remote = RemoteStaging(path, options.splits, appends=False, options=storage_options)
            directory = stack.enter_context(remote).directory
        else:
            directory = Path(LocalStorage().clean(path))
        yield tuple(
            TargetSplit.inspect(directory, split, options.mode, options.name, splits=options.splits)
            for split in options.splits
        )


class _PartTarget:
    """Directory or URL of the parts of splits."""

    def __init__(
        self, path: str, options: WriteOptions, storage_options: Mapping[str, Any] | None
    ) -> None:
        self._storage = open_storage(path, storage_options)
        self._location = self._storage.join(
            self._storage.clean(path), parts_directory(options.splits)
        )

    @contextmanager
    def new_run(self, number: int, total: int) -> Iterator[Path]:
        """Yield a local directory; publish its files at the end of the block."""
        prefix = f"{number:05d}-of-{total:05d}-"
        name = f"{prefix}{time.time_ns():020d}-{secrets.token_hex(4)}"
        # The clocks of nodes differ: an earlier run may have a later name.
        earlier = {each for each in self._runs() if each.startswith(prefix)}
        remove_killed(self._storage, self._location, prefix)
        if self._storage.is_remote:
            with local_copy("part") as directory:
                yield directory
                self._upload(directory, self._storage.join(self._location, name))
        else:
            with self._local_run(Path(self._location), name) as directory:
                yield directory
        for old in self._runs():
            if old in earlier or (old.startswith(prefix) and old < name):
                remove_parts(self._storage, self._storage.join(self._location, old))

    @contextmanager
    def _local_run(self, parent: Path, name: str) -> Iterator[Path]:
        is_new = not parent.parent.exists()
        parent.mkdir(parents=True, exist_ok=True)
        try:
            with locked_directory(parent / temporary_run(name)) as temporary:
                try:
                    yield temporary
                    for file in temporary.rglob("*"):
                        sync(file)
                    sync(temporary)
                    temporary.rename(parent / name)
                    sync(parent)
                except FileNotFoundError as error:
                    if temporary.exists():
                        raise
                    raise DatasetError(
                        "the parts were committed or removed while this part was written",
                        path=parent,
                    ) from error
        except BaseException:
            with contextlib.suppress(OSError):  # it has other parts
                parent.rmdir()
                if is_new:
                    parent.parent.rmdir()
            raise

    def _runs(self) -> list[str]:
        return list_runs(self._storage, self._location)

    def _upload(self, directory: Path, url: str) -> None:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        files.sort(key=lambda each: each.name == PART_FILE)  # the last one completes the part
        for path in files:
            relative = path.relative_to(directory).as_posix()
            self._storage.upload(str(path), self._storage.join(url, relative))
