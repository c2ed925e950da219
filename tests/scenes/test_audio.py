"""Spoken digits: WAV, FLAC, OGG and MP3 files to batches, and to TFDS."""

import io
import json
import os
import pickle
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import tensorflow as tf
import tensorflow_datasets as tfds

import covey
from covey.cli import main
from covey.errors import FeatureError, SourceError
from covey.sources import open_source, open_splits

RATE = 8000
DIGITS = ("eight", "one", "zero")


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def sound(seed, length=400, channels=1):
    """Return samples of 16 bits, as floats."""
    rng = np.random.default_rng(seed)
    shape = (length, channels) if channels > 1 else (length,)
    return (rng.integers(-(2**14), 2**14, shape) / 2**15).astype(np.float32)


def put(path, samples, rate=RATE, subtype=None):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    soundfile.write(path, samples, rate, subtype=subtype)


def put_digits(root="digits", extensions=("wav",), count=6):
    for name in DIGITS:
        for n in range(count):
            extension = extensions[n % len(extensions)]
            put(f"{root}/{name}/{n}_{name}.{extension}", sound(n, 300 + 50 * n))
    return root


def encoded(samples, rate=RATE, format="WAV", subtype=None):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def examples_of_tfds(path, split="train"):
    builder = tfds.builder_from_directory(path)
    return builder, list(tfds.as_numpy(builder.as_dataset(split=split)))


# A directory of sounds.


def test_a_directory_of_sounds_to_batches(capsys):
    put_digits()
    assert main(["write", "digits", "out", "--split", "train"]) == 0
    assert main(["info", "out"]) == 0
    assert "Audio of float32 (any,), 8,000 Hz" in capsys.readouterr().out
    with covey.open("out", split="train") as ds:
        assert ds.features["audio"] == covey.Audio(RATE)
        assert ds.features["label"].names == DIGITS
        x, y = next(iter(ds.batches(3, 4, seed=1, select=["audio", "filename"])))
    assert np.bincount(y).tolist() == [4, 4, 4]
    for samples, name, label in zip(x["audio"], x["filename"], y, strict=True):
        expected, _ = soundfile.read(f"digits/{name}", dtype="float32")
        assert samples.dtype == np.float32
        assert np.array_equal(samples, expected)
        assert name.startswith(DIGITS[label])


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_tfds_reads_audio(dtype):
    put_digits(extensions=("wav", "flac"))
    source = open_source("digits")
    assert (source.kind, source.length, source.label) == ("audio directory", 18, "label")
    features = {**source.features, "audio": covey.Audio(RATE, dtype)}
    covey.write(source, "out", split="train", features=features)
    builder, examples = examples_of_tfds("out")
    feature = builder.info.features["audio"]
    assert isinstance(feature, tfds.features.Audio)
    assert (feature.sample_rate, feature.dtype, feature.shape) == (RATE, np.dtype(dtype), (None,))
    assert len(examples) == 18
    for each in examples:
        expected, _ = soundfile.read(f"digits/{each['filename'].decode()}", dtype=dtype)
        assert each["audio"].dtype == dtype
        assert np.array_equal(each["audio"], expected)
    # Two bytes per sample of int16: a list of int64 would take up to ten.
    samples = sum(each["audio"].nbytes for each in examples)
    assert builder.info.dataset_size < samples + 18 * 200


def test_compressed_formats():
    put_digits(extensions=("ogg", "mp3", "flac", "WAV"))
    covey.write(open_source("digits"), "out", split="train")
    with covey.open("out", split="train") as ds:
        for each in ds:
            expected, _ = soundfile.read(f"digits/{each['filename']}", dtype="float32")
            # libsndfile's MP3 decoder rounds differently after a seek, which soundfile.read does.
            assert np.allclose(each["audio"], expected, rtol=0, atol=1e-6)


def test_splits_and_stereo():
    for split, name in (("train", "cat"), ("train", "dog"), ("test", "dog")):
        put(f"sounds/{split}/{name}/0.wav", sound(1, channels=2))
    splits = open_splits("sounds")
    assert list(splits) == ["train", "test"]
    assert splits["test"].features["audio"] == covey.Audio(RATE, shape=(None, 2))
    covey.write(splits["test"], "out", split="test")
    ((each),) = examples_of_tfds("out", "test")[1]
    assert np.array_equal(each["audio"], sound(1, channels=2))
    assert each["label"] == 1  # "dog", also in a split without "cat"


def test_covers_of_albums_are_not_the_dataset():
    put_digits()
    with open("digits/one/cover.jpg", "wb") as file:
        file.write(b"\xff\xd8\xff")
    with pytest.raises(SourceError, match="kind='image-directory', or pass kind='audio-directory'"):
        open_source("digits")
    assert open_source("digits", kind="audio-directory").length == 18


# Sounds that are not valid.


def corrupt(path, change):
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(change(data))


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3"])
@pytest.mark.parametrize("change", ["empty", "head", "half", "end", "other"])
def test_corrupt_files(extension, change, capfd):
    put_digits(extensions=(extension,))
    changes = {
        "empty": lambda data: b"",
        "head": lambda data: data[:30],
        "half": lambda data: data[: len(data) // 2],
        "end": lambda data: data[:-1],
        "other": lambda data: b"<html>" + data,
    }
    path = f"digits/one/3_one.{extension}"
    corrupt(path, changes[change])
    source = pickle.loads(pickle.dumps(open_source("digits")))
    errors = {i: each for i, each in enumerate(source.examples) if isinstance(each, SourceError)}
    assert {i: each.path for i, each in errors.items()} == {9: path}
    result = covey.write(source, "out", split="train", on_error="skip")
    assert (result.records, len(result.skipped)) == (17, 1)
    assert path in result.skipped[0].reason


@pytest.mark.parametrize(
    ("samples", "rate", "found"),
    [(sound(1), 16000, "16000 Hz; must be 8000 Hz"), (sound(1, channels=2), RATE, "2 channels")],
)
def test_another_rate_or_number_of_channels(samples, rate, found, capsys):
    put_digits()
    put("digits/one/x.wav", samples, rate)
    with pytest.raises(FeatureError, match=found) as caught:
        covey.write(open_source("digits"), "out", split="train")
    assert caught.value.feature == "audio"
    assert caught.value.remedy
    assert "one/x.wav" in str(caught.value)
    assert main(["write", "digits", "out", "--split", "train"]) != 0
    assert found in capsys.readouterr().err
    assert main(["write", "digits", "out", "--split", "train", "--on-error", "skip"]) == 0
    with covey.open("out", split="train") as ds:
        assert len(ds) == 18


def test_a_first_file_that_is_corrupt():
    put_digits()
    corrupt("digits/eight/0_eight.wav", lambda data: data[:10])
    assert open_source("digits").features["audio"] == covey.Audio(RATE)
    for name in DIGITS:
        for n in range(6):
            corrupt(f"digits/{name}/{n}_{name}.wav", lambda data: b"")
    source = open_source("digits")
    assert all(isinstance(each, SourceError) for each in source.examples)


def test_soundfile_is_not_installed(monkeypatch, capsys):
    put_digits()
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(SourceError, match=r"pip install 'covey\[audio\]'"):
        open_source("digits")
    assert main(["write", "digits", "out", "--split", "train"]) != 0
    assert "covey[audio]" in capsys.readouterr().err


# Values.


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize(
    ("format", "subtype"),
    [
        ("WAV", "PCM_16"),
        ("WAV", "PCM_U8"),
        ("WAV", "PCM_24"),
        ("WAV", "FLOAT"),
        ("WAV", "ULAW"),
        ("FLAC", "PCM_16"),
        ("OGG", "VORBIS"),
    ],
)
def test_encoded_bytes(dtype, format, subtype):
    data = encoded(sound(3), format=format, subtype=subtype)
    features = covey.Features({"audio": covey.Audio(RATE, dtype)})
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32")
    if dtype == "int16":
        expected = np.clip(np.rint(expected.astype(np.float64) * 32768), -32768, 32767)
    for value in (data, bytearray(data), {"bytes": data, "path": None}):
        samples = features.decode(features.encode({"audio": value}))["audio"]
        assert samples.dtype == dtype
        assert np.array_equal(samples, expected)


def test_unknown_sampling_rate():
    features = covey.Features({"audio": covey.Audio()})
    assert len(features.decode(features.encode({"audio": sound(1)}))["audio"]) == 400
    with pytest.raises(FeatureError, match="8000 Hz") as caught:
        features.encode({"audio": encoded(sound(1))})
    assert "Audio(8000)" in caught.value.remedy


def test_wav_of_a_pipe():
    data = bytearray(encoded(sound(3)))
    features = covey.Features({"audio": covey.Audio(RATE)})
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = b"\xff\xff\xff\xff"  # the sizes that ffmpeg writes to a pipe
    samples = features.decode(features.encode({"audio": bytes(data)}))["audio"]
    assert np.array_equal(samples, sound(3))


def test_a_header_that_claims_many_samples():
    data = bytearray(encoded(sound(3), format="FLAC"))
    data[21] |= 0x0F  # 36 bits of STREAMINFO: the number of samples
    data[22:26] = b"\xff\xff\xff\xff"
    with pytest.raises(FeatureError, match="not valid audio"):
        covey.Features({"audio": covey.Audio(RATE)}).encode({"audio": bytes(data)})


@pytest.mark.parametrize("form", ["bytes", "path", "array"])
def test_hugging_face_dataset(form):
    put_digits()
    paths = [f"digits/{name}/{n}_{name}.wav" for name in DIGITS for n in range(6)]
    sounds = {
        "bytes": [{"bytes": Path(path).read_bytes(), "path": None} for path in paths],
        "path": [{"bytes": None, "path": os.path.abspath(path)} for path in paths],
        "array": [{"array": sound(n % 6), "sampling_rate": RATE} for n in range(18)],
    }
    columns = {"audio": sounds[form], "label": [n // 6 for n in range(18)], "n": list(range(18))}
    if form == "array":
        dataset = datasets.Dataset.from_dict(columns)
    else:
        # datasets.Audio encodes and decodes with torchcodec; covey does not.
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({**columns, "audio": pa.array(columns["audio"], kind)})
        features = {"label": datasets.ClassLabel(names=list(DIGITS)), "n": datasets.Value("int64")}
        features = datasets.Features({"audio": datasets.Audio(), **features})
        dataset = datasets.Dataset(
            datasets.table.InMemoryTable(table), info=datasets.DatasetInfo(features=features)
        )
    result = covey.write(dataset, "out", split="train", label="label")
    assert result.features["audio"] == covey.Audio(RATE)
    with covey.open("out", split="train") as ds:
        for each in ds:
            expected = sound(each["n"] % 6)
            if form != "array":
                expected, _ = soundfile.read(paths[each["n"]], dtype="float32")
            assert np.array_equal(each["audio"], expected)


def test_parquet_of_hugging_face():
    put_digits()
    paths = [f"digits/{name}/{n}_{name}.wav" for name in DIGITS for n in range(6)]
    sounds = [{"bytes": Path(path).read_bytes(), "path": path} for path in paths]
    sounds[0]["bytes"] = b"RIFF"
    sounds[7] = None
    features = {"audio": {"_type": "Audio"}, "label": {"_type": "ClassLabel", "names": DIGITS}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = {"audio": pa.array(sounds, kind), "label": [n // 6 for n in range(18)]}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), "digits.parquet")
    source = open_source("digits.parquet")
    assert source.features["audio"] == covey.Audio(RATE)
    invalid = {i: each for i, each in enumerate(source.examples) if isinstance(each, SourceError)}
    assert {i: (each.record, each.feature) for i, each in invalid.items()} == {
        0: (0, "audio"),
        7: (7, "audio"),
    }
    result = covey.write(source, "out", split="train", on_error="skip")
    assert (result.records, sum(result.classes.values())) == (16, 16)
    with covey.open("out", split="train") as ds:
        ours = sorted(each["audio"].tobytes() for each in ds)
    theirs = [soundfile.read(path, dtype="float32")[0] for path in paths]
    assert ours == sorted(theirs[n].tobytes() for n in range(18) if n not in invalid)


# Frameworks.


def test_frameworks_get_the_samples():
    put_digits()
    covey.write(open_source("digits"), "out", split="train")
    with covey.open("out", split="train") as ds:
        loader = ds.batches(3, 2, seed=5, select="audio")
        x, y = next(iter(loader))
        expected = [each.tolist() for each in x]
        loader = ds.batches(3, 2, seed=5, select="audio")
        tensors, labels = next(iter(loader.copy().to_tf()))
        assert isinstance(tensors, tf.RaggedTensor)
        assert (tensors.to_list(), labels.numpy().tolist()) == (expected, y.tolist())
        rows, labels = next(iter(loader.to_torch()))
        assert [each.tolist() for each in rows] == expected
        assert labels.tolist() == y.tolist()
