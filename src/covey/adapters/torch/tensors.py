"""Tensors of what batches are made of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from covey.schema.arrays import RaggedArray, StringArray


def tensor(value: Any) -> Any:
    """A tensor with the memory of an array, which is copied only if PyTorch cannot use it.

    Strings and byte strings become lists, and ragged arrays lists of tensors, as they would be with
    PyTorch's own collating. What PyTorch has no tensors for stays as it is.

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
    if not array.flags.writeable:  # of a tensor, a caller that has it may write into it
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # there is no such dtype
        return array
    except ValueError:  # strides, or an order of bytes, that tensors cannot have
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))


def _rows(ragged: RaggedArray) -> list[Any]:
    values = tensor(ragged.values)
    if isinstance(ragged.values, StringArray):
        return ragged.tolist()
    if not isinstance(values, torch.Tensor):
        return [tensor(row) for row in ragged]
    # All in one memory: a worker hands it over as one file, and not as one for each row.
    rows = [values[first:end] for first, end in pairwise(ragged.row_splits.tolist())]
    shapes = ragged.row_shapes
    if shapes is None:
        return rows
    listed = shapes.tolist() if isinstance(shapes, np.ndarray) else [shapes] * len(rows)
    return [row.reshape(tuple(shape)) for row, shape in zip(rows, listed, strict=True)]


# Up to this, an array is sent from a worker through a pipe. PyTorch would make a file for it in
# shared memory, and a connection to hand that over: for small ones that takes four times as long.
_SMALL = 1 << 20


def sent(value: Any) -> Any:
    """What a worker returns: it becomes a tensor in the process that gets it."""
    made = tensor(value)
    is_small = isinstance(made, torch.Tensor) and made.nbytes <= _SMALL
    return _Sent(np.asarray(value)) if is_small and isinstance(value, np.ndarray) else made


class _Sent:
    """An array that arrives as a tensor."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return tensor, (self._array,)
