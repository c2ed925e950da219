"""Fixtures of several modules of tests."""

import os
from contextlib import ExitStack
from functools import lru_cache, partial

import pytest
import snippets
from loaded import make
from written import as_items, fresh_process

from covey.sources import KINDS

# They have no doctests, and --doctest-modules would import both as the module `conftest`.
collect_ignore = ["conftest.py", "browser/conftest.py"]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return a function from the kind of a dataset to the dataset."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("loader")
        yield lru_cache(None)(lambda kind: stack.enter_context(make(directory / kind, kind)))


@pytest.fixture(scope="session")
def ds(made):
    """Return the dataset that most tests use."""
    return made("numbers")


@pytest.fixture
def no_fsync(monkeypatch):
    """Do not sync files to disk: the tests write many small datasets."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the directory of covey's cache, which is that of the test alone."""
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def run():
    """Return a function that runs functions in a process without threads of frameworks."""
    with fresh_process() as call:
        yield call


@pytest.fixture(params=["items", "columns"])
def form(request):
    """A function that returns columns as they are, or as an iterator of items."""
    return as_items if request.param == "items" else dict


@pytest.fixture
def write_file(tmp_path):
    """Return a function that writes a file of a source, and returns its path."""

    def write(content, name="birds.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def run_page(tmp_path, monkeypatch, capsys):
    """Return a function that runs the snippets of a page in a directory with photos/."""
    before = dict(KINDS)
    snippets.draw_photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield partial(snippets.run, capsys=capsys)
    KINDS.clear()  # without the kinds of sources that a page registers
    KINDS.update(before)
