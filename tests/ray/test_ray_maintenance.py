"""covey.verify and covey.build_index in Ray: tests of tests/servers/test_engines_maintenance.py."""

import pytest
import test_engines_maintenance as maintenance
from clusters import local_ray
from test_engines_maintenance import (  # noqa: F401
    _environment,
    directory,
    test_a_lost_worker_is_replaced,
    test_a_missing_shard,
    test_a_relative_path,
    test_a_task_that_fails,
    test_an_error_without_a_location_has_that_of_its_shard,
    test_commands,
    test_dali,
    test_empty_files,
    test_features_are_inferred_from_all_shards,
    test_foreign_files,
    test_images_are_summarized,
    test_index_of_a_dataset,
    test_index_of_a_url,
    test_invalid_label_falls_back_to_none,
    test_one_gzip_member,
    test_problems_are_those_of_this_process,
    test_problems_without_metadata,
    test_the_error_is_that_of_the_first_shard,
    test_the_error_of_the_first_task_is_raised,
    test_valid_dataset,
    test_verify_a_url,
    valid,
)

from covey.engines import Ray


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with local_ray(maintenance):
        yield


@pytest.fixture
def new_engine():
    return Ray()


@pytest.fixture(scope="module")
def engine(_cluster):
    with maintenance.started(Ray()) as found:
        yield found
