"""The content of the golden files.

Run this module only to add a file. The files are committed; every version of covey must read them,
and write those of covey in the same way.
"""

from pathlib import Path

import numpy as np

from covey import ClassLabel, Features, Image, Ragged, RecordWriter, Sparse, Tensor

GOLDEN = Path(__file__).parents[1] / "golden"

FEATURES = Features(
    {
        "bool": "bool",
        "int8": "int8",
        "uint64": "uint64",
        "float16": Tensor("float16", (2,)),
        "float32": Tensor("float32", (2, 2)),
        "float64": Tensor("float64", (None,)),
        "text": "str",
        "words": Tensor("str", (None,)),
        "blob": "bytes",
        "pixels": Tensor("uint8", (2, 3), encoding="bytes"),
        "dynamic": Tensor("int16", (None, None), encoding="bytes"),
        "image": Image(),
        "label": ClassLabel(names=["wren", "owl", "kite"]),
        "ragged": Ragged("int64"),
        "sparse": Sparse("float32", (3, 4)),
        "nested": {"a": "int64", "b": {"c": Tensor("float32", (None, 2))}},
        "maybe": Tensor("int64", default=42),
    }
)


def example(number: int) -> dict:
    values = {
        "bool": number % 2 == 0,
        "int8": number - 128,
        "uint64": 2**64 - 1 - number,
        "float16": np.array([0.5, -number], np.float16),
        "float32": np.arange(4, dtype=np.float32).reshape(2, 2) * number,
        "float64": np.array([0.1] * number),
        "text": "wrén" * number,
        "words": ["a", "", "ü"][:number],
        "blob": bytes(range(number)),
        "pixels": np.arange(6, dtype=np.uint8).reshape(2, 3) + number,
        "dynamic": np.full((number, 2), -number, np.int16),
        "image": b"\x89PNG" + bytes([number]),
        "label": number % 3,
        "ragged": [[1, 2], [], [3]][:number],
        "sparse": ([[0, number % 4]], [1.5]),
        "nested": {"a": -number, "b": {"c": np.ones((number, 2), np.float32)}},
    }
    if number % 2:
        values["maybe"] = number
    return values


EXAMPLES = [example(number) for number in range(5)]


# Files of TensorFlow: the values of each example, and of the steps of a SequenceExample.
FOREIGN = [
    {
        "ints": [number, -number],
        "floats": [float(np.float32(number / 3))] * number,
        "strings": [b"wren", bytes([number])],
    }
    for number in range(3)
]
STEPS = [[0, 0], [1, 1], [2, 2]]


def write_files() -> None:
    """Write the golden files."""
    import tensorflow as tf

    def ints(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def context(values: dict) -> tf.train.Features:
        floats = tf.train.FloatList(value=values["floats"])
        strings = tf.train.BytesList(value=values["strings"])
        feature = {
            "ints": ints(values["ints"]),
            "floats": tf.train.Feature(float_list=floats),
            "strings": tf.train.Feature(bytes_list=strings),
        }
        return tf.train.Features(feature=feature)

    records = [FEATURES.encode(example) for example in EXAMPLES]
    for suffix, compression in (("", None), (".gz", "GZIP"), (".zlib", "ZLIB")):
        path = GOLDEN / f"covey.tfrecord{suffix}"
        with RecordWriter(path, compression=compression, member_bytes=256) as writer:
            for record in records:
                writer.write(record)
        path = GOLDEN / f"tensorflow.tfrecord{suffix}"
        with tf.io.TFRecordWriter(str(path), compression or "") as writer:
            for values in FOREIGN:
                example = tf.train.Example(features=context(values))
                writer.write(example.SerializeToString(deterministic=True))
    steps = tf.train.FeatureList(feature=[ints(step) for step in STEPS])
    sequence = tf.train.SequenceExample(
        context=context(FOREIGN[1]),
        feature_lists=tf.train.FeatureLists(feature_list={"steps": steps}),
    )
    with tf.io.TFRecordWriter(str(GOLDEN / "sequence.tfrecord")) as writer:
        writer.write(sequence.SerializeToString(deterministic=True))


if __name__ == "__main__":
    write_files()
