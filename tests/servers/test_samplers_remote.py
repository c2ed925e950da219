"""TFRecordDatasetSampler of shards on S3."""

from servers import s3_bucket, stand_alone
from test_tfrecord_sampler import dataset, is_balanced, parse, upload  # noqa: F401

from covey.samplers import TFRecordDatasetSampler


def test_shards_on_s3(dataset, tmp_path, monkeypatch):  # noqa: F811
    stand_alone(monkeypatch, tmp_path)
    with s3_bucket("birds") as s3:
        url = upload(dataset, "s3://birds/train", options=s3.options)
        for decode in (parse, None):
            batches = TFRecordDatasetSampler(
                url, decode, 4, 32, shard_suffix="*train*", storage_options=s3.options
            )
            assert is_balanced(batches)
