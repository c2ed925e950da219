"""The embeddings: a point cloud with lasso, neighbours and labels that disagree."""

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

CLOUD = ".cloud-points"
EVERYTHING = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)]
READY = "120 examples of train; 16 dimensions; projected to two by PCA"


@pytest.fixture
def page(visit):
    page = visit("birds", "#/embeddings")
    page.see(READY)
    return page


def colours(page):
    """Return the colours of many pixels of the cloud."""
    page.run("document.querySelector(arguments[0]).scatter.draw()", CLOUD)
    found = [each for each, count in page.pixels(CLOUD).items() if count > 40]
    return {tuple(map(int, each.split(","))) for each in found}


def positions(page):
    """Return the positions of the points in the window."""
    script = """
        const { scatter } = document.querySelector(arguments[0]);
        const { left, top } = scatter.canvas.getBoundingClientRect();
        const pixels = Array.from(scatter.x, (_, i) => scatter.toPixel(i));
        return pixels.map(([x, y]) => [left + x, top + y]);
    """
    return page.run(script, CLOUD)


def ids(page):
    return [int(each.get_attribute("data-id")) for each in page.all(".cloud-panel .card-open")]


def test_points_are_grey_until_a_colour_is_chosen(visit, page):
    assert all(max(each) - min(each) < 40 for each in colours(page))
    page.set("select[name=colour]", "species")
    page.wait(lambda: len(page.all(".cloud-legend button")) == 6)
    page.wait(lambda: len(colours(page)) >= 6)  # of the six classes
    light = colours(page)
    page.click("#theme")
    page.wait(lambda: not light & colours(page))
    page.set("select[name=colour]", "eggs")
    page.wait(lambda: sorted(page.texts(".cloud-legend button")) == [f"●\n{n}" for n in range(5)])
    again = visit("birds", page.hash)
    again.wait(lambda: len(again.all(".cloud-legend button")) == 5)


def test_a_class_is_highlighted(visit, page):
    before = colours(page)
    page.one("input[name=class]").send_keys("rob", Keys.ENTER)
    page.wait(lambda: "class=2" in page.hash)
    page.wait(lambda: colours(page) != before)
    again = visit("birds", page.hash)
    assert "robin" in again.one(".cloud-legend button[aria-pressed=true]").text


def test_lasso(page):
    page.lasso(CLOUD, EVERYTHING)
    page.see("120 examples inside the lasso")
    page.see("120 examples selected")
    page.click("[data-action=clear]")
    page.wait(lambda: not page.one(".selection-bar").is_displayed())
    page.settle(3)  # the points move
    # Around one point: the examples inside are those whose positions are.
    points = positions(page)
    box = "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
    left, top, width, height = page.run(f"{box} return [b.left, b.top, b.width, b.height]", CLOUD)
    (x, y), side = points[12], 40
    inside = {n for n, (a, b) in enumerate(points) if max(abs(a - x), abs(b - y)) < side - 2}
    outside = {n for n, (a, b) in enumerate(points) if max(abs(a - x), abs(b - y)) > side + 2}
    corners = [
        (x + dx, y + dy) for dx, dy in ((-side, -side), (side, -side), (side, side), (-side, side))
    ]
    page.lasso(CLOUD, [((a - left) / width, (b - top) / height) for a, b in corners])
    page.see(" inside the lasso; added to the selection.", ".cloud-panel")
    page.wait(lambda: page.all(".cloud-panel .card-open"))
    found = set(ids(page))
    assert 12 in found
    assert not found & outside
    count = int(page.text(".cloud-panel [role=status]").split()[0])
    assert len(inside) <= count <= 120 - len(outside)


def test_neighbours(visit, page):
    x, y = positions(page)[20]
    actions = ActionChains(page.driver)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y)).click()
    actions.perform()
    page.wait(lambda: "id=" in page.hash)
    page.see("Nearest by cosine similarity; 10 of 10 have the same class.", ".cloud-panel")
    page.wait(lambda: len(ids(page)) == 11)
    page.set("input[name=k]", 5)
    page.wait(lambda: len(ids(page)) == 6)
    again = visit("birds", page.hash)
    again.wait(lambda: len(ids(again)) == 6)
    assert ids(again) == ids(page)


def test_likely_mislabelled_examples(visit, page):
    """Examples 0 and 7 have the vectors of other classes."""
    page.click("[data-panel=mislabelled]")
    page.wait(lambda: ids(page) == [0, 7])
    notes = page.texts(".card-note span")
    assert ["crane" in notes[0], "heron" in notes[1]] == [True, True]
    again = visit("birds", page.hash)
    again.wait(lambda: ids(again) == [0, 7])
    again.click("[data-action=select-listed]")
    again.see("2 examples selected")
    again.click("[data-action=export]")
    again.see("ds.select(np.setdiff1d(range(len(ds)), ids))", "dialog")


def test_keys(page):
    before = positions(page)[3]
    page.one(CLOUD).send_keys("+")
    page.wait(lambda: positions(page)[3] != before)
    page.press("0")
    page.wait(lambda: positions(page)[3] == pytest.approx(before, abs=1))
    page.press(Keys.ARROW_LEFT)
    page.wait(lambda: positions(page)[3] != pytest.approx(before, abs=1))


def test_without_embeddings(visit):
    page = visit("corrupt", "#/embeddings")
    page.see("There are no embeddings")
    assert "Embeddings" not in page.texts("#tabs a")
