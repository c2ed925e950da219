"""The classes: a list with a search."""

import pytest
from selenium.webdriver.common.keys import Keys
from view_data import HOSTILE, SPECIES


def names(page):
    return page.texts(".class-row a")


def test_the_list(visit):
    page = visit("birds", "#/classes")
    page.wait(lambda: names(page) == list(SPECIES))
    page.wait(lambda: len(page.all(".class-row .strip img")) >= 5 * 10)
    page.all(".class-row .card-open")[1].click()
    assert page.one("dialog h2").text == "Example 6"
    page.press(Keys.ESCAPE)
    page.button("heron", ".class-row").click()
    page.wait(lambda: page.hash == "#/examples?split=train&class=3")
    page.ready().see("20 examples found")
    page.wait(lambda: len(page.all(".card-open[aria-label*=heron]")) == 20)


def test_search(visit):
    page = visit("birds", "#/classes")
    page.set("input[name=query]", "r")
    page.wait(lambda: names(page) == ["wren", "robin", "heron", "crane"])
    page.see("4 of 6 classes")
    again = visit("birds", page.hash)
    again.wait(lambda: names(again) == ["wren", "robin", "heron", "crane"])
    again.set("input[name=query]", "nothing like this")
    again.see("0 of 6 classes")
    assert names(again) == []


def test_sounds_have_a_waveform_and_a_play_button(visit):
    page = visit("sounds", "#/classes")
    page.wait(lambda: len(page.all(".class-row .play")) >= 4)
    assert page.all(".class-row .small-plot path")
    button = page.all(".play")[0]
    button.click()
    page.wait(lambda: button.get_attribute("aria-pressed") == "true")
    page.wait(lambda: button.get_attribute("aria-pressed") == "false")  # at its end
    for view in ("#/examples", "#/batches", "#/overview"):
        page.go(view).wait(lambda: page.all(".card .play"))


def test_a_million_classes(visit):
    page = visit("million", "#/classes")
    page.see("1,000,000 classes")
    page.wait(lambda: names(page)[:3] == ["0", "1", "2"])
    # The end of a list that is higher than an element can be.
    page.one(".class-row a").send_keys(Keys.END)
    page.wait(lambda: "999999" in names(page))
    assert page.focused().text == "999999"
    assert len(page.all(".class-row")) < 40  # those in view
    page.press(Keys.ARROW_UP)
    page.wait(lambda: page.focused().text == "999998")
    page.press(Keys.PAGE_UP)
    page.wait(lambda: 999900 < int(page.focused().text) < 999998)
    # The middle, by the scroll bar.
    page.run("const e = document.querySelector('.class-list'); e.scrollTop = e.scrollHeight / 2")
    page.wait(lambda: names(page) and 400_000 < int(names(page)[0]) < 600_000)
    page.set("input[name=query]", "12345")
    page.wait(lambda: names(page)[:2] == ["12345", "112345"])
    page.see("20 of 1,000,000 classes")


def test_hostile_and_empty_names(visit):
    page = visit("nameless", "#/classes")
    page.wait(lambda: sorted(names(page)) == ["(empty)", "(empty)", "owl"])
    page = visit("hostile", "#/classes")
    page.wait(lambda: len(page.all(".class-row")) >= 5)
    shown = "\n".join(names(page))
    assert "<script>window.hacked = 1</script>" in shown
    assert "\\u001b" in shown
    assert max(map(len, names(page))) <= 200
    for row in range(len(HOSTILE)):
        page.go(f"#/examples?class={row}").see("5 examples")
    assert page.run("return document.querySelectorAll('main script, main img[src=x]').length") == 0


@pytest.mark.parametrize("view", ["examples", "overview", "batches"])
def test_cut_names_differ(visit, view):
    """Names that differ in their middle only are not equal when they are cut."""
    page = visit("similar", f"#/{view}?size=64&view=grid")
    page.wait(lambda: len(page.all(".card-class, .batch-class a")) >= 3)
    found = set(page.texts(".card-class")) or set(page.texts(".batch-class a"))
    assert len(found) == 3
