"""JSON files, of the forms in :mod:`covey.sources.json_forms`, and JSON Lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from covey.errors import SourceError
from covey.labels import find_label_name
from covey.sources.json_forms import (
    JsonMembers,
    RepeatedNames,
    describe,
    find_members,
    find_splits,
    name_elements,
    select_field,
)
from covey.sources.registry import HEAD_BYTES, ProbedPath, check_file, read_head, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    SourceSplits,
    check_label,
    list_names,
    open_split_files,
    source_error,
)
from covey.sources.text import (
    UTF8_BOM,
    check_encoding,
    extension,
    named_files,
    open_text,
    read_lines,
    read_text,
    text_head,
    utf8_error,
)
from covey.splits import split_of_file

LINES_EXTENSIONS = frozenset((".jsonl", ".ndjson", ".jsonlines"))
JSON_EXTENSIONS = frozenset((".json",))

# An object whose first value is an object or a list.
_CONTAINER = re.compile(rb'\{\s*("([^"\\]|\\.)*"\s*:\s*[\[{]|\}|$)')
_INSPECTED_LINES = 1000
# First lines up to this length are read to find the second one.
_MAX_FIRST_LINE = 64 << 20


def _is_lines(path: str, head: bytes) -> bool:
    """Return whether a file has one value per line. The extension counts if it has one line."""
    text = text_head(head).lstrip()
    if text[:1] not in (b"{", b"["):
        return False
    first, newline, rest = text.partition(b"\n")
    if not newline and len(head) >= HEAD_BYTES:
        first, rest = _first_lines(path)
    if rest.strip():
        # Two objects are not one value. A list may continue in the next line.
        return rest.lstrip()[:1] == first[:1] and (first[:1] == b"{" or _is_value(first))
    found = extension(path)
    if found in LINES_EXTENSIONS:
        return True
    return found not in JSON_EXTENSIONS and first[:1] == b"{" and not _CONTAINER.match(first)


def _first_lines(path: str) -> tuple[bytes, bytes]:
    """Return the first line of a file, and the beginning of the rest."""
    with open_text(path) as file:
        return file.readline(_MAX_FIRST_LINE).removeprefix(UTF8_BOM).lstrip(), file.read(1024)


def _is_value(line: bytes) -> bool:
    try:
        _parse(line, "", 1)
    except SourceError:
        return False
    return True


def _is_json(path: str, head: bytes) -> bool:
    text = text_head(head).lstrip()
    if extension(path) in JSON_EXTENSIONS:
        return text[:1] in (b"{", b"[")
    return bool(text[:1] == b"{" or (text[:1] == b"[" and text[1:].lstrip()[:1] in b"{[]"))


def _split_files(probed: ProbedPath) -> list[str]:
    """Return the JSON files of a directory or pattern if each is one split."""
    files = named_files(probed, JSON_EXTENSIONS)
    splits = {split_of_file(file) for file in files}
    return files if None not in splits and len(splits) == len(files) else []


def _parse(raw: bytes, path: str, line: int, hook: Any = None) -> Any:
    """Parse JSON that begins at a line of a file.

    Raises:
        SourceError: If it is not valid JSON, with the line.
    """
    import json

    try:
        return json.loads(raw.decode(), object_pairs_hook=hook)
    except UnicodeDecodeError as error:
        raise utf8_error(path, raw[error.start], line + raw.count(b"\n", 0, error.start)) from None
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        reason = f"is not valid JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        reason = "is nested too deeply"
    except ValueError as error:  # an integer with too many digits
        reason = f"is not valid JSON: {error}"
    raise source_error(path, reason, line)


def _example(
    value: Any, columns: Sequence[str] | None, label: str | None, path: str, **where: Any
) -> dict[str, Any]:
    """Return the example of an object, or of a list. Null is the same as a missing name.

    Args:
        value: The object or list.
        columns: Names of the elements of a list; None if it must be an object.
        label: Label feature.
        path: Path of the file, for errors.
        where: Location in the file, for errors.

    Raises:
        SourceError: If the value is not an example, or has no label.
    """
    if columns is not None and isinstance(value, list):
        if len(value) != len(columns):
            reason = f"found a list of {len(value)} elements; must be {len(columns)}"
            raise source_error(path, reason, **where)
        value = dict(zip(columns, value, strict=True))
    if not isinstance(value, dict):
        kind = "an object" if columns is None else "a list"
        raise source_error(path, f"found {describe(value)}; must be {kind}", **where)
    example = {name: each for name, each in value.items() if each is not None}
    if label is not None and example.get(label, "") == "":
        found = f"the label is missing; the object has {list_names(example)}"
        raise source_error(path, found, feature=label, **where)
    return example


def _find_label(items: Iterator[Item], label: str | None, path: str) -> str | None:
    """Return the requested label, or that of the first example; it must exist in one example."""
    names: dict[str, None] = {}
    first_error: SourceError | None = None
    for item in items:
        if isinstance(item, SourceError):
            first_error = first_error or item
            continue
        example = item[1]
        if label is None:
            return find_label_name(example)
        if label in example:
            return label
        names.update(dict.fromkeys(example))
    if not names:
        raise first_error or source_error(path, "there is no example in this file")
    check_label(label, names, path)
    return label


# JSON Lines.


@dataclass(frozen=True, eq=False)
class _JsonLines:
    """The values of JSON Lines files, read in every pass."""

    files: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    label: str | None = None

    def values(self) -> Iterator[tuple[str, int, Any]]:
        """Yield the file, the line and the value, or its error."""
        for path in self.files:
            line = 0
            try:
                with open_text(path) as file:
                    for line, raw in enumerate(read_lines(file, path), 1):
                        raw = raw.removeprefix(UTF8_BOM).strip()
                        if not raw:
                            continue
                        try:
                            value = _parse(raw, path, line)
                        except SourceError as error:
                            value = error
                        yield path, line, value
            except SourceError as error:  # the rest of the file cannot be read
                error.line = line + 1
                yield path, line + 1, error

    def __iter__(self) -> Iterator[Item]:
        for position, (path, line, value) in enumerate(self.values()):
            if isinstance(value, SourceError):
                yield value
                continue
            try:
                yield position, _example(value, self.columns, self.label, path, line=line)
            except SourceError as error:
                yield error


def _lines_files(probed: ProbedPath) -> list[str]:
    if probed.is_file:
        return [probed.path] if _is_lines(probed.path, probed.head) else []
    return named_files(probed, LINES_EXTENSIONS)


@register(
    "JSON Lines",
    "a file with one JSON object per line, a directory or a pattern of them",
    recognise=lambda probed: bool(_lines_files(probed)),
    rank=4,
    options=("columns",),
)
def open_json_lines(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open files of objects, or of lists, which are keyed by their position."""
    files = [probed.path] if probed.is_file else _lines_files(probed)
    if not files:
        raise source_error(probed.path, f"found {probed.describe()}; must be JSON Lines files")
    return open_split_files(files, partial(_open_lines, probed.path, options))


def _open_lines(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split."""
    for file in files:
        check_encoding(file, read_head(file))
    path = files[0] if len(files) == 1 else path
    items = _JsonLines(tuple(files))
    inspected = (each for _, _, each in islice(items.values(), _INSPECTED_LINES))
    values = [each for each in inspected if not isinstance(each, SourceError)]
    columns = None
    if values and isinstance(values[0], list):
        columns = name_elements([each for each in values if isinstance(each, list)], options, path)
    elif values and options.columns is not None:
        find_members(values, options, path)  # raises that columns do not apply to objects
    label = _find_label(iter(_JsonLines(items.files, columns)), options.label, path)
    return Source("JSON Lines", path, _JsonLines(items.files, columns, label), label=label)


# JSON.


@dataclass(frozen=True, eq=False)
class _JsonObjects:
    """The examples of one JSON value, which every pass parses as a whole."""

    path: str
    options: SourceOptions
    split: str | None = None
    label: str | None = None

    def load(self) -> Any:
        """Parse the file, and return the part that contains the examples."""
        content = _parse(read_text(self.path), self.path, 1, _object)
        value = select_field(content, self.options.field, self.path)
        if self.split is None:
            return value
        return (find_splits(value, self.options, self.path) or {})[self.split]

    def __iter__(self) -> Iterator[Item]:
        try:
            members = find_members(self.load(), self.options, self.path)
        except SourceError as error:
            yield error
            return
        yield from self.examples(members)

    def examples(self, members: JsonMembers) -> Iterator[Item]:
        """Yield the examples of a value that is parsed."""
        seen = set()
        for position, (key, value) in enumerate(members.pairs):
            if key in seen:
                yield source_error(self.path, f"the id {key!r} occurs twice", record=position)
                continue
            seen.add(key)
            try:
                example = _example(value, members.columns, self.label, self.path, record=position)
                yield key, example
            except SourceError as error:
                yield error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else RepeatedNames(pairs)


def _recognise_json(probed: ProbedPath) -> bool:
    if probed.is_file:
        return _is_json(probed.path, probed.head)
    return bool(_split_files(probed))


@register(
    "JSON",
    "a JSON file of objects by id, a list of objects or lists, or strings by class",
    recognise=_recognise_json,
    rank=5,
    options=("columns", "field", "splits"),
)
def open_json(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open the examples of a file, keyed by their id, or by their position in a list.

    The whole file is parsed in memory; JSON Lines files are streamed.
    """
    files = _split_files(probed)
    if files:
        return SourceSplits(
            {split_of_file(file) or "": partial(_open_file, file, options) for file in files}
        )
    path = check_file(probed, "JSON")
    check_encoding(path, probed.head)
    value = _JsonObjects(path, options).load()
    splits = find_splits(value, options, path)
    if splits is None:
        return _open_value(value, _JsonObjects(path, options))
    return SourceSplits({name: partial(_open_part, path, options, name) for name in splits})


def _open_file(path: str, options: SourceOptions) -> Source:
    """Open a file that is one split."""
    head = read_head(path)
    if _is_lines(path, head):
        return _open_lines(path, options, [path])
    found = open_json(ProbedPath(path, head, (path,)), options)
    if isinstance(found, Source):
        return found
    raise source_error(
        path,
        f"the file has the splits {list_names(found)}; it must be one split by its name, "
        f"{os.path.basename(path)!r}",
        remedy="open this file",
    )


def _open_part(path: str, options: SourceOptions, split: str) -> Source:
    """Open a split of a file."""
    items = _JsonObjects(path, options, split)
    return _open_value(items.load(), items)


def _open_value(value: Any, items: _JsonObjects) -> Source:
    """Open the examples of a value that is parsed already."""
    path, options = items.path, items.options
    members = find_members(value, options, path)
    requested = options.label or members.label
    label = _find_label(items.examples(members), requested, path)
    rows = _JsonObjects(path, options, items.split, label)
    return Source("JSON", path, rows, label=label)
