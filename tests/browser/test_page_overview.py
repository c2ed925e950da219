"""The overview: examples and a batch first; splits, features, label distribution and values."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import covey


def test_the_first_screen_has_examples_and_the_batch_of_step_0(visit, data):
    page = visit("birds")
    assert page.one("#tabs [aria-current=page]").text == "Overview"
    shown = "return [...document.querySelectorAll(`[data-first=${arguments[0]}] .card-open`)].map(\
        (each) => Number(each.dataset.id))"
    assert len(page.run(shown, "examples")) == 12
    with covey.open(data("birds"), split="train") as ds:
        assert page.run(shown, "batches") == ds.batches(6, 4, select="eggs").plan.batch(0).tolist()
    box = "const e = document.querySelector('[data-first=batches]').getBoundingClientRect();"
    assert page.run(f"{box} return e.top") < 500
    page.button("Any step, any plan").click()
    page.wait(lambda: page.hash == "#/batches?split=train")


def test_splits_and_features(visit):
    page = visit("birds")
    rows = {row.split()[0]: row.split() for row in page.texts("main table tbody tr")}
    assert list(rows)[:3] == ["train", "test", "empty"]
    assert [rows[each][1:3] for each in ("train", "test", "empty")] == [
        ["120", "6"], ["24", "6"], ["0", "0"],
    ]  # fmt: skip
    assert {"photo", "caption", "song", "notes", "weight", "eggs", "curve", "species"} <= set(rows)
    assert rows["species"][-1] == "label"


def test_equal_counts_are_a_sentence(visit):
    page = visit("birds")
    page.see("6 classes, 120 examples, 20 in each.")
    assert not page.all("[data-part=labels] svg")
    visit("million").see("1,000,000 classes, 1,000,000 examples, 1 in each.")
    visit("birds", "#/overview?split=empty").see("The split has no examples.")


def test_the_label_distribution(visit):
    """A bar for each class, sorted; a click and the keys open the examples of a class."""
    page = visit("uneven")
    page.see("3 classes, 60 examples. Largest: wren with 40; median 15; smallest: owl with 5.")
    chart = page.one("[data-part=labels] .chart-plot")
    assert page.run("return arguments[0].querySelector('path').getAttribute('d')", chart)
    ActionChains(page.driver).move_to_element_with_offset(chart, -300, 0).perform()
    page.wait(lambda: page.text("[data-part=labels] .chart-tip") == "wren: 40 examples")
    chosen = page.one("[data-part=labels] input[type=range]")
    chosen.send_keys(Keys.ARROW_RIGHT)
    assert chosen.get_attribute("aria-valuetext") == "crane: 15 examples"
    chosen.send_keys(Keys.ENTER)
    page.ready().see("15 examples found")


def test_values(visit):
    page = visit("birds")
    facts = {name: page.text(f"[data-survey='{name}']") for name in ("photo", "caption", "weight")}
    assert "7 \u00d7 9 to 200 \u00d7 160" in facts["photo"]
    assert "png" in facts["photo"].lower()
    assert "Length" in facts["caption"]
    assert "NaN\n12" in facts["weight"]
    assert page.all("[data-survey='weight'] .bars")
    visit("corrupt").see("1 record cannot be read.")


def test_another_split(visit):
    page = visit("birds")
    page.set(".overview-split select[name=split]", "test")
    page.wait(lambda: "split=test" in page.hash)
    page.ready().see("6 classes, 24 examples")


def test_without_a_label_the_page_offers_the_candidates(visit):
    page = visit("unlabelled", "#/classes")
    page.see("no label")
    assert page.violations() == []
    page.set("select[name=label]", "kind")
    page.wait(lambda: page.texts(".class-row a") == ["owl", "wren"])


@pytest.mark.parametrize("target", ["#/overview", "#/examples", "#/batches", "#/classes"])
def test_an_empty_dataset(visit, target):
    page = visit("empty", target)
    page.wait(lambda: page.one(".view").get_attribute("data-state") == "ready")
    assert "0 " in page.text() or "no examples" in page.text() or "No examples" in page.text()


def test_a_remote_dataset(visit):
    page = visit("remote")
    page.see("s3://view/birds")
    page.see("6 classes, 120 examples")
    assert "nothing" not in page.driver.page_source  # the secret key
