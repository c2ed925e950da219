"""Encode examples into records, with features that are declared or inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey.errors import CoveyError, FeatureError
from covey.labels import find_label
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import ExampleBlock, Rounding
from covey.schema.infer import Inference
from covey.shuffle.keys import Key
from covey.tfrecord import Block
from covey.writing.inputs import get_value, source_failed, split_item
from covey.writing.options import MAX_CHUNK_EXAMPLES, WriteOptions, WriteSchema


@dataclass(slots=True)
class Chunk:
    """Consecutive examples, encoded."""

    block: Block
    features: Features
    """Features of the records."""
    positions: NDArray[np.uint64]
    """Positions of the examples in the source."""
    keys: Sequence[Key] | None
    skipped: list[SkippedRecord]
    rounding: Rounding = field(default_factory=dict)
    """Numbers in lists of Python floats that were rounded, if the features are inferred."""


class ChunkSink(Protocol):
    """Receiver of encoded chunks."""

    def add(self, chunk: Chunk) -> None:
        """Store the next chunk."""
        ...


class ItemEncoder:
    """Encodes examples one by one, and adds them to a sink in chunks.

    An example is encoded before the next one is requested: a source may reuse its arrays.

    While features are inferred, they fit all examples so far. An example whose types match them
    exactly is encoded at once; only others are inspected and may widen them.

    Args:
        options: Options of the write.
        schema: Features and label.
        sink: Receiver of the chunks.
    """

    def __init__(
        self,
        options: WriteOptions,
        schema: WriteSchema,
        sink: ChunkSink,
    ) -> None:
        self._options = options
        self.schema = schema
        self._sink = sink
        self._infers = schema.features is None
        self._observes = options.features is None
        self._inference = Inference(options.defaults, options.types)
        self._features = schema.features or Features({})
        self._is_exact = self._features.is_exact
        self._block: ExampleBlock = self._features.begin_block(observes=self._observes)
        self._first = 0  # position of the first example of the chunk
        self._next = 0  # position of the next example
        self._keys: list[Key] = []
        self._skipped: list[SkippedRecord] = []

    @property
    def position(self) -> int:
        """Position of the next example in the source."""
        return self._next

    @property
    def inference(self) -> Inference | None:
        """The features that were inferred so far; None if they are declared."""
        return self._inference if self._infers else None

    def begin_with(self, inference: Inference) -> None:
        """Infer features that fit the examples of another inference as well."""
        if self._infers and inference.found:
            self._inference = inference
            self._use(Features(inference.kinds()))

    def encode(self, items: Iterable[Any], first: int = 0) -> None:
        """Encode items.

        Args:
            items: Items of the source, or errors in place of items.
            first: Position of the first item in the source.
        """
        self._first = self._next = first
        source = iter(items)
        size = self._options.chunk_bytes
        state = ""
        while state != "end":
            state, item = self._extend(source)
            if state == "item":
                self._append(item)
            if self._block.bytes >= size or self._next - self._first >= MAX_CHUNK_EXAMPLES:
                self._flush()
        if self._next > self._first:
            self._flush()

    def _extend(self, source: Iterator[Any]) -> tuple[str, Any]:
        """Encode items natively, up to one that must be inspected, or a full chunk.

        Returns:
            ``"end"``, ``"full"``, or ``"item"`` and that item.
        """
        options, features = self._options, self._features
        is_native = (
            options.key is None
            and options.names is None
            and not features.optional
            and (self._is_exact or not self._infers)
        )
        before = len(self._block)
        try:
            if not is_native:
                for item in source:
                    return "item", item
                return "end", None
            return self._block.extend(
                source,
                self._keys,
                exact=self._infers,
                bytes=options.chunk_bytes,
                count=MAX_CHUNK_EXAMPLES - (self._next - self._first),
            )
        except CoveyError:
            raise
        except Exception as error:
            raise source_failed(self._next + len(self._block) - before, error) from error
        finally:
            self._next += len(self._block) - before

    def _append(self, item: Any) -> None:
        """Encode or skip one item."""
        key: Key | None = None
        try:
            example, key = split_item(item, self._options)
            if not self._append_without_widening(example):
                self._use(self._fit(example))
                self._block.append(self._fill_in(example))
        except CoveyError as error:
            self._skip(error, key)
        else:
            if key is not None:
                self._keys.append(key)
        self._next += 1

    def _append_without_widening(self, example: Mapping[str, Any]) -> bool:
        """Encode an example without widening the features; return whether it fits."""
        features = self._features
        try:
            if not self._infers:
                self._block.append(features.fill_in(example))
            elif self._is_exact:
                self._block.append_exact(features.fill_in(example))
            else:
                return False
        except FeatureError:
            return False
        return True

    def _fill_in(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an example with the defaults of the features that it lacks."""
        features = self._features
        if self._infers and self._options.defaults:
            # A feature that has been None in all examples does not exist yet.
            example = {
                name: value
                for name, value in example.items()
                if value is not None or name in features
            }
        return features.fill_in(example)

    def _fit(self, example: Mapping[str, Any]) -> Features:
        """Return features that fit an example, and all before it."""
        if self._infers:
            return self._widen(example)
        for features in (self.schema.features, self.schema.fallback):
            if features is not None and features is not self._features:
                try:
                    features.encode(features.fill_in(example))
                except FeatureError:
                    continue
                return features
        return self._features  # encoding the example raises the error

    def _widen(self, example: Mapping[str, Any]) -> Features:
        label, inference = self.schema.label, self._inference
        skips = self._options.on_error == "skip" and label not in self._options.defaults
        if skips and label is not None and get_value(example, label) is None:
            # A first example without a label must not define features without one.
            raise FeatureError("the label is missing", feature=label)
        inference.check_names(example)
        alone = Inference(self._options.defaults, self._options.types)
        alone.add(example, self._next)
        inference.add_integers(self._block.integer_ranges)
        changed = inference.merge(alone)
        features = Features(inference.kinds()) if changed else self._features
        if label is not None and label not in (*features, *self._options.defaults):
            find_label(features, label)  # raises now, not after the last example
        return features

    def _use(self, features: Features) -> None:
        """Encode the next examples with other features, in another chunk."""
        if features is not self._features:
            if self._next > self._first:
                self._flush()
            self._features = features
            self._is_exact = features.is_exact and self._inference.is_exact
            self._block = features.begin_block(observes=self._observes)

    def _skip(self, error: CoveyError, key: Key | None) -> None:
        if self._options.on_error == "skip":
            error.example = None
            self._skipped.append(SkippedRecord(self._next, str(error)))
            return
        if isinstance(error, FeatureError):
            error.example = self._next
            if key is not None:
                error.reason += f" (key {key!r})"
        raise error

    def _flush(self) -> None:
        """Add the examples of the chunk to the sink."""
        positions = np.arange(self._first, self._next, dtype=np.uint64)
        if self._skipped:
            skipped = np.array([each.record for each in self._skipped])
            positions = np.delete(positions, skipped - self._first)
        keys = self._keys or None
        if keys is not None and len(keys) != len(positions):
            raise FeatureError(
                f"some of the examples {self._first} to {self._next - 1} have keys, others do not"
            )
        self._inference.add_integers(self._block.integer_ranges)
        rounding = self._block.rounding
        block = self._block.take()
        chunk = Chunk(block, self._features, positions, keys, self._skipped, rounding)
        self._first = self._next
        self._keys, self._skipped = [], []
        self._sink.add(chunk)
