"""``covey.write``: write examples as splits of a dataset, in one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from covey._locks import interrupted
from covey.engines import EngineArgument, Processes, find_engine
from covey.errors import DatasetError
from covey.labels import AUTO
from covey.results import WriteResult
from covey.schema import Features
from covey.sources.source import PathKeywords
from covey.untrusted import reports_errors
from covey.urls import AnyPath, parse_path, shown
from covey.writing.hold_out import HoldOut
from covey.writing.input_types import is_ray_dataset
from covey.writing.inputs import declare_types, located
from covey.writing.options import (
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_SHARD_BYTES,
    Mode,
    OnError,
    WriteOptions,
    parse_types,
)
from covey.writing.parts import write_part
from covey.writing.pieces import can_be_fetched
from covey.writing.split_inputs import divide_by_feature, join_inputs, normalize_splits
from covey.writing.write_steps import start_job, write_ordered

if TYPE_CHECKING:
    from typing_extensions import Unpack


@reports_errors(*PathKeywords.__annotations__)
def write(
    examples: Any,
    path: AnyPath,
    *,
    split: str | None = None,
    label: str | None = AUTO,
    kind: str | None = None,
    features: Features | Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
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
    engine: EngineArgument = None,
    part: str | None = None,
    on_error: OnError = "raise",
    hold_out: HoldOut | None = None,
    split_by: str | None = None,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **source: Unpack[PathKeywords],
) -> WriteResult:
    """Write examples as one or several splits of a dataset, in the TFDS layout, with an index.

    The write is atomic: if it fails or is killed, the directory has the old dataset. Other splits
    are not changed. The same examples give the same bytes, for any ``memory_limit``, ``workers``
    and ``engine``.

    Args:
        examples: The path of a directory or file, with all its splits (see
            :func:`covey.sources.open_splits`); an iterable of dicts, or of (key, dict) pairs; a
            dict of columns; a pandas, polars or Arrow table; a tf.data, torch or Hugging Face
            dataset, or its DatasetDict; a Ray Dataset; a :class:`covey.sources.Source`, or a
            mapping of them; a function without arguments that returns an iterable. A list of
            paths, sources and such functions is read one after the other: the keys of a path
            begin with its name, and examples of functions without keys have the number of the
            function and their position as key.
        path: Directory of the dataset, which is created if it does not exist; or a URL that fsspec
            supports. Files are written locally and then uploaded to the URL; with an engine, its
            workers upload the shards.
        split: The split to write, if the source has splits; otherwise the name of the split. The
            default is all splits of the source, or ``"train"``.
        label: Label feature: a ClassLabel, an integer or a string. None if the examples are
            unlabelled. ``"auto"`` is that of the source or of the existing splits, the only
            ClassLabel, or a feature with a common name: label, class, target, category, intent or
            species; if there is none, an error lists the candidates.
        kind: Format of a path, one of :data:`covey.sources.KINDS` (default: see
            :func:`covey.sources.open_source`).
        features: Features of the examples. The default is to infer them from all examples. All
            splits of a dataset have the same features.
        types: Dtypes of some features, by name, such as ``{"time": "float64"}``, if features are
            inferred, or are those of the source. The cells of a table are converted to them.
        defaults: Values of missing features, by name, also of empty cells and nulls. Integers
            beside empty cells are integers then; without a default, they are floats.
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
        workers: Number of threads that compress and write (default: one per CPU). A source whose
            examples are read by index or range is read and encoded by as many processes, as for
            ``engine=covey.engines.Processes(workers=...)``.
        engine: Where examples are read, encoded and sorted: None for this process,
            ``"processes"`` for several processes of this machine, ``"ray"`` for a Ray cluster, or
            an object of :mod:`covey.engines`. The bytes are the same. `memory_limit` is that of a
            task then. A Ray Dataset is always written by Ray.
        part: Part of the source to write, such as ``"3/64"``, for jobs that are started by another
            program. Nothing is committed; :func:`covey.commit` commits all parts.
        on_error: ``"raise"`` an error for an invalid example, or ``"skip"`` and list it. Columns
            must be valid as a whole.
        hold_out: Examples or classes to write as a second split, in the same commit, such as
            ``covey.HoldOut(fraction=0.1, split="val")``. The source must have one split.
        split_by: Feature whose values are the names of the splits, such as a column ``"split"`` of
            ``"train"`` and ``"test"``; instead of `split`. The source must have one split. It is
            read once more, before the write.
        progress: Whether to show a progress bar. The default is to show it in a terminal.
        storage_options: Options of fsspec for a URL, such as credentials.
        source: Options of :class:`covey.sources.SourceOptions` for a path: ``columns``,
            ``delimiter``, ``encoding``, ``field``, ``images``, ``splits`` and ``class_from``.

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
    if split is not None and split_by is not None:
        raise DatasetError(option="split_by", found=split_by, allowed="omitted with split=")
    shared: dict[str, Any] = {
        "key": key,
        "name": name,
        "description": description,
        "sort_by_class": sort_by_class,
        "seed": seed,
        "shards": shards,
        "records_per_shard": records_per_shard,
        "shard_bytes": shard_bytes,
        "compression": compression,
        "compression_level": compression_level,
        "mode": mode,
        "memory_limit": memory_limit,
        "on_error": on_error,
        "hold_out": hold_out,
    }
    if is_ray_dataset(examples):
        from covey.writing.datasink import write_dataset

        result = write_dataset(
            examples,
            target,
            engine,
            omitted={
                "kind": kind,
                "names": names,
                "shuffle": None if shuffle else shuffle,
                "workers": None if workers == 1 else workers,
                "split_by": split_by,
                "part": part,
                **source,
            },
            split="train" if split is None else split,
            label=label,
            features=features,
            types=types,
            defaults=defaults,
            **shared,
            progress=progress,
            storage_options=storage_options,
        )
        return _finish(result, started, ())
    defaults = dict(defaults or {})
    declared = None if features is None else Features(features).with_defaults(defaults)
    own_types = parse_types(types or {})
    inputs, notes = normalize_splits(
        examples,
        split,
        label,
        kind,
        source,
        declare=lambda each: declare_types(each, declared, own_types, defaults),
    )
    if split_by is not None or engine is not None or part is not None:
        inputs = {name: each.probe() for name, each in inputs.items()}
    first, *more = inputs
    options = WriteOptions(
        split=first,
        more_splits=tuple(more),
        label=label,
        features=declared,
        types=own_types,
        defaults=defaults,
        names=names,
        shuffle=shuffle,
        workers=workers,
        **shared,
        split_by=split_by,
    )
    if split_by is not None:
        options = divide_by_feature(options, inputs)
        first = options.split
    joined, parts = join_inputs(inputs, options)
    chosen = find_engine(engine)
    if any(each.sources for each in parts) and options.names is not None:
        raise DatasetError(
            option="names", found=options.names, allowed="omitted for a list of sources"
        )
    if chosen is None and part is None and workers is not None and workers > 1:
        sources = (source for each in parts for source in each.parts)
        if joined.columns is None and any(map(can_be_fetched, sources)):
            chosen = Processes(workers=workers)
    if part is not None:
        if chosen is not None:
            raise DatasetError(option="engine", found=engine, allowed="omitted with part=")
        result = write_part(target, part, options, joined, parts, storage_options, progress)
        return _finish(result, started, notes)
    committed = False
    try:
        with start_job(target, options, joined, parts, chosen, storage_options, progress) as (
            writer,
            job,
        ):
            with located(parts[0]):
                ordered = job.run()
            result = write_ordered(writer, job, ordered, parts)
        committed = True
        return _finish(result, started, notes)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:  # it reports whether the split was written
            raise
        raise interrupted(shown(target), first, committed) from interrupt


def _finish(result: WriteResult, started: float, notes: tuple[str, ...]) -> WriteResult:
    """Return a result with the time since `started`, and with the notes of the source first."""
    seconds = time.perf_counter() - started
    return replace(result, seconds=seconds, notes=(*notes, *result.notes))
