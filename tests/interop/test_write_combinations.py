"""Any combination of options gives the same files, however the write runs.

COVEY_WRITE_CASES is the number of random combinations; without it they are the same in every run.
"""

import os

import pytest
from engines import ThreadEngine
from hypothesis import given, settings
from write_cases import Started, in_parts, locally, write_cases

from covey.engines import Processes

CASES = int(os.environ.get("COVEY_WRITE_CASES", "200"))


@pytest.fixture(scope="module")
def processes():
    with Processes(workers=2).start() as pool:
        yield Started(pool, 3)


pytestmark = pytest.mark.usefixtures("no_fsync_module")


@pytest.fixture(scope="module")
def no_fsync_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@given(case=write_cases())
@settings(max_examples=CASES, derandomize="COVEY_WRITE_CASES" not in os.environ)
def test_same_files(tmp_path_factory, processes, case):
    directory = tmp_path_factory.mktemp("same")
    expected = case.run(directory / "local", locally())
    ways = {
        "workers": locally(workers=2),
        "threads": locally(engine=ThreadEngine(2)),
        "processes": locally(engine=processes),
        "parts": in_parts(3),
    }
    for way, run in ways.items():
        assert case.run(directory / way, run) == expected, way
