"""Inputs of a write of several splits, and the schema that they share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from covey.errors import CoveyError, DatasetError, FeatureError, list_names
from covey.labels import AUTO
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.lattice import extends
from covey.schema.merge import describe, unify, widen_floats
from covey.sources import Source, SourceSplits, open_splits
from covey.sources.source import PathKeywords, choose_split, renaming_note
from covey.splits import split_order
from covey.writing.hold_out import check_feature, split_name
from covey.writing.input_types import is_ray_dataset, is_source_list, normalize_input
from covey.writing.inputs import Input, get_value, located, name_classes, split_item
from covey.writing.options import WriteOptions
from covey.writing.tables import flatten

DEFAULT_SPLIT = "train"
MAX_SPLIT_VALUES = 100
"""Maximum number of splits that a feature divides a source into."""


def normalize_splits(
    examples: Any,
    split: str | None,
    label: str | None,
    kind: str | None = None,
    source: PathKeywords | None = None,
    declare: Callable[[Input], Input] = lambda examples: examples,
) -> tuple[dict[str, Input], tuple[str, ...]]:
    """Return the input of each split to be written, and the notes of the source.

    Args:
        examples: Examples, or the splits of a source, of any supported type.
        split: The split of the source to be written, or the name of the only split (default: all
            splits of the source, or ``"train"``).
        label: The requested label, for a path.
        kind: The format of a path.
        source: Further options of a path.
        declare: Function that declares types of the features of an input.

    Raises:
        DatasetError: If options of a path are given, and the examples are not a path.
    """
    path = "examples"
    source = source or {}
    if is_source_list(examples):
        return _normalize_list(examples, split, label, kind, source, declare)
    if isinstance(examples, (str, bytes, os.PathLike)):
        path = os.fsdecode(examples)
        label = None if label == AUTO else label
        examples = open_splits(path, kind=kind, label=label, **source)
    else:
        _refuse_options({"kind": kind, **source}, examples)
    notes = examples.notes if isinstance(examples, (Source, SourceSplits)) else ()
    if not _is_splits(examples):
        only = declare(normalize_input(examples))
        return {DEFAULT_SPLIT if split is None else split: only}, notes
    if not len(examples):
        raise DatasetError("it has no splits", option="examples")
    if split is not None:
        found = choose_split(examples, split, path)
        if found != split:
            notes = (*notes, renaming_note(found, split))
        return {split: declare(normalize_input(examples[found]))}, notes
    return {str(name): declare(normalize_input(examples[name])) for name in examples}, notes


def _normalize_list(
    examples: Sequence[Any],
    split: str | None,
    label: str | None,
    kind: str | None,
    source: PathKeywords,
    declare: Callable[[Input], Input],
) -> tuple[dict[str, Input], tuple[str, ...]]:
    """Return the input of each split of a list of sources."""
    paths = [_path_of(each) for each in examples]
    named = [os.path.abspath(path) for path in paths if path is not None]
    root = os.path.commonpath([os.path.dirname(path) for path in named]) if named else ""
    by_split: dict[str, list[Input]] = {}
    notes: list[str] = []
    for number, (each, path) in enumerate(zip(examples, paths, strict=True)):
        prefix = "" if path is None else os.path.relpath(os.path.abspath(path), root)
        if isinstance(each, (str, bytes, os.PathLike)):
            found, own_notes = normalize_splits(each, split, label, kind, source, declare)
        else:
            _refuse_options({"kind": kind, **source}, each)
            only = DEFAULT_SPLIT if split is None else split
            found, own_notes = {only: declare(normalize_input(each))}, getattr(each, "notes", ())
        notes += own_notes
        for name, one in found.items():
            numbered = dataclasses.replace(one, number=number, key_prefix=prefix, columns=None)
            by_split.setdefault(name, []).append(numbered)
    joined = {name: _join_sources(each, label) for name, each in by_split.items()}
    return joined, tuple(dict.fromkeys(notes))


def _join_sources(sources: Sequence[Input], label: str | None) -> Input:
    """Return one input for sources that follow each other."""
    named = {f"{each.key_prefix or f'source {each.number}'}": each for each in sources}
    joined = _join(named, label, "sources")
    return dataclasses.replace(joined, sources=tuple(sources), label_hint=sources[0].label_hint)


def _path_of(source: Any) -> str | None:
    """Return the path of one of several sources; None for a function."""
    if isinstance(source, (str, bytes, os.PathLike)):
        return os.fsdecode(source)
    return source.path if isinstance(source, Source) else None


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
        and all(
            isinstance(each, Source) or hasattr(each, "column_names") or is_ray_dataset(each)
            for each in examples.values()
        )
    )


def divide_by_feature(options: WriteOptions, inputs: Mapping[str, Input]) -> WriteOptions:
    """Return the options with the splits that the values of the feature ``split_by`` name.

    All examples are read once, before the write. Common names of splits come first.

    Raises:
        DatasetError: If the feature does not exist, has too many values, or the source has splits
            or can be read only once.
        FeatureError: If an example has no value, or its value is not a valid name of a split.
    """
    by = options.split_by
    assert by is not None
    if len(inputs) > 1:
        raise DatasetError(
            f"the source has the splits {list_names(inputs)}",
            option="split_by",
            found=by,
            allowed="omitted for a source with splits",
        )
    (examples,) = inputs.values()
    found: set[str] = set()
    for part in examples.parts:
        with located(part):
            _add_splits(found, part, by, options)
    if not found:
        raise DatasetError("there are no examples", option="split_by", found=by)
    first, *more = sorted(found, key=split_order)
    return dataclasses.replace(options, split=first, more_splits=tuple(more))


def _add_splits(found: set[str], part: Input, by: str, options: WriteOptions) -> None:
    """Add the values of a feature in the examples of an input."""
    features = options.features or part.features
    names: Sequence[str] = (part.class_names or {}).get(by, ())
    if features is not None:
        features = name_classes(features, part.class_names)
        check_feature(features, by, "split_by")
        feature = features[by]
        names = (feature.names or ()) if isinstance(feature, ClassLabel) else ()
    known: dict[Any, str] = {}
    for position, value in enumerate(_values(part, by, options), part.first):
        if isinstance(value, CoveyError):  # an example that is skipped
            continue
        try:
            is_known = value in known
        except TypeError:  # a list or an array, which is not a name
            is_known = False
        if is_known:
            continue
        try:
            known[value] = split_name(value, names, by)
        except FeatureError as error:
            error.example = position
            raise
        found.add(known[value])
        if len(found) > MAX_SPLIT_VALUES:
            raise DatasetError(
                f"it has more than {MAX_SPLIT_VALUES} values, such as "
                f"{list_names(sorted(found), 3)}",
                option="split_by",
                found=by,
                allowed="a feature whose values are the names of splits",
            )


def _values(part: Input, by: str, options: WriteOptions) -> Iterable[Any]:
    """Return the values of a feature in all examples, and the errors of those that are skipped."""
    if part.columns is not None:
        columns = flatten(part.columns)
        if by not in columns:
            raise DatasetError(option="split_by", found=by, choices=columns)
        column: Iterable[Any] = columns[by]
        return column.tolist() if isinstance(column, np.ndarray) else column
    if not part.is_repeatable:
        raise DatasetError(
            "the source can be read only once, and its splits are not known before it is read",
            option="split_by",
            found=by,
            remedy="pass a path, a sequence, or a function that returns an iterable",
        )
    read_feature = getattr(part.items, "read_feature", None)
    items = part.read() if read_feature is None else read_feature(by)
    return (_value(item, position, by, options) for position, item in enumerate(items))


def _value(item: Any, position: int, by: str, options: WriteOptions) -> Any:
    """Return the value of a feature in an item; an error if the item is skipped."""
    try:
        example, _ = split_item(item, options)
    except CoveyError as error:
        if options.on_error == "raise":
            raise
        return error
    value = get_value(example, by)
    if value is None and position == 0 and by not in (*example, *options.defaults):
        raise DatasetError(option="split_by", found=by, choices=example)
    return options.defaults.get(by) if value is None else value


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
    joined = _join(inputs, options.label, "splits", options.features)
    if joined.features is not None and all(each.columns is not None for each in parts):
        return dataclasses.replace(joined, columns={}), parts
    return joined, [dataclasses.replace(each, columns=None) for each in parts]


def _join(
    inputs: Mapping[str, Input], label: str | None, noun: str, features: Features | None = None
) -> Input:
    """Return an input with the schema of all inputs, but without examples."""
    label = _join_labels(inputs, label, noun)
    adds_classes = False
    if features is None:
        features, adds_classes = _join_features(inputs, label, noun)
    lengths = [each.length for each in inputs.values()]
    return Input(
        length=None if None in lengths else sum(filter(None, lengths)),
        features=features,
        class_names=_join_class_names([*inputs.values()]),
        label=label,
        adds_classes=adds_classes,
    )


def _join_labels(inputs: Mapping[str, Input], label: str | None, noun: str) -> str | None:
    """Return the requested label, or the label of all inputs."""
    if label != AUTO:
        return label
    first = next(iter(inputs.values())).label
    if any(each.label != first for each in inputs.values()):
        found = ", ".join(f"{each.label!r} in {name!r}" for name, each in inputs.items())
        raise DatasetError(
            f"the {noun} have different labels: {found}",
            option="label",
            remedy=f"pass label= to name one that all {noun} have",
        )
    return first


def _join_features(
    inputs: Mapping[str, Input], label: str | None, noun: str
) -> tuple[Features | None, bool]:
    """Return the features of all inputs, and whether the classes of the label are to be added.

    The features are None if those of an input must be inferred.
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
    known = dict(zip(known, widen_floats(list(known.values())), strict=True))
    first, *others = known
    try:
        adds_classes = adds_classes or any(each.adds_classes for each in inputs.values())
        return unify(known[first], *(known[split] for split in others)), adds_classes
    except FeatureError as error:
        one = f", or split={first!r} to write one split" if noun == "splits" else ""
        raise DatasetError(
            f"the {noun} have different features: {error.reason}",
            feature=error.feature,
            remedy=f"pass features= to declare it{one}",
        ) from None


def _join_class_names(inputs: Sequence[Input]) -> dict[str, tuple[str, ...]] | None:
    joined: dict[str, tuple[str, ...]] = {}
    for each in inputs:
        for name, names in (each.class_names or {}).items():
            known = joined.setdefault(name, names)
            short, long = sorted((known, names), key=len)
            if long[: len(short)] != short:
                raise DatasetError(
                    "the sources have different class names: "
                    f"{describe(ClassLabel(known))}, {describe(ClassLabel(names))}",
                    feature=name,
                    remedy="pass split= to write one split",
                )
            joined[name] = long
    return joined or None
