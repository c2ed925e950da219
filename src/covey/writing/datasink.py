"""Datasink of Ray Data: write a Ray Dataset as splits of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ray.data import Datasink as RayDatasink
from ray.data.block import BlockAccessor

from covey.engines import EngineArgument, Ray, find_engine
from covey.engines.pools import Here
from covey.errors import CoveyError, DatasetError
from covey.labels import AUTO
from covey.results import WriteResult
from covey.schema import Features
from covey.urls import AnyPath, parse_path
from covey.writing.inputs import SOURCE_BITS, Input
from covey.writing.job import WriteJob
from covey.writing.options import WriteOptions, parse_types
from covey.writing.pieces import Piece
from covey.writing.split_writer import SplitWriter
from covey.writing.stages import MapContext, MapResult, map_piece
from covey.writing.write_steps import start_job, write_ordered


class Datasink(RayDatasink[list[tuple[Piece, MapResult]]]):
    """Datasink that writes the rows of a Ray Dataset as one split, in one commit.

    ``covey.write(dataset, path)`` uses it. The tasks of Ray Data encode blocks when they are
    produced; blocks are not kept.

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
        _refuse({name: options[name] for name in omitted if name in options})
        self._path = parse_path(path)
        types = parse_types(options.pop("types", None) or {})
        self._options = WriteOptions(
            types=types,
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
        self._state: tuple[ExitStack, SplitWriter, WriteJob] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for write tasks, which have no access to the dataset."""
        return {**self.__dict__, "_state": None}

    def on_write_start(self, schema: Any = None) -> None:
        options, joined = self._options, Input()
        with ExitStack() as stack:
            writer, job = stack.enter_context(
                start_job(
                    self._path,
                    options,
                    joined,
                    [joined],
                    self._engine,
                    self._storage_options,
                    self._progress,
                )
            )
            self._context = job.context()
            self._state = stack.pop_all(), writer, job

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
                payload=_columns(block),
                key_prefix=f"{ctx.task_idx}:{number}",
            )
            result = map_piece(Here(self._context), piece)
            results.append((Piece(index, 0, piece.first, None, result.examples), result))
        return results

    def on_write_complete(self, write_result: Any) -> None:
        assert self._state is not None
        (stack, writer, job), self._state = self._state, None
        with stack:
            found = [each for results in write_result.write_returns for each in results]
            for number, (piece, result) in enumerate(sorted(found, key=lambda each: each[0].index)):
                job.add_result(replace(piece, index=number), result)
            self.result = write_ordered(writer, job, job.finish(), [Input()])

    def on_write_failed(self, error: Exception) -> None:
        if self._state is not None:
            (stack, *_), self._state = self._state, None
            stack.__exit__(type(error), error, error.__traceback__)

    def get_name(self) -> str:
        return "covey"


def write_dataset(
    dataset: Any,
    path: str,
    engine: EngineArgument,
    *,
    omitted: Mapping[str, Any],
    features: Features | Mapping[str, Any] | None,
    defaults: Mapping[str, Any] | None,
    **options: Any,
) -> WriteResult:
    """Write a Ray Dataset by a :class:`Datasink`.

    Args:
        dataset: The Ray Dataset.
        path: Directory or URL of the dataset.
        engine: Options of the tasks that write shards.
        omitted: Further options of :func:`covey.write`, which must be None.
        features: Features of the examples, as for :func:`covey.write`.
        defaults: Values of missing features.
        options: Options of the sink.
    """
    _refuse({name: value for name, value in omitted.items() if value is not None})
    chosen = Ray() if engine is None else find_engine(engine)
    if not isinstance(chosen, Ray):
        raise DatasetError(option="engine", found=engine, allowed="'ray' for a Ray Dataset")
    filled = dict(defaults or {})
    declared = None if features is None else Features(features).with_defaults(filled)
    sink = Datasink(path, engine=chosen, features=declared, defaults=filled, **options)
    try:
        dataset.write_datasink(sink)
    except Exception as error:
        found: BaseException | None = error
        while found is not None and type(found).__module__ != CoveyError.__module__:
            found = getattr(found, "cause", None) or found.__cause__
        if not isinstance(found, CoveyError):
            raise
        raise found from None
    assert sink.result is not None
    return sink.result


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise DatasetError if an option is given that a Ray Dataset does not support."""
    for name, value in options.items():
        remedy = "pass key=, which determines the order" if name == "shuffle" else ""
        raise DatasetError(
            option=name, found=value, allowed="omitted for a Ray Dataset", remedy=remedy
        )


def _columns(block: Any) -> dict[str, Any]:
    """Return the columns of a block: Arrow arrays or pandas series, and arrays of tensors."""
    is_pandas = hasattr(block, "iloc")
    names = list(map(str, block.columns)) if is_pandas else block.schema.names
    if len({*names}) != len(names):
        raise DatasetError("two columns of the table have the same name", option="examples")
    if is_pandas:
        return {str(name): block[name] for name in block.columns}
    columns: dict[str, Any] = {}
    for name in names:
        column = block.column(name)
        if hasattr(column.type, "storage_type"):  # a tensor
            column = BlockAccessor.for_block(block).to_numpy(name)
        columns[name] = column
    return columns
