"""Conversion of the ``features.json`` of TFDS to covey's features; see :mod:`covey.schema.tfds`.

A node of the file names a Python class, which may be user-defined, and has one field for the type
it is stored as. That field is decisive::

    {"pythonClassName": "my.own.Waveform", "audio": {"shape": {"dimensions": ["-1"]}, ...}}

Before TFDS 4.4 a node was ``{"type": ..., "content": ...}``, and only the class is known.
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
from covey.schema.audio import AUDIO_DTYPES, MAX_SAMPLE_RATE, Audio
from covey.schema.columns import NUMBERS, Shape
from covey.schema.features import Features
from covey.schema.images import FORMATS, Image
from covey.schema.tensor import Tensor
from covey.schema.types import REQUIRED, ClassLabel, Feature, Ragged
from covey.untrusted import (
    MAX_FEATURES,
    MAX_VALUES,
    brief,
    parse_int64,
    parse_json,
    read_file,
)

# The protobuf messages of TFDS features, and their fields in a node.
_MESSAGES = {
    "FeaturesDict": "featuresDict",
    "Sequence": "sequence",
    "TensorFeature": "tensor",
    "ClassLabel": "classLabel",
    "TextFeature": "text",
    "ImageFeature": "image",
    "VideoFeature": "video",
    "AudioFeature": "audio",
    "BoundingBoxFeature": "boundingBox",
    "TranslationFeature": "translation",
    "JsonFeature": "jsonFeature",
}
# The fields of TFDS classes, for nodes where only the class is known.
_CLASSES = {
    "FeaturesDict": "featuresDict",
    "Sequence": "sequence",
    "Dataset": "sequence",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "ClassLabel": "classLabel",
    "Text": "text",
    "Image": "image",
    "LabeledImage": "image",
    "Video": "video",
    "Audio": "audio",
    "BBoxFeature": "boundingBox",
    "Translation": "translation",
    "TranslationVariableLanguages": "translation",
}
# Dtypes that numpy or covey lacks: a dtype of the same memory layout, and the dimensions that it
# adds to the shape.
_SAME_MEMORY: dict[str, tuple[str, Shape]] = {
    "bfloat16": ("uint16", ()),
    "complex64": ("float32", (2,)),
    "complex128": ("float64", (2,)),
    **{dtype: (dtype, ()) for dtype in NUMBERS},
}
_MAX_DEPTH = 64
_MAX_DIMENSIONS = 32
# An optional tensor with more values gets no default.
_MAX_DEFAULT_VALUES = 1 << 20

Path = tuple[str, ...]


def features_from_tfds(
    directory: str | os.PathLike[str], read: Callable[[str], bytes] | None = None
) -> Features:
    """Return the features of a directory that TFDS prepared.

    Args:
        directory: The directory of ``features.json`` and the label files; with ``read``, its name
            in errors.
        read: Function that returns the content of a file of the directory by its name, or raises
            FileNotFoundError. By default files on disk are read.

    Raises:
        FormatError: If a file is not valid.
        FeatureError: If the storage of a feature is unknown or not supported.
    """
    root = os.fspath(directory)
    reader = _Reader(root, read or (lambda name: read_file(os.path.join(root, name))))
    found = reader.read(parse_json(reader.load(FEATURES_FILE), reader.name), (), ())
    reader.check_count(_count(found))
    if not isinstance(found, dict):
        raise FormatError(
            "the features are neither a FeaturesDict nor a Sequence of one", path=reader.name
        )
    try:
        return Features(found)
    except FeatureError as error:
        error.path = reader.name
        raise


def _count(features: Any) -> int:
    """Return the number of features in nested dicts."""
    return sum(map(_count, features.values())) if isinstance(features, dict) else 1


@dataclass(frozen=True)
class _Node:
    """A node of ``features.json``, of any version of TFDS."""

    kind: str
    """The type it is stored as: a field of ``_MESSAGES``."""
    content: Mapping[str, Any]
    class_name: str
    is_message: bool
    """Whether the content is that of the message, not of a class before TFDS 4.4."""

    def get(self, name: str, missing: Any = None) -> Any:
        """Return a field of the content by its JSON name, or by its name in older files."""
        old = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
        value = self.content.get(name, self.content.get(old))
        return missing if value is None else value


@dataclass(frozen=True)
class _Reader:
    directory: str
    load: Callable[[str], bytes]
    nodes: Iterator[int] = field(default_factory=itertools.count)
    """Counter of the nodes that were read."""

    @property
    def name(self) -> str:
        return os.path.join(self.directory, FEATURES_FILE)

    def check_count(self, features: int) -> None:
        """Check the number of features."""
        if features > MAX_FEATURES:
            raise FormatError(f"the file has over {MAX_FEATURES:,} features", path=self.name)

    def read(self, json: Any, path: Path, lengths: Shape) -> Any:
        """Return the feature of a node of ``features.json``, or a dict of features.

        Args:
            json: The node.
            path: The keys of the node.
            lengths: Lengths of the sequences around the node, the outermost first.
        """
        if len(path) + len(lengths) > _MAX_DEPTH:
            raise FormatError(
                f"features are nested deeper than {_MAX_DEPTH} levels", path=self.name
            )
        self.check_count(next(self.nodes))
        node = self._open(json, path)
        match node.kind:
            case "featuresDict":
                features = node.get("features", {}) if node.is_message else node.content
                inner = self._dict(features, path)
                return {key: self.read(each, (*path, key), lengths) for key, each in inner.items()}
            case "sequence":
                length = self._size(node.get("length"), path, -1)
                known = None if length == -1 else length
                return self.read(node.get("feature"), path, (*lengths, known))
        try:
            return self._feature(node, path, lengths)
        except FeatureError as error:
            kind = node.class_name.rpartition(".")[2][:60]
            error.reason += f"{'; ' if error.reason else ''}the TFDS class is {kind}"
            error.path, error.feature = self.name, _name(path)
            raise

    def _open(self, json: Any, path: Path) -> _Node:
        """Return the type that a node is stored as, and its content."""
        node = self._dict(json, path)
        name = node.get("pythonClassName", node.get("type"))
        if not isinstance(name, str):
            raise self._invalid("the class of the feature is missing", path)
        fields = [each for each in _MESSAGES.values() if each in node]
        kind: str | None = None
        if "type" in node:  # before 4.4
            message = node.get("proto_cls")
            if isinstance(message, str):
                kind = _MESSAGES.get(message.removeprefix("tensorflow_datasets."))
            content = node.get("content", {})
        elif len(fields) > 1:
            raise self._invalid(f"the node has several types: {', '.join(fields)}", path)
        else:
            kind = fields[0] if fields else None
            content = node.get(kind or "", {})
        if kind == "jsonFeature":
            kind, content = None, self._dict(content, path).get("json", "")
        if isinstance(content, str):
            try:
                content = parse_json(content, self.name)
            except FormatError as error:
                error.feature = _name(path)
                raise
        is_message = kind is not None
        package, _, last = name.rpartition(".")
        if kind is None and package.startswith("tensorflow_datasets."):
            kind = _CLASSES.get(last)
        if kind is None:
            raise FeatureError(
                f"the storage of the class {name[:100]} is not in the file",
                path=self.name,
                feature=_name(path),
                remedy=f"supported are {', '.join(_CLASSES)}, and user-defined classes whose "
                "to_json_content() returns the message of one of these",
            )
        return _Node(kind, self._dict(content, path), name, is_message)

    def _feature(self, node: _Node, path: Path, lengths: Shape) -> Any:
        match node.kind:
            case "tensor":
                return self._tensor(node, path, lengths)
            case "classLabel":
                return _values("int64", (), lengths) if lengths else self._label(node, path)
            case "text":
                return _text(node, lengths)
            case "image":
                return _values("bytes", (), lengths) if lengths else self._image(node, path)
            case "video":
                frames, *_ = self._sizes(node, path) or (None,)
                return _values("bytes", (), (*lengths, frames))
            case "boundingBox":
                return _values("float32", self._sizes(node, path) or (4,), lengths)
            case "audio" if node.get("lazyDecode"):
                return _values("bytes", (), lengths)
            case "audio":
                tensor = self._tensor(node, path, lengths)
                return tensor if lengths else self._audio(node, path, tensor)
        return self._translation(node, path, lengths)

    def _translation(self, node: _Node, path: Path, lengths: Shape) -> dict[str, Any]:
        last = node.class_name.rpartition(".")[2]
        if node.get("variableLanguagesPerExample") or last == "TranslationVariableLanguages":
            text = _text(node, (*lengths, None))
            return {"language": text, "translation": text}
        languages = node.get("languages")
        if not isinstance(languages, list) or not all(isinstance(each, str) for each in languages):
            raise self._invalid(f"languages is {brief(languages)}; must be a list of strings", path)
        return dict.fromkeys(languages, _text(node, lengths))

    def _image(self, node: _Node, path: Path) -> Feature:
        dtype, coding = node.get("dtype") or "uint8", node.get("encodingFormat") or "png"
        if coding not in FORMATS or not isinstance(dtype, str):
            raise self._invalid(f"unsupported image: {brief(coding)} of {brief(dtype)}", path)
        shape = self._sizes(node, path) or (None, None, 3)
        if len(shape) != 3:
            return Tensor("bytes")
        height, width, channels = shape
        if dtype == "float32":
            return Image((height, width, 4), "uint8", coding)
        return Image((height, width, channels or None), dtype, coding)

    def _label(self, node: _Node, path: Path) -> ClassLabel:
        count = self._size(node.get("numClasses"), path, 0)
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
        lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
        names = tuple(line for line in lines if line)
        if names and count not in (0, len(names)):
            raise FormatError(
                f"the file has {len(names)} names, but {self.name} has {count} classes", path=file
            )
        if not names:
            return ClassLabel(num_classes=count or None)
        try:
            return ClassLabel(names=names)
        except FeatureError as error:
            raise FormatError(error.reason, path=file, feature=_name(path)) from None

    def _tensor(self, node: _Node, path: Path, lengths: Shape) -> Any:
        dtype, encoding = node.get("dtype"), node.get("encoding") or "none"
        shape = self._sizes(node, path)
        if isinstance(encoding, str):
            encoding = encoding.lower()  # Audio has it in upper case
        if encoding not in ("none", "bytes", "zlib"):
            raise FeatureError(
                option="encoding", found=encoding, allowed="'none', 'bytes' or 'zlib'"
            )
        optional = bool(node.get("optional")) and not lengths
        if encoding != "none" and isinstance(dtype, str) and dtype != "string":
            return _memory(dtype, shape, encoding, lengths, optional)
        if dtype == "bfloat16":
            dtype = "float32"
        if dtype not in ("string", *NUMBERS):
            raise FeatureError(
                option="dtype",
                found=dtype,
                allowed=f"one of string, {', '.join(NUMBERS)}",
                remedy="other dtypes are stored with an encoding only",
            )
        dtype = "bytes" if dtype == "string" else str(dtype)
        if not optional or shape.count(None) > 1:
            return _values(dtype, shape, lengths)
        # TFDS stores float64 as float32, which does not have the lowest float64.
        default = _lowest(dtype, shape, -math.inf if dtype == "float64" else None)
        return Tensor(dtype, shape, encoding="list", default=default)

    def _audio(self, node: _Node, path: Path, tensor: Any) -> Any:
        """Return the feature of samples that are stored as a tensor."""
        dtype = node.get("dtype")  # a tensor may have another dtype of the same memory
        if dtype not in AUDIO_DTYPES or not isinstance(tensor, Tensor):
            return tensor
        shape = tensor.shape
        if len(shape) not in (1, 2) or not all(shape[1:]):
            return tensor
        rate = self._size(node.get("sampleRate"), path, 0)
        known = rate if 0 < rate <= MAX_SAMPLE_RATE else None
        encoding: Any = tensor.encoding
        return Audio(known, dtype, shape=shape, encoding=encoding)

    def _sizes(self, node: _Node, path: Path) -> Shape:
        shape = node.get("shape", {})
        sizes = shape.get("dimensions", []) if isinstance(shape, dict) else shape
        if not isinstance(sizes, list) or len(sizes) > _MAX_DIMENSIONS:
            raise self._invalid(f"the shape is not a list of up to {_MAX_DIMENSIONS} sizes", path)
        complete = [self._size(size, path, -1) for size in sizes]
        return tuple(None if size == -1 else size for size in complete)

    def _size(self, value: Any, path: Path, missing: int) -> int:
        number = missing if value is None else parse_int64(value)
        if number is None or number < -1:
            raise self._invalid(f"found {brief(value)}, expected a size", path)
        return number

    def _dict(self, value: Any, path: Path) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._invalid(f"found {brief(value)}, expected a dict", path)
        return value

    def _invalid(self, reason: str, path: Path) -> FormatError:
        return FormatError(reason, path=self.name, feature=_name(path))


def _name(path: Path) -> str | None:
    """Return the name of the feature at a path, for errors; None for the top of the file."""
    return "/".join(path) or None


def _text(node: _Node, lengths: Shape) -> Any:
    """Return the feature of strings, or of the integers of an encoder of older TFDS versions."""
    dtype, shape = ("int64", (None,)) if node.get("useEncoder") else ("str", ())
    return _values(dtype, shape, lengths)


def _values(dtype: str, shape: Shape, lengths: Shape) -> Any:
    """Return the feature for values of a shape in nested sequences."""
    unknown = [axis for axis, size in enumerate(shape) if size is None]
    if len(lengths) < 2:
        complete = (*lengths, *shape)
        if complete.count(None) > 1:  # the shape of a value is not stored
            complete = (None, *shape[unknown[-1] + 1 :])
        return Tensor(dtype, complete, encoding="list")
    if not unknown:
        return Ragged("float32" if dtype == "float64" else dtype, len(lengths), shape)
    rows = [f"ragged_row_lengths_{level}" for level in range(len(lengths) - 1)]
    flat = Tensor(dtype, (None, *shape[unknown[-1] + 1 :]), encoding="list")
    return {"ragged_flat_values": flat, **dict.fromkeys(rows, Tensor("int64", (None,)))}


def _memory(dtype: str, shape: Shape, encoding: Any, lengths: Shape, optional: bool) -> Any:
    """Return the feature for raw tensors, one byte string each."""
    same, added = _SAME_MEMORY.get(dtype, ("bytes", ()))
    unknown = shape.count(None)
    # With several unknown dimensions the shape is stored; it is that of the original dtype.
    if same != "bytes" and not lengths and (unknown < 2 or not added):
        complete = (*shape, *added)
        default = _lowest(same, complete) if optional and unknown < 2 and not added else REQUIRED
        return Tensor(same, complete, encoding=encoding, default=default)
    if same != "bytes" and len(lengths) == 1 and not unknown:
        encoding += "_each"
        return Tensor(same, (*lengths, *shape, *added), encoding=encoding)
    strings = _values("bytes", (), lengths)
    if unknown < 2:
        return strings
    return {"shape": _values("int32", (len(shape),), lengths), "value": strings}


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
