"""Writing a dataset: any examples in, shuffled and indexed shards out, all or nothing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey._progress import Progress
from covey._threads import cpu_count
from covey.dataset_info import check_split_name
from covey.errors import DatasetError, FeatureError
from covey.labels import Classes, find_label, is_string, number_column
from covey.results import SkippedRecord, WriteResult
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.codec import count_rows
from covey.schema.merge import describe, extends
from covey.shuffle.keys import OrderedRecords, RecordOrder
from covey.storage import LocalStorage, is_remote
from covey.urls import shown
from covey.writing.commit import Staging, staged
from covey.writing.encode import Encoding, check_workers
from covey.writing.inputs import (
    Input,
    OnError,
    Rules,
    name_classes,
    normalize_input,
)
from covey.writing.locks import interrupted, locked
from covey.writing.order import (
    ColumnOrder,
    Spooling,
    check_columns,
    column_keys,
    fill_columns,
    flatten,
)
from covey.writing.publish import RemoteStaging
from covey.writing.shards import Sharding
from covey.writing.split_writer import SplitWriter
from covey.writing.target import Mode, TargetSplit


def write(
    examples: Any,
    path: str | os.PathLike[str],
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
    order: Literal["class"] | None = None,
    seed: int = 0,
    shards: int | None = None,
    records_per_shard: int | None = None,
    shard_bytes: int = 256 << 20,
    compression: str | None = None,
    compression_level: int = 6,
    mode: Mode = "error",
    memory_limit: int = 512 << 20,
    workers: int | None = None,
    on_error: OnError = "raise",
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write examples as one split of a dataset, in the layout of TFDS, with an index.

    The directory has either the old dataset or the new one, whatever happens in between; other splits
    are not touched. The same examples give the same bytes, whatever ``memory`` and ``workers`` are.

    Args:
        examples: An iterable of dicts, or of (key, dict) pairs; a dict of columns; a pandas, polars
            or Arrow table; a tf.data, torch or Hugging Face dataset; or a :class:`covey.sources.Source`.
        path: The directory of the dataset, made if there is none; or a URL that fsspec knows, to which
            all is brought that was written locally (see docs/remote.md).
        split: What these examples are: ``"train"``, ``"test"``, ...
        label: The feature that tells the class of an example: a ClassLabel, an integer or a
            text. By default the only ClassLabel, if there is one.
        features: How to store the examples; inferred from all of them by default. Splits of one
            dataset have the same features.
        defaults: If features are inferred: what examples get that lack a feature, by its name.
        names: What the parts of examples that are tuples are called: ``("image", "label")``.
        key: The feature that is an example's key, which decides its place in the shuffled order; by
            default the key it came with, or its number.
        name: What the dataset is called; like its directory by default.
        description: What it is, for people.
        shuffle: False keeps the order of the examples.
        order: ``"class"`` lays each class together, for readers that stream and need them so.
        seed: Another one gives another shuffled order.
        shards: How many; or
        records_per_shard: how many examples in each; or
        shard_bytes: about how many bytes in each.
        compression: ``"GZIP"``, in which single records can still be found; ``"ZLIB"``; or None.
            TFDS reads datasets without.
        compression_level: How hard to compress, 0 to 9.
        mode: What to do if the split is there: ``"error"``, ``"overwrite"`` it, or ``"append"``
            shards to it.
        memory_limit: About how many bytes of examples to hold before they are spilled to disk.
        workers: How many threads or processes work; by default as many threads as there are cores
            for what is in memory, and one for what is fetched from Python.
        on_error: ``"skip"`` leaves out examples that cannot be read or do not fit, and lists them;
            columns must fit as a whole.
        progress: Show how far it is; by default where somebody looks.
        storage_options: What fsspec needs for a URL: credentials, an endpoint.

    Returns:
        What was written.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> written = write(birds, "birds", split="train", label="species", progress=False)
    >>> written.records, written.classes
    (3, {'owl': 2, 'wren': 1})
    """
    started = time.perf_counter()
    check_split_name(split)
    if order not in (None, "class"):
        raise DatasetError(option="order", found=order, allowed="None or 'class'")
    if type(memory_limit) is not int or memory_limit < 1:
        raise DatasetError(
            option="memory_limit", found=memory_limit, allowed="an integer of bytes, 1 or more"
        )
    if not isinstance(shuffle, bool):
        raise DatasetError(option="shuffle", found=shuffle, allowed="True or False")
    if isinstance(names, str):
        raise DatasetError(f"names is the text {names!r}; must be a list of them")
    if name is not None and not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise DatasetError(
            option="name",
            found=name,
            allowed="letters, digits and underscores, and begin with a letter",
        )
    intake = normalize_input(examples)
    declared = intake.features if features is None else Features(features)
    job = _Job(
        rules=Rules(
            features=declared,
            defaults=dict(defaults or {}),
            names=None if names is None else tuple(names),
            key=key,
            label=label if label is not None else intake.label,
            on_error=on_error,
        ),
        memory_limit=memory_limit,
        workers=1 if workers is None else check_workers(workers),
        output=SplitWriter(
            ordering=RecordOrder(by_class=order == "class", by="hash" if shuffle else "position"),
            seed=seed,
            sharding=Sharding(shards, records_per_shard, shard_bytes),
            compression=compression,
            compression_level=compression_level,
            workers=workers or cpu_count(),
            description=description,
        ),
    )
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise DatasetError(f"path is {text!r}; must be the path of a directory, or a URL")
    committed = False
    try:
        written = _write(job, intake, text, split, mode, name, progress, storage_options)
        committed = True
        return replace(written, path=shown(text), seconds=time.perf_counter() - started)
    except KeyboardInterrupt as interrupt:
        if interrupt.args:  # it says whether the split was written
            raise
        raise interrupted(shown(text), split, committed) from interrupt


def _write(
    job: _Job,
    intake: Input,
    text: str,
    split: str,
    mode: Mode,
    name: str | None,
    progress: bool | None,
    storage_options: Mapping[str, Any] | None,
) -> WriteResult:
    """Write a split to a directory or a URL."""
    if is_remote(text):
        appends = mode == "append"
        with RemoteStaging(text, split, appends=appends, options=storage_options) as mirror:
            written = job.write(intake, mirror.directory, split, mode, name, progress, unique=True)
            mirror.publish()
        return written
    # Absolute, for what makes the examples may change the current directory.
    directory = Path(LocalStorage().clean(text))
    return job.write(intake, directory, split, mode, name, progress)


@dataclass(frozen=True)
class _Job:
    """All that a caller asked for, checked."""

    rules: Rules
    memory_limit: int
    workers: int
    output: SplitWriter
    numbers_texts: bool = False
    """Whether a label that is a string becomes a ClassLabel: nobody declared it a string."""
    known_texts: tuple[str, ...] = ()
    """The strings, or names of classes, that have numbers already."""

    def write(
        self,
        intake: Input,
        directory: Path,
        split: str,
        mode: Mode,
        name: str | None,
        progress: bool | None,
        *,
        unique: bool = False,
    ) -> WriteResult:
        """Write a split into a local directory."""
        with staged(directory, split) as staging:
            with locked(directory):  # no other process changes it while it is looked at
                unique = unique or not staging.can_link
                existing = TargetSplit.look(directory, split, mode, name, unique=unique)
                base = existing.base()
            with Progress(progress, intake.length, f"{existing.name} {split}") as bar:
                return self._run(intake, existing, base, staging, bar)

    def _run(
        self,
        intake: Input,
        existing: TargetSplit,
        known: tuple[Features | None, str | None],
        staging: Staging,
        progress: Progress,
    ) -> WriteResult:
        """Do it, in agreement with the features and the label that are known."""
        base, base_label = known
        job = self._agree(base, base_label, intake)
        if base is not None and existing.appends:
            texts = existing.old_texts(base, job.rules.label)
            job = replace(job, known_texts=texts or job.known_texts)
        left_out: list[SkippedRecord] = []
        ordered: OrderedRecords | None
        if intake.columns is not None:
            ordered, features, classes = job._order_columns(intake)
        else:
            ordered, features, classes = job._order_items(intake, staging, progress, left_out)
        if ordered is None or ordered.records == 0:
            reasons = f"; the first of {len(left_out)}: {left_out[0].reason}" if left_out else ""
            raise DatasetError(
                f"{existing.directory}: there are no examples to write as split "
                f"{existing.split!r}{reasons}"
            )
        job.output.sharding.check(ordered)
        shards, counts = job.output.write(ordered, features, classes, existing, staging, progress)
        return WriteResult(
            path=str(existing.directory),
            split=existing.split,
            shards=shards,
            records=sum(shard.records for shard in shards),
            bytes=sum(shard.bytes for shard in shards),
            label=classes.label,
            classes=counts,
            features=features,
            skipped=tuple(left_out),
            seconds=0.0,
            replaced=existing.old_shards(),
        )

    def _agree(self, base: Features | None, base_label: str | None, intake: Input) -> _Job:
        """Let the splits that are there decide what was left open."""
        if base is None:
            return replace(self, numbers_texts=self.rules.features is None)
        label = self.rules.label or base_label
        kind = None if label is None else base.get(label)
        names = (kind.names or ()) if isinstance(kind, ClassLabel) else ()
        job = replace(self, rules=replace(self.rules, label=label), known_texts=names)
        declared = self.rules.features
        as_text = base.replace({label: Tensor("str")}) if label is not None and names else None
        if declared is None:
            rules = replace(job.rules, features=base, otherwise=as_text)
            return replace(job, rules=rules, numbers_texts=as_text is not None)
        differing = [name for name in {*base, *declared} if base.get(name) != declared.get(name)]
        if declared is intake.features and differing == [label] and as_text is not None:
            # A source that names its classes: they find each other by name.
            return replace(job, rules=replace(job.rules, features=as_text), numbers_texts=True)
        for each in sorted(differing):
            a, b = base.get(each), declared.get(each)
            if not extends(a, b) and not extends(b, a):
                raise DatasetError(
                    f"feature {each!r} is {describe(b)}, but "
                    f"{describe(a)} in the splits that are there; leave features out to "
                    "use theirs, or write another dataset"
                )
        return job

    def _order_items(
        self, intake: Input, staging: Staging, progress: Progress, left_out: list[SkippedRecord]
    ) -> tuple[OrderedRecords | None, Features, Classes]:
        """Examples that come one by one: encoded as they come, and put into a spool."""
        encoding = Encoding(intake, self.rules, self.workers)
        spooling = Spooling(
            staging.path,
            memory_limit=self.memory_limit,
            ordering=self.output.ordering,
            seed=self.output.seed,
            label=self.rules.label,
            may_number=self.numbers_texts,
            known_texts=self.known_texts,
        )
        spooling.run(encoding, progress.add)
        left_out.extend(spooling.left_out)
        if spooling.is_empty:
            return None, Features({}), Classes(Features({}), None)
        features = name_classes(encoding.features, intake.class_names)
        spool, features, classes = spooling.finish(features)
        progress.begin("writing", spool.records)
        return spool, features, classes

    def _order_columns(self, intake: Input) -> tuple[OrderedRecords, Features, Classes]:
        """Columns are there at once: their rows are encoded in their final order."""
        columns = flatten(intake.columns or {})
        features = self.rules.features
        if features is None:
            features = Features.infer_columns(intake.columns or {}, defaults=self.rules.defaults)
            features = name_classes(features, intake.class_names)
        label = find_label(features, self.rules.label, needed=self.output.ordering.by_class)
        rows = count_rows(columns)
        fill_columns(features, columns, rows)
        if label is not None and is_string(features[label]):
            columns[label] = _by_name(intake.features, label, columns[label])
        labels: NDArray[np.int64] | None = None
        texts: tuple[str, ...] = ()
        if label is not None and label in columns:
            features, columns[label], labels, texts = number_column(
                features,
                label,
                columns[label],
                may_grow=self.numbers_texts,
                known=self.known_texts,
            )
        checked = check_columns(features, columns)
        keys = None if self.rules.key is None else column_keys(columns, self.rules.key)
        ordering, seed = self.output.ordering, self.output.seed
        ordered = ColumnOrder(checked, labels, keys, ordering, seed)
        return ordered, features, Classes(features, label, texts)


def _by_name(features: Features | None, label: str, column: Any) -> Any:
    """A column of classes by their names, if it has numbers and its source knows the names."""
    kind = None if features is None else features.get(label)
    names = kind.names if isinstance(kind, ClassLabel) else None
    if names is None:
        return column
    for row, number in enumerate(column):
        if not isinstance(number, str) and not 0 <= number < len(names):
            raise FeatureError(f"example {row}: feature {label!r}: class {number} has no name")
    return [each if isinstance(each, str) else names[each] for each in column]
