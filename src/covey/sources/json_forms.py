"""Forms of JSON values: which parts of a value are the examples.

=========================================  ==========================================
``[{...}, ...]``                           objects, keyed by their position
``{"id": {...}, ...}``                     objects, keyed by their id
``[["hi", "greeting"], ...]``              lists, whose elements have the names `columns`
``{"greeting": ["hi", ...], ...}``         strings of classes
``{"text": [...], "label": [...]}``        columns, as pandas writes them
``{"version": 1, "data": [...]}``          the list of examples among other values
``{"train": [...], "test": [...]}``        splits, of any of the forms above
=========================================  ==========================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from covey.errors import SourceError
from covey.labels import LABEL_NAMES
from covey.sources.source import Key, SourceOptions, list_names, source_error
from covey.splits import SPLIT_NAMES
from covey.untrusted import brief

# Rows whose elements are inspected to name them.
_INSPECTED_ROWS = 1000
_MAX_DESCRIBED = 6
_MAX_CANDIDATES = 4
_MAX_SEARCHED = 1000

# Names in an object that has all strings of one class, as in training data of chat bots.
_CLASS_NAMES = frozenset(("tag", "intent", "label", "class", "name"))
_STRINGS_NAMES = frozenset(("patterns", "examples", "utterances", "texts", "questions"))


class RepeatedNames(dict[str, Any]):
    """A JSON object in which a name occurs more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


@dataclass(frozen=True)
class JsonMembers:
    """The examples in a JSON value, which are not checked."""

    pairs: Iterable[tuple[Key, Any]]
    """Keys, which may occur twice, and values."""
    columns: tuple[str, ...] | None = None
    """Names of the elements, if the values are lists."""
    label: str | None = None
    """Label feature, if the form defines one."""


def describe(value: Any, names: bool = True) -> str:
    """Return a description of a JSON value, for messages.

    >>> describe({"version": 1, "data": [{}, {}]})
    "an object with 2 names ('version' is a number, 'data' is a list of 2 objects)"
    """
    match value:
        case dict() if names and value:
            parts = [
                f"{brief(name)} is {describe(each, names=False)}"
                for name, each in islice(value.items(), _MAX_DESCRIBED)
            ]
            more = [f"{len(value) - len(parts)} more"] if len(value) > len(parts) else []
            return f"an object with {len(value)} names ({', '.join(parts + more)})"
        case dict():
            return f"an object with {len(value)} names" if value else "an empty object"
        case list():
            kinds = {_kind(each) for each in value}
            return f"a list of {len(value)} {kinds.pop() if len(kinds) == 1 else 'value'}s"
        case None:
            return "null"
    return f"a {_kind(value)}"


def _kind(value: Any) -> str:
    match value:
        case dict():
            return "object"
        case list():
            return "list"
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
    return "number"


def select_field(value: Any, field: str | None, path: str) -> Any:
    """Return the part of a value at a path of names, such as ``"data.items"``.

    Raises:
        SourceError: If there is no such part.
    """
    rest = field
    while rest is not None:
        if isinstance(value, dict) and rest in value:  # a name may contain a dot
            return value[rest]
        name, dot, after = rest.partition(".")
        if not isinstance(value, dict) or name not in value:
            found = list_names(value) if isinstance(value, dict) else describe(value)
            allowed = f"a path of names; {name!r} is not one of {found}"
            raise source_error(path, "", option="field", found=field, allowed=allowed)
        value, rest = value[name], after if dot else None
    return value


def find_splits(value: Any, options: SourceOptions, path: str) -> dict[str, Any] | None:
    """Return the splits of a value; None if it does not have splits.

    The splits of an object are its lists and objects, if the name of each contains that of a split:
    ``train``, ``oos_test``.
    """
    if options.splits is not None:
        if not options.splits:
            return None
        if not isinstance(value, dict) or not value.keys() >= set(options.splits):
            raise source_error(
                path,
                f"found {describe(value)}",
                option="splits",
                found=options.splits,
                allowed="names of the object",
            )
        return {name: value[name] for name in options.splits}
    if not isinstance(value, dict):
        return None
    parts = {name: each for name, each in value.items() if isinstance(each, (list, dict))}
    if not parts or not all(map(_has_split_name, parts)):
        return None
    filled = [each for each in parts.values() if each]
    if not filled or not all(map(_contains_examples, filled)):
        return None
    return parts


def _has_split_name(name: str) -> bool:
    return any(part in SPLIT_NAMES for part in re.split(r"[^a-z0-9]+", name.lower()))


def _contains_examples(value: Any) -> bool:
    """Return whether a value contains objects or lists only, as far as its first member tells."""
    if isinstance(value, dict):
        return all(isinstance(each, (dict, list)) for each in value.values())
    return bool(value) and isinstance(value[0], (dict, list))


def find_members(value: Any, options: SourceOptions, path: str) -> JsonMembers:
    """Find the examples in a value.

    Args:
        value: The value, or one of its splits.
        options: Options, of which this uses `columns` and `label`.
        path: Path of the file, for errors.

    Raises:
        SourceError: If the value has none of the forms; it describes the value.
    """
    if isinstance(value, list):
        return _in_list(value, options, path)
    if not isinstance(value, dict):
        raise source_error(path, f"found {describe(value)}; must be an object or a list")
    found = None if isinstance(value, RepeatedNames) else _in_object(value, options, path)
    if found is None and _are_objects_by_id(value):
        _refuse_columns(options, path, value)
        pairs = value.pairs if isinstance(value, RepeatedNames) else value.items()
        return JsonMembers(pairs)
    if found is None and isinstance(value, RepeatedNames):
        names = [name for name, _ in value.pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise source_error(path, f"the name {brief(twice)} occurs twice in an object")
    if found is None:
        raise _unknown(value, path)
    return found


def _unknown(value: Any, path: str) -> SourceError:
    candidates = list(islice(_candidates(value, ""), _MAX_CANDIDATES))
    example = f", such as {list_names(candidates)}" if candidates else ""
    return source_error(
        path,
        f"found {describe(value)}, of which the examples are not determined",
        option="field",
        allowed=f"the path of the examples{example}",
    )


def _candidates(value: Any, prefix: str, depth: int = 3) -> Iterator[str]:
    """Yield the paths of the lists of objects and lists in an object."""
    if not isinstance(value, dict) or not depth:
        return
    for name, each in islice(value.items(), _MAX_SEARCHED):
        if isinstance(each, list) and _contains_examples(each):
            yield f"{prefix}{name}"
        yield from _candidates(each, f"{prefix}{name}.", depth - 1)


def _in_list(value: list[Any], options: SourceOptions, path: str) -> JsonMembers:
    if not value:
        return JsonMembers(())
    if isinstance(value[0], list):
        columns = name_elements(value, options, path)
        return JsonMembers(
            enumerate(value), columns, columns[1] if options.columns is None else None
        )
    if not isinstance(value[0], dict):
        raise source_error(path, f"found {describe(value)}; must be objects or lists")
    _refuse_columns(options, path, value)
    _refuse_classes(value[0], path)
    return JsonMembers(enumerate(value))


def _in_object(value: dict[str, Any], options: SourceOptions, path: str) -> JsonMembers | None:
    """Return the examples of an object that is not one of objects by id."""
    parts = list(value.values())
    if not parts:
        return JsonMembers(())
    if all(isinstance(each, list) for each in parts):
        if _are_columns(value):
            rows = (dict(zip(value, row, strict=True)) for row in zip(*parts, strict=True))
            return JsonMembers(enumerate(rows))
        strings = all(isinstance(text, str) for each in parts for text in each)
        if strings and any(parts):
            return _in_classes(value, options, path)
    if _are_frame(value):
        ids = parts[0]
        return JsonMembers((key, {name: value[name][key] for name in value}) for key in ids)
    lists = [each for each in parts if isinstance(each, list) and _contains_examples(each)]
    objects = sum(isinstance(each, dict) for each in parts)
    if len(lists) == 1 and len(lists[0]) >= objects and not _are_lists(parts, lists[0]):
        return _in_list(lists[0], options, path)
    return None


def _are_lists(parts: Sequence[Any], examples: list[Any]) -> bool:
    """Return whether another list may contain the examples, or parts of them."""
    return any(
        isinstance(each, list) and len(each) >= len(examples)
        for each in parts
        if each is not examples
    )


def _are_columns(value: dict[str, Any]) -> bool:
    """Return whether lists are columns: of the same length, and not all strings of a class."""
    lengths = {len(each) for each in value.values()}
    if len(value) < 2 or len(lengths) != 1 or lengths == {0}:
        return False
    if any(isinstance(cell, dict) for column in value.values() for cell in column):
        return False
    if any(name.lower() in LABEL_NAMES for name in value):
        return True
    return any(not isinstance(cell, (str, list)) for column in value.values() for cell in column)


def _are_frame(value: dict[str, Any]) -> bool:
    """Return whether objects are the columns of pandas, with its index as names."""
    parts = list(value.values())
    if not all(isinstance(each, dict) for each in parts) or not parts[0]:
        return False
    ids = parts[0].keys()
    if not all(name.isdigit() for name in ids) or any(each.keys() != ids for each in parts):
        return False
    return not any(isinstance(cell, dict) for each in parts for cell in each.values())


def _in_classes(value: dict[str, Any], options: SourceOptions, path: str) -> JsonMembers:
    text, label = _check_names(options.columns, 2, path, f"found {describe(value)}") or (
        "text",
        options.label or "label",
    )
    pairs = (
        (f"{name}:{i}", {text: each, label: name})
        for name, strings in value.items()
        for i, each in enumerate(strings)
    )
    return JsonMembers(pairs, label=label)


def _are_objects_by_id(value: dict[str, Any]) -> bool:
    objects = [each for each in value.values() if isinstance(each, dict)]
    if len(objects) * 2 <= len(value):
        return False
    # Objects of containers without a common name contain examples.
    shared = set.intersection(*map(set, objects)) if len(value) > 1 else set()
    return bool(shared) or not all(each and _contains_examples(each) for each in objects)


def _refuse_columns(options: SourceOptions, path: str, value: Any) -> None:
    if options.columns is not None:
        raise source_error(
            path,
            f"found {describe(value)}, whose elements have names",
            option="columns",
            found=options.columns,
        )


def _refuse_classes(example: dict[str, Any], path: str) -> None:
    """Raise SourceError if an object has all strings of a class."""
    strings = [
        name
        for name, value in example.items()
        if name.lower() in _STRINGS_NAMES
        and isinstance(value, list)
        and value
        and all(isinstance(each, str) for each in value)
    ]
    classes = [
        name
        for name, value in example.items()
        if name.lower() in _CLASS_NAMES and isinstance(value, str)
    ]
    if strings and classes:
        raise source_error(
            path,
            f"found {describe(example)}: an object has all {strings[0]!r} of one {classes[0]!r}",
            remedy=f"convert it to {{{classes[0]}: {strings[0]}, ...}}, or to an object per string",
        )


def name_elements(rows: Sequence[Any], options: SourceOptions, path: str) -> tuple[str, ...]:
    """Return the names of the elements of lists: `columns`, or text and label.

    Raises:
        SourceError: If there are no names, and the lists are not pairs of a string and a label.
    """
    count = len(rows[0])
    given = _check_names(options.columns, count, path, _describe_rows(rows))
    if given is not None:
        return given
    pairs = [row for row in islice(rows, _INSPECTED_ROWS) if isinstance(row, list)]
    texts, labels = set(), set()
    for row in pairs:
        is_pair = len(row) == 2 and isinstance(row[0], str)
        if not is_pair or not isinstance(row[1], (str, int)) or isinstance(row[1], bool):
            raise _unnamed(
                count, f"{_describe_rows(rows)}, which is not a string and a label", path
            )
        texts.add(row[0])
        labels.add(row[1])
    if len(labels) > len(texts):
        more = "the second elements have more different values than the first ones"
        raise _unnamed(count, f"{_describe_rows(rows)}; {more}", path)
    return "text", options.label or "label"


def _describe_rows(rows: Sequence[Any]) -> str:
    shown = ", ".join(brief(each) for each in rows[0][:_MAX_DESCRIBED])
    return f"found a list of {len(rows)} lists; the first one is [{shown}]"


def _unnamed(count: int, reason: str, path: str) -> SourceError:
    allowed = f"the names of the {count} elements"
    return source_error(path, reason, option="columns", allowed=allowed)


def _check_names(
    columns: Sequence[str] | None, count: int, path: str, found: str
) -> tuple[str, ...] | None:
    """Return the names that the caller gave to elements."""
    if columns is None:
        return None
    if len(columns) != count:
        raise source_error(path, found, option="columns", found=columns, allowed=f"{count} names")
    return tuple(columns)
