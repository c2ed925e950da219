"""Description of a source for a caller that opened it as a dataset."""

from __future__ import annotations

import os
import re
import shlex

from covey.errors import CoveyError, DatasetError
from covey.labels import guess_label
from covey.schema import Features
from covey.sources.registry import Kind, ProbedPath, detect, open_splits
from covey.sources.source import Source, SourceSplits, list_names

# Larger files are not read to count their examples.
_MAX_COUNTED_BYTES = 16 << 20
# The text of a clause up to the end of its last argument.
_ARGUMENTS = re.compile(r".*=('[^']*'|\w*)")
_ARGUMENT = re.compile(r"([a-z][a-z_]*)=('[^']*'|\w*)")
_DATASETS = ("TFRecords", "TFDS directory")


def source_hint(path: str) -> DatasetError | None:
    """Return the error of a path that is a source and not a dataset; None if it is not a source.

    Args:
        path: Local file, directory or pattern.
    """
    try:
        probed = ProbedPath.probe(path)
        kind, _ = detect(probed)
    except (CoveyError, OSError):
        return None
    if kind is None or kind.name in _DATASETS:
        return None
    path = min(path, os.path.relpath(path), key=len)
    stem = re.sub(r"[^\w-]+", "_", os.path.basename(os.path.normpath(path)).split(".")[0])
    target = f"data/{stem.strip('_') or 'dataset'}"
    command = f"covey write {shlex.quote(path)} {target}"
    call = f"covey.write({path!r}, {target!r}"
    try:
        found = _open(probed, kind)
    except (CoveyError, OSError) as error:
        return _with_options(error, kind, path, command)
    if isinstance(found, Source) and _lacks_label(found):
        command, call = f"{command} --label NAME", f"{call}, label=NAME"
    return DatasetError(
        f"it is a source ({', '.join([kind.name, *_contents(found)])}), not a dataset",
        path=path,
        remedy=f"write it as a dataset: `{command}`, or `{call})`",
    )


def _open(probed: ProbedPath, kind: Kind) -> Source | SourceSplits | None:
    """Open a source; return None if that may take long."""
    if sum(map(os.path.getsize, probed.files)) > _MAX_COUNTED_BYTES:
        return None
    found = open_splits(probed.path, kind=kind.name)
    if isinstance(found, SourceSplits) and probed.files:
        dict(found)
    return found


def _with_options(error: CoveyError | OSError, kind: Kind, path: str, command: str) -> DatasetError:
    """Return the error of a source that is written only with the options that `error` names."""
    is_a = f"it is a source ({kind.name}), not a dataset"
    if not isinstance(error, CoveyError):
        return DatasetError(is_a, path=path)
    remedies = [_advise(clause, command) for clause in error.remedy.split(", or ") if clause]
    if not remedies and error.option is not None:
        remedies = [f"`{command} {_option(error.option)}`"]
    allowed = error.allowed and f"{error.option} must be {error.allowed}; "
    where = "" if error.line is None else f"line {error.line}: "
    same = "; the arguments of covey.write have the same names" * ("`" in "".join(remedies))
    return DatasetError(
        f"{is_a}; {allowed}{where}{error.reason}", path=path, remedy=", or ".join(remedies) + same
    )


def _advise(clause: str, command: str) -> str:
    """Return a clause of a remedy with a command in place of arguments.

    The command is between backticks, so that it is not adapted to another command.
    """
    options = [_option(name, value.strip("'")) for name, value in _ARGUMENT.findall(clause)]
    if not options:
        return clause
    purpose = _ARGUMENTS.sub("", clause)
    return f"`{' '.join([command, *options])}`{purpose}"


def _option(name: str, value: str = "") -> str:
    return f"--{name.replace('_', '-')} {value or name.upper()}"


def _contents(found: Source | SourceSplits | None) -> list[str]:
    """Return the splits and the number of examples, if they are known."""
    if isinstance(found, SourceSplits):
        return [f"splits {list_names(found)}"]
    return [] if found is None or found.length is None else [f"{found.length:,} {_unit(found)}"]


def _lacks_label(source: Source) -> bool:
    is_known = source.label is not None or source.features is None
    return not is_known and guess_label(source.features or Features({})) is None


def _unit(source: Source) -> str:
    return "images" if source.kind.startswith("image") else "examples"
