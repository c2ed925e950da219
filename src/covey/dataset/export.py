"""Datasets as tables of pandas and datasets of Hugging Face, which are imported on first use."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.errors import DatasetError, import_extra
from covey.schema import Audio, ClassLabel, Image, Ragged, Sparse, Tensor
from covey.schema.audio import encode_wav
from covey.schema.types import Feature
from covey.splits import Ids

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset

# The dtypes of Arrow that have other names.
_ARROW_NAMES = {"str": "string", "bytes": "binary"}

# Arrays of Hugging Face have at most so many dimensions; others are nested lists.
_MAX_ARRAY_DIMENSIONS = 5


class ExportColumns:
    """The columns of a dataset, by the full names of its features.

    The class of a dataset whose label is not a feature is a column, too.

    Args:
        dataset: The dataset.
        select: The features; None for all.
        pixels: Whether images are decoded, if the dataset decodes them.
    """

    def __init__(
        self, dataset: Dataset, select: Iterable[str] | str | None, *, pixels: bool = False
    ) -> None:
        self.dataset = dataset
        self.pixels = pixels and dataset._pixels
        self.features = dataset._features_of(select)
        self.kinds: dict[str, Feature] = dict(self.features)
        self._added: str | None = None
        label = dataset.label
        if select is None and label is not None and label not in dataset.features:
            self._added = next(each for each in ("label", "class", label) if each not in self.kinds)
            known = dataset._names
            self.kinds[self._added] = Tensor("int64") if known is None else ClassLabel(known)

    def read(self, ids: Ids) -> dict[str, Any]:
        """Return columns of examples."""
        read = self.dataset._show if self.pixels else self.dataset.decode
        columns = read(self.features, ids)
        found = {name: self.features.find(columns, name) for name in self.features}
        if self._added is not None:
            found[self._added] = self.dataset.labels_of(ids)
        return found


def to_pandas(dataset: Dataset, select: Iterable[str] | str | None) -> Any:
    """Return the examples as a DataFrame."""
    pandas = import_extra("pandas", "to_pandas()")
    columns = ExportColumns(dataset, select)
    series = {}
    for name, column in columns.read(np.arange(len(dataset), dtype=np.int64)).items():
        kind = columns.kinds[name]
        if isinstance(kind, ClassLabel) and kind.names is not None:
            series[name] = pandas.Categorical.from_codes(column, categories=list(kind.names))
        elif isinstance(column, np.ndarray) and column.ndim == 1:
            series[name] = column
        else:
            is_string = isinstance(kind, Tensor) and (kind.dtype, kind.shape) == ("str", ())
            series[name] = pandas.Series(list(column), dtype=None if is_string else object)
    return pandas.DataFrame(series, index=pandas.RangeIndex(len(dataset)))


def to_hf(dataset: Dataset, select: Iterable[str] | str | None, *, streaming: bool) -> Any:
    """Return the examples as a dataset of Hugging Face."""
    hugging_face = import_extra("datasets", "to_hf()")
    columns = ExportColumns(dataset, select)
    features = hugging_face.Features(
        {name: _hf_feature(hugging_face, name, kind) for name, kind in columns.kinds.items()}
    )
    # The values of Audio are files already; with that type, a codec would be needed to store them.
    file = {"bytes": hugging_face.Value("binary"), "path": hugging_face.Value("string")}
    stored = hugging_face.Features(
        {name: file if _is_sound(kind) else features[name] for name, kind in columns.kinds.items()}
    )
    if streaming:
        return hugging_face.IterableDataset.from_generator(
            _examples, features=stored, gen_kwargs={"dataset": dataset, "select": select}
        )
    parts = [
        hugging_face.Dataset.from_dict(part, features=stored) for part in _chunks(columns)
    ] or [hugging_face.Dataset.from_dict({name: [] for name in stored}, features=stored)]
    joined = parts[0] if len(parts) == 1 else hugging_face.concatenate_datasets(parts)
    return joined if stored == features else joined.cast(features)


def _is_sound(kind: Feature) -> bool:
    """Return whether values are exported as sound files; this needs the sampling rate."""
    return isinstance(kind, Audio) and kind.sample_rate is not None


def _chunks(columns: ExportColumns) -> Iterator[dict[str, Any]]:
    """Yield columns of consecutive examples, as arrays and lists."""
    for ids in columns.dataset.raw.chunks():
        part: dict[str, Any] = {}
        for name, column in columns.read(ids).items():
            kind: Any = columns.kinds[name]
            if _is_sound(kind):
                part[name] = [{"bytes": encode_wav(each, kind), "path": None} for each in column]
            else:
                part[name] = column if isinstance(column, np.ndarray) else column.tolist()
        yield part


def _examples(dataset: Dataset, select: Iterable[str] | str | None) -> Iterator[dict[str, Any]]:
    for part in _chunks(ExportColumns(dataset, select)):
        columns = [
            each.tolist() if isinstance(each, np.ndarray) else each for each in part.values()
        ]
        for values in zip(*columns, strict=True):
            yield dict(zip(part, values, strict=True))


def _hf_feature(hugging_face: Any, name: str, kind: Feature) -> Any:
    """Return a feature of Hugging Face."""
    if isinstance(kind, Image):
        return hugging_face.Image()
    if isinstance(kind, Audio) and kind.sample_rate is not None:
        return hugging_face.Audio(sampling_rate=kind.sample_rate, decode=False)
    if isinstance(kind, ClassLabel):
        if kind.names is not None:
            return hugging_face.ClassLabel(names=list(kind.names))
        if kind.num_classes is not None:
            return hugging_face.ClassLabel(num_classes=kind.num_classes)
        return hugging_face.Value("int64")
    if not isinstance(kind, (Tensor, Ragged, Sparse)):
        raise DatasetError(
            f"it is {kind}, which has no counterpart in datasets of Hugging Face",
            feature=name,
            remedy="pass select= without it",
        )
    dtype = _ARROW_NAMES.get(kind.dtype, kind.dtype)
    shape = kind.shape if not isinstance(kind, Ragged) else (None,) * kind.depth + kind.shape
    is_array = 2 <= len(shape) <= _MAX_ARRAY_DIMENSIONS and None not in shape[1:]
    if is_array and kind.dtype not in _ARROW_NAMES and not isinstance(kind, Ragged):
        return getattr(hugging_face, f"Array{len(shape)}D")(shape=shape, dtype=dtype)
    feature = hugging_face.Value(dtype)
    for size in reversed(shape):
        feature = hugging_face.Sequence(feature, length=-1 if size is None else size)
    return feature


def from_hf(
    dataset: Any, path: str | os.PathLike[str], *, split: str | None, **options: Any
) -> Dataset:
    """Write a dataset of Hugging Face, and open it."""
    if isinstance(dataset, Mapping) and split is None:
        if len(dataset) != 1:
            raise DatasetError(
                "it has several splits",
                option="split",
                found=None,
                choices=list(map(str, dataset)),
                remedy="covey.write writes all of them",
            )
        (split,) = dataset
    elif split is None:
        given = str(getattr(dataset, "split", None) or "train")
        split = given if re.fullmatch(r"\w+", given) else "train"
    # The public functions: the write path is built upon this package.
    covey = importlib.import_module("covey")
    covey.write(dataset, path, split=split, **options)
    storage = {name: options[name] for name in ("storage_options",) if name in options}
    opened: Dataset = covey.open(path, split=split, **storage)
    return opened
