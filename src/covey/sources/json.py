"""JSON files with a list of objects, and JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from covey.errors import SourceError
from covey.labels import find_label_name
from covey.sources.registry import ProbedPath, open_files, register
from covey.sources.source import (
    Source,
    SourceOptions,
    SourceSplits,
    TableRows,
    check_label,
    list_names,
    source_error,
)
from covey.sources.text import TextLines

LINES_EXTENSIONS = (".jsonl", ".ndjson", ".jsonlines")
EXTENSIONS = (".json",)

_NOUNS = {dict: "an object", list: "a list", str: "a string", bool: "a bool", type(None): "null"}


def _describe(value: Any) -> str:
    return f"found {_NOUNS.get(type(value), 'a number')}"


def _parse(text: str, path: str, line: int = 1) -> Any:
    """Parse JSON that begins at a line of a file.

    Raises:
        SourceError: If it is not valid JSON, with the line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        reason = f"is not valid JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        reason = "is nested too deeply"
    except ValueError as error:  # an integer with too many digits
        reason = f"is not valid JSON: {error}"
    raise source_error(path, reason, line)


def _has_lines(path: str, encoding: str | None) -> bool:
    """Return whether a file has one value per line, by its extension or its first lines."""
    if path.lower().removesuffix(".gz").endswith(LINES_EXTENSIONS):
        return True
    with TextLines(path, encoding) as lines:
        try:
            first, second = islice((each for each in lines if each.strip()), 2)
            return isinstance(json.loads(first), dict) and second.lstrip()[:1] == "{"
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, eq=False)
class JsonItems(TableRows):
    """The objects in JSON files, whose types are those of the values."""

    files: tuple[str, ...]
    encoding: str | None = None
    field: str | None = None

    def located(self) -> Iterator[tuple[int | None, dict[str, Any] | SourceError]]:
        """Yield the line and the example of each object, or its error."""
        for path in self.files:
            try:
                if _has_lines(path, self.encoding):
                    yield from self._read_lines(path)
                else:
                    for record, value in enumerate(self._read_list(path)):
                        yield None, self._example(value, path, record=record)
            except SourceError as error:  # the rest of the file cannot be read
                yield error.line, error

    def _read_lines(self, path: str) -> Iterator[tuple[int, dict[str, Any] | SourceError]]:
        with TextLines(path, self.encoding) as lines:
            for text in lines:
                if not text.strip():
                    continue
                fault, lines.fault = lines.fault, None
                try:
                    value = _parse(text.strip(), path, lines.line) if fault is None else fault
                except SourceError as error:
                    value = error
                yield lines.line, self._example(value, path, line=lines.line)

    def _read_list(self, path: str) -> list[Any]:
        with TextLines(path, self.encoding) as text:
            content = _parse(text.read(), path)
        value = content
        for name in self.field.split(".") if self.field else ():
            if not isinstance(value, dict) or name not in value:
                raise _wrong_field(content, self.field, path)
            value = value[name]
        if not isinstance(value, list) or not any(isinstance(each, dict) for each in value or [{}]):
            raise _wrong_field(content if self.field is None else value, self.field, path)
        return value

    def _example(self, value: Any, path: str, **where: int) -> dict[str, Any] | SourceError:
        """Return an object without names whose value is null, or an error."""
        if isinstance(value, SourceError):
            return value
        if not isinstance(value, dict):
            return source_error(path, f"{_describe(value)}; must be an object", **where)
        example = {name: each for name, each in value.items() if each is not None}
        if self.label is not None and example.get(self.label, "") == "":
            found = f"the label is missing; the object has {list_names(example)}"
            return source_error(path, found, feature=self.label, **where)
        return example


def first_row(path: str) -> dict[str, Any]:
    """Return the first object of a file; empty if it cannot be read."""
    found = next((item for _, item in JsonItems((path,)).located()), {})
    return {} if isinstance(found, SourceError) else found


def _wrong_field(value: Any, field: str | None, path: str) -> SourceError:
    """Return the error of a value that is not a list of objects."""
    items = value.items() if isinstance(value, dict) else ()
    lists = [
        name for name, each in items if isinstance(each, list) and isinstance((*each, 0)[0], dict)
    ]
    return source_error(
        path,
        _describe(value),
        option="field",
        found=field,
        allowed="the path of a list of objects",
        remedy=f"pass field={lists[0]!r}" if lists else "",
    )


def open_tables(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split."""
    rows = JsonItems(tuple(files), options.encoding, options.field)
    label = _find_label(rows, options.label, files[0])
    is_lines = all(_has_lines(file, options.encoding) for file in files)
    return Source(
        "JSON Lines" if is_lines else "JSON",
        files[0] if len(files) == 1 else path,
        replace(rows, label=label),
        label=label,
    )


def _find_label(rows: JsonItems, label: str | None, path: str) -> str | None:
    """Return the requested label, which an example has; or that of the first example.

    Raises:
        SourceError: If there is no example, or none has the label.
    """
    names: dict[str, None] = {}
    first_error: SourceError | None = None
    for _, item in rows.located():
        if isinstance(item, SourceError):
            first_error = first_error or item
        elif label is None:
            return find_label_name(item)
        elif label in item:
            return label
        else:
            names.update(dict.fromkeys(item))
    if not names:
        raise first_error or source_error(path, "there is no example in this file")
    check_label(label, names, path)
    return label


def _register(name: str, description: str, extensions: tuple[str, ...]) -> None:
    @register(
        name,
        description,
        recognise=lambda probed: bool(probed.data_files(*extensions)),
        options=("field", "encoding"),
    )
    def open_json(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
        """Open the objects of files, keyed by their position. JSON Lines are streamed."""
        return open_files(probed, extensions, partial(open_tables, probed.path, options))


_register("JSON Lines", "a file with one JSON object per line", LINES_EXTENSIONS)
_register("JSON", "a JSON file with a list of objects", EXTENSIONS)
