"""The package: public names, import graph, and what an import loads."""

import ast
import copy
import inspect
import json
import pickle
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import covey
from covey import errors

SOURCE = Path(covey.__file__).parent
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement imports in a new process."""
    return set(
        json.loads(
            run_python(
                "import sys, json; before = set(sys.modules); import covey; "
                f"{statement}; print(json.dumps(sorted(set(sys.modules) - before)))"
            )
        )
    )


# Public names.


def test_public_names():
    assert covey.__all__ == [
        "Audio",
        "ClassLabel",
        "CoveyError",
        "Dataset",
        "Feature",
        "Features",
        "HoldOut",
        "Image",
        "Loader",
        "Ragged",
        "RecordReader",
        "RecordWriter",
        "Sparse",
        "Steps",
        "Tensor",
        "build_index",
        "commit",
        "info",
        "open",
        "repair",
        "show",
        "verify",
        "write",
    ]
    submodules = set(dir(covey)) - set(covey.__all__)
    assert submodules == {
        "__version__",
        "adapters",
        "arrays",
        "augmenters",
        "classes",
        "engines",
        "errors",
        "metrics",
        "plan",
        "reading",
        "results",
        "samplers",
        "sources",
        "tfrecord",
        "writer",
    }


@pytest.mark.parametrize("name", [name for name in dir(covey) if name != "__version__"])
def test_public_names_are_documented(name):
    assert getattr(covey, name).__doc__


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'flock'"):
        covey.flock  # noqa: B018


# What an import loads.


def test_import_loads_numpy_at_most():
    top = {module.partition(".")[0] for module in loaded_by("pass")}
    assert top <= {"covey", "importlib", "typing", "numpy"} | set(sys.stdlib_module_names)


def test_use_imports_no_framework():
    loaded = loaded_by(
        "f = covey.Features({'x': 'int64'}); f.decode(f.encode({'x': 1})); covey.RecordReader; "
        "covey.reading; covey.open; covey.write; covey.verify"
    )
    frameworks = {"tensorflow", "torch", "jax", "ray", "keras", "PIL", "fsspec", "pandas"}
    assert not frameworks & loaded


@pytest.mark.parametrize(
    ("statement", "limit", "excluded"),
    [
        (
            "covey.open",
            51,
            (
                *(
                    "writing",
                    "sources",
                    "shuffle",
                    "maintenance",
                    "view",
                    "cli",
                    "compat",
                    "metrics",
                ),
                *("results", "_threads", "_progress", "_locks"),
            ),
        ),
        ("import covey.plan", 15, ("schema", "index", "storage", "tfrecord")),
        ("import covey.classes", 5, ("index",)),
    ],
)
def test_an_import_loads_what_it_needs(statement, limit, excluded):
    loaded = sorted(each for each in loaded_by(statement) if each.partition(".")[0] == "covey")
    assert not [each for each in loaded if each.split(".")[1:2] and each.split(".")[1] in excluded]
    assert len(loaded) <= limit, loaded


def test_files_that_open_and_batches_run(tmp_path):
    """A reader of CONTRIBUTING who follows the call reads these files."""
    example = {"x": [0.5, 2.0], "label": 0}
    covey.write([example] * 8, tmp_path / "a", split="train", label="label", progress=False)
    files = set()

    def run(*, profile=None):
        sys.setprofile(profile)
        try:
            with covey.open(tmp_path / "a", split="train") as ds:
                next(iter(ds.batches(1, 4)))
        finally:
            sys.setprofile(None)

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            files.add(path)

    run()  # imports
    run(profile=note)
    assert 10 < len(files) <= 28, sorted(files)


# The import graph.


def map_of_contributing() -> list[str]:
    """Return the names in the map of CONTRIBUTING.md, in order."""
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    block = re.search(r"## The map\n.*?```\n(.*?)```", text, re.DOTALL)[1]
    return [line.split()[0] for line in block.splitlines()]


def run_time_nodes(tree):
    """Yield the nodes of a module without those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_time_nodes(node)


def import_graph() -> dict[str, set[str]]:
    """Return the top-level modules and packages that each of them imports at run time."""
    graph = defaultdict(set)
    for module, tree in MODULES.items():
        unit = module.partition(".")[0]
        for node in run_time_nodes(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "covey":
                graph[unit].update(each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covey."):
                graph[unit].add(node.module.split(".")[1])
            elif isinstance(node, ast.Import) and any(
                each.name.partition(".")[0] == "covey" for each in node.names
            ):
                graph[unit].add("__init__")
    return graph


def test_the_map_is_complete():
    units = {module.partition(".")[0] for module in MODULES} - {"__init__", "__main__"}
    listed = map_of_contributing()
    assert sorted(listed) == sorted(units)


def test_imports_point_upward_in_the_map():
    position = {name: number for number, name in enumerate(map_of_contributing())}
    graph = import_graph()
    downward = [
        f"{unit} imports {imported}"
        for unit in position
        for imported in graph[unit] - {unit, "_core"}
        # The command line is last, and may import all of covey.
        if position.get(imported, len(position)) > position[unit] and unit != "cli"
    ]
    assert downward == []


def test_no_two_classes_share_a_name():
    places = defaultdict(list)
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# Errors.


def test_the_error_tree_is_complete():
    drawn = inspect.getdoc(errors)
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.CoveyError)
    ]
    assert all(kind.__name__ in drawn for kind in kinds)


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.CoveyError)
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_error_can_be_pickled_and_copied(kind):
    fields = {"key": "a", "examples": (1, 2)} if kind is errors.DuplicateKeyError else {}
    error = kind("broken", path="a", remedy="write it again", **fields)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), vars(again)) == (str(error), vars(error))


# The tests.

TESTS = Path(__file__).parents[1]
UNIT_REQUIREMENTS = {"covey", "hypothesis", "numpy", "pytest", "tqdm"}


def test_unit_tests_need_numpy_only():
    """``make check`` loads no framework, also not in the helpers that the unit tests import."""
    pending = sorted(TESTS.glob("unit/*.py"))
    seen = set(pending)
    for path in pending:
        module = ast.parse(path.read_text())
        for node in module.body if path.parent.name == "helpers" else ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            else:
                continue
            for name in {each.partition(".")[0] for each in names} - {*sys.stdlib_module_names}:
                found = [TESTS / kind / f"{name}.py" for kind in ("helpers", "unit")]
                local = next((each for each in found if each.exists()), None)
                if local is None:
                    assert name in UNIT_REQUIREMENTS, f"{path.name} imports {name}"
                elif local not in seen:
                    seen.add(local)
                    pending.append(local)
