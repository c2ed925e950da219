"""The memory of arrays in byte strings that the native codec passes on as they are.

==============  ================================================================================
encoding        stored as
==============  ================================================================================
``zlib``        one string, compressed
``bytes_each``  a string for every item along the first dimension: a ``Sequence`` of TFDS
``zlib_each``   the same, each of them compressed
==============  ================================================================================

Strings may come from a hostile file; what they unpack to is at most about a thousand times theirs.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.schema.arrays import RaggedArray, StringArray
from covey.schema.columns import MOST_BYTES, Column

PACKED = ("zlib", "bytes_each", "zlib_each")


def pack(array: NDArray[Any], encoding: str) -> list[bytes]:
    """The strings that an array is stored as.

    >>> pack(np.array([[65, 66], [67, 68]], np.int8), "bytes_each")
    [b'AB', b'CD']
    """
    items = [item.tobytes() for item in (array if encoding.endswith("_each") else [array])]
    return [zlib.compress(item) for item in items] if encoding.startswith("zlib") else items


def item_size(item: Column) -> int:
    """How many bytes the memory of one item has, or, of an unknown shape, the unit they come in."""
    return item.count * item.numpy_dtype.itemsize


def unpack(
    stored: StringArray | RaggedArray, item: Column, encoding: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The memory in the strings of a column, end to end, and how many bytes each of them has.

    Args:
        stored: The decoded column.
        item: What one string holds. -1 is given as the size of the first that is not compressed
            or holds more than that, and nothing for those after it.
        encoding: One of ``PACKED``.
    """
    strings: StringArray = stored.values if isinstance(stored, RaggedArray) else stored
    if not encoding.startswith("zlib"):
        offsets = strings.offsets
        return strings.data[int(offsets[0]) : int(offsets[-1])], np.diff(offsets)
    most = MOST_BYTES if None in item.shape else item_size(item)
    pieces: list[bytes] = []
    for begin, end in zip(strings.offsets[:-1], strings.offsets[1:], strict=True):
        piece = _inflate(strings.data[begin:end].tobytes(), most)
        if piece is None:
            return np.zeros(0, np.uint8), np.array([*map(len, pieces), -1], np.int64)
        pieces.append(piece)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    # A bytearray, so that the arrays made of it can be written to, as all others can.
    return np.frombuffer(bytearray().join(pieces), np.uint8), sizes


def _inflate(data: bytes, most: int) -> bytes | None:
    inflater = zlib.decompressobj()
    try:
        memory = inflater.decompress(data, most + 1)
    except zlib.error:
        return None
    complete = inflater.eof and not inflater.unused_data and len(memory) <= most
    return memory if complete else None


def row_of_string(stored: StringArray | RaggedArray, number: int) -> int:
    """The row of a column that one of its strings belongs to."""
    if isinstance(stored, RaggedArray):
        return int(np.searchsorted(stored.row_splits, number, side="right")) - 1
    return number // max(1, int(np.prod(stored.row_shape, dtype=np.int64)))


def arrange(
    memory: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    stored: StringArray | RaggedArray,
    item: Column,
) -> Any:
    """The column that the memory of its strings makes up, all of them of the right size."""
    if None in item.shape:
        splits = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes // item.numpy_dtype.itemsize, out=splits[1:])
        return item.wrap((memory, splits, splits, splits), len(sizes))
    shape = tuple(size or 0 for size in item.shape)
    values = memory.view(item.numpy_dtype)
    if isinstance(stored, RaggedArray):
        return RaggedArray(values.reshape(len(sizes), *shape), stored.row_splits)
    return values.reshape(*stored.shape, *shape)
