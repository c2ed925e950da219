"""The content of parts; see :mod:`covey.writing.parts`. None of it is trusted.

The tables of runs are in files of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covey._core import crc32c
from covey.errors import DatasetError, FormatError
from covey.index.format import content_checksum, fingerprint
from covey.labels import Classes
from covey.schema import Features
from covey.shuffle.keys import ROW_DTYPE
from covey.shuffle.runs import Run, RunFile, add_tables
from covey.storage import Storage
from covey.untrusted import check_path, parse_json, parsing
from covey.writing.inputs import Input
from covey.writing.options import DEFAULT_MEMORY_LIMIT, WriteOptions, WriteSchema
from covey.writing.part_files import Part
from covey.writing.pieces import Piece, source_files
from covey.writing.stages import MapResult
from covey.writing.typed_json import from_json, to_json

FORMAT_VERSION = 3
_MAX_FINGERPRINTS = 1000


@dataclass(frozen=True)
class SourceState:
    """The files or the examples of a source of a write, by which parts are compared."""

    bytes: int
    """Bytes of its files."""
    fingerprint: int
    """CRC of the fingerprints of its files."""
    first_and_last_example_crc: int | None
    """CRC of these examples, if the source is in memory."""


@dataclass(frozen=True)
class PartWrite:
    """What all parts of a write have in common."""

    options: WriteOptions
    joined: Input
    """The schema of all splits."""
    inputs: tuple[Input, ...]
    """Input of each split, without examples."""
    sources: tuple[SourceState, ...]
    """The sources of all inputs."""
    dataset: WriteSchema
    """What follows from the dataset before the write."""
    columns: tuple[Features, str | None, tuple[str, ...]] | None
    """Features, label and label strings of columns."""


def common_write(
    options: WriteOptions,
    joined: Input,
    inputs: Sequence[Input],
    schema: WriteSchema,
    classes: Classes | None,
    checksums: Sequence[int | None],
) -> PartWrite:
    """Return what all parts of a write have in common.

    Args:
        options: Options of the write. Some of them do not change what a part contains.
        joined: The schema of all splits.
        inputs: Input of each split.
        schema: Features and label of the dataset.
        classes: Classes of columns.
        checksums: CRC of the first and the last example of each source, if it is in memory.
    """
    columns = None
    if classes is not None:
        columns = (classes.features, classes.label, classes.strings or ())
    parts = [part for each in inputs for part in each.parts]
    return PartWrite(
        replace(options, memory_limit=DEFAULT_MEMORY_LIMIT, workers=None),
        replace(_without_examples(joined), length=None, sources=()),
        tuple(map(_without_examples, inputs)),
        tuple(map(_state_of, parts, checksums)),
        schema,
        columns,
    )


def _without_examples(examples: Input) -> Input:
    path = examples.path
    if path is not None and os.path.lexists(path):  # neither a URL nor the name of a function
        path = os.path.abspath(path)
    return replace(
        examples,
        path=path,
        columns=None if examples.columns is None else {},
        items=None,
        sources=tuple(map(_without_examples, examples.sources)),
    )


def _state_of(part: Input, checksum: int | None) -> SourceState:
    files = source_files(part)
    marks = np.array([fingerprint(file) for file in files[:_MAX_FINGERPRINTS]], "<u4")
    return SourceState(sum(map(os.path.getsize, files)), crc32c(marks), checksum)


PartResults = tuple[tuple[Piece, MapResult], ...]


def part_to_json(
    number: int, total: int, write: PartWrite, results: PartResults, directory: Path
) -> dict[str, Any]:
    """Return the content of a part, whose runs are in a directory.

    Raises:
        DatasetError: If an option is not a value of JSON.
    """

    def relative(run: Run) -> RunFile:
        assert isinstance(run, RunFile)
        path = Path(run.path).relative_to(directory).as_posix()
        return replace(run, path=path, checksum=crc32c(Path(run.files[2]).read_bytes()))

    stored = []
    for piece, result in results:
        groups = (replace(each, runs=tuple(map(relative, each.runs))) for each in result.groups)
        stored.append((replace(piece, payload=None), replace(result, groups=tuple(groups))))
    try:
        content = {
            "covey_part": FORMAT_VERSION,
            "part": number,
            "parts": total,
            "write": to_json(write),
            "results": to_json(stored),
        }
    except TypeError as error:
        raise DatasetError(
            f"the options of a part must be values of JSON: {error}", option="part"
        ) from None
    return {**content, "content_checksum": content_checksum(content)}


def read_content(storage: Storage, part: Part) -> dict[str, Any]:
    """Return the JSON of a part.

    Raises:
        FormatError: If it is not this part.
    """
    content = parse_json(storage.read(part.file), part.file)
    is_valid = (
        isinstance(content, dict)
        and content.get("covey_part") == FORMAT_VERSION
        and content.pop("content_checksum", None) == content_checksum(content)
        and isinstance(content.get("write"), dict)
    )
    if not is_valid or (content.get("part"), content.get("parts")) != (part.number, part.total):
        raise FormatError("it is not a part of this version of covey", path=part.file)
    return content  # type: ignore[no-any-return]


def load_write(part: Part, content: Any) -> PartWrite:
    """Return what a part has in common with the others, from its JSON.

    Raises:
        FormatError: If it is not valid.
    """
    with parsing(part.file):
        write: PartWrite = from_json(PartWrite, content, "write")
        if len(write.inputs) not in (1, len(write.options.splits)):
            raise ValueError(f"it has {len(write.inputs)} inputs")
        return write


def load_results(
    storage: Storage,
    part: Part,
    content: Any,
    splits: int,
    storage_options: Mapping[str, Any] | None,
) -> PartResults:
    """Return the results of the pieces of a part, from their JSON, with the tables of their runs.

    The sizes of the files of a run are checked, and its table; tasks verify what they read.

    Raises:
        FormatError: If they are not valid.
    """
    with parsing(part.file):
        found = []
        for piece, result in from_json(PartResults, content, "results"):
            kinds = [group.kind for group in result.groups]
            used = [piece.split, *(kind.split for kind in kinds), *result.has_keys]
            if any(not 0 <= split < splits for split in used) or len(result.skipped) > splits:
                raise ValueError(f"piece {piece.index} has more than {splits} splits")
            if kinds and not result.has_keys:
                raise ValueError(f"has_keys of piece {piece.index} is empty")
            strings = len(result.strings) if result.has_strings else 0
            groups = []
            for group in result.groups:
                has_strings = group.kind.has_provisional_ids
                runs = tuple(
                    replace(
                        _find_run(storage, part.location, run),
                        storage_options=storage_options,
                        strings=strings if has_strings else None,
                    )
                    for run in group.runs
                )
                table = add_tables([group.table, *(run.table for run in runs)])
                groups.append(replace(group, runs=runs, table=table))
            found.append((piece, replace(result, groups=tuple(groups))))
        return tuple(found)


def _find_run(storage: Storage, location: str, run: Run) -> RunFile:
    """Return a run of a part with its path, after the sizes of its files are compared."""
    assert isinstance(run, RunFile)
    check_path(run.path, "the name of a run")
    if run.checksum is None:
        raise ValueError("a run has no checksum")
    path = location
    for component in run.path.split("/"):
        path = storage.join(path, component)
        if not storage.is_remote and os.path.islink(path):
            raise FormatError("it is a symbolic link", path=path)
    found = replace(run, path=path)
    files, sizes = found.files[:2], (found.bytes, found.records * ROW_DTYPE.itemsize)
    for file, state, size in zip(files, storage.stat(files), sizes, strict=True):
        if state is None or state.size != size:
            what = "is missing" if state is None else f"has {state.size:,} bytes"
            raise FormatError(f"the file {what}; must have {size:,} bytes", path=file)
    return found
