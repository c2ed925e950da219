"""Conversion between covey's features and the ``features.json`` of TFDS, without TFDS.

A feature that TFDS does not have is written as the closest one that it can read:

==================================  ===============================================================
covey                               TFDS
==================================  ===============================================================
``str``, one or a list of them      ``Text``, ``Sequence(Text)``; in more dimensions, string tensor
``Image``, other than 1, 3 or 4     ``Image`` of an unknown number of channels, without the format
channels, or JPEG of uint16         where TFDS does not support it
``Sparse``                          a dict of its values and indices, each a sequence
``Ragged`` of float64               a dict of a byte string of its values, and its row lengths
raw uint32                          byte strings: TensorFlow does not decode it
                                    (with several unknown dimensions a dict of shape and value)
a default, shape known              an optional tensor; a missing value reads as TFDS' default, the
                                    lowest number or ``b""``. A ``ClassLabel`` becomes int64, an
                                    ``Image``, ``Audio`` and raw numbers become byte strings
a default, shape unknown            the same without it; a missing value reads as empty
``Steps``                           omitted: TFDS reads the context of a SequenceExample only
class names that a file with one    omitted; the number of classes is kept
name per line cannot hold
==================================  ===============================================================

In the other direction, everything that TFDS stores in TFRecords can be read. A feature that covey
does not have is read as the values that are stored:

==================================  ===============================================================
TFDS                                covey
==================================  ===============================================================
``Sequence``, ``Dataset``           a first dimension; nested ones ``Ragged``; of a dict, a dict
classes in them                     int64
images in them, ``Video``           encoded images, as byte strings
``LabeledImage``                    ``Image``; the names for its pixels are dropped
``Image`` of float32                ``Image`` of its bytes, 4 channels of uint8
``Image`` of four dimensions        the encoded file, as a byte string
``Audio(lazy_decode=True)``         the encoded file, as a byte string
``Audio`` of other dtypes than      a tensor, without the sampling rate
float32 and int16, or in a
sequence
``Text`` with an encoder            its int64 values
float64 in nested sequences         float32, as it is stored
raw bfloat16, complex               uint16 of the same bits; float32 or float64 with a last
                                    dimension of 2: ``.view()`` restores the dtype
other raw dtypes                    byte strings
raw tensors in nested sequences,    byte strings (with several unknown dimensions a dict of shape
or of unknown shape in a sequence   and value)
lists of an unknown shape in a      concatenated, which TFDS itself does not read (if nested, a
sequence                            dict of their values and row lengths)
user-defined classes                as they are saved: a tensor, a sequence, an image, ...
==================================  ===============================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.errors import FeatureError
from covey.filenames import label_file
from covey.schema.audio import Audio
from covey.schema.codec import nest
from covey.schema.columns import STRINGS, Shape
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.tensor import Steps, Tensor
from covey.schema.tfds_read import features_from_tfds
from covey.schema.types import REQUIRED, ClassLabel, Feature, Ragged, Sparse, is_line

__all__ = ["features_from_tfds", "features_to_tfds"]

# Module of each TFDS class, and the field of its JSON that holds the content.
_CLASSES = {
    "FeaturesDict": ("features_dict", "featuresDict"),
    "Sequence": ("sequence_feature", "sequence"),
    "Tensor": ("tensor_feature", "tensor"),
    "ClassLabel": ("class_label_feature", "classLabel"),
    "Text": ("text_feature", "text"),
    "Image": ("image_feature", "image"),
    "Audio": ("audio_feature", "audio"),
}


def features_to_tfds(features: Features) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the content of ``features.json``, and the class names of every label file.

    >>> features_to_tfds(Features({"label": ClassLabel(names=["wren", "owl"])}))[1]
    {'label.labels.txt': ('wren', 'owl')}
    """
    labels: dict[str | None, set[tuple[str, ...] | None]] = {}
    for name, feature in features.items():
        if isinstance(feature, ClassLabel):
            labels.setdefault(label_file(features.path_of(name)), set()).add(feature.names)
    files = {}
    for file, names in labels.items():
        # Two features may share a file name: the file is written if their names are equal.
        (one, *others) = names
        if file and one and not others and all(map(is_line, one)):
            files[file] = one
    written = {
        features.path_of(name): feature
        for name, feature in features.items()
        if not isinstance(feature, Steps)
    }
    return _nest(nest(written)), files


def _node(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    module, field = _CLASSES[kind]
    name = f"tensorflow_datasets.core.features.{module}.{kind}"
    return {"pythonClassName": name, field: dict(content)}


def _dict(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return _node("FeaturesDict", {"features": dict(nodes)})


def _nest(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node of nested dicts of features."""
    return _dict(
        {
            key: _node_of(each) if isinstance(each, Feature) else _nest(each)
            for key, each in nested.items()
        }
    )


def _shape(shape: Shape) -> dict[str, Any]:
    sizes = [str(-1 if size is None else size) for size in shape]
    return {"dimensions": sizes} if sizes else {}


def _tensor(
    dtype: str, shape: Shape = (), *, encoding: str = "none", optional: bool = False
) -> dict[str, Any]:
    dtype = "string" if dtype in STRINGS else dtype
    content = {"shape": _shape(shape), "dtype": dtype, "encoding": encoding}
    return _node("Tensor", {**content, "optional": True} if optional else content)


def _sequence(inner: dict[str, Any], length: int | None = None) -> dict[str, Any]:
    size = str(-1 if length is None else length)
    return _node("Sequence", {"feature": inner, "length": size})


def _node_of(feature: Feature) -> dict[str, Any]:
    optional = getattr(feature, "default", REQUIRED) is not REQUIRED
    match feature:
        case Audio() if not optional:
            return _node_of_audio(feature)
        case Tensor():
            return _node_of_tensor(feature, optional)
        case ClassLabel():
            if optional:
                return _tensor("int64", optional=True)
            count = feature.num_classes
            return _node("ClassLabel", {"numClasses": str(count)} if count else {})
        case Image():
            return _tensor("bytes", optional=True) if optional else _node_of_image(feature)
        case Ragged("float64"):
            flat, *lengths = (
                each.key.removeprefix("ragged/") for each in feature.columns("ragged")
            )
            return _dict(
                {flat: _tensor("bytes"), **{key: _sequence(_tensor("int64")) for key in lengths}}
            )
        case Ragged(dtype, depth, shape):
            node = _node("Text", {}) if (dtype, shape) == ("str", ()) else _tensor(dtype, shape)
            for _ in range(depth):
                node = _sequence(node)
            return node
        case Sparse():
            values, *indices = feature.columns("sparse")
            parts = {each.key.removeprefix("sparse/"): each.dtype for each in (values, *indices)}
            return _dict({key: _sequence(_tensor(dtype)) for key, dtype in parts.items()})
    raise FeatureError(f"a {type(feature).__name__} has no equivalent in TFDS")


def _node_of_tensor(feature: Tensor, optional: bool) -> dict[str, Any]:
    dtype, shape = feature.dtype, feature.shape
    if feature.encoding != "list":
        return _node_of_memory(feature, optional)
    optional = optional and None not in shape
    if dtype == "str" and not optional and len(shape) < 2:
        text = _node("Text", {})
        return _sequence(text, shape[0]) if shape else text
    return _tensor(dtype, shape, optional=optional)


def _node_of_memory(feature: Tensor, optional: bool) -> dict[str, Any]:
    dtype, shape, encoding = feature.dtype, feature.shape, str(feature.encoding)
    count = shape[:1] if encoding.endswith("_each") else ()
    if dtype != "uint32" and not optional:
        inner = _tensor(dtype, shape[len(count) :], encoding=encoding.removesuffix("_each"))
        return _sequence(inner, *count) if count else inner
    if shape.count(None) > 1:
        return _dict({"shape": _tensor("int32", (len(shape),)), "value": _tensor("bytes")})
    return _tensor("bytes", count, optional=optional and None not in count)


def _node_of_audio(feature: Audio) -> dict[str, Any]:
    encoding = {"bytes": "BYTES", "zlib": "ZLIB"}.get(str(feature.encoding), "NONE")
    content = {"shape": _shape(feature.shape), "dtype": feature.dtype, "encoding": encoding}
    if feature.sample_rate is not None:
        content["sampleRate"] = str(feature.sample_rate)
    return _node("Audio", content)


def _node_of_image(feature: Image) -> dict[str, Any]:
    height, width, channels = feature.shape
    content = {"shape": _shape(feature.shape), "dtype": feature.dtype}
    if channels not in (1, 3, 4):
        content["shape"] = _shape((height, width, None))
    elif feature.format == "png" or (feature.dtype == "uint8" and channels != 4):
        content["encodingFormat"] = feature.format
    return _node("Image", content)
