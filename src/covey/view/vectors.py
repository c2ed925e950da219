"""Vectors of examples: the rows of an array, or of a ``.npy`` file that is read in pieces.

A file is read, not mapped: pages of a map that were read count as memory of the process, and a file
that is truncated while it is mapped ends the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FileChangedError, MetricError
from covey.untrusted import RegularFile
from covey.urls import check_local, is_path

CHUNK_BYTES = 16 << 20
"""Approximate number of bytes of the rows that are read at a time."""

MAX_COLUMNS = 1 << 16

_READERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Vectors:
    """A matrix with a row per example, of which a few rows are in memory at a time.

    Args:
        values: An array, or the path of a ``.npy`` file. Files with pickled objects are refused.
        chunk_bytes: Approximate number of bytes of the rows that are read at a time.

    Raises:
        MetricError: If it is not a matrix of float16, float32 or float64.
        StorageError: If the file cannot be read.
    """

    def __init__(self, values: Any, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path: str | None = None
        self._array: NDArray[Any] | None = None
        self._file: RegularFile | None = None
        self._offset = 0
        self.shape: tuple[int, ...]
        self._dtype: np.dtype[Any]
        if is_path(values):
            self._open(values)
        else:
            self._array = np.asarray(values)
            self.shape, self._dtype = self._array.shape, self._array.dtype
        self._check()
        # float16 is converted: arithmetic with it is slow, and its sums are not exact.
        self.dtype = np.dtype(np.float64 if self._dtype.itemsize == 8 else np.float32)
        self.chunk_rows = max(1, chunk_bytes // (self.dtype.itemsize * self.shape[1]))

    def __len__(self) -> int:
        return self.shape[0]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the rows from `begin` up to, but not including, `end`."""
        if self._array is not None:
            return self._array[begin:end].astype(self.dtype, copy=False)
        assert self._file is not None
        row_bytes = self.shape[1] * self._dtype.itemsize
        data = self._file.read_at(self._offset + begin * row_bytes, (end - begin) * row_bytes)
        if len(data) != (end - begin) * row_bytes:
            raise FileChangedError("the file was truncated after it was opened", path=self.path)
        stored = np.frombuffer(data, self._dtype).reshape(end - begin, self.shape[1])
        return stored.astype(self.dtype, copy=False)

    def take(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows."""
        if self._array is not None:
            return self._array[ids].astype(self.dtype, copy=False)
        found = np.empty((len(ids), self.shape[1]), self.dtype)
        for row, number in enumerate(ids.tolist()):
            found[row] = self.rows(number, number + 1)[0]
        return found

    def chunks(self, begin: int = 0) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the rows from `begin` on: the first row of a chunk, and its rows."""
        for first in range(begin, len(self), self.chunk_rows):
            yield first, self.rows(first, min(first + self.chunk_rows, len(self)))

    def _open(self, path: str | PathLike[str]) -> None:
        self.path = check_local(path, "embeddings")
        self._file = file = RegularFile(self.path)
        try:
            self.shape, is_fortran, self._dtype = _read_header(file)
        except Exception as error:  # the parser of numpy raises many
            file.close()
            raise MetricError(
                f"is not a valid .npy file of numbers: {error}",
                path=self.path,
                remedy="write it with numpy.save",
            ) from None
        if is_fortran and len(self.shape) > 1 and min(self.shape) > 1:
            file.close()
            raise MetricError(
                "the matrix is stored by columns",
                path=self.path,
                remedy="write it with numpy.save(path, numpy.ascontiguousarray(matrix))",
            )
        self._offset = file.tell()

    def _check(self) -> None:
        problem = None
        if self._dtype.kind != "f" or self._dtype.itemsize > 8:
            problem = f"its dtype is {self._dtype}; must be float16, float32 or float64"
        elif len(self.shape) != 2 or self.shape[0] < 0:
            problem = f"its shape is {self.shape}; must have two dimensions: a row per example"
        elif not 1 <= self.shape[1] <= MAX_COLUMNS:
            problem = f"it has {self.shape[1]:,} columns; must have from 1 to {MAX_COLUMNS:,}"
        elif self._file is not None:
            size = self._offset + self.shape[0] * self.shape[1] * self._dtype.itemsize
            if self._file.stat().st_size < size:
                problem = f"the file is truncated: it has less than {size:,} bytes"
        if problem is not None:
            self.close()
            raise MetricError(problem, path=self.path, option=None if self.path else "embeddings")


def _read_header(file: RegularFile) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, the order and the dtype of a .npy file; its objects are not read."""
    reader = _READERS.get(np.lib.format.read_magic(file))
    if reader is None:
        raise ValueError("its version of the format is not supported")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a header that only Python 2 could have written
        header: tuple[tuple[int, ...], bool, np.dtype[Any]] = reader(file)
    return header
