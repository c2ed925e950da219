"""The samples of WebDataset shards, and the locations of their members in tar files."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from covey.errors import FormatError, SourceError
from covey.schema.image_inputs import MAX_IMAGE_BYTES
from covey.sources.source import source_error
from covey.untrusted import RegularFile, brief, check_path

MAX_MEMBER_BYTES = MAX_IMAGE_BYTES
"""Maximum size of a member."""
MAX_MEMBERS = 1 << 24
"""Maximum number of members of a shard."""
MAX_SUFFIXES = 1000
"""Maximum number of different suffixes in all shards."""
# A pax header, or a long name. tarfile searches it in quadratic time.
_MAX_HEADER_BYTES = 1 << 14
_MAX_LABEL_BYTES = 4096

BLOCK_BYTES = 512
"""Size of a header."""
GZIP_MAGIC = b"\x1f\x8b"

# As in the webdataset library: the suffix begins at the first dot of the file name.
_MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
_METADATA = re.compile(r"__[^/]*__($|/)")
_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")
_KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "gif", "bmp", "webp"), "image"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus", "m4a"), "audio"),
    **dict.fromkeys(("txt", "text", "transcript", "html", "htm"), "text"),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "label"),
    **dict.fromkeys(("json", "jsn"), "json"),
    "npy": "array",
}


def kind_of(suffix: str) -> str:
    """Return the kind of a field: image, audio, text, label, json, array or bytes."""
    return _KINDS.get(suffix.rpartition(".")[2], "bytes")


@dataclass
class TarIndex:
    """The samples of shards, and the locations of their members."""

    files: list[str]
    keys: list[str] = field(default_factory=list)
    shards: array[int] = field(default_factory=lambda: array("l"))
    """Position of the shard of every sample."""
    first: array[int] = field(default_factory=lambda: array("q", [0]))
    """Position of the first member of every sample, and the number of members."""
    suffix_ids: array[int] = field(default_factory=lambda: array("H"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    suffixes: dict[str, int] = field(default_factory=dict)
    errors: dict[int, SourceError] = field(default_factory=dict)
    """Errors of samples, by position."""
    combinations: set[tuple[int, ...]] = field(default_factory=set)
    """Suffixes that samples have together."""
    strings: set[str] = field(default_factory=set)
    """Suffixes of labels that are not all integers."""
    classes: set[str] = field(default_factory=set)
    """Values of the label ``cls``."""

    def add_shard(self, shard: int) -> None:
        """Read the headers of a shard. Its content is read if it is compressed."""
        path = self.files[shard]
        current: str | None = None
        try:
            for info, file in _members(path):
                name = info.name.removeprefix("./")
                found = _MEMBER.fullmatch(name)
                if info.isdir() or found is None or _METADATA.match(name):
                    continue
                key, suffix = found[1], found[2].lower()
                if key != current:
                    self._end()
                    self._begin(key, shard)
                    current = key
                self._add_member(info, suffix, file)
        except (tarfile.TarError, SourceError, OSError, EOFError, zlib.error, RecursionError) as e:
            self._end()
            reason = e.reason if isinstance(e, SourceError) else str(e) or type(e).__name__
            self._begin(f"/{shard}", shard)
            self.errors[len(self.keys) - 1] = source_error(
                path, f"this member and all that follow cannot be read: {reason}"
            )
        self._end()

    def _begin(self, key: str, shard: int) -> None:
        self.keys.append(key)
        self.shards.append(shard)

    def _end(self) -> None:
        """Complete the last sample, if it is not complete."""
        if len(self.first) > len(self.keys):
            return
        self.combinations.add(tuple(sorted(self.suffix_ids[self.first[-1] :])))
        self.first.append(len(self.suffix_ids))

    def _add_member(self, info: tarfile.TarInfo, suffix: str, file: Any) -> None:
        reason = _member_fault(info)
        if kind_of(suffix) == "label" and info.size > _MAX_LABEL_BYTES:
            reason = f"the label has {info.size} bytes; must be at most {_MAX_LABEL_BYTES}"
        if suffix not in self.suffixes and len(self.suffixes) == MAX_SUFFIXES:
            reason = f"there are more than {MAX_SUFFIXES} different suffixes"
        known = self.suffixes.get(suffix)
        if known is not None and known in self.suffix_ids[self.first[-1] :]:
            reason = "the sample has two members with this suffix"
        if reason is not None:
            path = self.files[self.shards[-1]]
            error = source_error(path, f"member {brief(info.name)}: {reason}")
            self.errors.setdefault(len(self.keys) - 1, error)
            return
        self.suffix_ids.append(self.suffixes.setdefault(suffix, len(self.suffixes)))
        self.offsets.append(info.offset_data)
        self.sizes.append(info.size)
        if kind_of(suffix) == "label":
            file.seek(info.offset_data)
            value = file.read(info.size).strip()
            if value and not _INTEGER.fullmatch(value):
                self.strings.add(suffix)
            if value and suffix == "cls":
                self.classes.add(value.decode(errors="replace"))

    def check_keys(self) -> None:
        """Make the keys of samples unique: with the name of the shard, if a key is not."""
        if len(set(self.keys)) < len(self.keys):
            names = [os.path.basename(file) for file in self.files]
            if len(set(names)) < len(names):
                names = list(self.files)
            self.keys = [
                f"{names[shard]}/{key}" for key, shard in zip(self.keys, self.shards, strict=True)
            ]
        seen: set[str] = set()
        for position, key in enumerate(self.keys):
            if key in seen and position not in self.errors:
                self.errors[position] = source_error(
                    self.files[self.shards[position]],
                    f"the key {brief(key)} occurs twice; members of a sample must be adjacent",
                )
            seen.add(key)


class _HeaderReader(io.RawIOBase):
    """A tar file, of which only headers are read; tarfile trusts the sizes in them."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return cast("bytes", self._file.read(size))


def _members(path: str) -> Iterator[tuple[tarfile.TarInfo, Any]]:
    """Yield the members of a shard, and the file to read them from.

    Raises:
        SourceError, tarfile.TarError, OSError, EOFError: If the rest of the file is not valid.
    """
    with open_shard(path) as file:
        size = os.path.getsize(path) if isinstance(file, io.BufferedReader) else None
        end, count = 0, 0
        with tarfile.open(fileobj=cast("BinaryIO", _HeaderReader(file)), mode="r:") as tar:
            while (info := tar.next()) is not None:
                count += 1
                # A negative size would make tarfile read the same headers again.
                if info.size < 0 or info.offset_data < end or count > MAX_MEMBERS:
                    reason = f"more than {MAX_MEMBERS} members" if info.size >= 0 else "its size"
                    raise source_error(path, f"the header is not valid: {reason}")
                is_plain = info.isreg() and not info.issparse()
                end = info.offset_data + (info.size if is_plain else 0)
                if size is not None and end > size:
                    raise source_error(path, f"{brief(info.name)} is truncated")
                yield info, file
                tar.members = []  # type: ignore[attr-defined]
            # tarfile takes a header that is not valid for the end of the archive.
            file.seek(tar.offset)
            if file.read(BLOCK_BYTES) != bytes(BLOCK_BYTES):
                raise source_error(path, f"there is no end of the archive at byte {tar.offset}")


def open_shard(path: str) -> Any:
    """Open a shard; the position is that in the decompressed file."""
    file = io.BufferedReader(RegularFile(path))
    if file.peek(2)[:2] != GZIP_MAGIC:
        return file
    opened = gzip.GzipFile(fileobj=file, mode="rb")
    opened.myfileobj = file  # type: ignore[assignment]  # closed with the stream
    return opened


def _member_fault(info: tarfile.TarInfo) -> str | None:
    """Return the reason why a member is not a field; None if it is."""
    if not info.isreg() or info.issparse():
        kinds = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link"}
        kind = "a sparse file" if info.issparse() else kinds.get(info.type, "a special file")
        return f"it is {kind}; must be a regular file"
    if info.size > MAX_MEMBER_BYTES:
        return f"it has {info.size:,} bytes; must be at most {MAX_MEMBER_BYTES:,}"
    try:
        check_path(info.name.removeprefix("./"), "the name")
    except FormatError as error:
        return error.reason
    return None
