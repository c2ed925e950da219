"""Snippets of the documents, which run in order and print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from covey.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(path: Path) -> str:
    return path.name


def snippets(path: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each snippet of a page."""
    return re.findall(r"```(python|console)\n(.*?)```", path.read_text(), re.DOTALL)


def uses_ray(path: Path) -> bool:
    return any("import ray" in text for _, text in snippets(path))


def uses_servers(path: Path) -> bool:
    return any(".view(" in text for _, text in snippets(path))


def draw_photos(directory: Path) -> None:
    """Create photos/: 8 classes with 6 images each, of similar colors."""
    from PIL import Image

    rng = np.random.default_rng(0)
    colors = rng.integers(0, 200, (8, 1, 1, 3))
    for number in range(48):
        path = directory / f"photos/species {number % 8}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = colors[number % 8] + rng.integers(0, 56, (40, 48, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(path)


def comparable(text: str) -> list[str]:
    """Return the lines of a table without times and without alignment."""
    text = re.sub(r"\d+\.\d\d s\b", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def run(path: Path, capsys: Any) -> None:
    """Run the snippets of a page, and compare what they print."""
    for language, snippet in snippets(path):
        if language == "python":
            capsys.readouterr()
            exec(compile(snippet, str(path), "exec"), {"__name__": "__main__"})
            shown = re.findall(r"^print\(.*\)  # (.*)", snippet, re.MULTILINE)
            if shown:
                assert capsys.readouterr().out.splitlines() == shown
            continue
        for command, printed in re.findall(
            r"^\$ covey (.*)\n((?:[^$].*\n)*)", snippet, re.MULTILINE
        ):
            capsys.readouterr()
            assert main(shlex.split(command)) == 0
            if printed:
                assert comparable(capsys.readouterr().out) == comparable(printed)
