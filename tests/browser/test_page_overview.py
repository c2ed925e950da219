"""The overview: splits, features, label distribution, values and shards."""

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys


def labels_chart(page):
    """Return the selector of the chart of the label distribution."""
    return page.one("[data-part=labels] canvas")


def test_splits_and_features(visit):
    page = visit("birds")
    assert page.one("#tabs [aria-current=page]").text == "Overview"
    rows = {row.split()[0]: row.split() for row in page.texts("main table tbody tr")}
    assert rows["train"][:3] == ["train", "120", "6"]
    assert rows["test"][:3] == ["test", "24", "6"]
    assert rows["empty"][:3] == ["empty", "0", "0"]
    assert {"photo", "caption", "song", "notes", "weight", "eggs", "curve", "species"} <= set(rows)
    assert rows["species"][-1] == "label"


def test_the_label_distribution(visit):
    page = visit("birds")
    page.see("6 classes, 120 examples")
    chart = labels_chart(page)
    accent = page.run("""
        const probe = document.createElement("canvas").getContext("2d");
        const style = getComputedStyle(document.documentElement);
        probe.fillStyle = style.getPropertyValue("--accent").trim();
        probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)].join();
    """)
    area = chart.size["width"] * chart.size["height"]
    canvas = "[data-part=labels] canvas"
    page.wait(lambda: page.pixels(canvas).get(accent, 0) > area / 4)  # six bars of the same height
    ActionChains(page.driver).move_to_element(chart).perform()
    tip = page.one("[data-part=labels] .chart-tip")
    page.wait(tip.is_displayed)
    assert tip.text.split()[0].strip(":") in ("robin", "heron", "wren", "swift")
    assert "20" in tip.text
    page.click("[data-part=labels] .chart-plot")
    page.wait(lambda: page.hash.startswith("#/examples?split=train&class="))
    page.ready().see("20 examples found")


def test_the_label_distribution_with_keys(visit):
    page = visit("birds")
    chosen = page.one("[data-part=labels] input[type=range]")
    chosen.send_keys(Keys.ARROW_RIGHT)
    assert "wren" in chosen.get_attribute("aria-valuetext")
    chosen.send_keys(Keys.ENTER)
    page.wait(lambda: page.hash == "#/examples?split=train&class=1")


def test_the_logarithmic_scale_is_in_the_url(visit):
    page = visit("birds")
    page.wait(lambda: page.pixels("[data-part=labels] canvas"))
    before = page.pixels("[data-part=labels] canvas")
    page.click("input[name=log]")
    page.wait(lambda: "log=1" in page.hash)
    page.wait(lambda: page.pixels("[data-part=labels] canvas") != before)
    again = visit("birds", page.hash)
    assert again.one("input[name=log]").is_selected()


def test_values(visit):
    page = visit("birds")
    facts = {name: page.text(f"[data-survey='{name}']") for name in ("photo", "caption", "weight")}
    assert "7 \u00d7 9 to 200 \u00d7 160" in facts["photo"]
    assert "png" in facts["photo"].lower()
    assert "Length" in facts["caption"]
    assert "NaN\n12" in facts["weight"]
    page.wait(lambda: page.pixels("[data-survey='weight'] canvas"))


def test_another_split(visit):
    page = visit("birds")
    page.set(".overview-split select[name=split]", "test")
    page.wait(lambda: page.hash.startswith("#/?split=test") or "split=test" in page.hash)
    page.ready().see("6 classes, 24 examples")
    page.go("#/overview?split=empty").see("The split has no examples.")


def test_shards(visit):
    page = visit("birds")
    rows = page.texts("[data-shard]")
    assert len(rows) == 3
    assert all(row.split()[-2:] == ["40", "ok"] for row in rows)


def test_a_corrupt_record_is_reported(visit):
    page = visit("corrupt")
    page.see("1 record cannot be read.")


def test_the_splits_are_not_cut(visit):
    page = visit("birds")
    script = """
        const table = document.querySelector("[aria-label=Splits]");
        return table.scrollWidth - table.clientWidth;
    """
    assert page.run(script) <= 0


def test_an_empty_dataset(visit):
    page = visit("empty")
    page.see("The split has no examples.")
    assert page.one(".view").get_attribute("data-state") == "ready"


def test_a_million_classes(visit):
    page = visit("million")
    page.see("1,000,000 classes, 1,000,000 examples")
    page.wait(lambda: page.pixels("[data-part=labels] canvas"))


def test_a_remote_dataset(visit):
    page = visit("remote")
    page.see("s3://view/birds")
    page.see("6 classes, 120 examples")
    assert "nothing" not in page.driver.page_source.replace("nothing is", "")  # the secret key
