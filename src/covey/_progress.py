"""Progress bar on standard error: a bar in terminals and notebooks, occasional lines in logs.

A thread redraws the bar while no examples arrive, so that the elapsed time advances during a slow
phase. Bars are drawn under one lock, which a fork waits for: a child process never inherits the
locks of tqdm and stderr in the locked state.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from covey.errors import escape

# Shortest interval between two states of a bar that show added examples.
_MIN_INTERVAL_S = 0.1
# Longest interval between two states of a bar.
_MAX_INTERVAL_S = 0.25
# Interval between two lines of a log.
_LOG_INTERVAL_S = 30.0

_BAR = "{l_bar}{bar}| {count} [{elapsed}<{remaining}, {speed}{postfix}]"
_NO_BAR = "{desc}{count} [{elapsed}, {speed}{postfix}]"

_drawing = threading.RLock()


class Progress:
    """Progress bar of examples and bytes, with their rate and the remaining time.

    Threads may share it. In a forked child it does nothing.

    Args:
        show: Whether to show it. None shows it in terminals and notebooks, and in a log if the
            operation takes longer than 30 seconds.
        total: Number of examples, if known.
        phase: First phase, such as ``"reading"``.
        subject: Object of all phases, such as ``"birds train"``.
    """

    def __init__(
        self, show: bool | None, total: int | None, phase: str, *, subject: str = ""
    ) -> None:
        self._bar: Any = None
        self._added = 0
        self._bytes = 0
        self._count: Callable[[], int] | None = None
        self._subject = subject
        self._process = os.getpid()
        self._closing = threading.Event()
        self._timer: threading.Thread | None = None
        if show is False or sys.stderr is None:
            return
        terminal = sys.stderr.isatty()
        notebook = "ipykernel" in sys.modules
        self._is_log = not terminal and not notebook
        intervals = (_LOG_INTERVAL_S,) * 2 if self._is_log else (_MIN_INTERVAL_S, _MAX_INTERVAL_S)
        self._min_interval, self._max_interval = intervals
        self._drawn = time.monotonic()
        with _drawing:
            self._bar = _bar_class(notebook)(
                total=total,
                desc=self._title(phase),
                unit="examples",
                dynamic_ncols=terminal and _columns() > 0,
                delay=_LOG_INTERVAL_S if self._is_log and show is None else 0,
                file=_Lines(sys.stderr) if self._is_log else sys.stderr,
                leave=True if self._is_log else None,
                smoothing=0,
            )

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._timer = threading.Thread(
                target=self._redraw_regularly, name="covey-progress", daemon=True
            )
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        bar, self._bar = self._bar, None
        if bar is None:
            return
        if self._process != os.getpid():
            bar.disable = True  # or its destructor would print
            return
        self._closing.set()
        try:
            if self._timer is not None:
                self._timer.join()
        finally:
            with _drawing:
                self._set_counts(bar)
                bar.close()

    def begin(
        self,
        phase: str,
        total: int | None,
        *,
        unit: str = "examples",
        subject: str | None = None,
    ) -> None:
        """Start the next phase at zero.

        Args:
            phase: Name of the phase.
            total: Number of examples, if known.
            unit: What is counted.
            subject: Object of this phase and the next ones (default: that of this phase).
        """
        with _drawing:
            bar = self._own_bar()
            if bar is None:
                return
            self._subject = self._subject if subject is None else subject
            self._added = self._bytes = 0
            self._count = None
            bar.total, bar.unit = total, unit
            bar.set_description_str(self._title(phase), refresh=False)
            self._set_counts(bar)
            if not self._is_log:
                bar.reset(total=total)
                return
            # Without a line of its own. The last line is written if one was written before.
            bar.start_t = time.time()
            if not bar.delay:
                bar.last_print_t = bar.start_t

    def rename(self, phase: str) -> None:
        """Start the next phase, and keep the counts of this one."""
        with _drawing:
            bar = self._own_bar()
            if bar is not None:
                self._count = None
                bar.set_description_str(self._title(phase), refresh=False)
                self._draw(bar)

    def add(self, examples: int, size: int) -> None:
        """Add processed examples, and the bytes of their records."""
        if self._bar is None:
            return
        with _drawing:
            bar = self._own_bar()
            if bar is None:
                return
            self._added += examples
            self._bytes += size
            if bar.total == self._added or time.monotonic() - self._drawn >= self._min_interval:
                self._draw(bar)

    def follow(self, count: Callable[[], int]) -> None:
        """Show a count that may be higher than the number of added examples, in this phase.

        Args:
            count: Function that returns it. Another thread calls it.
        """
        self._count = count

    def _own_bar(self) -> Any:
        return self._bar if self._process == os.getpid() else None

    def _title(self, phase: str) -> str:
        return escape(f"{phase} {self._subject}".rstrip()) + ": "

    def _set_counts(self, bar: Any) -> None:
        count = self._count
        bar.n = self._added if count is None else max(self._added, count())
        bar.set_postfix_str(format_bytes(self._bytes) if self._bytes else "", refresh=False)

    def _draw(self, bar: Any) -> None:
        now = time.monotonic()
        if self._is_log and now - self._drawn < self._min_interval:
            return
        self._drawn = now
        self._set_counts(bar)
        bar.delay = 0
        bar.last_print_t = time.time()
        bar.refresh()

    def _redraw_regularly(self) -> None:
        while not self._closing.wait(self._max_interval):
            with _drawing:
                if self._bar is None:
                    return
                if time.monotonic() - self._drawn >= self._min_interval:
                    self._draw(self._bar)


def no_progress(examples: int, size: int) -> None:
    """Ignore processed examples."""


def _columns() -> int:
    """Return the width of the terminal; 0 if it is unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 0


def _bar_class(notebook: bool) -> Any:
    """Return the class of tqdm for this output, with counts and rates of covey's format."""
    from tqdm import std  # type: ignore[import-untyped]
    from tqdm.utils import disp_trim  # type: ignore[import-untyped]

    base: Any = std.tqdm
    if notebook:
        with contextlib.suppress(ImportError):  # notebooks show a plain bar as well
            importlib.import_module("ipywidgets")
            base = importlib.import_module("tqdm.notebook").tqdm

    class Bar(base):  # type: ignore[misc]
        monitor_interval = 0  # tqdm's thread, which redraws less often

        @property
        def format_dict(self) -> dict[str, Any]:
            fields: dict[str, Any] = super().format_dict
            n, total, unit = fields["n"], fields["total"], fields["unit"]
            has_bar = total is not None and n <= total
            rate = n / fields["elapsed"] if fields["elapsed"] else 0.0
            columns = fields["ncols"]
            return {
                **fields,
                "ncols": columns if columns and columns > 0 else None,
                "bar_format": _BAR if has_bar else _NO_BAR,
                "count": f"{n:,}/{total:,}" if has_bar else f"{n:,} {unit}",
                "speed": f"{rate:,.{0 if rate >= 100 else 1 if rate >= 10 else 2}f} {unit}/s",
            }

        def __str__(self) -> str:
            text = super().__str__()
            columns = self.format_dict["ncols"]
            return str(disp_trim(text, columns)) if columns else text

    return Bar


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


def _before_fork() -> None:
    _drawing.acquire()


def _after_fork_in_parent() -> None:
    _drawing.release()


def _after_fork_in_child() -> None:
    global _drawing
    _drawing = threading.RLock()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
