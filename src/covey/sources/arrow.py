"""Parquet and Arrow files, also of Hugging Face datasets. pyarrow is imported on first use."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from covey.errors import SourceError, import_extra
from covey.schema import Audio, ClassLabel, Feature, Features, Image, Ragged, Tensor
from covey.sources.media import check_image, decode_sound, sound_feature
from covey.sources.registry import (
    DICT_FILE,
    STATE_FILE,
    ProbedPath,
    has_extension,
    open_files,
    register,
    register_files,
)
from covey.sources.source import (
    Item,
    Row,
    Source,
    SourceOptions,
    SourceSplits,
    TableRows,
    choose_label,
    source_error,
)
from covey.untrusted import check_path, parse_json, parsing, read_file

PARQUET_EXTENSIONS = (".parquet",)
ARROW_EXTENSIONS = (".arrow", ".feather")

# Rows that are converted to Python values at once; few, because rows may have images.
_BATCH_ROWS = 256
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _pyarrow() -> Any:
    pyarrow = import_extra("pyarrow", "reading Parquet and Arrow files", error=SourceError)
    importlib.import_module("pyarrow.parquet")
    return pyarrow


# Types.


def _feature_of(arrow: Any, types: Any) -> Any:
    """Return the feature of an Arrow type, or a dict of them; None if it must be inferred."""
    if types.is_dictionary(arrow):
        return _feature_of(arrow.value_type, types)
    name = str(arrow)
    if types.is_boolean(arrow) or types.is_integer(arrow) or types.is_floating(arrow):
        return Tensor(_FLOATS.get(name, name))
    if _is_stored_as_string(arrow, types) or "string" in name.split("_"):
        return Tensor("str")
    if name.startswith(("binary", "large_binary", "fixed_size_binary")):
        return Tensor("bytes")
    if types.is_struct(arrow):
        fields = {field.name: _feature_of(field.type, types) for field in arrow}
        if set(fields) == {"bytes", "path"}:
            return Image()
        return None if None in fields.values() else fields
    depth = 0
    while types.is_list(arrow) or types.is_large_list(arrow):
        arrow, depth = arrow.value_type, depth + 1
    item = _feature_of(arrow, types) if depth else None
    if not isinstance(item, Tensor) or item.shape:
        return None
    return Tensor(item.dtype, (None,)) if depth == 1 else Ragged(item.dtype, depth)


def _is_stored_as_string(arrow: Any, types: Any) -> bool:
    """Return whether values are converted to strings: dates, times and decimals."""
    return bool(types.is_temporal(arrow) or types.is_decimal(arrow))


def _fill(value: Any, kind: Any) -> Any:
    """Return a value, or the replacement of a null; the content of an image or a sound.

    Raises:
        SourceError: If a null has no replacement, or an image or a sound is invalid.
    """
    if isinstance(kind, (Audio, Image)):
        data = value and value["bytes"]
        if data is None:
            noun = "image" if isinstance(kind, Image) else "audio"
            raise SourceError(f"not a valid {noun}: it is null")
        return check_image(data) if isinstance(kind, Image) else decode_sound(data)
    if isinstance(kind, Mapping) and value is not None:
        return {name: _fill(value[name], inner) for name, inner in kind.items()}
    if value is not None:
        return value
    if kind is None or isinstance(kind, Ragged) or (isinstance(kind, Tensor) and kind.shape):
        return []
    empty = {"str": "", "bytes": b"", **dict.fromkeys(_FLOATS.values(), float("nan"))}
    if not isinstance(kind, Tensor) or kind.dtype not in empty:
        raise SourceError("the value is null", remedy="pass defaults= for it")
    return empty[kind.dtype]


# Files.


class _File:
    """A Parquet or Arrow file, by its first bytes. The rows of an Arrow file are mapped."""

    def __init__(self, path: str) -> None:
        pa = _pyarrow()
        self.path = path
        self._table: Any = None
        self._parquet: Any = None
        try:
            with open(path, "rb") as file:
                magic = file.read(6)
            if magic[:4] == b"PAR1":
                self._parquet = pa.parquet.ParquetFile(path)
                self.schema = self._parquet.schema_arrow
                self.rows: int = self._parquet.metadata.num_rows
                return
            opens = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
            self._table = opens(pa.memory_map(path)).read_all()
            self.schema, self.rows = self._table.schema, self._table.num_rows
        except (pa.ArrowException, OSError) as error:
            raise source_error(path, f"the file cannot be read: {error}") from None

    def batches(
        self, columns: Sequence[str], begin: int = 0, end: int | None = None
    ) -> Iterator[Any]:
        """Yield the batches of some rows; row groups before them are not read."""
        end = self.rows if end is None else end
        if self._parquet is None:
            part = self._table.select(columns).slice(begin, end - begin)
            yield from part.to_batches(_BATCH_ROWS)
            return
        row = 0
        for group in range(self._parquet.metadata.num_row_groups):
            size = self._parquet.metadata.row_group(group).num_rows
            if row + size <= begin or row >= end:
                row += size
                continue
            for batch in self._parquet.iter_batches(_BATCH_ROWS, [group], columns):
                skipped = min(max(0, begin - row), batch.num_rows)
                part = batch.slice(skipped, max(0, end - row - skipped))
                row += batch.num_rows
                if part.num_rows:
                    yield part

    def columns_with_nulls(self) -> set[str]:
        """Return the columns that have nulls, as far as the metadata of a Parquet file say."""
        if self._parquet is None:
            return {each for each in self.schema.names if self._table.column(each).null_count}
        metadata = self._parquet.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        chunks = (group.column(i) for group in groups for i in range(metadata.num_columns))
        return {each.path_in_schema for each in chunks if getattr(each.statistics, "null_count", 0)}


def _values(files: Sequence[str], column: str) -> Iterator[Any]:
    """Yield the batches of a column; a file is left at its first error, which is an item too."""
    for path in files:
        with contextlib.suppress(_pyarrow().ArrowException, OSError):
            yield from (batch.column(0) for batch in _File(path).batches([column]))


@dataclass(frozen=True, eq=False, kw_only=True)
class _ArrowRows(TableRows):
    """The rows of Parquet or Arrow files."""

    types: Mapping[str, Any]
    """The feature of each column, or a dict of them; None if it must be inferred."""

    @property
    def kinds(self) -> dict[str, Any]:
        """The features of the columns, with declared types."""
        return {**self.types, **{name: Tensor(dtype) for name, dtype in self.dtypes.items()}}

    def __iter__(self) -> Iterator[Item]:
        return self.read_range(0, None)

    def located(self) -> Iterator[tuple[None, Row]]:
        """Yield the example of each row, or its error; rows have no lines."""
        for item in self:
            yield None, item if isinstance(item, SourceError) else item[1]

    def read_range(self, begin: int, end: int | None) -> Iterator[Item]:
        """Yield the rows from one position to another; None for all that follow."""
        first = 0
        for file in map(_File, self.files):
            row = max(0, begin - first)
            last = file.rows if end is None else min(end - first, file.rows)
            if row < last:
                yield from self._read(file, first, row, last)
            first += file.rows

    def read_feature(self, name: str) -> Iterator[Item]:
        """Yield the rows with one column only."""
        column = name if name in self.types else name.split("/")[0]
        dtypes = {each: dtype for each, dtype in self.dtypes.items() if each == column}
        types = {each: kind for each, kind in self.types.items() if each == column}
        label = name if name == self.label else None
        yield from replace(self, types=types, dtypes=dtypes, label=label)

    def _read(self, file: _File, first: int, row: int, end: int) -> Iterator[Item]:
        """Yield some rows of a file, whose first row has the position `first`."""
        pa = _pyarrow()
        kinds = self.kinds
        try:
            for batch in file.batches(list(kinds), row, end):
                columns = [self._column(name, batch.column(name), kinds[name]) for name in kinds]
                has_gaps = any(type(each) is not list for each in columns)
                for key, values in enumerate(zip(*columns, strict=True), first + row):
                    example = dict(zip(kinds, values, strict=True))
                    yield self._filled(key, example, file, first) if has_gaps else (key, example)
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            reason = f"this row and all that follow cannot be read: {error}"
            yield source_error(file.path, reason, record=row)

    def _column(self, name: str, column: Any, kind: Any) -> Sequence[Any]:
        """Return the values of a column: a tuple if some are errors, or are missing."""
        pa = _pyarrow()
        is_number = pa.types.is_primitive(column.type)
        if (kind == Tensor("str") and is_number) or _is_stored_as_string(column.type, pa.types):
            column = column.cast(pa.string())
        values: list[Any] = column.to_pylist()
        is_label = name == self.label
        if isinstance(kind, Tensor) and not column.null_count and not (is_label and "" in values):
            return values
        return tuple(self._value(name, each, kind) for each in values)

    def _value(self, name: str, value: Any, kind: Any) -> Any:
        """Return a value that may be null, or its error; None if it is missing."""
        if name == self.label and value in (None, ""):
            return SourceError(f"the label is {'null' if value is None else 'empty'}")
        if value is None and name in self.optional:
            return None
        try:
            return _fill(value, kind)
        except SourceError as error:
            return error

    def _filled(self, key: int, example: dict[str, Any], file: _File, first: int) -> Item:
        """Return an example without missing values, or the first error of its values."""
        for name, value in example.items():
            if isinstance(value, SourceError):
                value.path, value.record, value.feature = file.path, key - first, name
                return value
        return key, {name: value for name, value in example.items() if value is not None}


# Sources.


@register_files("Parquet", "Parquet files", PARQUET_EXTENSIONS)
def open_arrow_files(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split, whose rows are keyed by their position."""
    types = _pyarrow().types
    opened = [_File(each) for each in files]
    schema = opened[0].schema
    for each in opened:
        if not each.schema.equals(schema):
            raise source_error(each.path, f"the columns differ from those of {files[0]}")
    length = sum(each.rows for each in opened)
    with_nulls = set().union(*(each.columns_with_nulls() for each in opened))
    fields = {each.name: each.type for each in schema if not types.is_null(each.type)}
    if not fields or not length:
        raise source_error(path, f"there are {length} rows of {len(fields)} columns")
    label = choose_label(options.label, fields, path)
    kinds, integers = {}, {}
    for name, arrow in fields.items():
        kinds[name] = _feature_of(arrow, types)
        integral = types.is_integer(arrow) or types.is_boolean(arrow)
        if integral and name in with_nulls and name != label:
            # Without a default, null is nan, which integers lack.
            integers[name], kinds[name] = kinds[name].dtype, Tensor("float64")
    for name in _hugging_face_columns(schema, "Audio"):
        if isinstance(kinds.get(name), Image):  # both are stored as {"bytes", "path"}
            contents = (each for column in _values(files, name) for each in column.to_pylist())
            kinds[name] = sound_feature((each and each["bytes"]) or b"" for each in contents)
    dtypes = {
        name: each.dtype for name, each in kinds.items() if type(each) is Tensor and not each.shape
    }
    return Source(
        "Parquet" if has_extension(files[0], PARQUET_EXTENSIONS) else "Arrow",
        path,
        _ArrowRows(files=tuple(files), types=kinds, dtypes=dtypes, filled=integers, label=label),
        length=length,
        features=_features(kinds, label, schema, files),
        label=label,
    )


@register(
    "Arrow",
    "Arrow files, or what datasets.save_to_disk wrote",
    recognise=lambda probed: (
        DICT_FILE in probed.below or bool(probed.data_files(*ARROW_EXTENSIONS))
    ),
)
def open_arrow(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open Arrow files, which are mapped. ``state.json`` and ``dataset_dict.json`` list them."""

    def open_saved(directory: str) -> Source:
        listed = _listed(os.path.join(directory, STATE_FILE), "_data_files")
        files = [os.path.join(directory, each) for each in listed]
        return open_arrow_files(directory, options, files)

    if DICT_FILE in probed.below:
        splits = _listed(os.path.join(probed.path, DICT_FILE), "splits")
        homes = {split: os.path.join(probed.path, split) for split in splits}
        return SourceSplits({split: partial(open_saved, home) for split, home in homes.items()})
    if STATE_FILE in probed.below:
        return open_saved(probed.path)
    return open_files(ARROW_EXTENSIONS, open_arrow_files, probed, options)


def _listed(path: str, name: str) -> list[str]:
    """Return the names that a file of metadata lists, as strings or as ``{"filename": ...}``.

    Raises:
        CoveyError: If it is not valid, or a name leaves the directory.
    """
    with parsing(path):
        names = [
            each["filename"] if isinstance(each, dict) else each
            for each in parse_json(read_file(path), path)[name]
        ]
    for each in names:
        check_path(each, f"a name in {path}")
    if not names:
        raise source_error(path, f"there is no list {name!r}")
    return names


def _features(
    kinds: Mapping[str, Any], label: str | None, schema: Any, files: Sequence[str]
) -> Features | None:
    """Return the schema; None if the type of a column must be inferred."""
    if None in kinds.values():
        return None
    declared: dict[str, Feature] = dict(kinds)
    for name, column in _hugging_face_columns(schema, "ClassLabel").items():
        names = column.get("names")
        if isinstance(names, list) and names and kinds.get(name) == Tensor("int64"):
            declared[name] = ClassLabel(names=tuple(map(str, names)))
    if label is not None and kinds[label] == Tensor("str"):
        strings: set[str] = set()
        for values in _values(files, label):
            strings.update(values.cast("string").unique().to_pylist())
        declared[label] = ClassLabel(names=tuple(sorted(strings - {None, ""})))
    return Features(declared)


def _hugging_face_columns(schema: Any, kind: str) -> dict[str, dict[str, Any]]:
    """Return the features of a kind in the metadata of Hugging Face datasets."""
    try:
        info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = info.get("info", {}).get("features", {})
        return {name: each for name, each in features.items() if each.get("_type") == kind}
    except (ValueError, AttributeError, TypeError):
        return {}  # the metadata is optional
