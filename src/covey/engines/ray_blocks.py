"""Blocks of Ray Datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RayBlock:
    """Block of a Ray Dataset, which a task loads."""

    reference: Any
    begin: int = 0
    end: int | None = None

    def load(self) -> dict[str, Any]:
        """Return the columns: Arrow arrays or pandas series, and numpy arrays of tensors."""
        import ray

        block = ray.get(self.reference)
        if self.begin != 0 or self.end is not None:
            if hasattr(block, "iloc"):
                block = block.iloc[self.begin : self.end]
            else:
                block = block.slice(self.begin, None if self.end is None else self.end - self.begin)
        return block_columns(block)


@dataclass(frozen=True)
class LoadedBlock:
    """Block of a Ray Dataset in this process."""

    block: Any

    def load(self) -> dict[str, Any]:
        """Return the columns, as :meth:`RayBlock.load`."""
        return block_columns(self.block)


def block_columns(block: Any) -> dict[str, Any]:
    """Return the columns of a block: Arrow arrays or pandas series, and arrays of tensors."""
    from ray.data.block import BlockAccessor

    if hasattr(block, "iloc"):
        return {str(name): block[name] for name in block.columns}
    columns: dict[str, Any] = {}
    for name in block.schema.names:
        column = block.column(name)
        if hasattr(column.type, "storage_type"):  # a tensor
            column = BlockAccessor.for_block(block).to_numpy(name)
        columns[name] = column
    return columns


def dataset_blocks(dataset: Any) -> Iterator[tuple[RayBlock, int]]:
    """Execute a Ray Dataset; yield its blocks in order, with the number of their rows.

    The references keep the blocks in the object store, which spills them to disk: a block is read
    again if the node that encoded it is lost.
    """
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = True
    try:
        for bundle in dataset.iter_internal_ref_bundles():
            slices = getattr(bundle, "slices", None) or [None] * len(bundle.blocks)
            for entry, part in zip(bundle.blocks, slices, strict=True):
                is_entry = hasattr(entry, "ref")  # a pair in earlier versions of Ray
                reference, metadata = (entry.ref, entry.metadata) if is_entry else entry
                if part is None:
                    yield RayBlock(reference), metadata.num_rows
                else:
                    rows = part.end_offset - part.start_offset
                    yield RayBlock(reference, part.start_offset, part.end_offset), rows
    finally:
        options.preserve_order = before
