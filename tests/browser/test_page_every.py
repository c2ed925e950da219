"""What holds for every page: accessibility, themes, narrow windows, keys, and URLs."""

import json

import pytest
from browsing import DESKTOP, PHONE, Page
from selenium.webdriver.common.keys import Keys
from servers import directory_server, tunnel
from view_data import HOSTILE, LARGE_IDS

import covey
from covey.view import View
from covey.view.session import Session

PAGES = {
    "overview": "#/overview",
    "classes": "#/classes",
    "examples": '#/examples?where=[["eggs","less","3"]]',
    "table": "#/examples?view=table&class=2",
    "example": "#/examples?example=15",
    "batches": "#/batches?x=1&select=photo&image_size=32",
    "embeddings": "#/embeddings?id=7&colour=species",
}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_accessible(visit, name):
    """In light and dark, with a wide and a narrow window: no violation, no horizontal scrolling."""
    page = visit("birds", PAGES[name])
    for size, theme in ((DESKTOP, "light"), (PHONE, "dark"), (PHONE, "light"), (DESKTOP, "dark")):
        page.resize(size)
        page.theme(theme)
        page.wait(lambda size=size: page.run("return window.innerWidth") == size[0])
        page.settle(3)
        assert page.overflow() <= 0, (size, theme)
        assert page.violations() == [], (size, theme)


@pytest.mark.parametrize("name", ["overview", "classes", "examples", "batches"])
def test_hostile_and_empty_names_on_every_page(visit, name):
    """Nothing of them is interpreted; a link has a name, also if that of its class is empty."""
    page = visit("nameless", f"#/{name}")
    page.settle(3)
    page.see("(empty)")
    assert page.violations() == []
    page = visit("hostile", f"#/{name}")
    for size in (DESKTOP, PHONE):
        page.resize(size)
        page.settle(3)
        assert page.overflow() <= 0
    assert page.run("return document.querySelectorAll('script:not([src]), img[src=x]').length") == 0
    assert page.violations() == []
    text = page.driver.page_source
    assert not any(each in text for each in ("\u202e", "\x07", "\x1b"))
    assert max(map(len, page.texts("main a, main button"))) < len(max(HOSTILE, key=len))


def test_class_ids_that_numbers_of_javascript_do_not_represent(visit):
    page = visit("large", "#/classes")
    page.wait(lambda: page.texts(".class-row a") == list(map(str, LARGE_IDS)))
    page.button(str(LARGE_IDS[3]), ".class-row").click()
    page.wait(lambda: page.all(".card-open[data-id='3']"))
    page.see("10 examples found")
    page.go("#/examples").see("40 examples")
    page.go(f"#/examples?class={LARGE_IDS[2]}").see("10 examples found")
    page.wait(lambda: page.all(".card-open[data-id='2']"))
    assert page.one("input[name=class]").get_attribute("value") == str(LARGE_IDS[2])
    page.go("#/batches").see(str(LARGE_IDS[0]))
    page.go("#/overview").see("4 classes, 40 examples")


def test_a_narrow_window(visit):
    """All controls are within the window, and can be used."""
    page = visit("birds", "#/examples", size=PHONE)
    page.wait(lambda: page.all(".card-open"))
    page.button("Filter").click()
    page.set("select[name=feature]", "caption")
    page.set("input[name=value]", "branch 7")
    page.see("11 examples found")
    page.all(".card-open")[0].click()
    page.see("branch 7", "dialog")
    assert page.one("dialog").size["width"] <= PHONE[0]


def test_tabs_and_keys(visit):
    page = visit("birds")
    tabs = {"2": "Classes", "3": "Examples", "4": "Batches", "5": "Embeddings", "1": "Overview"}
    for key, title in tabs.items():
        page.one("body").send_keys(key)
        page.wait(lambda title=title: page.text("#tabs [aria-current=page]") == title)
        page.ready()
        assert page.driver.title == f"{title} - covey view"
    page.driver.back()
    page.wait(lambda: page.text("#tabs [aria-current=page]") == "Embeddings")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.one("body").send_keys("t")
    dark = page.run(ground)
    page.open("#/classes")
    assert page.run(ground) == dark != light  # the theme is kept
    page.one("body").send_keys("/")
    assert page.focused().get_attribute("name") == "query"
    page.press("2")  # a field gets the key
    assert page.focused().get_attribute("value") == "2"


def test_the_focus_is_visible(visit):
    page = visit("birds", "#/examples")
    page.wait(lambda: page.all(".card-open"))
    seen = set()
    for _ in range(25):
        page.press(Keys.TAB)
        outline = page.run("""
            const style = getComputedStyle(document.activeElement);
            return document.activeElement === document.body
              || style.outlineStyle !== "none" || style.boxShadow !== "none";
        """)
        assert outline, page.focused().get_attribute("outerHTML")[:200]
        seen.add(page.focused().tag_name)
    assert {"a", "button", "select", "input"} <= seen


def test_the_server_ends(browser, data):
    """The page reports that the server does not answer."""
    view = View(Session.of_path(data("birds")))
    page = Page(browser, view).open("#/overview")
    view.close()
    page.go("#/examples")
    page.wait(lambda: page.all("[role=alert], .card-broken, .error"))
    browser.get("about:blank")
    page.console()
    page.requests()


def test_a_notebook(browser, data, tmp_path):
    """The iframe of a page of localhost has the cookie, and shows the view."""
    with (
        covey.open(data("birds"), split="test") as ds,
        ds.view(browser=False) as view,
        directory_server(tmp_path) as notebook,
    ):
        (tmp_path / "notebook.html").write_text(f"<!doctype html>{view._repr_html_()}")
        page = Page(browser, view)
        page.console()
        browser.get(f"{notebook.replace('127.0.0.1', 'localhost')}/notebook.html")
        browser.switch_to.frame(page.one("iframe"))
        try:
            page.see("24 examples")
            assert page.run("return window.location.search") == ""  # without the token
            assert [each for each in page.console() if "favicon.ico" not in each] == []
        finally:
            browser.switch_to.default_content()
            browser.get("about:blank")


def test_through_a_tunnel(browser, data):
    """The page works at another local port: its requests, its images, and the POST of a state."""
    with (
        covey.open(data("birds"), split="train") as ds,
        View(Session.of_path(data("birds"))) as view,
        tunnel(view.port) as address,
    ):
        address = address.replace("127.0.0.1", "localhost")
        page = Page(browser, view)
        page.console()
        browser.get(f"{address}/?{view.url.partition('?')[2]}#/batches")
        page.ready().wait(lambda: len(page.all(".batch-cell img")) == 24)
        text = json.dumps(ds.batches(4, 3, seed=21, select="eggs").state_dict())
        page.run("document.querySelector('textarea[name=state]').value = arguments[0]", text)
        page.button("Go to its batch").click()
        page.see("The run continues with step 0.")
        assert browser.current_url.startswith(f"{address}/#/batches")
        assert page.console() == []
        browser.get("about:blank")
        page.requests()
