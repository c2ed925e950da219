"""How far a write is: a bar in terminals and notebooks, a line now and then in logs."""

from __future__ import annotations

import importlib
import os
import sys
from types import TracebackType
from typing import Any, TextIO

from covey.errors import escape

# A log gets a line this often, in seconds; a terminal ten times a second.
_LOG_SECONDS = 30.0


class Progress:
    """Shows examples, bytes, their rate and the time left, on standard error.

    Args:
        show: True, False, or None: only where somebody looks, or a log is long in the making.
        total: Examples, if known.
        title: What is going on.
    """

    def __init__(self, show: bool | None, total: int | None, title: str) -> None:
        self._bar: Any = None
        self._bytes = 0
        if show is False or sys.stderr is None:
            return
        terminal = sys.stderr.isatty()
        notebook = "ipykernel" in sys.modules
        log = not terminal and not notebook
        # With show=None a log hears only of what takes long; with True also of the end.
        self._is_log = log
        self._bar = _bar_class(notebook)(
            total=total,
            desc=escape(title),
            unit=" examples",
            unit_scale=True,
            dynamic_ncols=terminal and _columns() > 0,
            mininterval=_LOG_SECONDS if log else 0.1,
            delay=_LOG_SECONDS if log and show is None else 0,
            file=_Lines(sys.stderr) if log else sys.stderr,
            leave=None if not log else True,
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
        """Count again, for the next part of the work."""
        if self._bar is not None:
            self._bytes = 0
            self._bar.set_postfix_str("", refresh=False)
            if self._is_log:  # it hears of it when the next line is due
                self._bar.n, self._bar.total = 0, total
            else:
                self._bar.reset(total=total)
            self._bar.set_description(escape(title), refresh=not self._is_log)

    def add(self, examples: int, size: int) -> None:
        """Tell of so many examples more, and of the bytes of their records."""
        if self._bar is None:
            return
        self._bytes += size
        if self._bytes:
            self._bar.set_postfix_str(format_bytes(self._bytes), refresh=False)
        self._bar.update(examples)


def _columns() -> int:
    """How wide the terminal is; some, of other programs, say nothing about it."""
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
        except ImportError:  # a plain bar does in a notebook too
            return std.tqdm
        return tqdm
    return std.tqdm


class _Lines:
    """A file in which each state of the bar is a line of its own."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        text = text.replace("\r", "").rstrip()
        if text:
            self._file.write(text + "\n")

    def flush(self) -> None:
        self._file.flush()


def format_bytes(size: float) -> str:
    """Bytes as people write them.

    >>> format_bytes(330_000_000)
    '330 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
