"""The example of the README can be run again."""

import re
import shlex
from pathlib import Path

import numpy as np
from PIL import Image

import covey
from covey.cli import main

README = Path(__file__).parents[2] / "README.md"


def test_the_example_runs_twice(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for number in range(48):
        path = tmp_path / f"photos/species {number % 8}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(path)
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```(python|console)\n(.*?)```", README.read_text(), re.DOTALL)
    code = next(text for kind, text in snippets if kind == "python" and "covey.write" in text)
    commands = re.findall(r"^\$ covey (.*)", dict(snippets)["console"], re.MULTILINE)
    assert any(each.startswith("write ") for each in commands)
    for _ in range(2):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
        for command in commands:
            assert main(shlex.split(command)) == 0, capsys.readouterr().err
    assert len(covey.open("data/birds", split="train")) == 48
