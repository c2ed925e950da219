"""Docstrings, fields and type annotations of covey, as text for the reference."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from typing import Any


def own_docstring(value: type) -> str:
    """Return the docstring of a class, not that of a base class."""
    return inspect.cleandoc(value.__doc__ or "") if "__doc__" in vars(value) else ""


def described_arguments(value: type) -> dict[str, str]:
    """Return the entries under Args of a class; those of a base class hold for its subclasses."""
    bases = [each for each in reversed(value.__mro__) if each.__module__.startswith("covey")]
    return {name: text for base in bases for name, text in parse(own_docstring(base))[1].items()}


def parse(doc: str | None) -> tuple[str, dict[str, str], str]:
    """Split a docstring into its text, its ``Args:`` and ``Attributes:``, and its ``Returns:``."""
    text: list[str] = []
    arguments: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    heading = None
    for line in (doc or "").splitlines():
        if line.startswith(">>>"):
            break
        found = re.fullmatch(r"(Args|Attributes|Returns|Yields|Raises|Note|Example)s?:", line)
        if found:
            heading = found[1]
        elif heading and (not line or line[0].isspace()):
            sections.setdefault(heading, []).append(line)
        else:
            heading = None
            text.append(line)
    for section in ("Args", "Attributes"):
        for names, meaning in _items(sections.get(section, [])):
            for name in re.split(r",\s*", names):
                arguments[name.strip().lstrip("*")] = meaning
    returns = " ".join(" ".join(sections.get("Returns", sections.get("Yields", []))).split())
    plain = "\n".join(text).strip()
    return re.sub(r"::\n\n((?:[ ]{4}.*\n?|\n)+)", _literal, plain), arguments, returns


def _literal(found: re.Match[str]) -> str:
    return f":\n\n```\n{textwrap.dedent(found[1]).rstrip()}\n```\n"


def _items(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (names, text) of the entries of a section."""
    block = textwrap.dedent("\n".join(lines))
    for item in re.split(r"\n(?=\S)", block):
        names, colon, meaning = item.strip().partition(":")
        if colon:
            yield " ".join(names.split()), " ".join(meaning.split())


def field_docstrings(value: type) -> dict[str, str]:
    """Return the docstrings below the annotated fields of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(value.__mro__):
        if not base.__module__.startswith("covey"):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body  # type: ignore[attr-defined]
        for node, following in itertools.pairwise(body):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                found[node.target.id] = " ".join(str(following.value.value).split())
    return found


def return_type(function: Any) -> str:
    """Return the type of the result of a function, as text."""
    return type_of(inspect.signature(function).return_annotation, function)


def type_of(annotation: Any, owner: Any) -> str:
    """Return an annotation as text; type aliases of covey are replaced by their definitions."""
    if annotation is inspect.Parameter.empty:
        return ""
    shown = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    module = inspect.unwrap(owner).__module__

    def expand(found: re.Match[str]) -> str:
        return _alias(found[0], module) or found[0]

    shown = re.sub(r"(?<![\w.])[A-Z]\w+\b(?!\[)", expand, shown)
    shown = re.sub(r"Literal\[([^\]]*)\]", lambda m: m[1].replace(", ", " | "), shown)
    shown = shown.replace("os.PathLike[str]", "PathLike").replace("NDArray[Any]", "ndarray")
    shown = re.sub(r"\bnp\.|\b(?:Optional)\b", "", shown)
    return shown.replace("'", '"')


@functools.cache
def _alias(name: str, module: str) -> str | None:
    """Return the definition of a type alias (union, literal or callable) that a module uses."""
    if not module.startswith("covey"):
        return None
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if any((each.asname or each.name) == name for each in node.names):
                return _alias(name, node.module)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ast.unparse(node.value)
            if node.targets[0].id == name and re.match(
                r"(Literal|Callable)\[|[\w.\[\], ]+ \| ", text
            ):
                return text
    return None
