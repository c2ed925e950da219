"""``covey.write``: write examples as a split of a dataset, in one commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey._locks import interrupted
from covey._progress import Progress
from covey.errors import DatasetError
from covey.labels import Classes
from covey.results import SkippedRecord, WriteResult
from covey.schema import ClassLabel, Features, Tensor
from covey.urls import AnyPath, parse_path, shown
from covey.writing.columns import RecordsToWrite, sort_columns
from covey.writing.hold_out import HoldOut
from covey.writing.inputs import Input, normalize_input
from covey.writing.options import (
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_SHARD_BYTES,
    Mode,
    OnError,
    WriteOptions,
    WriteSchema,
)
from covey.writing.order import RecordSorter
from covey.writing.parallel import encode_examples
from covey.writing.split_writer import SplitWriter, stage_split
from covey.writing.target import TargetSplit


def write(
    examples: Any,
    path: AnyPath,
    *,
    split: str,
    label: str | None = None,
    features: Features | Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    key: str | None = None,
    name: str | None = None,
    description: str = "",
    shuffle: bool = True,
    sort_by_class: bool = False,
    seed: int = 0,
    shards: int | None = None,
    records_per_shard: int | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    compression: str | None = None,
    compression_level: int = 6,
    mode: Mode = "error",
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    workers: int | None = None,
    on_error: OnError = "raise",
    hold_out: HoldOut | None = None,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write examples as one split of a dataset, in the TFDS layout, with an index.

    The write is atomic: if it fails or is killed, the directory has the old dataset. Other splits
    are not changed. The same examples give the same bytes, for any ``memory_limit`` and
    ``workers``.

    Args:
        examples: An iterable of dicts, or of (key, dict) pairs; a dict of columns; a pandas,
            polars or Arrow table; a tf.data, torch or Hugging Face dataset; or a
            :class:`covey.sources.Source`.
        path: Directory of the dataset, which is created if it does not exist; or a URL that fsspec
            supports. Files are written locally and then uploaded to the URL.
        split: Name of the split, such as ``"train"``.
        label: Label feature: a ClassLabel, an integer or a string. The default is the only
            ClassLabel, if there is exactly one.
        features: Features of the examples. The default is to infer them from all examples. All
            splits of a dataset have the same features.
        defaults: Values of missing features, by name, if features are inferred.
        names: Names of the elements, if examples are tuples: ``("image", "label")``.
        key: Feature that is the key of an example, which determines its position in the shuffled
            order. The default is the key of a (key, dict) pair, or the position of the example.
        name: Name of the dataset. The default is the name of its directory.
        description: Description of the dataset.
        shuffle: Whether to shuffle. False keeps the order of the examples.
        sort_by_class: Whether to store the examples of each class together, for readers that
            stream and need this order.
        seed: Seed of the shuffled order.
        shards: Number of shards.
        records_per_shard: Number of examples in each shard, in place of ``shards``.
        shard_bytes: Approximate size of a shard, if neither of these two is given.
        compression: ``"GZIP"``, which keeps random access; ``"ZLIB"``; or None. TFDS reads
            uncompressed datasets only.
        compression_level: Compression level from 0 to 9.
        mode: What to do if the split exists: ``"error"``, ``"overwrite"`` it, or ``"append"``
            shards to it.
        memory_limit: Approximate number of bytes of examples in memory; more are spilled to disk.
        workers: Number of threads or processes. The default is one thread for encoding, and one
            per CPU for sorting, compressing and writing.
        on_error: ``"raise"`` an error for an invalid example, or ``"skip"`` and list it. Columns
            must be valid as a whole.
        hold_out: Examples or classes to write as a second split, in the same commit, such as
            ``covey.HoldOut(fraction=0.1, split="val")``.
        progress: Whether to show a progress bar. The default is to show it in a terminal.
        storage_options: Options of fsspec for a URL, such as credentials.

    Returns:
        A summary of the written split; ``held_out`` is that of the second split.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> written = write(birds, "birds", split="train", label="species", progress=False)
    >>> written.records, written.classes
    (3, {'owl': 2, 'wren': 1})
    """
    started = time.perf_counter()
    options = WriteOptions(
        split=split,
        label=label,
        features=None if features is None else Features(features),
        defaults=dict(defaults or {}),
        names=names,
        key=key,
        name=name,
        description=description,
        shuffle=shuffle,
        sort_by_class=sort_by_class,
        seed=seed,
        shards=shards,
        records_per_shard=records_per_shard,
        shard_bytes=shard_bytes,
        compression=compression,
        compression_level=compression_level,
        mode=mode,
        memory_limit=memory_limit,
        workers=workers,
        on_error=on_error,
        hold_out=hold_out,
    )
    target = parse_path(path)
    if not target or "\0" in target:
        raise DatasetError(option="path", found=target, allowed="the path of a directory, or a URL")
    call = _WriteCall(options, normalize_input(examples), progress)
    committed = False
    try:
        result = call.run(target, storage_options)
        committed = True
        return replace(result, seconds=time.perf_counter() - started)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:  # it reports whether the split was written
            raise
        raise interrupted(shown(target), split, committed) from interrupt


@dataclass(frozen=True)
class _WriteCall:
    """One call of :func:`write`."""

    options: WriteOptions
    input: Input
    progress: bool | None

    def run(self, path: str, storage_options: Mapping[str, Any] | None) -> WriteResult:
        """Write the split, and return its summary."""
        options = self.options
        with stage_split(path, options, storage_options) as writer:
            schema = resolve_schema(options, self.input, writer.targets, writer.known_schema())
            title = f"{writer.target.name} {' and '.join(options.splits)}"
            with Progress(self.progress, self.input.length, title) as progress:
                return self._encode_and_write(writer, schema, progress)

    def _encode_and_write(
        self, writer: SplitWriter, schema: WriteSchema, progress: Progress
    ) -> WriteResult:
        skipped: list[SkippedRecord] = []
        if self.input.columns is not None:
            ordered = sort_columns(self.input, self.options, schema)
        else:
            ordered = self._sort_items(schema, writer.staging.path, progress, skipped)
        if not any(records.records for records in ordered.splits):
            reasons = f"; {len(skipped)} were skipped: {skipped[0].reason}" if skipped else ""
            raise DatasetError(
                f"there are no examples to write as split {self.options.split!r}{reasons}",
                path=writer.target.directory,
            )
        result = writer.write(ordered.splits, ordered.features, ordered.classes, progress)
        return replace(result, skipped=tuple(skipped))

    def _sort_items(
        self,
        schema: WriteSchema,
        directory: Path,
        progress: Progress,
        skipped: list[SkippedRecord],
    ) -> RecordsToWrite:
        """Encode and sort items that come one by one."""
        class_names = self.input.class_names
        with RecordSorter(
            directory, self.options, schema, class_names=class_names, progress=progress.add
        ) as sorter:
            encoder = encode_examples(self.input, self.options, schema, sorter)
            skipped.extend(sorter.skipped)
            if sorter.is_empty():
                return RecordsToWrite(Features({}), Classes(Features({}), None), [])
            ordered = sorter.finish(encoder.final_features())
        progress.begin("writing", sum(records.records for records in ordered.splits))
        return ordered


def resolve_schema(
    options: WriteOptions,
    source: Input,
    targets: Sequence[TargetSplit],
    known: tuple[Features | None, str | None],
) -> WriteSchema:
    """Return the schema that follows from the options, the source and the remaining splits.

    Args:
        options: Options of the write.
        source: Input of the write.
        targets: The splits to be written.
        known: Features and label of the remaining splits.

    Raises:
        DatasetError: If the declared features differ from those of the remaining splits.
    """
    declared = source.features if options.features is None else options.features
    label = options.label if options.label is not None else source.label
    base, base_label = known
    if base is None:
        return WriteSchema(features=declared, label=label, strings_to_classes=declared is None)
    label = label or base_label
    feature = None if label is None else base.get(label)
    names = (feature.names or ()) if isinstance(feature, ClassLabel) else ()
    as_string = base.replace({label: Tensor("str")}) if label is not None and names else None
    old = [each.old_strings(base, label) for each in targets if each.appends]
    classes = tuple(dict.fromkeys(itertools.chain(*old))) or names
    schema = WriteSchema(features=declared, label=label, known_classes=classes)
    if declared is None:
        can_grow = as_string is not None
        return replace(schema, features=base, fallback=as_string, strings_to_classes=can_grow)
    differing = [name for name in {*base, *declared} if base.get(name) != declared.get(name)]
    if declared is source.features and differing == [label] and as_string is not None:
        # The class names of the source are matched with those of the dataset.
        return replace(schema, features=as_string, strings_to_classes=True)
    for name in sorted(differing):
        if not _is_compatible(base.get(name), declared.get(name)):
            raise DatasetError(
                f"it is declared as {_shorten(declared.get(name))}, but is "
                f"{_shorten(base.get(name))} in the existing splits",
                feature=name,
                remedy="omit features= to use theirs, or write another dataset",
            )
    return schema


def _is_compatible(base: Any, declared: Any) -> bool:
    """Return whether a feature of a dataset may be declared so."""
    if isinstance(base, ClassLabel) and isinstance(declared, ClassLabel):
        if base.names is None or declared.names is None:
            return base.names is declared.names
        common = min(len(base.names), len(declared.names))
        return base.names[:common] == declared.names[:common]
    return bool(base == declared)


def _shorten(feature: Any) -> str:
    text = str(feature)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"
