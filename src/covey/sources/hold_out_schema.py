"""Finding the features of a source that does not know them, from all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from covey.errors import FeatureError
from covey.schema import Features
from covey.schema.infer import Inference
from covey.schema.survey import integer_range, join_ranges
from covey.tfrecord import Block


class SchemaInference:
    """Finds the features that fit all examples; those that are like the ones before cost little."""

    def __init__(self, defaults: Mapping[str, Any], on_error: str) -> None:
        self._defaults = defaults
        self._skips = on_error == "skip"
        self._inference = Inference(defaults)
        self._fitting: Features | None = None
        self._waiting: list[tuple[Mapping[str, Any], int]] = []
        self._ranges: dict[str, tuple[int, int]] = {}

    def add(self, example: Mapping[str, Any], number: int) -> None:
        """Take one more."""
        self._waiting.append((example, number))

    def finish_some(self) -> None:
        """Look at the examples that were added since the last time."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        known = self._fitting
        block = None if known is None else _encode_exact(known, waiting)
        if known is not None and block is not None:
            self._inference.pass_over(len(block))
            self._note_ranges(known, block)
            return
        try:
            self._take_in(waiting)
        except FeatureError:
            if not self._skips:
                raise
            for each in waiting:  # a caller that writes leaves out those that do not fit the others
                with suppress(FeatureError):
                    self._take_in([each])
        with suppress(FeatureError):  # some examples lack a feature: said in the end
            self._fitting = Features(self._inference.kinds())

    def _take_in(self, examples: Sequence[tuple[Mapping[str, Any], int]]) -> None:
        found = Inference(self._defaults)
        for example, number in examples:
            found.add(example, number)
        together = deepcopy(self._inference)
        together.merge(found, lambda name: self._ranges.get(name, (0, 0)))
        self._inference = together

    def _note_ranges(self, features: Features, block: Block) -> None:
        """Remember how large integers were, for whether floats hold them depends on it."""
        for name in features:
            known = self._ranges.get(name, (0, 0))
            self._ranges[name] = join_ranges(known, integer_range(features, block, name))

    def features(self) -> Features:
        """What fits all of them."""
        return Features(self._inference.finish())


def _encode_exact(
    features: Features, examples: Sequence[tuple[Mapping[str, Any], int]]
) -> Block | None:
    """The records of examples, unless any value would have to be converted, or does not fit."""
    block = features.begin_block()
    try:
        for example, _ in examples if features.is_simple else ():
            block.append_exact(example)
    except FeatureError:
        return None
    return block.take() if features.is_simple else None
