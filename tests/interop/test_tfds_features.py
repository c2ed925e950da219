"""features.json: TFDS reads datasets of covey, and covey reads datasets of TFDS."""

import io
import json
import subprocess
import sys
import wave
import zlib

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from schemas import NUMBERS, agree, datasets, plain, same

import covey
from covey import (
    ClassLabel,
    Features,
    Image,
    Ragged,
    RecordWriter,
    Sparse,
    Steps,
    Tensor,
)
from covey.arrays import SparseArray
from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import ExampleError, FeatureError, FormatError
from covey.filenames import FEATURES_FILE
from covey.schema.features import features_from_json, features_to_json
from covey.schema.tfds import features_from_tfds, features_to_tfds

T = tfds.features
PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def save_features(directory, features):
    directory.mkdir(parents=True, exist_ok=True)
    content, labels = features_to_tfds(features)
    (directory / "features.json").write_text(json.dumps(content))
    for file, names in labels.items():
        (directory / file).write_text("".join(f"{name}\n" for name in names), "utf-8")


def opened(directory, features, records):
    """The builder and the examples that TFDS reads from a directory written by covey."""
    info = DatasetInfo("birds", splits=(SplitInfo("train", (len(records),), 0),))
    save_features(directory, features)
    with RecordWriter(directory / info.splits[0].shard_names("birds")[0]) as writer:
        for record in records:
            writer.write(record)
    (directory / "dataset_info.json").write_text(info.to_json())
    builder = tfds.builder_from_directory(directory)
    return builder, list(builder.as_dataset(split="train"))


def neutral(value):
    """Lists, numbers and bytes, independent of the library that read the value."""
    if isinstance(value, dict):
        return {key: neutral(each) for key, each in value.items()}
    if isinstance(value, tf.data.Dataset):
        return stacked([neutral(each) for each in value])
    if isinstance(value, tf.RaggedTensor):
        value = value.to_list()
    elif isinstance(value, tf.Tensor):
        value = value.numpy()
    value = plain(value)
    if isinstance(value, list):
        return [neutral(each) for each in value]
    return value.encode() if isinstance(value, str) else value


def stacked(elements):
    """A dict of lists, as covey returns it, from a list of dicts."""
    if not elements or not isinstance(elements[0], dict):
        return elements
    return {key: stacked([each[key] for each in elements]) for key in elements[0]}


def check_error(error, reason, **fields):
    """Check a part of the reason of an error, and its fields."""
    assert reason in error.reason
    assert {name: getattr(error, name) for name in fields} == fields


# Features that TFDS has too.
COMMON = {
    **{f"one {dtype}": Tensor(dtype, encoding="list") for dtype in [*NUMBERS, "str", "bytes"]},
    **{f"memory of {d}": Tensor(d, (2,), encoding="bytes") for d in NUMBERS if d != "uint32"},
    "fixed": Tensor("int16", (2, 3)),
    "variable": Tensor("float32", (None, 2)),
    "inner": Tensor("bool", (2, None)),
    "dynamic": Tensor("int32", (None, 2, None), encoding="bytes"),
    **{f"zlib of {d}": Tensor(d, (2,), encoding="zlib") for d in NUMBERS if d != "uint32"},
    "dynamic zlib": Tensor("int32", (None, 2, None), encoding="zlib"),
    "texts": Tensor("str", (None,)),
    "strings": Tensor("bytes", (2, 2)),
    "named": ClassLabel(names=["wren", "é owl"]),
    "counted": ClassLabel(num_classes=5),
    "any class": ClassLabel(),
    "png": Image((None, None, 3)),
    "jpeg": Image((4, None, 1), format="jpeg"),
    "image": Image(),
    "ragged": Ragged("int8"),
    "ragged strings": Ragged("str", 3),
    "ragged rows": Ragged("float32", 2, (4,)),
    "lowest": Tensor("int8", (2,), default=[-128, -128]),
    "lowest string": Tensor("bytes", default=b""),
}


def test_round_trip(tmp_path):
    features = Features({**COMMON, "in": {"a/b": COMMON}})
    save_features(tmp_path, features)
    again = features_from_tfds(tmp_path)
    assert again == features
    assert list(again) == list(features)


def test_no_tensorflow_is_imported(tmp_path):
    save_features(tmp_path, Features(COMMON))
    code = (
        "import sys; from covey.schema.tfds import features_from_tfds, features_to_tfds; "
        "import covey.dataset_info; features_to_tfds(features_from_tfds(sys.argv[1])); "
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
    "any image": (Image(channels=None), T.Image(shape=(None, None, None))),
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


def test_files_equal_those_of_tfds(tmp_path):
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


def test_tfds_reads_every_common_feature(tmp_path):
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


@settings(max_examples=25)
@given(dataset=datasets())
def test_records_of_any_features(tmp_path_factory, dataset):
    features, examples = dataset
    # TensorFlow does not decode raw uint32.
    supported = [
        name
        for name, feature in features.items()
        if (getattr(feature, "encoding", ""), getattr(feature, "dtype", "")) != ("bytes", "uint32")
    ]
    features = features.select(supported)
    directory = tmp_path_factory.mktemp("any")
    save_features(directory, features)
    again = features_from_tfds(directory)
    assert again == {
        name: Tensor("bytes", feature.shape)
        if getattr(feature, "dtype", "") == "str" and len(feature.shape) > 1
        else feature
        for name, feature in features.items()
    }
    theirs = T.FeaturesDict.from_config(directory)
    for example in examples:
        example = {name: example[name] for name in supported}
        record = features.encode(example)
        assert agree(neutral(again.decode(record)), neutral(theirs.deserialize_example(record)))
        stored = theirs.serialize_example(example)
        assert agree(neutral(features.decode(stored)), neutral(example))


def test_features_that_tfds_lacks(tmp_path):
    features = Features(
        {
            "sparse": Sparse("float32", (4,)),
            "matrix": Sparse("int8", (4, 5)),
            "raw": Tensor("uint32", (2,), encoding="bytes"),
            "dynamic": Tensor("uint32", (None, None), encoding="bytes"),
            "texts": Tensor("str", (1, 2)),
            "two channels": Image((None, None, 2)),
            "wide": Ragged("float64", 3),
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
            "wide": [[[0.1], []], [[1 / 3]]],
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
        "wide": {
            "ragged_flat_values": np.array([0.1, 1 / 3]).tobytes(),
            "ragged_row_lengths_0": [2, 1],
            "ragged_row_lengths_1": [1, 0, 1],
        },
    }
    again = features_from_tfds(tmp_path)
    assert again["matrix/values"] == Tensor("int8", (None,))
    assert again["two channels"] == Image(channels=None)
    assert neutral(again.decode(record)["matrix"]) == neutral(found["matrix"])


DEFAULTS = {
    "number": (Tensor("int16", default=7), -(2**15)),
    "numbers": (Tensor("float32", (2,), default=[1, 2]), [float(np.finfo("float32").min)] * 2),
    "memory": (Tensor("int16", (2,), encoding="bytes", default=[1, 2]), b""),
    "zlib": (Tensor("int16", (2,), encoding="zlib", default=[1, 2]), b""),
    "variable": (Tensor("int16", (None,), default=[1]), []),
    "inner": (Tensor("int16", (2, None), default=[[1], [1]]), [[], []]),
    "text": (Tensor("str", default="x"), b""),
    "texts": (Tensor("str", (None,), default=["x"]), []),
    "label": (ClassLabel(names=["a", "b"], default="b"), -(2**63)),
    "image": (Image(default=b"x"), b""),
    "ragged": (Ragged("int64", default=[]), []),
    "sparse": (Sparse("int64", (3,), default=[]), {"values": [], "indices": []}),
}


def test_tfds_reads_its_default_for_missing_values(tmp_path):
    features = Features({"there": "int64", **{n: each for n, (each, _) in DEFAULTS.items()}})
    record = features.encode({"there": 1, **dict.fromkeys(DEFAULTS)})
    _, (found,) = opened(tmp_path, features, [record])
    expected = {name: each for name, (_, each) in DEFAULTS.items()}
    assert neutral(found) == {"there": 1, **expected}
    fixed = ["number", "numbers", "text", "label"]
    again = features_from_tfds(tmp_path).select(fixed)
    assert neutral(again.decode(record)) == {name: expected[name] for name in fixed}


def test_tfds_reads_the_context_of_sequence_examples(tmp_path):
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
def test_names_that_a_label_file_cannot_store_are_omitted(names):
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


# Datasets written by TFDS.


def gif():
    """A GIF of two frames."""
    file = io.BytesIO()
    frames = [PIL.Image.fromarray(PIXELS + np.uint8(100 * i)) for i in range(2)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def wav(samples):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, 0, "NONE", ""))
        writer.writeframes(np.asarray(samples, "<i2").tobytes())
    return file.getvalue()


def load_wav(file, file_format, channels):
    """Replacement of the decoder of TFDS, which needs pydub and ffmpeg."""
    with wave.open(file) as reader:
        return np.frombuffer(reader.readframes(reader.getnframes()), "<i2")


class Mine(T.Tensor):
    """A user-defined class, saved as a tensor."""


class MyAudio(T.Audio):
    """Saved as audio."""


class MyDict(T.FeaturesDict):
    """Saved as a dict."""


def tensor(dtype, shape=(), encoding="none", **options):
    return T.Tensor(shape=shape, dtype=dtype, encoding=encoding, **options)


def ones(dtype, *shape):
    return np.ones(shape, dtype)


BOX = T.BBox(0.0, 0.25, 0.5, 1.0)

# Features of TFDS, and a function that returns the value of example i.
MADE = {
    "int": (np.int64, lambda i: -i),
    "scalar": (T.Scalar(np.uint16), lambda i: i),
    "bool": (np.bool_, lambda i: i == 1),
    "large": (np.uint64, lambda i: 2**64 - 1 - i),
    **{
        f"{encoding} of {dtype}": (
            tensor(np.dtype(dtype).type, (2,), encoding),
            lambda i, dtype=dtype: np.array([i, 1], dtype),
        )
        for encoding in ("none", "bytes", "zlib")
        for dtype in NUMBERS
        if encoding == "none" or dtype != "uint32"
    },
    "memory": (tensor(np.int16, (2, None), "bytes"), lambda i: ones("int16", 2, i)),
    "dynamic": (tensor(np.float32, (None, None), "bytes"), lambda i: ones("float32", i, 2)),
    "optional": (
        tensor(np.int32, (2,), optional=True),
        lambda i: None if i == 2 else np.array([i, i], np.int32),
    ),
    "optional scalar": (T.Scalar(np.bool_, optional=True), lambda i: [None, True, False][i]),
    "strings": (tensor(np.str_, (2, None)), lambda i: [["é"] * i, ["x"] * i]),
    "text": (T.Text(), lambda i: f"é {i}"),
    "label": (T.ClassLabel(names=["wren", "owl"]), lambda i: ["owl", "wren", -1][i]),
    "in": (
        {"label": T.ClassLabel(names=["x"]), "a/b": {"c": np.int8}},
        lambda i: {"label": 0, "a/b": {"c": i}},
    ),
    "box": (T.BBoxFeature(), lambda i: BOX),
    "image": (
        T.Image(shape=(None, None, 3), encoding_format="png"),
        lambda i: PIXELS + np.uint8(i),
    ),
    "deep image": (T.Image(shape=(4, 5, 1), dtype=np.uint16), lambda i: ones("uint16", 4, 5, 1)),
    "float image": (
        T.Image(shape=(None, None, 1), dtype=np.float32),
        lambda i: np.full((2, 3, 1), -0.5 * i, np.float32),
    ),
    "mask": (
        T.LabeledImage(labels=["sky", "bird"], shape=(None, None, 1)),
        lambda i: PIXELS[..., :1] % 2,
    ),
    "gif": (T.Image(shape=(None, 4, 5, 3)), lambda i: gif()),
    "audio": (T.Audio(), lambda i: np.arange(i)),
    "stereo": (T.Audio(shape=(None, 2), dtype=np.int16), lambda i: ones("int16", i, 2)),
    "floats": (T.Audio(shape=(3,), dtype=np.float32), lambda i: np.full(3, i, np.float32)),
    "sound": (T.Audio(dtype=np.int16, file_format="wav"), lambda i: io.BytesIO(wav([i, 2]))),
    "zlib sound": (T.Audio(encoding="zlib", sample_rate=9), lambda i: io.BytesIO(wav([i, 2]))),
    "lazy sound": (
        T.Audio(file_format="wav", lazy_decode=True),
        lambda i: io.BytesIO(wav([i, 2])),
    ),
    "video": (T.Video(shape=(None, 4, 5, 3)), lambda i: np.stack([PIXELS] * (i + 1))),
    "videos": (T.Sequence(T.Video(shape=(None, 4, 5, 3))), lambda i: [np.stack([PIXELS] * 2)] * i),
    "translation": (T.Translation(["fr", "en"]), lambda i: {"en": "owl", "fr": "hibou"}),
    "translations": (T.TranslationVariableLanguages(), lambda i: {"en": "owl", "fr": ["a", "b"]}),
    "many translations": (T.Sequence(T.Translation(["en"])), lambda i: [{"en": "owl"}] * i),
    "numbers": (T.Sequence(np.int32), lambda i: list(range(i))),
    "three": (T.Sequence(tensor(np.float32, (2,)), length=3), lambda i: np.full((3, 2), i, "f4")),
    "inner": (T.Sequence(tensor(np.int8, (None,)), length=2), lambda i: ones("int8", 2, i)),
    "texts": (T.Sequence(T.Text()), lambda i: ["é"] * i),
    "labels": (T.Sequence(T.ClassLabel(names=["a", "b"])), lambda i: ["b"] * i),
    "images": (T.Sequence(T.Image(shape=(4, 5, 3))), lambda i: [PIXELS] * i),
    "nested": (T.Sequence(T.Sequence(np.int64)), lambda i: [list(range(i)), [], [i]]),
    "nested float64": (T.Sequence(T.Sequence(np.float64)), lambda i: [[0.1] * i, [np.inf]]),
    "nested rows": (T.Sequence(T.Sequence(tensor(np.int8, (2,)))), lambda i: [[[i, i]] * i, []]),
    "deep": (
        T.Sequence(T.Sequence(T.Sequence(T.Text()), length=1)),
        lambda i: [[["a", "b"]], [[]]][: i + 1],
    ),
    "objects": (
        T.Sequence(
            {"box": T.BBoxFeature(), "label": T.ClassLabel(num_classes=9), "in": {"x": np.int8}}
        ),
        lambda i: [{"box": BOX, "label": k, "in": {"x": k}} for k in range(i)],
    ),
    "frames": (
        T.Sequence({"words": T.Sequence(T.Text())}),
        lambda i: [{"words": ["w"] * k} for k in range(i)],
    ),
    "episode": (
        T.Dataset(
            {
                "action": {"pose": tensor(np.float32, (7,)), "open": np.bool_},
                "label": T.ClassLabel(names=["go", "stop"]),
                "words": T.Sequence(T.Text()),
                "frame": T.Image(shape=(4, 5, 3)),
            }
        ),
        lambda i: [
            {
                "action": {"pose": np.full(7, k, np.float32), "open": k > 0},
                "label": "stop",
                "words": ["w"] * k,
                "frame": PIXELS,
            }
            for k in range(i + 1)
        ],
    ),
    "things": (
        T.Sequence({"mask": T.Image(shape=(4, 5, 1)), "kind": np.int64}),
        lambda i: [{"mask": PIXELS[..., :1] + np.uint8(k), "kind": k} for k in range(i)],
    ),
    "dataset": (T.Dataset(np.int32), lambda i: list(range(i))),
    "mine": (Mine(shape=(2,), dtype=np.int8, encoding="bytes"), lambda i: ones("int8", 2)),
    "my audio": (MyAudio(), lambda i: np.arange(i)),
}
# Encoded files, which covey returns unchanged.
ENCODED = ["gif", "float image", "lazy sound", "video", "videos", "images"]


class Everything(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Made by TFDS."""

    VERSION = tfds.core.Version("1.0.0")
    name = "everything"
    pkg_dir_path = None

    def _info(self):
        features = {name: each for name, (each, _) in MADE.items()}
        return tfds.core.DatasetInfo(builder=self, features=T.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(3):
            yield i, {name: value(i) for name, (_, value) in MADE.items()}


@pytest.fixture(scope="module")
def made_by_tfds(tmp_path_factory):
    tfds.disable_progress_bar()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorflow_datasets.core.features.audio_feature._pydub_load_audio", load_wav)
        builder = Everything(data_dir=tmp_path_factory.mktemp("tfds"))
        builder.download_and_prepare()
    return builder.data_path


@pytest.fixture(scope="module")
def read_by_both(made_by_tfds):
    """The examples as covey reads them, and as TFDS does."""
    dataset = covey.open(made_by_tfds)
    features, ours = dataset.features, list(dataset)
    no_autograph = tfds.decode.SkipDecoding()
    decoders = {
        **dict.fromkeys(ENCODED, no_autograph),
        "episode": {"frame": no_autograph},
        "things": {"mask": no_autograph},
    }
    builder = tfds.builder_from_directory(made_by_tfds)
    theirs = list(builder.as_dataset(split="train", decoders=decoders))
    assert len(ours) == len(theirs) == 3
    return features, list(zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", MADE)
def test_covey_reads_a_dataset_of_tfds(read_by_both, name):
    features, examples = read_by_both
    for ours, theirs in examples:
        value = ours[name]
        if isinstance(features.get(name), Image):
            value = features[name].decode(value)
        assert agree(neutral(value), neutral(theirs[name]))
        if hasattr(value, "dtype") and value.dtype != object:
            found = getattr(theirs[name], "element_spec", theirs[name])
            assert value.dtype == found.dtype.as_numpy_dtype


def test_images_in_sequences_are_not_decoded(made_by_tfds, read_by_both):
    _, examples = read_by_both
    for found, (encoded, _) in zip(
        covey.open(made_by_tfds, decode_images=True), examples, strict=True
    ):
        assert found["image"].shape == PIXELS.shape
        for name in ("images", "video", "videos", "things", "episode"):
            assert same(neutral(found[name]), neutral(encoded[name]))
        frames = zip(found["things"]["mask"], found["things"]["kind"], strict=True)
        for frame, k in frames:
            assert (tf.io.decode_image(frame) == PIXELS[..., :1] + np.uint8(k)).numpy().all()


def test_features_of_a_dataset_of_tfds(read_by_both):
    features, _ = read_by_both
    expected = {
        "label": ClassLabel(names=["wren", "owl"]),
        "in/label": ClassLabel(names=["x"]),
        "none of float64": Tensor("float64", (2,), encoding="list"),
        "optional": Tensor("int32", (2,), default=[-(2**31)] * 2),
        "mask": Image((None, None, 1)),
        "deep": Ragged("str", 3),
        "objects/box": Tensor("float32", (None, 4)),
        "nested float64": Ragged("float32"),
        "episode/action/pose": Tensor("float32", (None, 7)),
        "float image": Tensor("bytes"),  # inferred from the records
        "lazy sound": Tensor("bytes"),
        "translation/fr": Tensor("str"),
    }
    assert {name: features[name] for name in expected} == expected


def by_both(directory, feature, value):
    """A value that TFDS stores: as covey reads it, and the record."""
    theirs = T.FeaturesDict({"x": feature, "y": np.int64})
    theirs.save_config(directory)
    record = theirs.serialize_example({"x": value, "y": 1})
    features = features_from_tfds(directory, infer=lambda: Features.infer_records([record]))
    return features.decode(record)["x"], record


TWO = np.array([1, 2], np.int32)
SECONDS = np.array([1, 2], np.int64).tobytes()
FOUR, SIX = TWO.tobytes() + TWO.tobytes(), TWO.tobytes() * 3

# Features that TFDS stores but does not read, or reads differently: value, and what covey reads.
STORED = {
    "encoder": (T.Text(tfds.deprecated.text.ByteTextEncoder()), "hé", [105, 196, 170]),
    "uint32": (tensor(np.uint32, (2,), "bytes"), np.uint32([1, 2]), [1, 2]),
    "dates": (tensor(np.dtype("M8[s]"), (2,), "bytes"), np.array([1, 2], "M8[s]"), SECONDS),
    "optional memory": (tensor(np.int32, (2,), "bytes", optional=True), TWO, [1, 2]),
    "no memory": (tensor(np.int32, (2,), "bytes", optional=True), None, [-(2**31)] * 2),
    "no zlib": (tensor(np.float64, (), "zlib", optional=True), None, np.finfo("float64").min),
    "optional in a sequence": (
        T.Sequence(tensor(np.int32, optional=True), length=2),
        [1, 2],
        [1, 2],
    ),
    "unknown rows": (T.Sequence(tensor(np.int32, (None,))), [TWO, TWO], [1, 2, 1, 2]),
    "unknown pairs": (T.Sequence(tensor(np.int32, (None, 2))), [[TWO], [TWO]], [1, 2, 1, 2]),
    "bfloat16": (
        tensor(tf.bfloat16, (2,), "bytes"),
        np.array([0.5, -3], tf.bfloat16.as_numpy_dtype),
        np.array([0.5, -3], tf.bfloat16.as_numpy_dtype).tobytes(),
    ),
    "sounds": (T.Sequence(T.Audio()), [np.arange(2), np.arange(2)], [0, 1, 0, 1]),
    "nested unknown rows": (
        T.Sequence(T.Sequence(tensor(np.int32, (None,)))),
        [[TWO, TWO], [], [TWO]],
        {"ragged_flat_values": [1, 2, 1, 2, 1, 2], "ragged_row_lengths_0": [2, 0, 1]},
    ),
    "dynamic memories": (
        T.Sequence(tensor(np.int32, (None, None), "bytes")),
        [np.stack([TWO] * 2), np.stack([TWO] * 3)],
        {"shape": [2, 2, 3, 2], "value": [FOUR, SIX]},
    ),
    "memories": (T.Sequence(tensor(np.int32, (2,), "bytes")), [TWO, TWO], [TWO.tobytes()] * 2),
    "nested zlibs": (
        T.Sequence(T.Sequence(tensor(np.int32, (2,), "zlib"))),
        [[], [TWO]],
        [[], [zlib.compress(TWO.tobytes())]],
    ),
    "dynamic complex": (
        tensor(np.complex64, (None, None), "bytes"),
        np.complex64([[1j]]),
        {"shape": [1, 1], "value": np.complex64([1j]).tobytes()},
    ),
}


@pytest.mark.parametrize("case", STORED)
def test_values_that_tfds_stores_but_does_not_read(tmp_path, case):
    feature, value, expected = STORED[case]
    assert neutral(by_both(tmp_path, feature, value)[0]) == expected


def test_missing_text(tmp_path):
    theirs = T.FeaturesDict({"x": T.Text(optional=True), "y": np.int64})
    theirs.save_config(tmp_path)
    record = theirs.serialize_example({"x": None, "y": 1})
    features = features_from_tfds(tmp_path)
    with pytest.raises(ExampleError) as caught:
        features.decode(record)
    check_error(caught.value, "missing; declare it with a default", record=0, feature="x")
    features = features.replace({"x": Tensor("str", default="")})
    assert features.decode(record)["x"].encode() == theirs.deserialize_example(record)["x"].numpy()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # TFDS' own, of float64
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("dtype", [*NUMBERS, "str"])
def test_missing_optional_tensor(tmp_path, dtype, shape):
    optional = tensor(np.dtype(dtype).type, shape, optional=True)
    found, record = by_both(tmp_path, optional, None)
    theirs = T.FeaturesDict({"x": optional}).deserialize_example(record)["x"]
    assert same(neutral(found), neutral(theirs))


@pytest.mark.parametrize(
    ("shape", "encoding", "expected"),
    [
        ([-1], "none", Tensor("int8", (None,), default=[])),
        ([2, -1], "zlib", Tensor("int8", (2, None), encoding="zlib", default=[[], []])),
        ([-1, -1], "bytes", Tensor("int8", (None, None), encoding="bytes")),
        ([2**30], "none", Tensor("int8", (2**30,))),  # too large for a default
    ],
)
def test_optional_tensors_that_this_tfds_does_not_store(tmp_path, shape, encoding, expected):
    content = {
        "dtype": "int8",
        "shape": {"dimensions": shape},
        "encoding": encoding,
        "optional": True,
    }
    (tmp_path / "features.json").write_text(one(content))
    assert features_from_tfds(tmp_path) == Features({"x": expected})


SEQUENCE = {"x": Tensor("int64", (None,)), "y": Ragged("int64")}


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (T.Sequence({"x": np.int64, "y": T.Sequence(np.int64)}), SEQUENCE),
        (T.Dataset({"x": np.int64, "y": T.Sequence(np.int64)}), SEQUENCE),
        (T.Translation(["en"]), {"en": Tensor("str")}),
    ],
)
def test_top_level_features(tmp_path, top, expected):
    top.save_config(tmp_path)
    assert features_from_tfds(tmp_path) == expected


class Odd(T.FeatureConnector):
    """A user-defined class, whose storage is not in the file."""

    def get_tensor_info(self):
        return T.TensorInfo(shape=(), dtype=np.int64)

    def encode_example(self, example_data):
        return example_data


def test_user_defined_class_of_unknown_storage(tmp_path):
    T.FeaturesDict({"in": {"x": Odd()}}).save_config(tmp_path)
    with pytest.raises(FeatureError) as caught:
        features_from_tfds(tmp_path)
    path = str(tmp_path / FEATURES_FILE)
    check_error(caught.value, f"the class {__name__}.Odd ", path=path, feature="in/x")
    found = features_from_tfds(tmp_path, infer=lambda: Features({"in/x": "int64", "y": "str"}))
    assert found == {"in/x": Tensor("int64")}


# Files read by a function.


# Compressed memory in byte strings, an encoding of TFDS.

SHAPES = [(), (2,), (0, 2), (None,), (None, 2), (2, None), (None, 1, None)]


@st.composite
def packed(draw):
    """A feature, and values of it."""
    shape = draw(st.sampled_from(SHAPES))
    dtype = draw(st.sampled_from([each for each in NUMBERS if each != "uint32"]))
    sizes = st.tuples(*(st.integers(0, 3) if size is None else st.just(size) for size in shape))
    values = st.lists(sizes.flatmap(lambda s: hnp.arrays(dtype, s)), min_size=1, max_size=3)
    return Tensor(dtype, shape, encoding="zlib"), draw(values)


@settings(max_examples=40)
@given(case=packed())
def test_packed_memory_of_any_shape(case):
    feature, values = case
    features = Features({"x": feature})
    records = [features.encode({"x": value}) for value in values]
    block = features.encode_batch({"x": values})
    for column in (features.decode_batch(records), features.decode_batch(block)):
        assert [x.dtype for x in column["x"]] == [value.dtype for value in values]
        assert [x.shape for x in column["x"]] == [value.shape for value in values]
        assert all(map(same, column["x"], values))
    assert [features.encode({"x": x}) for x in features.decode_batch(block)["x"]] == records
    assert features_from_json(features_to_json(features), "x") == features
    content, _ = features_to_tfds(features)
    theirs = T.FeatureConnector.from_json(content)
    if 0 not in feature.shape:  # TensorFlow aborts
        for record, value in zip(records, values, strict=True):
            assert same(neutral(theirs.deserialize_example(record)["x"]), value.tolist())
            assert same(features.decode(theirs.serialize_example({"x": value}))["x"], value)


NOT_ZLIB = "invalid or too much zlib data, expected"
WRONG_BYTES = [
    (Tensor("int16", (2,), encoding="zlib"), [b"junk"], NOT_ZLIB),
    (Tensor("int16", (2,), encoding="zlib"), [zlib.compress(b"abcd")[:-1]], NOT_ZLIB),
    (Tensor("int16", (2,), encoding="zlib"), [zlib.compress(b"abcd") + b"x"], NOT_ZLIB),
    (Tensor("int16", (2,), encoding="zlib"), [zlib.compress(bytes(10**6))], NOT_ZLIB),
    (Tensor("int16", (2,), encoding="zlib"), [zlib.compress(b"abc")], "3 bytes, expected 4 bytes"),
    (Tensor("int16", (None, 2), encoding="zlib"), [zlib.compress(b"abc")], "4 bytes or a multiple"),
    (Tensor("int16", (None, 2), encoding="zlib"), [b"junk"], NOT_ZLIB),
    (Tensor("bool", (None,), encoding="zlib"), [zlib.compress(b"\2")], "other than 0 and 1"),
]


@pytest.mark.parametrize(("feature", "strings", "reason"), WRONG_BYTES)
def test_wrong_bytes_are_rejected(feature, strings, reason):
    features = Features({"x": feature})
    value = np.zeros([2 if size is None else size for size in feature.shape], feature.dtype)
    good = features.encode({"x": value})
    stored = tf.train.Feature(bytes_list=tf.train.BytesList(value=strings))
    bad = tf.train.Example(features=tf.train.Features(feature={"x": stored})).SerializeToString()
    with pytest.raises(ExampleError) as caught:
        features.decode_batch([good, good, bad, good])
    check_error(caught.value, reason, path=None, record=2, feature="x")


# Invalid files.


def one(content, field="tensor", name="tensorflow_datasets.core.features.some.Feature", **more):
    """A file with one feature, x."""
    node = {"pythonClassName": name, field: content, **more}
    features = {"featuresDict": {"features": {"x": node}}}
    return json.dumps({"pythonClassName": "tensorflow_datasets.x.FeaturesDict", **features})


def label(count):
    return one({"numClasses": count}, "classLabel")


def number(**fields):
    return one({"dtype": "int8", **fields})


def sizes(*dimensions):
    return number(shape={"dimensions": dimensions})


def deep(levels):
    return [deep(levels - 1)] if levels else []


def rejected(text, reason="", feature="x", **fields):
    """A file, a part of the reason why it is rejected, and the fields of the error."""
    return text, reason, {"feature": feature, **fields}


INVALID = {
    "incomplete json": rejected("{", "not valid JSON", None),
    "invalid utf-8": rejected(b"\xff\xfe\xfd", "not valid JSON", None),
    "empty": rejected("{}", "the class of the feature is missing", None),
    "class of number": rejected(one({}, name=3), "the class of the feature is missing"),
    "unknown class": rejected(one({}, "novel"), "the class tensorflow_datasets.core.features.some"),
    "several types": rejected(one({}, image={}), "several types: tensor, image"),
    "content of list": rejected(one([]), "expected a dict"),
    "json": rejected(one({"json": "{}"}, "jsonFeature"), "is not in the file"),
    "before 4.4": rejected('{"type": "x", "content": {}}', "the class of the feature is", None),
    "shape of text": rejected(number(shape="3"), "found '3', expected a dict"),
    "sizes of text": rejected(sizes("a"), "found 'a', expected a size"),
    "dimensions": rejected(number(shape={"dimensions": {}}), "the shape is not a list"),
    "many dimensions": rejected(sizes(*["1"] * 100_000), "not a list of up to 32 sizes"),
    "negative size": rejected(sizes("-2"), "found '-2'"),
    "size of float": rejected(sizes(1.5), "found 1.5, expected a size"),
    "huge": rejected(sizes(2**20, 2**20), "2 GiB"),
    "no dtype": rejected(one({}), "is not in the file"),
    "dtype of list": rejected(one({"dtype": deep(100)}), "is not in the file"),
    "encoding": rejected(number(encoding="gzip"), "is not in the file"),
    "image format": rejected(
        one({"encodingFormat": "webp"}, "image"), option="format", found="webp"
    ),
    "languages": rejected(one({"languages": 3}, "translation"), "languages is 3; must be a list"),
    "language": rejected(one({"languages": [3]}, "translation"), "must be a list of strings"),
    "empty language": rejected(
        one({"languages": [""]}, "translation"), "the name of a feature is ''", None
    ),
    "length": rejected(one({"feature": {}, "length": "x"}, "sequence"), "expected a size"),
    "no feature": rejected(one({}, "sequence"), "found None, expected a dict"),
    "classes of text": rejected(label("many"), "expected a size"),
    "text at the top": rejected(
        json.dumps(json_format.MessageToDict(T.Text().to_proto())),
        "neither a FeaturesDict nor a Sequence",
        None,
    ),
    "surrogate": rejected(label("1").replace('"x"', '"\\ud800"'), "is not valid UTF-8", None),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_files(tmp_path, case):
    text, reason, fields = INVALID[case]
    path = tmp_path / "features.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((FormatError, FeatureError)) as caught:
        features_from_tfds(tmp_path)
    check_error(caught.value, reason, path=str(path), **fields)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 600 + len(str(path))


# fmt: off
FIELDS = [
    "featuresDict", "sequence", "tensor", "classLabel", "text", "image", "video", "audio",
    "boundingBox", "translation", "jsonFeature", "type", "content", "proto_cls",
    "pythonClassName",
]
KEYS = [
    "features", "feature", "length", "shape", "dimensions", "dtype", "encoding", "optional",
    "numClasses", "encodingFormat", "lazyDecode", "languages", "variableLanguagesPerExample",
    "json", "use_encoder", "x",
]
# fmt: on
WORDS = ["tensorflow_datasets.x.Tensor", "tensorflow_datasets.Sequence", "int8", "string", "zlib"]
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([-2, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, "-1", "4", "", "{}", *WORDS]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        st.dictionaries(st.sampled_from(FIELDS), inner, max_size=2).map(
            lambda node: {"pythonClassName": "tensorflow_datasets.x.Audio", **node}
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(content=anything, field=st.sampled_from(FIELDS))
def test_random_files(content, field):
    text = one(content, field).encode()

    def read(name):
        if name != FEATURES_FILE:
            raise FileNotFoundError(name)
        return text

    try:
        found, message = features_from_tfds("birds", read), None
    except (FormatError, FeatureError) as error:
        found, message = {}, str(error)
    assert message is None or message.startswith("birds/features.json: ")
    assert all(name.split("/")[0] == "x" for name in found)


def test_deeply_nested_sequences(tmp_path):
    node = json_format.MessageToDict(T.Text().to_proto())
    for _ in range(100):
        name = "tensorflow_datasets.core.features.sequence_feature.Sequence"
        node = {"pythonClassName": name, "sequence": {"feature": node, "length": "-1"}}
    (tmp_path / "features.json").write_text(json.dumps(node))
    with pytest.raises(FormatError) as caught:
        features_from_tfds(tmp_path)
    path = str(tmp_path / FEATURES_FILE)
    check_error(caught.value, "nested deeper than 64 levels", path=path)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (b"a\nb\nc\n", "3 names, but"),
        (b"a\na\n", "the name 'a' occurs twice"),
        (b"\xff\n", "not valid UTF-8"),
    ],
)
def test_invalid_label_files(tmp_path, names, reason):
    (tmp_path / "features.json").write_text(label("2"))
    path = tmp_path / "x.labels.txt"
    path.write_bytes(names)
    with pytest.raises(FormatError) as caught:
        features_from_tfds(tmp_path)
    check_error(caught.value, reason, path=str(path))


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"features\.json"):
        features_from_tfds(tmp_path)
