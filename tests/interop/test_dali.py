"""DALI's index files: written as its own tool does, and read as far as they are true."""

import gzip
import random
import struct

import numpy as np
import pytest
import tensorflow as tf
from corrupt_files import frame, header, masked_crc
from hypothesis import given, settings
from hypothesis import strategies as st
from written import write

import covey
from covey.index import Indexing, ShardFiles, read_index, read_metadata
from covey.index.dali import _masked_checksums, export_dali, import_dali
from covey.schema import Features
from covey.storage import LocalStorage, open_storage

KINDS = Features({"size": "int64", "name": "bytes", "label": "int64"})


def tfrecord2idx(path):
    """What DALI's tool of this name writes for a file, as its documentation has it."""
    lines = []
    with open(path, "rb") as file:
        while True:
            begin = file.tell()
            length = file.read(8)
            if not length:
                return "".join(lines)
            file.seek(4 + struct.unpack("<q", length)[0] + 4, 1)
            lines.append(f"{begin} {file.tell() - begin}\n")


def encode(count, first=0):
    rng = random.Random(first)
    return [
        KINDS.encode({"size": n, "name": rng.randbytes(rng.randrange(300)), "label": n % 3})
        for n in range(first, first + count)
    ]


@pytest.fixture
def files(tmp_path):
    """Two files of 30 records, and an empty one."""
    names = ("a.tfrecord", "b.tfrecord", "c.tfrecord")
    for name, records in zip(names, (encode(30), encode(30, 30), []), strict=True):
        (tmp_path / name).write_bytes(b"".join(map(frame, records)))
    return ShardFiles(LocalStorage(), str(tmp_path), names)


def build(files, **options):
    return Indexing(progress=False, **options).build(files)


def take(files, directory=None, **options):
    return import_dali(files, directory, progress=False, **options)


def is_same(one, other):
    return (
        one.metadata == other.metadata
        and one.rows.tobytes() == other.rows.tobytes()
        and (one.classes is None) == (other.classes is None)
        and (one.classes is None or one.classes.tobytes() == other.classes.tobytes())
        and (one.by_class is None or one.by_class.tobytes() == other.by_class.tobytes())
    )


# Writing them.


def test_they_are_what_dalis_tool_writes(files, tmp_path):
    written = export_dali(build(files), files)
    assert written == [f"{path}.idx" for path in files.paths]
    for path in files.paths:
        with open(f"{path}.idx") as file:
            assert file.read() == tfrecord2idx(path)
    assert (tmp_path / "c.tfrecord.idx").read_text() == ""


def test_every_line_leads_to_a_record(files):
    export_dali(build(files), files)
    for path, first in zip(files.paths, (0, 30), strict=False):
        with open(path, "rb") as shard, open(f"{path}.idx") as lines:
            for number, line in enumerate(lines):
                offset, size = map(int, line.split())
                shard.seek(offset)
                found = shard.read(size)
                example = tf.train.Example.FromString(found[12:-4])
                assert example.features.feature["size"].int64_list.value[:] == [first + number]
                assert frame(found[12:-4]) == found


def test_into_another_directory(files, tmp_path):
    directory = str(tmp_path / "idx" / "files")
    written = export_dali(build(files), files, directory)
    assert written[0] == f"{directory}/a.tfrecord.idx"
    assert not (tmp_path / "a.tfrecord.idx").exists()
    assert is_same(take(files, directory), build(files))


def test_the_shards_of_a_dataset(tmp_path):
    write({"x": np.arange(50), "label": np.arange(50) % 4}, tmp_path, label="label", shards=3)
    stem = f"{covey.info(tmp_path).path.rpartition('/')[2]}-train"
    index = read_index(tmp_path, stem, read_metadata(tmp_path, stem))
    names = tuple(shard.name for shard in index.metadata.shards)
    files = ShardFiles(LocalStorage(), str(tmp_path), names)
    for path in export_dali(index, files):
        with open(path) as file:
            assert file.read() == tfrecord2idx(path.removesuffix(".idx"))
    assert covey.verify(tmp_path, progress=False).is_valid


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_have_none(tmp_path, compression):
    with covey.RecordWriter(tmp_path / "x.tfrecord", compression=compression) as writer:
        writer.write(encode(1)[0])
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    with pytest.raises(
        covey.errors.DatasetError, match=rf"compressed \({compression}\), and DALI reads"
    ):
        export_dali(build(files), files)
    (tmp_path / "x.tfrecord.idx").write_text("0 20\n")
    with pytest.raises(
        covey.errors.DatasetError, match=rf"compressed \({compression}\), and DALI's"
    ):
        take(files)
    assert (tmp_path / "x.tfrecord.idx").read_text() == "0 20\n"


# Reading them.


@pytest.mark.parametrize("label", ["label", "name", "@file", None])
@pytest.mark.parametrize("features", [None, KINDS])
def test_the_index_is_that_which_is_made_without_them(files, label, features):
    if label == "name":
        for path, first in zip(files.paths, (0, 30), strict=False):
            some = [KINDS.encode({"size": n, "name": f"b{n % 7}", "label": 0}) for n in range(30)]
            with open(path, "wb") as file:
                file.write(b"".join(map(frame, some[first % 7 :])))
    for path in files.paths:
        with open(f"{path}.idx", "w") as file:
            file.write(tfrecord2idx(path))
    options = {"label": label, "features": features}
    assert is_same(take(files, **options), build(files, **options))


def test_many_records(tmp_path):
    """More than are looked at together."""
    records = [KINDS.encode({"size": n, "name": bytes(90_000), "label": n % 7}) for n in range(250)]
    path = tmp_path / "x.tfrecord"
    with covey.RecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    (tmp_path / "x.tfrecord.idx").write_text(tfrecord2idx(path))
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    assert is_same(take(files), build(files))


def test_a_name_without_that_of_the_shard(files, tmp_path):
    for path in files.paths:
        with open(path.replace(".tfrecord", ".idx"), "w") as file:
            file.write(tfrecord2idx(path))
    assert is_same(take(files), build(files))


def test_records_that_no_line_names_are_left_out(files, tmp_path):
    for path in files.paths:
        lines = tfrecord2idx(path).splitlines(keepends=True)
        with open(f"{path}.idx", "w") as file:
            file.write("".join(lines[::3]))
    index = take(files, label="label")
    complete = build(files, label="label")
    assert index.rows.tolist() == complete.rows[::3].tolist()


def test_lines_of_other_systems(files, tmp_path):
    for path in files.paths:
        with open(f"{path}.idx", "w", newline="") as file:
            file.write(tfrecord2idx(path).replace("\n", "\r\n").replace(" ", "\t") + "\r\n\r\n")
    assert is_same(take(files), build(files))


def test_there_is_none(files, tmp_path):
    (tmp_path / "a.tfrecord.idx").write_text(tfrecord2idx(files.paths[0]))
    with pytest.raises(
        covey.errors.DatasetError, match=r"b.tfrecord.idx: there is no such index file"
    ):
        take(files)


def wrong(lines, number, line):
    return "\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", None),
        ("7", "it is b'7'; must be the offset and the size"),
        ("1 2 3", "must be the offset"),
        ("-1 20", "must be the offset"),
        ("0x10 20", "must be the offset"),
        ("1e3 20", "must be the offset"),
        ("99999999999999999999 1", "must be the offset"),
        ("\xff\xfe", "must be the offset"),
        ("{at} 15", "a record has 16 bytes at least"),
        ("{at} 999999999999999999", "a.tfrecord has {bytes} bytes"),
        ("{bytes} 16", "a.tfrecord has {bytes} bytes"),
        ("0 {first}", "the record of the line before ends at byte {at}"),
        ("{before} {size}", "the record of the line before ends at byte {at}"),
        ("{after} {less}", "no record begins there: the checksum of its length is wrong"),
        ("{at} {less}", "the record there has {size} bytes with its frame"),
        ("{at} {more}", "the record there has {size} bytes with its frame"),
    ],
)
def test_a_line_that_is_wrong(files, tmp_path, line, reason):
    for path in files.paths:
        with open(f"{path}.idx", "w") as file:
            file.write(tfrecord2idx(path))
    path = tmp_path / "a.tfrecord.idx"
    lines = path.read_text().splitlines()
    first, (at, size) = int(lines[0].split()[1]), map(int, lines[4].split())
    values = {
        "at": at,
        "size": size,
        "less": size - 1,
        "more": size + 1,
        "after": at + 1,
        "before": at - 1,
        "first": first,
        "bytes": (tmp_path / "a.tfrecord").stat().st_size,
    }
    lines = lines[:5] if "more" in line else lines
    path.write_text(wrong(lines, 5, line.format(**values)), encoding="latin-1")
    if reason is None:
        assert len(take(files)) == 59
        return
    with pytest.raises(covey.errors.FormatError) as found:
        take(files)
    assert str(found.value).startswith(f"{path}: line 5: ")
    assert reason.format(**values) in str(found.value)


def test_an_index_file_of_another_shard(files, tmp_path):
    (tmp_path / "c.tfrecord").write_bytes(b"".join(map(frame, encode(30, 99))))
    for name, path in (("a", "a"), ("b", "b"), ("c", "a")):
        found = tfrecord2idx(tmp_path / f"{path}.tfrecord")
        (tmp_path / f"{name}.tfrecord.idx").write_text(found)
    with pytest.raises(covey.errors.FormatError, match=r"c.tfrecord.idx: line \d+: "):
        take(files)


def test_a_record_that_is_no_example(tmp_path):
    data = frame(encode(1)[0]) + frame(b"\xff\xff")
    (tmp_path / "x.tfrecord").write_bytes(data)
    (tmp_path / "x.tfrecord.idx").write_text(tfrecord2idx(tmp_path / "x.tfrecord"))
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    with pytest.raises(covey.errors.ExampleError, match="record 1"):
        take(files, label="label", features=KINDS)


@given(st.lists(st.binary(min_size=8, max_size=8), max_size=20))
@settings(max_examples=50)
def test_checksums_of_many_lengths_at_once(rows):
    table = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 8)
    assert _masked_checksums(table).tolist() == [masked_crc(row) for row in rows]


@given(st.integers(0, 2**63 - 1))
def test_the_checksum_of_a_header_is_that(length):
    found = np.frombuffer(header(length), np.uint8)[None]
    assert _masked_checksums(found[:, :8]).tobytes() == header(length)[8:]


def test_shards_that_are_somewhere_else(files):
    """Behind a URL: index files are written and read there."""
    storage = open_storage("memory://dali")
    for path, name in zip(files.paths, files.names, strict=True):
        storage.upload(path, storage.join("memory://dali", name))
    remote = ShardFiles(storage, storage.clean("memory://dali"), files.names)
    export_dali(build(files), remote)
    assert storage.read("memory://dali/a.tfrecord.idx").decode() == tfrecord2idx(files.paths[0])
    index, local = take(remote), build(files)
    assert index.rows.tobytes() == local.rows.tobytes()
    assert index.metadata.features == local.metadata.features


def test_gzip_is_told_from_what_it_holds(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(gzip.compress(frame(encode(1)[0])))
    (tmp_path / "x.tfrecord.idx").write_text("0 16\n")
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    with pytest.raises(covey.errors.DatasetError, match="compressed"):
        take(files, features=KINDS)
