"""``covey view``: a page with the examples, the classes and the batches of a dataset.

:class:`View` is a running server. ``server`` checks a request, and calls a function of
``overview``, ``examples``, ``media``, ``batches`` or ``embeddings`` with its ``parameters``: the
``Session``, or the dataset of a split, and Python values. ``page`` has the files of the page: ES
modules and CSS, which browsers load as they are.
"""

from __future__ import annotations

import html
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from covey._fork import ForkAware
from covey.view.embeddings import Embeddings
from covey.view.server import LOOPBACK, Server
from covey.view.session import Session

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.loader import Loader

IFRAME_HEIGHT = 720


class View(ForkAware):
    """A running server; ``ds.view()`` and ``loader.view()`` return it.

    In a notebook it is displayed as the page. It ends with :meth:`close`, or with the process.

    Args:
        session: What is shown; it is closed with the view.
        host: Address to bind to.
        port: Port; 0 for any.
        allow_frames: Whether local pages, notebooks for instance, may embed the page.
        in_thread: Whether a thread answers the requests; otherwise :meth:`run` does.
    """

    def __init__(
        self,
        session: Session,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        allow_frames: bool = True,
        in_thread: bool = True,
    ) -> None:
        super().__init__()
        self._process = os.getpid()
        self._session = session
        self._server = Server(session, host=host, port=port, allow_frames=allow_frames)
        self._thread: threading.Thread | None = None
        if in_thread:
            self._thread = threading.Thread(target=self.run, name="covey view", daemon=True)
            self._thread.start()

    def _reset_after_fork(self) -> None:
        self._server.release()

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

    def run(self) -> None:
        """Answer requests until the view is closed, or until SIGINT in the main thread."""
        self._server.run()

    def close(self) -> None:
        """Stop the server, free the port, and close the datasets that the view opened."""
        if self._process == os.getpid():  # the connections are those of the parent alone
            self._server.stop()
            if self._thread is not None:
                self._thread.join()
        self._session.close()


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
