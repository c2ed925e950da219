"""What a server shows: the open splits of a dataset, a loader, and embeddings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError, FeatureError, FormatError
from covey.labels import can_be_label
from covey.urls import shown

if TYPE_CHECKING:
    from covey.loader import Loader
    from covey.view.embeddings import Embeddings

Ids = NDArray[np.int64]

MAX_MAPPED_BYTES = 64 << 20
"""Size of mapped files in memory, above which they are released after a request."""

MAX_PLANS = 4
"""Maximum number of plans in memory; each has a few numbers per class."""

WHOLE = "examples"
"""Name of the only split of a dataset that was opened by the caller."""


class RequestError(CoveyError):
    """A request that is not valid.

    Args:
        message: What is wrong.
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Session:
    """The open splits of a dataset; used by all threads of a server.

    Args:
        title: Name of the dataset, for the page.
        splits: Names of the splits.
        open_split: Function that opens a split with a label.
        path: Path of the dataset; None if it was opened by the caller.
        kind: Format of the dataset.
        label: Label feature; None for the label of the dataset.
        loader: The loader whose batches are shown; None for batches with options of the page.
    """

    def __init__(
        self,
        title: str,
        splits: tuple[str, ...],
        open_split: Callable[[str, str | None], Dataset],
        *,
        path: str | None = None,
        kind: str = "dataset",
        label: str | None = None,
        loader: Loader | None = None,
    ) -> None:
        self.title = title
        self.splits = splits
        self.path = path
        self.kind = kind
        self.label = label
        self.loader = loader
        self.embeddings: Embeddings | None = None
        self.plans: dict[Any, Any] = {}
        """Plans by their options, and those of pasted states by their digests."""
        self._open_split = open_split
        self._datasets: dict[str, Dataset] = {}
        self._opened: list[Dataset] = []
        self._lock = threading.RLock()

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
            split: A split, or a part of one, as for :func:`covey.open` (default: all splits,
                "train" first).
            label: Label feature, as for :func:`covey.open`.
            storage_options: Options of fsspec for a URL.
            progress: Show a progress bar while indexing (default: if stderr is a terminal).
        """
        from covey.dataset.layout import find_layout
        from covey.dataset.open import open as open_dataset

        def open_split(name: str, label: str | None) -> Dataset:
            return open_dataset(
                path, split=name, label=label, storage_options=storage_options, progress=progress
            )

        layout = find_layout(path, storage_options=storage_options)
        names = sorted(layout.splits, key=lambda name: name != "train")
        return cls(
            shown(str(path)),
            tuple(names if split is None else [split]),
            open_split,
            path=shown(str(path)),
            kind=layout.kind,
            label=label,
        )

    @classmethod
    def of_dataset(cls, dataset: Dataset, loader: Loader | None = None) -> Session:
        """Return the session of a dataset that is open; it is not closed with the session."""
        title = repr(dataset).splitlines()[0].strip("<>")
        return cls(title, (WHOLE,), lambda split, label: dataset, loader=loader)

    @property
    def code(self) -> str:
        """Python expression for a split, for the export of a selection; ``{split}`` is its name."""
        if self.path is None:
            return "ds"
        given = "" if self.label is None else f", label={self.label!r}"
        return f"covey.open({self.path!r}, split={{split!r}}{given})"

    def open(self, split: str | None = None) -> Dataset:
        """Return a split, which is opened on first use; the first one by default."""
        if not self.splits:
            raise RequestError("the dataset has no splits", 404)
        name = split or self.splits[0]
        if name not in self.splits:
            raise RequestError(f"there is no split {name[:100]!r}", 404)
        with self._lock:
            if name not in self._datasets:
                self._datasets[name] = self._open_split(name, self.label)
                self._opened.append(self._datasets[name])
            return self._datasets[name]

    def open_all(self) -> dict[str, CoveyError | OSError]:
        """Open all splits, and return the errors of those that cannot be opened.

        Raises:
            CoveyError, OSError: If none of them can be opened.
        """
        errors: dict[str, CoveyError | OSError] = {}
        for split in self.splits:
            try:
                self.open(split)
            except (CoveyError, OSError) as error:
                errors[split] = error
        if errors and len(errors) == len(self.splits):
            raise next(iter(errors.values()))
        return errors

    def candidates(self) -> list[str]:
        """Return the features that can be the label, if there is none."""
        if self.path is None or not self.splits:
            return []
        dataset = self.open()
        if dataset.label is not None:
            return []
        return [name for name, feature in dataset.features.items() if can_be_label(feature)]

    def set_label(self, label: str) -> None:
        """Open all splits again with another label when they are requested."""
        if label not in self.candidates():
            raise RequestError(f"label is {label[:100]!r}; must be one of {self.candidates()}")
        with self._lock:
            before, self.label = self.label, label
            datasets, self._datasets = self._datasets, {}
            try:
                self.open()
            except CoveyError:
                self.label, self._datasets = before, datasets
                raise

    def find_plan(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value of :attr:`plans`, which is made and stored if it is not there."""
        with self._lock:
            found = self.plans.pop(key, None)
            self.plans[key] = make() if found is None else found  # the most recent one is last
            while len(self.plans) > MAX_PLANS:
                del self.plans[next(iter(self.plans))]
            return self.plans[key]

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
        for dataset in self._opened if self.path is not None else ():
            dataset.close()


def _mapped_bytes() -> int:
    """Return the size of the pages of files in the memory of this process; 0 if it is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[2]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):  # not Linux
        return 0


def read_parts(read: Callable[[Ids], Any], ids: Ids) -> Iterator[tuple[Ids, Any]]:
    """Yield parts of `ids`, and the results of `read`; an id that cannot be read has its error.

    An error of the storage is raised: it would be the same for all ids.

    >>> def read(ids):
    ...     if 2 in ids:
    ...         raise FormatError("corrupt")
    ...     return ids.sum()
    >>> [(ids.tolist(), str(found)) for ids, found in read_parts(read, np.arange(4))]
    [([0, 1], '1'), ([2], 'corrupt'), ([3], '3')]
    """
    try:
        found = read(ids)
    except (FormatError, FeatureError) as error:
        if len(ids) == 1:
            yield ids, error
            return
        middle = len(ids) // 2
        yield from read_parts(read, ids[:middle])
        yield from read_parts(read, ids[middle:])
        return
    yield ids, found
