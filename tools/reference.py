"""Write docs/reference.md from signatures, docstrings and command-line parsers.

``python tools/reference.py`` writes the page; ``--check`` only compares it. Every framework must be
installed. The text of an argument is its entry under ``Args:``, or the docstring below the field of
a dataclass.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import operator
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docstrings import (
    described_arguments,
    field_docstrings,
    own_docstring,
    parse,
    return_type,
    type_of,
)

PAGE = Path(__file__).parent.parent / "docs/reference.md"

PROLOGUE = """\
# Reference

Every argument of every public function and class, and every command-line option. This page is
generated from the source by `make reference`; edit the docstrings, not the page.
Arguments after `*` are keyword-only. A default of `-` means that the argument is required.
"""

# Title, module and names of each section; "*" is every public name of the module.
SECTIONS = [
    (
        "Datasets",
        "covey",
        "write HoldOut commit open info show verify repair build_index Dataset Loader",
    ),
    ("Engines", "covey.engines", "Processes Ray"),
    ("Features", "covey", "Features Feature Tensor ClassLabel Image Audio Ragged Sparse Steps"),
    ("Classes", "covey.classes", "ClassTable ClassNames"),
    ("Record files", "covey", "RecordReader RecordWriter"),
    ("Sources", "covey.sources", "open_source open_splits from_tfds_builder register Source"),
    ("Plans", "covey.plan", "*"),
    (
        "Metrics",
        "covey.metrics",
        "recall_at_k r_precision map_at_r retrieval_metrics suspicious_labels",
    ),
    ("Samplers", "covey.samplers", "*"),
    ("Augmenters", "covey.augmenters", "*"),
    ("TensorFlow adapter", "covey.adapters.tensorflow", "*"),
    ("PyTorch adapter", "covey.adapters.torch", "*"),
    ("JAX adapter", "covey.adapters.jax", "tensor to_jax"),
    ("Ray adapter", "covey.adapters.ray", "*"),
    ("datum's writer", "covey.writer", "*"),
    ("Arrays", "covey.arrays", "*"),
    ("Results", "covey.results", "*"),
    ("Errors and warnings", "covey.errors", "*"),
]

FACTORY_MADE = {"Dataset", "Loader", "ClassTable"}  # returned by covey.open, ds.batches, ds.classes

# Public methods of feature types, and methods of other classes that only covey calls.
FEATURE_METHODS = {"index", "encode", "decode"}
INTERNAL = {
    "Dataset": "check_classes decode labels_of place location native_source image_limit",
    "Features": "nest without_defaults fill_in is_stored_like begin_block encode_blocks "
    "check_columns decode_with find path_of column_of paths",
    "Plan": "batch_at step_at end_of_epoch steps_left share with_changes",
    "Processes": "start",
    "Ray": "start",
    "Datasink": "on_write_start write on_write_complete on_write_failed get_name",
    "MPerClassSampler": "items",
    "PlanBatchSampler": "items",
    "StepSampler": "items batch begin read",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: an argument, an attribute or an option."""

    name: str
    type: str
    default: str
    meaning: str


@dataclasses.dataclass
class Entry:
    """One function, method or class of the page."""

    name: str
    text: str
    signature: str = ""
    arguments: list[Row] = dataclasses.field(default_factory=list)
    attributes: list[Row] = dataclasses.field(default_factory=list)
    returns: str = ""
    bases: str = ""
    """Base classes, of an exception."""
    level: int = 3

    @property
    def undescribed(self) -> list[str]:
        """Names of the arguments without a description."""
        return [row.name for row in self.arguments if not row.meaning]


# The page.


def page() -> str:
    """Return the page."""
    lines = [PROLOGUE]
    for title, found in entries().items():
        lines.append(f"## {title}\n")
        brief = [entry for entry in found if entry.bases and not entry.arguments]
        for entry in found:
            if entry not in brief:
                lines += _render(entry)
        rows = [(_code(each.name), each.bases, each.text) for each in brief]
        lines += _table(["class", "bases", "meaning"], rows)
    lines.append("## Command line\n")
    for name, description, options in commands():
        lines += [f"### `covey {name}`\n", _markdown(description) + "\n"]
        rows = [(row.name, row.type, row.meaning) for row in options]
        lines += _table(["option", "value", "meaning"], rows)
    return "\n".join(lines).rstrip() + "\n"


@functools.cache
def entries() -> dict[str, list[Entry]]:
    """Return the entries of the Python interface by section."""
    sections: dict[str, list[Entry]] = {}
    for title, module, names in SECTIONS:
        found = sections[title] = []
        for name in _section_names(module, names):
            found += _describe(getattr(importlib.import_module(module), name), f"{module}.{name}")
    return sections


def commands() -> Iterator[tuple[str, str, list[Row]]]:
    """Yield (command, description, options) for the command line."""
    from covey.cli import make_parser

    (subparsers,) = [
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
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
            meaning = (action.help or "") % {"default": action.default, "prog": "covey"}
            rows.append(Row(flags or _code(metavar), _code(metavar) if flags else "", "", meaning))
        yield name, (parser.description or "").strip(), rows


def _render(entry: Entry) -> Iterator[str]:
    yield f"{'#' * entry.level} `{entry.name}`\n"
    if entry.signature:
        yield f"```text\n{entry.signature}\n```\n"
    if entry.text:
        yield _markdown(entry.text) + "\n"
    rows = [
        (_code(row.name), _code(row.type), _code(row.default) or "-", row.meaning)
        for row in entry.arguments
    ]
    yield from _table(["argument", "type", "default", "meaning"], rows)
    rows = [(_code(row.name), _code(row.type), row.meaning) for row in entry.attributes]
    yield from _table(["attribute", "type", "meaning"], rows)
    if entry.returns:
        yield f"Returns: {_markdown(entry.returns)}\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(header)} |\n|{'---|' * len(header)}"
        for *cells, meaning in rows:
            shown = [" ".join(each.split()) for each in (*cells, _markdown(meaning))]
            yield "| " + " | ".join(each.replace("|", "\\|") for each in shown) + " |"
        yield ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _markdown(text: str) -> str:
    """Convert reStructuredText roles and literals to Markdown."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


# Functions and classes.


@functools.cache
def _section_names(module_name: str, names: str) -> list[str]:
    if names != "*":
        return names.split()
    module = importlib.import_module(module_name)
    public = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module_name
    ]
    return [
        name
        for name in public
        if not name.startswith("_")
        and (inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name)))
    ]


@functools.cache
def _documented() -> set[str]:
    """Return the names of the functions and classes of the page."""
    return {name for _, module, names in SECTIONS for name in _section_names(module, names)}


def _describe(value: Any, name: str) -> list[Entry]:
    if not inspect.isclass(value):
        return [_function(value, name)]
    return [_exception(value, name)] if issubclass(value, BaseException) else _class(value, name)


def _function(value: Any, name: str, level: int = 3) -> Entry:
    text, described, returns = parse(inspect.getdoc(value))
    parameters = _parameters(value, described)
    rows = _rows(parameters)
    is_brief = (level > 3 or len(rows) == 1) and not any(row.meaning for row in rows)
    signature = _signature(name.rpartition(".")[2], parameters, types=is_brief)
    hint = return_type(value)
    if hint and hint != "None":
        signature += f" -> {hint}"
    return Entry(name, text, signature, [] if is_brief else rows, returns=returns, level=level)


def _exception(value: type, name: str) -> Entry:
    text, described, _ = parse(own_docstring(value))
    rows = _rows(_parameters(value, described_arguments(value))) if described else []
    rows = [row for row in rows if row.name.lstrip("*") in described]
    bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
    return Entry(name, text, arguments=rows, bases=bases)


def _class(value: type, name: str) -> list[Entry]:
    """Return the entries of a class and its methods."""
    short = name.rpartition(".")[2]
    entry = Entry(name, parse(own_docstring(value))[0])
    described = {**field_docstrings(value), **described_arguments(value)}
    hints = vars(value).get("__annotations__", {})
    fields = {each: hint for each, hint in hints.items() if each in field_docstrings(value)}
    if dataclasses.is_dataclass(value):
        # Its fields are arguments if the docstring has Args, else attributes.
        has_args = bool(parse(inspect.getdoc(value))[1])
        fields = {} if has_args else {each.name: each.type for each in dataclasses.fields(value)}
        has_constructor = has_args
    else:
        module = getattr(value.__init__, "__module__", "covey")
        has_constructor = module.startswith("covey") and short not in FACTORY_MADE
    if has_constructor and not inspect.isabstract(value):
        parameters = _parameters(value, described)
        entry.arguments = _rows(parameters)
        entry.signature = _signature(short, parameters)
    entry.attributes = [
        Row(each, type_of(hint, value), "", described.get(each, ""))
        for each, hint in fields.items()
        if not each.startswith("_")
    ]
    bases = [base for base in value.__mro__[1:-1] if base.__name__ in _documented()]
    inherited = {each for base in bases for each, _ in _members(base)}
    if inherited:
        entry.text += f"\n\nAlso has the methods of `{bases[0].__name__}`."
    methods = []
    for each, member in _members(value):
        if each in inherited:
            continue
        if isinstance(member, (property, functools.cached_property)):
            getter = member.fget if isinstance(member, property) else member.func
            meaning = parse(inspect.getdoc(member))[0]
            entry.attributes.append(Row(each, return_type(getter), "", meaning))
        else:
            methods.append(_function(member, f"{short}.{each}", 4))
    return [entry, *methods]


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public properties and documented methods that are defined in covey."""
    seen: set[str] = set()
    for base in value.__mro__:
        if not base.__module__.startswith("covey"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or _is_internal(value, name):
                continue
            seen.add(name)
            plain = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(member, (property, functools.cached_property)):
                yield name, member
            elif inspect.isfunction(plain) and inspect.getdoc(getattr(value, name)):
                yield name, getattr(value, name)


def _is_internal(value: type, name: str) -> bool:
    bases = {base.__name__ for base in value.__mro__}
    if "Feature" in bases:
        return name not in FEATURE_METHODS
    return any(name in INTERNAL.get(base, "").split() for base in bases)


# Arguments.


@dataclasses.dataclass(frozen=True)
class _Default:
    """A default value as it is shown in a signature."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _parameters(value: Any, described: dict[str, str]) -> dict[str, tuple[inspect.Parameter, str]]:
    """Return the parameters of a function or class, with type and default as strings, and meanings.

    Parameters that are documented as "options of X" are replaced by the parameters of X.
    """
    found: dict[str, tuple[inspect.Parameter, str]] = {}
    for parameter in inspect.signature(value).parameters.values():
        name, meaning = parameter.name, described.get(parameter.name, "")
        if name in ("self", "cls") or name.startswith("_"):
            continue
        reference = re.match(r"[Oo]ptions of :class:`~?([\w.]+)`", meaning)
        options = _lookup(reference[1], value) if reference else None
        if inspect.isclass(options):
            for each, text in _parameters(options, parse(inspect.getdoc(options))[1]).values():
                # A parameter of the function itself has its own default and meaning.
                found.setdefault(each.name, (each.replace(kind=each.KEYWORD_ONLY), text))
            continue
        default = parameter.default
        found[name] = (
            parameter.replace(
                annotation=_Default(type_of(parameter.annotation, value)),
                default=default
                if default is parameter.empty
                else _Default(_shown_default(default)),
            ),
            _follow(meaning, name, value),
        )
    return found


def _rows(parameters: dict[str, tuple[inspect.Parameter, str]]) -> list[Row]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        Row(
            stars.get(each.kind, "") + name,
            repr(each.annotation),
            "" if each.default is each.empty else repr(each.default),
            meaning,
        )
        for name, (each, meaning) in parameters.items()
    ]


def _signature(
    name: str, parameters: dict[str, tuple[inspect.Parameter, str]], *, types: bool = False
) -> str:
    shown = [
        each if types and repr(each.annotation) else each.replace(annotation=each.empty)
        for each, _ in parameters.values()
    ]
    line = str(inspect.Signature(shown))
    if len(name + line) <= 96:
        return name + line
    wrapped = textwrap.wrap(line[1:-1], 92, break_long_words=False, break_on_hyphens=False)
    return "\n".join([f"{name}(", *(f"    {each}" for each in wrapped), ")"])


def _shown_default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    if type(value) is int and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20} << 20"
    return re.sub(r"<(?:\w+\.)*(\w+) object at 0x\w+>", r"\1()", repr(value))


def _follow(meaning: str, argument: str, owner: Any) -> str:
    """Replace "As for X" by the entry of the same argument of X, if X describes it."""
    while found := re.match(r"As for :\w+:`~?([\w.]+)`", meaning):
        owner = _lookup(found[1], owner)
        described = parse(inspect.getdoc(owner))[1] if owner else {}
        if argument not in described:
            break
        meaning = described[argument]
    return meaning


def _lookup(name: str, owner: Any) -> Any:
    """Return the object that a cross-reference in the docstring of `owner` names, or None."""
    if name.startswith("covey."):
        return pkgutil.resolve_name(name)
    plain = inspect.unwrap(owner)
    module = sys.modules[plain.__module__]
    for scope in (getattr(module, plain.__qualname__.partition(".")[0], None), module):
        with contextlib.suppress(AttributeError):
            return operator.attrgetter(name)(scope)
    return None


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
