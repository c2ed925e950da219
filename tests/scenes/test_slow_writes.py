"""Progress bars of slow writes: the elapsed time, the rate and the phase are always current."""

import re

import pytest
from terminal import TerminalProcess

SLOW = """
import sys
import covey

def examples():
    for n in range(3):
        yield {"x": n, "label": n % 2}
        sys.stdin.readline()

covey.write(examples(), sys.argv[1], split="train", label="label", workers=int(sys.argv[2]))
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_slow_generator(tmp_path, workers):
    process = TerminalProcess(SLOW, tmp_path / "birds", workers)
    seconds = 1
    for count in (1, 2, 3):
        # While the generator waits, the bar counts its examples and the elapsed time increases.
        def shown(state, count=count):
            pattern = rf"reading birds train: {count} examples \[00:(\d\d), [\d.]+ examples/s"
            found = re.match(pattern, state)
            return int(found[1]) if found else -1

        def waited(states, shown=shown, seconds=seconds):
            elapsed = [each for each in map(shown, states) if each >= 0]
            return len(elapsed) >= 3 and max(elapsed) >= seconds and max(elapsed)

        seconds = process.wait_for(waited) + 1
        process.resume()
    states = process.finish()
    assert states[-1].startswith("indexing birds train: 100%")
    assert "| 3/3 [" in states[-1]


@pytest.mark.parametrize("examples", ["items", "columns"])
def test_phases_of_a_write(tmp_path, examples):
    code = f"""
import covey
items = [{{"x": n, "label": n}} for n in range(2)]
columns = {{"x": [0, 1], "label": [0, 1]}}
covey.write({examples}, "memory://birds", split="train", label="label", progress=True)
"""
    phases = [state.partition(" ")[0] for state in TerminalProcess(code, cwd=tmp_path).finish()]
    seen = [each for each in dict.fromkeys(phases) if each.endswith("ing")]
    assert seen == ["reading", "sorting", "writing", "indexing", "uploading"]


def test_phases_of_an_index(tmp_path):
    code = """
import covey
features = covey.Features({"x": "int64", "label": "int64"})
with covey.RecordWriter("a.tfrecord") as writer:
    for n in range(9):
        writer.write(features.encode({"x": n, "label": n % 2}))
covey.open("a.tfrecord")
"""
    last = TerminalProcess(code, cwd=tmp_path).finish()[-1]
    assert re.match(r"indexing: 9 examples \[00:\d\d, .* examples/s, ", last)
