"""covey report: the file opens from the disk, without a server."""

from types import SimpleNamespace

import pytest
from browsing import DESKTOP, PHONE, Page

from covey.view.report import write_report
from covey.view.session import Session

LIGHT, DARK = "rgb(255, 255, 255)", "rgb(21, 24, 29)"


@pytest.fixture
def shown(browser, data, tmp_path):
    """Return a function that opens the report of a dataset, and checks the console at the end."""
    pages = []

    def start(name, size, theme):
        path = tmp_path / f"{name}.html"
        session = Session.of_path(data(name))
        try:
            write_report(session, path)
        finally:
            session.close()
        page = Page(browser, SimpleNamespace(port=0))
        page.resize(size)
        page.theme(theme)
        page.driver.get("about:blank")
        page.console(), page.requests()
        page.driver.get(path.as_uri())
        pages.append(page)
        return page

    yield start
    for page in pages:
        assert page.console() == []
        kinds = {url.partition(":")[0] for url in page.requests()}
        assert kinds <= {"file", "data"}
        assert page.run("return window.hacked") is None
        page.driver.get("about:blank")


@pytest.mark.parametrize("name", ["birds", "hostile", "corrupt"])
@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_a_report_from_the_disk(shown, name, size, theme):
    page = shown(name, size, theme)
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": LIGHT, "dark": DARK}[theme]  # the policy allows the style sheet
    assert page.overflow() == 0
    assert page.violations() == []
    images = page.run(
        "return [...document.images].map((each) => each.complete && each.naturalWidth > 0)"
    )
    assert all(images)
    assert len(images) == {"birds": 24, "hostile": 0, "corrupt": 24}[name]
    heights = page.run(
        "return [...document.querySelectorAll('svg')].map((each) => each.clientHeight)"
    )
    assert min(heights) > 20
    page.click("details > summary")
    assert "classes" in page.text("details[open]")
