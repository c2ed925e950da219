"""A headless chromium that shows ``covey view``, with what a test asks of a page."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from covey.view import View

TIMEOUT_S = 15
DESKTOP, PHONE = (1280, 800), (360, 740)

_LOADS = itertools.count()
_KNOWN: set[str] = set()

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

# No request leaves this machine: every other name and address is unknown.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--autoplay-policy=no-user-gesture-required",
    "--force-color-profile=srgb",
    "--force-prefers-reduced-motion",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@contextmanager
def started(downloads: Path) -> Iterator[webdriver.Chrome]:
    """Run the browser.

    Args:
        downloads: Directory of downloaded files.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for each in (*_FLAGS, f"--window-size={DESKTOP[0]},{DESKTOP[1]}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option(
        "prefs",
        {"download.default_directory": str(downloads), "download.prompt_for_download": False},
    )
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@cache
def axe_script() -> str:
    """Return the source of axe-core."""
    from axe_core_python.base import AXE_SCRIPT

    return str(AXE_SCRIPT)


class Page:
    """The page of a view.

    Args:
        driver: The browser.
        view: The running server.
    """

    def __init__(self, driver: webdriver.Chrome, view: View) -> None:
        self.driver = driver
        self.view = view
        self.origin = f"http://127.0.0.1:{view.port}"
        self.allowed_errors: list[str] = []
        """Parts of console messages that the test provokes."""

    # Navigation.

    def open(self, target: str = "#/", *, size: tuple[int, int] = DESKTOP) -> Page:
        """Load a view by its URL, and wait until it is shown."""
        self.resize(size)
        if self.view.url not in _KNOWN:  # a port may be used again, a token is not
            _KNOWN.add(self.view.url)
            self.driver.get(f"{self.view.url}{target}")  # which sets the cookie
        else:  # another query, not only another fragment: the page is loaded again
            self.driver.get(f"{self.origin}/?load={next(_LOADS)}{target}")
        return self.ready()

    def go(self, target: str) -> Page:
        """Show a view in the page that is loaded."""
        self.run("document.querySelector('.view').dataset.state = 'left'")
        self.run("window.location.hash = arguments[0]", target)
        return self.ready()

    def resize(self, size: tuple[int, int]) -> None:
        """Set the size of the viewport, also below the minimum of a window."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name: str) -> None:
        """Prefer a light or a dark theme, as the system of the user does."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def ready(self) -> Page:
        """Wait until the view is shown, and nothing is loading."""
        self.wait(
            lambda: self.run("""
            const view = document.querySelector(".view");
            return document.documentElement.dataset.state === "ready"
              && (!view || ["ready", "error"].includes(view.dataset.state))
              && !document.querySelector("[aria-busy=true]");
        """)
        )
        return self

    def settle(self, times: int = 10) -> Page:
        """Wait until all images are shown, and nothing was requested for `times` x 50 ms."""
        script = """
            const images = [...document.images].filter((each) => each.getAttribute("src"));
            const now = performance.getEntriesByType("resource").length;
            const isSame = now === window.coveyRequests;
            window.coveyRequests = now;
            return isSame && images.every((each) => each.complete) && !document.querySelector(
              "[aria-busy=true]");
        """
        same = 0
        while same < times:
            same = same + 1 if self.run(script) else 0
            self.driver.execute_async_script("setTimeout(arguments[0], 50)")
        return self

    @property
    def hash(self) -> str:
        return str(self.run("return window.location.hash"))

    # Elements.

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], Any], message: str = "") -> Any:
        """Wait until a condition is true; return its value."""

        def check(_: Any) -> Any:
            try:
                return condition()
            except (StaleElementReferenceException, NoSuchElementException):
                return False

        return WebDriverWait(self.driver, TIMEOUT_S, poll_frequency=0.02).until(check, message)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return an element, for which the test waits."""
        return self.wait(lambda: next(iter(self.all(selector)), None), selector)

    def text(self, selector: str = "main") -> str:
        return str(self.one(selector).text)

    def texts(self, selector: str) -> list[str]:
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)",
            selector,
        )

    def see(self, text: str, selector: str = "main") -> None:
        """Wait until an element has a text."""
        self.wait(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def button(self, text: str, within: str = "body") -> WebElement:
        """Return a button, or a link, by its text."""
        script = """
            return [...document.querySelectorAll(`${arguments[0]} button, ${arguments[0]} a,
              ${arguments[0]} summary`)].find((each) => each.offsetParent !== null
              && each.textContent.trim() === arguments[1]) ?? null;
        """
        return self.wait(lambda: self.run(script, within, text), f"button {text!r}")

    def click(self, selector: str) -> None:
        self.wait(lambda: (self.one(selector).click(), True)[1])

    def set(self, selector: str, value: Any) -> None:
        """Set the value of a field, as a user does."""
        element = self.one(selector)
        kind = element.get_attribute("type")
        if element.tag_name == "select" or kind in ("range", "number", "color"):
            self.run(
                "arguments[0].value = arguments[1];"
                "for (const name of ['input', 'change'])"
                "  arguments[0].dispatchEvent(new Event(name, {bubbles: true}));",
                element,
                str(value),
            )
            return
        element.click()
        element.send_keys(Keys.CONTROL, "a")
        element.send_keys(str(value) or Keys.DELETE)

    def press(self, *keys: str) -> None:
        """Press keys, which go to the element that has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def lasso(self, selector: str, corners: Sequence[tuple[float, float]]) -> None:
        """Drag with shift around corners, which are fractions of the size of an element."""
        element = self.one(selector)
        width, height = element.size["width"], element.size["height"]
        points = [(round((x - 0.5) * width), round((y - 0.5) * height)) for x, y in corners]
        actions = ActionChains(self.driver, duration=10).key_down(Keys.SHIFT)
        actions.move_to_element_with_offset(element, *points[0]).click_and_hold()
        for x, y in (*points[1:], points[0]):
            actions.move_to_element_with_offset(element, x, y)
        actions.release().key_up(Keys.SHIFT).perform()

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    # What every page must be.

    def pixels(self, selector: str = "canvas") -> dict[str, int]:
        """Return how many pixels of a canvas have each colour, ``r,g,b``; transparent ones not."""
        script = """
            const source = document.querySelector(arguments[0]);
            if (!source?.width || !source.height) return {};
            const copy = document.createElement("canvas");
            [copy.width, copy.height] = [source.width, source.height];
            const paint = copy.getContext("2d", { willReadFrequently: true });
            paint.drawImage(source, 0, 0);
            const data = paint.getImageData(0, 0, copy.width, copy.height).data;
            const found = {};
            for (let at = 0; at < data.length; at += 4) {
              if (data[at + 3] < 128) continue;
              const key = `${data[at]},${data[at + 1]},${data[at + 2]}`;
              found[key] = (found[key] ?? 0) + 1;
            }
            return found;
        """
        return dict(self.run(script, selector))

    def violations(self) -> list[str]:
        """Return the serious and critical violations that axe-core finds."""
        self.run(f"if (!window.axe) {{ {axe_script()}\n }}")
        found = self.driver.execute_async_script("""
            const done = arguments[arguments.length - 1];
            axe.run(document, { resultTypes: ["violations"] }).then(
              (result) => done(result.violations),
              (error) => done([{ id: String(error), impact: "critical", nodes: [] }]));
        """)
        return [
            f"{each['id']}: {each.get('help')}: {node.get('html', '')[:300]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"] or [{}]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the viewport."""
        return int(self.run("return document.documentElement.scrollWidth - window.innerWidth"))

    def console(self) -> list[str]:
        """Return the messages of the console since the last call, without those allowed."""
        messages = [each["message"] for each in self.driver.get_log("browser")]
        return [
            each for each in messages if not any(known in each for known in self.allowed_errors)
        ]

    def requests(self) -> list[str]:
        """Return the URLs of all requests since the last call."""
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(str(message["params"]["request"]["url"]))
        return urls
