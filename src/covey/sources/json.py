"""JSON: one object per line, objects by their id, or a list of objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from covey.errors import SourceError
from covey.sources.registry import ProbedPath, one_file, register
from covey.sources.source import Item, Key, Source, enumerate_names, fault, find_label

_BOM = b"\xef\xbb\xbf"
_KEYED = re.compile(rb'\{\s*("([^"\\]|\\.)*"\s*:\s*\{|\}|$)')
_SPACE = re.compile(r"[ \t\r\n]*")


def _beginning(place: ProbedPath) -> bytes:
    return place.head.removeprefix(_BOM).lstrip() if place.is_file else b""


def _is_lines(place: ProbedPath) -> bool:
    """Whether the second line begins an object too, or the only one is a plain object."""
    begin = _beginning(place)
    if begin[:1] != b"{":
        return False
    _, _, rest = begin.partition(b"\n")
    if rest.lstrip()[:1] == b"{":
        return True
    return not rest.strip() and not _KEYED.match(begin)


def _is_json(place: ProbedPath) -> bool:
    begin = _beginning(place)
    return bool(begin[:1] == b"{" or (begin[:1] == b"[" and begin[1:].lstrip()[:1] in b"{]"))


def _example(value: Any, path: str, line: int, label: str | None, who: str = "") -> Any:
    """The example that an object is, or what is wrong with it; null is the same as missing."""
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), "a value")
        return fault(path, f"{who}this is {kind}; must be an object of names and values", line)
    example = {name: each for name, each in value.items() if each is not None}
    if label is not None and example.get(label, "") == "":
        has = f"this object has {enumerate_names(example)}"
        return fault(path, f"{who}the label is missing: no {label!r}; {has}", line)
    return example


def _parse(text: str, at: int = 0) -> tuple[Any, int]:
    """Parse the value at a place of a string; where it ends comes with it.

    Raises:
        JSONDecodeError: Whatever is wrong with it; it knows the line and the column.
    """
    import json

    try:
        return json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _broken("it is nested too deeply", text, at) from None
    except ValueError as error:  # a number of too many digits
        raise _broken(str(error), text, at) from None


def _broken(what: str, text: str, at: int) -> ValueError:
    import json

    return json.JSONDecodeError(what, text, at)


def _reason(error: ValueError) -> str:
    return f"{getattr(error, 'msg', error)} at column {getattr(error, 'colno', 1)}"


def _settle_label(items: Iterator[Item], label: str | None, path: str) -> str | None:
    """The label that was asked for, or that the first example has; it must be somewhere."""
    names: dict[str, None] = {}
    wrong: SourceError | None = None
    for item in items:
        if isinstance(item, SourceError):
            wrong = wrong or item
            continue
        example = item[1]
        if label is None:
            return find_label(example)
        if label in example:
            return label
        names.update(dict.fromkeys(example))
    if not names:
        raise wrong or fault(path, "there is no example in this file")
    raise fault(
        path,
        f"no object has {label!r} to take the label from; there are {enumerate_names(names)}",
    )


@dataclass(frozen=True, eq=False)
class _Lines:
    """The objects of a file with one on each line, streamed in every pass."""

    path: str
    label: str | None = None

    def __iter__(self) -> Iterator[Item]:
        number = 0
        with open(self.path, "rb") as file:
            for line, raw in enumerate(file, 1):
                raw = raw.removeprefix(_BOM) if line == 1 else raw
                if raw.strip():
                    yield self._item(number, line, raw)
                    number += 1

    def _item(self, number: int, line: int, raw: bytes) -> Item:
        try:
            text = raw.decode().strip()
            value, end = _parse(text)
            if end < len(text):
                raise _broken("more follows after the object's end", text, end)
        except UnicodeDecodeError as error:
            byte = raw[error.start]
            return fault(
                self.path, f"byte {byte:#04x} is not an UTF-8; save the file as UTF-8", line
            )
        except ValueError as error:
            return fault(self.path, f"this is no JSON: {_reason(error)}", line)
        example = _example(value, self.path, line, self.label)
        return example if isinstance(example, SourceError) else (number, example)


@register("JSON Lines", "a file with one JSON object per line", recognise=_is_lines, rank=4)
def open_json_lines(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The objects of a file, keyed by their number from 0."""
    path = one_file(place, "JSON Lines")
    label = _settle_label(iter(_Lines(path)), label, path)
    return Source("JSON Lines", path, _Lines(path, label), label=label)


@dataclass(frozen=True, eq=False)
class _Whole:
    """The objects of one JSON value. Its text is held, but only one object at a time."""

    path: str
    label: str | None = None

    def _text(self) -> str:
        with open(self.path, "rb") as file:
            raw = file.read().removeprefix(_BOM)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            what = f"byte {raw[error.start]:#04x} is not an UTF-8; save the file as UTF-8"
            raise fault(self.path, what, line) from None

    def __iter__(self) -> Iterator[Item]:
        text = self._text()
        seen: dict[Key, int] = {}
        line, counted = 1, 0
        members = _members(text)
        while True:
            try:
                at, key, value = next(members)
            except StopIteration:
                return
            except ValueError as error:
                what = f"this is no JSON, and ends here: {_reason(error)}"
                yield fault(self.path, what, getattr(error, "lineno", None))
                return
            line, counted = line + text.count("\n", counted, at), at
            who = f"id {key!r}: " if isinstance(key, str) else ""
            if key in seen:
                yield fault(self.path, f"{who}line {seen[key]} has the same id; rename one", line)
                continue
            if isinstance(key, str):
                seen[key] = line
            example = _example(value, self.path, line, self.label, who)
            yield example if isinstance(example, SourceError) else (key, example)


def _members(text: str) -> Iterator[tuple[int, Key, Any]]:
    """The members of a JSON object or list: (place, id or number, value)."""
    at = _space(text, 0)
    closing = {"{": "}", "[": "]"}.get(text[at : at + 1])
    if closing is None:
        raise _broken("neither an object nor a list of them", text, at)
    at = _space(text, at + 1)
    number = 0
    while number or text[at : at + 1] != closing:
        begin = at
        key: Key = number
        if closing == "}":
            key, at = _parse(text, at)
            at = _space(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                raise _broken("expected an id and a colon", text, at)
            at = _space(text, at + 1)
        value, at = _parse(text, at)
        yield begin, key, value
        number += 1
        at = _space(text, at)
        if text[at : at + 1] == closing:
            break
        if text[at : at + 1] != ",":
            raise _broken(f"expected a comma or {closing!r}", text, at)
        at = _space(text, at + 1)
    at = _space(text, at + 1)
    if at < len(text):
        raise _broken(f"more follows after the last {closing!r}", text, at)


def _space(text: str, at: int) -> int:
    """Where the white space that begins at a place ends."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


@register(
    "JSON", "a JSON file of objects by their id, or a list of objects", recognise=_is_json, rank=5
)
def open_json(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The objects of a file, keyed by their id, or by their number in a list.

    The text of the file is held in memory while it is read; JSON Lines is not.
    """
    path = one_file(place, "JSON")
    label = _settle_label(iter(_Whole(path)), label, path)
    return Source("JSON", path, _Whole(path, label), label=label)
