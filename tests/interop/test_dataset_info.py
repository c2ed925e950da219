"""dataset_info.json: TFDS reads that of covey, and covey preserves that of TFDS."""

import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_datasets.core import naming
from tensorflow_datasets.core.proto import dataset_info_generated_pb2 as proto

from covey import Features, RecordWriter
from covey.dataset_info import DatasetInfo, SplitInfo, check_split_name, dataset_name
from covey.errors import FormatError
from covey.filenames import DEFAULT_TEMPLATE, fill_template
from covey.schema.tfds import features_to_tfds

FEATURES = Features({"x": "int64"})


def write_directory(directory, info, first=0):
    """Write a dataset whose examples are numbered from ``first``, over all splits."""
    for split in info.splits:
        for shard, length in zip(split.shard_names(info.name), split.shard_lengths, strict=True):
            (directory / shard).parent.mkdir(parents=True, exist_ok=True)
            with RecordWriter(directory / shard) as writer:
                for _ in range(length):
                    writer.write(FEATURES.encode({"x": first}))
                    first += 1
    content, _ = features_to_tfds(FEATURES)
    (directory / "features.json").write_text(json.dumps(content))
    (directory / "dataset_info.json").write_text(info.to_json())


def read_split(builder, split):
    options = tfds.ReadConfig(interleave_cycle_length=1)
    return [int(each["x"]) for each in builder.as_dataset(split=split, read_config=options)]


@pytest.mark.parametrize("count", [1, 8, 99_999, 100_000, 1_234_567])
def test_shard_names_of_tfds(count):
    theirs = naming.ShardedFileTemplate(
        data_dir="", dataset_name="birds", split="train", filetype_suffix="tfrecord"
    )
    for number in {0, count // 2, count - 1}:
        expected = theirs.relative_filepath(shard_index=number, num_shards=count)
        assert fill_template(DEFAULT_TEMPLATE, "birds", "train", number, count) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/birds", ("birds", "1.0.0")),
        ("data/birds/", ("birds", "1.0.0")),
        ("data/birds/2.1.0", ("birds", "2.1.0")),
        ("data/birds/2.1", ("dataset_2_1", "1.0.0")),
        ("data/birds/02.1.0", ("dataset_02_1_0", "1.0.0")),
        ("data/sea birds-é.v2", ("sea_birds___v2", "1.0.0")),
        ("data/2024", ("dataset_2024", "1.0.0")),
        ("data/_x", ("dataset__x", "1.0.0")),
        ("data/x/../birds", ("birds", "1.0.0")),
        ("/", ("dataset", "1.0.0")),
        ("/3.2.1", ("dataset", "3.2.1")),
    ],
)
def test_dataset_name(path, expected):
    assert dataset_name(path) == expected
    name, version = expected
    assert naming.is_valid_dataset_and_class_name(name)
    assert str(tfds.core.Version(version)) == version


@pytest.mark.parametrize("name", ["train", "0", "a_b-c", "été", "-x", "ALL", "all2"])
def test_split_names_of_tfds(name):
    check_split_name(name)
    assert tfds.core.splits.AbstractSplit.from_spec(name).split_name == name
    assert naming.ShardedFileTemplate(data_dir="", split=name).split == name


@pytest.mark.parametrize(
    "name", ["", "all", "-", "__", "a b", "a.b", "a+b", "a[1]", "a/b", "../a", "a\n", "\0", None, 3]
)
def test_invalid_split_names(name):
    with pytest.raises(FormatError, match="the name of a split is"):
        check_split_name(name)


@pytest.mark.parametrize(
    "template",
    [
        DEFAULT_TEMPLATE,
        f".covey-train.commit/{DEFAULT_TEMPLATE}",
        "{SPLIT}/data.{FILEFORMAT}-{SHARD_INDEX}-{NUM_SHARDS}",
    ],
)
def test_tfds_reads_every_template(tmp_path, template):
    info = DatasetInfo("birds", splits=(SplitInfo("train", (3, 0, 4), 99, template),))
    write_directory(tmp_path, info)
    builder = tfds.builder_from_directory(tmp_path)
    assert read_split(builder, "train") == list(range(7))
    assert read_split(builder, "train[2:5]") == [2, 3, 4]
    split = builder.info.splits["train"]
    assert [str(path.relative_to(tmp_path)) for path in split.filepaths] == list(
        info.splits[0].shard_names("birds")
    )


def test_info_of_a_directory(tmp_path):
    splits = (SplitInfo("train", (2, 3), 1234), SplitInfo("test", (1,), 0))
    info = DatasetInfo("birds", "2.1.0", "Birds, and\nno bees: é", splits)
    write_directory(tmp_path, info)
    found = tfds.builder_from_directory(tmp_path).info
    assert (found.full_name, found.description) == ("birds/2.1.0", "Birds, and\nno bees: é")
    assert {name: split.shard_lengths for name, split in found.splits.items()} == {
        "train": [2, 3],
        "test": [1],
    }
    assert found.dataset_size == 1234


class Numbers(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset that TFDS prepares."""

    VERSION = tfds.core.Version("3.0.1")
    RELEASE_NOTES = {"3.0.1": "Numbers."}
    name = "numbers"
    pkg_dir_path = None

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description="Some numbers.",
            features=tfds.features.FeaturesDict({"x": np.int64, "y": np.int64}),
            supervised_keys=("x", "y"),
            citation="@misc{none}",
            license="CC0",
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(5):
            yield i, {"x": i, "y": -i}


@pytest.fixture(scope="module")
def made_by_tfds(tmp_path_factory):
    tfds.disable_progress_bar()
    builder = Numbers(data_dir=tmp_path_factory.mktemp("tfds"))
    builder.download_and_prepare()
    return builder.data_path


def test_round_trip_of_a_file_of_tfds(made_by_tfds):
    text = (made_by_tfds / "dataset_info.json").read_text()
    info = DatasetInfo.from_json(text, "x")
    assert info.to_json() == text
    assert {"citation", "moduleName", "supervisedKeys", "releaseNotes"} <= set(info.extra)
    assert [(split.name, split.shard_lengths) for split in info.splits] == [("train", (5,))]
    assert info.splits[0].shard_names(info.name) == ("numbers-train.tfrecord-00000-of-00001",)
    assert dataset_name(made_by_tfds) == (info.name, info.version)


def test_add_a_split_to_a_dataset_of_tfds(made_by_tfds):
    text = (made_by_tfds / "dataset_info.json").read_text()
    more = SplitInfo("test", (2,), 50)
    longer = DatasetInfo.from_json(text, "x").with_split(more)
    theirs = json.loads(text)
    theirs["splits"].append(json.loads(longer.to_json())["splits"][1])
    assert json.loads(longer.to_json()) == theirs
    assert DatasetInfo.from_json(longer.to_json(), "x") == longer


def test_original_names_of_protobuf_fields():
    template = "{SPLIT}-{SHARD_INDEX}"
    fields = {"name": "a", "shard_lengths": [1, "2"], "num_bytes": 7, "filepath_template": template}
    text = json.dumps(
        {"name": "b", "version": "1.0.0", "splits": [fields], "file_format": "tfrecord"}
    )
    info = DatasetInfo.from_json(text, "x")
    assert info.splits == (SplitInfo("a", (1, 2), 7, template),)
    assert info.extra == {}


def info_text(**changes):
    return json.dumps({"name": "birds", "version": "1.0.0"} | changes)


def split_text(**changes):
    return info_text(splits=[{"name": "train", "shardLengths": ["1", "2"]} | changes])


INVALID = {
    "incomplete json": ("{", "not valid JSON"),
    "not utf-8": (b"\xff\xfe\xfd", "not valid JSON"),
    "deep": ("[" * 100_000, "not valid JSON"),
    "nan": ('{"name": "x", "version": "1.0.0", "x": NaN}', "NaN is not a JSON number"),
    "many digits": ('{"x": ' + "9" * 10_000 + "}", "not valid JSON"),
    "list": ("[]", "must be a dict"),
    "no name": (info_text(name=None, splits=[{"name": "x"}]), "name of the dataset is missing"),
    "name with a path": (info_text(name="../x"), "stays within its directory"),
    "name of dots": (info_text(name=".."), "stays within its directory"),
    "name of number": (info_text(name=3), "stays within its directory"),
    "name with a drive": (info_text(name="C:x"), "stays within its directory"),
    "name of surrogates": (info_text(name="\ud800"), "stays within its directory"),
    "no version": ('{"name": "x"}', "the version is None"),
    "short version": (info_text(version="1.0"), "such as 1.0.0"),
    "description": (info_text(description=[]), "description is not a string"),
    "other format": (info_text(fileFormat="array_record"), "must be 'tfrecord'"),
    "both spellings": (info_text(fileFormat="tfrecord", file_format="tfrecord"), "same field"),
    "splits": (info_text(splits={}), "splits is a dict of 0; must be a list"),
    "split": (info_text(splits=["train"]), "must be a dict"),
    "split twice": (info_text(splits=[{"name": "a"}] * 2), "two splits with the name 'a'"),
    "split without name": (info_text(splits=[{}]), "the name of a split is None"),
    "split with a path": (split_text(name="../../etc"), "the name of a split"),
    "lengths": (split_text(shardLengths=3), "shardLengths is 3"),
    "negative length": (split_text(shardLengths=["-1"]), "-1 is not a number of records"),
    "length of float": (split_text(shardLengths=[1.5]), "1.5 is not a number of records"),
    "length of true": (split_text(shardLengths=[True]), "True is not a number of records"),
    "length of text": (split_text(shardLengths=["many"]), "'many' is not a number of records"),
    "length of null": (split_text(shardLengths=[None]), "None is not a number of records"),
    "large length": (split_text(shardLengths=[2**63]), "is not a number of records"),
    "long length": (split_text(shardLengths=["9" * 5000]), "is not a number of records"),
    "negative bytes": (split_text(numBytes="-5"), "-5 is not a number of records or bytes"),
    "template of number": (split_text(filepathTemplate=7), "is not a string"),
    "upwards": (split_text(filepathTemplate="../{SHARD_INDEX}"), "within its directory"),
    "upwards inside": (
        split_text(filepathTemplate="a/../../{SHARD_INDEX}"),
        "within its directory",
    ),
    "absolute": (split_text(filepathTemplate="/etc/{SHARD_INDEX}"), "within its directory"),
    "windows": (split_text(filepathTemplate="C:\\{SHARD_INDEX}"), "within its directory"),
    "drive": (split_text(filepathTemplate="C:/{SHARD_INDEX}"), "within its directory"),
    "backslash": (split_text(filepathTemplate="..\\{SHARD_INDEX}"), "within its directory"),
    "null byte": (split_text(filepathTemplate="\0{SHARD_INDEX}"), "within its directory"),
    "unknown variable": (split_text(filepathTemplate="{HOME}{SHARD_INDEX}"), "variable 'HOME'"),
    "attribute": (split_text(filepathTemplate="{SPLIT.x}{SHARD_INDEX}"), "variable 'SPLIT.x'"),
    "open brace": (split_text(filepathTemplate="{SPLIT{SHARD_INDEX}"), "is not a string with"),
    "one name": (split_text(filepathTemplate="{SPLIT}"), "is the same for all shards"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_files(case):
    text, reason = INVALID[case]
    with pytest.raises(FormatError) as caught:
        DatasetInfo.from_json(text, "here/dataset_info.json")
    assert caught.value.path == "here/dataset_info.json"
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
FIELDS = ["name", "version", "description", "fileFormat", "splits"]
SPLIT_FIELDS = ["name", "shardLengths", "numBytes", "filepathTemplate", "statistics"]


@settings(max_examples=40)
@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=2),
    split=st.dictionaries(st.sampled_from(SPLIT_FIELDS), anything, max_size=2),
)
def test_random_fields(fields, split):
    content = json.loads(split_text(**split)) | fields
    try:
        info = DatasetInfo.from_json(json.dumps(content), "x.json")
    except FormatError as error:
        assert error.path == "x.json"  # noqa: PT017
    else:
        assert DatasetInfo.from_json(info.to_json(), "x.json") == info


def test_fields_of_the_protobuf_message():
    splits = (SplitInfo("train", (1, 2), 3),)
    content = json.loads(DatasetInfo("birds", "1.0.0", "Birds.", splits).to_json())
    assert set(content) <= {each.json_name for each in proto.DatasetInfo.DESCRIPTOR.fields}
    of_split = {each.json_name for each in proto.SplitInfo.DESCRIPTOR.fields}
    assert set(content["splits"][0]) <= of_split
