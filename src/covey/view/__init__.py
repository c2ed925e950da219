"""``covey view``: a page with the examples, the classes and the batches of a dataset.

:class:`View` is a running server. A request is read by ``requests`` and goes through ``server``
(security, files of the page) to a function of ``overview``, ``examples``, ``batches`` or
``embeddings``, which gets the ``Session`` and the ``Query``, and returns a ``Response``
(``messages``). ``page`` has the files of the page: ES modules and CSS, which browsers load as they
are.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from covey.view import batches, embeddings, examples, overview
from covey.view.embeddings import Embeddings
from covey.view.server import LOOPBACK, Server
from covey.view.session import Session

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.loader import Loader

ROUTES = {
    **overview.ROUTES,
    **examples.ROUTES,
    **batches.ROUTES,
    **embeddings.ROUTES,
}
"""The function for each URL path."""

POSTS = frozenset({"/api/state"})
"""URL paths that accept POST, because their parameters are long."""

SLOW = frozenset({"/api/points", "/api/neighbours", "/api/disagreements"})
"""URL paths of requests that may take seconds: projections, and scans of vectors."""

IFRAME_HEIGHT = 720


class View:
    """A running server; ``ds.view()`` and ``loader.view()`` return it.

    In a notebook it is displayed as the page. It ends with :meth:`close`, or with the process.

    Args:
        session: What is shown; it is closed with the view.
        host: Address to bind to.
        port: Port; 0 for any.
        allow_frames: Whether local pages, notebooks for instance, may embed the page.
    """

    def __init__(
        self,
        session: Session,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        allow_frames: bool = True,
    ) -> None:
        self._process = os.getpid()
        self._session = session
        self._server = Server(
            session, ROUTES, host=host, port=port, posts=POSTS, slow=SLOW, allow_frames=allow_frames
        )
        os.register_at_fork(after_in_child=partial(_release_port, weakref.ref(self._server)))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="covey view", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the page, with the token that it requires."""
        return self._server.url()

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._server.port

    def __repr__(self) -> str:
        return f"<covey.view.View: {self.url}>"

    def _repr_html_(self) -> str:
        # A cookie is sent to an iframe of the same site: notebooks are served from localhost.
        url = html.escape(self._server.url("localhost"))
        return (
            f'<iframe src="{url}" title="covey view" width="100%" height="{IFRAME_HEIGHT}" '
            f'style="border:0"></iframe><p><a href="{url}" target="_blank" rel="noopener">'
            "Open in a tab</a></p>"
        )

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_browser(self) -> bool:
        """Open the page in the browser of the user; return whether there is one."""
        import webbrowser

        # Without a display, only browsers would be found that take the terminal.
        is_unix = sys.platform not in ("darwin", "win32", "cygwin")
        displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        if is_unix and not any(os.environ.get(each) for each in displays):
            return False
        try:
            return webbrowser.open(self._server.url(once=True))
        except webbrowser.Error:
            return False

    def wait(self) -> None:
        """Return when the server is closed."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop the server, free the port, and close the datasets that the view opened."""
        if self._process == os.getpid():  # the connections are those of the parent alone
            self._server.shutdown()
            self._server.server_close()
        self._session.close()


def _release_port(server: weakref.ref[Server]) -> None:
    """Close the socket of a forked child: the port is that of the parent alone."""
    found = server()
    if found is not None:
        found.socket.close()


def view_dataset(
    dataset: Dataset,
    loader: Loader | None = None,
    *,
    port: int = 0,
    browser: bool | None = None,
    embeddings: Any = None,
) -> View:
    """Start the view of a dataset; see :meth:`covey.Dataset.view`.

    Args:
        dataset: The dataset.
        loader: The loader whose batches are shown.
        port: Port; 0 for any.
        browser: Whether to open the browser.
        embeddings: One vector for each example.
    """
    session = Session.of_dataset(dataset, loader)
    if embeddings is not None:
        session.embeddings = Embeddings.of(session, embeddings)
    view = View(session, port=port)
    if browser or (browser is None and not is_notebook()):
        view.open_browser()
    return view


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell: Any = sys.modules.get("IPython")
    found = None if shell is None else shell.get_ipython()
    return found is not None and hasattr(found, "kernel")
