"""Progress bars in terminals, logs and notebooks."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import types

import pytest
from tqdm import std

from covey import _progress
from covey._progress import Progress, format_bytes

CODE = """
import time
from covey._progress import Progress
with Progress(None, 2000, "birds train") as shown:
    shown.add(500, 1_500_000)
    time.sleep(0.15)
    shown.add(500, 1_500_000)
    shown.begin("writing", 1000)
    time.sleep(0.15)
    shown.add(1000, 3_000_000)
"""


@pytest.mark.parametrize("columns", [0, 100])
def test_terminal(columns):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", CODE], stderr=theirs, stdin=theirs)
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 1 << 16):
            written += piece
    except OSError:  # Linux, when the other end is closed
        pass
    assert process.wait() == 0
    states = written.decode().split("\r")
    assert any("birds train:  50%" in state and "3.0 MB" in state for state in states)
    last = [state for state in states if state.strip()][-1]
    assert "writing: 100%" in last
    assert "1.00k/1.00k" in last
    assert "examples/s, 3.0 MB" in last
    assert all(len(state) <= columns + 2 for state in states if columns)


def run(capsys, show):
    with Progress(show, 1000, "birds train") as shown:
        shown.add(400, 4_000_000)
        shown.begin("writing", 400)
        shown.add(400, 4_000_000)
    return capsys.readouterr().err


def test_log_of_a_short_operation(capsys):
    assert run(capsys, None) == ""


def test_log(capsys):
    output = run(capsys, True)
    assert "\r" not in output
    assert "writing: 100%" in output.splitlines()[-1]
    assert "400/400" in output.splitlines()[-1]


def test_disabled(capsys):
    assert run(capsys, False) == ""


def test_notebook_without_widgets(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert _progress._bar_class(notebook=True) is std.tqdm
    assert "writing: 100%" in run(capsys, None)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (3e8, "300 MB"), (2.5e15, "2500.0 TB")],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text
