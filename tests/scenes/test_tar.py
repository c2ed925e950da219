"""WebDataset shards, written by the webdataset library, become balanced batches."""

import gc
import gzip
import io
import json
import pickle
import subprocess
import tarfile
import warnings

import numpy as np
import pytest
import webdataset
from PIL import Image as Pillow

import covey
from covey.errors import SourceError
from covey.sources import open_source, open_splits

BIRDS = ("crow", "owl", "wren")


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def picture(number):
    out = io.BytesIO()
    Pillow.new("RGB", (4, 3), (number, 2, 3)).save(out, "PNG")
    return out.getvalue()


def samples(count):
    for n in range(count):
        yield {
            "__key__": f"sample{n:06}",
            "png": picture(n),
            "cls": n % 3,
            "json": {"species": BIRDS[n % 3], "weight": n / 2},
            "txt": f"bird № {n}",
        }


def write_shards(pattern, count=24, only=("png", "cls", "json", "txt"), **options):
    with webdataset.ShardWriter(pattern, maxcount=10, verbose=0, **options) as writer:
        for sample in samples(count):
            writer.write({name: sample[name] for name in ("__key__", *only)})


def write_tar(path, *members, mode="w"):
    """Write members: pairs of a name and bytes, or TarInfo."""
    with tarfile.open(path, mode) as tar:
        for member in members:
            info, data = (member, b"") if isinstance(member, tarfile.TarInfo) else (None, member[1])
            if info is None:
                info = tarfile.TarInfo(member[0])
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_same_content_as_webdataset(suffix):
    write_shards(f"birds-%06d.{suffix}")
    paths = [f"birds-{n:06}.{suffix}" for n in range(3)]
    with warnings.catch_warnings():  # webdataset does not close files
        warnings.simplefilter("ignore", ResourceWarning)
        reference = list(webdataset.WebDataset(paths, shardshuffle=False))
        gc.collect()
    assert len(reference) == 24
    source = open_source(f"birds-*.{suffix}")
    assert (source.kind, source.length, source.label) == ("WebDataset", 24, "cls")
    for _ in range(2):
        for (key, example), sample in zip(source.examples, reference, strict=True):
            fields = json.loads(sample["json"])
            assert key == sample["__key__"]
            assert example == {
                "image": sample["png"],
                "cls": int(sample["cls"]),
                **fields,
                "text": sample["txt"].decode(),
            }
    again = pickle.loads(pickle.dumps(source.examples))
    assert list(again) == list(source.examples)


def test_label_of_json():
    write_shards("birds-%06d.tar")
    covey.write(open_source(".", label="species"), "data/birds", split="train", workers=2)
    ds = covey.open("data/birds", split="train")
    assert (ds.label, tuple(ds.classes)) == ("species", BIRDS)
    assert {(ds[n]["text"], ds[n]["weight"]) for n in range(24)} == {
        (f"bird № {n}", n / 2) for n in range(24)
    }


def test_splits_by_directories(tmp_path):
    for split, count in (("train", 12), ("test", 6)):
        (tmp_path / "wds" / split).mkdir(parents=True)
        write_shards(f"wds/{split}/%d.tar", count, only=("png", "cls"))
    splits = open_splits("wds")
    assert {name: source.length for name, source in splits.items()} == {"test": 6, "train": 12}
    assert splits["test"].features["cls"] == covey.Tensor("int64")


def test_names_of_features():
    array = io.BytesIO()
    np.save(array, np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))
    write_tar(
        "a.tar",
        ("./__meta__/about.txt", b"no sample"),
        ("README", b"no sample"),
        ("./x/1.left.PNG", picture(1)),
        ("./x/1.right.png", picture(2)),
        ("./x/1.cls", b" owl\n"),
        ("./x/1.json", b'{"cls": 3, "note": null, "n": 1}'),
        ("./x/1.npy", array.getvalue()),
        ("./x/1.wav", b"RIFF"),
        ("./x/1.pickle", b"\x80"),
        ("./x/2.png", picture(1)),
        ("./x/2.jpg", picture(1)),
        ("./x/2.cls", b"wren"),
    )
    (key, first), (_, second) = open_source("a.tar").examples
    assert key == "x/1"
    np.testing.assert_array_equal(first.pop("npy"), np.arange(6).reshape(2, 3))
    assert first == {
        "left": picture(1),
        "right": picture(2),
        "cls": "owl",
        "json": {"cls": 3},
        "n": 1,
        "audio": b"RIFF",
        "pickle": b"\x80",
    }
    assert list(second) == ["png", "jpg", "cls"]


def test_string_labels_are_classes():
    write_tar("a.tar", ("1.cls", b"wren"), ("2.cls", b"owl"), ("3.cls", b"7"), ("4.cls", b" \n"))
    source = open_source("a.tar")
    assert source.features["cls"].names == ("7", "owl", "wren")
    items = list(source.examples)
    assert [item[1]["cls"] for item in items[:3]] == ["wren", "owl", "7"]
    assert (items[3].feature, items[3].reason) == ("cls", "sample '4': the label is missing")


def test_keys_that_are_not_unique_between_shards():
    for name in ("a.tar", "b.tar"):
        write_tar(name, ("1.cls", b"1"), ("2.cls", b"2"))
    keys = [key for key, _ in open_source(".").examples]
    assert keys == ["a.tar/1", "a.tar/2", "b.tar/1", "b.tar/2"]


# Archives that are not trusted.


def _array_of_another_size():
    array = io.BytesIO()
    np.save(array, np.zeros(4))
    return array.getvalue().replace(b"(4,)", b"(9,)")


def special(name, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (special("2.txt", tarfile.SYMTYPE), "it is a link, a sparse file or a special file"),
        (special("2.txt", tarfile.LNKTYPE), "it is a link, a sparse file or a special file"),
        (special("2.txt", tarfile.FIFOTYPE), "it is a link, a sparse file or a special file"),
        (special("2.txt", tarfile.CHRTYPE), "it is a link, a sparse file or a special file"),
        (("\udcff.txt", b""), "the name is not valid UTF-8"),
        (("1.txt", b"again"), "the sample has two members with this suffix"),
        (("2.txt", b"\xff"), "byte 0xff is not valid UTF-8"),
        (("2.json", b"{"), "is not valid JSON: "),
        (("2.json", b"[" * 100_000), "is not valid JSON: "),
        (("2.npy", b"\x93NUMPY\x01\x00\xff\xff"), "is not a valid NPY file: "),
        (("2.npy", b"\x93NUMPY\x01\x00\x03\x00((\n"), "is not a valid NPY file: "),
        (("2.npy", _array_of_another_size()), "is not a valid NPY file: "),
        (("2.jpg", b"no image"), "not a valid image: "),
        (("2.png", b""), "not a valid image: it is empty"),
    ],
)
def test_invalid_members(member, reason):
    write_tar("a.tar", ("0.txt", b"a"), ("1.txt", b"b"), member, ("3.txt", b"c"))
    items = list(open_source("a.tar").examples)
    (error,) = [item for item in items if isinstance(item, SourceError)]
    assert error.path == "a.tar"
    assert error.reason.startswith("member ")
    assert reason in error.reason
    assert [item[0] for item in items if item is not error][-1] == "3"


def test_key_that_is_not_adjacent():
    write_tar("a.tar", ("1.cls", b"1"), ("2.cls", b"2"), ("1.txt", b"a"))
    error = list(open_source("a.tar").examples)[2]
    assert "occurs twice; its members must be adjacent" in error.reason


@pytest.mark.parametrize("cut", [512, 700, 1024, 1536 + 100, 5 * 512])
def test_truncated_archive(cut, tmp_path):
    whole = write_tar("a.tar", *[(f"{n}.txt", b"x" * 600) for n in range(4)])
    data = (tmp_path / whole).read_bytes()
    (tmp_path / "a.tar").write_bytes(data[:cut])
    try:
        items = list(open_source("a.tar").examples)
    except SourceError as error:
        items = [error]
    assert "this member and all that follow cannot be read" in items[-1].reason


def test_corrupt_header(tmp_path):
    write_tar("a.tar", *[(f"{n}.txt", b"x") for n in range(4)])
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[2 * 1024 + 20] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    items = list(open_source("a.tar").examples)
    assert len(items) == 3
    assert items[2].reason.endswith("there is no end of the archive at byte 2048")


@pytest.mark.parametrize("size", [-512, -1024, 1 << 40])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("compress", [False, True])
def test_header_with_another_size(tmp_path, size, kind, compress):
    """tarfile reads as much as a header says, and follows negative sizes backward."""
    write_tar("a.tar", ("0.txt", b"a"), ("1.txt", b"b"))
    data = bytearray((tmp_path / "a.tar").read_bytes())
    header = tarfile.TarInfo("1.txt")
    header.type = kind
    buffer = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    buffer[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    buffer[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(buffer))[0]
    data[1024:1536] = buffer
    (tmp_path / "a.tar").write_bytes(gzip.compress(data) if compress else data)
    items = list(open_source("a.tar").examples)
    assert items[0] == ("0", {"text": "a"})
    assert isinstance(items[1], SourceError)


def test_sparse_member():
    subprocess.run(["truncate", "-s", "1M", "1.txt"], check=True)
    subprocess.run(["tar", "-S", "-cf", "a.tar", "1.txt"], check=True)
    with pytest.raises(SourceError, match="a sparse file"):
        open_source("a.tar")


def test_gzip_that_is_truncated(tmp_path):
    rng = np.random.default_rng(1)
    write_tar("a.tar.gz", *[(f"{n}.bin", rng.bytes(5000)) for n in range(9)], mode="w:gz")
    data = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(data[: len(data) // 2])
    items = list(open_source("a.tar.gz").examples)
    assert len(items[0][1]["bin"]) == 5000
    assert isinstance(items[-1], SourceError)


@pytest.mark.parametrize("content", [b"", b"\0" * 1024, b"\0" * 10240])
def test_empty_archives(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(SourceError):
        open_source("a.tar")
