"""Progress bars in terminals, logs and notebooks."""

import os
import re
import subprocess
import sys
import threading
import types

import pytest
from terminal import TerminalProcess

from covey import _progress
from covey._progress import Progress, format_bytes

CODE = """
import time
from covey._progress import Progress
with Progress(None, 2000, "reading", subject="birds train") as shown:
    shown.add(500, 1_500_000)
    time.sleep(0.15)
    shown.add(500, 1_500_000)
    shown.begin("writing", 1000)
    shown.add(1000, 3_000_000)
    shown.rename("indexing")
"""


@pytest.mark.parametrize("columns", [0, 100])
def test_terminal(columns):
    states = TerminalProcess(CODE, columns=columns).finish()
    first = r"reading birds train:  50%.* 1000/2000 \[\d\d:\d\d<\d\d:\d\d, .* examples/s, 3\.0 MB"
    assert any(re.match(first, state) for state in states)
    assert re.match(r"indexing birds train: 100%.* 1000/1000 \[.*examples/s, 3\.0 MB", states[-1])
    assert all(len(state) <= columns for state in states if columns)


FORKS = """
import os, sys
from covey._progress import Progress
with Progress(True, 10, "reading") as shown:
    shown.add(5, 0)
    child = os.fork()
    if not child:
        shown.add(4, 0)
        shown.begin("child", 3)
        shown.rename("child")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    shown.add(5, 0)
"""


def test_fork():
    states = TerminalProcess(FORKS).finish()
    assert not any("child" in state or "9/10" in state for state in states)
    assert "10/10" in states[-1]


def test_total_of_the_next_phase(capsys):
    with Progress(True, 5, "reading") as shown:
        shown.add(7, 0)
        shown.begin("uploading", None, unit="files", subject="\x1b[2Jbirds")
        shown.add(2, 0)
    last = capsys.readouterr().err.splitlines()[-1].rpartition("\r")[2]
    assert re.match(r"uploading \\u001b\[2Jbirds: 2 files \[00:00, ", last)
    shown.add(1, 1)
    shown.begin("writing", 2)
    shown.rename("indexing")
    assert capsys.readouterr().err == ""


def test_threads_share_a_bar(capsys):
    with Progress(True, 4000, "reading") as shown:

        def work():
            for _ in range(1000):
                shown.add(1, 1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert "4000/4000" in capsys.readouterr().err


def run(capsys, show):
    with Progress(show, 1000, "reading", subject="birds train") as shown:
        shown.add(400, 4_000_000)
        shown.begin("writing", 400)
        shown.add(400, 4_000_000)
        shown.rename("indexing")
    return capsys.readouterr().err


def test_log(capsys, monkeypatch):
    """Short operations write no log unless it is requested; a notebook has no terminal."""
    assert run(capsys, None) == run(capsys, False) == ""
    assert "indexing birds train: 100%" in run(capsys, True)
    monkeypatch.setattr(_progress, "_LOG_INTERVAL_S", 0)
    assert "indexing birds train: 100%" in run(capsys, None)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert "indexing birds train: 100%" in run(capsys, None)


def test_no_standard_error():
    code = "import sys; sys.stderr = None\n" + CODE.replace("None, 2000", "True, 2000")
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (3e8, "300 MB"), (2.5e15, "2500.0 TB")],
)
def test_format_bytes(size, text):
    assert format_bytes(size) == text


ENGINE = """
import sys
import covey
if __name__ == "__main__":
    engine = covey.engines.Processes(workers=2, pieces=3)
    examples = [{"x": i, "label": f"c{i % 3}"} for i in range(3000)]
    covey.write(examples, sys.argv[1], shards=4, engine=engine)
"""


def test_stages_of_an_engine(tmp_path):
    """The bars show the stages, with their tasks, examples and bytes."""
    (tmp_path / "script.py").write_text(ENGINE)
    code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    process = TerminalProcess(code, tmp_path / "script.py", tmp_path / "birds")
    text = "\n".join(process.finish())
    for stage in ("reading (0/3", "reading (3/3", "encoding (3/3", "writing (4/4"):
        assert stage in text
    assert "kB" in text
