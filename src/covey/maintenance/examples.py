"""Records against the features: which of them do not fit, and the classes of those that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import CoveyError, FileChangedError
from covey.filenames import strip_record_suffixes
from covey.index import BY_FILE
from covey.labels import decode_strings, is_string
from covey.schema import Features
from covey.schema.survey import survey_block
from covey.tfrecord import Block
from covey.tfrecord.block import HEADER_BYTES


@dataclass(frozen=True)
class CheckedBlock:
    """The records of a block, looked at."""

    block: Block
    misfits: list[tuple[int, str]]
    """The rows of the block that are no examples, or do not fit, in order, and why."""
    labels: NDArray[np.int64] | None
    """The class of every row, if there are classes; 0 where it is not known."""
    texts: frozenset[str]
    """The strings that are the classes of the rows that fit, if they are strings."""
    surveys: list[_core.Survey]
    """If there are no features: what the records hold."""

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Which rows do."""
        fits = np.ones(len(self.block), bool)
        fits[[row for row, _ in self.misfits]] = False
        return fits

    @property
    def parts(self) -> Iterator[Block]:
        """The records that fit, as many together as lie together."""
        begin = 0
        for row in (*(row for row, _ in self.misfits), len(self.block)):
            if row > begin:
                yield self.block[begin:row]
            begin = row + 1

    def offset(self, row: int) -> int:
        """Where the frame of a record begins."""
        return self.block.position + int(self.block.offsets[row]) - HEADER_BYTES


class Examples:
    """Looks at records.

    Args:
        features: Which they should fit; None if they only have to be Examples.
        label: What tells their class, if that is wanted: a feature, or ``"@file"``.
        strings: What the numbers of classes stand for, if they are strings.
    """

    def __init__(
        self,
        features: Features | None,
        label: str | None = None,
        texts: Sequence[str] | None = None,
    ) -> None:
        self._features = features
        self._by_file = label == BY_FILE
        by_feature = features is not None and label is not None and not self._by_file
        self._path = features.path_of(label) if features and label and by_feature else None
        self._is_text = bool(features and label and by_feature and is_string(features[label]))
        self._numbers = {text: number for number, text in enumerate(texts or ())}

    def look(self, block: Block, file: str) -> CheckedBlock:
        """Look at the records of a block, whose checksums are right, of a file."""
        misfits: list[tuple[int, str]] = []
        surveys: list[_core.Survey] = []
        texts: set[str] = set()
        labels = None
        if self._by_file:
            labels = np.full(
                len(block), self._numbers.get(strip_record_suffixes(file), -1), np.int64
            )
        elif self._path is not None:
            labels = np.zeros(len(block), np.int64)
        for row, found in self._cut(block, 0):
            if isinstance(found, str):
                misfits.append((row, found))
            elif isinstance(found, _core.Survey):
                surveys.append(found)
            elif isinstance(found, list) and labels is not None:
                texts.update(found)
                labels[row : row + len(found)] = [self._numbers.get(text, -1) for text in found]
            elif found is not None and labels is not None:
                labels[row : row + len(found)] = found
        return CheckedBlock(block, misfits, labels, frozenset(texts), surveys)

    def _cut(self, block: Block, row: int) -> Iterator[tuple[int, Any]]:
        """Cut a block into parts that fit, and single records that do not.

        What comes with a row is a string that says why it does not fit; or a survey; or the classes
        of it and the rows that follow.
        """
        try:
            yield row, self._open(block)
        except FileChangedError:  # not the fault of a record
            raise
        except CoveyError as error:
            if len(block) == 1:
                yield row, _reason(error, block)
                return
            half = len(block) // 2
            yield from self._cut(block[:half], row)
            yield from self._cut(block[half:], row + half)

    def _open(self, block: Block) -> _core.Survey | list[str] | NDArray[np.int64] | None:
        """What is wanted of records, all of which must fit."""
        if self._features is None:
            survey = _core.Survey()
            survey_block(survey, block)
            return survey
        column: Any = self._features.decode_batch(block)
        if self._path is None:
            return None
        for key in self._path:
            column = column[key]
        return decode_strings(column) if self._is_text else np.asarray(column).astype(np.int64)


def _reason(error: CoveyError, block: Block) -> str:
    """What is wrong with a record, without where it is."""
    where = f"{block.name}: record {block.first}"
    offset = block.position + int(block.offsets[0]) - HEADER_BYTES
    text = str(error)
    for prefix in (f"{where} at byte {offset}: ", f"{where}: ", "example 0: "):
        text = text.removeprefix(prefix)
    return text
