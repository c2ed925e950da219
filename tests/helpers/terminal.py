"""A process whose standard error is a terminal."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios

TIMEOUT_S = 60.0


class TerminalProcess:
    """A Python process with a terminal as stderr and a pipe as stdin.

    Args:
        code: Code of the process.
        arguments: Arguments of the process.
        columns: Width of the terminal; 0 if it is unknown.
    """

    def __init__(self, code, *arguments, columns=100, **options):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=theirs, text=True, **options
        )
        os.close(theirs)
        self._written = b""

    @property
    def states(self):
        """The states of the bar so far, without those that are not complete."""
        text = self._written.decode(errors="replace")
        return [state.strip() for state in text.split("\r")[:-1] if state.strip()]

    def wait_for(self, condition):
        """Read output until a function of the states returns a true value; return that value."""
        while not (found := condition(self.states)):
            assert self._read(), self.states
        return found

    def resume(self):
        """Send a line to the process."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self):
        """Wait for the end of the process; return all states."""
        self._process.stdin.close()
        while self._read():
            pass
        assert self._process.wait(TIMEOUT_S) == 0, self.states
        os.close(self._ours)
        self._written += b"\r"
        return self.states

    def _read(self):
        ready, _, _ = select.select([self._ours], [], [], TIMEOUT_S)
        if not ready:
            self._process.kill()
            raise AssertionError(self.states)
        piece = b""
        with contextlib.suppress(OSError):  # Linux, when the other end is closed
            piece = os.read(self._ours, 1 << 16)
        self._written += piece
        return piece
