"""TFRecord files of covey read by TensorFlow, and the reverse."""

import pytest
import tensorflow as tf

from covey import RecordReader, RecordWriter

COMPRESSIONS = [None, "GZIP", "ZLIB"]
RECORDS = [b"", b"a", b"bb" * 50, bytes(range(256)) * 9, b"z" * 70_000]


def write(path, records, **options):
    with RecordWriter(path, **options) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def read_by_tensorflow(path, compression):
    return list(tf.data.TFRecordDataset(str(path), compression or "").as_numpy_iterator())


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("records", [RECORDS, []])
def test_tensorflow_reads_files_of_covey(tmp_path, compression, records):
    path = write(tmp_path / "x", records, compression=compression)
    assert read_by_tensorflow(path, compression) == records


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_covey_reads_files_of_tensorflow(tmp_path, compression):
    path = str(tmp_path / "x")
    with tf.io.TFRecordWriter(path, compression or "") as writer:
        for record in RECORDS:
            writer.write(record)
    with RecordReader(path) as reader:
        assert list(reader) == RECORDS


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_tensorflow_reads_appended_records(tmp_path, compression):
    path = write(tmp_path / "x", RECORDS, compression=compression)
    write(path, [b"more"], compression=compression, append=True)
    assert read_by_tensorflow(path, compression) == [*RECORDS, b"more"]


def test_tensorflow_ignores_a_second_zlib_stream(tmp_path):
    """Covey rejects such files, because half of the records would be lost."""
    path = tmp_path / "x"
    write(path, RECORDS, compression="ZLIB")
    path.write_bytes(path.read_bytes() * 2)
    assert read_by_tensorflow(path, "ZLIB") == RECORDS
