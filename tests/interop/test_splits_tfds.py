"""Split strings select the records that TFDS selects, and are rejected when TFDS rejects them.

A slice without records is rejected too, unless the split has none; TFDS returns no examples.
"""

import pytest
import tensorflow_datasets as tfds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey.errors import DatasetError
from covey.splits import parse_split, resolve_split

SPLITS = {"train": (30, 0, 30, 41), "test": (7,), "my-split_2": (1, 1, 1), "0": (), "é": (2,)}

# fmt: off
VALID = [
    "train", "test", "my-split_2", "0", "é", "all", "train[:80%]", "train[25%:75]",
    "train[25:75%]", "train[0.5%:99.5%]", "train[-10%:]", "train[:-10%]", "test[50%:]",
    "my-split_2[:50%]", "0[:0]", "train[100:]", "train[-101:]", "train[-0:]", "train[:-1]",
    "train[10:20]", "train[1_0:2_0]", "train[007:]", "train[:٣]", "train[0shard]",
    "train[-1shard]", "0[0shard]", "train[:2shard]", "train[2:3shard]", "train[1shard:3]",
    "train[-2shard:]", "train[:0shard]", "train[:10]+train[90:]", "train+test", "train + test",
    "train\t+\n test[:3]+test", "all+test[:1]", "train\n",
]

EMPTY = [
    "test[:7.142857%]", "train[101:]", "train[:0]", "train[:-101]", "train[50:10]",
    "train[75%:25%]", "train[1shard]", "train[9shard:]", "train[3shard:1shard]",
]

INVALID = [
    "", " train", "train ", "train[ :3]", "nix", "Train", "train[]", "train[::]", "train[:3:]",
    "train[1:2:3]", "train[5]", "train[%:]", "train[:3", "[:3]", "train[:3][:2]", "train[:3]x",
    "train[:1.5]", "train[:1.2.3%]", "train[:.%]", "train[:1__0]", "train[:--1]", "train[:1e1%]",
    "train[:3%%]", "train[:3shards]", "train[:102]", "train[:101%]", "train[-100.5%:]", "0[:1]",
    f"train[:{'9' * 400}%]", f"train[:{'9' * 5000}]", "all[:50%]", "all+nix", "train+", "+train",
    "train,test", "tfds.Split.TRAIN",
]
# fmt: on


def resolved_by_tfds(spec, splits):
    """Return the records that TFDS selects; None if it rejects the string, or a slice is empty."""
    infos = {
        name: tfds.core.SplitInfo(name=name, shard_lengths=list(shards), num_bytes=0)
        for name, shards in splits.items()
    }
    try:
        instructions = tfds.core.ReadInstruction.from_spec(spec).to_absolute(infos)
    except (ValueError, NotImplementedError):
        return None
    chunks = []
    for each in instructions:
        begin = each.from_ or 0
        end = sum(splits[each.splitname]) if each.to is None else each.to
        if begin >= end and sum(splits[each.splitname]):
            return None
        chunks.append((each.splitname, range(begin, max(begin, end))))
    return tuple(chunks)


def resolve(spec, splits):
    return resolve_split(parse_split(spec, splits, "birds"), splits, "birds")


def resolved(spec, splits):
    try:
        return resolve(spec, splits)
    except DatasetError:
        return None


@pytest.mark.parametrize("spec", VALID)
def test_records_are_those_of_tfds(spec):
    assert resolve(spec, SPLITS) == resolved_by_tfds(spec, SPLITS)


@pytest.mark.parametrize("spec", [*INVALID, *EMPTY], ids=lambda spec: spec[:20])
def test_strings_that_tfds_rejects_are_rejected(spec):
    assert resolved_by_tfds(spec, SPLITS) is None
    with pytest.raises(DatasetError) as caught:
        resolve(spec, SPLITS)
    assert (caught.value.path, caught.value.option, caught.value.found) == ("birds", "split", spec)


numbers = st.one_of(
    st.integers(-12, 12).map(str),
    st.integers(-110, 110).map(str),
    st.floats(-101, 101).map(lambda number: f"{number:.3f}"),
)
units = st.sampled_from(["", "", "%", "%", "shard"])
bounds = st.one_of(st.just(""), st.builds("{}{}".format, numbers, units))
selectors = st.one_of(
    st.just(""),
    st.builds("[{}:{}]".format, bounds, bounds),
    st.builds("[{}]".format, bounds),
    st.text("0123456789-_.%:[] shard\n", max_size=8).map("[{}]".format),
    st.text("0123456789-_.%:[] shard\n", max_size=4),
)
names = st.sampled_from(["train", "train", "test", "my-split_2", "0", "all", "nix"])
plus = st.sampled_from(["+", " + ", "+\n", "\t+"])


@st.composite
def specs(draw):
    terms = draw(st.lists(st.tuples(names, selectors).map("".join), min_size=1, max_size=3))
    spec = terms[0]
    for term in terms[1:]:
        spec += draw(plus) + term
    return spec


shard_lists = st.lists(st.integers(0, 50), max_size=6).map(tuple)
datasets = st.dictionaries(
    st.sampled_from(["train", "test", "my-split_2", "0"]), shard_lists, min_size=1
)


@settings(max_examples=150, deadline=None)
@given(specs(), datasets)
@example("train[:50%]", {"train": (1,)})  # a half is rounded to the even neighbour
@example("train[:50%]", {"train": (3,)})
@example("all", {"test": (1,), "train": (2,)})
def test_any_string_selects_the_records_of_tfds(spec, splits):
    assert resolved(spec, splits) == resolved_by_tfds(spec, splits)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_resolved_or_rejected_as_by_tfds(spec):
    assert resolved(spec, SPLITS) == resolved_by_tfds(spec, SPLITS)


def test_a_split_named_all():
    splits = {"all": (2,), "train": (3,)}
    infos = [tfds.core.SplitInfo(name=name, shard_lengths=[2], num_bytes=0) for name in splits]
    assert tfds.core.SplitDict(infos)["all"].name == "all"
    assert resolve("all", splits) == (("all", range(2)),)


def test_constants_of_tfds_are_strings():
    assert resolve(tfds.Split.TEST, SPLITS) == (("test", range(7)),)
