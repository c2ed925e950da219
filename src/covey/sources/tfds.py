"""Datasets that TFDS prepared (or covey wrote): read from their directory, without TFDS."""

from __future__ import annotations

import os
from typing import Any

from covey.dataset_info import DatasetInfo
from covey.errors import CoveyError, SourceError
from covey.filenames import INFO_FILE
from covey.schema import ClassLabel, Features
from covey.schema.tfds import FEATURES_FILE, features_from_tfds
from covey.sources.registry import ProbedPath, register
from covey.sources.source import Source, check_label, fault, find_label
from covey.sources.splits import choose_split
from covey.sources.tfrecord import RecordItems
from covey.untrusted import read_file


def _is_prepared(place: ProbedPath) -> bool:
    return {INFO_FILE, FEATURES_FILE} <= {os.path.basename(file) for file in place.files}


@register("TFDS directory", "a directory that TFDS prepared", recognise=_is_prepared)
def open_tfds(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The examples of one split, keyed by file and number. Encoded images stay as they are."""
    directory = place.path
    if not _is_prepared(place):
        raise fault(
            directory, f"found {place.describe()}, but not {INFO_FILE} beside {FEATURES_FILE}"
        )
    try:
        path = os.path.join(directory, INFO_FILE)
        info = DatasetInfo.from_json(read_file(path), path)
        features = features_from_tfds(directory)
    except SourceError:
        raise
    except (CoveyError, OSError) as error:
        raise SourceError(str(error), path=directory) from None
    splits = {each.name: each for each in info.splits}
    chosen = splits[choose_split(splits, split, directory)]
    files = tuple(os.path.join(directory, name) for name in chosen.shard_names(info.name))
    missing = next((file for file in files if not os.path.isfile(file)), None)
    if missing is not None:
        raise fault(missing, f"this shard of split {chosen.name!r} is missing; prepare it again")
    if not files:
        raise fault(directory, f"split {chosen.name!r} has no shards")
    check_label(label, features, directory, "feature")
    return Source(
        "TFDS directory",
        directory,
        RecordItems(files, features, chosen.shard_lengths),
        length=chosen.num_examples,
        features=features,
        label=label or _label(info, features),
    )


def _label(info: DatasetInfo, features: Features) -> str | None:
    """The second of the keys for supervised learning, or else the only class there is."""
    keys = info.extra.get("supervisedKeys", info.extra.get("supervised_keys"))
    try:
        items: Any = keys["tuple"]["items"]
        second = items[1].get("featureKey", items[1].get("feature_key"))
    except (TypeError, KeyError, IndexError, AttributeError):
        second = None
    if isinstance(second, str) and second in features:
        return second
    classes = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    return classes[0] if len(classes) == 1 else find_label(features)


def from_tfds_builder(
    builder: Any, split: str | None = None, *, label: str | None = None
) -> Source:
    """The examples of a TFDS builder's split, read from the directory that it has prepared.

    Args:
        builder: What ``tfds.builder("mnist")`` gives, after ``download_and_prepare()``.
        split: The split; it may be left out if there is only one.
        label: The feature that holds the class; what the dataset says itself if not given.
    """
    directory = getattr(builder, "data_dir", None)
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(
            f"the builder is of type {type(builder).__name__}; must be one of TFDS, with a data_dir"
        )
    directory = os.fspath(directory)
    if not os.path.isfile(os.path.join(directory, INFO_FILE)):
        raise fault(
            directory,
            "this dataset is not prepared; call the builder's download_and_prepare() first",
        )
    return open_tfds(ProbedPath.look(directory), label=label, split=split)
