"""The example of the README can be run again."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
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
    assert [kind for kind, _ in snippets] == ["python", "console", "python"]
    for _ in range(2):
        for kind, text in snippets:
            if kind == "python":
                exec(compile(text, "README.md", "exec"), {"__name__": "__main__"})
            for command in re.findall(r"^\$ covey (.*)", text, re.MULTILINE):
                assert main(shlex.split(command)) == 0, capsys.readouterr().err
    assert len(covey.open("data/birds", split="train").classes) == 6


def test_the_guarantee_of_small_classes(tmp_path):
    """The first guarantee names the defaults of the code."""
    examples = [{"x": n, "bird": name} for n, name in enumerate(["owl"] * 6 + ["auk"] * 2)]
    covey.write(examples, tmp_path / "birds", label="bird", progress=False)
    with covey.open(tmp_path / "birds") as birds:
        with pytest.warns(covey.errors.SmallClassesWarning, match="their examples are repeated"):
            loader = birds.batches(2, 5, seed=1)
        for x, y in loader.take(20):
            times = [np.unique(x[y == each], return_counts=True)[1].max() for each in (0, 1)]
            assert times == [3, 1]
    guarantee = (README.parent / "docs/guarantees.md").read_text().split("\n- ")[1]
    assert "repeats them as evenly as possible, with a `SmallClassesWarning`" in " ".join(
        guarantee.split()
    )
    assert 'small_classes="drop"' in guarantee
