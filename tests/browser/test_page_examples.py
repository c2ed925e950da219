"""The examples: grid, filters, order, zoom, details, selection and export."""

import json
import math

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from view_data import SPECIES, bird, colour

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


def test_the_grid(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10), 120)
    assert page.texts(".card-class")[:3] == list(SPECIES[:3])
    for number in (0, 3):
        found = image_colour(page, f".grid-cell:nth-child({number + 1}) img")
        assert np.abs(np.subtract(found, colour(number))).max() <= 2
    page.run("const e = document.querySelector('.gallery'); e.scrollTop = e.scrollHeight")
    page.wait(lambda: 119 in ids(page))
    assert 0 not in ids(page)


def test_the_zoom_is_in_the_url(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    before = page.one(".grid-cell").size["width"]
    page.set("input[name=size]", 320)
    page.wait(lambda: page.one(".grid-cell").size["width"] > 2 * before)
    again = visit("birds", page.hash)
    again.wait(lambda: again.one(".grid-cell").size["width"] > 2 * before)


def test_filter_by_class(visit):
    page = visit("birds", "#/examples")
    field = page.one("input[name=class]")
    field.click()
    field.send_keys("her")
    page.wait(lambda: page.texts("[role=option]") and "heron" in page.texts("[role=option]")[0])
    field.send_keys(Keys.ENTER)
    wait_ids(page, [n for n in range(120) if n % 6 == 3][:10], 20)
    assert "class=3" in page.hash
    again = visit("birds", page.hash)
    wait_ids(again, [3, 9, 15], 20)
    assert again.one("input[name=class]").get_attribute("value") == "heron"
    again.click(".picker-clear")
    wait_ids(again, range(10), 120)


FILTERS = {
    "contains": (
        "caption",
        "contains",
        "BRANCH 11",
        lambda each: "branch 11" in each["caption"].lower(),
    ),
    "is": ("species", "equals", "wren", lambda each: each["species"] == "wren"),
    "less": ("weight", "less", "2", lambda each: each["weight"] < 2),
    "greater": ("eggs", "greater", "3", lambda each: each["eggs"] > 3),
    "number": ("eggs", "equals", "4", lambda each: each["eggs"] == 4),
    "nan": ("weight", "nan", None, lambda each: math.isnan(each["weight"])),
    "array": ("curve", "less", "-0.9999", lambda each: each["curve"].min() < -0.9999),
    "class name": ("species", "contains", "wre", lambda each: each["species"] == "wren"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filter_by_value(visit, name):
    feature, operator, value, is_found = FILTERS[name]
    expected = [number for number, each in enumerate(BIRDS) if is_found(each)]
    page = visit("birds", "#/examples")
    page.set("select[name=feature]", feature)
    page.set("select[name=op]", operator)
    if value is not None:
        page.set("input[name=value]", value)
    page.see(f"{len(expected)} example")
    wait_ids(page, expected[:10])
    again = visit("birds", page.hash)
    wait_ids(again, expected[:10])
    assert again.one("select[name=op]").get_attribute("value") == operator


def test_nothing_is_found(visit):
    page = visit("birds", "#/examples")
    page.set("input[name=value]", "no such caption")
    page.see("No examples found")
    assert ids(page) == []


def test_a_value_that_is_not_a_number(visit):
    page = visit("birds", "#/examples?feature=weight&op=less&value=heavy")
    page.allowed_errors.append("400 (Bad Request)")
    page.see("heavy")
    assert page.all("[role=alert]")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("feature=zzz&op=equals&value=1", 'The feature in the URL is "zzz"; must be one of'),
        ("feature=photo&value=1", 'The feature in the URL is "photo"; must be one of'),
        ("feature=eggs&op=is&value=1", 'The op in the URL is "is"; must be one of equals,'),
        ("show=zzz", 'The show in the URL is "zzz"; must be one of photo,'),
        ("class=owl", "There is no class owl in this split."),
        ("class=99", "There is no class 99 in this split."),
        ("split=nope", 'There is no split "nope" in this dataset.'),
    ],
)
def test_invalid_parameters_of_the_url(visit, parameters, message):
    """An error, instead of the examples of another filter."""
    page = visit("birds", f"#/examples?{parameters}")
    page.see(message, "[role=alert]")
    assert ids(page) == []


def test_another_split(visit):
    page = visit("birds", "#/examples")
    page.set(".filters select[name=split]", "test")
    page.see("24 examples")
    page.go("#/examples?split=empty").see("No examples found")


@pytest.mark.parametrize("name", ["caption", "song", "notes", "curve", "weight", "eggs"])
def test_cards_show_any_feature(visit, name):
    page = visit("birds", f"#/examples?show={name}")
    wait_ids(page, range(4))
    if name == "caption":
        assert "A wren on branch 1." in page.text(".grid-cell:nth-child(2)")
    elif name in ("weight", "eggs"):
        expected = "0.5" if name == "weight" else "2"
        assert expected in page.text(".grid-cell:nth-child(3)")
    else:
        page.wait(lambda: page.pixels(".grid-cell:nth-child(4) canvas"))


def test_details(visit, data):
    import covey

    with covey.open(data("birds"), split="train") as ds:
        place = ds.place(15)
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    page.all(".card-open")[15].click()
    page.wait(lambda: page.one("dialog h2").text == "Example 15")
    page.see("heron (3)", "dialog")
    page.see(f"{place.offset:,} bytes", "dialog")
    assert place.name.rpartition("/")[2] in page.text("dialog")
    for name in ("photo", "caption", "song", "notes", "weight", "eggs", "curve"):
        assert page.all(f"dialog [data-feature={name}]")
    assert "A heron on branch 15." in page.text("dialog [data-feature=caption]")
    found = image_colour(page, "dialog [data-feature=photo] img")
    assert np.abs(np.subtract(found, colour(15))).max() <= 2
    for name in ("song", "curve", "notes"):
        page.wait(lambda name=name: page.pixels(f"dialog [data-feature={name}] canvas"))
    assert "example=15" in page.hash


def test_details_with_keys(visit):
    page = visit("birds", "#/examples?example=9")
    page.wait(lambda: page.one("dialog h2").text == "Example 9")
    page.press(Keys.ARROW_RIGHT)
    page.wait(lambda: page.one("dialog h2").text == "Example 10")
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    page.wait(lambda: page.one("dialog h2").text == "Example 8" and "example=8" in page.hash)
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog"))
    assert "example=" not in page.hash


def test_audio_plays(visit):
    page = visit("birds", "#/examples?example=4")
    audio = page.one("dialog audio")
    duration = page.driver.execute_async_script(
        """
        const [audio, done] = arguments;
        audio.addEventListener("loadedmetadata", () => done(audio.duration));
        audio.addEventListener("error", () => done("error"));
        audio.preload = "auto";
        audio.load();
        """,
        audio,
    )
    assert duration == pytest.approx(len(BIRDS[4]["song"]) / 8000, abs=0.01)


def test_keys_move_in_the_grid(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    page.one(".card-open").send_keys(Keys.ARROW_RIGHT)
    assert page.focused().get_attribute("data-id") == "1"
    page.press(Keys.END)
    page.wait(lambda: page.focused().get_attribute("data-id") == "119")
    page.press(Keys.HOME)
    page.wait(lambda: page.focused().get_attribute("data-id") == "0")
    page.press("x")
    page.see("1 example selected")
    page.press(Keys.ENTER)
    page.wait(lambda: page.one("dialog h2").text == "Example 0")
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog"))
    assert page.focused().get_attribute("data-id") == "0"


def downloaded(page, downloads, name):
    file = downloads / name
    page.wait(lambda: file.exists() and file.stat().st_size)  # empty until it is complete
    text = file.read_text()
    file.unlink()
    return text


def test_selection_and_export(visit, downloads):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    boxes = page.all(".card-box")
    boxes[1].click()
    ActionChains(page.driver).key_down(Keys.SHIFT).click(boxes[4]).key_up(Keys.SHIFT).perform()
    page.see("4 examples selected")
    page.click("[data-action=export]")
    assert "covey.open(" in page.text("dialog pre")
    code = page.text("dialog pre")
    assert "ids = [1, 2, 3, 4]" in code
    scope = {}
    exec(code, scope)
    assert scope["examples"]["eggs"].tolist() == [1, 2, 3, 4]
    others = [number for number in range(120) if number not in (1, 2, 3, 4)]
    expected = [scope["ds"][number]["caption"] for number in others]
    assert [each["caption"] for each in scope["rest"]] == expected
    page.click("dialog [data-action=ids]")
    assert downloaded(page, downloads, "train-4.txt") == "1\n2\n3\n4\n"
    page.press(Keys.ESCAPE)
    page.click("[data-action=clear]")
    page.wait(lambda: not page.one(".selection-bar").is_displayed())
    assert not any(each.is_selected() for each in page.all(".card-box"))


def test_select_all_that_is_found(visit):
    page = visit("birds", "#/examples?feature=eggs&op=equals&value=4")
    page.see("24 examples found")
    page.click("[data-action=select-all]")
    page.see("24 examples selected")
    page.go("#/classes?class=4")
    page.see("24 examples selected")


def test_a_corrupt_record(visit):
    page = visit("corrupt", "#/examples")
    wait_ids(page, range(10))
    page.wait(lambda: len(page.all(".card-broken")) == 1)
    assert "Cannot be read" in page.text(".card-broken")
    page.all(".card-open")[3].click()
    page.see("This example cannot be read", "dialog")
    page.see("checksum", "dialog")
    page.press(Keys.ARROW_RIGHT)
    page.see("branch 4", "dialog")
    page.press(Keys.ESCAPE)
    page.set("input[name=value]", "branch 7")
    wait_ids(page, [7, 70, 71])


def test_hostile_strings(visit):
    page = visit("hostile", "#/examples")
    wait_ids(page, range(8), 40)
    for number in range(8):
        page.go(f"#/examples?example={number}")
        page.wait(lambda number=number: page.one("dialog h2").text == f"Example {number}")
        page.see("species", "dialog")
    page.see("window.hacked", "dialog")
    assert page.run("return document.querySelectorAll('script:not([src]), img[src=x]').length") == 0


def test_code_of_hostile_names_is_python(visit):
    page = visit("hostile", "#/examples")
    wait_ids(page, range(8))
    page.one(".card-box").click()
    page.click("[data-action=export]")
    scope = {}
    exec(page.text("dialog pre"), scope)
    assert scope["examples"]["x"].tolist() == [0]


def test_a_remote_dataset(visit):
    page = visit("remote", "#/examples")
    wait_ids(page, range(8), 120)
    found = image_colour(page, ".grid-cell:nth-child(2) img")
    assert np.abs(np.subtract(found, colour(1))).max() <= 2


def test_the_window_is_resized(visit):
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    columns = page.run("""
        return new Set([...document.querySelectorAll(".grid-cell")].map(
          (each) => each.getBoundingClientRect().left)).size
    """)
    page.resize((500, 700))
    page.wait(lambda: page.run("""
        return new Set([...document.querySelectorAll(".grid-cell")].map(
          (each) => each.getBoundingClientRect().left)).size < arguments[0]
    """, columns))  # fmt: skip
    assert page.overflow() <= 0
    wait_ids(page, range(3))


def test_json_of_the_grid_is_small(visit):
    """Cards do not load what they do not show."""
    page = visit("birds", "#/examples")
    wait_ids(page, range(10))
    entries = json.loads(
        page.run("""
        return JSON.stringify(performance.getEntriesByType("resource").map(
          ({ name, transferSize }) => [name, transferSize]))
    """)
    )
    assert sum(size for _, size in entries) < 2_000_000
    assert not [name for name, _ in entries if "/api/audio" in name]
