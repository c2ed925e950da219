"""The dataset that a split is written into, before the write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from covey.dataset_info import DatasetInfo, SplitInfo, dataset_name
from covey.errors import DatasetError, DatasetExistsError, FormatError, StorageError
from covey.filenames import (
    DEFAULT_TEMPLATE,
    INFO_FILE,
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
    read_index,
    read_metadata,
)
from covey.index.format import Shard
from covey.index.labels import KnownLabels
from covey.index.scan import open_reader
from covey.index.write import fetch
from covey.labels import Classes, declared_label, guess_label, is_string, read_strings
from covey.schema import Features
from covey.schema.merge import add_classes
from covey.schema.tfds import features_from_tfds
from covey.storage import Storage
from covey.urls import shown
from covey.writing.options import Mode, WriteOptions
from covey.writing.versions import list_names, read_info


@dataclass(frozen=True)
class TargetSplit:
    """A split to be written, and the dataset before the write."""

    storage: Storage
    location: str
    """Directory or URL of the dataset."""
    names: Collection[str]
    """Names of its files."""
    name: str
    """Name of the dataset."""
    version: str
    """Version of the dataset."""
    split: str
    splits: tuple[str, ...]
    """All splits of the write."""
    info: DatasetInfo | None
    mode: Mode
    template: str
    """Template of the file names of the new version of the split."""

    @property
    def path(self) -> str:
        """Path of the dataset, for errors."""
        return shown(self.location)

    def with_new_token(self) -> TargetSplit:
        """Return a copy with a token of the present time, if the new version has a token."""
        if self.template == DEFAULT_TEMPLATE:
            return self
        return replace(self, template=versioned_template(new_token()))

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
        return self._find(self.split)

    def _find(self, split: str) -> SplitInfo | None:
        splits = () if self.info is None else self.info.splits
        return next((each for each in splits if each.name == split), None)

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

    def check_foreign(self, names: Iterable[str], existing: Collection[str]) -> None:
        """Raise if a file would be replaced that does not belong to the dataset.

        Args:
            names: Names of the files to be created.
            existing: Names of the files of the dataset.

        Raises:
            DatasetExistsError: If such a file exists, unless the mode is ``"overwrite"``.
        """
        if self.mode == "overwrite":
            return
        # A version that replaces another one has a token in its names. Small files are those of the
        # dataset, or of a first write that was not committed.
        is_dataset = INFO_FILE in existing or any(map(has_token, existing))
        for name in names:
            is_own = has_token(name) or (is_dataset and shard_of_version_file(name) is None)
            if name in existing and not is_own:
                raise DatasetExistsError(
                    "the file exists, but belongs to no split of this dataset",
                    path=self.storage.join(self.location, name),
                    remedy="move it away, or pass mode='overwrite' to replace it",
                )

    # Schema.

    def read(self, name: str) -> bytes:
        """Return the content of a small file of the dataset."""
        return self.storage.read(self.storage.join(self.location, name))

    def index_metadata(self, split: str) -> IndexMetadata | None:
        """Return the metadata of the index of a split; None if there is none or it is corrupt."""
        found = self._find(split)
        stem = f"{self.name}-{split}" if found is None else found.stem(self.name)
        try:
            return read_metadata(self.location, stem, self.storage)
        except FormatError:
            return None

    def known_schema(self) -> tuple[Features | None, str | None]:
        """Return the features and the label of the records that remain; None if none do."""
        remaining = self._remaining()
        if not remaining:
            return None, None
        try:
            known = self.described_features()
        except FileNotFoundError:
            raise FormatError(
                "features.json is missing, so that the records cannot be decoded", path=self.path
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

    def described_features(self) -> Features:
        """Return the features of ``features.json``."""
        return features_from_tfds(self.path, self.read)

    # Old version.

    def _old_files(self) -> ShardFiles:
        return ShardFiles(self.storage, self.location, self.old_shards())

    def old_strings(self, features: Features, label: str | None) -> tuple[str, ...]:
        """Return the label strings of the old version, by class id, if its label is a string."""
        if label is None or label not in features or not is_string(features[label]):
            return ()
        metadata = self.index_metadata(self.split)
        if metadata is not None and metadata.label == label and metadata.label_strings is not None:
            return metadata.label_strings
        strings: set[str] = set()
        for path in self._old_files().paths:
            with open_reader(self.storage, path) as reader:
                for block in reader.blocks():
                    strings.update(read_strings(features, label, block))
        return tuple(sorted(strings))

    def old_index(self, classes: Classes) -> tuple[IndexMetadata, NDArray[Any]]:
        """Return the index of the old version: its metadata and its rows.

        They are read from its index if that is valid, otherwise from the shards.

        Args:
            classes: Classes of the records.
        """
        metadata, files = self.index_metadata(self.split), self._old_files()
        strings = () if metadata is None else metadata.label_strings or ()
        has_same_ids = strings == (classes.strings or ())[: len(strings)]
        if metadata is not None and metadata.label == classes.label and has_same_ids:
            with suppress(FormatError, StorageError):
                assert self.old is not None
                stem = self.old.stem(self.name)
                is_remote = self.storage.is_remote
                directory = fetch(files, stem) if is_remote else Path(self.location)
                if directory is not None and find_changed(files, metadata.shards) is None:
                    return metadata, read_index(directory, stem, metadata).rows
        labeller = None if classes.label is None else KnownLabels(classes)
        index = IndexBuilder(classes.features, labeller, progress=False).build(files)
        shards = tuple(replace(shard, version="") for shard in index.metadata.shards)
        return replace(index.metadata, shards=shards), index.rows


def inspect(
    storage: Storage, location: str, options: WriteOptions, *, unique: bool = False
) -> tuple[TargetSplit, ...]:
    """Return the splits of a write, after reading the dataset.

    Args:
        storage: Storage of the dataset.
        location: Directory or URL of the dataset.
        options: Options of the write.
        unique: Whether the new versions need file names that no other version has. A version that
            replaces another one always has them.

    Raises:
        DatasetExistsError: If a split exists, and the mode is ``"error"``.
        DatasetError: If the dataset has another name.
    """
    path, mode = shown(location), options.mode
    info = read_info(location, storage)
    if info is not None and options.name not in (None, info.name):
        raise DatasetError(
            f"the name of the dataset is {info.name!r}",
            path=path,
            option="name",
            found=options.name,
        )
    # Of a URL, the last two parts are directories.
    own = f"/{'/'.join(location.split('/')[-2:])}" if storage.is_remote else location
    name, version = dataset_name(own)
    if info is not None:
        name, version = info.name, info.version
    name = options.name or name
    names = list_names(storage, location)
    found = []
    for split in options.splits:
        target = TargetSplit(
            storage,
            location,
            names,
            name,
            version,
            split,
            options.splits,
            info,
            mode,
            DEFAULT_TEMPLATE,
        )
        if target.old is not None and mode == "error":
            raise DatasetExistsError(
                f"split {split!r} exists",
                path=path,
                remedy="pass mode='overwrite' to replace it, or pass mode='append' to add other "
                "examples",
            )
        # Files of this split may belong to no split of the dataset.
        strays = any(parse_version_file(each, name, split)[0] for each in names)
        if unique or target.old is not None or (mode == "overwrite" and strays):
            target = replace(target, template=versioned_template(new_token()))
        found.append(target)
    return tuple(found)
