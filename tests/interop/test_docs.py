"""Documents: snippets run, printed output is right, links exist, and the reference is complete."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import covey
from covey.cli import main
from covey.sources import KINDS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROSE = [
    path
    for path in [
        *PAGES,
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        ROOT / "benchmarks/RESULTS.md",
    ]
    if path.name != "reference.md"
]


def snippets(path):
    return re.findall(r"```(python|console)\n(.*?)```", path.read_text(), re.DOTALL)


def comparable(text):
    """Lines of a table without times and without alignment."""
    text = re.sub(r"\d+\.\d\d s\b", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Run in a directory that has photos/: 8 classes with 6 images each, of similar colors."""
    from PIL import Image

    rng = np.random.default_rng(0)
    colors = rng.integers(0, 200, (8, 1, 1, 3))
    for number in range(48):
        path = tmp_path / f"photos/species {number % 8}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = colors[number % 8] + rng.integers(0, 56, (40, 48, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _same_kinds():
    """Remove the kinds of sources that a page registers."""
    before = dict(KINDS)
    yield
    KINDS.clear()
    KINDS.update(before)


@pytest.mark.usefixtures("_same_kinds", "photos")
@pytest.mark.parametrize(
    "path", [path for path in PAGES if snippets(path)], ids=lambda path: path.name
)
def test_snippets_run_and_print_what_the_page_shows(path, capsys):
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


def test_every_page_is_in_the_table_of_contents():
    linked = re.findall(r"\]\((\w+\.md)", (ROOT / "docs/index.md").read_text())
    assert set(linked) == {path.name for path in PAGES[1:]} - {"index.md"}


@pytest.mark.parametrize("path", [*PROSE, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_to_a_file_and_a_heading(path):
    for link, _, anchor in re.findall(r"\]\(([^)#]*)(#([^)]+))?\)", path.read_text()):
        if link.startswith("http"):
            continue
        target = path.parent / link if link else path
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            plain = [re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings]
            assert anchor in plain, f"{link}#{anchor}"


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_lines_wrap_at_100(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 100 and line[0] != "|"] == []


@pytest.mark.parametrize("path", [*PROSE, reference.PAGE], ids=lambda path: path.name)
def test_words_are_plain(path):
    words = r"nobody|somebody|whoever|anybody|anew|whole number|folder|tells? the class|looks? at"
    assert re.findall(rf"(?i)^.*\b(?:{words})\b.*$", path.read_text(), re.MULTILINE) == []


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_other_projects_are_introduced(path):
    text = path.read_text()
    for name, introduction in {"TFDS": "TensorFlow Datasets", "datum": "TFRecord writers"}.items():
        found = re.search(rf"(?<![\w/.`\"]){name}\b(?![\w./`(])", text)
        if found:
            around = " ".join(text[max(0, found.start() - 100) : found.end() + 140].split())
            assert introduction in around, f"{name} is not introduced where it is first mentioned"


# The reference.


def test_reference_is_up_to_date():
    assert (ROOT / "docs/reference.md").read_text() == reference.page(), "run make reference"


def test_reference_has_every_public_name():
    text = reference.PAGE.read_text()
    assert [name for name in covey.__all__ if f".{name}`" not in text] == []


def test_every_argument_is_described():
    missing = [
        f"{entry.name}({name})"
        for entries in reference.entries().values()
        for entry in entries
        for name in entry.undescribed
    ]
    assert missing == []


def test_every_command_line_option_is_described():
    missing = [
        f"covey {command} {row.name}"
        for command, _, rows in reference.commands()
        for row in rows
        if not row.meaning
    ]
    assert missing == []


# Programs that documents mention.


def test_readme_commands_are_targets_of_make():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"`make ([a-z]+)`", (ROOT / "README.md").read_text())
    assert commands
    assert set(commands) <= set(targets)


def test_demo(tmp_path):
    command = [sys.executable, str(ROOT / "examples/glyphs.py"), "--classes", "30"]
    command += ["--per-class", "3", "--output", str(tmp_path / "demo")]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(r"examples +90\b", run.stdout)
    assert "30 classes with 3 examples each" in run.stdout


def test_native_tests_pass():
    run = subprocess.run([ROOT / "build/tests/native_tests"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
