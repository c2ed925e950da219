"""The dataset directory that a split is written into."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from covey.dataset_info import DatasetInfo, SplitInfo, dataset_name
from covey.errors import DatasetError, DatasetExistsError, FormatError
from covey.filenames import (
    DEFAULT_TEMPLATE,
    has_token,
    new_token,
    parse_version_file,
    shard_of_version_file,
    versioned_template,
)
from covey.index import (
    IndexBuilder,
    IndexMetadata,
    ShardFiles,
    find_changed,
    index_names,
    read_index,
    read_metadata,
)
from covey.index.format import Shard
from covey.index.labels import KnownLabels
from covey.labels import Classes, declared_label, guess_label, is_string, read_strings
from covey.schema import Features
from covey.schema.merge import add_classes
from covey.schema.tfds import features_from_tfds
from covey.storage import LocalStorage
from covey.tfrecord import RecordReader
from covey.writing.options import Mode
from covey.writing.versions import read_info


@dataclass(frozen=True, slots=True)
class TargetSplit:
    """A split to be written, and the dataset that its directory has before the write."""

    directory: Path
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    split: str
    info: DatasetInfo | None
    mode: Mode
    template: str
    """Template of the file names of the new version of the split."""
    splits: tuple[str, ...]
    """All splits of the write."""

    @classmethod
    def inspect(
        cls,
        directory: Path,
        split: str,
        mode: Mode,
        name: str | None,
        *,
        unique: bool = False,
        splits: tuple[str, ...] = (),
    ) -> TargetSplit:
        """Read the dataset of a directory.

        Args:
            directory: Directory of the dataset.
            split: Name of the split.
            mode: What to do if the split exists.
            name: Requested name of the dataset.
            unique: Whether the new version needs file names that no other version has. A version
                that replaces another one always has them.
            splits: All splits of the write; only this one by default.

        Raises:
            DatasetExistsError: If the split exists, and the mode is ``"error"``.
            DatasetError: If the dataset has another name.
        """
        info = read_info(directory)
        if info is not None and name not in (None, info.name):
            raise DatasetError(
                f"the name of the dataset is {info.name!r}",
                path=directory,
                option="name",
                found=name,
            )
        own, version = dataset_name(directory)
        if info is not None:
            own, version = info.name, info.version
        target = cls(
            directory, name or own, version, split, info, mode, DEFAULT_TEMPLATE, splits or (split,)
        )
        if target.old is not None and mode == "error":
            raise DatasetExistsError(
                f"split {split!r} exists",
                path=directory,
                remedy="pass mode='overwrite' to replace it, or pass mode='append' to add other "
                "examples",
            )
        if unique or target.old is not None or target._has_strays():
            target = replace(target, template=versioned_template(new_token()))
        return target

    def with_new_token(self) -> TargetSplit:
        """Return a copy with a token of the present time, if the new version has a token."""
        if self.template == DEFAULT_TEMPLATE:
            return self
        return replace(self, template=versioned_template(new_token()))

    def _has_strays(self) -> bool:
        """Return whether files exist that have names of this split, but belong to no split."""
        if self.mode != "overwrite" or not self.directory.is_dir():
            return False
        names = (path.name for path in self.directory.iterdir())
        return any(parse_version_file(name, self.name, self.split)[0] for name in names)

    def version_info(self, shards: Sequence[Shard]) -> SplitInfo:
        """Return the entry of the new version of the split in ``dataset_info.json``."""
        lengths = tuple(shard.records for shard in shards)
        size = sum(shard.bytes for shard in shards)
        return SplitInfo(self.split, lengths, size, self.template)

    @property
    def stem(self) -> str:
        """Common prefix of the index files of the new version."""
        return SplitInfo(self.split, (), 0, self.template).stem(self.name)

    @property
    def old(self) -> SplitInfo | None:
        """Version of the split before the write; None if the split does not exist."""
        splits = () if self.info is None else self.info.splits
        return next((each for each in splits if each.name == self.split), None)

    @property
    def appends(self) -> bool:
        """Whether the new version has the shards of the old one."""
        return self.mode == "append" and self.old is not None

    @property
    def keeps(self) -> bool:
        """Whether any record of the dataset remains."""
        return bool(self._remaining())

    def _remaining(self) -> list[str]:
        """Return the splits of the dataset whose records remain."""
        splits = () if self.info is None else self.info.splits
        is_append = self.mode == "append"
        return [each.name for each in splits if is_append or each.name not in self.splits]

    def old_shards(self) -> tuple[str, ...]:
        """Return the shards of the old version."""
        return () if self.old is None else self.old.shard_names(self.name)

    def check_foreign(self, names: Iterable[str]) -> None:
        """Raise if a file would be replaced that does not belong to the dataset.

        Args:
            names: Names of the files to be created.

        Raises:
            DatasetExistsError: If such a file exists, unless the mode is ``"overwrite"``.
        """
        if self.mode == "overwrite":
            return
        own = set(self.old_shards())
        if self.old is not None:
            own.update(index_names(self.old.stem(self.name)).values())
        # Small files are those of the dataset, or of a first write that was not committed.
        if read_info(self.directory) is not None or any(map(has_token, os.listdir(self.directory))):
            own.update(name for name in names if shard_of_version_file(name) is None)
        for name in names:
            if name not in own and not has_token(name) and (self.directory / name).exists():
                raise DatasetExistsError(
                    "the file exists, but belongs to no split of this dataset",
                    path=self.directory / name,
                    remedy="move it away, or pass mode='overwrite' to replace it",
                )

    def index_metadata(self, split: str) -> IndexMetadata | None:
        """Return the metadata of the index of a split; None if there is none or it is corrupt."""
        splits = () if self.info is None else self.info.splits
        found = next((each for each in splits if each.name == split), None)
        stem = f"{self.name}-{split}" if found is None else found.stem(self.name)
        try:
            return read_metadata(self.directory, stem)
        except FormatError:
            return None

    def known_schema(self) -> tuple[Features | None, str | None]:
        """Return the features and the label of the records that remain; None if none do."""
        remaining = self._remaining()
        if not remaining:
            return None, None
        try:
            known = features_from_tfds(self.directory)
        except FileNotFoundError:
            raise FormatError(
                "features.json is missing, so that the records cannot be decoded",
                path=self.directory,
            ) from None
        found = [each for each in map(self.index_metadata, remaining) if each is not None]
        if not found:
            name = None if self.info is None else self.info.supervised_label
            return known, declared_label(known, name) or guess_label(known)
        # The index has more detail than features.json, but may lack classes of a later split.
        features = found[0].features
        for other in (*(each.features for each in found[1:]), known):
            features = add_classes(features, other)
        return features, found[0].label

    def old_strings(self, features: Features, label: str | None) -> tuple[str, ...]:
        """Return the label strings of the old version, by class id, if its label is a string."""
        if label is None or label not in features or not is_string(features[label]):
            return ()
        metadata = self.index_metadata(self.split)
        if metadata is not None and metadata.label == label and metadata.label_strings is not None:
            return metadata.label_strings
        strings: set[str] = set()
        for name in self.old_shards():
            with RecordReader(self.directory / name) as reader:
                for block in reader.blocks():
                    strings.update(read_strings(features, label, block))
        return tuple(sorted(strings))

    def old_compressions(self) -> tuple[str | None, ...]:
        """Return the compression of each shard of the old version that is not empty."""
        found: list[str | None] = []
        for name in self.old_shards():
            path = self.directory / name
            if path.stat().st_size:
                with RecordReader(path) as reader:
                    found.append(reader.compression)
        return tuple(found)

    def old_index(
        self, classes: Classes, *, compressed: bool
    ) -> tuple[IndexMetadata, NDArray[Any]]:
        """Return the index of the old version: its metadata and its rows.

        They are read from its index if that is valid, otherwise from the shards.

        Args:
            classes: Classes of the records.
            compressed: Whether a shard is compressed.
        """
        metadata = self.index_metadata(self.split)
        files = ShardFiles(LocalStorage(), str(self.directory), self.old_shards())
        strings = () if metadata is None else metadata.label_strings or ()
        has_same_ids = strings == (classes.strings or ())[: len(strings)]
        is_compressed = metadata is not None and metadata.compression is not None
        is_same = is_compressed == compressed and has_same_ids
        if metadata is not None and metadata.label == classes.label and is_same:
            with contextlib.suppress(FormatError):
                if find_changed(files, metadata.shards) is None:
                    assert self.old is not None
                    index = read_index(self.directory, self.old.stem(self.name), metadata)
                    return metadata, index.rows
        labeller = None if classes.label is None else KnownLabels(classes)
        index = IndexBuilder(classes.features, labeller, progress=False).build(files)
        shards = tuple(replace(shard, version="") for shard in index.metadata.shards)
        return replace(index.metadata, shards=shards), index.rows
