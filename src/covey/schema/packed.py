"""Raw arrays in byte strings, which the native codec does not interpret.

==============  ================================================================================
encoding        stored as
==============  ================================================================================
``zlib``        one string, compressed
``bytes_each``  one string per item along the first dimension: a ``Sequence`` of TFDS
``zlib_each``   the same, each string compressed
==============  ================================================================================

Strings may come from an untrusted file; zlib expands them at most about a thousand times.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.schema.arrays import RaggedArray, StringArray
from covey.schema.columns import MAX_EXAMPLE_BYTES, Column

PACKED = ("zlib", "bytes_each", "zlib_each")


def pack(array: NDArray[Any], encoding: str) -> list[bytes]:
    """Return the strings that an array is stored as.

    >>> pack(np.array([[65, 66], [67, 68]], np.int8), "bytes_each")
    [b'AB', b'CD']
    """
    items = [item.tobytes() for item in (array if encoding.endswith("_each") else [array])]
    return [zlib.compress(item) for item in items] if encoding.startswith("zlib") else items


def item_size(item: Column) -> int:
    """Return the bytes of one item; with an unknown dimension, the unit of its size."""
    return item.count * item.numpy_dtype.itemsize


def unpack(
    stored: StringArray | RaggedArray, item: Column, encoding: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenated memory of the strings of a column, and the size of each.

    Args:
        stored: The decoded column.
        item: The item that one string holds. A string that is not valid zlib data, or holds more,
            gets the size -1, and the strings after it are left out.
        encoding: One of ``PACKED``.
    """
    strings: StringArray = stored.values if isinstance(stored, RaggedArray) else stored
    if not encoding.startswith("zlib"):
        offsets = strings.offsets
        return strings.data[int(offsets[0]) : int(offsets[-1])], np.diff(offsets)
    limit = MAX_EXAMPLE_BYTES if None in item.shape else item_size(item)
    pieces: list[bytes] = []
    for begin, end in zip(strings.offsets[:-1], strings.offsets[1:], strict=True):
        piece = _inflate(strings.data[begin:end].tobytes(), limit)
        if piece is None:
            return np.zeros(0, np.uint8), np.array([*map(len, pieces), -1], np.int64)
        pieces.append(piece)
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    # A bytearray, so that the arrays are writable, like all others.
    return np.frombuffer(bytearray().join(pieces), np.uint8), sizes


def _inflate(data: bytes, limit: int) -> bytes | None:
    inflater = zlib.decompressobj()
    try:
        memory = inflater.decompress(data, limit + 1)
    except zlib.error:
        return None
    complete = inflater.eof and not inflater.unused_data and len(memory) <= limit
    return memory if complete else None


def row_of_string(stored: StringArray | RaggedArray, index: int) -> int:
    """Return the row of the string at an index."""
    if isinstance(stored, RaggedArray):
        return int(np.searchsorted(stored.row_splits, index, side="right")) - 1
    return index // max(1, int(np.prod(stored.row_shape, dtype=np.int64)))


def arrange(
    memory: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    stored: StringArray | RaggedArray,
    item: Column,
) -> Any:
    """Return the column for the memory of its strings, which all have a valid size."""
    if None in item.shape:
        splits = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes // item.numpy_dtype.itemsize, out=splits[1:])
        return item.wrap((memory, splits, splits, splits), len(sizes))
    shape = tuple(size or 0 for size in item.shape)
    values = memory.view(item.numpy_dtype)
    if isinstance(stored, RaggedArray):
        return RaggedArray(values.reshape(len(sizes), *shape), stored.row_splits)
    return values.reshape(*stored.shape, *shape)
