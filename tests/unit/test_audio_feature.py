"""The audio feature with arrays of samples, without soundfile."""

import dataclasses
import json
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from opened import opened
from written import write

from covey import Audio, Features, Image, Tensor
from covey.arrays import RaggedArray
from covey.errors import FeatureError
from covey.schema.audio import audio_format, is_hugging_face_audio, to_int16
from covey.schema.features import features_from_json, features_to_json
from covey.schema.merge import unify
from covey.schema.tfds import features_from_tfds, features_to_tfds

DTYPES = ["float32", "int16"]
ENCODINGS = ["bytes", "zlib", "list"]
WAV = b"RIFF\x24\0\0\0WAVEfmt "


@pytest.fixture(autouse=True)
def _without_soundfile(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)


def encode(feature, value):
    """Return the samples that are stored for a value."""
    features = Features({"audio": feature})
    return features.decode(features.encode({"audio": value}))["audio"]


def expected_int16(samples):
    """Return the documented conversion of floats, in arbitrary precision."""
    return [max(-32768, min(32767, round(float(each) * 32768))) for each in samples]


# The feature.


def test_audio_feature():
    assert Audio() == Audio(None, "float32", shape=(None,), encoding="bytes")
    assert Audio(8000) != Tensor("float32", (None,), encoding="bytes")
    assert (Audio(8000, shape=(None, 2)).channels, Audio(shape=(16000,)).channels) == (2, 1)
    assert repr(Audio(8000, "int16")) == "Audio(sample_rate=8000, dtype='int16', shape=(None,))"
    assert dataclasses.replace(Audio(8000, default=[0.5]), dtype="int16").default == (16384,)
    assert Audio(8000, "int16", default=[0.5]).default == (16384,)
    feature = Audio(np.int64(8000), np.int16, encoding="zlib", default=[1])
    assert pickle.loads(pickle.dumps(feature)) == feature
    assert hash(feature) == hash(Audio(8000, "int16", encoding="zlib", default=(1,)))


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("sample_rate", {"sample_rate": 0}),
        ("sample_rate", {"sample_rate": 44100.0}),
        ("sample_rate", {"sample_rate": True}),
        ("sample_rate", {"sample_rate": 2**31}),
        ("dtype", {"dtype": "int64"}),
        ("dtype", {"dtype": "str", "encoding": "list"}),
        ("shape", {"shape": ()}),
        ("shape", {"shape": (8, 2, 2)}),
        ("encoding", {"encoding": "flac"}),
        ("encoding", {"encoding": "bytes_each"}),
    ],
)
def test_invalid_arguments(option, arguments):
    with pytest.raises(FeatureError) as caught:
        Audio(**arguments)
    assert caught.value.option == option


def test_features_as_json():
    features = Features(
        {
            "a": Audio(8000),
            "b": {"c": Audio(None, "int16", shape=(None, 2), encoding="list")},
            "d": Audio(44100, "int16", shape=(4,), encoding="zlib", default=[1, 2, 3, 4]),
        }
    )
    content = json.loads(json.dumps(features_to_json(features)))
    assert features_from_json(content, "x.json") == features
    content["features"][0]["sample_rate"] = "8000"
    with pytest.raises(ValueError, match="sample_rate"):
        features_from_json(content, "x.json")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("shape", "rate"), [((None,), None), ((None, 2), 8000), ((4, 2), 8000)])
def test_features_of_tfds(encoding, shape, rate):
    features = Features({"audio": Audio(rate, "int16", shape=shape, encoding=encoding)})
    content = json.dumps(features_to_tfds(features)[0]).encode()
    assert features_from_tfds("", {"features.json": content}.__getitem__) == features


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"dtype": "int64"}, Tensor("int64", (None,))),
        ({"dtype": "int16", "sampleRate": "-1"}, Audio(None, "int16", encoding="list")),
        ({"dtype": "int16", "sampleRate": str(2**40)}, Audio(None, "int16", encoding="list")),
        ({"dtype": "float32", "shape": {"dimensions": ["-1", "0"]}}, None),
        ({"dtype": "float16", "encoding": "BYTES"}, Tensor("float16", (None,), encoding="bytes")),
        ({"dtype": "int16", "lazyDecode": True}, Tensor("bytes")),
    ],
)
def test_other_audio_of_tfds(content, expected):
    audio = {"shape": {"dimensions": ["-1"]}} | content
    package = "tensorflow_datasets.core.features"
    node = {"pythonClassName": f"{package}.audio_feature.Audio", "audio": audio}
    top = {
        "pythonClassName": f"{package}.features_dict.FeaturesDict",
        "featuresDict": {"features": {"audio": node}},
    }
    files = {"features.json": json.dumps(top).encode()}
    if expected is None:
        with pytest.raises(FeatureError):
            features_from_tfds("", files.__getitem__)
    else:
        assert features_from_tfds("", files.__getitem__)["audio"] == expected


def test_unified_features():
    def of(*kinds):
        return unify(*(Features({"audio": kind}) for kind in kinds))["audio"]

    assert of(Audio(8000, shape=(4,)), Audio(8000, shape=(5,))) == Audio(8000)
    assert of(Audio(8000), Audio(8000)) == Audio(8000)
    stereo = Audio(8000, shape=(None, 2))
    for other in (Audio(16000), Audio(8000, "int16"), stereo, Tensor("int64")):
        with pytest.raises(FeatureError, match="in one schema"):
            of(Audio(8000), other)


# Samples.

SAMPLES = hnp.arrays(np.int16, st.integers(0, 50), elements=st.integers(-(2**15), 2**15 - 1))
FLOATS = hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(-4, 4, width=32))


@given(SAMPLES, st.sampled_from(ENCODINGS))
def test_int16_samples(samples, encoding):
    stored = encode(Audio(8000, "int16", encoding=encoding), samples)
    assert stored.dtype == np.int16
    assert stored.tolist() == samples.tolist()
    floats = encode(Audio(8000, encoding=encoding), samples)
    assert floats.dtype == np.float32
    assert floats.tolist() == [int(each) / 32768 for each in samples]
    assert encode(Audio(8000, "int16"), floats).tolist() == samples.tolist()


@given(FLOATS, st.sampled_from(["float32", "float64"]))
def test_float_samples(samples, dtype):
    given_samples = samples.astype(dtype)
    assert encode(Audio(8000), given_samples).tolist() == samples.tolist()
    assert encode(Audio(8000, "int16"), given_samples).tolist() == expected_int16(samples)


def test_clipped_samples():
    samples = np.array([-np.inf, -1.5, -1, 1 - 2**-15, 1, 1.5, np.inf])
    expected = [-32768, -32768, -32768, 32767, 32767, 32767, 32767]
    assert to_int16(samples).tolist() == expected
    assert to_int16(samples.astype(np.float16)).tolist() == expected[:3] + [32767] * 4
    big_endian = np.array([256, -2], ">i2")
    assert encode(Audio(8000, "int16"), big_endian).tolist() == [256, -2]
    assert encode(Audio(8000), big_endian).tolist() == [2**-7, -(2**-14)]
    with pytest.raises(FeatureError, match="NaN"):
        encode(Audio(8000, "int16"), np.array([0.5, np.nan]))
    assert np.isnan(encode(Audio(8000), np.array([np.nan]))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_batches_of_samples(dtype, encoding):
    rows = [np.array([0.5, -0.25]), np.zeros(0), np.array([0.125])]
    features = Features({"audio": Audio(8000, dtype, encoding=encoding)})
    scale = 32768 if dtype == "int16" else 1
    expected = [(row * scale).tolist() for row in rows]
    ragged = RaggedArray(np.concatenate(rows), np.array([0, 2, 2, 3]))
    for batch in (rows, [row.tolist() for row in rows], ragged):
        column = features.decode_batch(features.encode_batch({"audio": batch}))["audio"]
        assert [row.tolist() for row in column] == expected
    dense = np.array([[16384, -16384], [1, 2]], np.int16)
    column = features.decode_batch(features.encode_batch({"audio": dense}))["audio"]
    assert [row.tolist() for row in column] == (dense / (32768 / scale)).tolist()


def test_channels():
    stereo = np.array([[0.5, -0.5], [0.25, 0.0], [0.0, 1.0]], np.float32)
    assert np.array_equal(encode(Audio(8000, shape=(None, 2)), stereo), stereo)
    mono = stereo[:, :1]
    assert encode(Audio(8000), mono).shape == (3,)
    assert encode(Audio(8000, shape=(None, 1)), mono[:, 0]).shape == (3, 1)
    assert encode(Audio(8000, shape=(None, 2)), []).shape == (0, 2)
    with pytest.raises(FeatureError, match="2 channels; must have one channel") as caught:
        encode(Audio(8000), stereo)
    assert "(None, 2)" in caught.value.remedy
    with pytest.raises(FeatureError, match="one channel; must have 2 channels"):
        encode(Audio(8000, shape=(None, 2)), mono)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "value",
    [
        None,
        0.5,
        "owl.wav",
        ["a"],
        b"",
        b"noise",
        np.zeros((2, 2, 2), np.float32),
        np.array([2**15]),
        np.array([1 + 2j]),
        {},
        {"array": [0.5]},
        {"sampling_rate": 8000},
        {"path": None, "bytes": None},
        {"array": [0.5], "sampling_rate": 16000},
        {"array": [0.5], "sampling_rate": None},
        {"bytes": None, "path": "missing.wav"},
        {"bytes": None, "path": "\0.wav"},
    ],
)
def test_invalid_values(dtype, value):
    with pytest.raises(FeatureError) as caught:
        encode(Audio(8000, dtype), value)
    if not isinstance(value, dict) or value:  # an empty dict is an example without values
        assert caught.value.feature == "audio"


def test_missing_soundfile():
    for value in (WAV, {"bytes": WAV, "path": None}):
        with pytest.raises(FeatureError, match=r"pip install 'covey\[audio\]'"):
            encode(Audio(8000), value)


# Inference.


def test_dicts_of_hugging_face():
    assert is_hugging_face_audio({"bytes": WAV, "path": None})
    assert is_hugging_face_audio({"bytes": None, "path": "a/owl.FLAC"})
    assert is_hugging_face_audio({"array": [], "sampling_rate": 8000, "path": "owl.wav"})
    for other in (
        {"bytes": b"\x89PNG\r\n\x1a\n", "path": None},
        {"bytes": None, "path": "owl.jpg"},
        {"bytes": None, "path": None},
        {"array": [], "rate": 8000},
        {"array": []},
        [],
    ):
        assert not is_hugging_face_audio(other)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (WAV, "WAV"),
        (b"RF64\xff\xff\xff\xffWAVE", "WAV"),
        (b"RIFF\x24\0\0\0WEBP", None),
        (b"OggS", "OGG"),
        (b"ID3\4", "MP3"),
        (b"\xff\xfb\x90", "MP3"),
        (b"\xff\xd8\xff", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_formats(head, expected):
    assert audio_format(head) == expected


def test_inferred_features():
    sound = {"array": np.array([0.5]), "sampling_rate": 8000}
    assert Features.infer([{"x": sound}])["x"] == Audio(8000)
    short = sound | {"array": np.array([1, 2], np.int16)}
    assert Features.infer([{"x": short}, {"x": short}])["x"] == Audio(8000, "int16")
    assert Features.infer([{"x": short}, {"x": sound}])["x"] == Audio(8000)
    assert Features.infer_columns({"x": [sound, sound]})["x"] == Audio(8000)
    stereo = sound | {"array": np.zeros((3, 2), np.float32)}
    assert Features.infer([{"x": stereo}])["x"] == Audio(8000, shape=(None, 2))
    for array in (np.zeros(9, np.int16), np.zeros(9, np.float32)):  # arrays are not audio
        assert type(Features.infer([{"x": array}])["x"]) is Tensor
    assert isinstance(Features.infer([{"x": {"bytes": None, "path": "a.jpg"}}])["x"], Image)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"array": [0.5], "sampling_rate": 16000}, r"8000 Hz, example 1 has 16000 Hz"),
        ({"array": np.zeros((2, 2)), "sampling_rate": 8000}, r"channels of 1, example 1 has 2"),
        ([0.5], "the type audio, example 1 has float32"),
        ([], "the type audio, example 1 has an empty list"),
    ],
)
def test_different_sounds(other, reason):
    sound = {"array": [0.5], "sampling_rate": 8000}
    with pytest.raises(FeatureError, match=reason):
        Features.infer([{"x": sound}, {"x": other}])


# Datasets.


@pytest.mark.parametrize("dtype", DTYPES)
def test_written_sounds(tmp_path, no_fsync, dtype):
    rng = np.random.default_rng(7)
    sounds = [rng.integers(-(2**15), 2**15, n % 7).astype(np.int16) for n in range(40)]
    examples = [{"audio": each, "label": n % 4, "n": n} for n, each in enumerate(sounds)]
    features = {"audio": Audio(8000, dtype), "label": "int64", "n": "int64"}
    write(examples, tmp_path / "out", label="label", features=features)
    scale = 1 if dtype == "int16" else 32768
    with opened(tmp_path / "out", split="train") as ds:
        assert ds.features["audio"] == Audio(8000, dtype)
        x, _ = next(iter(ds.batches(4, 5, seed=1, select=["audio", "n"])))
        for audio, n in zip(x["audio"], x["n"], strict=True):
            assert audio.dtype == dtype
            assert (audio * scale).tolist() == sounds[n].tolist()
    fixed = {"audio": Audio(8000, dtype, shape=(6,)), "label": "int64"}
    examples = [{"audio": np.full(6, n, np.int16), "label": n % 2} for n in range(8)]
    write(examples, tmp_path / "fixed", label="label", features=fixed)
    with opened(tmp_path / "fixed", split="train") as ds:
        x, _ = next(iter(ds.batches(2, 3, seed=1)))
        assert (x.shape, x.dtype) == ((6, 6), dtype)


def test_skipped_sounds(tmp_path, no_fsync):
    sound = {"array": [0.5], "sampling_rate": 8000}
    examples = [{"audio": sound, "label": 0}, {"audio": sound | {"sampling_rate": 1}, "label": 0}]
    result = write(examples, tmp_path / "out", label="label", on_error="skip")
    assert result.records == 1
    (skipped,) = result.skipped
    assert "8000 Hz" in skipped.reason
    assert " 1 Hz" in skipped.reason
