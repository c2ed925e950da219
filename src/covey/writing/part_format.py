"""The content of parts as JSON; see :mod:`covey.writing.parts`. None of it is trusted."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._core import crc32c
from covey.errors import CoveyError, DatasetError, FormatError
from covey.index.format import fingerprint
from covey.labels import Classes
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.infer import Inference
from covey.schema.json import features_from_json, features_to_json
from covey.schema.lattice import Seen
from covey.shuffle.buckets import TABLE_DTYPE, RunFile, add_tables, make_table, read_table
from covey.shuffle.keys import ROW_DTYPE, RecordOrder
from covey.storage import Storage
from covey.untrusted import check_name
from covey.writing.hold_out import HoldOut
from covey.writing.inputs import Input
from covey.writing.map_stage import GroupRuns, MapResult
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.order import RecordGroup
from covey.writing.part_files import PART_FILE
from covey.writing.pieces import Piece, source_files

FORMAT_VERSION = 2
MAX_PARTS = 100_000
# These options do not change what a part contains.
_LOCAL_OPTIONS = ("memory_limit", "workers")
_MAX_FINGERPRINTS = 1000


@dataclass(frozen=True)
class PartRun:
    """A complete run of a part."""

    number: int
    total: int
    name: str
    location: str
    content: Mapping[str, Any]


def parse_part(part: str) -> tuple[int, int]:
    """Return the number of a part, from 1, and the number of parts.

    >>> parse_part("3/64")
    (3, 64)

    Raises:
        DatasetError: If it is not of this form.
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part) if isinstance(part, str) else None
    if match is not None and 1 <= int(match[1]) <= int(match[2]) <= MAX_PARTS:
        return int(match[1]), int(match[2])
    raise DatasetError(
        option="part",
        found=part,
        allowed=f"'K/N', with K from 1 to N and N at most {MAX_PARTS:,}",
    )


def write_to_json(
    options: WriteOptions,
    joined: Input,
    inputs: Sequence[Input],
    schema: WriteSchema,
    classes: Classes | None,
    bits: int,
    checksums: Sequence[Sequence[int | None]],
) -> dict[str, Any]:
    """Return what all parts of a write have in common.

    Args:
        options: Options of the write.
        joined: The schema of all splits.
        inputs: Input of each split.
        schema: Features and label of the dataset.
        classes: Classes of columns.
        bits: Bits of the hash that number a bucket.
        checksums: CRC of the first and the last example of each source of each input, if it is in
            memory.
    """
    fields = {
        each.name: getattr(options, each.name)
        for each in dataclasses.fields(options)
        if each.name not in ("features", "hold_out", *_LOCAL_OPTIONS)
    }
    held_out = None if options.hold_out is None else dataclasses.asdict(options.hold_out)
    content = {
        "options": {**fields, "defaults": dict(options.defaults)},
        "features": None if options.features is None else features_to_json(options.features),
        "hold_out": held_out,
        "bits": bits,
        "schema": {
            "features": None if joined.features is None else features_to_json(joined.features),
            "label": joined.label,
            "class_names": joined.class_names,
            "adds_classes": joined.adds_classes,
        },
        "dataset": schema_to_json(schema),
        "sources": [
            [_source_to_json(*part) for part in zip(each.parts, own, strict=True)]
            for each, own in zip(inputs, checksums, strict=True)
        ],
        "classes": None
        if classes is None
        else {
            "features": features_to_json(classes.features),
            "label": classes.label,
            "strings": classes.strings,
        },
    }
    try:
        return json.loads(json.dumps(content, default=_to_json))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise DatasetError(
            f"the options of a part must be values of JSON: {error}", option="part"
        ) from None


def _to_json(value: Any) -> Any:
    """Return a default that JSON lacks a type for: bytes, or an array of numbers."""
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        data = base64.b64encode(value.tobytes()).decode()
        return {"__array__": data, "dtype": value.dtype.str, "shape": value.shape}
    raise TypeError(f"{type(value).__name__} is not supported")


def _from_json(value: Any) -> Any:
    """Return the default of :func:`_to_json`."""
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "__bytes__" in value:
        return base64.b64decode(value["__bytes__"])
    if "__array__" in value:
        found = np.frombuffer(base64.b64decode(value["__array__"]), np.dtype(value["dtype"]))
        return found.reshape(value["shape"])[()]
    return {name: _from_json(each) for name, each in value.items()}


def schema_to_json(schema: WriteSchema) -> dict[str, Any]:
    """Return the schema that follows from the dataset before the write."""
    features = [schema.features, schema.fallback]
    return {
        "features": [None if each is None else features_to_json(each) for each in features],
        "label": schema.label,
        "known_classes": list(schema.known_classes),
        "strings_to_classes": schema.strings_to_classes,
    }


def _source_to_json(part: Input, checksum: int | None) -> dict[str, Any]:
    """Return the identity of a source: its path and length, and that of its files or examples."""
    files = source_files(part)
    path = part.path
    if path is not None and os.path.lexists(path):  # neither a URL nor the name of a function
        path = os.path.abspath(path)
    marks = [fingerprint(file) for file in files[:_MAX_FINGERPRINTS]]
    return {
        "path": path,
        "examples": part.length,
        "bytes": sum(map(os.path.getsize, files)),
        "fingerprint": crc32c(np.array(marks, "<u4")),
        "first_and_last_example_crc": checksum,
    }


def write_from_json(
    part: PartRun, memory_limit: int | None
) -> tuple[WriteOptions, Input, list[Input], Classes | None, int]:
    """Return the options, the schema of the source, the inputs and the classes of columns."""
    name = f"{part.location}/{PART_FILE}"
    with parsing(name):
        content = part.content["write"]
        fields = dict(content["options"])
        fields["more_splits"] = tuple(fields["more_splits"])
        fields["defaults"] = _from_json(fields["defaults"])
        if content["features"] is not None:
            fields["features"] = features_from_json(content["features"], name)
        if content["hold_out"] is not None:
            fields["hold_out"] = HoldOut(**content["hold_out"])
        if memory_limit is not None:
            fields["memory_limit"] = memory_limit
        options = WriteOptions(**fields)
        schema = content["schema"]
        known = schema["features"]
        class_names = schema["class_names"]
        joined = Input(
            columns=None if content["classes"] is None else {},
            features=None if known is None else features_from_json(known, name),
            label=schema["label"],
            class_names=class_names
            and {key: tuple(map(str, names)) for key, names in class_names.items()},
            adds_classes=bool(schema["adds_classes"]),
        )
        inputs = [
            Input(
                sources=tuple(
                    Input(path=each["path"], length=each["examples"], number=number)
                    for number, each in enumerate(sources)
                )
            )
            if len(sources) > 1
            else Input(path=sources[0]["path"], length=sources[0]["examples"])
            for sources in content["sources"]
        ]
        columns = None
        if content["classes"] is not None:
            columns = Classes(
                features_from_json(content["classes"]["features"], name),
                content["classes"]["label"],
                content["classes"]["strings"] or (),
            )
        return options, joined, inputs, columns, int(content["bits"])


def result_to_json(piece: Piece, result: MapResult, directory: Path) -> dict[str, Any]:
    """Return the result of a piece as values of JSON; paths are relative to the directory."""
    return {
        "piece": piece.index,
        "split": piece.split,
        "first": piece.first,
        "begin": piece.begin,
        "path": piece.path,
        "examples": piece.count,
        "has_keys": {str(split): has_keys for split, has_keys in result.has_keys.items()},
        "strings": result.strings,
        "has_strings": result.has_strings,
        "inference": None if result.inference is None else _inference_to_json(result.inference),
        "skipped": [[[each.record, each.reason] for each in split] for split in result.skipped],
        "rounding": result.rounding,
        "groups": [
            {
                "features": features_to_json(group.kind.features),
                "split": group.kind.split,
                "label": group.kind.label,
                "order": [group.kind.order.by_class, group.kind.order.by],
                "runs": [
                    {
                        "name": Path(run.path).relative_to(directory).as_posix(),
                        "records": run.records,
                        "bytes": run.bytes,
                        "rows_checksum": crc32c(Path(run.files[1]).read_bytes()),
                    }
                    for run in group.runs
                ],
            }
            for group in result.groups
        ],
    }


def result_from_json(
    content: Mapping[str, Any],
    part: PartRun,
    splits: int,
    bits: int,
    storage: Storage,
    storage_options: Mapping[str, Any] | None,
) -> tuple[Piece, MapResult]:
    """Return the result of :func:`result_to_json`, whose runs are compared with their files.

    Args:
        content: Values of JSON.
        part: The part.
        splits: Number of splits of the write.
        bits: Bits of the hash that number a bucket.
        storage: Storage of the part.
        storage_options: Options of the storage.

    Raises:
        FormatError: If it is not valid.
    """
    name = f"{part.location}/{PART_FILE}"
    with parsing(name):
        strings = tuple(map(str, content["strings"]))
        groups = []
        for group in content["groups"]:
            by_class, by = group["order"]
            kind = RecordGroup(
                features_from_json(group["features"], name),
                _in_range(group["split"], splits),
                group["label"],
                RecordOrder(bool(by_class), by),
            )
            runs = [
                _check_run(storage, part.location, each, kind, bits, len(strings), storage_options)
                for each in group["runs"]
            ]
            table = add_tables([np.zeros(0, TABLE_DTYPE), *(table for _, table, _ in runs)])
            longest = max((longest for *_, longest in runs), default=0)
            groups.append(GroupRuns(kind, tuple(run for run, *_ in runs), table, longest))
        inference = content["inference"]
        result = MapResult(
            int(content["piece"]),
            tuple(groups),
            int(content["examples"]),
            {int(split): bool(has_keys) for split, has_keys in content["has_keys"].items()},
            strings,
            bool(content["has_strings"]),
            None if inference is None else _inference_from_json(inference, name),
            skipped=tuple(
                tuple(SkippedRecord(int(record), str(reason)) for record, reason in split)
                for split in content["skipped"][:splits]
            ),
            rounding={
                str(feature): (int(rounded), int(total))
                for feature, (rounded, total) in content["rounding"].items()
            },
        )
        piece = Piece(
            int(content["piece"]),
            _in_range(content["split"], splits),
            int(content["first"]),
            content["path"],
            int(content["examples"]),
            begin=int(content["begin"]),
            is_local=True,
        )
    return piece, result


def _inference_to_json(inference: Inference) -> dict[str, Any]:
    """Return an inference, without its defaults, as values of JSON."""
    features = []
    for path, seen in inference.found.items():
        fields = {each.name: getattr(seen, each.name) for each in dataclasses.fields(seen)}
        fields["feature"] = features_to_json(Features({"value": seen.feature}))
        features.append({**fields, "path": path})
    return {"count": inference.count, "features": features}


def _inference_from_json(content: Mapping[str, Any], name: str) -> Inference:
    """Return the inference of :func:`_inference_to_json`."""
    inference = Inference()
    inference.count = int(content["count"])
    for each in content["features"]:
        fields = dict(each)
        path = tuple(map(str, fields.pop("path")))
        fields["feature"] = features_from_json(fields["feature"], name)["value"]
        inference.found[path] = Seen(**fields)
    return inference


@contextmanager
def parsing(name: str) -> Iterator[None]:
    """Raise FormatError for content that is not that of a part."""
    try:
        yield
    except CoveyError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"it is not a part: {type(error).__name__}: {error}", path=name) from None


def _in_range(value: Any, end: int) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{value!r} is not a split")
    return value


def _check_run(
    storage: Storage,
    location: str,
    listed: Mapping[str, Any],
    kind: RecordGroup,
    bits: int,
    strings: int,
    storage_options: Mapping[str, Any] | None,
) -> tuple[RunFile, NDArray[Any], int]:
    """Return a run whose files are those that are listed, its table, and its longest record."""
    path = location
    for component in str(listed["name"]).split("/"):
        check_name(component, "the name of a run")
        path = storage.join(path, component)
        if not storage.is_remote and os.path.islink(path):
            raise FormatError("it is a symbolic link", path=path)
    run = RunFile(
        path,
        int(listed["records"]),
        int(listed["bytes"]),
        storage_options=storage_options,
        is_trusted=False,
    )
    frames, rows_path, table_path = run.files
    expected = (run.bytes, run.records * ROW_DTYPE.itemsize)
    states = storage.stat([frames, rows_path])
    for file, found, wanted in zip((frames, rows_path), states, expected, strict=True):
        if found is None or found.size != wanted:
            state = "is missing" if found is None else f"has {found.size:,} bytes"
            raise FormatError(f"the file {state}; must have {wanted:,} bytes", path=file)
    with storage.open_stream(rows_path) as stream:
        data = stream.read()
    if crc32c(data) != listed["rows_checksum"]:
        raise FormatError("the checksum does not match", path=rows_path)
    rows = np.frombuffer(data, ROW_DTYPE)
    table = read_table(run)
    if not np.array_equal(table, make_table(rows, kind.order, bits)):
        raise FormatError("the buckets are not those of its records", path=table_path)
    labels = rows["label"]
    if kind.has_provisional_ids and len(rows) and not 0 <= labels.min() <= labels.max() < strings:
        raise FormatError("a class id has no string", path=rows_path)
    return run, table, int(rows["length"].max()) if len(rows) else 0
