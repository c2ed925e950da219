"""Settings of Ray Data, which all Ray Datasets of a process share."""

import copy

import pytest
import ray.data


@pytest.fixture(scope="module", autouse=True)
def ray_context():
    """Return the context of Ray Data; its changes end with the module."""
    context = ray.data.DataContext.get_current()
    before = copy.deepcopy(context)
    context.enable_progress_bars = False
    yield context
    ray.data.DataContext._set_current(before)
