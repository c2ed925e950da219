"""A reader of datum directories that follows the rules of datum's own reader.

It uses two files of the directory, and the shards:

- `shard_info.json`, `{split: {file name: number of records}}`. Only the files named there are
  opened, whatever they are called; they are not compressed; the counts must add up.
- `datum_to_type_and_shape_mapping.json`, `{feature: {"type", "shape", "dense"}}`, one for all
  splits. `type` is `int`, `float` or `string`.

It fails where datum's reader fails: a dense feature that is missing or has another number of
values, a dense list of strings, a file with another number of records. datum interleaves (and by
default shuffles) the files; this reader reads them in order.
"""

import json
import math
import os
import re

import numpy as np
import tensorflow as tf

TYPES = {"int": tf.int64, "float": tf.float32, "string": tf.string}


def read(path, split: str) -> list[dict[str, np.ndarray]]:
    """Return the examples of a split as datum reads them; strings are bytes objects."""
    path = os.fspath(path)
    if not os.path.isdir(path):
        raise ValueError(f"{path} is not a directory")
    features = _load(path, "datum_to_type_and_shape_mapping.json")
    files, total = _shards(path, split)
    records = tf.data.TFRecordDataset(files)
    records = records.apply(tf.data.experimental.assert_cardinality(total))
    specs = {name: _spec(**_known(entry)) for name, entry in features.items()}
    examples = records.map(lambda record: _example(record, specs, features))
    return list(examples.as_numpy_iterator())


def _load(path, name):
    with open(os.path.join(path, name), encoding="utf-8") as file:
        return json.load(file)


def _shards(path, split):
    """Return the files with records of the split, in the order of the metadata, and the total."""
    if not re.fullmatch(r"\w+", split):
        raise AssertionError(f"{split!r} cannot be the name of a split")
    counts = _load(path, "shard_info.json")
    total_of = {name: sum(shards.values()) for name, shards in counts.items()}
    if split not in total_of:
        raise ValueError(f"no split {split!r}, there are {list(counts)}")
    if not counts[split]:
        raise ValueError(f"split {split!r} has no shards")
    files = [os.path.join(path, name) for name, count in counts[split].items() if count]
    if not files:
        raise AssertionError(f"split {split!r} has no records")
    return files, total_of[split]


def _known(entry):
    """Return the three keys that datum reads; each is required, others are ignored."""
    return {key: entry[key] for key in ("type", "shape", "dense")}


def _spec(type, shape, dense):
    """Return the specification of a feature: a fixed number of values, or any number."""
    if not dense:
        return tf.io.VarLenFeature(TYPES[type])
    if type == "string" or not shape:
        return tf.io.FixedLenFeature([], TYPES[type])
    return tf.io.FixedLenFeature(math.prod(shape), TYPES[type])


def _example(record, specs, features):
    parsed = tf.io.parse_single_example(record, specs)
    return {name: _value(name, parsed, features[name]) for name in parsed}


def _value(name, parsed, entry):
    """Return a value in its shape. A string with 2 or 3 dimensions is an encoded image."""
    value, rank = parsed[name], len(entry["shape"])
    if entry["type"] == "string":
        if rank in (2, 3):
            channels = 1 if rank == 2 else 3
            return tf.io.decode_jpeg(value, channels, dct_method="INTEGER_ACCURATE")
        return value if entry["dense"] else tf.sparse.to_dense(value)
    if rank >= 2 and f"{name}_shape" in parsed:  # it is sparse, independent of `dense`
        return tf.reshape(tf.sparse.to_dense(value), parsed[f"{name}_shape"])
    if not entry["dense"]:
        value = tf.sparse.to_dense(value)
    return tf.reshape(value, entry["shape"]) if rank >= 2 else value
