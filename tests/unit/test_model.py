"""A stateful model: write, append, overwrite, open, select and draw, against a dict of examples."""

import itertools
import os
import shutil
import tempfile
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import covey
from covey.errors import DatasetError, DatasetExistsError

SPLITS = st.sampled_from(["train", "test"])
SPECIES = st.sampled_from(["owl", "wren", "crow", "gull"])
EXAMPLES = st.lists(st.tuples(st.integers(-9, 9), st.binary(max_size=6), SPECIES), min_size=1)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "shuffle": st.booleans(),
        "sort_by_class": st.booleans(),
        "seed": st.integers(0, 3),
        "shards": st.integers(1, 4),
        "memory_limit": st.sampled_from([1, 1000, 1 << 20]),
        "workers": st.sampled_from([1, 2]),
    },
)


class Model(RuleBasedStateMachine):
    """A dataset directory, and the examples that each split must have."""

    @initialize(compression=st.sampled_from([None, "GZIP"]))
    def start(self, compression):
        self.directory = tempfile.mkdtemp()
        self.compression = compression
        self.splits = {}
        self.patch = mock.patch.object(os, "fsync", return_value=None)
        self.patch.start()

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.stop()
            shutil.rmtree(self.directory, ignore_errors=True)

    def write(self, examples, split, form="items", **options):
        names = ("size", "song", "species")
        if form == "columns":
            columns = map(list, zip(*examples, strict=True))
            data = dict(zip(names, columns, strict=True))
        else:
            data = iter([dict(zip(names, example, strict=True)) for example in examples])
        return covey.write(
            data,
            os.path.join(self.directory, "birds"),
            split=split,
            label="species",
            compression=self.compression,
            progress=False,
            **options,
        )

    def open(self, split):
        return covey.open(os.path.join(self.directory, "birds"), split=split)

    def read(self, split):
        """Return the examples of a split, with the names of their classes."""
        with self.open(split) as dataset:
            names = self.names(dataset)
            found = [dataset[i] for i in range(len(dataset))]
        return [(int(e["size"]), bytes(e["song"]), names[int(e["species"])]) for e in found]

    def names(self, dataset):
        return dataset.features["species"].names

    @rule(
        split=SPLITS,
        examples=EXAMPLES,
        mode=st.sampled_from(["overwrite", "append"]),
        form=st.sampled_from(["items", "columns"]),
        options=OPTIONS,
    )
    def write_split(self, split, examples, mode, form, options):
        known = self.splits.get(split, []) if mode == "append" else []
        written = self.write(examples, split, form, mode=mode, **options)
        self.splits[split] = [*known, *examples]
        assert written.records == len(self.splits[split])
        assert written.classes == Counter(species for *_, species in self.splits[split])

    @rule(
        examples=EXAMPLES,
        mode=st.sampled_from(["overwrite", "append"]),
        form=st.sampled_from(["items", "columns"]),
        by=st.sampled_from([None, "species"]),
        options=OPTIONS,
    )
    def write_two_splits(self, examples, mode, form, by, options):
        hold_out = covey.HoldOut(fraction=0.5, by=by, split="test")
        known = self.splits if mode == "append" else {}
        expected = Counter(itertools.chain(examples, *known.values()))
        try:
            self.write(examples, "train", form, mode=mode, hold_out=hold_out, **options)
        except DatasetError as error:  # one of the splits would be empty
            if error.option != "hold_out.fraction":
                raise
            return
        self.splits = {split: self.read(split) for split in ("train", "test")}
        train, test = map(Counter, self.splits.values())
        assert train + test == expected
        assert train >= Counter(known.get("train", []))
        assert test >= Counter(known.get("test", []))

    @precondition(lambda self: self.splits)
    @rule(examples=EXAMPLES)
    def write_to_an_existing_split(self, examples):
        split = next(iter(self.splits))
        with pytest.raises(DatasetExistsError) as caught:
            self.write(examples, split)
        assert caught.value.path == os.path.join(self.directory, "birds")

    @precondition(lambda self: self.splits)
    @rule(species=SPECIES, data=st.data())
    def select_a_class(self, species, data):
        split = data.draw(st.sampled_from(sorted(self.splits)))
        expected = sorted(each[:2] for each in self.splits[split] if each[2] == species)
        with self.open(split) as dataset:
            if species not in self.names(dataset):
                assert not expected
                return
            ids = np.flatnonzero(dataset.labels == self.names(dataset).index(species))
            found = [dataset[int(each)] for each in ids]
            assert sorted((int(e["size"]), bytes(e["song"])) for e in found) == expected

    @precondition(lambda self: self.splits)
    @rule(step=st.integers(0, 50), seed=st.integers(0, 3), data=st.data())
    def batches_are_balanced(self, step, seed, data):
        split = data.draw(st.sampled_from(sorted(self.splits)))
        examples = self.splits[split]
        classes = len({species for *_, species in examples})
        smallest = min(Counter(species for *_, species in examples).values())
        with self.open(split) as dataset:
            plan = dataset.batches(classes, smallest, seed=seed).plan
            ids = plan.batch(step)
            counts = Counter(np.asarray(dataset.labels)[np.ravel(ids)].tolist())
            assert [*counts.values()] == [smallest] * classes
            assert len(set(np.ravel(ids).tolist())) == np.size(ids)

    @invariant()
    def splits_have_their_examples(self):
        for split, examples in getattr(self, "splits", {}).items():
            assert sorted(self.read(split)) == sorted(examples)


Model.TestCase.settings = settings(max_examples=15, stateful_step_count=6, deadline=None)
TestModel = Model.TestCase
