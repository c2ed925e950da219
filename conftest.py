"""Settings of all tests, doctests included."""

import atexit
import os
import random
import shutil
import tempfile
from collections import defaultdict

# Before any test imports TensorFlow: no log output, no GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Tests do not use the cache directory of the user.
os.environ["COVEY_CACHE"] = tempfile.mkdtemp(prefix="covey-test-cache-")
atexit.register(shutil.rmtree, os.environ["COVEY_CACHE"], ignore_errors=True)

import pytest
from hypothesis import HealthCheck, settings

import covey

# The same examples in every run, and no dependence on the speed of the machine.
settings.register_profile(
    "covey",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("covey")


def pytest_addoption(parser):
    parser.addoption("--order", metavar="SEED", help="run modules and their tests in random order")


def pytest_collection_modifyitems(config, items):
    """Shuffle the modules, and the tests of each module, which share its fixtures."""
    seed = config.getoption("--order")
    if seed is None:
        return
    generator = random.Random(seed)
    position = defaultdict(generator.random)
    keys = {item: (position[item.path], generator.random()) for item in items}
    items.sort(key=keys.__getitem__)


@pytest.fixture(autouse=True)
def _docstring_names(request, doctest_namespace, tmp_path_factory, monkeypatch):
    """Define covey's public names in docstrings, which run in a temporary directory."""
    if isinstance(request.node, pytest.DoctestItem):
        names = set(covey.__all__) - {"open"}  # the builtin
        doctest_namespace.update({name: getattr(covey, name) for name in names})
        monkeypatch.chdir(tmp_path_factory.mktemp("docstring"))
