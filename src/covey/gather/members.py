"""Decompressing GZIP members, of which shards are made in which records can be found."""

from __future__ import annotations

import importlib
import importlib.util
import struct
import zlib
from typing import Any, cast

# Two to three times as fast, where it is installed.
_deflate: Any = importlib.import_module("deflate") if importlib.util.find_spec("deflate") else None


def _inflate(member: bytes, size: int) -> bytes:
    if _deflate is None:
        return zlib.decompress(member, 31, size)
    try:
        # As it is, a bytearray: bytes() of it would be one more copy.
        return cast(bytes, _deflate.gzip_decompress(member, size))
    except (_deflate.DeflateError, ValueError) as error:
        raise zlib.error(str(error)) from None


# Deflate makes data at most 1032 times as small.
_MOST_RATIO = 1040


class MemberError(Exception):
    """A member is damaged; the message says how."""


def inflate_member(member: bytes, most: int) -> bytes:
    """The data of one whole member.

    Args:
        member: Its bytes.
        most: The most that it may decompress to.

    >>> import gzip
    >>> bytes(inflate_member(gzip.compress(b"owl"), 100))
    b'owl'
    """
    if len(member) < 18:
        raise MemberError(f"the member has {len(member)} bytes, the least are 18")
    (size,) = struct.unpack("<I", member[-4:])
    # What it says of its size is no reason to get more memory than it could fill.
    most = min(most, len(member) * _MOST_RATIO)
    if size > most:
        raise MemberError(f"the member says that it has {size} bytes, the most are {most}")
    try:
        data = _inflate(member, size)
    except zlib.error as error:
        raise MemberError(f"the GZIP data is damaged: {error}") from None
    if len(data) != size:
        raise MemberError(f"the member has {len(data)} bytes, but says {size}")
    return data
