"""Directories of photos: splits, classes, nested classes, and trees that can be read in several
ways."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from written import content, records

import covey
from covey.cli import main
from covey.errors import DatasetError, DatasetExistsError, SourceError
from covey.sources import SourceSplits, open_source, open_splits

GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def put(*directories, root="photos", count=2):
    """Store images in directories below `root`."""
    for directory in directories:
        os.makedirs(f"{root}/{directory}", exist_ok=True)
        for number in range(count):
            with open(f"{root}/{directory}/{number}.gif", "wb") as file:
                file.write(GIF)
    return root


def names_of(source):
    return source.features["label"].names


def table(path, rows, header="x,label"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_text("".join(f"{row}\n" for row in (header, *rows)))
    return path


ROWS = ["1,owl", "2,wren", "3,owl", "4,jay"]

# Writing.


def covey_write(*arguments):
    """Run ``covey write``; return the exit status."""
    return main(["write", "--no-progress", *arguments])


def counts(path, split):
    """Return the number of examples of each class of a split."""
    opened = covey.open(path, split=split)
    return {name: len(opened.where(label=name)) for name in opened.classes}


def test_every_split_is_written_in_one_call(capsys):
    put("train/owl", "train/wren", "val/owl", "test/jay", "test/owl", count=3)
    assert covey_write("photos", "data") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "photos/train: image directory, 6 images, 3 classes of 'label'"
    assert output[-2:] == [
        "note: 1 class is in 'train' only: 'wren'",
        "note: 1 class is in 'test' only: 'jay'",
    ]
    assert counts("data", "train") == {"owl": 3, "wren": 3}
    assert counts("data", "val") == {"owl": 3}
    assert counts("data", "test") == {"jay": 3, "owl": 3}
    for split in ("train", "val", "test"):
        opened = covey.open("data", split=split)
        assert opened.features["label"].names == ("jay", "owl", "wren")


def test_python_and_command_line_write_the_same():
    put("train/owl", "train/wren", "val/owl")
    assert covey_write("photos", "cli/birds") == 0
    result = covey.write("photos", "path/birds", progress=False)
    covey.write(open_splits("photos"), "splits/birds", progress=False)
    assert content(Path("path/birds")) == content(Path("cli/birds"))
    assert content(Path("splits/birds")) == content(Path("cli/birds"))
    assert (result.split, list(result.splits)) == ("train", ["train", "val"])
    assert result.splits["val"].classes == {"owl": 2}
    assert result.unshared_classes == {"train": ("wren",), "val": ()}
    assert "split 'val'" in str(result)


def test_split_has_the_same_bytes_as_if_it_were_written_alone():
    put("train/owl", "train/wren", "val/owl", count=20)
    covey.write("photos", "all/birds", records_per_shard=7, progress=False)
    for split in ("val", "train"):
        covey.write("photos", "one/birds", split=split, records_per_shard=7, progress=False)
        assert records(Path("one/birds"), split) == records(Path("all/birds"), split)


@pytest.mark.parametrize(("workers", "memory_limit"), [(1, 1), (2, 1 << 20)])
def test_splits_do_not_depend_on_memory_and_workers(workers, memory_limit):
    put("train/owl", "train/wren", "val/owl", "val/jay")
    covey.write("photos", "default/birds", progress=False)
    options = {"workers": workers, "memory_limit": memory_limit}
    covey.write("photos", "other/birds", progress=False, **options)
    assert content(Path("other/birds")) == content(Path("default/birds"))


def test_source_without_splits_is_train():
    put("owl", "wren")
    assert covey_write("photos", "data") == 0
    assert covey_write("photos", "data", "--split", "again") == 0
    assert list(open_splits("data")) == ["train", "again"]


def test_ambiguous_tree_exits_with_an_error(capsys):
    put("train/owl", "val/owl", "extra")
    assert covey_write("photos", "data") == 1
    error = capsys.readouterr().err
    assert "others have not, 'extra'" in error
    assert "--splits" in error
    assert not os.path.exists("data")
    assert covey_write("photos", "data", "--splits=train", "--splits=val") == 0
    assert "note: not read: 'extra'" in capsys.readouterr().out
    assert list(open_splits("data")) == ["train", "val"]
    put("Fruit/Apple", root="nested")
    assert covey_write("nested", "again", "--class-from", "path") == 0
    assert counts("again", "train") == {"Fruit/Apple": 2}
    assert covey_write("nested", "regex", "--class-from", "(?P<label>[a-z]+)/") == 0
    assert counts("regex", "train") == {"ruit": 2}


def test_overwrite_with_other_features():
    put("train/owl", "val/owl")
    covey.write("photos", "data", label="label", progress=False)
    with pytest.raises(DatasetExistsError):
        covey.write("photos", "data", progress=False)
    os.rename("photos/train/owl", "photos/train/wren")
    source = open_splits("photos", label="species")
    covey.write(source, "data", mode="overwrite", progress=False)
    assert covey.open("data", split="val").features["species"].names == ("owl", "wren")
    assert main(["verify", "data", "--quiet"]) == 0


def test_append_to_every_split():
    put("train/owl", "val/owl")
    covey.write("photos", "data", progress=False)
    put("train/owl", "val/wren", root="more")
    covey.write("more", "data", mode="append", progress=False)
    assert counts("data", "train") == {"owl": 4}
    assert counts("data", "val") == {"owl": 2, "wren": 2}


def test_failure_of_one_split_changes_nothing():
    put("train/owl", "val/owl")
    with open("photos/val/owl/0.gif", "wb") as file:
        file.write(GIF[:20])
    with pytest.raises(SourceError) as caught:
        covey.write("photos", "data", progress=False)
    assert caught.value.path == "photos/val/owl/0.gif"
    assert not os.path.exists("data")
    result = covey.write("photos", "data", on_error="skip", progress=False)
    assert [len(each.skipped) for each in result.splits.values()] == [0, 1]
    assert covey_write("photos", "again", "--on-error", "skip", "--report", "bad.jsonl") == 0
    (line,) = Path("bad.jsonl").read_text().splitlines()
    assert (json.loads(line)["split"], json.loads(line)["example"]) == ("val", 0)


def test_split_without_valid_examples():
    put("train/owl", "val/owl", count=1)
    with open("photos/val/owl/0.gif", "wb") as file:
        file.write(GIF[:20])
    with pytest.raises(DatasetError, match="no examples to write as split 'val'; 1 were skipped"):
        covey.write("photos", "data", on_error="skip", progress=False)
    assert not os.path.exists("data")


@pytest.mark.parametrize(
    ("option", "value"),
    [("kind", "CSV"), ("splits", "none"), ("columns", ["x"]), ("class_from", "last")],
)
def test_options_of_a_path_are_refused_for_examples(option, value):
    with pytest.raises(DatasetError, match="it is an option of a path") as caught:
        covey.write([{"x": 1, "label": "owl"}], "data", **{option: value})
    assert (caught.value.option, caught.value.found) == (option, value)
    with pytest.raises(TypeError, match="did you mean 'class_from'"):
        covey.write("photos", "data", class_form=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'source'"):
        covey.write("photos", "data", source={})


def test_split_written_under_another_name(capsys):
    put("train/owl", "val/owl", "val/jay")
    assert covey_write("photos", "cli", "--split", "valid") == 0
    note = "split 'val' of the source is written as 'valid'"
    assert f"note: {note}" in capsys.readouterr().out
    assert covey.write("photos", "data", split="valid", progress=False).notes == (note,)
    assert covey.write("photos", "data", split="val", progress=False).notes == ()
    with pytest.raises(SourceError, match="must be one of 'train', 'val'") as caught:
        covey.write("photos", "data", split="valdation", progress=False)
    assert (caught.value.option, caught.value.found) == ("split", "valdation")
    with pytest.raises(SourceError, match="did you mean 'train'"):
        open_source("photos", split="trian")


def test_hold_out_needs_one_split(capsys):
    put("train/owl", "val/owl", count=20)
    assert main(["write", "photos", "data", "--hold-out-fraction", "0.5"]) == 1
    message = capsys.readouterr().err
    assert "the source has the splits 'train', 'val'; see --split" in message
    hold_out = covey.HoldOut(fraction=0.5, split="dev")
    with pytest.raises(DatasetError) as caught:
        covey.write("photos", "data", hold_out=hold_out, progress=False)
    assert caught.value.remedy == "pass split='train' to write one of them"
    result = covey.write("photos", "data", split="train", hold_out=hold_out, progress=False)
    assert list(result.splits) == ["train", "dev"]


def test_splits_of_arrays_have_one_class_list():
    train = {"x_train": np.arange(6.0), "y_train": ["owl", "wren"] * 3}
    np.savez("birds.npz", **train, x_test=np.arange(2.0), y_test=["jay", "owl"])
    result = covey.write("birds.npz", "data/birds", progress=False)
    assert result.features["y"].names == ("jay", "owl", "wren")
    assert result.splits["test"].classes == {"jay": 1, "owl": 1}
    opened = covey.open("data/birds", split="test")
    names = opened.features["y"].names
    found = [(float(each["x"]), names[int(each["y"])]) for each in opened]
    assert sorted(found) == [(0.0, "jay"), (1.0, "owl")]
    covey.write("birds.npz", "one/birds", split="train", progress=False)
    assert len(covey.open("one/birds")) == 6


def test_splits_with_different_features():
    np.savez("birds.npz", x_train=np.zeros((4, 2)), x_test=["a", "b"])
    with pytest.raises(DatasetError, match="different features") as caught:
        covey.write("birds.npz", "data", label=None, progress=False)
    assert caught.value.feature == "x"


def test_mapping_of_sources():
    put("owl", "wren")
    put("owl", "jay", root="more")
    sources = {"old": open_source("photos"), "new": open_source("more")}
    result = covey.write(sources, "data", progress=False)
    assert result.features["label"].names == ("jay", "owl", "wren")
    assert counts("data", "old") == {"owl": 2, "wren": 2}
    assert counts("data", "new") == {"jay": 2, "owl": 2}


def test_mapping_without_splits():
    with pytest.raises(DatasetError, match="has no splits") as caught:
        covey.write(SourceSplits({}), "data", progress=False)
    assert caught.value.option == "examples"


def test_splits_with_different_labels():
    put("train/owl", "val/owl")
    sources = {split: open_source("photos", split=split, label=split) for split in ("train", "val")}
    with pytest.raises(DatasetError, match="different labels: 'train' in 'train', 'val'") as caught:
        covey.write(sources, "data", progress=False)
    assert caught.value.option == "label"
    with pytest.raises(DatasetError, match="different features"):
        covey.write(sources, "data", label=None, progress=False)


def test_splits_of_an_earlier_write_are_reported(capsys):
    """An overwritten split may share examples with splits that stay."""
    put("train/owl", "train/wren", "val/owl", "test/owl")
    assert main(["write", "photos", "out", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["write", "photos", "out", "--split", "train", "--mode", "overwrite"]) == 0
    assert (
        "note: splits of an earlier write may overlap with the new ones: "
        in capsys.readouterr().out
    )
    result = covey.write("photos", "out", split="val", mode="overwrite", progress=False)
    assert sorted(result.kept_splits) == ["test", "train"]


# Notes: lines of the result, and of the output of the command.


def notes_of(capsys, source, **options):
    """Write a source with covey.write, as parts, and with the command; return the notes."""
    for target in ("data", "printed", "parts", "quiet"):
        shutil.rmtree(target, ignore_errors=True)
    written = covey.write(source, "data", progress=False, **options)
    assert all(note in str(written) for note in written.notes)
    arguments = [each for name, value in options.items() for each in (f"--{name}", value)]
    arguments = [each.replace("_", "-") if each[0] == "-" else each for each in arguments]
    capsys.readouterr()
    assert main(["write", source, "printed", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [line for line in lines if line.startswith("note: ") and " only: " not in line]
    assert printed == [f"note: {note}" for note in written.notes]
    covey.write(source, "parts", part="1/1", progress=False, **options)
    assert {*covey.commit("parts", progress=False).notes} <= {*written.notes}
    assert main(["write", source, "quiet", "--quiet", *arguments]) == 0
    assert capsys.readouterr().out == ""
    return written.notes


SPLIT_NOTE = (
    "feature 'split' does not divide the examples; split_by='split' (--split-by split) writes a "
    "split for each of its values"
)


def test_column_with_names_of_splits(capsys):
    rows = [f"{row},{split}" for row in ROWS for split in ("train", "test")]
    source = table("tables/birds.csv", rows, "x,label,split")
    assert notes_of(capsys, source) == (SPLIT_NOTE,)
    assert notes_of(capsys, source, split_by="split") == ()
    assert notes_of(capsys, source, label="split") == ()
    columns = {"x": [1, 2], "label": ["owl", "jay"], "split": ["train", "test"]}
    items = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for examples in (columns, items):
        assert covey.write(examples, "more", mode="overwrite", progress=False).notes == (
            SPLIT_NOTE,
        )
    floats = {**columns, "split": [0.5, 1.5]}
    assert covey.write(floats, "floats", progress=False).notes == ()
    # A source that has splits.
    for name in ("train", "test"):
        table(f"splits/{name}.csv", [f"{row},{name}" for row in ROWS], "x,label,split")
    assert notes_of(capsys, "splits") == ()


def test_one_class_only(capsys):
    source = table("tables/birds.csv", ["1,owl", "2,owl"])
    assert notes_of(capsys, source) == ("all examples have the class 'owl' of 'label'",)
    for name in ("train", "test"):
        table(f"splits/{name}.csv", ["1,0", "2,0"])
    assert notes_of(capsys, "splits") == ("all examples have the class '0' of 'label'",)
    table("splits/test.csv", ["1,1", "2,1"])
    assert notes_of(capsys, "splits") == ()


def test_files_that_are_read_as_one_split(capsys):
    for name in ("train", "train_old", "test"):
        table(f"tables/{name}.csv", ROWS)
    assert notes_of(capsys, "tables") == (
        "2 files are read as split 'train': 'train.csv', 'train_old.csv'",
    )
    table("tables/extra.csv", ROWS)
    assert notes_of(capsys, "tables") == (
        "4 files are read as one split: 'extra.csv', 'test.csv', 'train.csv', 'train_old.csv'",
    )
    for number in range(12):
        table(f"shards/birds-{number:05}-of-00012-{number:x}a7f.csv", ROWS)
        table(f"split_parts/train_{number}.csv", ROWS)
        table(f"split_parts/test_{number}.csv", ROWS)
    assert notes_of(capsys, "shards") == ()
    assert notes_of(capsys, "split_parts") == ()


def test_images_that_no_row_lists(capsys):
    put("pics/more", "__MACOSX/pics", ".cache", root="photos")
    put("pics", root="photos", count=5)
    table("photos/metadata.csv", ["pics/0.gif,owl", "./pics/1.gif,jay"], "file_name,label")
    listed = "'pics/2.gif', 'pics/3.gif', 'pics/4.gif'"
    assert notes_of(capsys, "photos") == (
        f"5 images in no row of 'metadata.csv': {listed} and 2 more",
    )
    # Only directories of images that the table lists, which may be in a directory of anything.
    assert notes_of(capsys, "photos/metadata.csv") == (
        f"3 images in no row of 'metadata.csv': {listed}",
    )
