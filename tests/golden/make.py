"""Makes the golden files beside it: what covey, TensorFlow and TFDS wrote on one day.

The files are committed and must be read, and where covey wrote them also be written, in the same way
by every future version. Run this only to add a file; never to change one.
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import sys
from pathlib import Path

import tensorflow as tf

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from golden_data import EXAMPLES, FEATURES, SEQUENCE, tensorflow_example

from covey import RecordWriter


def main() -> None:
    records = [FEATURES.encode(example) for example in EXAMPLES]
    for suffix, compression in (("", None), (".gz", "GZIP"), (".zlib", "ZLIB")):
        path = HERE / f"covey.tfrecord{suffix}"
        with RecordWriter(path, compression=compression, member_bytes=256) as writer:
            for record in records:
                writer.write(record)
        path = HERE / f"tensorflow.tfrecord{suffix}"
        with tf.io.TFRecordWriter(str(path), compression or "") as writer:
            for number in range(3):
                writer.write(tensorflow_example(number).SerializeToString(deterministic=True))
    with tf.io.TFRecordWriter(str(HERE / "sequence.tfrecord")) as writer:
        writer.write(SEQUENCE.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
