"""Examples to records, each when it comes, in features that are declared or found on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import CoveyError, FeatureError
from covey.features import Features
from covey.features.blocks import ExampleBlock
from covey.features.inference import Inference
from covey.features.ranges import integer_range, join_ranges
from covey.records import Block
from covey.records.block import join_blocks
from covey.shuffle.ordering import Key
from covey.writing.items import LeftOut, Rules, has_value, source_failed, take_item

# A chunk has about this many bytes of records, and no more examples than that.
_CHUNK_BYTES = 1 << 20
_CHUNK_EXAMPLES = 4096

Integers = Callable[[str], tuple[int, int]]
"""Tells the smallest and the largest integer of a feature in the chunks that were handed out."""


@dataclass(slots=True)
class Chunk:
    """Some examples, encoded."""

    block: Block
    features: Features
    """What they were encoded with."""
    positions: NDArray[np.uint64]
    """The numbers of the examples in the source."""
    keys: Sequence[Key] | None
    left_out: list[LeftOut]


class ChunkEncoder:
    """Encodes examples one by one, and hands out chunks of them.

    An example is encoded before the next is asked for, so that a source may use its arrays again.

    While features are inferred, the features are those that fit all examples so far. An example
    that has exactly their types is encoded at once; only another is looked at more closely.

    Args:
        rules: What to do.
        known: If features are inferred: what the examples before these were.
        integers: Asked if a type depends on integers that were not looked at.
    """

    def __init__(
        self, rules: Rules, known: Inference | None = None, integers: Integers | None = None
    ) -> None:
        self.known = Inference(rules.defaults) if known is None else known
        self.found = Inference(rules.defaults)
        """What was looked at, for one who knows of other examples too."""
        self._rules = rules
        self._integers = integers
        self._features = rules.features or Features({})
        if rules.infers and not self.known.is_empty:
            self._features = Features(self.known.kinds())
        self._block: ExampleBlock = self._features.begin_block()
        self._first = 0  # the number of the chunk's first example,
        self._number = 0  # and of the next that comes
        self._gone: list[int] = []  # numbers in the chunk that were left out
        self._keys: list[Key] = []
        self._left_out: list[LeftOut] = []
        self._early: list[Block] = []  # blocks of the chunk that were taken out of turn
        self._exact = 0  # examples of the chunk that were not looked at
        self.passed = 0
        """And of all chunks."""

    @property
    def features(self) -> Features:
        """What fits all examples so far."""
        return self._features

    def chunks(self, items: Iterable[Any], first: int = 0) -> Iterator[Chunk]:
        """Encode items, the first of which has this number."""
        self._first = self._number = first
        source = iter(items)
        state = ""
        while state != "end":
            state, item = self._take(source)
            if state == "item":
                yield from self._look_at(item)
            if self._is_full():
                yield self._end()
        if self._number > self._first:
            yield self._end()

    def _take(self, source: Iterator[Any]) -> tuple[str, Any]:
        """Encode what fits at once, up to an item that has to be looked at, or a full chunk.

        Returns:
            ``"end"``, ``"full"``, or ``"item"`` and that item.
        """
        rules, features = self._rules, self._features
        is_direct = (
            rules.key is None
            and rules.names is None
            and not features.optional
            and (features.is_simple or not rules.infers)
        )
        before = len(self._block)
        try:
            if not is_direct:
                for item in source:
                    return "item", item
                return "end", None
            return self._block.extend(
                source,
                self._keys,
                exact=rules.infers,
                bytes=_CHUNK_BYTES,
                count=_CHUNK_EXAMPLES - (self._number - self._first),
            )
        except CoveyError:
            raise
        except Exception as error:
            raise source_failed(self._number + len(self._block) - before, error) from error
        finally:
            self._number += len(self._block) - before
            self._exact += len(self._block) - before

    def _look_at(self, item: Any) -> Iterator[Chunk]:
        """Encode an item that may need other features, or be no example at all."""
        key: Key | None = None
        number = self._number
        try:
            example, key = take_item(item, self._rules)
            if self._try(example):
                self._exact += 1
            else:
                features = self._adapt(example, number)
                if features is not self._features:
                    if number > self._first:
                        yield self._end()
                    self._use(features)
                self._block.append(self._fill_in(example))
        except CoveyError as error:
            self._leave_out(error, number, key)
        else:
            if key is not None:
                self._keys.append(key)
        self._number += 1

    def _is_full(self) -> bool:
        return self._block.bytes >= _CHUNK_BYTES or self._number - self._first >= _CHUNK_EXAMPLES

    def _try(self, example: Mapping[str, Any]) -> bool:
        """Encode an example as it is, if it fits."""
        features = self._features
        try:
            if not self._rules.infers:
                self._block.append(features.fill_in(example))
            elif features.is_simple:
                self._block.append_exact(features.fill_in(example))
            else:
                return False
        except FeatureError:
            return False
        return True

    def _fill_in(self, example: Mapping[str, Any]) -> Mapping[str, Any]:
        """An example with what it lacks, so that every reader finds it in the record."""
        features = self._features
        if self._rules.infers and self._rules.defaults:
            # What is None, and was never anything else, has no feature yet.
            example = {
                name: value
                for name, value in example.items()
                if value is not None or name in features
            }
        return features.fill_in(example)

    def _adapt(self, example: Mapping[str, Any], number: int) -> Features:
        """The features that an example needs which the present ones do not fit at once."""
        if self._rules.infers:
            label = self._rules.label
            skips = self._rules.on_error == "skip"
            if skips and label is not None and not has_value(example, label):
                # Else the first example without it would decide that there is none.
                raise FeatureError(f"feature {label!r}: it is missing, and tells the class")
            self.known.check_names(example)
            alone = Inference(self._rules.defaults)
            alone.add(example, number)
            changed = self.known.merge(alone, self._range)
            self.found.merge(alone, self._range)
            return Features(self.known.kinds()) if changed else self._features
        choices = [each for each in (self._rules.features, self._rules.otherwise) if each]
        for features in choices:
            if features is not self._features:
                try:
                    features.encode(features.fill_in(example))
                except FeatureError:
                    continue
                return features
        return self._features  # which will say what is wrong

    def _range(self, name: str) -> tuple[int, int]:
        """The integers of a feature in all examples so far, also those of this chunk."""
        self._early.append(self._block.take())
        return join_ranges(
            (0, 0) if self._integers is None else self._integers(name),
            *(integer_range(self._features, block, name) for block in self._early),
        )

    def _use(self, features: Features) -> None:
        self._features = features
        self._block = features.begin_block()

    def _leave_out(self, error: CoveyError, number: int, key: Key | None) -> None:
        reason = str(error).removeprefix(f"example {number}: ")
        if self._rules.on_error == "raise":
            if not isinstance(error, FeatureError):
                raise error
            named = "" if key is None else f" (key {key!r})"
            raise FeatureError(f"example {number}{named}: {reason}") from None
        self._gone.append(number)
        self._left_out.append(LeftOut(number, reason))

    def _end(self) -> Chunk:
        """Hand out the examples of the chunk."""
        number = self._number
        positions = np.arange(self._first, number, dtype=np.uint64)
        if self._gone:
            positions = np.delete(positions, np.array(self._gone) - self._first)
        keys = self._keys or None
        if keys is not None and len(keys) != len(positions):
            raise FeatureError(
                f"some examples from {self._first} to {number - 1} have keys and some have none"
            )
        self.known.pass_over(self._exact)
        self.passed += self._exact
        block = join_blocks([*self._early, self._block.take()])
        chunk = Chunk(block, self._features, positions, keys, self._left_out)
        self._first, self._exact = number, 0
        self._early, self._gone, self._keys, self._left_out = [], [], [], []
        return chunk
