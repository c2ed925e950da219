"""Parquet files, also those of Hugging Face datasets. pyarrow is imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from covey.errors import FeatureError, SourceError
from covey.labels import find_label_name
from covey.schema import Audio, ClassLabel, Features, Image, Ragged, Tensor
from covey.sources.audio import decode_sound, infer_content
from covey.sources.images import image_fault
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    check_label,
    open_split_files,
    source_error,
)

_MAGIC = b"PAR1"
# Rows that are converted to Python values at once; few, because rows may have images.
_BATCH_ROWS = 256
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(
            "reading Parquet needs pyarrow", remedy="run: pip install pyarrow"
        ) from None


def _parquet_files(probed: ProbedPath) -> list[str]:
    if probed.is_file:
        return [probed.path] if probed.head.startswith(_MAGIC) else []
    return [file for file in probed.files if read_head(file, 4) == _MAGIC]


def _kind_of(arrow: Any, types: Any) -> Any:
    """Return the feature of an Arrow type, or a dict of them; None if it must be inferred."""
    if types.is_dictionary(arrow):
        return _kind_of(arrow.value_type, types)
    if types.is_boolean(arrow):
        return Tensor("bool")
    if types.is_integer(arrow):
        return Tensor(str(arrow))
    if types.is_floating(arrow):
        return Tensor(_FLOATS[str(arrow)])
    if _is_stored_as_string(arrow, types) or str(arrow) in (
        "string",
        "large_string",
        "string_view",
    ):
        return Tensor("str")
    if str(arrow).startswith(("binary", "large_binary", "fixed_size_binary")):
        return Tensor("bytes")
    if types.is_struct(arrow):
        fields = {field.name: _kind_of(field.type, types) for field in arrow}
        if set(fields) == {"bytes", "path"}:
            return Image()
        return None if None in fields.values() else fields
    if types.is_list(arrow) or types.is_large_list(arrow):
        return _kind_of_list(arrow, types)
    return None


def _kind_of_list(arrow: Any, types: Any) -> Any:
    depth = 0
    while types.is_list(arrow) or types.is_large_list(arrow):
        arrow, depth = arrow.value_type, depth + 1
    item = _kind_of(arrow, types)
    if not isinstance(item, Tensor) or item.shape:
        return None
    return Tensor(item.dtype, (None,)) if depth == 1 else Ragged(item.dtype, depth)


def _is_stored_as_string(arrow: Any, types: Any) -> bool:
    """Return whether values are converted to strings: dates, times and decimals."""
    return bool(types.is_temporal(arrow) or types.is_decimal(arrow))


def _is_number(arrow: Any, types: Any) -> bool:
    return bool(types.is_integer(arrow) or types.is_floating(arrow) or types.is_boolean(arrow))


def _fill(value: Any, kind: Any) -> Any:
    """Return a value, or the replacement of a null; the content of an image.

    Raises:
        SourceError: If a null has no replacement, or an image is invalid.
    """
    if isinstance(kind, Audio):
        data = value and value["bytes"]
        if data is None:
            raise SourceError("not valid audio: it is null")
        return decode_sound(data)
    if isinstance(kind, Image):
        data = value and value["bytes"]
        reason = "it is null" if data is None else image_fault(data)
        if reason is not None:
            raise SourceError(f"not a valid image: {reason}")
        return data
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


@dataclass(frozen=True, eq=False)
class _ParquetItems:
    """The rows of Parquet files, read in every pass."""

    files: tuple[str, ...]
    kinds: Mapping[str, Any]
    label: str | None
    integers: Mapping[str, str]
    """Dtypes of the columns of integers and bools with nulls, if these have a default."""
    optional: frozenset[str] = frozenset()
    """Columns whose nulls are missing values."""

    def declare(
        self, types: Mapping[str, str], optional: Collection[str]
    ) -> tuple[_ParquetItems, dict[str, str]]:
        """Return the rows with declared types of some columns.

        Args:
            types: Declared dtypes, by column.
            optional: Columns whose nulls are missing values, because they have a default.

        Returns:
            The rows, and the dtypes of the columns that are integers because of their default.
        """
        missing = frozenset(optional) & self.kinds.keys() - {self.label}
        found = {name: self.integers[name] for name in missing & self.integers.keys()}
        declared = {
            name: Tensor(types[name])
            for name, kind in self.kinds.items()
            if name in types and type(kind) is Tensor and not kind.shape
        }
        kinds = {**self.kinds, **{name: Tensor(dtype) for name, dtype in found.items()}, **declared}
        return replace(self, kinds=kinds, optional=missing), found

    def __iter__(self) -> Iterator[Item]:
        return self.read_range(0, None)

    def read_range(self, begin: int, end: int | None) -> Iterator[Item]:
        """Yield the rows from one position to another; None for all that follow."""
        pa, parquet = _pyarrow()
        first = 0
        for file in self.files:
            with parquet.ParquetFile(file) as opened:
                rows = opened.metadata.num_rows
                if begin < first + rows and (end is None or first < end):
                    last = rows if end is None else min(end - first, rows)
                    yield from self._read_file(opened, file, first, max(0, begin - first), last, pa)
            first += rows

    def read_feature(self, name: str) -> Iterator[Item]:
        """Yield the rows with one column only."""
        column = name if name in self.kinds else name.split("/")[0]
        kinds = {each: kind for each, kind in self.kinds.items() if each == column}
        yield from replace(self, kinds=kinds, label=name if name == self.label else None)

    def _read_file(
        self, opened: Any, file: str, first: int, begin: int, end: int, pa: Any
    ) -> Iterator[Item]:
        """Yield some rows of a file, whose first row has the position `first`."""
        metadata = opened.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        groups = [
            i
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
            if start < end and begin < start + size
        ]
        row = starts[groups[0]] if groups else 0
        try:
            batches = opened.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(self.kinds))
            for batch in batches:
                skipped = max(0, min(begin - row, batch.num_rows))
                row += skipped
                part = batch.slice(skipped, max(0, end - row))
                columns = self._columns(part, pa)
                rows = (
                    dict(zip(columns, each, strict=True))
                    for each in zip(*columns.values(), strict=True)
                )
                if self._is_plain(part, columns):
                    yield from enumerate(rows, first + row)
                    row += part.num_rows
                    continue
                for values in rows:
                    yield self._item(values, file, row, first + row)
                    row += 1
        except (pa.ArrowException, OSError) as error:
            reason = f"this row and all that follow cannot be read: {error}"
            yield source_error(file, reason, record=row)

    def _columns(self, batch: Any, pa: Any) -> dict[str, list[Any]]:
        columns = {}
        for name in self.kinds:
            column = batch.column(name)
            as_string = self.kinds[name] == Tensor("str") and _is_number(column.type, pa.types)
            if as_string or _is_stored_as_string(column.type, pa.types):
                column = column.cast(pa.string())
            columns[name] = column.to_pylist()
        return columns

    def _is_plain(self, batch: Any, columns: Mapping[str, list[Any]]) -> bool:
        """Return whether all values of a batch are used as they are."""
        if self.label is not None and "" in columns[self.label]:
            return False
        return all(
            isinstance(kind, Tensor) and not batch.column(name).null_count
            for name, kind in self.kinds.items()
        )

    def _item(self, values: dict[str, Any], file: str, row: int, key: int) -> Item:
        example = {}
        for name, value in values.items():
            try:
                if name == self.label and value in (None, ""):
                    raise SourceError(f"the label is {'null' if value is None else 'empty'}")
                if value is not None or name not in self.optional:
                    example[name] = _fill(value, self.kinds[name])
            except SourceError as error:
                return source_error(
                    file, error.reason, record=row, feature=name, remedy=error.remedy
                )
        return key, example


@register(
    "Parquet",
    "a Parquet file, a directory or a pattern of them",
    recognise=lambda probed: bool(_parquet_files(probed)),
    rank=3,
)
def open_parquet(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open Parquet files, whose rows are keyed by their position and read in small batches."""
    found = _parquet_files(probed)
    if not found:
        raise source_error(probed.path, f"found {probed.describe()}, but no Parquet file")
    return open_split_files(found, partial(_open_files, probed.path, options.label))


def _open_files(path: str, label: str | None, files: list[str]) -> Source:
    """Open the files of one split."""
    pa, parquet = _pyarrow()
    schema, length, with_nulls = None, 0, set()
    for file in files:
        try:
            with parquet.ParquetFile(file) as opened:
                if schema is not None and not opened.schema_arrow.equals(schema):
                    raise source_error(file, f"the columns differ from those of {files[0]}")
                schema = opened.schema_arrow
                length += opened.metadata.num_rows
                with_nulls |= _columns_with_nulls(opened.metadata)
        except (pa.ArrowException, OSError) as error:
            raise source_error(file, f"the file cannot be read: {error}") from None
    fields = {each.name: each.type for each in schema or () if not pa.types.is_null(each.type)}
    if not fields or not length:
        raise source_error(path, f"there are {length} rows of {len(fields)} columns")
    check_label(label, fields, path)
    label = label or find_label_name(fields)
    kinds, integers = {}, {}
    for name, arrow in fields.items():
        kinds[name] = _kind_of(arrow, pa.types)
        integral = pa.types.is_integer(arrow) or pa.types.is_boolean(arrow)
        if integral and name in with_nulls and name != label:
            # Without a default, null is nan, which integers lack.
            integers[name], kinds[name] = kinds[name].dtype, Tensor("float64")
    for name in _hugging_face_columns(schema, "Audio"):
        if isinstance(kinds.get(name), Image):  # both are stored as {"bytes", "path"}
            kinds[name] = infer_content(_contents(files, name))
    features = _features(kinds, label, schema, files, path)
    rows = _ParquetItems(tuple(files), kinds, label, integers)
    return Source("Parquet", path, rows, length=length, features=features, label=label)


def _columns_with_nulls(metadata: Any) -> set[str]:
    found = set()
    for group in range(metadata.num_row_groups):
        for i in range(metadata.num_columns):
            column = metadata.row_group(group).column(i)
            statistics = column.statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                found.add(column.path_in_schema)
    return found


def _features(
    kinds: Mapping[str, Any], label: str | None, schema: Any, files: Sequence[str], path: str
) -> Features | None:
    """Return the schema; None if the type of a column must be inferred."""
    if None in kinds.values():
        return None
    declared = dict(kinds)
    for name, names in _hugging_face_classes(schema).items():
        if isinstance(kinds.get(name), Tensor) and kinds[name].dtype == "int64":
            declared[name] = ClassLabel(names=names)
    if label is not None and kinds[label] == Tensor("str"):
        declared[label] = ClassLabel(names=tuple(sorted(_strings(files, label))))
    try:
        return Features(declared)
    except FeatureError as error:
        raise as_source_error(error, path) from None


def _strings(files: Sequence[str], column: str) -> set[str]:
    """Return the distinct strings of a column. Other columns are not read."""
    pa, parquet = _pyarrow()
    strings: set[str] = set()
    for file in files:
        with parquet.ParquetFile(file) as opened:
            try:
                for batch in opened.iter_batches(columns=[column]):
                    strings.update(batch.column(0).cast(pa.string()).unique().to_pylist())
            except (pa.ArrowException, OSError):
                continue  # the error is an item of the source
    return strings - {None, ""}


def _contents(files: Sequence[str], column: str) -> Iterator[bytes]:
    """Yield the encoded files of a column."""
    pa, parquet = _pyarrow()
    for file in files:
        with parquet.ParquetFile(file) as opened:
            try:
                for batch in opened.iter_batches(_BATCH_ROWS, columns=[column]):
                    for value in batch.column(0).to_pylist():
                        yield (value and value["bytes"]) or b""
            except (pa.ArrowException, OSError):
                continue  # the error is an item of the source


def _hugging_face_classes(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the class names in the metadata of Hugging Face datasets."""
    found = _hugging_face_columns(schema, "ClassLabel")
    named = {name: each.get("names") for name, each in found.items()}
    return {
        name: tuple(map(str, names))
        for name, names in named.items()
        if isinstance(names, list) and names
    }


def _hugging_face_columns(schema: Any, kind: str) -> dict[str, dict[str, Any]]:
    """Return the features of a kind in the metadata of Hugging Face datasets."""
    import json

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
