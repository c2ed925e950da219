"""covey show: the values of examples of any kind."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from opened import opened, put
from written import write

import covey
from covey.cli import main

NAMES = ("owl", "wren\x1b[2J")
FEATURES = {
    "text": "str",
    "size": "int64",
    "weight": "float32",
    "song": covey.Tensor("float32", (4,)),
    "counts": covey.Tensor("int16", (None,), encoding="bytes"),
    "words": covey.Tensor("str", (None,)),
    "tokens": covey.Ragged("int64"),
    "sparse": covey.Sparse("float32", (4, 5)),
    "raw": "bytes",
    "seen": {"alive": "bool", "family": covey.ClassLabel(["a", "b"])},
    "bird": covey.ClassLabel(NAMES),
}


def bird(n):
    return {
        "text": f"\x1b]0;{n}\x07" + "long " * 40 * (n % 2),
        "size": n,
        "weight": np.float32(n / 10) if n else np.nan,
        "song": np.array([n, -1, np.nan if n == 2 else 0.5, np.inf if n == 3 else 2], "f4"),
        "counts": np.arange(n, dtype=np.int16),
        "words": ["a\nb"] * (n % 3),
        "tokens": [[1] * n, [], [2]],
        "sparse": (np.array([[1, 2]]), np.array([1.5], "f4")),
        "raw": b"\x00\x1b[2J" * n,
        "seen": {"alive": n % 2 == 0, "family": n % 2},
        "bird": n % 2,
    }


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def birds():
    write(map(bird, range(20)), "birds", label="bird", features=FEATURES, shards=2, shuffle=False)
    return "birds"


def run(capsys, *arguments, status=0):
    """Return the lines of standard output."""
    assert main([*map(str, arguments)]) == status
    out = capsys.readouterr().out
    assert all(character.isprintable() for character in out.replace("\n", ""))
    return out.splitlines()


def show(capsys, *arguments):
    """Return the examples that the command prints as JSON."""

    def refuse(name):
        raise AssertionError(name)

    lines = run(capsys, "show", *arguments, "--json")
    return json.loads("\n".join(lines), parse_constant=refuse)["examples"]


def test_first_examples(birds, capsys):
    lines = run(capsys, "show", birds)
    assert lines[0] == "birds: 20 examples"
    shard = "birds-train.tfrecord-00000-of-00002"
    first = lines.index(f"example 0: class 'owl' (0); {shard}, record 0 at byte 0")
    assert sum(line.startswith("example ") for line in lines) == 5
    assert lines[first + 1 : first + 12] == [
        r"  text         '\u001b]0;0\u0007'",
        "  size         0",
        "  weight       nan",
        "  song         float32 (4,): 0, -1, 0.5, 2; min -1, max 2, mean 0.375",
        "  counts       int16 (0,)",
        "  words        str (0,)",
        "  tokens       int64 3 rows of lengths 0, 0, 1: 2",
        "  sparse       float32 (4, 5), 1 value stored: [1, 2] = 1.5",
        "  raw          0 bytes",
        "  seen/alive   True",
        "  seen/family  'a' (0)",  # and not the label, which is the class
    ]


def test_values_are_those_of_the_dataset(birds, capsys):
    for number, example in enumerate(show(capsys, birds, "--ids", ":")):
        values, expected = example["values"], bird(number)
        assert example["id"] == number
        assert example["class"] == {"id": number % 2, "name": NAMES[number % 2]}
        assert values["text"] == expected["text"]
        assert values["size"] == number
        assert values["weight"] == (None if number == 0 else pytest.approx(number / 10))
        counts = {key: values["counts"][key] for key in ("dtype", "shape", "first", "min", "max")}
        assert counts == {
            "dtype": "int16",
            "shape": [number],
            "first": [*range(min(number, 6))],
            "min": 0 if number else None,
            "max": number - 1 if number else None,
        }
        assert values["tokens"]["lengths"] == [number, 0, 1]
        assert values["tokens"]["values"] == number + 1
        assert values["seen/family"] == {"id": number % 2, "name": "ab"[number % 2]}
        assert values["raw"]["bytes"] == 5 * number
        with open(example["shard"], "rb") as file:
            file.seek(example["offset"])
            length = int.from_bytes(file.read(8), "little")
            file.seek(4, os.SEEK_CUR)
            record = file.read(length)
        assert covey.Features(FEATURES).decode(record)["size"] == number
    assert show(capsys, birds, "--ids", 2)[0]["values"]["song"]["nan"] == 1
    assert show(capsys, birds, "--ids", 3)[0]["values"]["song"]["max"] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ids", "17"], [17]),
        (["--ids", "10:13,-1"], [10, 11, 12, 19]),
        (["--ids", "-1"], [19]),
        (["--ids", "-2:"], [18, 19]),
        (["--ids", "-1,0"], [19, 0]),
        (["--ids=3,3,1"], [3, 3, 1]),
        (["--ids", "::-9"], [19, 10, 1]),
        (["--ids", "18:100"], [18, 19]),
        (["--split", "train[5:]", "--ids", "0"], [0]),
        (["--class", "owl"], [0, 2, 4, 6, 8]),
        (["--class", "1", "--ids", "0:2"], [1, 3]),
        (["--class", "owl", "--split", "train", "--ids", "0:2,-1"], [0, 2, 18]),
    ],
)
def test_ids(birds, capsys, arguments, expected):
    assert [each["id"] for each in show(capsys, birds, *arguments)] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ids", "20"], "there is no example 20 among 20 examples"),
        (["--ids", "5:2"], "there is no example 5:2 among 20 examples"),
        (["--ids", "0:3,30:40"], "there is no example 30:40 among 20 examples"),
        (["--class", "owl", "--ids", "-11"], "there is no example -11 among 10 examples"),
        (["--class", "crow"], "crow"),
        (["--select", "colour"], "colour"),
        (["--output", "x.png"], "no feature is an image: 'text' is str"),
        (["--output", "x.png", "--select", "text"], "no feature is an image: 'text' is str"),
    ],
)
def test_errors(birds, capsys, arguments, message):
    assert main(["show", birds, *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1"], "unexpected argument '1'"),
        (["--ids", "1:x"], "argument --ids: '1:x' must be an id, or a range like 10:20"),
        (["--ids", "1,"], "argument --ids: '' must be an id, or a range like 10:20"),
        (
            ["--output", "x.txt"],
            "argument --output: 'x.txt' must be a path that ends with .png or .jpg",
        ),
        (["--step", "0"], "--step needs --batch"),
        (["-k", "4"], "--examples-per-class needs --batch"),
    ],
)
def test_invalid_arguments(birds, capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        main(["show", birds, *arguments])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"covey show: {message}\n"


def test_select(birds, capsys):
    (example,) = show(capsys, birds, "--ids", 1, "--select", "bird", "--select", "seen/alive")
    assert example["values"] == {"bird": {"id": 1, "name": NAMES[1]}, "seen/alive": False}
    lines = run(capsys, "show", birds, "--ids", 1, "--select", "bird")
    assert lines[2:] == [r"  bird  'wren\u001b[2J' (1)"]


def test_single_shard_without_label_and_url(tmp_path, capsys):
    put(tmp_path / "a.tfrecord", ({"x": n, "y": 0.5} for n in range(3)), {"x": "int64", "y": "f4"})
    found = show(capsys, "a.tfrecord", "--ids", "1:")
    assert [each["values"] for each in found] == [{"x": 1, "y": 0.5}, {"x": 2, "y": 0.5}]
    assert [each["class"] for each in found] == [None, None]
    write([{"x": 7, "label": "owl"}], "memory://show/birds", label="label")
    (example,) = show(capsys, "memory://show/birds")
    assert example["values"]["x"] == 7
    assert example["shard"].startswith("memory://")


def test_audio_by_its_sampling_rate(capsys):
    """A feature with a sampling rate is shown as sound, whichever class it has."""
    from covey.cli.values import describe_value
    from covey.view.examples import summarize

    class Sound:
        sample_rate = 8000
        dtype = "int16"

    found = summarize(np.zeros((4000, 2), np.int16), Sound())
    assert (found["kind"], found["seconds"], found["channels"]) == ("audio", 0.5, 2)
    assert describe_value(found).startswith("0.500 s at 8,000 Hz, 2 channels, int16 (4000, 2)")
    Sound.sample_rate = None
    assert describe_value(summarize(np.zeros(5, np.int16), Sound())).startswith("sampling rate unk")


def test_images_and_sheets(capsys):
    pillow = pytest.importorskip("PIL.Image")
    features = {"photo": covey.Image(), "label": covey.ClassLabel(["owl", "wren"])}
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (20, 30 + n, 3), np.uint8) for n in range(12)]
    examples = [{"photo": each, "label": n % 2} for n, each in enumerate(images)]
    write(examples, "photos", label="label", features=features, shuffle=False)
    found = show(capsys, "photos", "--ids", ":")
    dataset = opened("photos")
    for n, example in enumerate(found):
        image = example["values"]["photo"]
        assert image["bytes"] == len(dataset[n]["photo"])
        assert (image["format"], image["height"], image["width"]) == ("png", 20, 30 + n)
        assert (image["channels"], image["bits"]) == (3, 8)
    lines = run(capsys, "show", "photos", "--ids", ":", "--output", "sheet.png")
    assert lines[2].split()[:6] == ["photo", "png", "20", "x", "30,", "3"]
    assert lines[-1] == "images of 'photo': sheet.png"
    with pillow.open("sheet.png") as sheet:
        assert sheet.size == (8 * 132, 2 * 132)  # 12 images, 8 in a row
    write([{"photo": each} for each in images], "plain", features={"photo": covey.Image()})
    run(capsys, "show", "plain", "--ids", ":", "--output", "plain.jpg")
    with pillow.open("plain.jpg") as sheet:
        assert sheet.format == "JPEG"


def test_batch_shows_the_values_of_a_batch(birds, capsys):
    lines = run(capsys, "show", birds, "--batch", "-p", 2, "-k", 3)
    shown = [line.split()[1] for line in lines if line.startswith("example ")]
    batch = json.loads("\n".join(run(capsys, "show", birds, "--batch", "-p", 2, "-k", 3, "--json")))
    numbers = [number for each in batch["classes"] for number in each["ids"]]
    assert shown == [f"{number}:" for number in numbers]
    first = run(capsys, "show", birds, "--ids", str(numbers[0]))[1:]
    assert lines[4 : 4 + len(first)] == first
    examples = [example for each in batch["classes"] for example in each["examples"]]
    assert [each["values"]["size"] for each in examples] == numbers
    assert [each["id"] for each in examples] == numbers


def test_output_into_a_closed_pipe(birds):
    code = "import sys; from covey.cli import main; sys.exit(main(['show', 'birds', '--ids', ':']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(60) == 1
