"""What describes a dataset against what is there: names, numbers, features, classes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from covey.dataset.layout import Layout, SplitFiles
from covey.errors import CoveyError, FormatError
from covey.filenames import (
    ENTRIES_FILE,
    INFO_FILE,
    SHARD_INFO_FILE,
    has_token,
    parse_version_file,
    record_file_stem,
)
from covey.index import IndexMetadata
from covey.maintenance.report import Problems
from covey.maintenance.shards import Shard
from covey.schema import ClassLabel, Feature, Features
from covey.schema.datum import datum_features, datum_splits
from covey.schema.tfds import FEATURES_FILE, features_from_tfds, features_to_tfds


def check_directory(
    layout: Layout, splits: Sequence[str], problems: Problems, *, all_splits: bool
) -> None:
    """Check what describes the dataset as a whole.

    Args:
        layout: The dataset.
        splits: Those that are looked at.
        problems: Where to note them.
        all_splits: Whether it is all of them, and whatever else is there.
    """
    if layout.kind != "dataset":
        return
    there = [layout.storage.name(each) for each in layout.storage.list(layout.path)]
    if FEATURES_FILE not in there:
        problems.add(FEATURES_FILE, "it is missing, so that TFDS cannot open the dataset")
    if SHARD_INFO_FILE in there:
        _check_shard_info(layout, splits, problems)
    if ENTRIES_FILE in there:
        _check_entries(layout, problems)
    listed = {name for split in layout.splits.values() for name in split.files.names}
    info = layout.info
    stems = {layout.splits[split].stem for split in splits}
    replaced = [] if info is None else [each.name for each in info.splits if each.token]
    for name in there:
        stem = record_file_stem(name)
        if has_token(name) or (
            info and any(parse_version_file(name, info.name, each)[0] for each in replaced)
        ):
            continue  # of a version that was replaced, or not committed
        if stem and (all_splits or stem in stems) and name not in listed:
            problems.add(name, f"it looks like a shard, but {INFO_FILE} does not list it")


def _check_shard_info(layout: Layout, splits: Sequence[str], problems: Problems) -> None:
    """Compare the shards that datum's reader finds with those that TFDS finds."""
    try:
        said = datum_splits(layout.storage, layout.path) or {}
    except FormatError as error:
        path = layout.storage.join(layout.path, SHARD_INFO_FILE)
        problems.add(SHARD_INFO_FILE, str(error).removeprefix(f"{path}: "))
        return
    for split in splits:
        there = layout.splits[split]
        if split not in said or there.records is None:
            continue
        expected = dict(zip(there.files.names, there.records, strict=True))
        for name in dict.fromkeys((*expected, *said[split])):
            if said[split].get(name) != expected.get(name):
                problems.add(
                    SHARD_INFO_FILE,
                    f"split {split!r}: {name} has {_records(said[split].get(name))}, but "
                    f"{_records(expected.get(name))} in {INFO_FILE}",
                )


def _records(count: int | None) -> str:
    return "no entry" if count is None else f"{count:,} records"


def _check_entries(layout: Layout, problems: Problems) -> None:
    try:
        datum_features(layout.storage, layout.path)
    except CoveyError as error:
        path = layout.storage.join(layout.path, ENTRIES_FILE)
        problems.add(ENTRIES_FILE, str(error).removeprefix(f"{path}: "))


def check_split(
    split: SplitFiles,
    kind: str,
    shards: Sequence[Shard],
    about: IndexMetadata | None,
    problems: Problems,
) -> None:
    """Check what is said of the shards of a split."""
    said_by = SHARD_INFO_FILE if kind == "datum" else INFO_FILE
    for shard, said in zip(shards, split.records or (), strict=False):
        if shard.size is not None and shard.numbered != said:
            lost = shard.numbered - shard.records
            among = f", {lost:,} of which are corrupt" if lost else ""
            problems.add(
                shard.name, f"it has {shard.numbered:,} records{among}, but {said:,} in {said_by}"
            )
    complete = all(shard.size is not None and not shard.damaged for shard in shards)
    size = sum(shard.size or 0 for shard in shards)
    data = sum(shard.data for shard in shards)
    # covey notes the bytes of files, TFDS those of records without frames; or none at all.
    if complete and split.bytes and split.bytes not in (size, data):
        problems.add(
            said_by,
            f"it says {split.bytes:,} bytes, but the shards have {size:,}, {data:,} of them in "
            "records",
        )
    if about is not None:
        names = [shard.name for shard in about.shards]
        for name in names:
            if name not in split.files.names:
                problems.add(name, "the index is of this shard, too, which is none of the split")
        for shard in shards:
            if shard.name not in names and shard.size is not None:
                problems.add(shard.name, "the index does not have this shard")


def check_features(
    layout: Layout, about: IndexMetadata, index_file: str, problems: Problems
) -> None:
    """Compare the features of the index with those that TFDS finds."""
    if layout.features is None or layout.kind != "dataset":
        return
    try:
        found = differences(layout.features, about.features)
    except CoveyError as error:
        problems.add(index_file, f"its features cannot be those of a dataset: {error}")
        return
    for name, (known, indexed) in found.items():
        problems.add(
            FEATURES_FILE,
            f"feature {name!r} is {_brief(known)}, but {_brief(indexed)} in {index_file}",
        )


def differences(
    known: Features, indexed: Features
) -> dict[str, tuple[Feature | None, Feature | None]]:
    """The features that TFDS finds, and those of an index, where they are not the same."""
    if known == indexed:
        return {}
    indexed = _as_tfds_has_them(indexed)
    names = dict.fromkeys((*indexed, *known))
    both = {name: (known.get(name), indexed.get(name)) for name in names}
    return {name: pair for name, pair in both.items() if not _agree(*pair)}


def _as_tfds_has_them(features: Features) -> Features:
    """Features as they come back from what describes them for TFDS."""
    content, labels = features_to_tfds(features.without_defaults())
    texts: Mapping[str, str] = {
        FEATURES_FILE: json.dumps(content),
        **{name: "".join(f"{each}\n" for each in names) for name, names in labels.items()},
    }

    def read(name: str) -> bytes:
        if name not in texts:
            raise FileNotFoundError(name)
        return texts[name].encode()

    return features_from_tfds("", read)


def _agree(known: Feature | None, indexed: Feature | None) -> bool:
    """Whether a feature of an index is that of the dataset, which may have got classes since."""
    if isinstance(indexed, ClassLabel) and isinstance(known, ClassLabel):
        names, now = indexed.names, known.names
        if names is None or now is None:
            return names is now and (indexed.num_classes or 0) <= (known.num_classes or 0)
        return names == now[: len(names)]
    return indexed == known


def _brief(kind: Feature | None) -> str:
    """A feature in few words, however many classes it has."""
    if kind is None:
        return "missing"
    if isinstance(kind, ClassLabel) and kind.names is None:
        return f"a ClassLabel of {kind.num_classes} classes without names"
    if isinstance(kind, ClassLabel):
        few = ", ".join(map(repr, (kind.names or ())[:5]))
        more = ", ..." if len(kind.names or ()) > 5 else ""
        return f"a ClassLabel of {kind.num_classes} classes ({few}{more})"
    text = str(kind)
    return text if len(text) <= 120 else f"{text[:100]}..."
