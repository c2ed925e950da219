"""``covey view``: a page with the examples, the classes and the batches of a dataset.

:class:`View` is a running server. ``server`` checks a request, and calls a function of
``overview``, ``examples``, ``media``, ``batches`` or ``embeddings`` with the ``Session``, or the
dataset of a split, and Python values. ``page`` has the files of the page: ES modules and CSS, which
browsers load as they are.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from covey.view.embeddings import Embeddings
from covey.view.server import View as View
from covey.view.session import Session

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.loader import Loader


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
