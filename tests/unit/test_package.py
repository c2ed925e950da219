"""What the package promises before it does anything."""

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey import errors

SOURCE = Path(covey.__file__).parent

# The way of the data; a module may import only from those before it.
FLOW = [
    "terminal",
    "errors",
    "urls",
    "untrusted",
    "storage",
    "records",
    "features",
    "progress",
    "pipeline",
    "streaming",
    "labels",
    "metadata",
    "sources",
    "shuffle",
    "partition",
    "shards",
    "splits",
    "index",
    "classes",
    "plan",
    "indexing",
    "writing",
    "gather",
    "loader",
    "dataset",
    "checking",
    "writer",
    "contact_sheet",
    "adapters",
    "augmenters",
    "samplers",
    "cli",
]


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_public_names():
    assert covey.__all__ == [
        "StoragePermissionError",
        "Block",
        "ClassLabel",
        "ClassTable",
        "ClosedError",
        "CommittedError",
        "CorruptRecordError",
        "CoveyError",
        "Dataset",
        "DatasetError",
        "DatasetExistsError",
        "DuplicateKeyError",
        "ExampleError",
        "Feature",
        "FeatureError",
        "Features",
        "FileChangedError",
        "StorageNotFoundError",
        "FormatError",
        "Image",
        "IndexResult",
        "Info",
        "SkippedExample",
        "Loader",
        "PlanError",
        "Problem",
        "Ragged",
        "RaggedArray",
        "RecordReader",
        "RecordWriter",
        "RepairResult",
        "Report",
        "Shard",
        "Skipped",
        "SkippedRecordsWarning",
        "SmallClassesWarning",
        "Source",
        "SourceError",
        "Sparse",
        "SparseArray",
        "SparseBatch",
        "Steps",
        "StorageError",
        "StringArray",
        "Tensor",
        "WriteResult",
        "info",
        "build_index",
        "open",
        "open_source",
        "read_batches",
        "repair",
        "verify",
        "write",
    ]
    assert dir(covey) == covey.__all__


@pytest.mark.parametrize("name", covey.__all__)
def test_public_name_is_there_and_documented(name):
    assert getattr(covey, name).__doc__


@pytest.mark.parametrize("name", ["adapters", "augmenters", "plan", "samplers", "writer"])
def test_modules_are_there_by_their_names(name):
    assert run_python(f"import covey; print(covey.{name}.__name__)").strip() == f"covey.{name}"


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'flock'"):
        covey.flock  # noqa: B018


def test_import_loads_numpy_at_most():
    code = (
        "import sys, json; before = set(sys.modules); import covey; "
        "print(json.dumps(sorted({m.split('.')[0] for m in set(sys.modules) - before})))"
    )
    loaded = set(json.loads(run_python(code)))
    assert loaded <= {"covey", "importlib", "typing", "numpy"} | set(sys.stdlib_module_names)


def test_using_covey_imports_no_framework():
    code = (
        "import sys, covey; f = covey.Features({'x': 'int64'}); f.decode(f.encode({'x': 1})); "
        "covey.RecordReader; covey.reading.read_batches; "
        "print(sorted({'tensorflow', 'torch', 'jax', 'ray', 'keras', 'PIL', 'fsspec', 'pandas'} "
        "& set(sys.modules)))"
    )
    assert run_python(code).strip() == "[]"


def test_every_framework_is_really_installed():
    code = (
        "import fsspec, jax, keras, PIL, ray, s3fs, tensorflow, tensorflow_datasets, torch; "
        "print(torch.__version__.split('+')[0])"
    )
    assert run_python(code).split()[-1] == "2.13.0"


def stage(module: str) -> int | None:
    parts = module.split(".")
    return FLOW.index(parts[1]) if len(parts) > 1 and parts[1] in FLOW else None


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_point_upstream(path):
    module = ".".join(("covey", *path.relative_to(SOURCE).with_suffix("").parts))
    here = stage(module)
    if here is None:
        return
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not is_type_checking(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("covey."):
            there = stage(node.module)
            assert there is None or there <= here, f"{module} imports {node.module}"
        # All of covey is what is downstream, too; the command line is the end of it.
        if isinstance(node, ast.Import) and FLOW[here] != "cli":
            assert "covey" not in [each.name for each in node.names], f"{module} imports covey"


def test_error_tree_is_as_drawn():
    drawn = inspect.getdoc(errors)
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.CoveyError)
    ]
    assert all(kind.__name__ in drawn for kind in kinds)


def test_errors_survive_pickling():
    import pickle

    error = covey.errors.CorruptRecordError("broken", name="a", record=3, offset=7)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.name, again.record, again.offset) == ("broken", "a", 3, 7)


@pytest.mark.parametrize("module", ["records", "features"])
def test_all_of_a_package_is_there(module):
    package = importlib.import_module(f"covey.{module}")
    assert sorted(package.__all__) == sorted(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)
