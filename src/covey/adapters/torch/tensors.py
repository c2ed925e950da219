"""PyTorch tensors of the arrays of a batch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from covey.arrays import RaggedArray, StringArray


def tensor(value: Any) -> Any:
    """Return a tensor that shares the memory of an array, unless PyTorch cannot use it.

    Strings and byte strings become lists, and ragged arrays lists of tensors, as in the collate
    functions of PyTorch. Values without a tensor type are returned unchanged.

    >>> tensor(np.arange(3))
    tensor([0, 1, 2])
    >>> tensor(RaggedArray.of([[1, 2], [3]]))
    [tensor([1, 2]), tensor([3])]
    >>> tensor(StringArray.of(["wren", "owl"]))
    ['wren', 'owl']
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_array(np.asarray(value))
    if isinstance(value, StringArray):
        return value.tolist()
    return _rows(value) if isinstance(value, RaggedArray) else value


def _of_array(array: np.ndarray[Any, Any]) -> Any:
    if not array.flags.writeable:  # tensors are always writable
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # PyTorch has no such dtype
        return array
    except ValueError:  # strides or byte order that tensors cannot have
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))


def _rows(ragged: RaggedArray) -> list[Any]:
    values = tensor(ragged.values)
    if isinstance(ragged.values, StringArray):
        return ragged.tolist()
    if not isinstance(values, torch.Tensor):
        return [tensor(row) for row in ragged]
    # Views of one tensor: a worker sends them as one file instead of one per row.
    rows = [values[first:end] for first, end in pairwise(ragged.row_splits.tolist())]
    shapes = ragged.row_shapes
    if shapes is None:
        return rows
    listed = shapes.tolist() if isinstance(shapes, np.ndarray) else [shapes] * len(rows)
    return [row.reshape(tuple(shape)) for row, shape in zip(rows, listed, strict=True)]


# A worker sends smaller arrays through a pipe. PyTorch would create a file in shared memory, and a
# connection to pass it on, which takes four times as long for small arrays.
_MAX_PIPED_BYTES = 1 << 20


def send(value: Any) -> Any:
    """Return what a worker sends for a value: it arrives as the tensor of the value."""
    converted = tensor(value)
    is_small = isinstance(converted, torch.Tensor) and converted.nbytes <= _MAX_PIPED_BYTES
    return _Piped(value) if is_small and isinstance(value, np.ndarray) else converted


class _Piped:
    """An array that is unpickled as a tensor."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return tensor, (self._array,)
