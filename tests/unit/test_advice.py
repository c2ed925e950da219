"""The advice of errors: every argument that a remedy names is one that the caller has."""

import argparse
import ast
import inspect
import re
from pathlib import Path

import pytest

import covey
from covey.cli import make_parser
from covey.cli.output import OptionNames
from covey.errors import CoveyError
from covey.loader import LoadOptions
from covey.schema.pixels import ImageOptions

SOURCE = Path(covey.__file__).parent

# Public functions by the packages whose errors they raise; the packages of `*` belong to all.
CALLABLES = {
    "*": [
        covey.open, covey.write, covey.Dataset.batches, covey.Dataset.shuffled, LoadOptions,
        ImageOptions,
        covey.Image, covey.Tensor, covey.sources.SourceOptions,
    ],
    "adapters": [covey.Loader.to_torch, covey.Loader.to_tf, covey.Loader.to_jax],
    "maintenance": [covey.repair, covey.verify, covey.info, covey.build_index],
    "sources": [covey.sources.open_source],
    "tfrecord": [covey.RecordReader, covey.RecordWriter],
}  # fmt: skip
# Of torch's DataLoader, which to_torch passes on, and of Keras' PyDataset.
NOT_COVEYS = {"num_workers", "use_multiprocessing"}

ARGUMENT = re.compile(r"(?<![\w.])([a-z][a-z_]*)=(?!=)")
COMMAND = re.compile(r"`covey [^`]*`")


def parameters(package):
    found = set(NOT_COVEYS)
    for each in (*CALLABLES["*"], *CALLABLES.get(package, ())):
        found |= set(inspect.signature(each).parameters)
    if package in ("adapters", "samplers"):  # they import frameworks
        for path in (SOURCE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    found |= {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
    return found


def text_of(node):
    """Return the text of an expression: literals, with a word in place of other parts."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(text_of, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{text_of(body)}, or {text_of(orelse)}"
    return "X"


def advice():
    """Yield the file, line, field and text of what errors say."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

        def text(node, constants=constants):
            return text_of(constants.get(node.id) if isinstance(node, ast.Name) else node)

        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg in ("remedy", "allowed"):
                        yield name, node.lineno, keyword.arg, text(keyword.value)
                called = ast.unparse(node.func).rpartition(".")[2]
                if called in ("check", "_check") and len(node.args) > 3:
                    yield name, node.lineno, "allowed", text(node.args[3])
                if called.endswith(("Error", "_error", "_invalid")):
                    for argument in node.args:
                        yield name, node.lineno, "reason", text(argument)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and target.attr == "remedy":
                        yield name, node.lineno, "remedy", text(node.value)


ADVICE = [each for each in advice() if ARGUMENT.search(each[3]) or "--" in each[3]]


def test_the_enumeration_finds_advice():
    found = {(name, field) for name, _, field, _ in ADVICE}
    assert ("writing/target.py", "remedy") in found
    assert ("adapters/torch.py", "allowed") in found
    assert ("cli/write.py", "remedy") in found
    assert len(ADVICE) > 50


@pytest.mark.parametrize("each", ADVICE, ids=lambda each: f"{each[0]}:{each[1]}")
def test_python_has_the_arguments(each):
    name, _, _, text = each
    package = name.split("/")[0].removesuffix(".py")
    if package == "cli":
        assert not ARGUMENT.search(text)  # a command names its options
        return
    assert "--" not in COMMAND.sub("", text)
    assert {found[1] for found in ARGUMENT.finditer(text)} <= parameters(package)


def commands() -> dict[str, argparse.ArgumentParser]:
    return make_parser()._subparsers._group_actions[0].choices


REMEDIES = [each for each in ADVICE if each[2] == "remedy"]


@pytest.mark.parametrize("command", commands())
def test_a_command_has_the_options(command):
    names = OptionNames(commands()[command])
    flags = {flag for action in commands()[command]._actions for flag in action.option_strings}
    for name, line, _, text in REMEDIES:
        if name.startswith("cli/") and name != f"cli/{command}.py":
            continue
        shown = COMMAND.sub("", names.message(CoveyError("it failed", remedy=text)))
        assert not ARGUMENT.search(shown), f"{name}:{line}: {shown}"
        assert set(re.findall(r"(?<!\w)--[a-z][a-z-]*", shown)) <= flags, f"{name}:{line}: {shown}"


# What the command line shows.


def shown(remedy, command="write"):
    return OptionNames(commands()[command]).message(CoveyError("it failed", remedy=remedy))


def test_options_replace_arguments():
    assert shown("pass mode='append' to add to it") == "it failed; see --mode"
    assert shown("pass defaults=, or pass features=") == "it failed; see --default"
    assert shown("pass storage_options=", "info") == "it failed; see --storage-option"
    assert shown("declare Image(channels=3)") == "it failed"
    assert shown("write another dataset") == "it failed; write another dataset"
    copies = "`covey repair a=b --output NEW` copies the valid records"
    assert shown(copies) == f"it failed; {copies}"


def test_an_option_is_named_if_the_command_has_it():
    error = CoveyError(option="memory_limit", found=0, allowed="an integer >= 1")
    assert OptionNames(commands()["write"]).message(error).startswith("--memory-limit is 0")
    assert OptionNames(commands()["info"]).message(error).startswith("memory_limit is 0")
    error = CoveyError(option="hold_out.by", found="x", choices=["y"])
    assert OptionNames(commands()["write"]).message(error).startswith("--hold-out-by is 'x'")
