"""features.json: TFDS reads covey's datasets by it, and covey those of TFDS."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import json_format
from hypothesis import given, settings
from schemas import NUMBERS, datasets, plain, same

from covey import (
    ClassLabel,
    FeatureError,
    Features,
    FormatError,
    Image,
    Ragged,
    RecordReader,
    RecordWriter,
    Sparse,
    SparseArray,
    Steps,
    Tensor,
)
from covey.features.tfds import features_from_tfds, features_to_tfds
from covey.metadata import DatasetInfo, SplitInfo

T = tfds.features
PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def save_features(folder, features):
    folder.mkdir(parents=True, exist_ok=True)
    content, labels = features_to_tfds(features)
    (folder / "features.json").write_text(json.dumps(content))
    for file, names in labels.items():
        (folder / file).write_text("".join(f"{name}\n" for name in names), "utf-8")


def opened(folder, features, records):
    """What TFDS reads from a folder that covey made."""
    info = DatasetInfo("birds", splits=(SplitInfo("train", (len(records),), 0),))
    save_features(folder, features)
    with RecordWriter(folder / info.splits[0].shard_names("birds")[0]) as writer:
        for record in records:
            writer.write(record)
    (folder / "dataset_info.json").write_text(info.to_json())
    builder = tfds.builder_from_directory(folder)
    return builder, list(builder.as_dataset(split="train"))


def neutral(value):
    """Lists, numbers and bytes, whoever read the value."""
    if isinstance(value, dict):
        return {key: neutral(each) for key, each in value.items()}
    if isinstance(value, tf.RaggedTensor):
        value = value.to_list()
    elif isinstance(value, tf.Tensor):
        value = value.numpy()
    value = plain(value)
    if isinstance(value, list):
        return [neutral(each) for each in value]
    return value.encode() if isinstance(value, str) else value


def agree(ours, theirs):
    if isinstance(ours, dict):
        return set(ours) == set(theirs) and all(agree(ours[key], theirs[key]) for key in ours)
    return same(ours, theirs)


# What TFDS has, too.
COMMON = {
    **{f"one {dtype}": Tensor(dtype, encoding="list") for dtype in [*NUMBERS, "str", "bytes"]},
    **{f"memory of {d}": Tensor(d, (2,), encoding="bytes") for d in NUMBERS if d != "uint32"},
    "fixed": Tensor("int16", (2, 3)),
    "variable": Tensor("float32", (None, 2)),
    "inner": Tensor("bool", (2, None)),
    "dynamic": Tensor("int32", (None, 2, None), encoding="bytes"),
    "texts": Tensor("str", (None,)),
    "two texts": Tensor("str", (2,)),
    "strings": Tensor("bytes", (2, 2)),
    "named": ClassLabel(names=["wren", "é owl"]),
    "counted": ClassLabel(num_classes=5),
    "any class": ClassLabel(),
    "png": Image((None, None, 3)),
    "jpeg": Image((4, None, 1), format="jpeg"),
    "deep": Image((None, None, 1), "uint16"),
    "any image": Image(),
    "ragged": Ragged("int8"),
    "ragged texts": Ragged("str", 3),
    "ragged rows": Ragged("float32", 2, (4,)),
    "lowest": Tensor("int8", (2,), default=[-128, -128]),
    "lowest string": Tensor("bytes", default=b""),
}


@pytest.mark.parametrize("name", COMMON)
def test_there_and_back(tmp_path, name):
    features = Features({name: COMMON[name], "in": {"a/b": {"x": COMMON[name]}}})
    save_features(tmp_path, features)
    assert features_from_tfds(tmp_path) == features


def test_there_and_back_keeps_the_order(tmp_path):
    save_features(tmp_path, Features(COMMON))
    assert list(features_from_tfds(tmp_path).items()) == list(COMMON.items())


def test_no_tensorflow_is_imported(tmp_path):
    save_features(tmp_path, Features(COMMON))
    code = (
        "import sys; from covey.features.tfds import features_from_tfds, features_to_tfds; "
        "import covey.metadata; features_to_tfds(features_from_tfds(sys.argv[1])); "
        "print({'tensorflow', 'tensorflow_datasets', 'google.protobuf'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "set()\n"


THEIRS = {
    "number": (Tensor("uint8"), T.Tensor(shape=(), dtype=np.uint8)),
    "shape": (Tensor("bool", (2, None)), T.Tensor(shape=(2, None), dtype=np.bool_)),
    "memory": (
        Tensor("float64", (3,)),
        T.Tensor(shape=(3,), dtype=np.float64, encoding="bytes"),
    ),
    "string": (Tensor("bytes"), T.Tensor(shape=(), dtype=np.str_)),
    "optional": (Tensor("int64", default=1), T.Tensor(shape=(), dtype=np.int64, optional=True)),
    "text": (Tensor("str"), T.Text()),
    "texts": (Tensor("str", (2,)), T.Sequence(T.Text(), length=2)),
    "label": (ClassLabel(names=["a", "b"]), T.ClassLabel(names=["a", "b"])),
    "in": (
        {"x/y": {"label": ClassLabel(names=["c"])}},
        T.FeaturesDict({"x/y": {"label": T.ClassLabel(names=["c"])}}),
    ),
    "a/b": (ClassLabel(names=["d"]), T.ClassLabel(names=["d"])),
    "any": (ClassLabel(), T.ClassLabel()),
    "image": (
        Image((4, None, 3), format="jpeg"),
        T.Image(shape=(4, None, 3), encoding_format="jpeg"),
    ),
    "any image": (Image(), T.Image(shape=(None, None, None))),
    "ragged": (Ragged("int16"), T.Sequence(T.Sequence(np.int16))),
    "sparse": (
        Sparse("int8", (2, 3)),
        T.FeaturesDict(
            {
                "values": T.Sequence(np.int8),
                "indices_0": T.Sequence(np.int64),
                "indices_1": T.Sequence(np.int64),
            }
        ),
    ),
}


def test_the_files_are_those_of_tfds(tmp_path):
    theirs = T.FeaturesDict({name: each for name, (_, each) in THEIRS.items()})
    theirs.save_config(tmp_path)
    ours = Features({name: each for name, (each, _) in THEIRS.items()})
    content, labels = features_to_tfds(ours)
    assert content == json.loads((tmp_path / "features.json").read_text())
    assert {file.name for file in tmp_path.glob("*.labels.txt")} == set(labels)
    for file, names in labels.items():
        assert (tmp_path / file).read_text() == "".join(f"{name}\n" for name in names)


def example_of(feature, *, odd=False):
    """A value for a feature of ``COMMON``."""
    if isinstance(feature, Image):
        pixels = PIXELS[:, :, : feature.shape[2] or 3].astype(feature.dtype)
        if feature.format == "jpeg":
            pixels[:] = 7  # of which every decoder makes the same
        return feature.encode(pixels)
    if isinstance(feature, ClassLabel):
        return 0 if odd else -1
    if isinstance(feature, Ragged):
        one = "é" if feature.dtype == "str" else np.ones(feature.shape, feature.dtype)
        value = [[one, one], [], [one]]
        return value if feature.depth == 2 else [[], value]
    shape = [2 if size is None else size for size in feature.shape]
    if feature.dtype in ("str", "bytes"):
        return np.full(shape, "é" if feature.dtype == "str" else b"\xff", object).tolist()
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(feature.dtype)


def test_tfds_reads_every_kind_it_has(tmp_path):
    features = Features(COMMON)
    examples = [
        {name: example_of(each, odd=odd) for name, each in COMMON.items()} for odd in (True, False)
    ]
    records = [features.encode(example) for example in examples]
    builder, found = opened(tmp_path, features, records)
    assert builder.info.features["named"].names == ["wren", "é owl"]
    for record, theirs in zip(records, found, strict=True):
        ours = features.decode(record)
        for name, feature in COMMON.items():
            value = feature.decode(ours[name]) if isinstance(feature, Image) else ours[name]
            assert agree(neutral(value), neutral(theirs[name])), name


@settings(max_examples=40)
@given(dataset=datasets())
def test_tfds_reads_any_features(tmp_path_factory, dataset):
    features, examples = dataset
    records = [features.encode(example) for example in examples]
    folder = tmp_path_factory.mktemp("any")
    _, found = opened(folder, features, records)
    again = features_from_tfds(folder)
    # TensorFlow does not decode the memory of uint32.
    raw = {n for n, f in features.items() if getattr(f, "encoding", "") == "bytes"}
    raw = {name for name in raw if features[name].dtype == "uint32"}
    assert {n: f for n, f in again.items() if n not in raw} == {
        n: Tensor("bytes", f.shape) if getattr(f, "dtype", "") == "str" and len(f.shape) > 1 else f
        for n, f in features.items()
        if n not in raw
    }
    for record, theirs in zip(records, found, strict=True):
        assert agree(neutral(again.decode(record)), neutral(theirs))


def test_kinds_that_tfds_has_not(tmp_path):
    features = Features(
        {
            "sparse": Sparse("float32", (4,)),
            "matrix": Sparse("int8", (4, 5)),
            "raw": Tensor("uint32", (2,), encoding="bytes"),
            "dynamic": Tensor("uint32", (None, None), encoding="bytes"),
            "texts": Tensor("str", (1, 2)),
            "two channels": Image((None, None, 2)),
        }
    )
    matrix = SparseArray(np.array([[1, 2], [3, 4]]), np.array([7, -7], np.int8), (4, 5))
    grey = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)
    record = features.encode(
        {
            "sparse": [0, 0.5, 0, 2],
            "matrix": matrix,
            "raw": [1, 2],
            "dynamic": [[3], [4]],
            "texts": [["a", "é"]],
            "two channels": grey,
        }
    )
    _, (found,) = opened(tmp_path, features, [record])
    assert neutral(found) == {
        "sparse": {"values": [0.5, 2.0], "indices": [1, 3]},
        "matrix": {"values": [7, -7], "indices_0": [1, 3], "indices_1": [2, 4]},
        "raw": np.array([1, 2], np.uint32).tobytes(),
        "dynamic": {"shape": [2, 1], "value": np.array([3, 4], np.uint32).tobytes()},
        "texts": [[b"a", "é".encode()]],
        "two channels": grey.tolist(),
    }
    again = features_from_tfds(tmp_path)
    assert again["matrix/values"] == Tensor("int8", (None,))
    assert again["two channels"] == Image()
    assert neutral(again.decode(record)["matrix"]) == neutral(found["matrix"])


DEFAULTS = {
    "number": (Tensor("int16", default=7), -(2**15)),
    "numbers": (Tensor("float32", (2,), default=[1, 2]), [float(np.finfo("float32").min)] * 2),
    "memory": (Tensor("int16", (2,), encoding="bytes", default=[1, 2]), b""),
    "variable": (Tensor("int16", (None,), default=[1]), []),
    "inner": (Tensor("int16", (2, None), default=[[1], [1]]), [[], []]),
    "text": (Tensor("str", default="x"), b""),
    "texts": (Tensor("str", (None,), default=["x"]), []),
    "label": (ClassLabel(names=["a", "b"], default="b"), -(2**63)),
    "image": (Image(default=b"x"), b""),
    "ragged": (Ragged("int64", default=[]), []),
    "sparse": (Sparse("int64", (3,), default=[]), {"values": [], "indices": []}),
}


def test_what_is_missing_reads_as_the_default_of_tfds(tmp_path):
    features = Features({"there": "int64", **{n: each for n, (each, _) in DEFAULTS.items()}})
    record = features.encode({"there": 1, **dict.fromkeys(DEFAULTS)})
    _, (found,) = opened(tmp_path, features, [record])
    expected = {name: each for name, (_, each) in DEFAULTS.items()}
    assert neutral(found) == {"there": 1, **expected}
    fixed = ["number", "numbers", "text", "label"]
    again = features_from_tfds(tmp_path).select(fixed)
    assert neutral(again.decode(record)) == {name: expected[name] for name in fixed}


def test_of_sequence_examples_tfds_reads_the_context(tmp_path):
    features = Features({"id": "int64", "steps": Steps("int64")})
    nine = tf.train.Feature(int64_list=tf.train.Int64List(value=[9]))
    record = tf.train.SequenceExample(
        context=tf.train.Features(feature={"id": nine}),
        feature_lists=tf.train.FeatureLists(
            feature_list={"steps": tf.train.FeatureList(feature=[nine])}
        ),
    ).SerializeToString()
    _, (found,) = opened(tmp_path, features, [record])
    assert neutral(found) == {"id": 9}


@pytest.mark.parametrize("names", [["a", ""], [" a", "b"], ["a\nb"], ["a\rb"], []])
def test_names_that_a_file_cannot_hold_are_left_out(names):
    content, labels = features_to_tfds(Features({"x": ClassLabel(names=names)}))
    assert labels == {}
    assert content["featuresDict"]["features"]["x"]["classLabel"].get("numClasses", "0") == str(
        len(names)
    )


def test_two_features_with_one_label_file():
    a, b = ClassLabel(names=["a"]), ClassLabel(names=["b"])
    assert features_to_tfds(Features({"x.y": a, "x/y": b}))[1] == {}
    assert features_to_tfds(Features({"x-y": a, "x": {"y": ClassLabel()}}))[1] == {}
    assert features_to_tfds(Features({"x-y": a, "x": {"y": a}}))[1] == {"x-y.labels.txt": ("a",)}


@pytest.mark.parametrize("name", ["\0", "x" * 300])
def test_names_that_no_file_can_have(tmp_path, name):
    features = Features({name: ClassLabel(names=["a"])})
    assert features_to_tfds(features)[1] == {}
    save_features(tmp_path, features)
    assert features_from_tfds(tmp_path) == Features({name: ClassLabel(num_classes=1)})


# What TFDS itself writes.


class Everything(tfds.core.GeneratorBasedBuilder):
    """Made by TFDS."""

    VERSION = tfds.core.Version("1.0.0")
    name = "everything"
    pkg_dir_path = None

    def _info(self):
        features = {
            "int": np.int64,
            "scalar": T.Scalar(np.uint16),
            "bool": np.bool_,
            "large": np.uint64,
            "float64": T.Tensor(shape=(2,), dtype=np.float64),
            "memory": T.Tensor(shape=(2, None), dtype=np.int16, encoding="bytes"),
            "dynamic": T.Tensor(shape=(None, None), dtype=np.float32, encoding="bytes"),
            "optional": T.Tensor(shape=(2,), dtype=np.int32, optional=True),
            "string": T.Tensor(shape=(), dtype=np.str_),
            "text": T.Text(),
            "label": T.ClassLabel(names=["wren", "owl"]),
            "in": {"label": T.ClassLabel(names=["x"]), "a/b": {"c": np.int8}},
            "box": T.BBoxFeature(),
            "image": T.Image(shape=(None, None, 3), encoding_format="png"),
            "mask": T.LabeledImage(labels=["sky", "bird"], shape=(None, None, 1)),
            "numbers": T.Sequence(np.int32),
            "three": T.Sequence(T.Tensor(shape=(2,), dtype=np.float32), length=3),
            "texts": T.Sequence(T.Text()),
            "labels": T.Sequence(T.ClassLabel(names=["a", "b"])),
            "nested": T.Sequence(T.Sequence(np.int64)),
            "deep": T.Sequence(T.Sequence(T.Sequence(T.Text()), length=1)),
            "objects": T.Sequence(
                {"box": T.BBoxFeature(), "label": T.ClassLabel(num_classes=9), "in": {"x": np.int8}}
            ),
            "frames": T.Sequence({"words": T.Sequence(T.Text())}),
        }
        return tfds.core.DatasetInfo(builder=self, features=T.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(3):
            many = list(range(i))
            yield (
                i,
                {
                    "int": -i,
                    "scalar": i,
                    "bool": i == 1,
                    "large": 2**64 - 1 - i,
                    "float64": np.array([0.1, i]),
                    "memory": np.ones((2, i), np.int16),
                    "dynamic": np.ones((i, 2), np.float32),
                    "optional": None if i == 2 else np.array([i, i], np.int32),
                    "string": "é",
                    "text": f"é {i}",
                    "label": ["owl", "wren", -1][i],
                    "in": {"label": 0, "a/b": {"c": i}},
                    "box": T.BBox(0.0, 0.25, 0.5, 1.0),
                    "image": PIXELS + np.uint8(i),
                    "mask": PIXELS[:, :, :1] % 2,
                    "numbers": many,
                    "three": np.full((3, 2), i, np.float32),
                    "texts": ["é"] * i,
                    "labels": ["b"] * i,
                    "nested": [many, [], many],
                    "deep": [[["a", "b"]], [[]]][: i + 1],
                    "objects": [
                        {"box": T.BBox(0.0, 0.0, 0.5, 1.0), "label": k, "in": {"x": k}}
                        for k in many
                    ],
                    "frames": [{"words": ["w"] * k} for k in many],
                },
            )


@pytest.fixture(scope="module")
def made_by_tfds(tmp_path_factory):
    tfds.disable_progress_bar()
    builder = Everything(data_dir=tmp_path_factory.mktemp("tfds"))
    builder.download_and_prepare()
    return builder.data_path


def test_covey_reads_what_tfds_prepared(made_by_tfds):
    features = features_from_tfds(made_by_tfds)
    with RecordReader(next(made_by_tfds.glob("*.tfrecord*"))) as reader:
        examples = [features.decode(record) for record in reader]
    found = list(tfds.builder_from_directory(made_by_tfds).as_dataset(split="train"))
    assert len(examples) == len(found) == 3
    for ours, theirs in zip(examples, found, strict=True):
        for name in ("image", "mask"):
            ours[name] = features[name].decode(ours[name])
        for name, value in ours.items():
            assert agree(neutral(value), neutral(theirs[name])), name


def test_kinds_of_what_tfds_prepared(made_by_tfds):
    features = features_from_tfds(made_by_tfds)
    assert features["label"] == ClassLabel(names=["wren", "owl"])
    assert features["in/label"] == ClassLabel(names=["x"])
    assert features["float64"] == Tensor("float64", (2,), encoding="list")
    assert features["optional"] == Tensor("int32", (2,), default=[-(2**31)] * 2)
    assert features["mask"] == Image((None, None, 1))
    assert features["three"] == Tensor("float32", (3, 2))
    assert features["deep"] == Ragged("str", 3)
    assert features["objects/box"] == Tensor("float32", (None, 4))
    assert features["frames/words"] == Ragged("str")
    assert features["nested"] == Ragged("int64")


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # TFDS' own, of float64
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("dtype", [*NUMBERS, "str"])
def test_an_optional_tensor_that_is_missing(tmp_path, dtype, shape):
    optional = T.Tensor(shape=shape, dtype=np.dtype(dtype).type, optional=True)
    theirs = T.FeaturesDict({"x": optional, "y": np.int64})
    theirs.save_config(tmp_path)
    record = theirs.serialize_example({"x": None, "y": 1})
    found = features_from_tfds(tmp_path).decode(record)["x"]
    assert same(neutral(found), neutral(theirs.deserialize_example(record)["x"]))


def test_a_sequence_at_the_top(tmp_path):
    T.Sequence({"x": np.int64, "y": T.Sequence(np.int64)}).save_config(tmp_path)
    expected = Features({"x": Tensor("int64", (None,)), "y": Ragged("int64")})
    assert features_from_tfds(tmp_path) == expected


@pytest.mark.parametrize("proto", [False, True])
def test_files_of_older_versions(tmp_path, proto):
    theirs = T.FeaturesDict({"features": T.Image(shape=(None, 2, 1)), "y": T.Sequence(np.int8)})

    def old(feature):
        """As TFDS wrote it before 4.4."""
        if isinstance(feature, T.FeaturesDict):
            content = {name: old(each) for name, each in feature.items()}
        elif isinstance(feature, T.Sequence):
            content = {"feature": old(feature.feature), "length": None}
        elif isinstance(feature, T.Image):
            content = {"shape": [None, 2, 1], "dtype": "uint8", "encoding_format": None}
        else:
            content = {"shape": [], "dtype": "int8"}
        return {"type": feature._fully_qualified_class_name, "content": content}

    content = theirs.to_json() if proto else old(theirs)
    assert T.FeatureConnector.from_json(json.loads(json.dumps(content)))["y"].shape == (None,)
    (tmp_path / "features.json").write_text(json.dumps(content))
    expected = Features({"features": Image((None, 2, 1)), "y": Tensor("int8", (None,))})
    assert features_from_tfds(tmp_path) == expected


UNKNOWN = {
    "audio": (T.Audio(), r"it is a tensorflow_datasets\S*Audio, which covey does not know; it kno"),
    "dataset": (T.Dataset({"a": np.int64}), "Dataset, which covey does not know"),
    "video": (T.Video(shape=(None, 4, 4, 3)), "Video, which covey does not know"),
    "zlib": (T.Tensor(shape=(3,), dtype=np.int8, encoding="zlib"), "encoding is 'zlib'"),
    "bfloat16": (T.Tensor(shape=(), dtype=tf.bfloat16), "dtype is 'bfloat16', must be one of str"),
    "float image": (T.Image(shape=(2, 2, 1), dtype=np.float32), "an image is 'float32'"),
    "gif": (T.Image(shape=(None, 2, 2, 3)), "must have three dimensions"),
    "memories": (T.Sequence(T.Tensor(shape=(), dtype=np.int8, encoding="bytes")), "in a Sequence"),
    "unknown twice": (T.Sequence(T.Tensor(shape=(None,), dtype=np.int8)), "2 unknown dimensions"),
    "ragged float64": (T.Sequence(T.Sequence(np.float64)), "only float32"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_kinds_that_covey_has_not(tmp_path, case):
    theirs, reason = UNKNOWN[case]
    T.FeaturesDict({"in": {"x": theirs}}).save_config(tmp_path)
    with pytest.raises(FeatureError, match=reason) as caught:
        features_from_tfds(tmp_path)
    assert f"{tmp_path / 'features.json'}: feature 'in/x'" in str(caught.value)


def one(**fields):
    content = json_format.MessageToDict(T.FeaturesDict({"x": np.int64}).to_proto())
    content["featuresDict"]["features"]["x"].update(fields)
    return json.dumps(content)


def label(count):
    return one(
        pythonClassName="tensorflow_datasets.core.features.class_label_feature.ClassLabel",
        classLabel={"numClasses": count},
    )


HOSTILE = {
    "no json": ("{", "no JSON"),
    "no utf-8": (b"\xff\xfe\xfd", "no JSON"),
    "deep": ('{"a":' * 100_000, "no JSON"),
    "list": ("[]", "expected a dict"),
    "empty": ("{}", "there is no class of TFDS"),
    "class of number": (one(pythonClassName=3), "there is no class of TFDS"),
    "content of list": (one(tensor=[]), "expected a dict"),
    "shape of text": (one(tensor={"dtype": "int8", "shape": "3"}), "the shape is no list"),
    "sizes of text": (one(tensor={"dtype": "int8", "shape": ["a"]}), "expected a size"),
    "negative size": (one(tensor={"dtype": "int8", "shape": ["-2"]}), "found '-2'"),
    "size of float": (one(tensor={"dtype": "int8", "shape": [1.5]}), "expected a size"),
    "many digits": (one(tensor={"dtype": "int8", "shape": ["9" * 5000]}), "expected a size"),
    "huge": (one(tensor={"dtype": "int8", "shape": [2**20, 2**20]}), "2 GiB"),
    "huge default": (one(tensor={"dtype": "int8", "shape": [2**30], "optional": True}), "optional"),
    "no dtype": (one(tensor={}), "dtype is 'None'"),
    "dtype of list": (one(tensor={"dtype": []}), "dtype is '[]'"),
    "negative classes": (label("-5"), "expected a size"),
    "classes of text": (label("many"), "expected a size"),
    "no dict at the top": (json.dumps(json_format.MessageToDict(T.Text().to_proto())), "no Featu"),
    "empty name": (one().replace('"x"', '""'), "the name of a feature is ''"),
    "surrogate": (label("1").replace('"x"', '"\\ud800"'), "no valid UTF-8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(tmp_path, case):
    text, reason = HOSTILE[case]
    path = tmp_path / "features.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((FormatError, FeatureError)) as caught:
        features_from_tfds(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


def test_sequences_in_sequences_without_end(tmp_path):
    node = json_format.MessageToDict(T.Text().to_proto())
    for _ in range(200):
        name = "tensorflow_datasets.core.features.sequence_feature.Sequence"
        node = {"pythonClassName": name, "sequence": {"feature": node, "length": "-1"}}
    (tmp_path / "features.json").write_text(json.dumps(node))
    with pytest.raises(FormatError, match="nested over 64 levels deep"):
        features_from_tfds(tmp_path)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (b"a\nb\nc\n", "3 names, but"),
        (b"a\na\n", "two classes have the name 'a'"),
        (b"\xff\n", "no UTF-8"),
    ],
)
def test_wrong_label_files(tmp_path, names, reason):
    (tmp_path / "features.json").write_text(label("2"))
    (tmp_path / "x.labels.txt").write_bytes(names)
    with pytest.raises((FormatError, FeatureError), match=reason):
        features_from_tfds(tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"features\.json"):
        features_from_tfds(tmp_path)
