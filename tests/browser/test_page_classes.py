"""The classes: a list with search and order, and the page of one class."""

import pytest
from selenium.webdriver.common.keys import Keys
from view_data import HOSTILE, SPECIES


def names(page):
    return page.texts(".class-row a")


def test_the_list(visit):
    page = visit("birds", "#/classes")
    page.wait(lambda: names(page) == list(SPECIES))
    page.wait(lambda: len(page.all(".class-row .strip-item img")) >= 6 * 10)
    script = "return [...document.querySelectorAll('.strip img')].every((e) => e.naturalWidth > 0)"
    page.wait(lambda: page.run(script))


def test_search_and_order(visit):
    page = visit("birds", "#/classes")
    page.set("input[name=query]", "r")
    page.wait(lambda: names(page) == ["wren", "robin", "heron", "crane"])
    page.see("4 of 6 classes")
    page.set("select[name=order]", "name")
    page.wait(lambda: names(page) == ["crane", "heron", "robin", "wren"])
    again = visit("birds", page.hash)
    again.wait(lambda: names(again) == ["crane", "heron", "robin", "wren"])
    again.set("input[name=query]", "nothing like this")
    again.see("0 of 6 classes")
    assert names(again) == []


def test_a_class(visit):
    page = visit("birds", "#/classes")
    page.button("heron", ".class-row").click()
    page.wait(lambda: page.hash == "#/classes?split=train&class=3")
    page.ready().see("20 examples · id 3")
    page.wait(lambda: len(page.all(".card-open")) == 20)
    labels = [each.get_attribute("aria-label") for each in page.all(".card-open")]
    assert all("heron" in each for each in labels)
    page.button("Next class").click()
    page.wait(lambda: page.text(".class-title") == "swift")
    page.button("All classes").click()
    page.wait(lambda: names(page) == list(SPECIES))


def test_a_class_that_does_not_exist(visit):
    visit("birds", "#/classes?class=77").see("There is no class 77 in this split.")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("class=owl", "There is no class owl in this split."),
        ("split=nope", 'There is no split "nope" in this dataset.'),
        ("order=toString", "must be one of id, name, most, fewest."),
    ],
)
def test_invalid_parameters_of_the_url(visit, parameters, message):
    page = visit("birds", f"#/classes?{parameters}")
    page.see(message, "[role=alert]")
    assert not page.all(".class-row")


def test_select_all_while_the_first_page_is_loaded(visit):
    page = visit("birds", "#/classes")
    page.run("""
        const ask = window.fetch;
        const held = new Promise((resolve) => { window.release = resolve; });
        window.fetch = async (url, options) => {
          if (url.includes("limit=500")) await held;
          return ask(url, options);
        };
        window.location.hash = "#/classes?class=2";
    """)
    page.wait(lambda: page.text(".class-title") == "robin")
    page.click("[data-action=select-all]")
    page.run("window.release()")
    page.see("20 examples selected")


def test_strips_open_the_example(visit):
    page = visit("birds", "#/classes")
    page.wait(lambda: page.all(".strip-item"))
    page.all(".strip-item")[1].click()
    assert page.one("dialog h2").text == "Example 6"


def test_a_million_classes(visit):
    page = visit("million", "#/classes")
    page.see("1,000,000 classes")
    page.wait(lambda: names(page)[:3] == ["0", "1", "2"])
    assert len(page.all(".class-row")) < 60
    # The end of a list that is higher than an element can be.
    page.one(".class-row a").send_keys(Keys.END)
    page.wait(lambda: "999999" in names(page))
    assert page.focused().text == "999999"
    assert len(page.all(".class-row")) < 60
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


def test_the_list_of_a_million_classes_draws_the_rows_in_view(visit):
    """60 movements of the scroll bar: the number of rows does not grow, and none is missing."""
    page = visit("million", "#/classes")
    page.wait(lambda: page.all(".class-row"))
    counts = page.driver.execute_async_script("""
        const done = arguments[0];
        const list = document.querySelector(".class-list");
        const counts = [];
        function step(number) {
          if (number === 60) return done(counts);
          list.scrollTop += 997;
          // The list is drawn in the next frame, which is measured in the one after it.
          requestAnimationFrame(() => requestAnimationFrame(() => {
            const { top, bottom } = list.getBoundingClientRect();
            const rows = [...document.querySelectorAll(".class-row")]
              .map((each) => each.getBoundingClientRect());
            const isFirst = rows.some((each) => each.top <= top + 1);
            const isLast = rows.some((each) => each.bottom >= bottom - 1);
            counts.push(isFirst && isLast ? rows.length : 0);
            step(number + 1);
          }));
        }
        step(0);
    """)
    assert 0 < min(counts) <= max(counts) < 60


def test_hostile_names(visit):
    page = visit("hostile", "#/classes")
    page.wait(lambda: len(page.all(".class-row")) == len(HOSTILE))
    shown = "\n".join(names(page))
    assert "<script>window.hacked = 1</script>" in shown
    assert "\\u202e" in shown
    assert "\\u001b" in shown
    assert max(map(len, names(page))) <= 200
    assert page.run("return document.querySelectorAll('main script, main img[src=x]').length") == 0
    for row in range(len(HOSTILE)):
        page.go(f"#/classes?class={row}").see("5 examples")
    assert page.overflow() <= 0


def test_empty_names(visit):
    page = visit("nameless", "#/classes")
    page.wait(lambda: sorted(names(page)) == ["(empty)", "(empty)", "owl"])
    page.button("(empty)", ".class-row").click()
    page.wait(lambda: page.text(".class-title") == "(empty)")


def test_an_empty_split(visit):
    page = visit("birds", "#/classes?split=empty")
    page.see("0 classes")
