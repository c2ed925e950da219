"""Between covey's features and the ``features.json`` of TFDS, without TFDS.

Where TFDS has no such kind, it is given the nearest thing that it can read:

==================================  ===============================================================
covey                               TFDS
==================================  ===============================================================
``str``, one or a list of them      ``Text``, ``Sequence(Text)``; in more dimensions, string tensor
``Image``, other than 1, 3 or 4     ``Image`` of an unknown number of channels; the format is left
channels, or JPEG of uint16         out where TFDS has no such images
``Sparse``                          a dict of its values and indices, each a sequence
uint32 as ``"bytes"``               their memory, one byte string: TensorFlow does not decode it
                                    (with several unknown dimensions a dict of shape and value)
a default, shape known              an optional tensor; what is missing reads as TFDS' own default,
                                    the lowest number or ``b""``. A ``ClassLabel`` becomes int64, an
                                    ``Image`` and numbers as ``"bytes"`` become byte strings
a default, shape unknown            the same without it; what is missing reads as empty
``Steps``                           left out: TFDS reads the context of a SequenceExample only
names of classes that a file with   left out, the number of classes stays
a line for each cannot hold
==================================  ===============================================================

The other way, what covey has no kind for: classes and images in a ``Sequence`` become int64 and
byte strings, the pixels' labels of a ``LabeledImage`` are dropped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import FeatureError, FormatError
from covey.features.columns import NUMBERS, STRINGS, Shape
from covey.features.images import FORMATS, Image
from covey.features.kinds import REQUIRED, ClassLabel, Feature, Tensor
from covey.features.schema import Features
from covey.features.spec import parse_json, parse_whole
from covey.features.structures import Ragged, Sparse, Steps

FEATURES_FILE = "features.json"

# Class, module of TFDS, and the field of its JSON that holds the content.
_CLASSES = {
    "FeaturesDict": ("features_dict", "featuresDict"),
    "Sequence": ("sequence_feature", "sequence"),
    "Tensor": ("tensor_feature", "tensor"),
    "Scalar": ("scalar", "tensor"),
    "ClassLabel": ("class_label_feature", "classLabel"),
    "Text": ("text_feature", "text"),
    "Image": ("image_feature", "image"),
    "LabeledImage": ("labeled_image", "image"),
    "BBoxFeature": ("bounding_boxes", "boundingBox"),
}
_MOST_DEPTH = 64
# An optional tensor larger than that gets no default.
_MOST_DEFAULTS = 1 << 20


# To TFDS.


def features_to_tfds(features: Features) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """The content of ``features.json``, and the names of the classes for every label file.

    >>> features_to_tfds(Features({"label": ClassLabel(names=["wren", "owl"])}))[1]
    {'label.labels.txt': ('wren', 'owl')}
    """
    labels: dict[str, set[tuple[str, ...] | None]] = {}
    for name, feature in features.items():
        if isinstance(feature, ClassLabel):
            labels.setdefault(_label_file(features._paths[name]), set()).add(feature.names)
    files = {}
    for file, names in labels.items():
        # Two features may share the name of a file: it serves if it says the same for both.
        (one, *others) = names
        if one and not others and _fit_lines(one) and _is_possible(file):
            files[file] = one
    nested: dict[str, Any] = {}
    for name, feature in features.items():
        *parents, last = features._paths[name]
        if isinstance(feature, Steps):
            continue
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = feature
    return _nest(nested), files


def _node(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    module, field = _CLASSES[kind]
    name = f"tensorflow_datasets.core.features.{module}.{kind}"
    return {"pythonClassName": name, field: dict(content)}


def _dict(nodes: Mapping[str, Any]) -> dict[str, Any]:
    return _node("FeaturesDict", {"features": dict(nodes)})


def _nest(nested: Mapping[str, Any]) -> dict[str, Any]:
    """The node of nested dicts of features."""
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
        case Tensor():
            return _node_of_tensor(feature, optional)
        case ClassLabel():
            if optional:
                return _tensor("int64", optional=True)
            count = feature.num_classes
            return _node("ClassLabel", {"numClasses": str(count)} if count else {})
        case Image():
            return _tensor("bytes", optional=True) if optional else _node_of_image(feature)
        case Ragged(dtype, depth, shape):
            node = _node("Text", {}) if (dtype, shape) == ("str", ()) else _tensor(dtype, shape)
            for _ in range(depth):
                node = _sequence(node)
            return node
        case Sparse():
            values, *indices = feature.columns("sparse")
            parts = {each.key.removeprefix("sparse/"): each.dtype for each in (values, *indices)}
            return _dict({key: _sequence(_tensor(dtype)) for key, dtype in parts.items()})
    raise FeatureError(f"a {type(feature).__name__} cannot be described to TFDS")


def _node_of_tensor(feature: Tensor, optional: bool) -> dict[str, Any]:
    dtype, shape = feature.dtype, feature.shape
    if feature.encoding == "bytes":
        if dtype != "uint32" and not optional:
            return _tensor(dtype, shape, encoding="bytes")
        if feature.is_plain:
            return _tensor("bytes", optional=optional)
        return _dict({"shape": _tensor("int32", (len(shape),)), "value": _tensor("bytes")})
    optional = optional and None not in shape
    if dtype == "str" and not optional and len(shape) < 2:
        text = _node("Text", {})
        return _sequence(text, shape[0]) if shape else text
    return _tensor(dtype, shape, optional=optional)


def _node_of_image(feature: Image) -> dict[str, Any]:
    height, width, channels = feature.shape
    content = {"shape": _shape(feature.shape), "dtype": feature.dtype}
    if channels not in (1, 3, 4):
        content["shape"] = _shape((height, width, None))
    elif feature.format == "png" or (feature.dtype == "uint8" and channels != 4):
        content["encodingFormat"] = feature.format
    return _node("Image", content)


def _label_file(path: tuple[str, ...]) -> str:
    """How TFDS names the file with the names of a feature's classes."""
    return "-".join(part.replace("/", ".") for part in path) + ".labels.txt"


def _is_possible(file: str) -> bool:
    """Whether a disk can have a file of this name."""
    try:
        return "\0" not in file and len(file.encode()) <= 255
    except UnicodeError:
        return False


def _fit_lines(names: tuple[str, ...]) -> bool:
    """Whether TFDS reads these names back from a file with a line for each."""
    return all(name and name == name.strip() and not {"\n", "\r"} & set(name) for name in names)


# From TFDS.


def features_from_tfds(folder: str | os.PathLike[str]) -> Features:
    """The features of a folder that TFDS prepared, from its ``features.json`` and label files.

    Raises:
        FormatError: If a file is not what it should be.
        FeatureError: If a feature is of a kind that covey does not know.
    """
    path = Path(folder) / FEATURES_FILE
    found = _Reader(Path(folder), str(path)).read(parse_json(path.read_bytes(), str(path)), (), ())
    if not isinstance(found, dict):
        raise FormatError(f"{path}: the features are no FeaturesDict, nor a Sequence of one")
    try:
        return Features(found)
    except FeatureError as error:
        raise FeatureError(f"{path}: {error}") from None


@dataclass(frozen=True)
class _Reader:
    folder: Path
    name: str

    def read(self, node: Any, path: tuple[str, ...], lengths: Shape) -> Any:
        """A node of ``features.json``: a feature, or a dict of them.

        Args:
            node: The node.
            path: The keys that lead to it.
            lengths: Of the sequences that it is in, the outermost first.
        """
        if len(path) + len(lengths) > _MOST_DEPTH:
            raise FormatError(f"{self.name}: features are nested over {_MOST_DEPTH} levels deep")
        kind, content = self._open(node, path)
        match kind:
            case "FeaturesDict":
                inner = self._dict(content if _is_old(node) else content.get("features", {}))
                return {key: self.read(each, (*path, key), lengths) for key, each in inner.items()}
            case "Sequence":
                length = self._whole(content.get("length"), path, -1)
                known = None if length == -1 else length
                return self.read(content.get("feature"), path, (*lengths, known))
        try:
            return self._feature(kind, content, path, lengths)
        except FeatureError as error:
            raise FeatureError(f"{self._where(path)}, a {kind} of TFDS: {error}") from None

    def _feature(
        self, kind: str, content: Mapping[str, Any], path: tuple[str, ...], lengths: Shape
    ) -> Feature:
        match kind:
            case "ClassLabel":
                return _list_of("int64", (), lengths) if lengths else self._label(content, path)
            case "Text":
                return _list_of("str", (), lengths)
            case "BBoxFeature":
                return _list_of("float32", (4,), lengths)
            case "Image" | "LabeledImage":
                if lengths:
                    return _list_of("bytes", (), lengths)
                return self._image(content, path)
        dtype = content.get("dtype")
        if dtype != "string" and dtype not in NUMBERS:
            raise FeatureError(
                f"dtype is {str(dtype)[:60]!r}, must be one of string, {', '.join(NUMBERS)}"
            )
        shape = () if kind == "Scalar" else self._sizes(content, path)
        return _tensor_of("bytes" if dtype == "string" else str(dtype), shape, content, lengths)

    def _image(self, content: Mapping[str, Any], path: tuple[str, ...]) -> Image:
        dtype = content.get("dtype") or "uint8"
        coding = content.get("encodingFormat") or content.get("encoding_format") or "png"
        if coding not in FORMATS or not isinstance(dtype, str):
            raise FormatError(f"{self._where(path)}: no image is {coding!r} of {dtype!r}")
        return Image(self._sizes(content, path) or (None, None, 3), dtype, coding)

    def _label(self, content: Mapping[str, Any], path: tuple[str, ...]) -> ClassLabel:
        count = self._whole(content.get("numClasses", content.get("num_classes")), path, 0)
        file = self.folder / _label_file(path)
        try:
            lines = file.read_text("utf-8").split("\n") if _is_possible(file.name) else []
        except FileNotFoundError:
            lines = []
        except UnicodeError as error:
            raise FormatError(f"{file}: the names of classes are no UTF-8: {error}") from None
        names = [line.strip() for line in lines if line.strip()]
        if names and count not in (0, len(names)):
            raise FormatError(f"{file}: {len(names)} names, but {self.name} has {count} classes")
        return ClassLabel(names=tuple(names)) if names else ClassLabel(num_classes=count or None)

    def _open(self, node: Any, path: tuple[str, ...]) -> tuple[str, Mapping[str, Any]]:
        """The class of a node, without its module, and its content."""
        node = self._dict(node)
        name = node.get("pythonClassName", node.get("type"))
        if not isinstance(name, str):
            raise FormatError(f"{self._where(path)}: there is no class of TFDS")
        package, _, kind = name.rpartition(".")
        if kind not in _CLASSES or not package.startswith("tensorflow_datasets."):
            raise FeatureError(
                f"{self._where(path)}: it is a {name[:100]}, which covey does not know; "
                f"it knows {', '.join(_CLASSES)}"
            )
        field = "content" if "type" in node else _CLASSES[kind][1]
        return kind, self._dict(node.get(field, {}))

    def _sizes(self, content: Mapping[str, Any], path: tuple[str, ...]) -> Shape:
        shape = content.get("shape", {})
        sizes = shape.get("dimensions", []) if isinstance(shape, dict) else shape
        if not isinstance(sizes, list):
            raise FormatError(f"{self._where(path)}: the shape is no list")
        whole = [-1 if size is None else self._whole(size, path, -1) for size in sizes]
        return tuple(None if size == -1 else size for size in whole)

    def _whole(self, value: Any, path: tuple[str, ...], missing: int) -> int:
        number = missing if value is None else parse_whole(value)
        if number is None or number < -1:
            raise FormatError(f"{self._where(path)}: found {str(value)[:60]!r}, expected a size")
        return number

    def _dict(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FormatError(f"{self.name}: found {str(value)[:60]!r}, expected a dict")
        return value

    def _where(self, path: tuple[str, ...]) -> str:
        return f"{self.name}: feature {'/'.join(path)!r}"


def _is_old(node: Mapping[str, Any]) -> bool:
    """Whether a node is of TFDS before 4.4, where the content of a dict is the dict itself."""
    return "type" in node and not node.get("proto_cls")


def _list_of(dtype: str, shape: Shape, lengths: Shape) -> Feature:
    """The feature for values of a shape in so many sequences."""
    if len(lengths) > 1:
        return Ragged(dtype, len(lengths), shape)
    return Tensor(dtype, (*lengths, *shape), encoding="list")


def _tensor_of(dtype: str, shape: Shape, content: Mapping[str, Any], lengths: Shape) -> Feature:
    encoding = str(content.get("encoding") or "none").lower()
    if encoding not in ("none", "bytes"):
        raise FeatureError(
            f"encoding is {encoding[:60]!r}, must be 'none' or 'bytes'; "
            "prepare the dataset again with one of these"
        )
    optional = bool(content.get("optional"))
    if encoding == "bytes":
        if lengths or optional:
            raise FeatureError("encoding 'bytes' is not known in a Sequence, nor of an optional")
        return Tensor(dtype, shape, encoding="bytes")
    if not optional or lengths:
        return _list_of(dtype, shape, lengths)
    if None in shape or math.prod(size or 0 for size in shape) > _MOST_DEFAULTS:
        raise FeatureError(f"an optional tensor of shape {shape} is not known")
    return Tensor(dtype, shape, encoding="list", default=_lowest(dtype, shape))


def _lowest(dtype: str, shape: Shape) -> Any:
    """What TFDS gives for an optional tensor that is missing."""
    lowest: Any
    if dtype == "bytes":
        lowest = b""
    elif dtype == "bool":
        lowest = False
    elif dtype == "float64":
        lowest = -math.inf  # TFDS' default is the lowest float64, which its float32 cannot hold
    else:
        lowest = (np.finfo if dtype.startswith("float") else np.iinfo)(dtype).min
    sizes = tuple(size or 0 for size in shape)
    return np.full(sizes, lowest, object if dtype == "bytes" else dtype).tolist()
