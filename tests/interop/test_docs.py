"""What the documents say runs, and is true."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from covey.cli import main
from covey.sources import KINDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def comparable(text):
    """What was printed, but for how long it took and how wide that makes the table."""
    text = re.sub(r"\d+\.\d\d s\b", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def _kinds_as_before():
    """Forget the kinds of sources that a document adds."""
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.mark.usefixtures("_kinds_as_before")
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_snippets_run_and_print_what_they_say(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert snippets(path, "python")
    for language, snippet in re.findall(
        r"```(python|console)\n(.*?)```", path.read_text(), re.DOTALL
    ):
        if language == "python":
            exec(compile(snippet, str(path), "exec"), {"__name__": "__main__"})
            continue
        for command, printed in re.findall(
            r"^\$ covey (.*)\n((?:[^$].*\n)*)", snippet, re.MULTILINE
        ):
            capsys.readouterr()
            assert main(shlex.split(command)) == 0
            assert comparable(capsys.readouterr().out) == comparable(printed)


def test_readme_example_prints_what_it_says(tmp_path):
    code, *_ = snippets(ROOT / "README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    said = re.findall(r"print\(.*\)  # (.*)", code)
    assert run.stdout.splitlines() == said


def test_readme_commands_are_targets():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"\$ make ([a-z]+)", (ROOT / "README.md").read_text())
    assert commands == ["demo", "test"]
    assert set(commands) <= set(targets)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link


def test_demo(tmp_path):
    command = [sys.executable, str(ROOT / "examples/glyphs.py"), "--classes", "30"]
    command += ["--per-class", "3", "--output", str(tmp_path / "demo")]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(r"examples +90\b", run.stdout)
    assert "All 30 classes have their 3 examples" in run.stdout


def test_native_tests_pass():
    run = subprocess.run([ROOT / "build/tests/native_tests"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
