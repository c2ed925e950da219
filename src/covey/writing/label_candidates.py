"""Features that can be the label, for the error of data without one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from covey.errors import DatasetError
from covey.labels import can_be_label, find_label_name
from covey.schema import Features
from covey.schema.codec import flat_items
from covey.tfrecord import Block

MAX_COUNTED = 10_000
"""Number of examples whose values are counted before data without a label is refused."""
_MAX_CANDIDATES = 8


class LabelCandidates:
    """Features that can be the label, with the number of their distinct values.

    They are counted in the first :data:`MAX_COUNTED` examples, for the error of data for which
    :func:`covey.labels.guess_label` finds no label.
    """

    def __init__(self) -> None:
        self.examples = 0
        self._values: dict[str, set[bytes]] = {}

    def add_columns(self, features: Features, columns: Mapping[str, Any]) -> None:
        """Count the values of the next examples."""
        names = [name for name, each in features.items() if can_be_label(each) and name in columns]
        rows = 0
        for name in names:
            column = columns[name][: MAX_COUNTED - self.examples]
            rows = len(column)
            values = column.tolist() if isinstance(column, np.ndarray) else column
            self._values.setdefault(name, set()).update(map(_hash, map(str, values)))
        self.examples += rows

    def add(self, features: Features, block: Block) -> None:
        """Count the values of the next records."""
        names = [name for name, feature in features.items() if can_be_label(feature)]
        columns = flat_items(features.decode_batch(block, names)) if names else ()
        self.add_columns(features, {"/".join(path): column for path, column in columns})

    def merge(self, other: LabelCandidates) -> None:
        """Add the counts of the examples that follow."""
        if self.examples < MAX_COUNTED:
            for name, values in other._values.items():
                self._values.setdefault(name, set()).update(values)
            self.examples += other.examples

    def error(self, features: Features) -> DatasetError:
        """Return the error of examples without a label.

        Args:
            features: Features of the examples.
        """
        named = find_label_name(features)
        is_named = named is not None and not can_be_label(features[named])
        unfit = f"; feature {named!r} is {features[named].summary}" if named and is_named else ""
        counts = {name: len(values) for name, values in self._values.items()}
        if not counts:  # parts have no counts
            counts = {name: 0 for name, feature in features.items() if can_be_label(feature)}
        listed = [
            f"{name!r}" + f" ({count:,} distinct value{'s' * (count != 1)})" * (count > 0)
            for name, count in sorted(counts.items(), key=lambda each: each[1])
        ]
        if not listed:
            reason = f"not given, and no feature is a ClassLabel, an integer or a string{unfit}"
            return DatasetError(
                reason, option="label", remedy="pass label=None if the data is unlabelled"
            )
        is_part = self.examples >= MAX_COUNTED
        where = f" in the first {self.examples:,} examples" if is_part else ""
        more = len(listed) - _MAX_CANDIDATES
        names = ", ".join(listed[:_MAX_CANDIDATES]) + (f" and {more} more" if more > 0 else "")
        return DatasetError(
            f"not given{unfit and unfit + ', not a class'}; candidates{where}: {names}",
            option="label",
            remedy="pass label= with one of these names, or label=None if the data is unlabelled",
        )


def _hash(value: str) -> bytes:
    """Return a hash that is the same in every process; strings may be long."""
    return hashlib.blake2b(value.encode(errors="surrogatepass"), digest_size=8).digest()
