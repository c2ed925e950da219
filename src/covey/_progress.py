"""Progress bar on standard error: tqdm in terminals and notebooks, and in the logs of long jobs."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from covey.errors import escape

# Interval between two states in a log, and the time before the first one.
_LOG_INTERVAL_S = 30.0


class Progress:
    """Progress bar of examples and bytes: one bar for each phase.

    Threads may share it. In a forked child it does nothing.

    Args:
        show: Whether to show it. None shows it in terminals and notebooks, and in a log if a phase
            takes longer than 30 seconds.
        total: Number of examples, if known.
        phase: First phase, such as ``"reading"``.
        subject: Object of all phases, such as ``"birds train"``.
    """

    def __init__(
        self, show: bool | None, total: int | None, phase: str, *, subject: str = ""
    ) -> None:
        self._bar: Any = None
        self._show = show is not False and sys.stderr is not None
        self._is_log = self._show and not (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._delay_s = 0.0 if show else _LOG_INTERVAL_S
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._subject = subject
        self.begin(phase, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        bar = self._own_bar()
        self._bar, self._show = None, False
        if bar is not None:
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
            subject: Object of this phase and the next ones (default: the present one).
        """
        bar = self._own_bar()
        if bar is not None:
            bar.close()
        self._subject = self._subject if subject is None else subject
        self._bytes = 0
        if self._show:
            from tqdm import tqdm  # type: ignore[import-untyped]

            log = {"mininterval": _LOG_INTERVAL_S, "delay": self._delay_s} if self._is_log else {}
            options = {"dynamic_ncols": True, "miniters": 1, "smoothing": 0, **log}
            self._bar = tqdm(total=total, desc=self._title(phase), unit=f" {unit}", **options)

    def rename(self, phase: str) -> None:
        """Start the next phase, and keep the counts of this one."""
        bar = self._own_bar()
        if bar is not None:
            bar.set_description(self._title(phase), refresh=not self._is_log)

    def add(self, examples: int, size: int) -> None:
        """Add processed examples, and the bytes of their records."""
        bar = self._own_bar()
        if bar is not None:
            with self._lock:
                self._bytes += size
                if self._bytes:
                    bar.set_postfix_str(format_bytes(self._bytes), refresh=False)
                bar.update(examples)

    def _own_bar(self) -> Any:
        """Return the bar; None if it is not shown, or belongs to the parent process."""
        if self._process != os.getpid() and self._bar is not None:
            self._bar.disable = True  # or its destructor would print
            self._bar, self._show = None, False
        return self._bar

    def _title(self, phase: str) -> str:
        return escape(f"{phase} {self._subject}".rstrip())


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
