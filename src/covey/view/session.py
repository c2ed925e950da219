"""What a server shows: the open splits of a dataset, a loader, and embeddings.

Requests are parameters as text, which :func:`arguments` converts to the types of a function.
"""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError, FeatureError, FormatError
from covey.labels import can_be_label
from covey.urls import shown

if TYPE_CHECKING:
    from covey.loader import Loader
    from covey.plan import Plan
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


@dataclass(eq=False)
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
        embeddings: A vector for each example of a split.
    """

    title: str
    splits: Sequence[str]
    open_split: Callable[[str, str | None], Dataset]
    path: str | None = None
    kind: str = "dataset"
    label: str | None = None
    loader: Loader | None = None
    embeddings: Embeddings | None = None

    def __post_init__(self) -> None:
        self.plan = lru_cache(MAX_PLANS)(lambda dataset, options: options.make_quietly(dataset))
        """Function that returns the plan of a dataset for some options."""
        self.rank = lru_cache(MAX_PLANS)(lambda plan, size, mode: plan.for_rank(0, size, mode))
        """Function that returns a plan for a number of ranks; its description is computed once."""
        self.states: dict[str, Plan] = {}
        """Plans of pasted states by their digests."""
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

        layout, name = find_layout(path, storage_options=storage_options), shown(str(path))
        names = sorted(layout.splits, key=lambda each: each != "train")
        splits = names if split is None else [split]
        return cls(name, splits, open_split, path=name, kind=layout.kind, label=label)

    @classmethod
    def of_dataset(cls, dataset: Dataset, loader: Loader | None = None) -> Session:
        """Return the session of a dataset that is open; it is not closed with the session."""
        title = repr(dataset).splitlines()[0].strip("<>")
        return cls(title, (WHOLE,), lambda split, label: dataset, loader=loader)

    def code(self, split: str) -> str:
        """Return the Python expression that opens a split, for the export of a selection."""
        if self.path is None:
            return "ds"
        given = "" if self.label is None else f", label={self.label!r}"
        return f"covey.open({self.path!r}, split={split!r}{given})"

    def open(self, split: str | None = None) -> Dataset:
        """Return a split, which is opened on first use; the first one by default."""
        name = split or next(iter(self.splits), "")
        if name not in self.splits:
            raise RequestError(f"there is no split {name[:100]!r}", 404)
        with self._lock:
            if name not in self._datasets:
                self._datasets[name] = self.open_split(name, self.label)
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
        if self.path is None or self.open().label is not None:
            return []
        return [name for name, kind in self.open().features.items() if can_be_label(kind)]

    def set_label(self, label: str) -> None:
        """Open all splits again with a label when they are requested."""
        if label not in self.candidates():
            raise RequestError(f"label is {label[:100]!r}; must be one of {self.candidates()}")
        with self._lock:
            self.label, self._datasets = label, {}

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


def spread(rows: int, most: int) -> Ids:
    """Return all of some rows, or `most` of them at equal distances.

    >>> spread(10, 4)
    array([0, 2, 5, 7])
    """
    count = min(rows, most)
    return np.arange(count, dtype=np.int64) * rows // max(1, count)


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


# Parameters of requests.

Converter = Callable[[str, str], Any]
"""Function that returns the value of a parameter from its name and its text."""


def integer(low: int = 0, high: int = 2**63 - 1) -> Converter:
    """Return the converter of integers from `low` to `high`."""

    def convert(name: str, text: str) -> int:
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
        if value is None or not low <= value <= high:
            raise RequestError(f"{name} is {text[:40]!r}; must be an integer from {low} to {high}")
        return value

    return convert


def choice(choices: tuple[Any, ...]) -> Converter:
    """Return the converter of some strings."""

    def convert(name: str, text: str) -> str:
        if text not in choices:
            raise RequestError(f"{name} is {text[:40]!r}; must be one of {', '.join(choices)}")
        return text

    return convert


def parse_json(name: str, text: str) -> Any:
    """Return values of JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(f"{name} is not valid JSON") from None


_CONVERTERS: dict[Any, Converter] = {
    int: integer(),
    bool: lambda name, text: choice(("0", "1"))(name, text) == "1",
    str: lambda name, text: text,
}


def arguments(
    function: Callable[..., Any], session: Session, query: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of a function from the parameters of a request.

    A parameter of type Dataset is the split that the request names; one that is a dataclass is made
    of the parameters with the names of its fields.

    >>> def find(limit: Annotated[int, integer(1, 100)], op: Literal["less", "greater"] = "less"):
    ...     pass
    >>> arguments(find, None, {"limit": "7"})
    {'limit': 7}
    """
    kinds: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, key = kinds[name], name.rstrip("_")
        if kind is Session:
            found[name] = session
        elif kind is Dataset:
            found[name] = session.open(query.get("split"))
        elif isinstance(kind, type) and is_dataclass(kind):
            found[name] = kind(**arguments(kind, session, query))
        elif query.get(key):
            found[name] = _converter(kind)(key, query[key])
        elif parameter.default is parameter.empty:
            raise RequestError(f"parameter {key!r} is missing")
    return found


def _converter(kind: Any) -> Converter:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        converter: Converter = inner[1]
        return converter
    if origin is Literal:
        return choice(inner)
    if origin in (Union, UnionType):
        return _converter(next(each for each in inner if each is not NoneType))
    return _CONVERTERS[kind]
