"""Progress bars in terminals, logs and notebooks."""

import os
import re
import subprocess
import sys
import threading
import types

import pytest
from terminal import TerminalProcess
from tqdm import std

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
    time.sleep(0.15)
    shown.add(1000, 3_000_000)
    shown.rename("indexing")
"""


@pytest.mark.parametrize("columns", [0, 100])
def test_terminal(columns):
    states = TerminalProcess(CODE, columns=columns).finish()
    first = r"reading birds train:  50%\|.*\| 1,000/2,000 \[\d\d:\d\d<\d\d:\d\d, .* examples/s, "
    assert any(re.match(first + r"3\.0 MB\]", state) for state in states)
    assert any(state.startswith("writing birds train: 100%") for state in states)
    assert states[-1].startswith("indexing birds train: 100%")
    assert "| 1,000/1,000 [" in states[-1]
    assert states[-1].endswith("examples/s, 3.0 MB]")
    assert all(len(state) <= columns for state in states if columns)


WAITS = """
import sys
from covey._progress import Progress
with Progress(None, None, "reading") as shown:
    shown.add(1, 0)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("columns", [30, 100])
def test_redraws_while_nothing_is_added(columns):
    process = TerminalProcess(WAITS, columns=columns)

    def waited(states):
        elapsed = {state for state in states if re.search(r"1 examples \[00:0[12],", state)}
        return len(states) >= 6 and len(elapsed) >= 2

    process.wait_for(waited)
    process.resume()
    states = process.finish()
    assert all(len(state) <= columns for state in states)
    if columns == 100:
        rates = [re.search(r", ([\d.,]+) examples/s\]$", state)[1] for state in states]
        assert float(rates[-1]) <= 1


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
    for _ in range(50):
        child = os.fork()
        if not child:
            from tqdm import tqdm
            with tqdm.get_lock():
                print("x", end="", file=sys.stderr)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    shown.add(5, 0)
"""


def test_fork():
    states = TerminalProcess(FORKS).finish()
    assert not any("child" in state or "9/10" in state for state in states)
    assert "10/10" in states[-1]
    assert sum("100%" in state for state in states) <= 3


def test_thread_ends_with_the_bar(capsys):
    def threads():
        return [each for each in threading.enumerate() if each.name == "covey-progress"]

    with pytest.raises(KeyboardInterrupt), Progress(True, 1, "reading") as shown:
        assert len(threads()) == 1
        raise KeyboardInterrupt
    assert threads() == []
    capsys.readouterr()
    shown.add(1, 1)
    shown.begin("writing", 2)
    shown.rename("indexing")
    assert capsys.readouterr().err == ""


def test_count_of_examples_that_are_not_added_yet(capsys):
    with Progress(True, 5, "reading") as shown:
        shown.follow(lambda: 3)
    assert "3/5" in capsys.readouterr().err.splitlines()[-1]
    with Progress(True, 5, "reading") as shown:
        shown.follow(lambda: 3)
        shown.add(4, 0)
    assert "4/5" in capsys.readouterr().err.splitlines()[-1]


def test_more_examples_than_the_total(capsys):
    with Progress(True, 5, "reading") as shown:
        shown.add(7, 0)
    assert "reading: 7 examples [" in capsys.readouterr().err.splitlines()[-1]


def test_total_of_the_next_phase(capsys):
    with Progress(True, 5, "reading") as shown:
        shown.add(5, 0)
        shown.begin("uploading", None, unit="files", subject="birds")
        shown.add(2, 0)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"uploading birds: 2 files \[00:00, [\d.,]+ files/s\]", last)


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
    assert "4,000/4,000" in capsys.readouterr().err.splitlines()[-1]


def run(capsys, show):
    with Progress(show, 1000, "reading", subject="birds train") as shown:
        shown.add(400, 4_000_000)
        shown.begin("writing", 400)
        shown.add(400, 4_000_000)
    return capsys.readouterr().err


def test_log_of_a_short_operation(capsys):
    assert run(capsys, None) == ""


def test_log(capsys):
    output = run(capsys, True)
    assert "\r" not in output
    assert "writing birds train: 100%" in output.splitlines()[-1]
    assert "400/400" in output.splitlines()[-1]


def test_log_of_a_slow_phase(capsys, monkeypatch):
    """A line is written although no example is added, and the last one, too."""
    monkeypatch.setattr(_progress, "_LOG_INTERVAL_S", 0.05)
    drawn = threading.Event()
    with Progress(None, None, "reading") as shown:
        shown.follow(lambda: drawn.set() or 3)
        assert drawn.wait(60)
        shown.begin("writing", 3)
    lines = capsys.readouterr().err.splitlines()
    assert re.match(r"reading: 3 examples \[", lines[0])
    assert lines[-1].startswith("writing:   0%")


def test_disabled(capsys):
    assert run(capsys, False) == ""


def test_no_standard_error():
    code = "import sys; sys.stderr = None\n" + CODE.replace("None, 2000", "True, 2000")
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=True)


def test_notebook_without_widgets(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert _progress._bar_class(notebook=True).__mro__[1] is std.tqdm
    assert "writing birds train: 100%" in run(capsys, None)


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
    """One bar shows the stages, with their tasks, examples and bytes."""
    (tmp_path / "script.py").write_text(ENGINE)
    code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    process = TerminalProcess(code, tmp_path / "script.py", tmp_path / "birds")
    process.wait_for(lambda states: any("writing (4/4 tasks)" in each for each in states))
    process.finish()
    text = "\n".join(process.states)
    for stage in ("reading (0/3 tasks)", "reading (3/3 tasks)", "encoding (3/3 tasks)"):
        assert stage in text
    assert "kB" in text
