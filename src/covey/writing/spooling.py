"""Encoded chunks into a spool, in the features that fit all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from covey.errors import FeatureError
from covey.features import Features
from covey.features.ranges import integer_range, join_ranges
from covey.labels import Classes, extend, find_label, is_text, make_label, texts_in, texts_of
from covey.pipeline import Behind
from covey.records import Block
from covey.shuffle.ordering import Ordering, make_rows
from covey.shuffle.spool import Spool
from covey.writing.encoding import Chunk
from covey.writing.inmemory import fill_columns, flatten
from covey.writing.items import LeftOut
from covey.writing.workers import Encoding


class Spooling:
    """Takes in chunks, and gives all records in the end, in the features that fit them all.

    While features are inferred, a later chunk may need others than an earlier one did. Each kind of
    record has a spool of its own; what is not as it should be at the end is decoded and encoded
    again.

    Args:
        folder: Where spools put records aside.
        memory: How much they may hold.
        ordering: What records are sorted by.
        seed: Of the hashes.
        label: The feature that tells the class, if one was asked for.
        may_number: Whether a label that is a text is to become a ClassLabel.
        known_texts: The texts that have numbers already.
    """

    def __init__(
        self,
        folder: Path,
        *,
        memory: int,
        ordering: Ordering,
        seed: int,
        label: str | None,
        may_number: bool,
        known_texts: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._ordering = ordering
        self._seed = seed
        self._label = label
        self._may_number = may_number
        self._known_texts = known_texts
        self._spools: list[tuple[Features, Spool]] = []
        self._has_keys: bool | None = None
        self._texts: set[str] = set()
        self.left_out: list[LeftOut] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken in."""
        return not self._spools

    def run(self, encoding: Encoding, progress: Callable[[int, int], None]) -> None:
        """Take in all that there is."""
        # Records are put into their spool by another thread, while this one encodes the next.
        with Behind() as behind:

            def integers(name: str) -> tuple[int, int]:
                behind.wait()
                return self._integers(name)

            for chunk in encoding.chunks(integers):
                self.left_out.extend(chunk.left_out)
                if len(chunk.block):
                    behind.do(self._add, chunk)
                    progress(len(chunk.block), chunk.block.data.nbytes)
            behind.wait()

    def _add(self, chunk: Chunk) -> None:
        block, features = chunk.block, chunk.features
        if self._has_keys is None:
            self._has_keys = chunk.keys is not None
        if self._has_keys != (chunk.keys is not None):
            first = int(chunk.positions[0])
            raise FeatureError(f"example {first}: some examples have keys and some have none")
        rows = make_rows(chunk.positions, block.lengths, chunk.keys, self._seed)
        label = self._label
        if label is not None and label in features and is_text(features[label]):
            self._texts.update(texts_in(features, label, block, chunk.positions.tolist()))
        self._spool_for(features).add(block, rows, chunk.keys)

    def _spool_for(self, features: Features) -> Spool:
        for known, spool in self._spools:
            if known == features:
                return spool
        for _, spool in self._spools:
            spool.put_aside()  # so that all spools together hold no more than one may
        # Its order does not matter if it is not the last; and if it is, it is the right one.
        ordering = Ordering(by=self._ordering.by) if self._ordering.by_class else self._ordering
        spool = Spool(
            self._folder,
            memory=self._memory,
            ordering=ordering,
            unique=bool(self._has_keys),
            prefix=f"{len(self._spools)}-",
        )
        self._spools.append((features, spool))
        return spool

    def _integers(self, name: str) -> tuple[int, int]:
        """The smallest and the largest integer of a feature in all records so far."""
        return join_ranges(
            (0, 0),
            *(
                integer_range(features, block, name)
                for features, spool in self._spools
                for block, _ in spool.look()
            ),
        )

    def finish(self, features: Features) -> tuple[Spool, Features, Classes]:
        """All records, in these features; a label that is a text becomes a ClassLabel."""
        label = find_label(features, self._label, needed=self._ordering.by_class)
        if label is not None and self._may_number and self._texts:
            names = extend(self._known_texts, self._texts)
            features = features.replace({label: make_label(label, names)})
        classes = Classes(features, label, extend(self._known_texts, self._texts))
        by_class = self._ordering.by_class
        if len(self._spools) == 1 and not by_class:
            known, spool = self._spools[0]
            if known.is_stored_like(features):
                return spool, features, classes
        return self._rewrite(features, classes), features, classes

    def _rewrite(self, features: Features, classes: Classes) -> Spool:
        """Bring all records into one spool."""
        target = Spool(
            self._folder,
            memory=self._memory,
            ordering=self._ordering,
            unique=bool(self._has_keys),
            prefix="all-",
        )
        for known, spool in self._spools:
            target.take_keys(spool)
            same = known.is_stored_like(features)
            for block, rows in spool.drain():
                rows = rows.copy()
                if not same:
                    block = _translate(block, known, features, classes.label)
                    rows["length"] = block.lengths
                if self._ordering.by_class:
                    rows["label"] = classes.of(block)
                target.add(block, rows)
        return target


def _translate(block: Block, known: Features, features: Features, label: str | None) -> Block:
    """Records of some features as records of others that fit them too."""
    columns = flatten(known.decode_batch(block))
    if label in columns and not is_text(features[label]) and is_text(known[label]):
        columns[label] = texts_of(columns[label])
    fill_columns(features, columns, len(block))
    return features.encode_batch(columns)
