"""What a server shows: the open splits of a dataset, a loader, and embeddings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey import _core
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.urls import shown
from covey.view.messages import Query, RequestError
from covey.view.plans import PlanCache

if TYPE_CHECKING:
    from covey.dataset.layout import Layout
    from covey.loader import Loader
    from covey.view.embeddings import Embeddings

MAX_MAPPED_BYTES = 64 << 20
"""Size of mapped files in memory, above which they are released after a request."""

WHOLE = "examples"
"""Name of the only split of a dataset that was opened by the caller."""


class Session:
    """The open splits of a dataset; used by all threads of a server.

    Args:
        title: Name of the dataset, for the page.
        splits: Function that opens each split.
        path: Path of the dataset; None if it was opened by the caller.
        layout: The files of the splits; None if it was opened by the caller.
        code: Python expression for a split, for the export of a selection; ``{split}`` is its name.
        loader: The loader whose batches are shown; None for batches with options of the page.
        embeddings: One vector for each example of a split.
    """

    def __init__(
        self,
        title: str,
        splits: Mapping[str, Callable[[], Dataset]],
        *,
        path: str | None = None,
        layout: Layout | None = None,
        code: str = "ds",
        loader: Loader | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        self.title = title
        self.path = path
        self.layout = layout
        self.plans = PlanCache()
        self.code = code
        self.loader = loader
        self.embeddings = embeddings
        self._open = dict(splits)
        self._datasets: dict[str, Dataset] = {}
        self._locks = {name: threading.Lock() for name in splits}

    @classmethod
    def of_path(
        cls,
        path: str | Path,
        *,
        split: str | None = None,
        label: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> Session:
        """Return the session of the splits at a path, which are opened on first use.

        Args:
            path: Dataset or files, as for :func:`covey.open`.
            split: A split, or a part of one, as for :func:`covey.open` (default: all splits).
            label: Label feature, as for :func:`covey.open`.
            storage_options: Options of fsspec for a URL.
            progress: Show a progress bar while indexing (default: if stderr is a terminal).
        """
        from covey.dataset.layout import find_layout
        from covey.dataset.open import open as open_dataset

        layout = find_layout(path, storage_options=storage_options)
        names = list(layout.splits) if split is None else [split]

        def opener(name: str) -> Callable[[], Dataset]:
            return lambda: open_dataset(
                path, split=name, label=label, storage_options=storage_options, progress=progress
            )

        given = "" if label is None else f", label={label!r}"
        return cls(
            shown(str(path)),
            {name: opener(name) for name in names},
            path=str(path),
            layout=layout,
            code=f"covey.open({shown(str(path))!r}, split={{split!r}}{given})",
        )

    @classmethod
    def of_dataset(cls, dataset: Dataset, loader: Loader | None = None) -> Session:
        """Return the session of a dataset that is open; it is not closed with the session."""
        title = repr(dataset).splitlines()[0].strip("<>")
        return cls(title, {WHOLE: lambda: dataset}, loader=loader)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._open)

    def dataset(self, query: Query) -> Dataset:
        """Return the split that a request names; the first one by default."""
        if not self._open:
            raise RequestError("the dataset has no splits", 404)
        return self.open(query.string("split", next(iter(self._open))))

    def open(self, split: str) -> Dataset:
        """Return a split, which is opened on first use."""
        if split not in self._open:
            raise RequestError(f"there is no split {split[:100]!r}", 404)
        with self._locks[split]:
            if split not in self._datasets:
                self._datasets[split] = self._open[split]()
            return self._datasets[split]

    def open_all(self) -> dict[str, CoveyError | OSError]:
        """Open all splits, and return the errors of those that cannot be opened.

        Raises:
            CoveyError, OSError: If none of them can be opened.
        """
        errors: dict[str, CoveyError | OSError] = {}
        for split in self._open:
            try:
                self.open(split)
            except (CoveyError, OSError) as error:
                errors[split] = error
        if errors and len(errors) == len(self._open):
            raise next(iter(errors.values()))
        return errors

    def release_pages(self) -> None:
        """Remove the pages of mapped files from the memory of the process, if there are many.

        The kernel maps up to 2 MB for a record of some bytes. The process of a caller, who may be
        training, keeps its pages.
        """
        if self.path is not None and _mapped_bytes() > MAX_MAPPED_BYTES:
            _core.release_pages()

    def close(self) -> None:
        """Close the embeddings, and the datasets that the session opened."""
        if self.embeddings is not None:
            self.embeddings.close()
        if self.path is not None:
            for dataset in list(self._datasets.values()):
                dataset.close()


def _mapped_bytes() -> int:
    """Return the size of the pages of files in the memory of this process; 0 if it is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[2]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):  # not Linux
        return 0
