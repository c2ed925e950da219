"""Hostile datasets: every command returns a result or raises a CoveyError."""

import io
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from corrupt_files import frame
from opened import put
from PIL import Image as Pillow
from written import info, limit, shard_paths, write

import covey
from covey import _core
from covey.cli import main
from covey.errors import (
    DatasetError,
    ExampleError,
    FeatureError,
    FormatError,
    StorageError,
    StorageNotFoundError,
)
from covey.index import IndexMetadata, index_names, read_index, read_metadata
from covey.samplers import load_image
from covey.untrusted import MAX_SHARDS, check_path, parse_json, read_file

pytestmark = pytest.mark.usefixtures("cache")

EXAMPLES = [{"size": n, "species": ("crow", "owl", "wren")[n % 3]} for n in range(30)]
FEATURES = covey.Features({"size": "int64", "species": "str"})


def put_records(path, examples=EXAMPLES):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(frame(FEATURES.encode(each)) for each in examples))
    return path


def put_datum(directory, shards, split="train"):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "shard_info.json").write_text(json.dumps({split: dict.fromkeys(shards, 30)}))


@pytest.fixture
def birds(tmp_path):
    directory = tmp_path / "birds"
    write(EXAMPLES, directory, label="species", shards=2)
    return directory


ENTRIES = {
    "open": lambda path: covey.open(path, progress=False),
    "info": covey.info,
    "verify": lambda path: covey.verify(path, progress=False),
    "build_index": lambda path: covey.build_index(path, progress=False),
    "repair": lambda path: covey.repair(path, f"{path}-repaired", progress=False),
}


# Paths that leave the dataset.

OUTSIDE = [
    "../secret.tfrecord",
    "a/../../secret.tfrecord",
    "./x.tfrecord",
    "a//x.tfrecord",
    "",
    ".",
    "..",
    "..\\secret.tfrecord",
    "C:secret.tfrecord",
    "x\0.tfrecord",
    "x\ud800.tfrecord",
    "x" * 300,
]


@pytest.mark.parametrize("name", [*OUTSIDE, "/etc/passwd"])
def test_path_outside(name):
    with pytest.raises(FormatError, match="stays within its directory"):
        check_path(name, "the path")


@pytest.mark.parametrize("name", ["x.tfrecord", "a/b/x.tfrecord", "..x", "x..", "a b", "été"])
def test_path_inside(name):
    check_path(name, "the path")


@pytest.mark.parametrize("name", ["../secret.tfrecord", "", "{directory}/secret.tfrecord"])
def test_datum_shards_outside_the_directory(tmp_path, name):
    put_records(tmp_path / "secret.tfrecord")
    put_datum(tmp_path / "birds", [name.format(directory=tmp_path)])
    for entry in (ENTRIES["open"], ENTRIES["info"]):
        with pytest.raises(FormatError, match="within its directory") as caught:
            entry(tmp_path / "birds")
        assert str(caught.value).startswith(str(tmp_path / "birds" / "shard_info.json"))


def test_datum_shards_may_be_links(tmp_path):
    """Caches store files elsewhere."""
    put_datum(tmp_path / "birds", ["x.tfrecord"])
    (tmp_path / "birds" / "x.tfrecord").symlink_to(put_records(tmp_path / "other.tfrecord"))
    assert len(covey.open(tmp_path / "birds", progress=False)) == 30


def png(width, height, depth=1):
    """A small PNG of zeros with any number of pixels."""

    def chunk(kind, data):
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, 0, 0, 0, 0])
    deflate = zlib.compressobj(9)
    row = bytes(1 + -(-width * depth // 8))
    data = b"".join(deflate.compress(row) for _ in range(height)) + deflate.flush()
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_a_table_in_a_directory_lists_images_of_the_directory(tmp_path):
    directory = tmp_path / "birds"
    directory.mkdir()
    for path in (directory / "owl.png", tmp_path / "secret.png"):
        path.write_bytes(png(4, 4))
    rows = ["owl.png,owl", "../secret.png,owl", f"{tmp_path}/secret.png,owl", "./owl.png,owl"]
    (directory / "labels.csv").write_text("\n".join(["file,label", *rows]))
    source = covey.sources.open_source(directory, kind="image table", images="file")
    found = list(source.examples)
    kinds = [isinstance(each, covey.errors.SourceError) for each in found]
    assert kinds == [False, True, True, False]
    assert "there is no image file" in str(found[1])
    chosen = list(covey.sources.open_source(directory / "labels.csv").examples)
    assert not any(isinstance(each, covey.errors.SourceError) for each in chosen)


# Control characters.

CONTROL = "\x1b]0;x\x07\x1b[2J\r\t\x9b31m\x7f\u202e\u2066\u200b\u2028\nline"
LABEL = f"species{CONTROL}"


def check_output(text):
    assert {each for each in text if not each.isprintable()} <= {"\n"}
    assert "\nline" not in text


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Datasets in which every name has control characters."""
    root = tmp_path_factory.mktemp("control") / f"root{CONTROL}"
    features = {f"size{CONTROL}": "int64", LABEL: "str", f"image{CONTROL}": covey.Image()}
    picture = png(4, 4)
    examples = [
        {f"size{CONTROL}": n, LABEL: f"{n % 3}{CONTROL}", f"image{CONTROL}": picture}
        for n in range(12)
    ]
    write(examples, root / "birds", label=LABEL, features=features, description=CONTROL, shards=2)
    schema = covey.Features(features)
    records = b"".join(frame(schema.encode(each)) for each in examples)
    # A dataset of TFDS.
    renamed = shutil.copytree(root / "birds", root / "renamed")
    for path in [*renamed.glob("*.npy"), *renamed.glob("*.index.json")]:
        path.unlink()
    metadata = info(renamed)
    names = metadata.splits[0].shard_names(f"name{CONTROL}")
    for path, name in zip(shard_paths(renamed), names, strict=True):
        path.rename(renamed / name)
    (renamed / "dataset_info.json").write_text(replace(metadata, name=f"name{CONTROL}").to_json())
    # A dataset of datum, and plain files.
    (root / "datum").mkdir()
    (root / "datum" / f"x{CONTROL}").write_bytes(records)
    content = {f"split{CONTROL}": {f"x{CONTROL}": 12}}
    (root / "datum" / "shard_info.json").write_text(json.dumps(content))
    (root / f"plain{CONTROL}").mkdir()
    (root / f"plain{CONTROL}" / f"x{CONTROL}.tfrecord").write_bytes(records)
    # Corrupt copies.
    for name in ("birds", "renamed", "datum", f"plain{CONTROL}"):
        bad = shutil.copytree(root / name, root / f"bad-{name}")
        for path in bad.iterdir():
            if not path.name.endswith((".json", ".npy", ".txt")):
                path.write_bytes(path.read_bytes()[:-7] + b"\xff" * 7)
    return root


KINDS = ["birds", "renamed", "datum", f"plain{CONTROL}"]
COMMANDS = [
    ["info"],
    ["info", "--split", CONTROL],
    ["show", "--batch", "-k", "2"],
    ["show", "--batch", "--output", "sheet.png", "-k", "2"],
    ["show", "--batch", "--select", CONTROL],
    ["verify"],
    ["index"],
    ["index", "--label", LABEL],
    ["index", "--label", CONTROL],
    ["repair", "--output", "new"],
]


@pytest.mark.parametrize("json_too", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, *(f"bad-{kind}" for kind in KINDS)])
def test_no_control_character_is_printed(control, tmp_path, monkeypatch, capfd, kind, json_too):
    directory = shutil.copytree(control / kind, tmp_path / control.name / kind)
    monkeypatch.chdir(tmp_path)
    for command, *options in COMMANDS:
        arguments = [command, str(directory), *options, *(["--json"] if json_too else [])]
        assert main(arguments) in (0, 1)
        output = capfd.readouterr()
        check_output(output.err)
        check_output(output.out if not json_too else output.out.replace('\n "line', ""))
        assert "Traceback" not in output.err
        if json_too and output.out:
            content = json.loads(output.out)
            assert content["path"] == str(directory)
            assert command != "info" or f"size{CONTROL}" in content["features"]
        shutil.rmtree("new", ignore_errors=True)


def test_no_control_character_is_printed_by_write(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    header = f'"size{CONTROL}","label"'
    rows = [f'{n},"{n % 2}{CONTROL}"' for n in range(4)]
    Path(f"table{CONTROL}.csv").write_text("\n".join([header, *rows, "1"]), newline="")
    images = Path(f"images{CONTROL}")
    for name in ("good", "bad"):
        (images / f"{name}{CONTROL}").mkdir(parents=True)
        path = images / f"{name}{CONTROL}" / f"x{CONTROL}.png"
        path.write_bytes(png(4, 4) if name == "good" else b"nothing")
    for source in (f"table{CONTROL}.csv", str(images)):
        for options in ([], ["--on-error", "skip"], ["--label", CONTROL], ["--split", CONTROL]):
            assert main(["write", source, f"to{CONTROL}", *options]) in (0, 1)
            output = capfd.readouterr()
            check_output(output.out + output.err)
            shutil.rmtree(f"to{CONTROL}", ignore_errors=True)
    for arguments in ([CONTROL], ["info"], ["show", "x", "--output", CONTROL]):
        with pytest.raises(SystemExit):
            main(arguments)
        output = capfd.readouterr()
        check_output(output.out + output.err.replace("usage", ""))


def test_characters_outside_the_encoding_are_escaped(control):
    command = [sys.executable, "-m", "covey", "info", str(control / "birds")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    check_output(done.stdout.decode("ascii"))


def test_reports_are_printable(control, tmp_path):
    directory = shutil.copytree(control / "bad-birds", tmp_path / f"x{CONTROL}")
    report = covey.verify(directory, progress=False)
    assert not report.is_valid
    repaired = covey.repair(directory, tmp_path / f"new{CONTROL}", progress=False)
    good = covey.open(control / "birds", progress=False)
    for each in (report, repaired, *repaired.written, good, good.features, good.classes):
        check_output(str(each))
        check_output(repr(each))


# Images.


def put_images(directory, images):
    features = {"image": covey.Image(channels=None), "label": "int64"}
    examples = [{"image": each, "label": n % 2} for n, each in enumerate(images)]
    write(examples, directory, label="label", features=features, shuffle=False)


LARGE_IMAGES = """
import resource, sys
import covey
from covey import _core
from covey.schema.images import import_pillow

(directory,) = sys.argv[1:]
import_pillow().init()
with covey.open(directory, decode_images=True) as ds:
    assert ds[0]["image"].shape == (4, 4, 1)
    size = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + (512 << 20),) * 2)
    for read in (
        lambda: ds[1],
        lambda: ds[:],
        lambda: ds.columns("image"),
        lambda: next(iter(ds.batches(2, 1, image_size=4, threads=0))),
        lambda: next(iter(ds.sequential(2, image_size=4, threads=0))),
    ):
        try:
            read()
        except covey.errors.ExampleError as error:
            assert (error.record, error.feature) == (1, "image"), error
            assert (error.option, error.found) == ("max_pixels", 64_000_000), error
            assert "9000 x 8000 = 72,000,000" in error.reason, error
            assert "larger" in error.remedy, error
        else:
            sys.exit("no error was raised")
"""


def test_large_images_are_rejected_by_their_headers(tmp_path):
    large = png(8000, 9000)
    assert len(large) < 200_000
    put_images(tmp_path / "images", [png(4, 4), large])
    command = [sys.executable, "-c", LARGE_IMAGES, str(tmp_path / "images")]
    subprocess.run(command, check=True)
    path = tmp_path / "large.png"
    path.write_bytes(large)
    with pytest.raises(FeatureError) as caught:
        load_image(path)
    error = caught.value
    assert (error.path, error.option, error.found) == (str(path), "max_pixels", 64_000_000)


def container(kind, image):
    """An image of a format that embeds another image, or a program."""
    if kind == "ICO":
        entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(image), 22)
        return struct.pack("<HHH", 0, 1, 1) + entry + image
    if kind == "ICNS":
        part = b"ic07" + struct.pack(">I", 8 + len(image)) + image
        return b"icns" + struct.pack(">I", 8 + len(part)) + part
    return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.filterwarnings("ignore:Image was not the expected size")
@pytest.mark.parametrize("kind", ["ICO", "ICNS", "EPS"])
def test_formats_that_embed_others_are_not_decoded(tmp_path, kind):
    data = container(kind, png(300, 200))
    with Pillow.open(io.BytesIO(data)) as image:
        assert image.format == kind
    path = tmp_path / "x.png"
    path.write_bytes(data)
    put(tmp_path / "images.tfrecord", [{"image": data}] * 2, {"image": "bytes"})
    reason = "not an image in a supported format: PNG, JPEG, GIF, BMP, WEBP, TIFF, PPM"
    with pytest.raises(FeatureError, match=reason):
        covey.Image().decode(data, max_pixels=128 * 128)
    with pytest.raises(FeatureError, match=reason) as caught:
        load_image(path)
    assert caught.value.path == str(path)
    with pytest.raises(ExampleError, match=reason) as caught_record:
        features = {"image": covey.Image()}
        covey.open(tmp_path / "images.tfrecord", features=features, decode_images=True)[0]
    assert (caught_record.value.record, caught_record.value.feature) == (0, "image")


@pytest.mark.parametrize("form", ["png", "jpeg", "gif", "bmp", "webp", "tiff", "ppm"])
def test_max_pixels_of_every_format(tmp_path, form):
    path = tmp_path / f"x.{form}"
    Pillow.new("RGB", (30, 20)).save(path)
    put_images(tmp_path / "images", [path.read_bytes()] * 2)
    for at_most, fits in ((600, True), (599, False)):
        ds = covey.open(tmp_path / "images", decode_images=True, max_pixels=at_most)
        same = ds.select([0, 1])
        for read in (lambda ds=ds: ds[0], lambda same=same: same[1]):
            if fits:
                assert read()["image"].shape[:2] == (20, 30)
            else:
                with pytest.raises(ExampleError, match="20 x 30 = 600 pixels") as caught:
                    read()
                assert (caught.value.option, caught.value.found) == ("max_pixels", 599)
        assert ds.max_pixels == at_most
    image = covey.Image()
    assert image.decode(path.read_bytes(), max_pixels=600).shape[:2] == (20, 30)
    with pytest.raises(FeatureError, match=r"max_pixels is 599; .* 600 pixels"):
        image.decode(path.read_bytes(), max_pixels=599)
    with pytest.raises(FeatureError, match=r"max_pixels is 599; .* 600 pixels"):
        load_image(path, max_pixels=599)
    assert load_image(path, max_pixels=600).shape == (20, 30, 3)


# Files that are too large, or not regular files.


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 300 + "]" * 300,
        '{"a":' * 300 + "1" + "}" * 300,
        '{"a": 1, "a": 2}',
        "[NaN]",
        "[-Infinity]",
        "9" * 5000,
        "[" + "0," * 4_000_000 + "0]",
        "[" + "[]," * 2_000_001 + "0]",
        b"\xff\xfe",
    ],
    ids=range(10),
)
def test_invalid_json(text):
    with pytest.raises(FormatError, match=r"^here: "):
        parse_json(text, "here")


def test_too_large_files(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == b"x" * 100
    with pytest.raises(StorageError, match="it has 100 bytes; must be at most 99"):
        read_file(path, 99)


def test_marks_within_strings_are_not_values():
    texts = [",[{" * 9, '\\",,,,,,,,,,,,', "\n,,,,,,,,,,,,,\u2222", ",,,,,,,,,,,\\"]
    for encoding in ("utf-8", "utf-16", "utf-32-le"):
        data = json.dumps(texts, ensure_ascii=False).encode(encoding)
        assert parse_json(data, "x", max_values=10) == texts
    for text in (texts * 3, ["\u2222", *range(20)], ['"', *range(20)]):
        with pytest.raises(FormatError, match="more than 10 values"):
            data = json.dumps(text, ensure_ascii=False).encode("utf-16")
            parse_json(data, "x", max_values=10)


def test_directories_that_link_to_each_other_are_read_once(tmp_path, monkeypatch):
    """Without a bound there are more than 12! paths."""
    for one in range(12):
        (tmp_path / str(one)).mkdir()
        for other in range(12):
            if one != other:
                (tmp_path / str(one) / str(other)).symlink_to(f"../{other}")
    real, read = os.scandir, []

    def scan(path):
        assert len(read) < 1000
        read.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    for entry in (covey.open, covey.info, covey.verify):
        for path in (tmp_path, tmp_path / "**/*.tfrecord"):
            read.clear()
            with pytest.raises(DatasetError):
                entry(path)


def test_too_many_shards(birds):
    content = json.loads((birds / "dataset_info.json").read_text())
    content["splits"][0]["shardLengths"] = ["1"] * (MAX_SHARDS + 1)
    (birds / "dataset_info.json").write_text(json.dumps(content))
    for entry in (ENTRIES["open"], ENTRIES["info"]):
        with pytest.raises(FormatError, match=r"dataset_info\.json: shardLengths has 100,001"):
            entry(birds)
    content["splits"] = [
        {"name": f"s{n}", "shardLengths": ["1"] * 600} for n in range(MAX_SHARDS // 500)
    ]
    (birds / "dataset_info.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match="more than 100,000 shards") as caught:
        covey.open(birds)
    assert caught.value.path == str(birds / "dataset_info.json")


def test_too_many_shards_are_not_written(tmp_path):
    columns = {"x": np.arange(MAX_SHARDS + 1)}
    with pytest.raises(DatasetError, match="there would be 100,001 shards"):
        write(columns, tmp_path / "x", records_per_shard=1)


def make_special(path, kind):
    if path.exists():
        path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/zero", "loop": path.name}[kind])


SPECIAL = ["fifo", "directory", "device", "loop"]


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_metadata_that_is_not_a_file(birds, kind, name):
    make_special(birds / name, kind)
    if name == "features.json":  # an index has the features as well
        (birds / index_names("birds-train")["metadata"]).unlink()
    for entry in ("open", "info", "verify"):
        with pytest.raises(StorageError) as caught:
            ENTRIES[entry](birds)
        assert caught.value.path == str(birds / name)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        *((part, kind) for part in ("rows", "classes", "by_class") for kind in ("fifo", "device")),
        *(("metadata", kind) for kind in SPECIAL),
    ],
)
def test_index_that_is_not_a_file(birds, kind, part):
    name = index_names("birds-train")[part]
    make_special(birds / name, kind)
    assert covey.info(birds).splits[0].index == "corrupt"
    assert any(each.file == name for each in covey.verify(birds, progress=False).problems)


@pytest.mark.parametrize("kind", SPECIAL)
def test_datum_metadata_that_is_not_a_file(tmp_path, kind):
    put_records(tmp_path / "birds" / "x.tfrecord")
    make_special(tmp_path / "birds" / "shard_info.json", kind)
    with pytest.raises(StorageError, match="shard_info"):
        covey.open(tmp_path / "birds", progress=False)


@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_shards_that_are_not_files(birds, kind):
    shard = shard_paths(birds)[1]
    make_special(shard, kind)
    with pytest.raises(StorageError, match=shard.name):
        covey.open(birds)
    (problem,) = [
        each for each in covey.verify(birds, progress=False).problems if each.file == shard.name
    ]
    assert "cannot be read" in problem.reason
    repaired = covey.repair(birds, f"{birds}-new", progress=False)
    assert repaired.records == 15


def test_array_with_a_long_header(birds):
    path = birds / index_names("birds-train")["rows"]
    path.write_bytes(b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"))
    os.truncate(path, 8 << 30)
    with limit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[0]):
        (problem,) = [
            each for each in covey.verify(birds, progress=False).problems if each.file == path.name
        ]
    assert "the header is longer than" in problem.reason


# Other errors.


@pytest.mark.parametrize("entry", ENTRIES)
def test_paths_that_the_system_rejects(tmp_path, entry):
    (tmp_path / "loop").symlink_to("loop")
    for path in ("x" * 5000, f"{tmp_path}/{'x' * 300}", f"{tmp_path}/loop/birds"):
        with pytest.raises(StorageError) as caught:
            ENTRIES[entry](path)
        assert path[:400] in str(caught.value)


def test_unreadable_records(tmp_path):
    file = put_records(tmp_path / "x.tfrecord")
    (tmp_path / "loop").symlink_to("loop")
    cases = [
        (tmp_path / "nothing", StorageNotFoundError),
        (file / "inner", StorageNotFoundError),
        (tmp_path / ("x" * 300), StorageError),
        (tmp_path / "loop", StorageError),
        (tmp_path, StorageError),
        ("a\0b", StorageNotFoundError),
    ]
    for path, kind in cases:
        for read in (
            lambda path=path: covey.RecordReader(path),
            lambda path=path: covey.open([path], progress=False),
        ):
            with pytest.raises((kind, DatasetError)) as caught:
                read()
            assert str(path).partition("\0")[0] in str(caught.value)
    with pytest.raises(FileNotFoundError):
        covey.RecordReader(tmp_path / "nothing")


FORBIDDEN = """
import os, sys
import covey
from covey import _core
directory, file, new, *forbidden = sys.argv[1:]
features = covey.Features({"size": "int64"})
reads = (
    lambda: covey.open(directory),
    lambda: covey.info(directory),
    lambda: covey.verify(directory),
    lambda: covey.build_index(directory),
    lambda: covey.repair(directory, new, mode="overwrite"),
    lambda: covey.RecordReader(file).close(),
    lambda: covey.sources.open_source(directory),
    lambda: covey.sources.open_source(file),
)
for read in reads:  # the other user may not read Python's files either
    read()
for path in forbidden:
    os.chmod(path, 0)
if os.geteuid() == 0:
    os.seteuid(65534)
for read in reads:
    try:
        read()
    except covey.CoveyError as error:
        assert directory in str(error) or file in str(error), error
        assert isinstance(error, (PermissionError, covey.errors.SourceError)), repr(error)
    else:
        sys.exit("it was read")
"""


@pytest.fixture
def public():
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.parametrize("inner", [False, True])
def test_files_of_another_user(public, inner):
    birds, file = public / "birds", put_records(public / "files" / "x.tfrecord")
    write(EXAMPLES, birds, label="species", shards=2)
    directories = (birds, file.parent)
    forbidden = [each for path in directories for each in path.iterdir()] if inner else directories
    paths = [birds, file, public / "new", *forbidden]
    command = [sys.executable, "-c", FORBIDDEN, *map(str, paths)]
    environment = {**os.environ, "COVEY_CACHE": str(public / "cache")}
    subprocess.run(command, check=True, env=environment)


def test_out_of_memory(birds, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("covey.storage.local.read_file", fail)
    with pytest.raises(DatasetError, match=r"birds: there is not enough memory"):
        covey.open(birds)
    assert main(["info", str(birds)]) == 1


def change_class_table(directory, change):
    """Change the records by class of an index, with its checksums."""
    names = index_names("birds-train")
    by_class = np.load(directory / names["by_class"])
    change(by_class)
    np.save(directory / names["by_class"], by_class)
    path = directory / names["metadata"]
    metadata = IndexMetadata.from_json(path.read_bytes(), str(path))
    sums = (metadata.class_checksums[0], _core.crc32c(by_class))
    path.write_text(replace(metadata, class_checksums=sums).to_json())


@pytest.mark.parametrize("wrong", [90, 10**6, 2**32 - 1])
def test_record_id_out_of_range(birds, wrong):
    """The index is corrupt, and is built again."""

    def change(by_class):
        by_class[3] = wrong

    change_class_table(birds, change)
    directory = birds
    metadata = read_metadata(directory, "birds-train")
    with pytest.raises(FormatError, match=f"record id {wrong}; must be below {metadata.records}"):
        read_index(directory, "birds-train", metadata)
    with covey.open(birds, split="train", progress=False) as ds:
        assert sum(len(ds.where(label=n)) for n in ds.classes.labels.tolist()) == len(ds)
        assert len(next(iter(ds.batches(3, 10)))[1]) == 30
    files = [each.file for each in covey.verify(birds, progress=False).problems]
    assert files == ["birds-train.by_class.npy"]


def swap(by_class):
    by_class[[0, -1]] = by_class[[-1, 0]]


def test_batch_of_an_inconsistent_class_table(birds, capsys):
    change_class_table(birds, swap)
    assert main(["show", str(birds), "--batch", "-p", "3", "-k", "10"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "lists records of other classes under the class ids [0 1 2]" in output.err
    assert "`covey index`" in output.err


# Shards that are missing.

NAMES = {
    "prefix": "x-{:05}-of-00004.tfrecord",
    "suffix": "x-train.tfrecord-{:05}-of-00004",
    "gzip": "x_{:03}-of-004.tfrec.gz",
}


@pytest.mark.parametrize("form", NAMES)
def test_missing_shard_of_plain_files(tmp_path, form, capsys):
    directory = tmp_path / "files"
    paths = [put_records(directory / NAMES[form].format(number)) for number in (0, 1, 3)]
    missing = NAMES[form].format(2)
    for path in (directory, f"{directory}/*"):
        with pytest.raises(DatasetError, match=missing) as caught:
            covey.open(path, progress=False)
        assert "list of files" in str(caught.value)
        assert "on_error='skip'" in str(caught.value)
        assert [each.file for each in covey.verify(path, progress=False).problems] == [missing]
        assert covey.info(path).splits[0].missing == (missing,)
        with pytest.warns(covey.errors.SkippedRecordsWarning, match=missing):
            assert len(covey.open(path, on_error="skip", progress=False)) == 90
    (built,) = covey.build_index(directory, progress=False)
    assert built.differences == (f"{missing} is missing",)
    repaired = covey.repair(directory, tmp_path / "new", progress=False)
    assert [each.file for each in repaired.lost] == [missing]
    # Files that are listed by name are complete.
    assert len(covey.open(paths, progress=False)) == 90
    assert len(covey.open(paths[0], progress=False)) == 30
    pattern = f"{directory}/{NAMES[form].replace('{:05}', '0000[01]').replace('{:03}', '00[01]')}"
    assert len(covey.open(pattern, progress=False)) == 60
    assert main(["verify", str(directory)]) == 1
    assert missing in capsys.readouterr().out


# Random mutations.


def test_mutated_metadata(tmp_path):
    worker = Path(__file__).parents[1] / "hostile" / "mutate.py"
    done = subprocess.run(
        [sys.executable, str(worker), str(tmp_path)],
        env={**os.environ, "COVEY_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "examples" in done.stdout
