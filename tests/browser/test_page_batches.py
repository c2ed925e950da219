"""The batches: any step, as the loader returns it; ranks, coverage and states."""

import json

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys
from test_page_examples import image_colour
from view_data import colour

import covey

LARGE = 10**12


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


def plan_of(ds, p=6, k=4, **options):
    return ds.batches(p, k, select="caption", **options).plan


def batch(ds, step, p=6, k=4, **options):
    """Return the ids of each class of a batch."""
    return plan_of(ds, p, k, **options).batch(step).reshape(p, k).tolist()


def flat(rows):
    return [each for row in rows for each in row]


def set_field(page, name, value):
    """Enter a value, as with the keyboard."""
    field = page.one(f"input[name={name}]")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(str(value) if str(value) else Keys.DELETE, Keys.ENTER)


def test_the_first_batch(visit, ds):
    page = visit("birds", "#/batches")
    expected = batch(ds, 0)
    wait_rows(page, expected)
    page.wait(lambda: len(page.all(".batch-cell img")) == 24)
    names = [page.text(f".batch-row:nth-child({n}) .batch-class a") for n in range(1, 7)]
    assert names == [ds.class_name(ds.labels[ids[0]]) for ids in expected]


@pytest.mark.parametrize("step", [LARGE, 7, 2**53 - 1])
def test_any_step(visit, ds, step):
    page = visit("birds", "#/batches")
    wait_rows(page, batch(ds, 0))
    set_field(page, "step", step)
    wait_rows(page, batch(ds, step))
    assert f"step={step}" in page.hash
    again = visit("birds", page.hash)
    wait_rows(again, batch(ds, step))
    assert again.one("input[name=step]").get_attribute("value") == str(step)
    for text in ("1e12", "10^12", "1,000,000,000,000"):
        set_field(again, "step", text)
        wait_rows(again, batch(ds, LARGE))


def test_a_step_that_is_not_valid(visit, ds):
    page = visit("birds", "#/batches")
    set_field(page, "step", "-3")
    page.wait(lambda: page.one("input[name=step]").get_attribute("aria-invalid") == "true")
    page.see("must be an integer from 0", ".batch-bar")
    wait_rows(page, batch(ds, 0))
    set_field(page, "step", "3")
    wait_rows(page, batch(ds, 3))
    assert "must be" not in page.text(".batch-bar")
    page.go("#/batches?step=-3").see("The step in the URL must be", "[role=alert]")


def test_keys_and_buttons(visit, ds):
    page = visit("birds", "#/batches")
    wait_rows(page, batch(ds, 0))
    page.one("body").send_keys(Keys.ARROW_RIGHT)
    wait_rows(page, batch(ds, 1))
    page.one("body").send_keys(Keys.ARROW_LEFT)
    wait_rows(page, batch(ds, 0))
    page.click("button[aria-label='One epoch ahead']")
    wait_rows(page, batch(ds, plan_of(ds).steps_per_epoch))


def test_options_of_the_plan(visit, ds):
    page = visit("birds", "#/batches")
    set_field(page, "classes_per_batch", 3)
    set_field(page, "examples_per_class", 5)
    set_field(page, "seed", 11)
    wait_rows(page, batch(ds, 0, 3, 5, seed=11))
    assert not page.one("input[name=world_size]").is_displayed()  # few need it
    page.button("More").click()
    set_field(page, "total_examples_per_class", 6)
    wait_rows(page, batch(ds, 0, 3, 5, seed=11, total_examples_per_class=6))
    page.set("select[name=class_weights]", "sqrt")
    expected = batch(ds, 0, 3, 5, seed=11, total_examples_per_class=6, class_weights="sqrt")
    wait_rows(page, expected)
    again = visit("birds", page.hash)
    wait_rows(again, expected)


def test_shuffled_and_sequential(visit, ds):
    page = visit("birds", "#/batches")
    page.set("select[name=plan]", "shuffled")
    set_field(page, "batch_size", 10)
    wait_rows(page, [ds.shuffled(10, select="caption").plan.batch(0).tolist()])
    page.set("select[name=plan]", "sequential")
    wait_rows(page, [list(range(10))])


def test_ranks_side_by_side(visit, ds):
    page = visit("birds", "#/batches?classes_per_batch=4&examples_per_class=2&step=5")
    page.button("More").click()
    set_field(page, "world_size", 2)
    page.wait(lambda: len(page.all(".batch-rank")) == 2)
    plan = plan_of(ds, 4, 2)
    for rank in range(2):
        ids = plan.for_rank(rank, 2).batch(5)
        page.wait(lambda rank=rank, ids=ids: flat(rows(page, rank)) == ids.tolist())
    page.set("select[name=mode]", "independent")
    for rank in range(2):
        ids = plan.for_rank(rank, 2, "independent").batch(5)
        page.wait(lambda rank=rank, ids=ids: flat(rows(page, rank)) == ids.tolist())


CELL = ".batch-row:nth-child({}) .batch-cell:nth-child({}) img"
BUILT = "classes_per_batch=3&examples_per_class=2&x=1&select=photo&image_size=32"


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
    page.wait(lambda: "crop=random" in page.hash)
    set_field(page, "views", 2)
    page.wait(lambda: len(page.all(".batch-parts img")) == 12)
    page.all(".batch-cell .card-open")[0].click()
    page.see(f"Example {flat(expected)[0]}", "dialog")


def test_images_of_different_sizes(visit):
    """The loader raises an error, which is shown; the page lives."""
    page = visit("birds", "#/batches?x=1&select=photo")
    page.allowed_errors.append("400 (Bad Request)")
    page.see("The loader raises: ")
    page.see("images have different sizes")
    page.go("#/batches")
    page.wait(lambda: len(page.all(".batch-cell img")) == 24)


def test_ragged_values(visit, ds):
    page = visit("birds", "#/batches?x=1&select=notes")
    rows = [len(ds[each]["notes"]) for each in flat(batch(ds, 0))]
    page.wait(lambda: [each.count("[") - 1 for each in page.texts(".batch-parts")] == rows)
    page.see("notes: float32, ")


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


def test_a_loader(visit, data):
    """The plan, the step and the options are those of the loader, whose batches are shown first."""
    page = visit("loader", "")
    page.wait(lambda: len(page.all(".batch-parts img")) == 6)
    page.see("seed=9")
    assert not page.all("input[name=seed]")
    page.click("input[name=x]")
    with covey.open(data("birds"), split="train") as ds:
        expected = batch(ds, 17, 3, 2, seed=9)
    wait_rows(page, expected)
    page.wait(lambda: not page.all(".batch-parts img"))
    page.driver.refresh()
    wait_rows(page, expected)
    assert not page.all(".batch-parts img")


def test_a_corrupt_record(visit, ds):
    plan = plan_of(ds)
    step = next(step for step in range(1000) if 3 in plan.batch(step))
    page = visit("corrupt", f"#/batches?step={step}")
    page.see("Cannot be read")
    assert len(page.all(".card-broken")) == 1
    page.wait(lambda: len(page.all(".batch-cell img")) == 23)


def test_a_million_classes(visit):
    page = visit("million", f"#/batches?classes_per_batch=16&examples_per_class=1&step={LARGE}")
    page.wait(lambda: len(page.all(".batch-row")) == 16)
    page.see("Seen before step 1,000,000,000,000:")


def test_an_empty_split(visit, ds):
    page = visit("birds", "#/batches?split=test")
    page.set("select[name=split]", "empty")
    page.see("The split has no examples.")
    assert page.text().count("no examples") == 1
    page.set("select[name=split]", "train")
    wait_rows(page, batch(ds, 0))
