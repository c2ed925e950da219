"""The examples: grid, table, conditions, size, details, selection and export."""

import json

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from view_data import SPECIES, bird, colour

import covey

BIRDS = [bird(number) for number in range(120)]


def ids(page):
    """Return the ids of the cards in view, in order."""
    return [int(each) for each in page.run(
        "return [...document.querySelectorAll('.card-open')].map((each) => each.dataset.id)"
    )]  # fmt: skip


def wait_ids(page, expected, total=None):
    """Wait until the grid begins with some ids, all of them if they are few."""
    page.wait(lambda: ids(page)[: len(expected)] == list(expected), f"{expected}")
    if total is not None:
        page.see(f"{total} example")


def image_colour(page, selector):
    """Return the colour of the pixel near the lower right corner of an image."""
    script = "const e = document.querySelector(arguments[0]); return e?.complete && e.naturalWidth"
    page.wait(lambda: page.run(script, selector))
    return page.run(
        """
        const image = document.querySelector(arguments[0]);
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        const pen = canvas.getContext("2d");
        pen.drawImage(image, 0, 0);
        return [...pen.getImageData(canvas.width - 2, canvas.height - 2, 1, 1).data.slice(0, 3)];
        """,
        selector,
    )


def where(*conditions):
    return f"#/examples?where={json.dumps(conditions)}"


@pytest.mark.parametrize("name", ["birds", "remote"])
def test_the_grid(visit, name):
    page = visit(name, "#/examples")
    wait_ids(page, range(10), 120)
    assert page.texts(".card-class")[:3] == list(SPECIES[:3])
    for number in (0, 3):
        found = image_colour(page, f".grid-cell:nth-child({number + 1}) img")
        assert np.abs(np.subtract(found, colour(number))).max() <= 2
    assert page.run("""
        const entries = performance.getEntriesByType("resource");
        return entries.every(({ name }) => !name.includes("/api/audio"))
          && entries.reduce((sum, each) => sum + each.transferSize, 0) < 2e6;
    """)  # cards load what they show
    page.run("const e = document.querySelector('.gallery'); e.scrollTop = e.scrollHeight")
    page.wait(lambda: 119 in ids(page))
    assert 0 not in ids(page)


def test_the_size_is_in_the_url(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    before = page.one(".grid-cell").size["width"]
    page.set("input[name=size]", 320)
    page.wait(lambda: page.one(".grid-cell").size["width"] > 2 * before)
    again = visit("birds", page.hash)
    again.wait(lambda: again.one(".grid-cell").size["width"] > 2 * before)
    page.resize((500, 700))
    page.wait(lambda: page.one(".grid-cell").size["width"] < 500)
    assert page.overflow() <= 0


def test_the_table(visit):
    """A row for each example, a column for each feature; texts and numbers begin with it."""
    page = visit("uneven", "#/examples")
    wait_ids(page, range(8), 60)
    assert page.texts(".table-head > span") == ["Id", "x", "species"]
    assert page.text(".grid-cell:nth-child(7)").split("\n") == ["#6", "6", "wren"]
    page.set("select[name=view]", "grid")
    page.wait(lambda: page.all(".grid-cell .card"))
    assert "view=grid" in page.hash
    page = visit("birds", "#/examples?view=table")
    wait_ids(page, range(8), 120)
    assert "A wren on branch 1." in page.text(".grid-cell:nth-child(2)")
    assert page.all(".grid-cell:nth-child(2) :is(img, .play, .small-plot)")
    page.one(".card-open").send_keys(Keys.END)
    page.wait(lambda: 119 in ids(page) and page.focused().text == "#119")
    page.press("x")
    page.see("1 example selected")


def test_filter_by_class(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10), 120)
    field = page.one("input[name=class]")
    field.send_keys("her")
    page.wait(lambda: page.all("datalist option[value=heron]"))
    field.send_keys(Keys.ENTER)
    wait_ids(page, range(3, 120, 6), 20)
    assert "class=3" in page.hash
    again = visit("birds", page.hash)
    wait_ids(again, [3, 9, 15], 20)
    assert again.one("input[name=class]").get_attribute("value") == "heron"
    again.set("input[name=class]", "")
    again.press(Keys.ENTER)
    wait_ids(again, range(10), 120)


def test_several_conditions(visit):
    """All must hold, together with the class; one that is removed does not count."""
    page = visit("birds", where(["caption", "contains", "branch 1"], ["eggs", "less", "2"]))
    expected = [n for n, e in enumerate(BIRDS) if "branch 1" in e["caption"] and e["eggs"] < 2]
    wait_ids(page, expected[:10], len(expected))
    page.set("select[name=feature]", "weight")
    page.set(".condition:nth-of-type(3) select", "greater")
    page.set(".condition:nth-of-type(3) input", "4")
    expected = [n for n in expected if BIRDS[n]["weight"] > 4]
    wait_ids(page, expected[:10], len(expected))
    page.click("[aria-label='Remove the condition on eggs']")
    expected = [n for n, e in enumerate(BIRDS) if "branch 1" in e["caption"] and e["weight"] > 4]
    wait_ids(page, expected[:10], len(expected))
    page.set(".condition:nth-of-type(2) select", "nan")
    expected = [n for n, e in enumerate(BIRDS) if "branch 1" in e["caption"] and n % 10 == 3]
    wait_ids(page, expected, len(expected))
    again = visit("birds", page.hash)
    wait_ids(again, expected, len(expected))
    again.set(".condition:nth-of-type(1) input", "no such caption")
    again.see("No examples found")
    assert ids(again) == []


def test_a_search_is_read_as_far_as_it_is_wanted(visit):
    """More than a page is found, and all of it can be selected."""
    page = visit("million", where(["x", "less", "2300"]))
    page.see(" found, ")
    page.click("[data-action=select-all]")
    page.see("2,300 examples selected")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ('where=[["zzz","equals","1"]]', 'The feature in the URL is "zzz"; must be one of'),
        ('where=[["eggs","is","1"]]', 'The operator in the URL is "is"; must be one of equals,'),
        ("where=nothing", "The conditions in the URL are not a JSON list"),
        ("class=99", "There is no class 99 in this split."),
        ("split=nope", 'There is no split "nope" in this dataset.'),
    ],
)
def test_invalid_parameters_of_the_url(visit, parameters, message):
    """An error, instead of the examples of another filter."""
    page = visit("birds", f"#/examples?{parameters}")
    page.see(message, "[role=alert]")
    assert ids(page) == []


def test_details(visit, data):
    with covey.open(data("birds"), split="train") as ds:
        place = ds.place(15)
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    page.all(".card-open")[15].click()
    page.see("heron (3)", "dialog")
    page.see(f"{place.offset:,} bytes", "dialog")
    assert place.name.rpartition("/")[2] in page.text("dialog")
    for name in ("photo", "caption", "song", "notes", "weight", "eggs", "curve"):
        assert page.all(f"dialog [data-feature={name}]")
    assert "A heron on branch 15." in page.text("dialog [data-feature=caption]")
    found = image_colour(page, "dialog [data-feature=photo] img")
    assert np.abs(np.subtract(found, colour(15))).max() <= 2
    assert len(page.all("dialog .small-plot path")) == 3
    duration = page.driver.execute_async_script(
        """
        const [audio, done] = arguments;
        audio.addEventListener("loadedmetadata", () => done(audio.duration));
        audio.addEventListener("error", () => done("error"));
        audio.preload = "auto";
        audio.load();
        """,
        page.one("dialog audio"),
    )
    assert duration == pytest.approx(len(BIRDS[15]["song"]) / 8000, abs=0.01)
    assert "example=15" in page.hash
    again = visit("birds", page.hash)
    again.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    again.wait(lambda: again.one("dialog h2").text == "Example 13" and "example=13" in again.hash)
    again.press(Keys.ESCAPE)
    again.wait(lambda: not again.all("dialog"))
    assert "example=" not in again.hash


def test_keys_move_in_the_grid(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    page.one(".card-open").send_keys(Keys.ARROW_RIGHT)
    assert page.focused().get_attribute("data-id") == "1"
    for key, number in ((Keys.END, "119"), (Keys.HOME, "0")):
        page.press(key)
        page.wait(lambda number=number: page.focused().get_attribute("data-id") == number)
    page.press("x")
    page.see("1 example selected")
    page.press(Keys.ENTER)
    page.wait(lambda: page.one("dialog h2").text == "Example 0")
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog"))
    assert page.focused().get_attribute("data-id") == "0"


def test_selection_and_export(visit, downloads):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    boxes = page.all(".card-box")
    boxes[1].click()
    ActionChains(page.driver).key_down(Keys.SHIFT).click(boxes[4]).key_up(Keys.SHIFT).perform()
    page.see("4 examples selected")
    page.click("[data-action=export]")
    scope = {}
    exec(page.text("dialog pre"), scope)
    assert scope["examples"]["eggs"].tolist() == [1, 2, 3, 4]
    others = [BIRDS[number]["caption"] for number in range(120) if number not in (1, 2, 3, 4)]
    assert [each["caption"] for each in scope["rest"]] == others  # without the selection
    page.click("dialog [data-action=ids]")
    file = downloads / "train-4.txt"
    page.wait(lambda: file.exists() and file.read_text() == "1\n2\n3\n4\n")
    file.unlink()
    page.press(Keys.ESCAPE)
    page.click("[data-action=clear]")
    page.wait(lambda: not page.one(".selection-bar").is_displayed())
    assert not any(each.is_selected() for each in page.all(".card-box"))


def test_a_corrupt_record(visit):
    page = visit("corrupt", "#/examples")
    wait_ids(page, range(10))
    page.wait(lambda: len(page.all(".card-broken")) == 1)
    assert "Cannot be read" in page.text(".card-broken")
    page.all(".card-open")[3].click()
    page.see("This example cannot be read", "dialog")
    page.see("checksum", "dialog")
    page.press(Keys.ESCAPE)
    page.set("select[name=feature]", "caption")
    page.set("input[name=value]", "branch 7")
    wait_ids(page, [7, 70, 71])


def test_hostile_strings(visit):
    page = visit("hostile", "#/examples")
    wait_ids(page, range(8), 40)
    for number in range(8):
        page.go(f"#/examples?example={number}")
        page.wait(lambda number=number: page.one("dialog h2").text == f"Example {number}")
        page.see("species", "dialog")
    assert page.run("return document.querySelectorAll('script:not([src]), img[src=x]').length") == 0
    page.press(Keys.ESCAPE)
    page.one(".card-box").click()
    page.click("[data-action=export]")
    scope = {}
    exec(page.text("dialog pre"), scope)  # the code is Python
    assert scope["examples"]["x"].tolist() == [0]
