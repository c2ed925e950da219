"""Write docs/reference.md from signatures, docstrings and command-line parsers.

``python tools/reference.py`` writes the page; ``--check`` only compares it. Every framework must be
installed. The text of an argument is its entry under ``Args:``, or the docstring below the field of
a dataclass.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs/reference.md"

PROLOGUE = """\
# Reference

Every argument of every public function and class, and every command-line option. This page is
generated from the source by `make reference`; edit the docstrings, not the page.
Arguments after `*` are keyword-only. A default of `-` means that the argument is required.
"""

SECTIONS: list[tuple[str, str, list[str]]] = [
    (
        "Datasets",
        "covey",
        ["write", "open", "info", "verify", "repair", "build_index", "Dataset", "Loader"],
    ),
    (
        "Features",
        "covey",
        ["Features", "Feature", "Tensor", "ClassLabel", "Image", "Ragged", "Sparse", "Steps"],
    ),
    ("Classes", "covey.classes", ["ClassTable"]),
    ("Record files", "covey", ["RecordReader", "RecordWriter"]),
    ("Batches of columns", "covey.reading", ["read_batches"]),
    ("Sources", "covey.sources", ["open_source", "from_tfds_builder", "register", "Source"]),
    ("Held-out examples and classes", "covey.sources.hold_out", ["hold_out"]),
    ("Plans", "covey.plan", ["*"]),
    ("Samplers", "covey.samplers", ["*"]),
    ("Augmenters", "covey.augmenters", ["*"]),
    ("TensorFlow adapter", "covey.adapters.tensorflow", ["*"]),
    ("PyTorch adapter", "covey.adapters.torch", ["*"]),
    ("JAX adapter", "covey.adapters.jax", ["tensor", "to_jax"]),
    ("datum's writer", "covey.writer", ["*"]),
    ("Arrays", "covey.arrays", ["*"]),
    ("Results", "covey.results", ["*"]),
    ("Errors and warnings", "covey.errors", ["*"]),
]


# Methods that other parts of covey call and that are not part of the public interface. Methods of
# feature types are internal except these.
FEATURE_METHODS = {"index", "encode", "decode"}
FACTORY_MADE = {"Dataset", "Loader", "ClassTable"}  # made by covey.open, ds.batches, ds.classes
INTERNAL = {
    "Dataset": {"decode", "labels_of", "place", "location", "native_source", "image_limit"},
    "Features": {
        "nest",
        "without_defaults",
        "fill_in",
        "is_stored_like",
        "begin_block",
        "encode_blocks",
        "check_columns",
        "decode_with",
        "find",
        "path_of",
        "column_of",
        "paths",
    },
    "Plan": {"batch_at", "step_at", "end_of_epoch", "steps_left", "share", "with_changes"},
    "MPerClassSampler": {"items"},
    "PlanBatchSampler": {"items"},
    "StepSampler": {"items", "start"},
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: an argument, a field or an option."""

    name: str
    type: str
    default: str
    meaning: str


@dataclasses.dataclass
class Entry:
    """One function, method or class of the page."""

    name: str
    signature: str
    text: str
    rows: list[Row]
    level: int = 3
    returns: str = ""
    bases: str = ""
    """Base classes, of an exception."""
    attributes: list[Row] = dataclasses.field(default_factory=list)

    @property
    def undescribed(self) -> list[str]:
        """Names of the arguments without a description."""
        return [row.name.lstrip("=") for row in self.rows if not row.meaning]


def entries() -> Iterator[tuple[str, list[Entry]]]:
    """Yield (section, entries) for the Python interface."""
    for title, module_name, names in SECTIONS:
        module = importlib.import_module(module_name)
        if names == ["*"]:
            names = _public_names(module)
        found: list[Entry] = []
        for name in names:
            found += _describe(getattr(module, name), f"{module_name}.{name}")
        yield title, found


def commands() -> Iterator[tuple[str, str, list[Row]]]:
    """Yield (command, description, options) for the command line."""
    from covey.cli import _parser

    (subparsers,) = [
        action for action in _parser([])._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for name, parser in subparsers.choices.items():
        rows = []
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction):
                continue
            flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
            metavar = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
            if action.choices is not None:
                metavar = " or ".join(map(str, action.choices))
            help_text = (action.help or "") % {"default": action.default, "prog": "covey"}
            rows.append(
                Row(
                    flags or f"`{metavar}`",
                    f"`{metavar}`" if flags and metavar else "",
                    "",
                    help_text,
                )
            )
        yield name, (parser.description or "").strip(), rows


def page() -> str:
    """Return the page."""
    lines = [PROLOGUE]
    for title, found in entries():
        lines.append(f"## {title}\n")
        brief = [entry for entry in found if entry.bases and not entry.rows]
        for entry in found:
            if entry not in brief:
                lines += _render(entry)
        if brief:
            lines.append("| class | bases | meaning |\n|---|---|---|")
            lines += [
                f"| `{entry.name}` | {entry.bases} | {_cell(_markdown(entry.text))} |"
                for entry in brief
            ]
            lines.append("")
    lines.append("## Command line\n")
    for name, description, rows in commands():
        lines.append(f"### `covey {name}`\n")
        lines.append(_markdown(description) + "\n")
        lines.append("| option | value | meaning |\n|---|---|---|")
        lines += [
            f"| {row.name} | {_cell(row.type)} | {_cell(_markdown(row.meaning))} |" for row in rows
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _public_names(module: Any) -> list[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return [
        name
        for name in names
        if not name.startswith("_")
        and (inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name)))
    ]


def _describe(value: Any, name: str) -> list[Entry]:
    if not inspect.isclass(value):
        return [_function(value, name, 3)]
    if issubclass(value, BaseException):
        return [_exception(value, name)]
    text, arguments, _ = _parse(inspect.getdoc(value) if "__doc__" in vars(value) else "")
    for base in value.__mro__[1:]:  # entries of a base class hold for its subclasses
        if base.__module__.startswith("covey"):
            arguments = {**_parse(base.__doc__ and inspect.cleandoc(base.__doc__))[1], **arguments}
    arguments = {**_field_texts(value), **arguments}
    is_record = dataclasses.is_dataclass(value)
    short = name.rpartition(".")[2]
    module = getattr(value.__init__, "__module__", "covey")
    if short in FACTORY_MADE or not module.startswith("covey"):
        made = Entry(name, "", text, [])
    elif (is_record and not _parse(inspect.getdoc(value))[1]) or inspect.isabstract(value):
        fields = [
            Row(each.name, _type_of(each.type, value), "", arguments.get(each.name, ""))
            for each in (dataclasses.fields(value) if is_record else ())
            if not each.name.startswith("_")
        ]
        made = Entry(name, "", text, [], attributes=fields)
    else:
        rows = _rows(value, arguments)
        made = Entry(name, _signature(short, rows), text, rows)
    if not is_record:
        made.attributes += [
            Row(field, _type_of(hint, value), "", _field_texts(value)[field])
            for field, hint in vars(value).get("__annotations__", {}).items()
            if field in _field_texts(value) and not field.startswith("_")
        ]
    methods = []
    bases = [base for base in value.__mro__[1:-1] if base.__name__ in _documented()]
    inherited = {name for base in bases for name, _ in _members(base)}
    if bases and inherited:
        made.text += f"\n\nAlso has the methods of `{bases[0].__name__}`."
    for attribute, member in _members(value):
        if attribute in inherited:
            continue
        if isinstance(member, property) or not callable(member):
            doc = inspect.getdoc(member) or ""
            hint = _return_type(getattr(member, "fget", getattr(member, "func", None)))
            made.attributes.append(Row(attribute, hint, "", _parse(doc)[0]))
        else:
            methods.append(_function(member, f"{short}.{attribute}", 4))
    return [made, *methods]


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public members that are defined in covey."""
    seen: set[str] = set()
    for base in value.__mro__:
        if not base.__module__.startswith("covey"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or _is_internal(value, name):
                continue
            seen.add(name)
            plain = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(plain):
                if inspect.getdoc(getattr(value, name)):
                    yield name, getattr(value, name)
            elif isinstance(member, property) or type(member).__name__ == "cached_property":
                yield name, member


def _is_internal(value: type, name: str) -> bool:
    names = {base.__name__ for base in value.__mro__}
    if "Feature" in names:
        return name not in FEATURE_METHODS
    return any(name in INTERNAL.get(each, ()) for each in names)


@functools.cache
def _documented() -> set[str]:
    """Return the names of the classes of the page."""
    found = set()
    for _, module_name, names in SECTIONS:
        module = importlib.import_module(module_name)
        found |= set(_public_names(module) if names == ["*"] else names)
    return found


def _exception(value: type, name: str) -> Entry:
    text, arguments, _ = _parse(value.__doc__ and inspect.cleandoc(value.__doc__))
    inherited = _parse(inspect.getdoc(value.__mro__[-3]))[1] if arguments else {}
    rows = [
        row
        for row in (_rows(value, {**inherited, **arguments}) if arguments else ())
        if row.name.lstrip("=*") in arguments
    ]
    bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
    return Entry(name, "", text, rows, bases=bases)


def _function(value: Any, name: str, level: int) -> Entry:
    text, arguments, returns = _parse(inspect.getdoc(value))
    rows = _rows(value, arguments)
    is_brief = (level > 3 or len(rows) == 1) and not any(row.meaning for row in rows)
    signature = _signature(name.rpartition(".")[2], rows, types=is_brief)
    hint = _return_type(value)
    if hint and hint != "None":
        signature += f" -> {hint}"
    return Entry(name, signature, text, [] if is_brief else rows, level, returns)


def _rows(value: Any, arguments: dict[str, str]) -> list[Row]:
    rows = []
    star = False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        name = parameter.name
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
        if parameter.kind is parameter.VAR_POSITIONAL:
            name, star = f"*{name}", True
        elif parameter.kind is parameter.VAR_KEYWORD:
            options = _options_class(arguments.get(name, ""), value)
            if options is not None:
                described = _parse(inspect.getdoc(options))[1]
                rows += [
                    dataclasses.replace(row, name="=" + row.name.lstrip("="))
                    for row in _rows(options, described)
                ]
                continue
            name = f"**{name}"
        elif star:
            name = f"={name}"  # keyword-only
        default = "" if parameter.default is parameter.empty else _default(parameter.default)
        hint = _type_of(parameter.annotation, value)
        meaning = _follow(arguments.get(parameter.name, ""), parameter.name, value)
        rows.append(Row(name, hint, default, meaning))
    return rows


def _follow(meaning: str, argument: str, owner: Any) -> str:
    """Replace "As for X" by the entry of the same argument of X, if X describes it."""
    for _ in range(4):
        found = re.match(r"As for :\w+:`~?([\w.]+)`", meaning)
        target = found and _lookup(found[1], owner)
        if not target:
            break
        documented = _parse(inspect.getdoc(target))[1]
        if not documented.get(argument):
            break
        meaning, owner = documented[argument], target
    return meaning


def _options_class(meaning: str, owner: Any) -> Any:
    """Return the class that the entry of ``**options`` refers to as "options of X", or None."""
    found = re.match(r"[Oo]ptions of :class:`~?([\w.]+)`", meaning)
    target = found and _lookup(found[1], owner)
    return target if inspect.isclass(target) else None


def _lookup(name: str, owner: Any) -> Any:
    """Return the object that a cross-reference in the docstring of `owner` names, or None."""
    plain = inspect.unwrap(owner)
    scopes = [sys.modules[plain.__module__]]
    if "." in getattr(plain, "__qualname__", ""):
        scopes.insert(0, getattr(scopes[0], plain.__qualname__.partition(".")[0], None))
    if name.startswith("covey."):
        parts = name.split(".")
        for length in range(len(parts) - 1, 0, -1):
            try:
                module = importlib.import_module(".".join(parts[:length]))
            except ImportError:
                continue
            scopes, name = [module], ".".join(parts[length:])
            break
    for scope in scopes:
        found = scope
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return found
    return None


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    if type(value) is int and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} << 20"
    return re.sub(r"<(?:\w+\.)*(\w+) object at 0x\w+>", r"\1()", repr(value))


def _signature(name: str, rows: list[Row], *, types: bool = False) -> str:
    parts = []
    star = False
    for row in rows:
        if row.name.startswith("=") and not star:
            star = True
            parts.append("*")
        if row.name.startswith("*"):
            star = True
        plain = row.name.lstrip("=")
        if types and row.type:
            plain += f": {row.type}"
        equals = " = " if types else "="
        parts.append(f"{plain}{equals}{row.default}" if row.default else plain)
    line = f"{name}({', '.join(parts)})"
    if len(line) <= 96:
        return line
    wrapped = textwrap.wrap(", ".join(parts), 92, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"{name}(", *(f"    {each}" for each in wrapped), ")"])


def _parse(doc: str | None) -> tuple[str, dict[str, str], str]:
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


def _field_texts(value: type) -> dict[str, str]:
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


def _return_type(function: Any) -> str:
    if function is None:
        return ""
    return _type_of(inspect.signature(function).return_annotation, function)


def _type_of(annotation: Any, owner: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    shown = annotation if isinstance(annotation, str) else _type_name(annotation)

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


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


def _markdown(text: str) -> str:
    """Convert reStructuredText roles and literals to Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _render(entry: Entry) -> Iterator[str]:
    yield f"{'#' * entry.level} `{entry.name}`\n"
    if entry.signature:
        yield f"```text\n{entry.signature}\n```\n"
    if entry.text:
        yield _markdown(entry.text) + "\n"
    if entry.rows:
        yield "| argument | type | default | meaning |\n|---|---|---|---|"
        for row in entry.rows:
            default = f"`{_cell(row.default)}`" if row.default else "-"
            yield (
                f"| `{row.name.lstrip('=')}` | {_code(row.type)} | {default} "
                f"| {_cell(_markdown(row.meaning))} |"
            )
        yield ""
    if entry.attributes:
        yield "| attribute | type | meaning |\n|---|---|---|"
        for row in entry.attributes:
            yield f"| `{row.name}` | {_code(row.type)} | {_cell(_markdown(row.meaning))} |"
        yield ""
    if entry.returns:
        yield f"Returns: {_markdown(entry.returns)}\n"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def main() -> int:
    """Write the page, or check that it is up to date."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
        return 0
    if PAGE.read_text() == text:
        return 0
    print("docs/reference.md is out of date: run make reference", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
