"""Datasets that several modules of tests load batches from; a module may have others of its own."""

from functools import cache

import pytest
from loaded import make


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("loader")


@pytest.fixture(scope="module")
def made(directory):
    """Datasets by their kind."""
    return cache(lambda kind: make(directory / kind, kind))


@pytest.fixture(scope="module")
def ds(made):
    return made("numbers")
