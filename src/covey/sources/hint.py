"""Description of a source for a caller that opened it as a dataset."""

from __future__ import annotations

import os
import re
import shlex

from covey.errors import CoveyError, DatasetError
from covey.sources.registry import KINDS, Kind, ProbedPath, open_splits
from covey.sources.source import Source, SourceSplits, list_names

# Larger files are not read to count their examples.
_MAX_COUNTED_BYTES = 16 << 20
_DATASETS = ("TFRecords", "TFDS directory")


def source_hint(path: str) -> DatasetError | None:
    """Return the error of a path that is a source and not a dataset; None if it is not a source.

    Args:
        path: Local file, directory or pattern.
    """
    try:
        probed = ProbedPath.probe(path)
        kind = next((each for each in KINDS.values() if each.recognise(probed)), None)
    except (CoveyError, OSError):
        return None
    if kind is None or kind.name in _DATASETS:
        return None
    path = min(path, os.path.relpath(path), key=len)
    stem = re.sub(r"[^\w-]+", "_", os.path.basename(os.path.normpath(path)).split(".")[0])
    target = f"data/{stem.strip('_') or 'dataset'}"
    return DatasetError(
        f"it is a source ({', '.join([kind.name, *_contents(probed, kind)])}), not a dataset",
        path=path,
        remedy=f"write it as a dataset: `covey write {shlex.quote(path)} {target}`, or "
        f"covey.write({path!r}, {target!r})",
    )


def _contents(probed: ProbedPath, kind: Kind) -> list[str]:
    """Return the splits and the number of examples, as far as they are found quickly."""
    try:
        if sum(map(os.path.getsize, probed.files)) > _MAX_COUNTED_BYTES:
            return []
        found = open_splits(probed.path, kind=kind.name)
    except (CoveyError, OSError):
        return []
    if isinstance(found, SourceSplits):
        return [f"splits {list_names(found)}"]
    return [] if found.length is None else [f"{found.length:,} {_unit(found)}"]


def _unit(source: Source) -> str:
    return "images" if source.kind.startswith("image") else "examples"
