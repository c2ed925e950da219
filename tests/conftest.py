"""Datasets that several modules of tests load batches from."""

from contextlib import ExitStack
from functools import cache

import pytest
from loaded import make


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a function from the kind of a dataset to the dataset."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("loader")
        yield cache(lambda kind: stack.enter_context(make(directory / kind, kind)))


@pytest.fixture(scope="session")
def ds(made):
    """Return the dataset that most tests use."""
    return made("numbers")
