"""Decompressing GZIP members, of which shards are made in which records can be found."""

from __future__ import annotations

import struct
import zlib

from covey.records.places import LONGEST_MEMBER

try:  # two to three times as fast
    import deflate

    def _inflate(member: bytes, size: int) -> bytes:
        try:
            return bytes(deflate.gzip_decompress(member, size))
        except deflate.DeflateError as error:
            raise zlib.error(str(error)) from None

except ImportError:

    def _inflate(member: bytes, size: int) -> bytes:
        return zlib.decompress(member, 31, size)


class MemberError(Exception):
    """A member is damaged; the message says how."""


def inflate_member(member: bytes) -> bytes:
    """The data of one whole member, which is no longer than one may be.

    >>> import gzip
    >>> inflate_member(gzip.compress(b"owl"))
    b'owl'
    """
    if len(member) < 18:
        raise MemberError(f"the member has {len(member)} bytes, the least are 18")
    (size,) = struct.unpack("<I", member[-4:])
    if size > LONGEST_MEMBER:
        raise MemberError(f"the member would have {size} bytes, the most are {LONGEST_MEMBER}")
    try:
        data = _inflate(member, size)
    except zlib.error as error:
        raise MemberError(f"the GZIP data is damaged: {error}") from None
    if len(data) != size:
        raise MemberError(f"the member has {len(data)} bytes, but says {size}")
    return data
