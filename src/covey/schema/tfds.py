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

In the other direction, a table has what TFDS stores. A node of the file names a Python class, which
may be user-defined, and has one field for the type that it is stored as, which is decisive::

    {"pythonClassName": "my.own.Waveform", "audio": {"shape": {"dimensions": ["-1"]}, ...}}

==================================  ===============================================================
TFDS                                covey
==================================  ===============================================================
``Sequence``, ``Dataset``           a first dimension; nested ones ``Ragged``; of a dict, a dict
classes in them                     int64
images in them, ``Video``           encoded images, as byte strings
raw numbers in them                 byte strings, compressed or not
``LabeledImage``                    ``Image``; the names for its pixels are dropped
``Audio(lazy_decode=True)``         the encoded file, as a byte string
``Audio`` in a sequence, or of      a tensor, without the sampling rate
other dtypes than float32 and
int16
float64 in nested sequences         float32, as it is stored
anything else                       the feature of the values that the records have
==================================  ===============================================================
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covey.errors import FeatureError, FormatError
from covey.filenames import FEATURES_FILE, label_file
from covey.schema.audio import MAX_SAMPLE_RATE, Audio
from covey.schema.codec import nest
from covey.schema.columns import NUMBERS, STRINGS, Shape
from covey.schema.features import Features, expect_dict
from covey.schema.images import Image
from covey.schema.tensor import Steps, Tensor
from covey.schema.types import REQUIRED, ClassLabel, Feature, Ragged, Sparse, is_line
from covey.untrusted import MAX_FEATURES, MAX_VALUES, brief, parse_int64, parse_json, read_file

# Features to TFDS.

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
    return _nested_node(nest(written)), files


def _node(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    module, field = _CLASSES[kind]
    name = f"tensorflow_datasets.core.features.{module}.{kind}"
    return {"pythonClassName": name, field: dict(content)}


def _dict_node(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return _node("FeaturesDict", {"features": dict(nodes)})


def _nested_node(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node of nested dicts of features."""
    return _dict_node(
        {
            key: _node_of(each) if isinstance(each, Feature) else _nested_node(each)
            for key, each in nested.items()
        }
    )


def _shape_node(shape: Shape) -> dict[str, Any]:
    sizes = [str(-1 if size is None else size) for size in shape]
    return {"dimensions": sizes} if sizes else {}


def _tensor_node(
    dtype: str, shape: Shape = (), *, encoding: str = "none", optional: bool = False
) -> dict[str, Any]:
    dtype = "string" if dtype in STRINGS else dtype
    content = {"shape": _shape_node(shape), "dtype": dtype, "encoding": encoding}
    return _node("Tensor", {**content, "optional": True} if optional else content)


def _sequence_node(inner: dict[str, Any], length: int | None = None) -> dict[str, Any]:
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
                return _tensor_node("int64", optional=True)
            count = feature.num_classes
            return _node("ClassLabel", {"numClasses": str(count)} if count else {})
        case Image():
            return _tensor_node("bytes", optional=True) if optional else _node_of_image(feature)
        case Ragged(dtype, depth, shape) if dtype != "float64":
            is_text = (dtype, shape) == ("str", ())
            node = _node("Text", {}) if is_text else _tensor_node(dtype, shape)
            for _ in range(depth):
                node = _sequence_node(node)
            return node
        case Ragged() | Sparse():
            return _node_of_columns(feature)
    raise FeatureError(f"a {type(feature).__name__} has no equivalent in TFDS")


def _node_of_columns(feature: Feature) -> dict[str, Any]:
    """Return a dict of the lists that a feature is stored as."""
    nodes = {}
    for column in feature.columns("x"):
        if column.raw:
            node = _tensor_node("bytes")
        elif column.layout == "variable":
            node = _sequence_node(_tensor_node(column.dtype))
        else:
            node = _tensor_node(column.dtype, column.shape)
        nodes[column.key.partition("/")[2]] = node
    return _dict_node(nodes)


def _node_of_tensor(feature: Tensor, optional: bool) -> dict[str, Any]:
    dtype, shape, encoding = feature.dtype, feature.shape, str(feature.encoding)
    if encoding != "list":
        if dtype != "uint32" and not optional:
            return _tensor_node(dtype, shape, encoding=encoding)
        if shape.count(None) > 1:
            return _node_of_columns(feature)
        return _tensor_node("bytes", optional=optional)
    optional = optional and None not in shape
    if dtype == "str" and not optional and len(shape) < 2:
        text = _node("Text", {})
        return _sequence_node(text, shape[0]) if shape else text
    return _tensor_node(dtype, shape, optional=optional)


def _node_of_audio(feature: Audio) -> dict[str, Any]:
    encoding = {"bytes": "BYTES", "zlib": "ZLIB"}.get(str(feature.encoding), "NONE")
    content = {"shape": _shape_node(feature.shape), "dtype": feature.dtype, "encoding": encoding}
    if feature.sample_rate is not None:
        content["sampleRate"] = str(feature.sample_rate)
    return _node("Audio", content)


def _node_of_image(feature: Image) -> dict[str, Any]:
    height, width, channels = feature.shape
    content = {"shape": _shape_node(feature.shape), "dtype": feature.dtype}
    if channels not in (1, 3, 4):
        content["shape"] = _shape_node((height, width, None))
    elif feature.format == "png" or (feature.dtype == "uint8" and channels != 4):
        content["encodingFormat"] = feature.format
    return _node("Image", content)


# Features of TFDS.

# Nested deeper than this are files that TFDS does not write.
_MAX_LEVELS = 64
_MAX_DIMENSIONS = 32
# An optional tensor with more values gets no default.
_MAX_DEFAULT_VALUES = 1 << 20

Path = tuple[str, ...]


def features_from_tfds(
    directory: str | os.PathLike[str],
    read: Callable[[str], bytes] | None = None,
    infer: Callable[[], Features] | None = None,
) -> Features:
    """Return the features of a directory that TFDS prepared.

    Args:
        directory: The directory of ``features.json`` and the label files; with ``read``, its name
            in errors.
        read: Function that returns the content of a file of the directory by its name, or raises
            FileNotFoundError. By default files on disk are read.
        infer: Function that returns the features of the records, for those that the file does not
            describe. Without it they are an error.

    Raises:
        FormatError: If a file is not valid.
        FeatureError: If the storage of a feature is unknown or not supported.
    """
    root = os.fspath(directory)
    reader = _Reader(root, read or (lambda name: read_file(os.path.join(root, name))), infer)
    try:
        found = reader.read(parse_json(reader.load(FEATURES_FILE), reader.name), (), ())
        if not isinstance(found, dict):
            raise FormatError("the features are neither a FeaturesDict nor a Sequence of one")
        features = Features(found)
        reader.check_count(len(features))
    except (FormatError, FeatureError) as error:
        error.path = error.path or reader.name
        raise
    return features


class _UnknownStorageError(Exception):
    """The table has no feature for a node."""


@dataclass(frozen=True)
class _Reader:
    directory: str
    load: Callable[[str], bytes]
    infer: Callable[[], Features] | None
    nodes: Iterator[int] = field(default_factory=itertools.count)
    """Counter of the nodes that were read."""

    @property
    def name(self) -> str:
        return os.path.join(self.directory, FEATURES_FILE)

    def check_count(self, features: int) -> None:
        """Check the number of features."""
        if features > MAX_FEATURES:
            raise FormatError(f"the file has over {MAX_FEATURES:,} features")

    def read(self, json: Any, path: Path, lengths: Shape) -> Any:
        """Return the feature of a node of ``features.json``, or a dict of features.

        Args:
            json: The node.
            path: The keys of the node.
            lengths: Lengths of the sequences around the node, the outermost first.
        """
        if len(path) + len(lengths) > _MAX_LEVELS:
            raise FormatError(f"features are nested deeper than {_MAX_LEVELS} levels")
        self.check_count(next(self.nodes))
        try:
            node = expect_dict(json)
            name = node.get("pythonClassName")
            if not isinstance(name, str):
                raise FormatError("the class of the feature is missing")
            stored = [each for each in _TABLE if each in node]
            if len(stored) > 1:
                raise FormatError(f"the node has several types: {', '.join(stored)}")
            try:
                if not stored:
                    raise _UnknownStorageError
                return _TABLE[stored[0]](self, expect_dict(node[stored[0]]), path, lengths)
            except _UnknownStorageError:
                return self._infer(name, path)
        except (FormatError, FeatureError) as error:
            if isinstance(error, FeatureError) and not error.feature:
                kind = node["pythonClassName"].rpartition(".")[2][:60]
                error.reason += f"{'; ' if error.reason else ''}the TFDS class is {kind}"
            error.feature = error.feature or "/".join(path) or None
            raise

    def _infer(self, name: str, path: Path) -> Any:
        """Return the features of the records at a path."""
        if self.infer is None:
            raise FeatureError(
                f"the storage of the class {name[:100]} is not in the file",
                feature="/".join(path),
                remedy="open the dataset, whose records show it, or pass features=",
            )
        # The class says what encoded images mean: the floats of a depth map, or a video.
        inferred = self.infer()
        images = {key: Tensor("bytes") for key in inferred if isinstance(inferred[key], Image)}
        key, features = "/".join(path), {**inferred, **images}
        return features.get(key) or {
            each.removeprefix(f"{key}/"): feature
            for each, feature in features.items()
            if each.startswith(f"{key}/")
        }

    def dict(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        features = expect_dict(content.get("features", {}))
        return {key: self.read(each, (*path, key), lengths) for key, each in features.items()}

    def sequence(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        length = _size(content.get("length"), -1)
        return self.read(content.get("feature"), path, (*lengths, None if length < 0 else length))

    def label(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        if lengths:
            return _values("int64", (), lengths)
        count = _size(content.get("numClasses"), 0)
        name = label_file(path)
        file = os.path.join(self.directory, name or "")
        try:
            text = self.load(name).decode() if name else ""
        except FileNotFoundError:
            text = ""
        except UnicodeError as error:
            raise FormatError(f"the class names are not valid UTF-8: {error}", path=file) from None
        if text.count("\n") + text.count("\r") > MAX_VALUES:
            raise FormatError(f"the file has over {MAX_VALUES:,} lines", path=file)
        lines = (line.strip() for line in text.replace("\r", "\n").split("\n"))
        names = tuple(line for line in lines if line)
        if names and count not in (0, len(names)):
            raise FormatError(
                f"the file has {len(names)} names, but {self.name} has {count} classes", path=file
            )
        try:
            return ClassLabel(names) if names else ClassLabel(num_classes=count or None)
        except FeatureError as error:
            raise FormatError(error.reason, path=file) from None

    def image(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        if lengths:
            return _values("bytes", (), lengths)
        dtype, coding = content.get("dtype") or "uint8", content.get("encodingFormat") or "png"
        shape = _sizes(content) or (None, None, 3)
        if len(shape) != 3 or dtype == "float32":
            raise _UnknownStorageError
        return Image((*shape[:2], shape[2] or None), dtype, coding)

    def tensor(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        dtype, encoding = content.get("dtype"), content.get("encoding") or "none"
        encoding = str(encoding).lower()  # Audio has BYTES
        shape, unknown = _sizes(content), _sizes(content).count(None)
        if encoding not in ("none", "bytes", "zlib") or dtype not in ("string", *NUMBERS):
            raise _UnknownStorageError
        dtype = "bytes" if dtype == "string" else dtype
        is_optional = bool(content.get("optional")) and not lengths and unknown < 2
        if encoding == "none" or dtype == "bytes":
            if not is_optional:
                return _values(dtype, shape, lengths)
            # TFDS stores float64 as float32, which does not have the lowest float64.
            default = _lowest(dtype, shape, -math.inf if dtype == "float64" else None)
            return Tensor(dtype, shape, encoding="list", default=default)
        if unknown > 1 and lengths:
            raise _UnknownStorageError
        if lengths:  # one string for each array
            return _values("bytes", (), lengths)
        default = _lowest(dtype, shape) if is_optional else REQUIRED
        stored: Any = encoding
        return Tensor(dtype, shape, encoding=stored, default=default)

    def audio(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        if content.get("lazyDecode"):
            return _values("bytes", (), lengths)
        tensor = self.tensor(content, path, lengths)
        if lengths:
            return tensor
        rate = _size(content.get("sampleRate"), 0)
        known = rate if 0 < rate <= MAX_SAMPLE_RATE else None
        try:
            return Audio(known, tensor.dtype, shape=tensor.shape, encoding=tensor.encoding)
        except FeatureError:  # another dtype, or other dimensions
            return tensor

    def translation(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        if content.get("variableLanguagesPerExample"):
            return dict.fromkeys(("language", "translation"), _values("str", (), (*lengths, None)))
        languages = content.get("languages")
        if not isinstance(languages, list) or not all(isinstance(each, str) for each in languages):
            raise FormatError(f"languages is {brief(languages)}; must be a list of strings")
        return dict.fromkeys(languages, _values("str", (), lengths))

    def text(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        if content.get("useEncoder"):
            raise _UnknownStorageError
        return _values("str", (), lengths)

    def video(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        frames, *_ = _sizes(content) or (None,)
        return _values("bytes", (), (*lengths, frames))

    def box(self, content: Mapping[str, Any], path: Path, lengths: Shape) -> Any:
        return _values("float32", _sizes(content) or (4,), lengths)


# The types that a node can be stored as, by their field in it.
_TABLE: dict[str, Callable[[_Reader, Mapping[str, Any], Path, Shape], Any]] = {
    "featuresDict": _Reader.dict,
    "sequence": _Reader.sequence,
    "tensor": _Reader.tensor,
    "classLabel": _Reader.label,
    "text": _Reader.text,
    "image": _Reader.image,
    "video": _Reader.video,
    "audio": _Reader.audio,
    "boundingBox": _Reader.box,
    "translation": _Reader.translation,
}


def _values(dtype: str, shape: Shape, lengths: Shape) -> Feature:
    """Return the feature for values of a shape in nested sequences."""
    complete = (*lengths, *shape)
    if len(lengths) < 2 and complete.count(None) < 2:
        return Tensor(dtype, complete, encoding="list")
    if len(lengths) < 2 or None in shape:  # the shape of a value is not stored
        raise _UnknownStorageError
    return Ragged("float32" if dtype == "float64" else dtype, len(lengths), shape)


def _lowest(dtype: str, shape: Shape, lowest: Any = None) -> Any:
    """Return TFDS' default of an optional tensor; REQUIRED if it has too many values."""
    if math.prod(size or 0 for size in shape) > _MAX_DEFAULT_VALUES:
        return REQUIRED
    if dtype in ("bytes", "bool"):
        lowest = b"" if dtype == "bytes" else False
    elif lowest is None:
        lowest = (np.finfo if dtype.startswith("float") else np.iinfo)(dtype).min
    sizes = tuple(size or 0 for size in shape)
    return np.full(sizes, lowest, object if dtype == "bytes" else dtype).tolist()


def _sizes(content: Mapping[str, Any]) -> Shape:
    sizes = expect_dict(content.get("shape", {})).get("dimensions", [])
    if not isinstance(sizes, list) or len(sizes) > _MAX_DIMENSIONS:
        raise FormatError(f"the shape is not a list of up to {_MAX_DIMENSIONS} sizes")
    return tuple(None if size == -1 else size for size in (_size(each, -1) for each in sizes))


def _size(value: Any, missing: int) -> int:
    number = missing if value is None else parse_int64(value)
    if number is None or number < -1:
        raise FormatError(f"found {brief(value)}, expected a size")
    return number
