"""Documents: snippets run, printed output is right, links exist, and the reference is complete."""

import re
import subprocess
import sys

import pytest
from snippets import PAGES, ROOT, name_of, snippets, uses_ray, uses_servers

import covey

sys.path.insert(0, str(ROOT / "tools"))

import reference

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


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if snippets(path) and not (uses_ray(path) or uses_servers(path))],
    ids=name_of,
)
def test_snippets_run_and_print_what_the_page_shows(path, run_page):
    """tests/ray and tests/servers have the other pages."""
    run_page(path)


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
    assert "90 examples, 30 classes" in run.stdout
    assert "30 classes with 3 examples each" in run.stdout
    assert "batch 0 of seed 0: 8 classes of 'label', 3 examples each" in run.stdout
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["glyphs"]


def test_native_tests_pass():
    run = subprocess.run([ROOT / "build/tests/native_tests"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
