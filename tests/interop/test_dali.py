"""DALI's index files: exported as its own tool writes them, and verified when imported."""

import random
import struct

import numpy as np
import pytest
import tensorflow as tf
from corrupt_files import frame
from written import write

import covey
from covey.index import IndexBuilder, ShardFiles, read_index, read_metadata
from covey.index.dali import DaliIndexBuilder, export_dali
from covey.schema import Features
from covey.storage import LocalStorage, open_storage

KINDS = Features({"size": "int64", "name": "bytes", "label": "int64"})


def tfrecord2idx(path):
    """Return the index that DALI's tool of this name writes for a file, by its documentation."""
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
    return IndexBuilder(progress=False, **options).build(files)


def import_dali(files, directory=None, **options):
    return DaliIndexBuilder(progress=False, directory=directory, **options).build(files)


def idx_of(path):
    """Return the path of the index file that covey writes for a shard."""
    return f"{path.replace('.tfrecord', '')}.idx"


def put_idx(files, change=lambda lines: lines):
    """Write the index files of shards, as DALI's tool does."""
    for path in files.paths:
        with open(f"{path}.idx", "w", newline="") as file:
            file.write(change(tfrecord2idx(path)))


def is_same(one, other):
    return (
        one.metadata == other.metadata
        and one.rows.tobytes() == other.rows.tobytes()
        and (one.classes is None) == (other.classes is None)
        and (one.classes is None or one.classes.tobytes() == other.classes.tobytes())
        and (one.by_class is None or one.by_class.tobytes() == other.by_class.tobytes())
    )


# Export.


def test_export_matches_dalis_tool(files, tmp_path):
    written = export_dali(build(files), files)
    assert written == [idx_of(path) for path in files.paths]
    for path in files.paths:
        with open(idx_of(path)) as file:
            assert file.read() == tfrecord2idx(path)
    assert (tmp_path / "c.idx").read_text() == ""


def test_shards_that_differ_in_the_suffix_have_their_own_index_files(tmp_path):
    names = ("sea.tfrecord/a.tfrecord", "sea.tfrecord/a.tfrec", "sea.tfrecord/b.TFRecords")
    (tmp_path / "sea.tfrecord").mkdir()
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(b"".join(map(frame, encode(9, 9 * number))))
    files = ShardFiles(LocalStorage(), str(tmp_path), names)
    written = export_dali(build(files), files)
    for path, shard in zip(written, files.paths, strict=True):
        with open(path) as file:
            assert file.read() == tfrecord2idx(shard)
    assert written[2] == str(tmp_path / "sea.tfrecord" / "b.idx")
    assert is_same(import_dali(files), build(files))


def test_every_line_locates_a_record(files):
    export_dali(build(files), files)
    for path, first in zip(files.paths, (0, 30), strict=False):
        with open(path, "rb") as shard, open(idx_of(path)) as lines:
            for number, line in enumerate(lines):
                offset, size = map(int, line.split())
                shard.seek(offset)
                found = shard.read(size)
                example = tf.train.Example.FromString(found[12:-4])
                assert example.features.feature["size"].int64_list.value[:] == [first + number]
                assert frame(found[12:-4]) == found


def test_export_to_another_directory(files, tmp_path):
    directory = str(tmp_path / "idx" / "files")
    written = export_dali(build(files), files, directory)
    assert written[0] == f"{directory}/a.idx"
    assert not (tmp_path / "a.idx").exists()
    assert is_same(import_dali(files, directory), build(files))


def test_export_of_a_dataset(tmp_path):
    write({"x": np.arange(50), "label": np.arange(50) % 4}, tmp_path, label="label", shards=3)
    stem = f"{covey.info(tmp_path).path.rpartition('/')[2]}-train"
    index = read_index(tmp_path, stem, read_metadata(tmp_path, stem))
    names = tuple(shard.name for shard in index.metadata.shards)
    files = ShardFiles(LocalStorage(), str(tmp_path), names)
    for path, shard in zip(export_dali(index, files), files.paths, strict=True):
        assert path == idx_of(shard)
        with open(path) as file:
            assert file.read() == tfrecord2idx(shard)
    assert covey.verify(tmp_path, progress=False).is_valid


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_are_rejected(tmp_path, compression):
    with covey.RecordWriter(tmp_path / "x.tfrecord", compression=compression) as writer:
        writer.write(encode(1)[0])
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    with pytest.raises(covey.errors.DatasetError, match=rf"compressed \({compression}\)"):
        export_dali(build(files), files)
    (tmp_path / "x.tfrecord.idx").write_text("0 20\n")
    for features in (None, KINDS):
        with pytest.raises(covey.errors.DatasetError, match=rf"compressed \({compression}\)"):
            import_dali(files, features=features)
    assert (tmp_path / "x.tfrecord.idx").read_text() == "0 20\n"


# Import.


@pytest.mark.parametrize("label", ["label", "name", "@file", None])
@pytest.mark.parametrize("features", [None, KINDS])
def test_import_equals_a_scan(files, label, features):
    if label == "name":
        for path, first in zip(files.paths, (0, 30), strict=False):
            some = [KINDS.encode({"size": n, "name": f"b{n % 7}", "label": 0}) for n in range(30)]
            with open(path, "wb") as file:
                file.write(b"".join(map(frame, some[first % 7 :])))
    put_idx(files)
    options = {"label": label, "features": features}
    assert is_same(import_dali(files, **options), build(files, **options))


def test_many_records(tmp_path):
    """More than one block."""
    records = [KINDS.encode({"size": n, "name": bytes(90_000), "label": n % 7}) for n in range(250)]
    path = tmp_path / "x.tfrecord"
    with covey.RecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    (tmp_path / "x.tfrecord.idx").write_text(tfrecord2idx(path))
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    assert is_same(import_dali(files), build(files))


def test_idx_may_replace_the_suffix_of_the_shard(files, tmp_path):
    for path in files.paths:
        with open(path.replace(".tfrecord", ".idx"), "w") as file:
            file.write(tfrecord2idx(path))
    assert is_same(import_dali(files), build(files))


def test_records_without_a_line_are_skipped(files, tmp_path):
    put_idx(files, lambda lines: "".join(lines.splitlines(keepends=True)[::3]))
    index = import_dali(files, label="label")
    complete = build(files, label="label")
    assert index.rows.tolist() == complete.rows[::3].tolist()


def test_line_endings_and_tabs(files, tmp_path):
    put_idx(files, lambda lines: lines.replace("\n", "\r\n").replace(" ", "\t") + "\r\n\r\n")
    assert is_same(import_dali(files), build(files))


def test_a_missing_index_file(files, tmp_path):
    (tmp_path / "a.tfrecord.idx").write_text(tfrecord2idx(files.paths[0]))
    with pytest.raises(covey.errors.DatasetError) as caught:
        import_dali(files)
    assert caught.value.path == idx_of(files.paths[1])


def wrong(lines, number, line):
    return "\n".join([*lines[: number - 1], line, *lines[number:]]) + "\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", None),
        ("7", "the line is b'7'; must be the offset and the size"),
        ("1 2 3", "must be the offset"),
        ("-1 20", "must be the offset"),
        ("0x10 20", "must be the offset"),
        ("1e3 20", "must be the offset"),
        ("99999999999999999999 1", "must be the offset"),
        ("\xff\xfe", "must be the offset"),
        ("{at} 15", "must be at least 16 bytes"),
        ("{at} 999999999999999999", "the record there has {size} bytes"),
        ("{bytes} 16", "the record there does not exist"),
        ("0 {first}", "not before byte {at}"),
        ("{before} {size}", "not before byte {at}"),
        ("{after} {less}", "the record there does not exist"),
        ("{at} {less}", "the record there has {size} bytes"),
        ("{at} {more}", "the record there has {size} bytes"),
    ],
)
def test_an_invalid_line(files, tmp_path, line, reason):
    put_idx(files)
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
    lines = lines[:5] if reason is not None else lines
    path.write_text(wrong(lines, 5, line.format(**values)), encoding="latin-1")
    if reason is None:
        assert len(import_dali(files)) == 59
        return
    with pytest.raises(covey.errors.FormatError) as found:
        import_dali(files)
    assert (found.value.path, found.value.line) == (str(path), 5)
    assert reason.format(**values) in str(found.value)


def test_an_index_file_of_another_shard(files, tmp_path):
    (tmp_path / "c.tfrecord").write_bytes(b"".join(map(frame, encode(30, 99))))
    for name, path in (("a", "a"), ("b", "b"), ("c", "a")):
        found = tfrecord2idx(tmp_path / f"{path}.tfrecord")
        (tmp_path / f"{name}.tfrecord.idx").write_text(found)
    with pytest.raises(covey.errors.FormatError, match=r"c.tfrecord.idx:\d+: "):
        import_dali(files)


def test_a_record_that_is_not_an_example(tmp_path):
    data = frame(encode(1)[0]) + frame(b"\xff\xff")
    (tmp_path / "x.tfrecord").write_bytes(data)
    (tmp_path / "x.tfrecord.idx").write_text(tfrecord2idx(tmp_path / "x.tfrecord"))
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    with pytest.raises(covey.errors.ExampleError, match="record 1"):
        import_dali(files, label="label", features=KINDS)


def test_remote_shards(files):
    """Index files of a URL are written and read there."""
    storage = open_storage("memory://dali")
    for path, name in zip(files.paths, files.names, strict=True):
        storage.upload(path, storage.join("memory://dali", name))
    remote = ShardFiles(storage, storage.clean("memory://dali"), files.names)
    export_dali(build(files), remote)
    assert storage.read("memory://dali/a.idx").decode() == tfrecord2idx(files.paths[0])
    index, local = import_dali(remote), build(files)
    assert index.rows.tobytes() == local.rows.tobytes()
    assert index.metadata.features == local.metadata.features
