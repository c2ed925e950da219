"""One browser for all tests of a worker, and a server for each dataset.

After each test the console must be empty, and no request may have gone to another server.
"""

from contextlib import ExitStack, contextmanager
from functools import cache
from urllib.parse import urlsplit

import browsing
import numpy as np
import pytest
import view_data
from browsing import Page
from servers import s3_bucket

import covey
from covey.view import View
from covey.view.embeddings import Embeddings
from covey.view.session import Session


@pytest.fixture(scope="session")
def downloads(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def browser(downloads):
    if not (browsing.CHROMIUM and browsing.DRIVER):
        pytest.fail("chromium and chromedriver are not installed; `make browser` installs them")
    with browsing.started(downloads) as driver:
        yield driver


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return a function from the name of a dataset to its path."""
    root = tmp_path_factory.mktemp("view")

    @cache
    def find(name):
        path = root / name
        if name == "corrupt":
            return view_data.write_corrupt(find("birds"), path)
        return getattr(view_data, f"write_{name}")(path)

    return find


@pytest.fixture(scope="session")
def views(data):
    """Return a function from the name of a dataset to its running server."""
    with ExitStack() as stack:

        @cache
        def find(name):
            if name == "remote":
                url, options = stack.enter_context(bucket(data("birds")))
                session = Session.of_path(url, storage_options=options)
            elif name == "loader":
                return stack.enter_context(loader_view(stack, data("birds")))
            elif name == "empty":
                session = Session.of_path(data("birds"), split="empty")
            else:
                session = Session.of_path(data(name))
            if name == "birds":
                session.embeddings = Embeddings.of(session, embeddings(), "train")
            return stack.enter_context(View(session))

        yield find


def embeddings():
    """Return a cluster for each class, and two examples in the cluster of another class."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 6
    labels[[0, 7]] = 5, 3
    centres = 10 * rng.standard_normal((6, 16))
    return (centres[labels] + rng.standard_normal((120, 16))).astype(np.float32)


def loader_view(stack, path):
    ds = stack.enter_context(covey.open(path, split="train"))
    loader = ds.batches(3, 2, seed=9, select="photo", image_size=32, flip=True)
    loader.seek(17)
    return loader.view(browser=False)


@contextmanager
def bucket(path):
    """Serve a dataset by S3; yield its URL and the storage options."""
    with s3_bucket("view") as s3:  # servers of one process share their buckets
        for file in path.rglob("*"):
            if file.is_file():
                key = f"birds/{file.relative_to(path)}"
                s3.client.put_object(Bucket="view", Key=key, Body=file.read_bytes())
        yield "s3://view/birds", s3.options


@pytest.fixture
def visit(browser, views):
    """Return a function that opens the page of a dataset: its name, and the view."""
    pages = []

    def start(name, target="#/", **options):
        page = Page(browser, views(name))
        if not pages:  # what earlier tests left
            page.driver.get("about:blank")
            page.theme("light")
            page.driver.get_log("browser")
            page.driver.get_log("performance")
        pages.append(page)
        return page.open(target, **options)

    yield start
    hosts = {f"127.0.0.1:{page.view.port}" for page in pages}
    for page in pages[-1:]:
        page.allowed_errors = [each for other in pages for each in other.allowed_errors]
        page.run("try { localStorage.clear() } catch {}")
        assert page.run("return window.hacked") is None
        foreign = [
            url
            for url in page.requests()
            if urlsplit(url).scheme not in ("data", "blob", "about")
            and urlsplit(url).netloc not in hosts
        ]
        assert foreign == []
        assert page.console() == []
