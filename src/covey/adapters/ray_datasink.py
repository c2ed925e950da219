"""Datasink of Ray Data: write a Ray Dataset as splits of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from ray.data import Datasink as RayDatasink

from covey._progress import Progress
from covey.engines import Ray
from covey.engines.pools import Here
from covey.engines.ray_blocks import LoadedBlock
from covey.errors import DatasetError
from covey.labels import AUTO
from covey.results import WriteResult
from covey.schema import Features
from covey.urls import AnyPath, parse_path
from covey.writing.distributed import DistributedWrite
from covey.writing.distributed_records import records_of
from covey.writing.inputs import SOURCE_BITS, Input
from covey.writing.map_stage import MapContext, MapResult, map_piece
from covey.writing.options import WriteOptions
from covey.writing.pieces import Piece
from covey.writing.split_writer import SplitWriter, stage_split
from covey.writing.write_steps import resolve_schema, write_ordered


class Datasink(RayDatasink[list[tuple[Piece, MapResult]]]):
    """Datasink that writes the rows of a Ray Dataset as one split, in one commit.

    ``covey.write(dataset, path)`` does the same. This class is for pipelines that end with
    ``dataset.write_datasink(covey.adapters.ray.Datasink(path, key="id"))``: blocks are encoded when
    they are produced, and are not kept. If a node is lost after that, the write fails, and the
    dataset is not changed.

    Args:
        path: Directory that all nodes share, or URL of the dataset.
        key: Feature that is the key of an example, which determines its position in the shuffled
            order. By default, it is the number of the task of Ray and the position in it: the order
            is then that of another write only if Ray divides the data in the same way.
        split: Name of the split.
        label: Label feature, as for :func:`covey.write`.
        features: Features of the examples, as for :func:`covey.write`.
        engine: Options of the tasks that write shards.
        progress: Whether to show a progress bar.
        storage_options: Options of fsspec for a URL.
        options: Further options of :func:`covey.write`: ``defaults``, ``name``, ``description``,
            ``sort_by_class``, ``seed``, ``shards``, ``records_per_shard``, ``shard_bytes``,
            ``compression``, ``compression_level``, ``mode``, ``memory_limit``, ``on_error``,
            ``hold_out``.

    Raises:
        DatasetError: If an option has an invalid value.
    """

    result: WriteResult | None = None
    """Summary of the write, after it is complete."""

    def __init__(
        self,
        path: AnyPath,
        *,
        key: str | None = None,
        split: str = "train",
        label: str | None = AUTO,
        features: Features | Mapping[str, Any] | None = None,
        engine: Ray | None = None,
        progress: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        omitted = ("shuffle", "names", "workers", "split_by")
        name = next((each for each in omitted if each in options), None)
        if name is not None:
            raise DatasetError(option=name, found=options[name], allowed="omitted for a Datasink")
        self._path = parse_path(path)
        self._options = WriteOptions(
            split=split,
            label=label,
            key=key,
            features=None if features is None else Features(features),
            **options,
        )
        self._engine = Ray() if engine is None else engine
        self._progress = progress
        self._storage_options = storage_options
        self._context: MapContext | None = None
        self._state: tuple[ExitStack, SplitWriter, DistributedWrite, Progress] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for write tasks, which have no access to the dataset."""
        return {**self.__dict__, "_state": None}

    def on_write_start(self, schema: Any = None) -> None:
        options, joined = self._options, Input()
        with ExitStack() as stack:
            progress = stack.enter_context(
                Progress(self._progress, None, "reading", subject=options.split)
            )
            writer = stack.enter_context(stage_split(self._path, options, self._storage_options))
            known = resolve_schema(options, joined, writer.targets, writer.known_schema())
            scratch = stack.enter_context(writer.scratch(self._engine))
            pool = stack.enter_context(self._engine.start())
            work = DistributedWrite(
                pool,
                options,
                known,
                [joined],
                joined,
                writer.staging.path,
                progress,
                scratch=scratch,
            )
            self._context = work.context()
            self._state = stack.pop_all(), writer, work, progress

    def write(self, blocks: Iterable[Any], ctx: Any) -> list[tuple[Piece, MapResult]]:
        """Encode blocks in a task of Ray."""
        assert self._context is not None
        results = []
        for number, block in enumerate(blocks):
            index = ctx.task_idx << 16 | number
            piece = Piece(
                index,
                0,
                index << SOURCE_BITS - 16,
                None,
                payload=LoadedBlock(block),
                key_prefix=f"{ctx.task_idx}:{number}",
            )
            result = map_piece(Here(self._context), piece)
            results.append((Piece(index, 0, piece.first, None, result.examples), result))
        return results

    def on_write_complete(self, write_result: Any) -> None:
        assert self._state is not None
        (stack, writer, work, progress), self._state = self._state, None
        with stack:
            for results in write_result.write_returns:
                for piece, result in results:
                    work.add_result(piece, result)
            ordered = records_of(work, work.finish())
            self.result = write_ordered(
                writer, ordered, self._options, [Input()], work.skipped, progress
            )

    def on_write_failed(self, error: Exception) -> None:
        if self._state is not None:
            (stack, *_), self._state = self._state, None
            stack.__exit__(type(error), error, error.__traceback__)

    def get_name(self) -> str:
        return "covey"
