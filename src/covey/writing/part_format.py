"""The content of parts as JSON; see :mod:`covey.writing.parts`. None of it is trusted.

:func:`to_json` and :func:`from_json` convert dataclasses by the types of their fields. The tables
of runs are in files of their own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union

import numpy as np

from covey._core import crc32c
from covey.errors import CoveyError, DatasetError, FormatError
from covey.index.format import content_checksum, fingerprint
from covey.labels import Classes
from covey.schema import Features
from covey.schema.features import features_from_json, features_to_json
from covey.schema.infer import Inference
from covey.schema.infer import Path as FeaturePath
from covey.schema.lattice import Seen
from covey.schema.types import Feature
from covey.shuffle.buckets import TABLE_DTYPE, RunFile, add_tables, read_table
from covey.shuffle.keys import ROW_DTYPE
from covey.storage import Storage
from covey.untrusted import brief, check_path, parse_json, parsing
from covey.writing.inputs import Input
from covey.writing.map_stage import MapResult
from covey.writing.options import DEFAULT_MEMORY_LIMIT, WriteOptions, WriteSchema
from covey.writing.part_files import Part
from covey.writing.pieces import Piece, source_files

FORMAT_VERSION = 3
_MAX_FINGERPRINTS = 1000


# Values.


def to_json(value: Any) -> Any:
    """Return a value for ``json.dumps``: a dataclass is a dict of its fields.

    Characters that UTF-8 lacks, as in the names of some files, are escaped.

    Raises:
        TypeError: If a value is of another type.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return value.encode(errors="backslashreplace").decode()
        case float() if math.isfinite(value):
            return float(value)
        case bytes():
            return {"__bytes__": base64.b64encode(value).decode()}
        case Features():
            return features_to_json(value)
        case Feature():
            return features_to_json(Features({"value": value}))
        case Inference():
            return {"count": value.count, "found": to_json(value.found)}
        case Mapping() if all(isinstance(key, str) for key in value):
            return {to_json(key): to_json(each) for key, each in value.items()}
        case Mapping():
            return [[to_json(key), to_json(each)] for key, each in value.items()]
        case list() | tuple():
            return [to_json(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _fields(type(value))}
    array = np.asarray(value)
    if array.dtype == TABLE_DTYPE:
        return None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__} is not supported")
    data = base64.b64encode(array.tobytes()).decode()
    return {"__array__": data, "dtype": array.dtype.str, "shape": list(array.shape)}


def from_json(kind: Any, content: Any, name: str) -> Any:
    """Return the value of :func:`to_json`.

    Args:
        kind: Type of the value, as in an annotation. For ``Any``, tuples become lists.
        content: The result of ``json.loads``.
        name: Name of the value, for errors.

    Raises:
        FormatError: If the content is not of this type.
    """
    fields = _fields(kind) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    is_list, is_dict = isinstance(content, list), isinstance(content, dict)
    if kind is Any:
        return _any_from_json(content)
    if kind in (Features, Feature):
        with _naming(name):
            found = features_from_json(content, name)
        return found if kind is Features else found["value"]
    if kind is Inference and is_dict:
        inference = Inference()
        inference.count = from_json(int, content["count"], f"{name}.count")
        inference.found = from_json(dict[FeaturePath, Seen], content["found"], f"{name}.found")
        return inference
    if origin in (Union, types.UnionType):
        rest = [each for each in members if each is not types.NoneType]
        if content is None and len(rest) < len(members):
            return None
        if len(rest) == 1 or type(content) in rest:
            return from_json(rest[0] if len(rest) == 1 else type(content), content, name)
    elif origin is np.ndarray and content is None:
        return np.zeros(0, TABLE_DTYPE)
    elif kind in (bool, int, float, str) and type(content) is kind:
        if kind is not str or content.encode(errors="replace").decode() == content:
            return content
    elif origin is Literal and content in members:
        return content
    elif origin in (tuple, Sequence) and is_list:
        kinds = members if members[1:] not in ((), (...,)) else members[:1] * len(content)
        return tuple(
            from_json(each, value, f"{name}[{at}]")
            for at, (each, value) in enumerate(zip(kinds, content, strict=True))
        )
    elif origin in (dict, Mapping) and (is_list or is_dict):
        pairs = content.items() if is_dict else content
        own, other = members
        return {from_json(own, a, f"a key of {name}"): from_json(other, b, name) for a, b in pairs}
    elif fields is not None and is_dict and content.keys() == fields.keys():
        values = {
            field: from_json(own, content[field], f"{name}.{field}")
            for field, own in fields.items()
        }
        with _naming(name):
            return kind(**values)
    expected = f"a dict of {', '.join(fields)}" if fields else inspect.formatannotation(kind)
    raise FormatError(f"{name} is {brief(content)}; must be {expected}")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise FormatError with the name of a value for any error of covey."""
    try:
        yield
    except CoveyError as error:
        error.path = name
        raise FormatError(str(error)) from None


def _any_from_json(content: Any) -> Any:
    match content:
        case list():
            return [_any_from_json(each) for each in content]
        case {"__bytes__": text}:
            return base64.b64decode(text, validate=True)
        case {"__array__": text, "dtype": str(name), "shape": shape}:
            dtype = np.dtype(name)
            return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(shape)[()]
        case dict():
            return {key: _any_from_json(each) for key, each in content.items()}
    return content


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}


# Parts.


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

    def relative(run: RunFile) -> RunFile:
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
                table = add_tables([group.table, *map(read_table, runs)])
                groups.append(replace(group, runs=runs, table=table))
            found.append((piece, replace(result, groups=tuple(groups))))
        return tuple(found)


def _find_run(storage: Storage, location: str, run: RunFile) -> RunFile:
    """Return a run of a part with its path, after the sizes of its files are compared."""
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
