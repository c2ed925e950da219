"""Parquet files, those of Hugging Face included; pyarrow is imported only when one is opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import FeatureError, SourceError
from covey.schema import ClassLabel, Features, Image, Ragged, Tensor
from covey.sources.image_formats import image_fault
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import Item, Source, check_label, enumerate_names, fault, find_label
from covey.sources.splits import files_of_split

_MAGIC = b"PAR1"
# Rows that are made Python's values at once: few enough that images do not fill the memory.
_ROWS = 256
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def _pyarrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(
            "reading Parquet needs pyarrow, which is not installed; run: pip install pyarrow",
        ) from None


def _parquet_files(place: ProbedPath) -> list[str]:
    if place.is_file:
        return [place.path] if place.head.startswith(_MAGIC) else []
    return [file for file in place.files if read_head(file, 4) == _MAGIC]


def _kind_of(arrow: Any, types: Any) -> Any:
    """What a column of Arrow's is: a feature, a dict of them, or None if its values must tell."""
    if types.is_dictionary(arrow):
        return _kind_of(arrow.value_type, types)
    if types.is_boolean(arrow):
        return Tensor("bool")
    if types.is_integer(arrow):
        return Tensor(str(arrow))
    if types.is_floating(arrow):
        return Tensor(_FLOATS[str(arrow)])
    if _is_said_as_text(arrow, types) or str(arrow) in ("string", "large_string", "string_view"):
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


def _is_said_as_text(arrow: Any, types: Any) -> bool:
    """Whether values have no feature of their own: dates, times and decimals."""
    return bool(types.is_temporal(arrow) or types.is_decimal(arrow))


def _fill(value: Any, kind: Any) -> Any:
    """What a null stands for, if its kind has such a value; an image's bytes."""
    if isinstance(kind, Image):
        data = value and value["bytes"]
        wrong = "it holds no bytes" if data is None else image_fault(data)
        if wrong is not None:
            raise ValueError(f"this is not an image that can be read: {wrong}")
        return data
    if isinstance(kind, Mapping):
        if value is None:
            raise ValueError("it is null")
        return {name: _fill(value[name], inner) for name, inner in kind.items()}
    if value is not None:
        return value
    if kind is None or isinstance(kind, Ragged) or kind.shape:
        return []
    empty = {"str": "", "bytes": b"", **dict.fromkeys(_FLOATS.values(), float("nan"))}
    if kind.dtype not in empty:
        raise ValueError("it is null")
    return empty[kind.dtype]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of Parquet files, streamed in every pass."""

    files: tuple[str, ...]
    kinds: Mapping[str, Any]
    label: str | None

    def __iter__(self) -> Iterator[Item]:
        pa, parquet = _pyarrow()
        number = 0
        for file in self.files:
            row = 0
            with parquet.ParquetFile(file) as opened:
                expected = opened.metadata.num_rows
                try:
                    for batch in opened.iter_batches(_ROWS, columns=list(self.kinds)):
                        for values in self._examples(batch, pa):
                            item = self._item(values, file, row)
                            yield item if isinstance(item, SourceError) else (number + row, item)
                            row += 1
                except (pa.ArrowException, OSError) as error:
                    what = f"row {row} and all that follow cannot be read: {error}"
                    yield fault(file, what)
            number += expected

    def _examples(self, batch: Any, pa: Any) -> Iterator[dict[str, Any]]:
        columns = {}
        for name in self.kinds:
            column = batch.column(name)
            if _is_said_as_text(column.type, pa.types):
                column = column.cast(pa.string())
            columns[name] = column.to_pylist()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def _item(self, values: dict[str, Any], file: str, row: int) -> Any:
        if self.label is not None and values[self.label] in (None, ""):
            what = "null" if values[self.label] is None else "empty"
            return fault(file, f"row {row}: the label is missing: {self.label!r} is {what}")
        example = {}
        for name, value in values.items():
            try:
                example[name] = _fill(value, self.kinds[name])
            except ValueError as error:
                return fault(file, f"row {row}: column {name!r}: {error}")
        return example


@register(
    "Parquet",
    "a Parquet file, a directory or a pattern of them",
    recognise=lambda place: bool(_parquet_files(place)),
    rank=3,
)
def open_parquet(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The rows of a file or several, keyed by their number from 0; a few are held at a time."""
    found = _parquet_files(place)
    if not found:
        raise fault(place.path, f"found {place.describe()}, but no Parquet file")
    files = files_of_split(found, split, place.path)
    pa, parquet = _pyarrow()
    schema, length, with_nulls = None, 0, set()
    for file in files:
        try:
            with parquet.ParquetFile(file) as opened:
                if schema is not None and not opened.schema_arrow.equals(schema):
                    raise fault(file, f"its columns are not those of {files[0]}")
                schema = opened.schema_arrow
                length += opened.metadata.num_rows
                with_nulls |= _columns_with_nulls(opened.metadata)
        except (pa.ArrowException, OSError) as error:
            raise fault(file, f"this Parquet file cannot be read: {error}") from None
    fields = {each.name: each.type for each in schema or () if not pa.types.is_null(each.type)}
    if not fields or not length:
        raise fault(
            place.path, f"there are {length} rows of {len(fields)} columns; nothing to read"
        )
    check_label(label, fields, place.path, "column")
    label = label or find_label(fields)
    kinds = {}
    for name, arrow in fields.items():
        kinds[name] = _kind_of(arrow, pa.types)
        complete = pa.types.is_integer(arrow) or pa.types.is_boolean(arrow)
        if complete and name in with_nulls and name != label:
            kinds[name] = Tensor("float64")  # as nan, which integers do not have
    features = _features(kinds, label, schema, files, place.path)
    rows = _Rows(tuple(files), kinds, label)
    return Source("Parquet", place.path, rows, length=length, features=features, label=label)


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
    """The schema, if every column says what it is."""
    if None in kinds.values():
        return None
    declared = dict(kinds)
    for name, names in _hugging_face_classes(schema).items():
        if isinstance(kinds.get(name), Tensor) and kinds[name].dtype == "int64":
            declared[name] = ClassLabel(names=names)
    if label is not None and kinds[label] == Tensor("str"):
        declared[label] = ClassLabel(names=tuple(sorted(_texts(files, label))))
    try:
        return Features(declared)
    except FeatureError as error:
        raise fault(path, f"{error}; the columns are {enumerate_names(kinds)}") from None


def _texts(files: Sequence[str], column: str) -> set[str]:
    """All strings of a column, which alone is read for it."""
    pa, parquet = _pyarrow()
    texts: set[str] = set()
    for file in files:
        with parquet.ParquetFile(file) as opened:
            try:
                for batch in opened.iter_batches(columns=[column]):
                    texts.update(batch.column(0).cast(pa.string()).unique().to_pylist())
            except (pa.ArrowException, OSError):
                continue  # is told when the rows are read
    return texts - {None, ""}


def _hugging_face_classes(schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of classes that Hugging Face's datasets keep beside the schema."""
    import json

    try:
        info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = info.get("info", {}).get("features", {})
        return {
            name: tuple(map(str, each["names"]))
            for name, each in features.items()
            if isinstance(each, dict) and each.get("_type") == "ClassLabel" and each.get("names")
        }
    except (ValueError, AttributeError, TypeError):
        return {}  # it is another program's, and the columns say enough without
