"""What is already in the directory that a split is to be written into."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from covey.dataset_info import DatasetInfo, SplitInfo, dataset_name
from covey.errors import DatasetError, DatasetExistsError, FormatError
from covey.filenames import (
    DEFAULT_TEMPLATE,
    has_token,
    new_token,
    parse_version_file,
    versioned_template,
)
from covey.index import (
    Indexing,
    IndexMetadata,
    KnownLabels,
    ShardFiles,
    find_changed,
    index_names,
    read_index,
    read_metadata,
)
from covey.index.format import Shard
from covey.labels import Classes, find_label, is_string, read_strings
from covey.schema import Features
from covey.schema.merge import add_classes
from covey.schema.tfds import features_from_tfds
from covey.storage import LocalStorage
from covey.tfrecord import RecordReader
from covey.writing.versions import read_info

Mode = Literal["error", "overwrite", "append"]


@dataclass(frozen=True, slots=True)
class TargetSplit:
    """A dataset, or the place for one."""

    directory: Path
    name: str
    version: str
    split: str
    info: DatasetInfo | None
    mode: Mode
    template: str
    """Of the file names of the new version of the split."""

    @classmethod
    def look(
        cls, directory: Path, split: str, mode: Mode, name: str | None, *, unique: bool = False
    ) -> TargetSplit:
        """Look at a directory, and make sure that the split may be written.

        Args:
            directory: Of the dataset.
            split: The split.
            mode: What to do if it exists.
            name: Of the dataset, if the caller names it.
            unique: Whether the new version needs file names that no other version has. A version
                that replaces another one always has them.
        """
        if mode not in ("error", "overwrite", "append"):
            raise DatasetError(
                option="mode", found=mode, allowed="'error', 'overwrite' or 'append'"
            )
        info = read_info(directory)
        if info is not None and name not in (None, info.name):
            raise DatasetError(
                f"the dataset is called {info.name!r} already, not {name!r}", path=directory
            )
        own, version = dataset_name(directory)
        if info is not None:
            own, version = info.name, info.version
        existing = cls(directory, name or own, version, split, info, mode, DEFAULT_TEMPLATE)
        if existing.old is not None and mode == "error":
            raise DatasetExistsError(
                f"there is a split {split!r} already; pass mode='overwrite' to replace it, "
                "or mode='append' to add to it",
                path=directory,
            )
        if unique or existing.old is not None or existing._in_the_way():
            existing = replace(existing, template=versioned_template(new_token()))
        return existing

    def with_new_token(self) -> TargetSplit:
        """The same with a token of now, if the new version has one."""
        if self.template == DEFAULT_TEMPLATE:
            return self
        return replace(self, template=versioned_template(new_token()))

    def _in_the_way(self) -> bool:
        """Whether files that no split has are to be replaced."""
        if self.mode != "overwrite" or not self.directory.is_dir():
            return False
        names = (path.name for path in self.directory.iterdir())
        return any(parse_version_file(name, self.name, self.split)[0] for name in names)

    def version_info(self, shards: Sequence[Shard]) -> SplitInfo:
        """What the dataset says of the new version of the split."""
        lengths = tuple(shard.records for shard in shards)
        size = sum(shard.bytes for shard in shards)
        return SplitInfo(self.split, lengths, size, self.template)

    @property
    def stem(self) -> str:
        """How the index files of the new version begin."""
        return SplitInfo(self.split, (), 0, self.template).stem(self.name)

    @property
    def old(self) -> SplitInfo | None:
        """The split, if it is there already."""
        splits = () if self.info is None else self.info.splits
        return next((each for each in splits if each.name == self.split), None)

    @property
    def appends(self) -> bool:
        """Whether shards are added to others."""
        return self.mode == "append" and self.old is not None

    @property
    def keeps(self) -> bool:
        """Whether records stay that are there."""
        splits = () if self.info is None else self.info.splits
        return self.appends or any(each.name != self.split for each in splits)

    def old_shards(self) -> tuple[str, ...]:
        """The files of the split that is there."""
        return () if self.old is None else self.old.shard_names(self.name)

    def old_files(self) -> tuple[str, ...]:
        """The same, with those of its index."""
        if self.old is None:
            return ()
        return (*self.old_shards(), *index_names(self.old.stem(self.name)).values())

    def check_foreign(self, names: Iterable[str]) -> None:
        """Make sure that no file is replaced that belongs to no dataset, unless that was asked."""
        if self.mode == "overwrite":
            return
        own = set(self.old_files())
        # Then the small files are the dataset's, or of a first write that was not committed.
        if read_info(self.directory) is not None or any(map(has_token, os.listdir(self.directory))):
            own.update(name for name in names if ".tfrecord-" not in name)
        foreign = [
            name
            for name in names
            if name not in own and not has_token(name) and (self.directory / name).exists()
        ]
        if foreign:
            raise DatasetExistsError(
                f"{self.directory / foreign[0]}: there is such a file already, which belongs to no "
                "split of this dataset; move it away, or pass mode='overwrite' to replace it"
            )

    def about(self, split: str) -> IndexMetadata | None:
        """What the index of a split says, if covey made one."""
        splits = () if self.info is None else self.info.splits
        found = next((each for each in splits if each.name == split), None)
        stem = f"{self.name}-{split}" if found is None else found.stem(self.name)
        return read_metadata(self.directory, stem)

    def base(self) -> tuple[Features | None, str | None]:
        """The features that the split must agree with, and their label.

        There are some if other splits stay, or if shards are added to those that are there.
        """
        if self.info is None or not self.keeps:
            return None, None
        splits = self.info.splits
        staying = [each.name for each in splits if each.name != self.split or self.appends]
        try:
            known = features_from_tfds(self.directory)
        except FileNotFoundError:
            raise FormatError(
                "there is a dataset_info.json but no features.json, so that nothing tells "
                "how its records are to be read",
                path=self.directory,
            ) from None
        abouts = [about for about in map(self.about, staying) if about is not None]
        if not abouts:
            return known, find_label(known, None)
        # covey's own files say more than those of TFDS; but an older one may lack the classes that
        # a later split has brought.
        features = abouts[0].features
        for other in (*(about.features for about in abouts[1:]), known):
            features = add_classes(features, other)
        return features, abouts[0].label

    def old_texts(self, features: Features, label: str | None) -> tuple[str, ...]:
        """The strings of the split that is there, by their numbers, if its label is a string."""
        if label is None or label not in features or not is_string(features[label]):
            return ()
        about = self.about(self.split)
        if about is not None and about.label == label and about.label_strings is not None:
            return about.label_strings
        texts: set[str] = set()
        for name in self.old_shards():
            with RecordReader(self.directory / name) as reader:
                for block in reader.blocks():
                    texts.update(read_strings(features, label, block))
        return tuple(sorted(texts))

    def old_index(self, classes: Classes) -> tuple[list[Shard], NDArray[Any]]:
        """The shards of the split that is there, and the places of their records.

        Taken from its index if that is there and right, else from the shards themselves.
        """
        about = self.about(self.split)
        files = ShardFiles(LocalStorage(), str(self.directory), self.old_shards())
        if about is not None and about.label == classes.label:
            with contextlib.suppress(FormatError):
                if find_changed(files, about.shards) is None:
                    assert self.old is not None
                    index = read_index(self.directory, self.old.stem(self.name), about)
                    return list(about.shards), index.rows
        labeller = None if classes.label is None else KnownLabels(classes)
        index = Indexing(classes.features, labeller, progress=False).build(files)
        return [replace(shard, version="") for shard in index.metadata.shards], index.rows
