"""Conversion of covey's features to the ``features.json`` of TFDS; see :mod:`covey.schema.tfds`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.errors import FeatureError
from covey.schema.columns import STRINGS, Shape
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.structures import Ragged, Sparse, Steps
from covey.schema.tfds_read import is_possible, label_file
from covey.schema.types import REQUIRED, ClassLabel, Feature, Tensor

# Module of each TFDS class, and the field of its JSON that holds the content.
_CLASSES = {
    "FeaturesDict": ("features_dict", "featuresDict"),
    "Sequence": ("sequence_feature", "sequence"),
    "Tensor": ("tensor_feature", "tensor"),
    "ClassLabel": ("class_label_feature", "classLabel"),
    "Text": ("text_feature", "text"),
    "Image": ("image_feature", "image"),
}


def features_to_tfds(features: Features) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the content of ``features.json``, and the class names of every label file.

    >>> features_to_tfds(Features({"label": ClassLabel(names=["wren", "owl"])}))[1]
    {'label.labels.txt': ('wren', 'owl')}
    """
    labels: dict[str, set[tuple[str, ...] | None]] = {}
    for name, feature in features.items():
        if isinstance(feature, ClassLabel):
            labels.setdefault(label_file(features.path_of(name)), set()).add(feature.names)
    files = {}
    for file, names in labels.items():
        # Two features may share a file name: the file is written if their names are equal.
        (one, *others) = names
        if one and not others and _fit_lines(one) and is_possible(file):
            files[file] = one
    nested: dict[str, Any] = {}
    for name, feature in features.items():
        *parents, last = features.path_of(name)
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


def _node_of_image(feature: Image) -> dict[str, Any]:
    height, width, channels = feature.shape
    content = {"shape": _shape(feature.shape), "dtype": feature.dtype}
    if channels not in (1, 3, 4):
        content["shape"] = _shape((height, width, None))
    elif feature.format == "png" or (feature.dtype == "uint8" and channels != 4):
        content["encodingFormat"] = feature.format
    return _node("Image", content)


def _fit_lines(names: tuple[str, ...]) -> bool:
    """Return whether TFDS reads these names back from a file with one name per line."""
    return all(name and name == name.strip() and not {"\n", "\r"} & set(name) for name in names)
