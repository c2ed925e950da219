"""The extras of pyproject.toml list what the code imports, and nothing else."""

import ast
import re
import sys
from pathlib import Path

import pytest

import covey

tomllib = pytest.importorskip("tomllib", reason="since Python 3.11")

SOURCE = Path(covey.__file__).parent
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# The modules of each extra.
MODULES = {
    "images": ["schema/pixels.py", "schema/images.py"],
    "audio": ["schema/audio.py"],
    "parquet": ["sources/arrow.py"],
    "tensorflow": ["adapters/tensorflow.py"],
    "keras": ["adapters/keras.py"],
    "tfds": ["samplers/tfds.py"],
    "torch": ["adapters/torch.py", "adapters/torch_device.py", "adapters/torch_samplers.py"],
    "jax": ["adapters/jax.py"],
    "ray": ["adapters/ray.py", "writing/datasink.py"],
    "remote": ["storage"],
    "cli": ["cli"],
    "view": ["view"],
}

# Names of imports that differ from those of distributions.
IMPORTS = {
    "font-roboto": "font_roboto",
    "pillow": "PIL",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-datasets": "tensorflow_datasets",
}

# Distributions that other distributions of the extra import, or that the documentation uses.
INDIRECT = {
    "tfds": {"importlib_resources", "tensorflow_datasets", "tensorflow"},
    "torch": {"torchdata"},
    "remote": {"s3fs"},
    "cli": {"shtab"},
    "keras": set(),
}

# Distributions of another extra, or of none, that the modules import if they are installed.
OTHER_EXTRA = {
    "keras": {"tf_keras"},
}


def imports_of(path):
    """Return the top-level names that a file or package imports, those of other projects."""
    files = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    assert files
    found = set()
    for node in (node for file in files for node in run_time(ast.parse(file.read_text()))):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and node.args:
            is_import = ast.unparse(node.func).endswith(
                ("import_module", "import_framework", "find_spec")
            )
            argument = node.args[0]
            if is_import and isinstance(argument, ast.Constant):
                names = [argument.value]
        found |= {name.partition(".")[0] for name in names}
    return found - set(sys.stdlib_module_names) - {"covey"}


def run_time(tree):
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_time(node)


def listed(requirements):
    """Return the imports of requirements, with those of the extras that they contain."""
    found = set()
    for each in requirements:
        if each.startswith("covey["):
            for extra in each[6:].partition("]")[0].split(","):
                found |= listed(EXTRAS[extra])
            continue
        name = re.match(r"[\w.-]+", each)[0]
        found.add(IMPORTS.get(name, name))
    return found


ALWAYS = listed(PROJECT["dependencies"])


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_lists_what_its_modules_import(extra):
    imported = set().union(*(imports_of(SOURCE / each) for each in MODULES[extra])) - ALWAYS
    missing = imported - listed(EXTRAS[extra]) - OTHER_EXTRA.get(extra, set())
    assert not missing


@pytest.mark.parametrize("extra", [each for each in EXTRAS if each != "all"])
def test_every_extra_is_for_code_that_exists(extra):
    assert extra in MODULES, f"{extra} has no modules"
    imported = set().union(*(imports_of(SOURCE / each) for each in MODULES[extra]))
    assert listed(EXTRAS[extra]) <= imported | INDIRECT.get(extra, set())


def test_all_is_all():
    assert listed(EXTRAS["all"]) == set().union(*(listed(EXTRAS[each]) for each in MODULES))


def test_the_documentation_lists_the_extras():
    page = (ROOT / "docs" / "index.md").read_text()
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == set(EXTRAS)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda f: f.name)
def test_examples_name_what_they_need(file):
    """The docstring of a program has the command that installs its imports."""
    tree = ast.parse(file.read_text())
    if not any(isinstance(node, ast.If) for node in tree.body):
        return  # a module of the programs
    pending, imported = [file], set()
    for path in pending:
        found = imports_of(path)
        local = [
            path.parent / f"{name}.py" for name in found if (path.parent / f"{name}.py").exists()
        ]
        imported |= found - {each.stem for each in local}
        pending += [each for each in local if each not in pending]
    command = re.search(r"pip install (.*?)(\n\n|$)", ast.get_docstring(tree), re.DOTALL)
    assert command, "the docstring has no command"
    requirements = re.findall(r"[\w.-]+(?:\[[\w,]+\])?", command[1])
    assert imported - ALWAYS <= listed(requirements)
