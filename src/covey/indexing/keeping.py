"""Where indexes are kept: beside their shards, or in the cache folder.

An index that was found is used only if it is of the shards that are there now. One that is not is
made anew; but if covey wrote it together with the shards, then these were changed, and that is an
error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from covey.errors import AccessRefusedError, DatasetError, FeatureError, FormatError
from covey.index import About, Index, IndexWriter, index_names, read_about, read_index
from covey.indexing.building import GUESS, Indexing, ShardFiles, shard_fingerprint
from covey.shards import Shard
from covey.storage import Stat, Storage, cache_folder


def find_or_build(
    files: ShardFiles, stem: str, indexing: Indexing, *, keep: bool = True, anew: bool = False
) -> tuple[Index, Path | None]:
    """The index of shards: one that was kept, or a new one, which then is.

    Args:
        files: The shards.
        stem: How its files are called.
        indexing: How to make it.
        keep: Whether to keep a new one.
        anew: Whether to make it, even if there is one.

    Returns:
        The index, and the folder that it is in, if it was kept.
    """
    index = damaged = None
    for folder in () if anew else _places_to_read(files, stem, indexing):
        about = _look(folder, files, stem)
        if about is None or not _is_wanted(about, indexing):
            continue
        if indexing.on_error == "skip":  # only who reads all records knows which are damaged
            damaged = about
            break
        try:
            return read_index(folder, stem, about), folder
        except FormatError:  # its rows are damaged, but what it was is known
            damaged = about
            if files.storage.is_remote:
                shutil.rmtree(folder, ignore_errors=True)
    if damaged is not None:
        with contextlib.suppress(FeatureError):
            index = indexing.like(damaged).build(files)
    if index is None:
        index = indexing.build(files)
    if not keep or callable(indexing.label) or indexing.on_error == "skip":
        return index, None
    for folder in _places_to_write(files, stem, indexing):
        if not anew and _is_taken(folder, stem, index):
            continue
        try:
            write_index(folder, stem, index)
            return read_index(folder, stem, index.about), folder
        # A disk that is read-only or full; a name that is no UTF-8; or somebody else's turn.
        except (OSError, UnicodeError, FormatError):
            continue
    return index, None


def _look(folder: Path, files: ShardFiles, stem: str) -> About | None:
    """The description of an index that was kept, if it is of these shards as they are now.

    Raises:
        DatasetError: If covey wrote them together, and a shard is another now.
    """
    try:
        about = read_about(folder, stem)
    except FormatError:
        return None  # it is no index, or a damaged one; the shards are there
    if about is None or tuple(shard.name for shard in about.shards) != files.names:
        return None
    changed = find_changed(files, about.shards)
    if changed is not None and about.order:
        raise DatasetError(
            f"{changed}; run `covey verify` to see what is left, or `covey index` to index the "
            "shards as they are now"
        )
    return None if changed is not None else about


def _is_wanted(about: About, indexing: Indexing) -> bool:
    """Whether an index has the label that was asked for."""
    return indexing.label is GUESS or indexing.label is None or indexing.label == about.label


def _places_to_read(files: ShardFiles, stem: str, indexing: Indexing) -> Iterator[Path]:
    """The folders in which an index may be: first that of the shards, then the cache."""
    fetched = _fetch(files, stem) if files.storage.is_remote else None
    if fetched is not None:
        yield fetched
        if not fetched.exists():  # the copy was damaged
            yield _fetch(files, stem) or fetched
    yield from _places_to_write(files, stem, indexing)


def _places_to_write(files: ShardFiles, stem: str, indexing: Indexing) -> Iterator[Path]:
    """The same without those that are somebody else's: remote ones are written when asked for."""
    if not files.storage.is_remote and files.keeps_index:
        yield Path(files.folder)
    label = "" if indexing.label is GUESS else repr(indexing.label)
    text = "\0".join((files.storage.clean(files.folder), stem, label))
    name = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    yield cache_folder() / "indexes" / name


def _is_taken(folder: Path, stem: str, index: Index) -> bool:
    """Whether a right index is in the place of another: covey's own, or of another label."""
    try:
        about = read_about(folder, stem)
    except FormatError:
        return False
    if about is None or [each.name for each in about.shards] != [
        each.name for each in index.about.shards
    ]:
        return False
    return (bool(about.order) and not index.about.order) or about.label != index.about.label


def find_changed(files: ShardFiles, shards: tuple[Shard, ...]) -> str | None:
    """What has happened to the first shard that is not as it was, if any.

    Of remote shards only what a listing tells is looked at; the rest is when they are first read.
    """
    storage = files.storage
    for path, shard, stat in zip(files.paths, shards, storage.stat(files.paths), strict=True):
        changed = changed_state(path, shard, stat)
        if changed is None and not storage.is_remote:
            changed = changed_content(storage, path, shard)
        if changed is not None:
            return changed
    return None


def changed_state(path: str, shard: Shard, stat: Stat | None) -> str | None:
    """What has happened to a shard of which its storage says so now; None if it is not there."""
    if stat is None:
        return f"{path}: the shard is missing"
    if stat.size != shard.bytes:
        how = "was cut" if stat.size < shard.bytes else "has grown"
        return f"{path}: the shard {how} from {shard.bytes} to {stat.size} bytes"
    if shard.version and stat.version and shard.version != stat.version:
        return f"{path}: the shard was changed after it was indexed"
    return None


def changed_content(storage: Storage, path: str, shard: Shard) -> str | None:
    """Whether another file has taken the place of a shard."""
    if shard_fingerprint(storage, path, shard.bytes) == shard.fingerprint:
        return None
    return f"{path}: the shard is not the one that was indexed, it was replaced"


def write_index(folder: Path, stem: str, index: Index) -> None:
    """Write an index; whoever reads meanwhile finds the old one, or none that is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    names = index_names(stem)
    about = index.about
    staging = Path(tempfile.mkdtemp(prefix=".covey-index-", dir=folder))
    try:
        writer = IndexWriter(
            staging / names["rows"],
            len(index.rows),
            compressed=about.compression is not None,
            labelled=about.label is not None,
        )
        try:
            writer.add_rows(index.rows)
            writer.close()
        finally:
            writer.abandon()
        if index.classes is not None and index.by_class is not None:
            np.save(staging / names["classes"], index.classes)
            np.save(staging / names["by_class"], index.by_class)
        (staging / names["about"]).write_text(about.to_json(), encoding="utf-8")
        # The description last: it has the checksums of the others.
        for name in ("rows", "classes", "by_class", "about"):
            if (staging / names[name]).exists():
                os.replace(staging / names[name], folder / names[name])
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fetch(files: ShardFiles, stem: str) -> Path | None:
    """Bring an index that lies beside remote shards here; the folder that it is in then."""
    storage, names = files.storage, index_names(stem)
    try:
        about = storage.read(storage.join(files.folder, names["about"]))
    except (FileNotFoundError, AccessRefusedError):  # some servers refuse what is not there
        return None
    name = hashlib.blake2b(about, digest_size=16).hexdigest()
    folder = cache_folder() / "indexes" / name
    if (folder / names["about"]).exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for each in ("rows", "classes", "by_class"):
        path = storage.join(files.folder, names[each])
        try:
            with storage.open_stream(path) as stream:
                _save(folder / names[each], stream)
        except FileNotFoundError:  # without a label there are no classes
            continue
    _save(folder / names["about"], io.BytesIO(about))  # last: then all is there
    return folder


def _save(path: Path, stream: BinaryIO) -> None:
    descriptor, beside = tempfile.mkstemp(prefix=".covey-index-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
