"""Scenes of a newcomer at the terminal: typing errors, advice, completion."""

import io
import re
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

import covey
from covey.cli import COMMANDS, main, make_parser
from covey.cli.output import OptionNames
from covey.errors import CoveyError, DatasetError, FeatureError, PlanError, SourceError

BIRDS = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "crow") * 4]


def run(*arguments):
    """Run the command line in this process; return its exit status and its output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as end:
            status = end.code
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    path = tmp_path_factory.mktemp("console") / "birds"
    covey.write(BIRDS, path, split="train", label="species", progress=False)
    covey.write(BIRDS, path, split="test", label="species", progress=False)
    return path


# Typing errors of the command line.


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["wirte"], "covey: unknown command wirte; did you mean write?"),
        (["fly"], "covey: unknown command fly; `covey --help` lists the commands"),
        (["--vers"], "covey: unknown option --vers; did you mean --version?"),
        (["write", "--shard", "3"], "covey write: unknown option --shard; did you mean --shards?"),
        (["verify", "x", "--wings"], "covey verify: unknown option --wings; `covey verify --help` "
         "lists the options"),
        (["show", "x", "-z"], "covey show: unknown option -z; `covey show --help` lists the "
         "options"),
        (["write", "a", "b", "--mode", "overwrit"], "covey write: argument --mode: 'overwrit' must "
         "be one of 'error', 'overwrite', 'append'; did you mean overwrite?"),
        (["write", "a"], "covey write: the following arguments are required: TARGET"),
        (["verify", "x", "y"], "covey verify: unexpected argument 'y'"),
    ],
)  # fmt: skip
def test_a_wrong_argument_prints_one_line(arguments, line):
    result = run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"{line}\n")


def test_values_that_begin_with_a_dash_are_not_options(birds):
    result = run("write", "-", "x", "--description", "-x is a value", "--seed", "-5")
    assert (result.returncode, "unknown" in result.stderr) == (1, False)
    assert run("info", "--", "--nix").returncode == 1


def test_a_hostile_argument_is_escaped():
    result = run("write", "--\x1b[2Jshards")
    assert result.returncode == 2
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1


# Typing errors in Python.


def suggestion(call, kind=CoveyError):
    with pytest.raises(kind) as caught:
        call()
    assert f"did you mean {caught.value.suggestion!r}?" in str(caught.value)
    return caught.value.suggestion


def test_names_are_suggested(birds):
    ds = covey.open(birds, split="train")
    assert suggestion(lambda: ds.batches(2, 2, select="sonng"), FeatureError) == "song"
    assert suggestion(lambda: ds.batches(2, 2, select=["Songs"]), FeatureError) == "song"
    assert suggestion(lambda: ds.columns("specie"), FeatureError) == "species"
    assert suggestion(lambda: ds.where(label="wrenn"), DatasetError) == "wren"
    assert suggestion(lambda: ds.where(label=b"OWL"), DatasetError) == "owl"
    assert suggestion(lambda: ds.batches(2, 2, class_list=["owl", "corw"]), DatasetError) == "crow"
    assert suggestion(lambda: ds.batches(2, 2, class_weights={"wern": 2}), DatasetError) == "wren"
    assert suggestion(lambda: ds.batches(2, 2, class_weights="sqtr"), PlanError) == "sqrt"
    assert suggestion(lambda: ds.batches(2, 2, mode="independant"), PlanError) == "independent"
    assert suggestion(lambda: ds.batches(2, 2, small_classes="repaet"), PlanError) == "repeat"
    assert suggestion(lambda: ds.shuffled(2, remainder="fil"), PlanError) == "fill"
    assert suggestion(lambda: covey.open(birds, split="trian[:50%]")) == "train[:50%]"
    assert suggestion(lambda: covey.info(birds, split="tets")) == "test"


def test_arguments_of_a_write_are_suggested(tmp_path):
    def write(**options):
        return lambda: covey.write(BIRDS, tmp_path / "x", split="train", progress=False, **options)

    assert suggestion(write(label="specie"), DatasetError) == "species"
    assert suggestion(write(label="species", mode="overwirte")) == "overwrite"
    assert suggestion(write(label="species", compression="GZP")) == "GZIP"
    columns = {"song": [1.0, 2.0], "species": ["owl", "wren"], "name": ["a", "b"]}
    error = suggestion(lambda: covey.write(columns, tmp_path / "y", split="train", key="nmae"))
    assert error == "name"
    table = tmp_path / "birds.csv"
    table.write_text("file,species\na,owl\n")
    open_source = covey.sources.open_source
    assert suggestion(lambda: open_source(table, kind="cvs"), SourceError) == "CSV"
    assert suggestion(lambda: open_source(table, label="specis"), SourceError) == "species"


def test_attributes_and_keyword_arguments_are_suggested(birds):
    with pytest.raises(AttributeError, match="no attribute 'opne'; did you mean 'open'"):
        covey.opne  # noqa: B018
    with pytest.raises(TypeError, match=r"open\(\) got .* 'splits'; did you mean 'split'"):
        covey.open(birds, splits="train")
    with pytest.raises(TypeError, match=r"write\(\) got .* 'lable'; did you mean 'label'"):
        covey.write(BIRDS, "x", split="train", lable="species")
    ds = covey.open(birds, split="train")
    with pytest.raises(TypeError, match=r"'imagesize'; did you mean 'image_size'"):
        ds.batches(2, 2, imagesize=3)


def test_an_uncaught_error_suggests_once():
    result = subprocess.run(
        [sys.executable, "-c", "import covey; covey.opne"], capture_output=True, text=True
    )
    assert result.stderr.lower().count("did you mean") == 1


# Advice that the caller can follow.


def test_an_existing_split(birds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "birds.csv").write_text("song,species\n1,owl\n2,wren\n")
    for command in [("write", "birds.csv", birds), ("repair", birds, "--output", "new")]:
        run("repair", birds, "--output", "new")
        result = run(*command)
        assert (result.returncode, "; see --mode" in result.stderr) == (1, True), result.stderr
        assert "mode=" not in result.stderr
    with pytest.raises(DatasetError) as caught:
        covey.write(BIRDS, birds, split="train", progress=False)
    assert "mode='overwrite'" in caught.value.remedy
    assert "--" not in str(caught.value)


def test_arguments_without_an_option_are_not_named(tmp_path):
    """covey.open has on_error= and takes lists of files, covey show neither."""
    shards = [tmp_path / f"birds-{number:05}-of-00003.tfrecord" for number in (0, 2)]
    features = covey.Features({"song": "float32", "species": "str"})
    for shard in shards:
        with covey.RecordWriter(shard) as writer:
            writer.write(features.encode({"song": 0.5, "species": "owl"}))
    with pytest.raises(DatasetError) as caught:
        covey.open(tmp_path)
    assert "on_error='skip'" in caught.value.remedy
    result = run("show", tmp_path)
    assert result.returncode == 1
    assert "birds-00001-of-00003.tfrecord" in result.stderr
    assert not re.search(r"\w=|on.error|list of files", result.stderr)


def test_the_advice_of_show_names_its_options(tmp_path):
    covey.write({"x": [1.0, 2.0], "y": [0, 1]}, tmp_path / "few", split="train", label="y")
    parser = make_parser()._subparsers._group_actions[0].choices["show"]
    ds = covey.open(tmp_path / "few", split="train")
    with pytest.raises(PlanError) as caught:
        ds.batches(2, 2, small_classes="error")
    assert caught.value.remedy.endswith("or pass small_classes='drop'")
    assert OptionNames(parser).message(caught.value).endswith("; see --examples-per-class")


@pytest.mark.parametrize("split", ["train[80%:20%]", "train[5:5]"])
def test_an_empty_range_is_an_error(birds, split):
    with pytest.raises(DatasetError) as caught:
        covey.open(birds, split=split)
    assert (caught.value.option, caught.value.found) == ("split", split)


# Completion.


def complete_in_bash(script, line):
    """Return the words that bash completes the last word of a line to."""
    words = line.split(" ")
    commands = f"""
        source {script}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words) - 1}
        $(complete -p covey | grep -o '_shtab[a-z_]*')
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "--norc", "-c", textwrap.dedent(commands)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(result.stdout.split())


def test_the_documented_line_completes_commands_options_and_values(tmp_path):
    page = Path(covey.__file__).parents[2] / "docs/inspect.md"
    (line,) = re.findall(r'^eval "\$\((shtab .*)\)"', page.read_text(), re.MULTILINE)
    program, *arguments = line.split()
    printed = subprocess.run(
        [sys.executable, "-m", program, *arguments], capture_output=True, text=True, check=True
    )
    script = tmp_path / "script.bash"
    script.write_text(printed.stdout)
    for words, expected in [
        ("covey wr", ["write"]),
        ("covey --v", ["--version"]),
        ("covey write --mo", ["--mode"]),
        ("covey write --mode ", ["append", "error", "overwrite"]),
        ("covey repair data --mode o", ["overwrite"]),
        ("covey show --class-weights s", ["size", "sqrt"]),
        ("covey verify --nix", []),
    ]:
        assert complete_in_bash(script, words) == expected, words
    assert complete_in_bash(script, "covey ") == sorted(COMMANDS)
