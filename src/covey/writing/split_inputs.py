"""Inputs of a write of several splits, and the schema that they share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from covey.errors import DatasetError, FeatureError
from covey.labels import AUTO
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.merge import describe, extends, unify
from covey.sources import Source, SourceSplits, open_splits
from covey.sources.source import PathKeywords, choose_split, renaming_note
from covey.writing.inputs import Input, normalize_input
from covey.writing.options import WriteOptions

DEFAULT_SPLIT = "train"


def normalize_splits(
    examples: Any,
    split: str | None,
    label: str | None,
    kind: str | None = None,
    source: PathKeywords | None = None,
) -> tuple[dict[str, Input], tuple[str, ...]]:
    """Return the input of each split to be written, and the notes of the source.

    Args:
        examples: Examples, or the splits of a source, of any supported type.
        split: The split of the source to be written, or the name of the only split (default: all
            splits of the source, or ``"train"``).
        label: The requested label, for a path.
        kind: The format of a path.
        source: Further options of a path.

    Raises:
        DatasetError: If options of a path are given, and the examples are not a path.
    """
    path = "examples"
    source = source or {}
    if isinstance(examples, (str, bytes, os.PathLike)):
        path = os.fsdecode(examples)
        label = None if label == AUTO else label
        examples = open_splits(path, kind=kind, label=label, **source)
    else:
        _refuse_options({"kind": kind, **source}, examples)
    notes = examples.notes if isinstance(examples, (Source, SourceSplits)) else ()
    if not _is_splits(examples):
        return {DEFAULT_SPLIT if split is None else split: normalize_input(examples)}, notes
    if not len(examples):
        raise DatasetError("it has no splits", option="examples")
    if split is not None:
        found = choose_split(examples, split, path)
        if found != split:
            notes = (*notes, renaming_note(found, split))
        return {split: normalize_input(examples[found])}, notes
    return {str(name): normalize_input(examples[name]) for name in examples}, notes


def _refuse_options(options: Mapping[str, Any], examples: Any) -> None:
    given = next(((name, value) for name, value in options.items() if value is not None), None)
    if given is not None:
        raise DatasetError(
            f"it is an option of a path; examples is of type {type(examples).__name__}",
            option=given[0],
            found=given[1],
            allowed="omitted",
        )


def _is_splits(examples: Any) -> bool:
    """Return whether examples are a mapping of sources, or of Hugging Face datasets."""
    if isinstance(examples, SourceSplits):
        return True
    return (
        isinstance(examples, Mapping)
        and bool(examples)
        and all(isinstance(v, Source) or hasattr(v, "column_names") for v in examples.values())
    )


def join_inputs(inputs: Mapping[str, Input], options: WriteOptions) -> tuple[Input, list[Input]]:
    """Return an input with the schema of all splits, and the input of each split.

    Args:
        inputs: The inputs, by split.
        options: Options of the write. Features and a label that they declare are used in place of
            those of the inputs.

    Raises:
        DatasetError: If the features, the label or the class names of the splits differ.
    """
    parts = list(inputs.values())
    if len(parts) == 1:
        return parts[0], parts
    label = parts[0].label if options.label == AUTO else options.label
    if options.label == AUTO and any(each.label != label for each in parts):
        found = ", ".join(f"{each.label!r} in {split!r}" for split, each in inputs.items())
        raise DatasetError(
            f"the splits have different labels: {found}",
            option="label",
            remedy="pass label= to name one that all splits have",
        )
    features, adds_classes = options.features, False
    if features is None:
        features, adds_classes = _join_features(inputs, label)
    by_column = features is not None and all(each.columns is not None for each in parts)
    if not by_column:
        parts = [dataclasses.replace(each, columns=None) for each in parts]
    lengths = [each.length for each in parts]
    joined = Input(
        columns={} if by_column else None,
        length=None if None in lengths else sum(filter(None, lengths)),
        features=features,
        class_names=_join_class_names(parts),
        label=label,
        adds_classes=adds_classes,
    )
    return joined, parts


def _join_features(inputs: Mapping[str, Input], label: str | None) -> tuple[Features | None, bool]:
    """Return the features of all splits, and whether the classes of the label are to be added.

    The features are None if those of a split must be inferred.
    """
    known = {split: each.features for split, each in inputs.items() if each.features is not None}
    if len(known) < len(inputs):
        return None, False
    kinds = [None if label is None else each.get(label) for each in known.values()]
    named = [each for each in kinds if isinstance(each, ClassLabel) and each.names is not None]
    longest = max(named, key=lambda each: len(each.names or ()), default=None)
    adds_classes = (
        label is not None
        and len(named) == len(kinds)
        and not all(extends(longest, each) for each in named)
    )
    if adds_classes and label is not None:
        # The names of the classes are collected from the examples.
        string = {label: Tensor("str")}
        known = {split: each.replace(string) for split, each in known.items()}
    first, *others = known
    try:
        return unify(known[first], *(known[split] for split in others)), adds_classes
    except FeatureError as error:
        raise DatasetError(
            f"the splits have different features: {error.reason}",
            feature=error.feature,
            remedy=f"pass features= to declare it, or split={first!r} to write one split",
        ) from None


def _join_class_names(inputs: Sequence[Input]) -> dict[str, tuple[str, ...]] | None:
    joined: dict[str, tuple[str, ...]] = {}
    for each in inputs:
        for name, names in (each.class_names or {}).items():
            known = joined.setdefault(name, names)
            short, long = sorted((known, names), key=len)
            if long[: len(short)] != short:
                raise DatasetError(
                    "the splits have different class names: "
                    f"{describe(ClassLabel(known))}, {describe(ClassLabel(names))}",
                    feature=name,
                    remedy="pass split= to write one split",
                )
            joined[name] = long
    return joined or None
