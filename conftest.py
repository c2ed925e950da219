"""Settings of all tests, those in docstrings included."""

import atexit
import os
import shutil
import tempfile

# Before TensorFlow is imported by any test: it is a judge here, and should be a quiet one.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Nothing is left in, or taken from, the cache of whoever runs the tests.
os.environ["COVEY_CACHE"] = tempfile.mkdtemp(prefix="covey-test-cache-")
atexit.register(shutil.rmtree, os.environ["COVEY_CACHE"], ignore_errors=True)

import pytest
from hypothesis import HealthCheck, settings

import covey

# The same examples in every run: a test fails because of the code, or not at all.
settings.register_profile(
    "covey",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("covey")


@pytest.fixture(autouse=True)
def _docstring_names(request, doctest_namespace, tmp_path_factory, monkeypatch):
    """Let docstrings use covey's public names, and write files into a folder of their own."""
    if isinstance(request.node, pytest.DoctestItem):
        names = set(covey.__all__) - {"open"}  # which is Python's own everywhere else
        doctest_namespace.update({name: getattr(covey, name) for name in names})
        monkeypatch.chdir(tmp_path_factory.mktemp("docstring"))
