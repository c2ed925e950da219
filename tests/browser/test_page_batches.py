"""The batches: any step, as the loader returns it; ranks, coverage and states."""

import json

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys
from test_page_examples import image_colour
from view_data import colour

import covey

LARGE = 10**12
CELL = ".batch-row:nth-child({}) .batch-cell:nth-child({}) img"
BUILT = "classes_per_batch=3&examples_per_class=2&x=1&select=photo&image_size=32"


@pytest.fixture(scope="module")
def ds(data):
    with covey.open(data("birds"), split="train") as found:
        yield found


def rows(page, rank=0):
    """Return the ids of the cells of each row."""
    script = """
        const rank = document.querySelector(`.batch-rank[data-rank="${arguments[0]}"]`);
        return [...rank?.querySelectorAll(".batch-row") ?? []].map(
          (row) => [...row.querySelectorAll(".batch-cell")].map((cell) => Number(cell.dataset.id)));
    """
    return page.run(script, rank)


def wait_rows(page, expected, rank=0):
    page.wait(lambda: rows(page, rank) == expected, f"{expected}")


def batch(ds, step, p=6, k=4, **options):
    """Return the ids of each class of a batch."""
    loader = ds.batches(p, k, select="caption", **options)
    return loader.plan.batch(step).reshape(p, k).tolist()


def flat(rows):
    return [each for row in rows for each in row]


def set_field(page, name, value):
    """Enter a value, as with the keyboard."""
    field = page.one(f"input[name={name}]")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(str(value), Keys.ENTER)


def test_any_step(visit, ds):
    """By its number, in several notations, by keys and buttons, and by the URL."""
    page = visit("birds", "#/batches")
    expected = batch(ds, 0)
    wait_rows(page, expected)
    page.wait(lambda: len(page.all(".batch-cell img")) == 24)
    names = [page.text(f".batch-row:nth-child({n}) .batch-class a") for n in range(1, 7)]
    assert names == [ds.class_name(ds.labels[ids[0]]) for ids in expected]
    page.one("body").send_keys(Keys.ARROW_RIGHT)
    wait_rows(page, batch(ds, 1))
    page.click("button[aria-label='One epoch ahead']")
    wait_rows(page, batch(ds, 6))
    page.see("epoch 1 · step 1 of 5")
    steps = {"10^12": LARGE, "7": 7, "1e12": LARGE, "9,007,199,254,740,991": 2**53 - 1}
    for text, step in steps.items():
        set_field(page, "step", text)
        wait_rows(page, batch(ds, step))
        assert f"step={step}" in page.hash
    again = visit("birds", page.hash)
    wait_rows(again, batch(ds, 2**53 - 1))
    set_field(again, "step", "-3")
    again.see("must be an integer from 0", ".batch-bar")
    again.go("#/batches?step=-3").see("The step in the URL must be", "[role=alert]")


def test_options_of_the_plan(visit, ds):
    page = visit("birds", "#/batches")
    for name, value in (("classes_per_batch", 3), ("examples_per_class", 5), ("seed", 11)):
        set_field(page, name, value)
    wait_rows(page, batch(ds, 0, 3, 5, seed=11))
    assert not page.one("input[name=world_size]").is_displayed()  # few need it
    page.button("More").click()
    set_field(page, "total_examples_per_class", 6)
    page.set("select[name=class_weights]", "sqrt")
    expected = batch(ds, 0, 3, 5, seed=11, total_examples_per_class=6, class_weights="sqrt")
    wait_rows(page, expected)
    wait_rows(visit("birds", page.hash), expected)
    page = visit("birds", "#/batches?seed=11")
    page.set("select[name=plan]", "shuffled")
    set_field(page, "batch_size", 10)
    wait_rows(page, [ds.shuffled(10, seed=11, select="caption").plan.batch(0).tolist()])
    page.set("select[name=plan]", "sequential")
    wait_rows(page, [list(range(10))])


def test_ranks_side_by_side(visit, ds):
    page = visit("birds", "#/batches?classes_per_batch=4&examples_per_class=2&step=5")
    page.button("More").click()
    set_field(page, "world_size", 2)
    plan = ds.batches(4, 2, select="caption").plan
    for mode in ("split", "independent"):
        page.set("select[name=mode]", mode)
        for rank in range(2):
            ids = plan.for_rank(rank, 2, mode).batch(5).tolist()
            page.wait(lambda rank=rank, ids=ids: flat(rows(page, rank)) == ids)


def test_as_the_loader_returns_it(visit, ds):
    page = visit("birds", f"#/batches?{BUILT}")
    expected = batch(ds, 0, 3, 2)
    wait_rows(page, expected)
    page.wait(lambda: len(page.all(".batch-parts img")) == 6)
    for row, number in enumerate(flat(expected)):
        found = image_colour(page, CELL.format(row // 2 + 1, row % 2 + 1))
        assert np.abs(np.subtract(found, colour(number))).max() <= 3
    page.see("photo: uint8 32 \u00d7 32 \u00d7 3")
    page.button("More").click()
    page.set("select[name=crop]", "random")
    set_field(page, "views", 2)
    page.wait(lambda: len(page.all(".batch-parts img")) == 12 and "crop=random" in page.hash)
    page.all(".batch-cell .card-open")[0].click()
    page.see(f"Example {flat(expected)[0]}", "dialog")
    page.allowed_errors.append("400 (Bad Request)")
    page.go("#/batches?x=1&select=photo").see("The loader raises: ")
    page.see("images have different sizes")


def test_coverage(visit):
    page = visit("birds", "#/batches?step=3")
    page.see("Seen before step 3: 100% of the classes (3 times each) and 60% of the examples")


def test_the_state_of_a_run(visit, ds):
    part, _ = ds.split_classes(train=4)
    whole, parted = (each.batches(4, 3, seed=21, select="eggs") for each in (ds, part))
    page = visit("birds", "#/batches")
    for loader in (whole, parted):
        loader.seek(1234)
        text = json.dumps(loader.state_dict())
        page.run("document.querySelector('textarea[name=state]').value = arguments[0]", text)
        page.button("Go to its batch").click()
        page.see("The run continues with step 1,234.")
        x, _ = loader.batch(1234)
        page.wait(lambda x=x: [ds[each]["eggs"] for each in flat(rows(page))] == x.tolist())
    page.button("Other settings").click()
    wait_rows(page, batch(ds, 1234))
    page.allowed_errors.append("400 (Bad Request)")
    page.run("document.querySelector('textarea[name=state]').value = 'nothing like it'")
    page.button("Go to its batch").click()
    page.wait(lambda: page.all(".panel [role=alert]"))


def test_a_loader(visit, ds):
    """The plan, the step and the options are those of the loader, whose batches are shown first."""
    page = visit("loader", "")
    page.wait(lambda: len(page.all(".batch-parts img")) == 6)
    page.see("seed=9")
    assert not page.all("input[name=seed]")
    page.click("input[name=x]")
    expected = batch(ds, 17, 3, 2, seed=9)
    wait_rows(page, expected)
    page.wait(lambda: not page.all(".batch-parts img"))
    page.driver.refresh()
    wait_rows(page, expected)
    assert not page.all(".batch-parts img")


def test_a_corrupt_record(visit, ds):
    step = next(step for step in range(1000) if 3 in flat(batch(ds, step)))
    page = visit("corrupt", f"#/batches?step={step}")
    page.see("Cannot be read")
    assert len(page.all(".card-broken")) == 1
    page.wait(lambda: len(page.all(".batch-cell img")) == 23)
