"""Parquet and Arrow files, also of Hugging Face datasets. pyarrow is imported on first use."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from covey.errors import FeatureError, SourceError, import_extra
from covey.labels import find_label_name
from covey.schema import Audio, ClassLabel, Feature, Features, Image, Ragged, Tensor
from covey.sources.media import check_image, decode_sound, sound_feature
from covey.sources.registry import DICT_FILE, STATE_FILE, ProbedPath, open_files, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    SourceSplits,
    TableRows,
    as_source_error,
    check_label,
    source_error,
)
from covey.untrusted import check_path, parse_json, read_file

PARQUET_EXTENSIONS = (".parquet",)
ARROW_EXTENSIONS = (".arrow", ".feather")

# TableRows that are converted to Python values at once; few, because rows may have images.
_BATCH_ROWS = 256
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _pyarrow() -> Any:
    pyarrow = import_extra("pyarrow", "reading Parquet and Arrow files", error=SourceError)
    importlib.import_module("pyarrow.parquet")
    return pyarrow


# Types.


def feature_of_type(arrow: Any, types: Any) -> Any:
    """Return the feature of an Arrow type, or a dict of them; None if it must be inferred."""
    if types.is_dictionary(arrow):
        return feature_of_type(arrow.value_type, types)
    if types.is_boolean(arrow):
        return Tensor("bool")
    if types.is_integer(arrow):
        return Tensor(str(arrow))
    if types.is_floating(arrow):
        return Tensor(_FLOATS[str(arrow)])
    if _is_stored_as_string(arrow, types) or "string" in str(arrow).split("_"):
        return Tensor("str")
    if str(arrow).startswith(("binary", "large_binary", "fixed_size_binary")):
        return Tensor("bytes")
    if types.is_struct(arrow):
        fields = {field.name: feature_of_type(field.type, types) for field in arrow}
        if set(fields) == {"bytes", "path"}:
            return Image()
        return None if None in fields.values() else fields
    depth = 0
    while types.is_list(arrow) or types.is_large_list(arrow):
        arrow, depth = arrow.value_type, depth + 1
    item = feature_of_type(arrow, types) if depth else None
    if not isinstance(item, Tensor) or item.shape:
        return None
    return Tensor(item.dtype, (None,)) if depth == 1 else Ragged(item.dtype, depth)


def _is_stored_as_string(arrow: Any, types: Any) -> bool:
    """Return whether values are converted to strings: dates, times and decimals."""
    return bool(types.is_temporal(arrow) or types.is_decimal(arrow))


def _is_number(arrow: Any, types: Any) -> bool:
    return bool(types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow))


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

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._parquet is not None:
            self._parquet.close()

    def batches(
        self, columns: Sequence[str], begin: int = 0, end: int | None = None
    ) -> Iterator[Any]:
        """Yield the batches of some rows."""
        end = self.rows if end is None else end
        if self._parquet is None:
            part = self._table.select(columns).slice(begin, end - begin)
            yield from part.to_batches(_BATCH_ROWS)
            return
        row, groups, start = 0, [], None
        for group in range(self._parquet.metadata.num_row_groups):
            size = self._parquet.metadata.row_group(group).num_rows
            if row < end and begin < row + size:
                groups.append(group)
                start = row if start is None else start
            row += size
        row = start or 0
        for batch in self._parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns):
            skipped = min(max(0, begin - row), batch.num_rows)
            part = batch.slice(skipped, max(0, end - row - skipped))
            row += batch.num_rows
            if part.num_rows:
                yield part

    def columns_with_nulls(self) -> set[str]:
        """Return the columns that have nulls, as far as the metadata of a Parquet file say."""
        if self._parquet is None:
            names = self.schema.names
            return {name for name in names if self._table.column(name).null_count}
        found = set()
        metadata = self._parquet.metadata
        for group in range(metadata.num_row_groups):
            for i in range(metadata.num_columns):
                column = metadata.row_group(group).column(i)
                statistics = column.statistics
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    found.add(column.path_in_schema)
        return found


def _values(files: Sequence[str], column: str) -> Iterator[Any]:
    """Yield the batches of a column; a file is left at its first error, which is an item too."""
    pa = _pyarrow()
    for path in files:
        with _File(path) as file:
            try:
                yield from (batch.column(0) for batch in file.batches([column]))
            except (pa.ArrowException, OSError):
                continue


# TableRows.


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrowItems(TableRows):
    """The rows of Parquet or Arrow files."""

    files: tuple[str, ...]
    types: Mapping[str, Any]
    """The feature of each column, or a dict of them; None if it must be inferred."""

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """The features of the columns, with declared types."""
        return {**self.types, **{name: Tensor(dtype) for name, dtype in self.dtypes.items()}}

    def __iter__(self) -> Iterator[Item]:
        return self.read_range(0, None)

    def located(self) -> Iterator[tuple[None, dict[str, Any] | SourceError]]:
        """Yield the example of each row, or its error; rows have no lines."""
        for item in self:
            yield None, item if isinstance(item, SourceError) else item[1]

    def read_range(self, begin: int, end: int | None) -> Iterator[Item]:
        """Yield the rows from one position to another; None for all that follow."""
        first = 0
        for path in self.files:
            with _File(path) as file:
                if begin < first + file.rows and (end is None or first < end):
                    last = file.rows if end is None else min(end - first, file.rows)
                    yield from self._read_file(file, first, max(0, begin - first), last)
                first += file.rows

    def read_feature(self, name: str) -> Iterator[Item]:
        """Yield the rows with one column only."""
        column = name if name in self.kinds else name.split("/")[0]
        kinds = {column: self.kinds[column]} if column in self.kinds else {}
        label = name if name == self.label else None
        yield from replace(self, types=kinds, dtypes={}, label=label)

    def _read_file(self, file: _File, first: int, row: int, end: int) -> Iterator[Item]:
        """Yield some rows of a file, whose first row has the position `first`."""
        pa = _pyarrow()
        names = list(self.kinds)
        try:
            for batch in file.batches(names, row, end):
                columns = [self._values(name, batch.column(name), pa) for name in names]
                has_gaps = any(type(each) is not list for each in columns)
                for key, values in enumerate(zip(*columns, strict=True), first + row):
                    example = dict(zip(names, values, strict=True))
                    yield (
                        self._filled(key, example, file.path, first) if has_gaps else (key, example)
                    )
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            reason = f"this row and all that follow cannot be read: {error}"
            yield source_error(file.path, reason, record=row)

    def _values(self, name: str, column: Any, pa: Any) -> Sequence[Any]:
        """Return the values of a column: a tuple if some are errors, or are missing."""
        kind, types = self.kinds[name], pa.types
        as_string = kind == Tensor("str") and _is_number(column.type, types)
        if as_string or _is_stored_as_string(column.type, types):
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

    def _filled(self, key: int, example: dict[str, Any], path: str, first: int) -> Item:
        """Return an example without missing values, or the first error of its values."""
        for name, value in example.items():
            if isinstance(value, SourceError):
                row, remedy = key - first, value.remedy
                return source_error(path, value.reason, record=row, feature=name, remedy=remedy)
        return key, {name: value for name, value in example.items() if value is not None}


# Sources.


@register(
    "Parquet",
    "a Parquet file, a directory or a pattern of them",
    recognise=lambda probed: bool(probed.data_files(*PARQUET_EXTENSIONS)),
)
def open_parquet(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open Parquet files, whose rows are keyed by their position and read in small batches."""
    return open_files(probed, PARQUET_EXTENSIONS, partial(_open, "Parquet", probed.path, options))


def _is_arrow(probed: ProbedPath) -> bool:
    names = {os.path.basename(file) for file in probed.files}
    saved = not probed.is_file and DICT_FILE in names
    return saved or bool(probed.data_files(*ARROW_EXTENSIONS))


@register(
    "Arrow",
    "an Arrow file, a directory or a pattern of them, or what datasets.save_to_disk wrote",
    recognise=_is_arrow,
)
def open_arrow(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open Arrow files, which are mapped. ``state.json`` and ``dataset_dict.json`` list them."""
    root = probed.path
    if os.path.isfile(os.path.join(root, DICT_FILE)):
        splits = _listed(root, DICT_FILE, "splits")
        return SourceSplits(
            {split: partial(_open_saved, os.path.join(root, split), options) for split in splits}
        )
    if os.path.isfile(os.path.join(root, STATE_FILE)):
        return _open_saved(root, options)
    return open_files(probed, ARROW_EXTENSIONS, partial(_open, "Arrow", root, options))


def _open_saved(directory: str, options: SourceOptions) -> Source:
    """Open a dataset that Hugging Face saved."""
    names = _listed(directory, STATE_FILE, "_data_files", "filename")
    return _open("Arrow", directory, options, [os.path.join(directory, each) for each in names])


def _listed(directory: str, file: str, name: str, field: str | None = None) -> list[str]:
    """Return the names that a file of metadata lists.

    Raises:
        CoveyError: If it is not valid, or a name leaves the directory.
    """
    path = os.path.join(directory, file)
    content = parse_json(read_file(path), path)
    found = content.get(name) if isinstance(content, dict) else None
    if field is not None and isinstance(found, list):
        found = [each.get(field) if isinstance(each, dict) else None for each in found]
    if not isinstance(found, list) or not found:
        raise source_error(path, f"there is no list {name!r}")
    for each in found:
        check_path(each, f"a name in {path}")
    return found


def open_tables(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split of a table."""
    return _open("Parquet", path, options, files)


def _open(kind: str, path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split."""
    types = _pyarrow().types
    schema: Any = None
    length, with_nulls = 0, set()
    for each in files:
        with _File(each) as file:
            if schema is not None and not file.schema.equals(schema):
                raise source_error(each, f"the columns differ from those of {files[0]}")
            schema = file.schema
            length += file.rows
            with_nulls |= file.columns_with_nulls()
    fields = {each.name: each.type for each in schema if not types.is_null(each.type)}
    if not fields or not length:
        raise source_error(path, f"there are {length} rows of {len(fields)} columns")
    check_label(options.label, fields, path)
    label = options.label or find_label_name(fields)
    kinds, integers = {}, {}
    for name, arrow in fields.items():
        kinds[name] = feature_of_type(arrow, types)
        integral = types.is_integer(arrow) or types.is_boolean(arrow)
        if integral and name in with_nulls and name != label:
            # Without a default, null is nan, which integers lack.
            integers[name], kinds[name] = kinds[name].dtype, Tensor("float64")
    for name in _hugging_face_columns(schema, "Audio"):
        if isinstance(kinds.get(name), Image):  # both are stored as {"bytes", "path"}
            contents = (each for column in _values(files, name) for each in column.to_pylist())
            kinds[name] = sound_feature((each and each["bytes"]) or b"" for each in contents)
    features = _features(kinds, label, schema, files, path)
    dtypes = {
        name: each.dtype for name, each in kinds.items() if type(each) is Tensor and not each.shape
    }
    rows = ArrowItems(files=tuple(files), types=kinds, dtypes=dtypes, filled=integers, label=label)
    return Source(kind, path, rows, length=length, features=features, label=label)


def _features(
    kinds: Mapping[str, Any], label: str | None, schema: Any, files: Sequence[str], path: str
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
    try:
        return Features(declared)
    except FeatureError as error:
        raise as_source_error(error, path) from None


def _hugging_face_columns(schema: Any, kind: str) -> dict[str, dict[str, Any]]:
    """Return the features of a kind in the metadata of Hugging Face datasets."""
    try:
        info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = info.get("info", {}).get("features", {})
        return {
            name: each
            for name, each in features.items()
            if isinstance(each, dict) and each.get("_type") == kind
        }
    except (ValueError, AttributeError, TypeError):
        return {}  # the metadata is optional
