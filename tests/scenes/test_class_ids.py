"""Names of class ids in splits that lack classes, and losses with one row per class."""

import csv

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

import covey
from covey.__main__ import main

INTENTS = [f"intent {number:02}" for number in range(40)]


@pytest.fixture(scope="module")
def banking(tmp_path_factory):
    """A CSV of questions, written with held-out classes; and the intent of each question."""
    directory = tmp_path_factory.mktemp("banking")
    intents = {f"question {number}": INTENTS[number * 7 % 40] for number in range(800)}
    with open(directory / "questions.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "category"])
        writer.writerows(intents.items())
    source, target = str(directory / "questions.csv"), str(directory / "banking")
    options = ["--label", "category", "--hold-out-classes", "8", "--hold-out-split", "test"]
    assert main(["write", source, target, *options, "-q"]) == 0
    return target, intents


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("labels", [None, "contiguous"])
def test_names_of_held_out_classes(banking, split, labels):
    path, intents = banking
    with covey.open(path, split=split, labels=labels) as ds:
        for example in ds:
            assert ds.class_names[example["category"]] == intents[example["text"]]
        for x, y in ds.batches(4, 2, select="text"):
            names = [intents[text] for text in x]
            assert ds.class_names[y] == ds.class_name(torch.from_numpy(y)) == names
            assert ds.classes.names[y[0]] == ds.class_name(torch.tensor(int(y[0]))) == names[0]
        assert sorted(ds.classes) == sorted({intents[each["text"]] for each in ds})


def test_loss_with_one_row_per_class(banking):
    path, _ = banking
    with (
        covey.open(path, split="train", labels="contiguous") as ds,
        covey.open(path, split="train") as stored,
    ):
        classes = len(ds.classes)
        assert classes == 32
        assert np.unique(ds.labels).tolist() == list(range(classes)) == list(ds.class_names)
        torch.manual_seed(0)
        embed = torch.nn.Embedding(800, 16)
        loss = ArcFaceLoss(num_classes=classes, embedding_size=16)
        optimizer = torch.optim.SGD([*embed.parameters(), *loss.parameters()], lr=0.1)
        before = loss.W.detach().clone()
        for x, y in ds.batches(8, 4, select="text", steps_per_epoch="classes"):
            numbers = torch.tensor([int(text.split()[1]) for text in x])
            value = loss(embed(numbers), torch.from_numpy(y))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            assert torch.isfinite(value)
        assert bool((before != loss.W).any(dim=0).all())  # the row of every class was trained
        # The ids of the dataset do not fit the loss: it has more classes than the split.
        assert stored.labels.max() >= classes
        with pytest.raises((IndexError, RuntimeError)):
            for _, y in stored.batches(8, 4, select="text", steps_per_epoch="classes"):
                loss(embed(torch.arange(32)), torch.from_numpy(y))
