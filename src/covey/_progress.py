"""Progress bar on standard error: a bar in terminals and notebooks, occasional lines in logs."""

from __future__ import annotations

import importlib
import os
import sys
from types import TracebackType
from typing import Any, TextIO

from covey.errors import escape

# Interval between two lines of a log.
_LOG_INTERVAL_S = 30.0


class Progress:
    """Progress bar of examples and bytes, with their rate and the remaining time.

    Args:
        show: Whether to show it. None shows it in terminals and notebooks, and in a log if the
            operation takes longer than 30 seconds.
        total: Number of examples, if known.
        title: Title of the bar.
    """

    def __init__(self, show: bool | None, total: int | None, title: str) -> None:
        self._bar: Any = None
        self._bytes = 0
        if show is False or sys.stderr is None:
            return
        terminal = sys.stderr.isatty()
        notebook = "ipykernel" in sys.modules
        self._is_log = not terminal and not notebook
        self._bar = _bar_class(notebook)(
            total=total,
            desc=escape(title),
            unit=" examples",
            unit_scale=True,
            dynamic_ncols=terminal and _columns() > 0,
            mininterval=_LOG_INTERVAL_S if self._is_log else 0.1,
            delay=_LOG_INTERVAL_S if self._is_log and show is None else 0,
            file=_Lines(sys.stderr) if self._is_log else sys.stderr,
            leave=True if self._is_log else None,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def begin(self, title: str, total: int | None) -> None:
        """Start the next phase at zero.

        Args:
            title: Title of the phase.
            total: Number of examples, if known.
        """
        if self._bar is not None:
            self._bytes = 0
            self._bar.set_postfix_str("", refresh=False)
            if self._is_log:  # without a line of its own
                self._bar.n, self._bar.total = 0, total
            else:
                self._bar.reset(total=total)
            self._bar.set_description(escape(title), refresh=not self._is_log)

    def add(self, examples: int, size: int) -> None:
        """Add processed examples, and the bytes of their records."""
        if self._bar is None:
            return
        self._bytes += size
        if self._bytes:
            self._bar.set_postfix_str(format_bytes(self._bytes), refresh=False)
        self._bar.update(examples)


def _columns() -> int:
    """Return the width of the terminal; 0 if it is unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def _bar_class(notebook: bool) -> Any:
    from tqdm import std  # type: ignore[import-untyped]

    if notebook:
        try:
            importlib.import_module("ipywidgets")
            from tqdm.notebook import tqdm  # type: ignore[import-untyped]
        except ImportError:  # notebooks show a plain bar as well
            return std.tqdm
        return tqdm
    return std.tqdm


class _Lines:
    """File that writes each state of the bar as a line."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        text = text.replace("\r", "").rstrip()
        if text:
            self._file.write(text + "\n")

    def flush(self) -> None:
        self._file.flush()


def format_bytes(size: float) -> str:
    """Return a size in bytes with a decimal unit.

    >>> format_bytes(330_000_000)
    '330 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
