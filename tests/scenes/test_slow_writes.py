"""Progress bars of writes and of an index: the phases, counts and rates."""

import re

import pytest
from terminal import TerminalProcess


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
    assert seen == ["reading", "writing", "indexing", "uploading"]


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
