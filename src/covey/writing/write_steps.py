"""What all writes share: the start of a job, its schema, the commit and its notes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from covey._progress import Progress
from covey.engines import Engine
from covey.engines.pools import ThisProcess
from covey.errors import DatasetError, DuplicateKeyError, list_names, shorten
from covey.labels import AUTO
from covey.results import SkippedRecord, WriteResult
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.lattice import extends
from covey.schema.merge import describe, widen_floats
from covey.writing.inputs import Input, name_key
from covey.writing.job import RecordsToWrite, WriteJob
from covey.writing.options import (
    WriteOptions,
    WriteSchema,
)
from covey.writing.split_writer import SplitWriter, stage_split
from covey.writing.target import TargetSplit


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
    base, base_label = known
    declared = options.features
    if declared is None and source.features is not None:
        # Floats of a source that float32 holds are also stored as float64.
        declared = source.features if base is None else widen_floats([source.features, base])[0]
    from_source = options.features is None
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
    for name, dtype in options.types.items():
        if declared is None and getattr(base.get(name), "dtype", "") != dtype:
            raise DatasetError(
                f"the existing splits have {describe(base.get(name))}; types has {dtype}",
                path=targets[0].path,
                feature=name,
                remedy="omit it to use theirs, or write another dataset",
            )
    if declared is None:
        can_grow = as_string is not None
        return replace(schema, features=base, fallback=as_string, strings_to_classes=can_grow)
    differing = [name for name in {*base, *declared} if base.get(name) != declared.get(name)]
    if from_source and differing == [label] and as_string is not None:
        # The class names of the source are matched with those of the dataset.
        return replace(schema, features=as_string, strings_to_classes=True)
    for name in sorted(differing):
        stored, new = base.get(name), declared.get(name)
        if not (extends(new, stored) or extends(stored, new)):
            has_names = base.keys() == declared.keys()
            given = "the source has" if options.features is None else "features has"
            found = describe(declared[name]) if has_names else list_names(declared)
            known_as = describe(base[name]) if has_names else list_names(base)
            omit = "" if options.features is None else "omit features= to use theirs, or "
            raise DatasetError(
                f"the existing splits have {known_as}; {given} {found}",
                path=targets[0].path,
                feature=name if has_names else None,
                remedy=f"{omit}write another dataset",
            )
    return schema


@contextmanager
def start_job(
    path: str,
    options: WriteOptions,
    joined: Input,
    inputs: Sequence[Input],
    engine: Engine | None,
    storage_options: Mapping[str, Any] | None,
    progress: bool | None,
    **settings: Any,
) -> Iterator[tuple[SplitWriter, WriteJob]]:
    """Yield the writer of the splits and the job of a write, whose workers are started.

    Args:
        path: Directory or URL of the dataset.
        options: Options of the write.
        joined: The schema of all splits.
        inputs: Input of each split.
        engine: The engine; None for this process.
        storage_options: Options of fsspec for a URL.
        progress: Whether to show a progress bar.
        settings: Further arguments of the job.
    """
    # The bar is closed last: the end of stage_split uploads the files of a URL.
    with ExitStack() as stack, stage_split(path, options, storage_options) as writer:
        schema = resolve_schema(options, joined, writer.targets, writer.known_schema())
        subject = f"{writer.target.name} {', '.join(options.splits)}"
        bar = stack.enter_context(Progress(progress, joined.length, "reading", subject=subject))
        # The workers are stopped before the staging directory is removed.
        scratch = stack.enter_context(writer.scratch(engine))
        with ThisProcess(options.write_threads) if engine is None else engine.start() as pool:
            yield (
                writer,
                WriteJob(
                    pool,
                    options,
                    schema,
                    inputs,
                    joined,
                    writer.staging.path,
                    bar,
                    scratch=scratch,
                    pieces=None if engine is None else engine.pieces,
                    **settings,
                ),
            )


def write_ordered(
    writer: SplitWriter, job: WriteJob, ordered: RecordsToWrite, inputs: Sequence[Input]
) -> WriteResult:
    """Write and commit the records of all splits; return their summary.

    Args:
        writer: Writer of the splits.
        job: The job.
        ordered: Its records.
        inputs: Input of each split.
    """
    options, skipped, progress = job.options, job.skipped, job.progress
    counts = [records.records for records in ordered.splits] or [0]
    for split, count, omitted in zip(options.splits, counts, skipped, strict=False):
        if not count:
            reasons = f"; {len(omitted)} were skipped: {omitted[0].reason}" if omitted else ""
            raise DatasetError(
                f"there are no examples to write as split {split!r}{reasons}",
                path=writer.target.path,
            )
    progress.begin("writing", sum(counts))
    try:
        results = writer.write(ordered.splits, ordered.features, ordered.classes, progress)
    except DuplicateKeyError as error:
        if error.key is not None:
            raise
        raise name_key(error, inputs, options) from None
    # The examples of one input may be divided into several splits.
    of_splits = itertools.chain(inputs, itertools.repeat(inputs[0]))
    notes = () if options.features is not None else _type_notes(ordered, options.types)
    first, *others = (
        replace(result, skipped=tuple(_locate(record, each) for record in records))
        for result, records, each in zip(results, skipped, of_splits, strict=False)
    )
    notes = (*notes, *_notes([first, *others], options, inputs))
    return replace(first, others=tuple(others), notes=(*first.notes, *notes))


def _notes(
    results: Sequence[WriteResult], options: WriteOptions, inputs: Sequence[Input]
) -> Iterator[str]:
    """Yield notes of what a split or a label may not be meant to be."""
    classes = {name for each in results for name in each.classes}
    if len(classes) == 1:
        yield f"all examples have the class {shorten(str(*classes))!r} of {results[0].label!r}"
    if len(inputs) > 1 or options.split_by is not None:
        return
    for name, feature in results[0].features.items():
        is_value = isinstance(feature, ClassLabel) or feature in (Tensor("str"), Tensor("int64"))
        if name.lower() == "split" and is_value and name != results[0].label:
            yield (
                f"feature {name!r} does not divide the examples; split_by={name!r} "
                f"(--split-by {name}) writes a split for each of its values"
            )


def _type_notes(ordered: RecordsToWrite, types: Collection[str]) -> tuple[str, ...]:
    """Return the notes about floats whose type the caller has not declared."""
    notes = [
        f"{name}: {rounded:,} of {total:,} values rounded; declare float64"
        for name, (rounded, total) in sorted(ordered.rounding.items())
        if rounded
        and name not in types
        and getattr(ordered.features[name], "dtype", "") == "float32"
    ]
    wide = [
        name
        for name, kind in ordered.features.items()
        if name not in types
        and isinstance(kind, Tensor)
        and (kind.dtype, kind.shape, kind.encoding) == ("float64", (), "bytes")
    ]
    if wide:
        line = f"tf.io.decode_raw(parsed[{wide[0]!r}], tf.float64)"
        notes.append(
            f"{list_names(wide, 6)}: float64, which is stored as bytes; decode it by {line}"
        )
    return tuple(notes)


def _locate(skipped: SkippedRecord, examples: Input) -> SkippedRecord:
    """Return a skipped example with its position in one of several sources."""
    if not examples.sources:
        return skipped
    path, position = examples.locate(skipped.record)
    return replace(skipped, record=position, path=path)
