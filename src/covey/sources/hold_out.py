"""Dividing a source in two: a share of its examples, or some of its classes, is held out.

A hash decides, that of an example's key or of its class's name, so that the same example falls on
the same side in every run, on every machine, and whatever else the source holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError
from covey.shuffle.keys import Key, hash_keys
from covey.sources.hold_out_parts import HeldOutPart, part_of
from covey.sources.hold_out_schema import SchemaInference
from covey.sources.hold_out_survey import KeyAndLabel, Peekable, Survey
from covey.sources.source import Source

__all__ = ["HeldOutPart", "Peekable", "hold_out"]

# Far from the seeds that people give, so that a place in the shuffled order tells nothing.
_SALT = int.from_bytes(b"held out", "little")


def hold_out(
    source: Source,
    *,
    fraction: float | None = None,
    classes: int | None = None,
    class_fraction: float | None = None,
    key: str | None = None,
    label: str | None = None,
    seed: int = 0,
    infer: bool = True,
    defaults: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[HeldOutPart, HeldOutPart]:
    """Divide a source into what stays and what is held out.

    The source is gone through once. Items that cannot be read stay.

    Args:
        source: What to divide.
        fraction: Hold out about this share of the examples: those whose key's hash is below it. So
            those that are held out for 0.1 are also held out for 0.2. Or
        classes: hold out so many classes, those with the lowest hashes; or
        class_fraction: about this share of them. Unlabelled examples (class -1) stay.
        key: The feature that is an example's key; by default the key it came with, or its number.
        label: The feature that tells the class; that of the source by default.
        seed: Another one divides otherwise.
        infer: Find the features of a source that does not know them, from all of it, so that both
            parts have the same.
        defaults: What examples get then that lack a feature.
        on_error: ``"skip"`` leaves bad items for a caller that writes the examples that stay.
        progress: Is told of so many examples more (and of 0 bytes).

    Returns:
        What stays, and what is held out. Neither is empty.

    >>> glyphs = Source("list", "glyphs", [(n, {"label": "abc"[n % 3]}) for n in range(30)])
    >>> stays, held_out = hold_out(glyphs, classes=1, label="label")
    >>> sorted({example["label"] for _, example in stays.examples})
    ['a', 'c']
    >>> len(held_out.examples), held_out.features["label"].names
    (10, ('a', 'b', 'c'))
    """
    wanted = {"fraction": fraction, "classes": classes, "class_fraction": class_fraction}
    given = [name for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        raise DatasetError(f"give one of fraction, classes and class_fraction, not {given}")
    for name in ("fraction", "class_fraction"):
        share = wanted[name]
        if share is not None and not 0 < share < 1:
            raise DatasetError(f"{name} is {share}; must be between 0 and 1")
    label = source.label if label is None else label
    if fraction is None and label is None:
        raise DatasetError("nothing tells the class of an example; pass label=", path=source.path)
    survey = Survey(source, key, label, on_error, progress)
    if infer and source.features is None and source.columns is None:
        survey.learning = SchemaInference(defaults or {}, on_error)
    outlines = survey.outlines()
    if fraction is not None:
        held_out = _below(outlines, fraction, seed)
        what = f"the fraction {fraction}"
    else:
        held_out = _of_classes(outlines, classes, class_fraction, seed, source.path)
        what = "these classes"
    total, out = len(held_out), int(held_out.sum())
    if out in (0, total):
        side = "nothing is held out" if out == 0 else "nothing stays"
        raise DatasetError(f"with {what}, {side} of {total:,} examples", path=source.path)
    source = replace(source, features=survey.features(), label=label)
    return part_of(source, ~held_out), part_of(source, held_out)


def _hashes(keys: Sequence[Key], seed: int) -> NDArray[np.uint64]:
    return hash_keys(keys, _SALT + seed)[0]


def _threshold(fraction: float) -> np.uint64:
    return np.uint64(int(fraction * 2.0**64))


def _below(outlines: Iterable[list[KeyAndLabel]], fraction: float, seed: int) -> NDArray[np.bool_]:
    """The examples whose key's hash is below a fraction of what it may be."""
    parts = [np.zeros(0, bool)]
    for some in outlines:
        is_sound = [each is not None for each in some]
        low = _hashes([each[0] for each in some if each is not None], seed) < _threshold(fraction)
        part = np.zeros(len(some), bool)
        part[is_sound] = low
        parts.append(part)
    return np.concatenate(parts)


def _of_classes(
    outlines: Iterable[list[KeyAndLabel]],
    count: int | None,
    fraction: float | None,
    seed: int,
    path: str,
) -> NDArray[np.bool_]:
    """The examples of the classes whose hashes are lowest."""
    numbers: dict[Any, int] = {}
    of_items = array("q")
    for some in outlines:
        for each in some:
            if each is None or each[1] is None:
                of_items.append(-1)
            else:
                of_items.append(numbers.setdefault(each[1], len(numbers)))
    hashes = _hashes(list(numbers), seed)
    # One more at the end for the items without a class, which -1 leads to.
    low = np.zeros(len(numbers) + 1, bool)
    if count is not None:
        low[np.argsort(hashes, kind="stable")[: max(0, count)]] = True
    elif fraction is not None:
        low[:-1] = hashes < _threshold(fraction)
    asked = f"{count:,}" if fraction is None else f"{fraction:.4g}"
    out = int(low.sum())
    if not 0 < out < len(numbers):
        raise DatasetError(
            f"{asked} of {len(numbers):,} classes cannot be held out: there must be some "
            f"on both sides, and that would be {out:,} and {len(numbers) - out:,}",
            path=path,
        )
    return low[np.frombuffer(of_items, np.int64)]
