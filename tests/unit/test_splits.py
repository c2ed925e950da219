"""Split strings: the records that TFDS finds, and a word for what it refuses."""

import json
import re

import pytest
import tensorflow_datasets as tfds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey import Features, RecordWriter
from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import DatasetError
from covey.schema.tfds import features_to_tfds
from covey.splits import SplitSlice, parse_split

SPLITS = {"train": (30, 0, 30, 41), "test": (7,), "my-split_2": (1, 1, 1), "0": (), "é": (2,)}

# Every one of them is taken.
SOUND = [
    "train",
    "test",
    "my-split_2",
    "0",
    "é",
    "all",
    "train[:80%]",
    "train[33%:66%]",
    "train[25%:75]",
    "train[25:75%]",
    "train[0.5%:99.5%]",
    "train[-10%:]",
    "train[:-10%]",
    "train[-100%:100%]",
    "test[50%:]",
    "test[:50%]",
    "test[:7.142857%]",
    "my-split_2[:50%]",
    "0[:50%]",
    "0[:0]",
    "train[100:]",
    "train[:100]",
    "train[-101:]",
    "train[-0:]",
    "train[:-1]",
    "train[10:20]",
    "train[1_0:2_0]",
    "train[101:]",
    "train[:0]",
    "train[:-101]",
    "train[007:]",
    "train[:٣]",
    "train[50:10]",
    "train[75%:25%]",
    "train[-10:-20]",
    "train[0shard]",
    "train[1shard]",
    "train[-1shard]",
    "train[-4shard]",
    "train[-6shard]",
    "train[9shard]",
    "0[0shard]",
    "train[:2shard]",
    "train[2:3shard]",
    "train[1shard:3]",
    "train[1shard:3%]",
    "train[2%:3shard]",
    "train[-2shard:]",
    "train[:-1shard]",
    "train[:0shard]",
    "train[:-6shard]",
    "train[9shard:]",
    "train[3shard:1shard]",
    "train[:10]+train[90:]",
    "train+test",
    "train + test",
    "train\t+\n test[:3]+test",
    "test+train+test",
    "all+test[:1]",
    "all+all",
    "train\n",
]

# None of them is.
UNSOUND = [
    "",
    " train",
    "train ",
    "train [:3]",
    "train[ :3]",
    "train[:3 ]",
    "nix",
    "nix[:3]",
    "Train",
    "train[]",
    "train[:]",
    "train[::]",
    "train[:3:]",
    "train[1:2:3]",
    "train[5]",
    "train[5%]",
    "train[1.0shard]",
    "train[shard]",
    "train[%:]",
    "train[:3",
    "train:3]",
    "train]",
    "[:3]",
    "train[:3][:2]",
    "train[:3]x",
    "train[:1.5]",
    "train[:1.5shard]",
    "train[:1.2.3%]",
    "train[:.%]",
    "train[:_]",
    "train[:1__0]",
    "train[:--1]",
    "train[:+1]",
    "train[:1e1%]",
    "train[:x]",
    "train[:3%%]",
    "train[:3shards]",
    "train[:102]",
    "train[-102:]",
    "train[102:]",
    "train[:101%]",
    "train[-100.5%:]",
    "0[:1]",
    "0[-1:]",
    f"train[:{'9' * 400}%]",
    f"train[:{'9' * 5000}]",
    "all[:50%]",
    "all[:3]",
    "all+nix",
    "train+",
    "+train",
    "train++test",
    "train,test",
    "train&test",
    "tfds.Split.TRAIN",
]


def resolved_by_tfds(spec, splits):
    """Where TFDS finds the records, or None if it refuses."""
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
        chunks.append(SplitSlice(each.splitname, begin, max(begin, end)))
    return tuple(chunks)


def resolved(spec, splits):
    try:
        return parse_split(spec, splits, "birds")
    except DatasetError:
        return None


@pytest.mark.parametrize("spec", SOUND)
def test_records_are_those_of_tfds(spec):
    assert parse_split(spec, SPLITS, "birds") == resolved_by_tfds(spec, SPLITS)


@pytest.mark.parametrize("spec", UNSOUND, ids=lambda spec: spec[:20])
def test_refused_as_tfds_refuses(spec):
    assert resolved_by_tfds(spec, SPLITS) is None
    with pytest.raises(DatasetError, match=r"^birds: split '"):
        parse_split(spec, SPLITS, "birds")


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


@settings(max_examples=500, deadline=None)
@given(specs(), datasets)
@example("train[:50%]", {"train": (1,)})  # a half is rounded to the even neighbour
@example("train[:50%]", {"train": (3,)})
@example("all", {"test": (1,), "train": (2,)})
def test_any_string_of_any_dataset_is_what_tfds_says(spec, splits):
    assert resolved(spec, splits) == resolved_by_tfds(spec, splits)


@settings(deadline=None)
@given(st.text(max_size=12))
def test_no_string_raises_anything_else(spec):
    assert resolved(spec, SPLITS) == resolved_by_tfds(spec, SPLITS)


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """A dataset of TFDS' layout whose examples are numbered, from split to split."""
    directory, features = tmp_path_factory.mktemp("numbers"), Features({"x": "int64"})
    splits = {"train": (5, 3, 9), "test-2": (4,)}
    info = DatasetInfo("numbers", splits=tuple(SplitInfo(*each, 0) for each in splits.items()))
    number = 0
    for split in info.splits:
        for shard, length in zip(split.shard_names(info.name), split.shard_lengths, strict=True):
            with RecordWriter(directory / shard) as writer:
                for _ in range(length):
                    writer.write(features.encode({"x": number}))
                    number += 1
    content, _ = features_to_tfds(features)
    (directory / "features.json").write_text(json.dumps(content))
    (directory / "dataset_info.json").write_text(info.to_json())
    return tfds.builder_from_directory(str(directory))


@pytest.mark.parametrize(
    "spec",
    [
        "train",
        "all",
        "test-2[1:]+train[:6]",
        "train[33%:-20]",
        "train[:3]+train[-3:]",
        "train[1shard]",
        "train[-2shard:]+test-2[:50%]",
    ],
)
def test_tfds_reads_these_records(builder, spec):
    options = tfds.ReadConfig(interleave_cycle_length=1)
    read = [int(each["x"]) for each in builder.as_dataset(split=spec, read_config=options)]
    splits = {name: info.shard_lengths for name, info in builder.info.splits.items()}
    first = {"train": 0, "test-2": 17}
    assert read == [
        first[each.split] + record
        for each in parse_split(spec, splits, "numbers")
        for record in range(each.begin, each.end)
    ]


def test_a_split_by_its_own_name_whatever_that_is():
    splits = {"all": (2,), "train": (3,)}
    infos = [tfds.core.SplitInfo(name=name, shard_lengths=[2], num_bytes=0) for name in splits]
    assert tfds.core.SplitDict(infos)["all"].name == "all"
    assert parse_split("all", splits, "birds") == (SplitSlice("all", 0, 2),)


def test_a_name_of_tfds_is_a_string():
    assert parse_split(tfds.Split.TEST, SPLITS, "birds") == (SplitSlice("test", 0, 7),)


@pytest.mark.parametrize("spec", [None, b"train", 3, ["train"], ("train", "test"), slice(3)])
def test_no_string(spec):
    expected = f"birds: split is {spec!r} of type {type(spec).__name__}; must be a string"
    with pytest.raises(DatasetError, match=re.escape(expected)):
        parse_split(spec, SPLITS, "birds")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nix", "there is no split 'nix'; the splits are 'train', 'test'"),
        ("train+nix[:3]", "split 'nix[:3]' of 'train+nix[:3]': there is no split 'nix'"),
        ("train[3]", "split 'train[3]' has no meaning; write the name of a split"),
        ("train[:11]", "these are records 0 to 11; must be from -10 to 10: the split has 10"),
        ("train[:101%]", "percents must be from -100 to 100"),
        ("all[:3]", "'all' cannot be sliced; the splits are 'train', 'test'"),
    ],
)
def test_message(spec, message):
    with pytest.raises(DatasetError, match=f"^birds: .*{re.escape(message)}"):
        parse_split(spec, {"train": (4, 6), "test": (1,)}, "birds")


@pytest.mark.parametrize("spec", ["all", "train"])
def test_a_dataset_without_splits(spec):
    with pytest.raises(DatasetError, match=f"there is no split '{spec}'; there are no splits"):
        parse_split(spec, {}, "birds")
