"""Results of ``covey.write``, ``info``, ``verify``, ``repair`` and ``build_index``.

``str()`` of a Report or RepairResult is a table of the problems; ``to_dict()`` has values of JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from covey._progress import format_bytes
from covey._text import count_of, outline, table
from covey.errors import escape, shorten

if TYPE_CHECKING:
    from covey.classes import ClassTable
    from covey.index import Index
    from covey.index.format import Shard
    from covey.schema import Features
    from covey.schema.images import ImageSummary

__all__ = [
    "DuplicatePair",
    "Duplicates",
    "IndexResult",
    "Info",
    "Problem",
    "RepairResult",
    "Report",
    "SkippedRecord",
    "SplitOverview",
    "ValueSummary",
    "WriteResult",
]

MAX_TABLE_ROWS = 50
"""Most problems in the table of a report."""


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A record, or a range of a file, that was skipped because it is corrupt or invalid."""

    record: int
    """Record id in the file, or position of the example in the source, from 0."""
    reason: str
    path: str | None = None
    """File of the record; None for an example of a source."""
    offset: int | None = None
    """Byte offset of the frame, in the decompressed data if the file is compressed."""
    bytes: int | None = None
    """Size of the skipped range; None if it extends to the end of the file, or is unknown."""


@dataclass(frozen=True)
class WriteResult:
    """Result of :func:`covey.write`: one split, or the first of several."""

    path: str
    split: str
    shards: tuple[Shard, ...]
    """All shards of the split, also of earlier writes."""
    records: int
    """Number of records in all shards."""
    bytes: int
    """Size of all shards."""
    label: str | None
    """Label feature; None if the split is unlabelled."""
    classes: Mapping[Any, int] = field(repr=False)
    """Number of examples by class name, or by class id if the classes have no names."""
    features: Features = field(repr=False)
    skipped: tuple[SkippedRecord, ...] = field(repr=False)
    """Examples that were not written, with ``on_error="skip"``."""
    seconds: float
    replaced: tuple[str, ...] = field(default=(), repr=False)
    """Shards of the replaced version, which the next write deletes. Shards in a directory are moved
    to ``.covey-old``, where patterns do not find them; at a URL they stay beside the others."""
    kept_splits: tuple[str, ...] = field(default=(), repr=False)
    """Splits of earlier writes, which this write did not change."""
    others: tuple[WriteResult, ...] = field(default=(), repr=False)
    """The other splits of the same write."""
    notes: tuple[str, ...] = field(default=(), repr=False)
    """What may be unexpected: directories of the source that were not read, lists that were rounded
    to float32, how TensorFlow decodes float64."""
    part: str | None = field(default=None, repr=False)
    """The part that was written, ``"3/64"``, which :func:`covey.commit` commits; None if the splits
    are committed."""

    @property
    def splits(self) -> dict[str, WriteResult]:
        """The results of all splits of the write, by name; this one is the first."""
        return {each.split: each for each in (self, *self.others)}

    @property
    def unshared_classes(self) -> dict[str, tuple[Any, ...]]:
        """The classes that only one split of the write has, by split; empty if it wrote one."""
        if not self.others:
            return {}
        splits = Counter(name for each in self.splits.values() for name in each.classes)
        return {
            split: tuple(name for name in each.classes if splits[name] == 1)
            for split, each in self.splits.items()
        }

    def __repr__(self) -> str:
        classes = f", {len(self.classes):,} classes of {self.label!r}" if self.classes else ""
        skipped = f", {len(self.skipped):,} skipped" if self.skipped else ""
        of_part = "" if self.part is None else f"part {self.part} of "
        others = "".join(f"\n{each!r}" for each in self.others)
        others += "".join(f"\n  note: {escape(each)}" for each in self.notes)
        return (
            f"<WriteResult: {shorten(self.path, 80)}: {of_part}split {self.split!r}, "
            f"{count_of(self.records, 'example')}{classes}, {count_of(len(self.shards), 'shard')}, "
            f"{format_bytes(self.bytes)}{skipped}>{others}"
        )


@dataclass(frozen=True, eq=False)
class IndexResult:
    """Result of :func:`covey.build_index`: the index of one split, stored beside its shards."""

    split: str
    index: Index
    is_new: bool
    """Whether it was built; False if a valid index existed."""
    exported: tuple[str, ...]
    """DALI index files that were written."""
    differences: tuple[str, ...]
    """Shards that are missing, or whose number of records differs from the dataset's metadata."""
    seconds: float

    def __repr__(self) -> str:
        metadata, classes = self.index.metadata, self.index.classes
        labelled = "" if classes is None else f", {len(classes):,} classes of {metadata.label!r}"
        return (
            f"<IndexResult: split {self.split!r}, {count_of(metadata.records, 'record')}"
            f"{labelled}, {'built' if self.is_new else 'kept'}>"
        )


@dataclass(frozen=True)
class ValueSummary:
    """Values of one feature in some examples of a split."""

    minimum: int | float | None = None
    """Smallest number, except NaN; None if there are no numbers. Likewise the next two."""
    maximum: int | float | None = None
    mean: float | None = None
    nan: int | None = None
    """Number of NaN values; None if the values are not floats."""
    lengths: tuple[int, int, int] | None = None
    """Smallest, median and largest length: characters of a string, bytes of a byte string, values
    along the first dimension of an array, stored values of a sparse tensor. None for numbers and
    arrays of one length."""
    images: ImageSummary | None = None
    """Images, if it is an image feature."""


@dataclass(frozen=True)
class DuplicatePair:
    """Two examples with the same content."""

    splits: tuple[str, str]
    ids: tuple[int, int]
    """Ids of the examples in their splits."""
    classes: tuple[str, str] | None
    """Names of their classes; None without classes."""


@dataclass(frozen=True)
class Duplicates:
    """Examples of equal content: their stored values have the same 128-bit hash."""

    features: tuple[str, ...]
    """Features that were compared."""
    within: Mapping[str, int]
    """Number of examples of each split whose content occurs earlier in the split."""
    between: Mapping[tuple[str, str], int]
    """Number of examples of the second split whose content occurs in the first one, for each pair
    of splits that have common contents."""
    conflicts: int
    """Number of contents that occur with several classes."""
    pairs: tuple[DuplicatePair, ...] = field(repr=False)
    """Some pairs, at most 20: first pairs of two classes, then pairs of two splits."""


@dataclass(frozen=True)
class SplitOverview:
    """One split of :class:`Info`."""

    name: str
    records: int | None
    """Number of records; None if it is unknown."""
    shards: int
    missing: tuple[str, ...]
    """Names of the shards that do not exist."""
    bytes: int
    """Size of the shards that exist."""
    compression: str | None
    index: str
    """``"fresh"``, ``"stale"``, ``"corrupt"`` or ``"missing"``."""
    reason: str
    """Why the index is stale or corrupt."""
    label: str | None
    """Label feature of the index."""
    classes: ClassTable | None = field(repr=False)
    """Classes, if the index is fresh and has a label."""
    images: Mapping[str, ImageSummary] = field(default_factory=dict, repr=False)
    """Images of each image feature, if the index is fresh and has counted them."""
    values: Mapping[str, ValueSummary] = field(default_factory=dict, repr=False)
    """Values of each feature except class labels, in the first `values_of` examples."""
    values_of: int = 0
    """Number of examples that `values` summarizes; all with ``deep=True``."""
    values_error: str = ""
    """Why the examples could not be read; empty if they were."""

    def __repr__(self) -> str:
        return f"<SplitOverview: {shorten(self.name)}: {self.describe()}>"

    def describe(self) -> str:
        """Return the number of examples, the size and the state of the index."""
        examples = "unknown number of examples"
        if self.records is not None:
            examples = count_of(self.records, "example")
        classes = ""
        if self.classes is not None:
            label = shorten(str(self.label))
            classes = f"{count_of(len(self.classes), 'class', 'classes')} of {label!r}, "
        missing = f", {len(self.missing):,} missing" if self.missing else ""
        return (
            f"{examples}, {classes}{count_of(self.shards, 'shard')}{missing}, "
            f"{format_bytes(self.bytes)}, index {self.index}"
        )


@dataclass(frozen=True)
class Info:
    """Result of :func:`covey.info`."""

    path: str
    kind: str
    """``"dataset"`` (of covey or TFDS), ``"datum"`` or ``"TFRecords"``."""
    features: Features | None
    """Features of the records; None if they are unknown."""
    is_guess: bool
    """Whether the features come from the first record only."""
    splits: tuple[SplitOverview, ...]
    duplicates: Duplicates | None = None
    """Examples of equal content, with ``deep=True``; None if there are no features to compare."""

    def __repr__(self) -> str:
        features = "unknown" if self.features is None else str(len(self.features))
        return outline(
            f"<Info: {shorten(self.path, 80)}: {self.kind}, {features} features>",
            ((each.name, each.describe()) for each in self.splits),
        )

    def _repr_html_(self) -> str:
        from covey._html import features_html

        rows = [(each.name, each.describe()) for each in self.splits]
        return features_html(f"{self.path}: {self.kind}", self.features or {}, rows)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that :func:`covey.verify` found, or a loss that :func:`covey.repair` reports."""

    file: str
    """File name, relative to the directory of the dataset."""
    record: int | None
    """Record id in the file, or row of an index file; None if the whole file has the problem."""
    offset: int | None
    """Byte offset of the record's frame, in the decompressed data if the file is compressed."""
    reason: str
    split: str | None = None


@dataclass(frozen=True)
class Report:
    """Result of :func:`covey.verify`."""

    path: str
    directory: str
    """Directory to which the files of the problems are relative."""
    splits: tuple[str, ...]
    files: int
    """Number of shards that were read."""
    records: int
    """Number of records with valid checksums."""
    bytes: int
    """Size of the shards that were read."""
    problems: tuple[Problem, ...]
    unlisted: int
    """Number of further problems, in files that have more than ten thousand."""
    seconds: float

    def __repr__(self) -> str:
        return f"<Report: {self._summary()}>"

    @property
    def is_valid(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        return "\n".join(
            [self._summary(), *_problem_lines(self.problems, self.unlisted, "problems")]
        )

    def _summary(self) -> str:
        count = len(self.problems) + self.unlisted
        summary = "no problems" if self.is_valid else count_of(count, "problem")
        return (
            f"{escape(self.path)}: {count_of(self.files, 'file')}, "
            f"{count_of(self.records, 'record')} and {format_bytes(self.bytes)} checked: {summary}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        return {**asdict(self), "valid": self.is_valid, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class RepairResult:
    """Result of :func:`covey.repair`."""

    path: str
    output: str
    written: tuple[WriteResult, ...]
    """Splits of the new dataset."""
    lost: tuple[Problem, ...]
    """Records that were not copied; the first of each range with an unknown number of records."""
    seconds: float
    deleted: tuple[str, ...] = ()
    """Files of interrupted writes and old versions that were deleted by a repair in place."""
    parts: tuple[str, ...] = ()
    """Directories of parts that are not committed, which a repair in place did not delete."""

    @property
    def records(self) -> int:
        """Number of records that were copied."""
        return sum(each.records for each in self.written)

    def __repr__(self) -> str:
        return f"<RepairResult: {self._summary()}>"

    def __str__(self) -> str:
        notes = (f"  note: {escape(note)}" for each in self.written for note in each.notes)
        parts = (
            f"  {escape(name)}: parts that are not committed; `covey commit` commits them, "
            "`covey repair --delete-parts` deletes them"
            for name in self.parts
        )
        return "\n".join([self._summary(), *notes, *parts, *_problem_lines(self.lost, 0, "lost")])

    def _summary(self) -> str:
        if self.output == self.path:
            files = count_of(len(self.deleted), "file")
            return escape(f"{self.path}: {files} of interrupted writes and old versions deleted")
        lost = f"{count_of(len(self.lost), 'loss', 'losses')}" if self.lost else "no losses"
        copied = f"{self.path}: {count_of(self.records, 'record')} copied to {self.output}; {lost}"
        return escape(copied)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values of JSON."""
        splits = {
            each.split: {
                "records": each.records,
                "bytes": each.bytes,
                "shards": [shard.name for shard in each.shards],
            }
            for each in self.written
        }
        return {
            "path": self.path,
            "output": self.output,
            "records": self.records,
            "seconds": round(self.seconds, 3),
            "splits": splits,
            "lost": [asdict(each) for each in self.lost],
            "deleted": list(self.deleted),
            "parts": list(self.parts),
        }


def _problem_lines(problems: Sequence[Problem], unlisted: int, field: str) -> Iterator[str]:
    """Yield the lines of a table of problems, and the number of further ones."""
    if not problems:
        return
    rows = [
        (each.file, _cell(each.record), _cell(each.offset), each.reason)
        for each in problems[:MAX_TABLE_ROWS]
    ]
    yield from table(("file", "record", "offset", "problem"), rows, "<>><")
    if len(problems) > MAX_TABLE_ROWS:
        yield f"  and {len(problems) - MAX_TABLE_ROWS:,} more; see `{field}`, or --json"
    if unlisted:
        yield f"  and {unlisted:,} more, not listed, in files that have thousands of problems"


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)
