"""Any combination of options gives the same files when Ray writes them.

COVEY_RAY_WRITE_CASES is the number of combinations.
"""

import os

import pytest
import write_cases
from clusters import local_ray
from hypothesis import given, settings
from write_cases import Started, locally

from covey.engines import Ray

CASES = int(os.environ.get("COVEY_RAY_WRITE_CASES", "10"))


@pytest.fixture(scope="module")
def engine():
    with local_ray(write_cases), Ray().start() as pool:
        yield Started(pool, 2)


@given(case=write_cases.write_cases())
@settings(max_examples=CASES)
def test_same_files(tmp_path_factory, engine, case):
    directory = tmp_path_factory.mktemp("same")
    expected = case.run(directory / "local", locally())
    assert case.run(directory / "ray", locally(engine=engine)) == expected
