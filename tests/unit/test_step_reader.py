"""Batches by their steps: one by itself, or in another program's loop."""

import numpy as np
import pytest
from loaded import make

from covey.adapters.step_reader import StepReader
from covey.errors import PlanError


@pytest.fixture
def loader(tmp_path):
    with make(tmp_path / "data", "numbers") as dataset:
        yield dataset.batches(4, 2, seed=3)


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_batch_by_its_step_is_that_of_a_loop(loader):
    batches = list(loader.take(5))
    loader.seek(2)
    assert all(same(loader.batch(step), batch) for step, batch in enumerate(batches))
    assert loader.step == 2


def test_a_rank_without_a_batch_in_a_step_is_told(tmp_path):
    with make(tmp_path / "data", "numbers") as dataset:
        loader = dataset.sequential(60, rank=2, world_size=4, mode="independent")
        assert loader.batch(0)[1].shape == (60,)
        other = dataset.sequential(60, rank=3, world_size=4, mode="independent")
        with pytest.raises(PlanError, match="rank 3 has no batch in step 0"):
            other.batch(0)


def test_a_copy_goes_its_own_way(loader):
    first = next(iter(loader))
    copy = loader.copy()
    assert copy.step == 1
    copy.seek(0)
    assert same(next(iter(copy)), first)
    assert loader.step == 1


@pytest.mark.parametrize("steps", [[0, 1, 2, 3], [5, 6, 0, 1, 7, 2], [9, 8, 7], [3, 3, 3]])
def test_a_reader_goes_where_it_is_asked_to(loader, steps):
    reader = StepReader(loader)
    for step in steps:
        assert same(reader[step], loader.batch(step))


def test_a_reader_goes_over_the_end_of_an_epoch(tmp_path):
    with make(tmp_path / "data", "numbers") as dataset:
        loader = dataset.shuffled(70, seed=1)  # 70, 70, 40
        reader = StepReader(loader)
        found = [reader[step] for step in range(7)]
        assert [len(y) for _, y in found] == [70, 70, 40, 70, 70, 40, 70]
        assert all(same(batch, loader.batch(step)) for step, batch in enumerate(found))


def test_many_loops_at_once_are_followed(loader):
    reader = StepReader(loader)
    for step in range(3):
        for begin in range(0, 60, 10):
            assert same(reader[begin + step], loader.batch(begin + step))
