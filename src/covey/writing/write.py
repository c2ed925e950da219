"""``covey.write``: write examples as splits of a dataset, in one commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey._locks import interrupted
from covey._progress import Progress
from covey.errors import DatasetError, FeatureError, SourceError, checks_keywords, list_names
from covey.labels import AUTO, Classes
from covey.results import SkippedRecord, WriteResult
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.merge import describe
from covey.sources.source import PathKeywords
from covey.urls import AnyPath, parse_path, shown
from covey.writing.columns import RecordsToWrite, sort_columns
from covey.writing.encode import ItemEncoder
from covey.writing.hold_out import HoldOut
from covey.writing.inputs import Input
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
from covey.writing.split_inputs import join_inputs, normalize_splits
from covey.writing.split_writer import SplitWriter, stage_split
from covey.writing.target import TargetSplit

if TYPE_CHECKING:
    from typing_extensions import Unpack


@checks_keywords(PathKeywords.__annotations__)
def write(
    examples: Any,
    path: AnyPath,
    *,
    split: str | None = None,
    label: str | None = AUTO,
    kind: str | None = None,
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
    **source: Unpack[PathKeywords],
) -> WriteResult:
    """Write examples as one or several splits of a dataset, in the TFDS layout, with an index.

    The write is atomic: if it fails or is killed, the directory has the old dataset. Other splits
    are not changed. The same examples give the same bytes, for any ``memory_limit`` and
    ``workers``.

    Args:
        examples: The path of a directory or file, with all its splits (see
            :func:`covey.sources.open_splits`); an iterable of dicts, or of (key, dict) pairs; a
            dict of columns; a pandas, polars or Arrow table; a tf.data, torch or Hugging Face
            dataset, or its DatasetDict; a :class:`covey.sources.Source`, or a mapping of them.
        path: Directory of the dataset, which is created if it does not exist; or a URL that fsspec
            supports. Files are written locally and then uploaded to the URL.
        split: The split to write, if the source has splits; otherwise the name of the split. The
            default is all splits of the source, or ``"train"``.
        label: Label feature: a ClassLabel, an integer or a string. None if the examples are
            unlabelled. ``"auto"`` is that of the source or of the existing splits, the only
            ClassLabel, or a feature with a common name: label, class, target, category, intent or
            species; if there is none, an error lists the candidates.
        kind: Format of a path, one of :data:`covey.sources.KINDS` (default: detected from the
            content).
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
            ``covey.HoldOut(fraction=0.1, split="val")``. The source must have one split.
        progress: Whether to show a progress bar. The default is to show it in a terminal.
        storage_options: Options of fsspec for a URL, such as credentials.
        source: Options of :class:`covey.sources.SourceOptions` for a path: ``columns``,
            ``delimiter``, ``field``, ``splits``, ``class_depth`` and ``class_from``.

    Returns:
        A summary of the written split, or of the first one; ``splits`` has those of all splits.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> written = write(birds, "birds", split="train", label="species", progress=False)
    >>> written.records, written.classes
    (3, {'owl': 2, 'wren': 1})
    """
    started = time.perf_counter()
    target = parse_path(path)
    if not target or "\0" in target:
        raise DatasetError(option="path", found=target, allowed="the path of a directory, or a URL")
    inputs, notes = normalize_splits(examples, split, label, kind, source)
    first, *more = inputs
    options = WriteOptions(
        split=first,
        more_splits=tuple(more),
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
    joined, parts = join_inputs(inputs, options)
    call = _WriteCall(options, joined, parts, progress)
    committed = False
    try:
        result = call.run(target, storage_options)
        committed = True
        return replace(result, seconds=time.perf_counter() - started, notes=notes)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:  # it reports whether the split was written
            raise
        raise interrupted(shown(target), first, committed) from interrupt


@dataclass(frozen=True)
class _WriteCall:
    """One call of :func:`write`."""

    options: WriteOptions
    joined: Input
    """The schema of all splits."""
    inputs: Sequence[Input]
    """Input of each split."""
    progress: bool | None

    def run(self, path: str, storage_options: Mapping[str, Any] | None) -> WriteResult:
        """Write the splits, and return their summary."""
        options = self.options
        # The bar is closed last: the end of stage_split uploads the files of a URL.
        with (
            ExitStack() as stack,
            stage_split(path, options, storage_options) as writer,
        ):
            schema = resolve_schema(options, self.joined, writer.targets, writer.known_schema())
            subject = f"{writer.target.name} {', '.join(options.splits)}"
            bar = Progress(self.progress, self.joined.length, "reading", subject=subject)
            return self._encode_and_write(writer, schema, stack.enter_context(bar))

    def _encode_and_write(
        self, writer: SplitWriter, schema: WriteSchema, progress: Progress
    ) -> WriteResult:
        splits = self.options.splits
        skipped: list[list[SkippedRecord]] = [[] for _ in splits]
        with _located(self.inputs[0]):
            if self.joined.columns is not None:
                progress.rename("sorting")
                ordered = sort_columns(self.inputs, self.options, schema)
            else:
                ordered = self._sort_items(schema, writer.staging.path, progress, skipped)
        counts = [records.records for records in ordered.splits] or [0]
        for split, count, omitted in zip(splits, counts, skipped, strict=False):
            if not count:
                reasons = f"; {len(omitted)} were skipped: {omitted[0].reason}" if omitted else ""
                raise DatasetError(
                    f"there are no examples to write as split {split!r}{reasons}",
                    path=writer.target.directory,
                )
        progress.begin("writing", sum(counts))
        results = writer.write(ordered.splits, ordered.features, ordered.classes, progress)
        first, *others = (
            replace(result, skipped=tuple(each))
            for result, each in zip(results, skipped, strict=True)
        )
        return replace(first, others=tuple(others))

    def _sort_items(
        self,
        schema: WriteSchema,
        directory: Path,
        progress: Progress,
        skipped: list[list[SkippedRecord]],
    ) -> RecordsToWrite:
        """Encode and sort items that come one by one."""
        class_names = self.joined.class_names
        with RecordSorter(
            directory, self.options, schema, class_names=class_names, progress=progress.add
        ) as sorter:
            encoder = ItemEncoder(self.options, schema, sorter)
            read = 0  # examples of the splits before
            for split, examples in enumerate(self.inputs):
                sorter.begin_split(split)
                with _located(examples):
                    encode_examples(
                        examples,
                        self.options,
                        encoder,
                        follow=partial(_follow, progress, read),
                    )
                    sorter.wait()
                read += encoder.position
            skipped[:] = sorter.skipped
            if sorter.is_empty():
                return RecordsToWrite(Features({}), Classes(Features({}), None), [])
            progress.rename("sorting")
            return sorter.finish(encoder.final_features())


def _follow(progress: Progress, before: int, count: Callable[[], int]) -> None:
    progress.follow(lambda: before + count())


@contextmanager
def _located(examples: Input) -> Iterator[None]:
    """Add the path of the source to errors of its examples, and of a label that it lacks."""
    try:
        yield
    except (SourceError, FeatureError, DatasetError) as error:
        is_own = not isinstance(error, DatasetError) or error.option == "label"
        if error.path is None and is_own:
            error.path = examples.path
        if error.option == "label" and examples.label_hint:
            error.remedy = f"{error.remedy}, or {examples.label_hint}".removeprefix(", or ")
        raise


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
    base, base_label = known
    label = options.label if options.label != AUTO else base_label or source.label
    if base is None:
        return WriteSchema(
            features=declared,
            label=label,
            infers_label=options.label == AUTO and label is None,
            strings_to_classes=declared is None or source.adds_classes,
        )
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
            has_names = base.keys() == declared.keys()
            given = "the source has" if options.features is None else "features has"
            found = describe(declared[name]) if has_names else list_names(declared)
            known_as = describe(base[name]) if has_names else list_names(base)
            omit = "" if options.features is None else "omit features= to use theirs, or "
            raise DatasetError(
                f"the existing splits have {known_as}; {given} {found}",
                path=targets[0].directory,
                feature=name if has_names else None,
                remedy=f"{omit}write another dataset",
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
