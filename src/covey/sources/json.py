"""JSON files: one object per line, an object of objects by id, or a list of objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from covey.errors import SourceError
from covey.sources.registry import ProbedPath, check_file, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    check_label,
    find_label_name,
    list_names,
    source_error,
)

_BOM = b"\xef\xbb\xbf"
_OBJECT_OF_OBJECTS = re.compile(rb'\{\s*("([^"\\]|\\.)*"\s*:\s*\{|\}|$)')


def _head(probed: ProbedPath) -> bytes:
    return probed.head.removeprefix(_BOM).lstrip() if probed.is_file else b""


def _is_lines(probed: ProbedPath) -> bool:
    """Return whether two lines begin an object, or the only line is not an object of objects."""
    head = _head(probed)
    if head[:1] != b"{":
        return False
    _, _, rest = head.partition(b"\n")
    if rest.lstrip()[:1] == b"{":
        return True
    return not rest.strip() and not _OBJECT_OF_OBJECTS.match(head)


def _is_json(probed: ProbedPath) -> bool:
    head = _head(probed)
    return bool(head[:1] == b"{" or (head[:1] == b"[" and head[1:].lstrip()[:1] in b"{]"))


def _parse(raw: bytes, path: str, line: int, hook: Any = None) -> Any:
    """Parse JSON that begins at a line of a file.

    Raises:
        SourceError: If it is not valid JSON, with the line.
    """
    import json

    try:
        return json.loads(raw.decode(), object_pairs_hook=hook)
    except UnicodeDecodeError as error:
        line += raw.count(b"\n", 0, error.start)
        reason = f"byte {raw[error.start]:#04x} is not valid UTF-8"
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        reason = f"is not valid JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        reason = "is nested too deeply"
    except ValueError as error:  # an integer with too many digits
        reason = f"is not valid JSON: {error}"
    raise source_error(path, reason, line)


def _example(value: Any, label: str | None, path: str, **where: Any) -> dict[str, Any]:
    """Return the example of an object. Null is the same as a missing name.

    Raises:
        SourceError: If the value is not an object, or has no label.
    """
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), "a number")
        raise source_error(path, f"found {kind}; must be an object", **where)
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


@dataclass(frozen=True, eq=False)
class _JsonLines:
    """The objects of a JSON Lines file, read in every pass."""

    path: str
    label: str | None = None

    def __iter__(self) -> Iterator[Item]:
        position = 0
        with open(self.path, "rb") as file:
            for line, raw in enumerate(file, 1):
                raw = raw.removeprefix(_BOM).strip()
                if not raw:
                    continue
                try:
                    value = _parse(raw, self.path, line)
                    yield position, _example(value, self.label, self.path, line=line)
                except SourceError as error:
                    yield error
                position += 1


@register("JSON Lines", "a file with one JSON object per line", recognise=_is_lines, rank=4)
def open_json_lines(probed: ProbedPath, options: SourceOptions) -> Source:
    """Open a file of objects, keyed by their position."""
    path = check_file(probed, "JSON Lines")
    label = _find_label(iter(_JsonLines(path)), options.label, path)
    return Source("JSON Lines", path, _JsonLines(path, label), label=label)


@dataclass(frozen=True, eq=False)
class _JsonObjects:
    """The objects of one JSON value, which every pass parses as a whole."""

    path: str
    label: str | None = None

    def __iter__(self) -> Iterator[Item]:
        with open(self.path, "rb") as file:
            raw = file.read().removeprefix(_BOM)
        try:
            content = _parse(raw, self.path, 1, _object)
        except SourceError as error:
            yield error
            return
        del raw
        members: Any = enumerate(content) if isinstance(content, list) else None
        if isinstance(content, dict):
            members = content.pairs if isinstance(content, _RepeatedNames) else content.items()
        if members is None:
            yield source_error(self.path, "must be an object or a list of objects")
            return
        seen = set()
        for position, (key, value) in enumerate(members):
            if key in seen:
                yield source_error(self.path, f"the id {key!r} occurs twice", record=position)
                continue
            seen.add(key)
            try:
                yield key, _example(value, self.label, self.path, record=position)
            except SourceError as error:
                yield error


class _RepeatedNames(dict[str, Any]):
    """A JSON object in which a name occurs more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else _RepeatedNames(pairs)


@register("JSON", "a JSON file of objects by id, or a list of objects", recognise=_is_json, rank=5)
def open_json(probed: ProbedPath, options: SourceOptions) -> Source:
    """Open a file of objects, keyed by their id, or by their position in a list.

    The whole file is parsed in memory; JSON Lines files are streamed.
    """
    path = check_file(probed, "JSON")
    label = _find_label(iter(_JsonObjects(path)), options.label, path)
    return Source("JSON", path, _JsonObjects(path, label), label=label)
