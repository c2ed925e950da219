"""The contents of a batch: which features it has, which hooks are called, and its structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import StringArray
from covey.errors import FeatureError, ImageSizeError, check, list_names
from covey.labels import input_feature
from covey.loader.options import Hook, LoadOptions, add_location, augment
from covey.plan.balanced import BatchKey
from covey.schema import ClassLabel, Image, Tensor
from covey.schema.codec import flat_items, leaf, nest, row_of
from covey.schema.diagnostics import RecordLocation
from covey.schema.pixels import ImageColumn, count_native, decode_each, locate_shape

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.loader.padding import Padding
    from covey.loader.prefetch import NativeSource

Ids = NDArray[np.int64]

SELECT_ALL = "all"
"""Value of `select` for all features except the label, unless a feature has that name."""

NativeColumns = tuple[NDArray[Any], ...]

Prefetch = Callable[[Ids, int], "int | None"]
"""Starts to fetch remote examples if that needs at most a number of bytes, and returns the bytes;
else returns None."""

# The native core builds batches of images if it decodes most of the first ones; Python decodes the
# others, one after the other.
_PROBED_IMAGES = 32
_MIN_NATIVE_SHARE = 0.9


class BatchFormat:
    """Builds the batch of given example ids.

    Args:
        examples: The dataset.
        options: The features, hooks and structure of a batch.
        extra_padding: As for :class:`covey.loader.padding.Padding`.
    """

    def __init__(self, examples: Dataset, options: LoadOptions, extra_padding: int = 0) -> None:
        self.examples = examples
        self.options = options
        self._extra_padding = extra_padding
        self.transform = _hook("transform", options.transform)
        self.augmenter = _hook("augmenter", options.augmenter)
        self.batch_transform = _hook("batch_transform", options.batch_transform)
        features, label, select = examples.features, examples.label, options.select
        if select is None or (select == SELECT_ALL and select not in features):
            chosen = input_feature(features, label) if select is None else None
            everything = tuple(name for name in features if name != label)
            names = everything if chosen is None else (chosen,)
        else:
            names = (select,) if isinstance(select, str) else tuple(select)
        decoded = features.select(names)
        if label is not None and label in features and label not in names:
            # The label is the last column: the columns of a single feature then are (x, y).
            with_label = features.select((*names, label))
            kind = features[label]
            if isinstance(kind, ClassLabel):  # class ids are compared with those of the index
                with_label = with_label.replace({label: Tensor("int64", default=kind.default)})
            # A transform receives complete examples, whatever the type of the label.
            if with_label.column_of(label) is not None or self.transform is not None:
                decoded = with_label
        self.names = names
        """Features of x."""
        self.features = decoded
        """Decoded features: those of x, and the label if it can be compared with the index."""
        self._padding: Padding | None = None
        if options.is_padded:
            from covey.loader.padding import Padding

            self._padding = Padding(decoded, names, options, extra_padding)
        self._check_image_options()

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchFormat, (self.examples, self.options, self._extra_padding)

    def with_extra_padding(self) -> BatchFormat:
        """Return a format whose rows are padded to one more value than the longest row has."""
        return BatchFormat(self.examples, self.options, extra_padding=1)

    def _check_image_options(self) -> None:
        images = self.options.images
        for each in fields(images) if not self.has_images else ():
            found = getattr(images, each.name)
            check(
                each.name,
                found,
                found == each.default or each.name.startswith("crop_"),
                repr(each.default),
                error=FeatureError,
                reason=f"none of the features {', '.join(self.names)} is a decoded image",
            )
        check(
            "views",
            images.views,
            images.views == 1 or self.transform is None,
            "1 with transform=",
            error=FeatureError,
            reason="a transform receives one image per example",
            remedy="use batch_transform=, which receives all views",
        )

    @property
    def has_images(self) -> bool:
        """Whether images are decoded."""
        return bool(self.image_names)

    @property
    def image_names(self) -> tuple[str, ...]:
        """Features whose images are decoded."""
        if not self.options.decode_images:
            return ()
        features = self.features
        return tuple(name for name in features if isinstance(features[name], Image))

    @cached_property
    def images(self) -> dict[str, ImageColumn]:
        """How the images of each feature are decoded to arrays of one shape.

        Without `image_size` it is the shape of the first example.
        """
        columns = {}
        for name in self.image_names:
            feature = self.features[name]
            assert isinstance(feature, Image)
            height, width = self.options.images.size or feature.shape[:2]
            channels = feature.shape[2]
            if height is None or width is None or channels is None:
                ids = np.zeros(1, np.int64)
                found = locate_shape(
                    name,
                    feature,
                    self._encoded(name, ids),
                    0,
                    self._locator(ids),
                    self.examples.max_pixels,
                )
                height, width = height or found[0], width or found[1]
                channels = channels or found[2]
            shape = (height, width, channels)
            columns[name] = ImageColumn(
                name, feature, self.options.images, shape, self.examples.max_pixels
            )
        return columns

    def _encoded(self, name: str, ids: Ids) -> StringArray:
        """Return the encoded images of examples."""
        columns = self.examples.decode(self.examples.features.select((name,)), ids)
        encoded: StringArray = leaf(columns)
        return encoded

    def _locator(self, ids: Ids) -> Callable[[int], RecordLocation]:
        return lambda row: self.examples.place(int(ids[row]))

    @property
    def has_hooks(self) -> bool:
        """Whether user functions are called."""
        return any((self.transform, self.augmenter, self.batch_transform))

    @property
    def returns_tuples(self) -> bool:
        """Whether a list in a batch is a tuple of arrays rather than a column of rows."""
        return self.batch_transform is not None or self.augmenter is not None

    @property
    def is_native(self) -> bool:
        """Whether the native core can build batches without Python."""
        return not (self.has_hooks or self._padding or self.options.images.ragged)

    @property
    def prefetch(self) -> Prefetch | None:
        """Starts to fetch examples; None if they are local."""
        return self.examples.prefetch

    @property
    def pads_to_longest(self) -> bool:
        """Whether the length of a padded feature is that of the longest row of a batch."""
        return self._padding is not None and self._padding.is_open

    def native_source(self, ids: Ids) -> NativeSource | None:
        """Return what the native core needs to build batches, or None if it cannot."""
        if not self.is_native or (self.has_images and not self._can_decode_natively(ids)):
            return None
        return self.examples.native_source(self.features, ids, self.images)

    def _can_decode_natively(self, ids: Ids) -> bool:
        """Return whether the native core decodes most of the images of some examples."""
        ids = ids[:_PROBED_IMAGES]
        if not len(ids):
            return False
        wanted = _MIN_NATIVE_SHARE * len(ids)
        return all(count_native(self._encoded(name, ids)) >= wanted for name in self.image_names)

    def build(
        self, ids: Ids, classes: Ids | None, key: BatchKey, check_cancelled: Callable[[], None]
    ) -> Any:
        """Return the batch of the examples `ids`.

        Args:
            ids: The example ids.
            classes: Their class ids, if the plan has them.
            key: Identity of the batch.
            check_cancelled: Raises if the batch is no longer needed.
        """
        if classes is not None:
            self.examples.check_classes(ids, classes)
        columns: Any = self.examples.decode(self.features, ids)
        if self.has_images:
            try:
                columns = self._decode_images(columns, ids, key)
            except ImageSizeError as error:
                raise self.explain_sizes(error) from None
        if self.transform is not None and len(ids):
            columns = self._transform(self.transform, columns, ids, key, check_cancelled)
        if self._padding is not None:
            try:
                locate = partial(self._row_fields, ids, key)
                columns = self._padding.apply(self._named(columns), locate)
            except FeatureError as error:
                error.step = key.step
                raise
        y = classes
        if y is None and self.examples.label is not None:
            y = self.examples.labels_of(ids)
        try:
            return self.compose(columns, y, key)
        except Exception as error:
            received = "one dict" if self.options.as_dict else "x" if y is None else "x and y"
            add_location(
                error,
                f"in the batch of the examples {ids[:4].tolist()} and others, "
                f"step {key.step}; batch_transform= receives {received}",
            )
            raise

    def explain_sizes(self, error: ImageSizeError) -> ImageSizeError:
        """Return an error of images of different sizes with what a transform can do about it."""
        if self.transform is not None:
            error.remedy = "pass image_size='ragged' if transform= resizes the images"
        return error

    def _decode_images(self, columns: Mapping[str, Any], ids: Ids, key: BatchKey) -> dict[str, Any]:
        """Return the columns with images decoded; several views are a tuple."""
        flat = {name: self.features.find(columns, name) for name in self.features}
        row_key, locate = (key.seed, key.step, key.row), self._locator(ids)
        for name in self.image_names:
            if self.options.images.ragged:
                feature = self.features[name]
                assert isinstance(feature, Image)
                views: list[Any] = decode_each(
                    name,
                    feature,
                    flat[name],
                    locate,
                    options=self.options.images,
                    key=row_key,
                    max_pixels=self.examples.max_pixels,
                )
            else:
                views = list(self.images[name].decode(flat[name], locate, row_key))
            flat[name] = views[0] if len(views) == 1 else tuple(views)
        return self.features.nest(flat)

    def complete(
        self,
        source: NativeSource,
        outputs: NativeColumns,
        pending: Sequence[tuple[int, int]],
        ids: Ids,
        key: BatchKey,
    ) -> None:
        """Decode the images of a native batch that the native core does not support.

        Args:
            source: What the batch was read from.
            outputs: The arrays of the batch.
            pending: Row, and index in the images of the source, of each of these images.
            ids: The example ids of the batch.
            key: Identity of the batch.
        """
        names, views = tuple(self.features), source.views
        for row, number in pending:
            column, image = source.images[number]
            encoded = self._encoded(names[column], ids[row : row + 1])
            out = [outputs[view][row : row + 1] for view in views[column]]
            locate = self._locator(ids[row : row + 1])
            image.decode(encoded, locate, (key.seed, key.step, key.row + row), out)

    def _transform(
        self,
        transform: Hook,
        columns: dict[str, Any],
        ids: Ids,
        key: BatchKey,
        check_cancelled: Callable[[], None],
    ) -> Any:
        from covey.loader.padding import stack

        results = []
        for row in range(len(ids)):
            check_cancelled()
            try:
                results.append(transform(row_of(columns, row), key=key, row=row))
            except Exception as error:
                add_location(
                    error,
                    f"in transform= of {self.examples.place(int(ids[row]))}, step {key.step}, "
                    f"row {key.row + row}; it is a function of {self._example_outline}",
                )
                raise
        return stack(results, partial(self._row_fields, ids, key))

    @property
    def _example_outline(self) -> str:
        """What a transform is called with."""
        names = dict.fromkeys(self.features.path_of(name)[0] for name in self.features)
        return f"one argument, a dict of {list_names(names)}"

    def _row_fields(self, ids: Ids, key: BatchKey, row: int) -> dict[str, Any]:
        """Return the fields of an error in a row of a batch."""
        return {
            **self.examples.place(int(ids[row])).fields,
            "step": key.step,
            "row": key.row + row,
        }

    def _named(self, columns: Any) -> Mapping[str, Any]:
        """Return columns as a dict; a transform may have returned one value without a name."""
        return columns if isinstance(columns, Mapping) else {next(iter(self.names), "x"): columns}

    def compose(self, columns: Any, y: Any, key: BatchKey) -> Any:
        """Return columns and class ids in the structure of a batch, after the batch hooks."""
        x = self._x(columns)
        if self.augmenter is not None:
            x, y = augment(self.augmenter, x, y, key)
        parts: tuple[Any, ...] = (x,) if y is None else (x, y)
        if self.options.as_dict:
            batch = dict(self._named(x))
            if y is not None:
                batch[self._label_key] = y
            parts = (batch,)
        if self.batch_transform is not None:
            result = self.batch_transform(*parts, key=key)
            check(
                "result of batch_transform",
                result,
                result is not None,
                "a batch, such as (x, y)",
                error=FeatureError,
                remedy="return the batch",
                step=key.step,
            )
            return result
        return parts if len(parts) > 1 else parts[0]

    def native_composer(self, source: NativeSource) -> Callable[[NativeColumns], Any] | None:
        """Return the function from native columns to a batch, or None if they are the batch."""
        names, label, add_labels = tuple(self.features), source.label, source.add_labels
        is_pair = (len(names) == 2 and label == 1) or (len(names) == 1 and add_labels)
        is_single = self.options.select is None or isinstance(self.options.select, str)
        views = {column: each for column, each in source.views.items() if len(each) > 1}
        if is_pair and is_single and not self.options.as_dict and not views:
            return None
        position_of_labels = len(source.columns)
        key = BatchKey(0, 0)  # unused: there are no hooks

        def compose(columns: NativeColumns) -> Any:
            flat: dict[str, Any] = dict(zip(names, columns, strict=False))
            for column, each in views.items():
                flat[names[column]] = tuple(columns[view] for view in each)
            nested = self.features.nest(flat)
            y = columns[label] if label >= 0 else None
            if add_labels:
                y = columns[position_of_labels]
            return self.compose(nested, y, key)

        return compose

    @property
    def _label_key(self) -> str:
        label = self.examples.label
        if label is not None and label in self.examples.features:
            return label
        return "label" if "label" not in self.names else "class"

    def _x(self, columns: Any) -> Any:
        if not isinstance(columns, Mapping):  # the result of a transform
            return columns
        columns = self._without_label(columns)
        select = self.options.select
        if self.options.as_dict or not (select is None or isinstance(select, str)):
            return columns
        x: Any = columns
        while isinstance(x, Mapping) and len(x) == 1:
            (x,) = x.values()
        return columns if isinstance(x, Mapping) else x

    def _without_label(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        label = self.examples.label
        if label is None or label not in self.features or label in self.names:
            return columns
        path = self.features.path_of(label)
        return nest({each: column for each, column in flat_items(columns) if each != path})


def _hook(option: str, function: Callable[..., Any] | None) -> Hook | None:
    return None if function is None else Hook(option, function)


class RawFormat:
    """Builds batches of undecoded records: arrays of bytes objects.

    Args:
        examples: The dataset.
    """

    is_native = False

    def __init__(self, examples: Dataset) -> None:
        self.examples = examples

    @property
    def prefetch(self) -> Prefetch | None:
        """As :attr:`BatchFormat.prefetch`."""
        return self.examples.prefetch

    def build(
        self, ids: Ids, classes: Ids | None, key: BatchKey, check_cancelled: Callable[[], None]
    ) -> Any:
        """Return the records `ids`."""
        if classes is not None:
            self.examples.check_classes(ids, classes)
        return np.array(self.examples.raw.read(ids), object)


Format = BatchFormat | RawFormat
"""Contents of a batch; only a :class:`BatchFormat` can be native."""
