"""What a loader needs to know of a dataset.

What a batch is made of: which features, which hooks, and in which form it is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FeatureError, FormatError
from covey.schema import ClassLabel, Features, Image, Tensor
from covey.schema.codec import row_of
from covey.schema.diagnostics import RecordLocation
from covey.schema.images import decode_images

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NativeSource:
    """What the native core needs to read examples by itself."""

    gather: _core.Gather
    decoder: _core.Decoder
    check: int
    """How much of a frame is checked."""
    label: int
    """The column that holds the class, or -1;"""
    has_labels: bool
    """in which case the index may have it. It is compared with what a plan says."""
    numbers: Ids | None
    """The numbers of examples among all records, if they are others."""
    columns: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    """The shape and type of a row of each column."""

    @property
    def row_bytes(self) -> int:
        """The memory of one example."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.columns)


class Examples(Protocol):
    """Examples by their numbers: a dataset."""

    @property
    def features(self) -> Features:
        """What an example holds."""

    @property
    def label(self) -> str | None:
        """What tells the class."""

    def decode(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Examples by column, as they are stored: images are not decoded."""

    def labels_of(self, ids: Ids) -> Ids:
        """The numbers of the classes of examples."""

    def place(self, number: int) -> RecordLocation:
        """Where an example is, for messages."""

    @property
    def max_pixels(self) -> int:
        """Most pixels of an image that is decoded."""

    def native_source(self, features: Features, ids: Ids) -> NativeSource | None:
        """What the native core needs to read examples by itself; None if it cannot.

        Args:
            features: What of them.
            ids: Those that are wanted first: their files are opened now.
        """


def check_classes(examples: Examples, ids: Ids, classes: Ids) -> None:
    """Compare the classes of examples by the class table of an index with those by its rows.

    Raises:
        FormatError: If they differ.
    """
    try:
        agree = np.array_equal(examples.labels_of(ids), classes)
    except IndexError:
        agree = False
    if not agree:
        raise FormatError(
            f"the index has records in the classes {np.unique(classes)[:5]} that are not of "
            "them; rebuild it with `covey index`"
        )


@dataclass(frozen=True, eq=False)
class BatchFormat:
    """How columns become a batch.

    Args:
        examples: Where they come from.
        wanted: The features of x: one, which is x itself; several, which are a dict; or None for
            all but the label.
        as_dict: Hand over a dict with the label in it, and not (x, y).
        transform, batch_transform: What is done with each example, and with a batch.
        decode_images: Whether images are decoded,
        image_size: and their size then.
    """

    examples: Examples
    wanted: str | Sequence[str] | None = None
    as_dict: bool = False
    transform: Callable[[dict[str, Any]], Any] | None = None
    batch_transform: Callable[..., Any] | None = None
    decode_images: bool = True
    image_size: tuple[int, int] | None = None

    names: tuple[str, ...] = field(init=False)
    """The features of x."""
    features: Features = field(init=False)
    """What is decoded: those, and the label if it can be compared with the index."""

    def __post_init__(self) -> None:
        for name in ("transform", "batch_transform"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise FeatureError(f"{name} is {hook!r}; must be a function")
        if self.wanted is not None and not isinstance(self.wanted, Iterable):
            raise FeatureError(
                option="features", found=self.wanted, allowed="a name or a list of names"
            )
        features, label = self.examples.features, self.examples.label
        if self.wanted is None:
            names = tuple(name for name in features if name != label)
        else:
            names = (self.wanted,) if isinstance(self.wanted, str) else tuple(self.wanted)
        if not names and self.wanted is not None:
            raise FeatureError("features is an empty list; name at least one")
        decoded = features.select(names)
        if label is not None and label in features and label not in names:
            # Its last column, so that columns of one feature are (x, y) as they come.
            with_label = features.select((*names, label))
            kind = features[label]
            if isinstance(kind, ClassLabel):  # its numbers are compared with those of the index
                with_label = with_label.replace({label: Tensor("int64", default=kind.default)})
            # A function gets whole examples, whatever tells their classes.
            if with_label.column_of(label) is not None or self.transform is not None:
                decoded = with_label
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "features", decoded)
        if self.image_size is not None and not self.has_images:
            raise FeatureError(
                f"image_size is {self.image_size}, but none of the features {', '.join(names)} is "
                "an image that is decoded"
            )

    @property
    def has_images(self) -> bool:
        """Whether there are images to decode."""
        kinds = [self.features[name] for name in self.names]
        return self.decode_images and any(isinstance(kind, Image) for kind in kinds)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is done to columns that needs Python."""
        return self.transform is None and self.batch_transform is None and not self.has_images

    @property
    def is_labelled(self) -> bool:
        """Whether there is a y."""
        return self.examples.label is not None

    def make(self, ids: Ids, classes: Ids | None, go_on: Callable[[], None]) -> Any:
        """The batch of some examples.

        Args:
            ids: Their numbers.
            classes: The numbers of their classes, if they are known.
            go_on: Raises if nobody wants the batch any more.
        """
        columns: Any = self.examples.decode(self.features, ids)
        if self.has_images:
            columns = decode_images(
                self.features,
                columns,
                lambda row: self.examples.place(int(ids[row])),
                size=self.image_size,
                max_pixels=self.examples.max_pixels,
            )
        if self.transform is not None and len(ids):
            columns = self._transform(columns, ids, go_on)
        y = None
        if self.is_labelled:
            y = self.examples.labels_of(ids) if classes is None else classes
        try:
            return self.emit(columns, y)
        except Exception as error:
            locate(error, f"in the batch of the examples {ids[:4].tolist()} and others")
            raise

    def _transform(self, columns: dict[str, Any], ids: Ids, go_on: Callable[[], None]) -> Any:
        assert self.transform is not None
        done = []
        for row in range(len(ids)):
            go_on()
            try:
                done.append(self.transform(row_of(columns, row)))
                if done[-1] is None:
                    raise FeatureError("transform= gives None, must return what is to be used")
            except Exception as error:
                locate(error, f"in transform= of {self.examples.place(int(ids[row]))}")
                raise
        return _collate(done)

    def emit(self, columns: Any, y: Ids | None) -> Any:
        """A batch in the form that was asked for."""
        x = self._x(columns)
        if self.as_dict:
            batch = dict(x) if isinstance(x, Mapping) else {self.names[0]: x}
            if y is not None:
                batch[self._label_key] = y
            return batch if self.batch_transform is None else self.batch_transform(batch)
        if y is None:
            return x if self.batch_transform is None else self.batch_transform(x)
        return (x, y) if self.batch_transform is None else self.batch_transform(x, y)

    @property
    def _label_key(self) -> str:
        label = self.examples.label
        if label is not None and label in self.examples.features:
            return label
        return "label" if "label" not in self.names else "class"

    def _x(self, columns: Any) -> Any:
        if not isinstance(columns, Mapping):  # a transform gives something else
            return columns
        if isinstance(self.wanted, str):
            try:
                return self.features.find(columns, self.wanted)
            except (KeyError, TypeError, IndexError):
                raise FeatureError(
                    f"transform= gives no {self.wanted!r}, which is to be x"
                ) from None
        label = self.examples.label
        if label is not None and label in self.features and label not in self.names:
            columns = _without(columns, self.features.path_of(label))
        if self.wanted is not None or self.as_dict:
            return columns
        x: Any = columns
        while isinstance(x, Mapping) and len(x) == 1:
            (x,) = x.values()
        return columns if isinstance(x, Mapping) else x


def locate(error: Exception, where: str) -> None:
    """Say with an error of another program's function where it was."""
    if hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(where)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({where})", *error.args[1:])


def _without(columns: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The same columns but one; nothing is changed that others have."""
    first, *rest = path
    kept = dict(columns)
    if not rest:
        kept.pop(first, None)
    elif isinstance(kept.get(first), Mapping):
        kept[first] = _without(kept[first], rest)
        if not kept[first]:
            del kept[first]
    return kept


def _collate(examples: Sequence[Any]) -> Any:
    """Examples as columns: arrays if all have one shape, else lists."""
    first = examples[0]
    if isinstance(first, Mapping):
        keys = list(first)
        for each in examples:
            if not isinstance(each, Mapping) or set(each) != set(keys):
                found = list(each) if isinstance(each, Mapping) else type(each).__name__
                raise FeatureError(
                    f"transform= gives {keys} for one example and {found} for another; must give "
                    "the same for all"
                )
        return {key: _collate([each[key] for each in examples]) for key in keys}
    if isinstance(first, (str, bytes)):
        return list(examples)
    arrays = [np.asarray(each) for each in examples]
    return np.stack(arrays) if len({each.shape for each in arrays}) == 1 else list(examples)
