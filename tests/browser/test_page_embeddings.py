"""The embeddings: a point cloud with lasso, neighbours and labels that disagree."""

from collections import Counter

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

CLOUD = ".cloud-points"
EVERYTHING = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)]


def pixels(page):
    """Return the number of pixels of the cloud by colour, without those of the ground."""
    found = page.driver.execute_async_script(
        """
        const [selector, done] = arguments;
        document.querySelector(selector).readPixels().then(({ pixels }) => {
          const counts = {};
          for (let at = 0; at < pixels.length; at += 4) {
            if (pixels[at + 3] < 200) continue;
            const key = `${pixels[at] >> 4},${pixels[at + 1] >> 4},${pixels[at + 2] >> 4}`;
            counts[key] = (counts[key] ?? 0) + 1;
          }
          done(counts);
        });
        """,
        CLOUD,
    )
    return Counter(found)


def position(page, index):
    """Return the position of a point in the window."""
    script = (
        "const p = document.querySelector(arguments[0]).pointAt(arguments[1]); return [p.x, p.y]"
    )
    return page.run(script, CLOUD, index)


def click_point(page, index):
    page.one(CLOUD)
    actions = ActionChains(page.driver)
    x, y = position(page, index)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y)).click()
    actions.perform()


def test_points_are_drawn(visit):
    page = visit("birds", "#/embeddings")
    page.see("120 examples of train; 16 dimensions, projected to two by PCA")
    found = pixels(page)
    colours = [colour for colour, count in found.items() if count > 40]
    assert len(colours) >= 6  # of the six classes
    assert len(page.all(".cloud-legend button")) == 6
    # Pixels at a point have the colour of its class; the other theme has other colours.
    page.click("#theme")
    page.wait(lambda: pixels(page) != found)


def test_lasso(visit):
    page = visit("birds", "#/embeddings")
    page.see("120 examples of train")
    page.lasso(CLOUD, EVERYTHING)
    page.see("120 examples inside the lasso")
    page.see("120 examples selected")
    page.click("[data-action=clear]")
    page.wait(lambda: not page.one(".selection-bar").is_displayed())  # the points move
    # Around one point: the examples inside are those whose positions are.
    points = [position(page, index) for index in range(120)]
    box = page.run("""
        const box = document.querySelector(arguments[0]).getBoundingClientRect();
        return [box.left, box.top, box.width, box.height];
    """, CLOUD)  # fmt: skip
    x, y = points[12]
    (left, top, width, height), side = box, 40
    inside = [n for n, (a, b) in enumerate(points) if abs(a - x) < side and abs(b - y) < side]
    near = [
        n
        for n, (a, b) in enumerate(points)
        if abs(abs(a - x) - side) < 2 or abs(abs(b - y) - side) < 2
    ]
    corners = [
        ((x + dx - left) / width, (y + dy - top) / height)
        for dx, dy in ((-side, -side), (side, -side), (side, side), (-side, side))
    ]
    page.lasso(CLOUD, corners)
    page.wait(lambda: page.text(".cloud-panel .muted").split()[0] not in ("120", "Draw"))
    page.wait(lambda: page.all(".cloud-panel .card-open"))
    count = int(page.text(".cloud-panel .muted").split()[0])
    assert abs(count - len(inside)) <= len(near)
    assert 0 < count < 60


def test_neighbours(visit):
    page = visit("birds", "#/embeddings")
    page.see("120 examples of train")
    click_point(page, 20)
    page.wait(lambda: "id=" in page.hash)
    page.see("Nearest by cosine similarity", ".cloud-panel")
    page.wait(lambda: len(page.all(".neighbours li")) == 11)
    page.set("input[name=k]", 5)
    page.wait(lambda: len(page.all(".neighbours li")) == 6)
    again = visit("birds", page.hash)
    again.wait(lambda: len(again.all(".neighbours li")) == 6)


def test_likely_mislabelled_examples(visit):
    """Examples 0 and 7 have the vectors of other classes."""
    page = visit("birds", "#/embeddings")
    page.click("[data-panel=mislabelled]")
    page.wait(lambda: "#0" in page.text(".cloud-panel") and "#7" in page.text(".cloud-panel"))
    assert "crane" in page.text(".cloud-panel")
    again = visit("birds", page.hash)
    again.see("crane", ".cloud-panel")


def test_a_class_is_highlighted(visit):
    page = visit("birds", "#/embeddings")
    page.see("120 examples of train")
    before = pixels(page)
    page.click(".cloud-legend button[data-position='2']")
    page.wait(lambda: "class=2" in page.hash)
    page.wait(lambda: pixels(page) != before)
    again = visit("birds", page.hash)
    chosen = again.one(".cloud-legend button[aria-pressed=true]")
    assert "robin" in chosen.text


def test_keys(visit):
    page = visit("birds", "#/embeddings")
    page.see("120 examples of train")
    before = position(page, 3)
    page.one(CLOUD).send_keys("+")
    page.wait(lambda: position(page, 3) != before)
    page.press("0")
    page.wait(lambda: position(page, 3) == pytest.approx(before, abs=1))
    page.press(Keys.ARROW_LEFT)
    page.wait(lambda: position(page, 3) != pytest.approx(before, abs=1))


def test_without_embeddings(visit):
    page = visit("corrupt", "#/embeddings")
    page.see("There are no embeddings")
    assert "Embeddings" not in page.texts("#tabs a")
