"""JAX: batches as arrays on a device, or sharded over the devices of a mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.adapters import convert, import_framework, made_ahead
from covey.adapters.image_format import IMAGE_SCALES, ImageFormat, ImageKeywords
from covey.errors import ClosedError, PlanError, check, check_int
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.loader.options import MAX_PREFETCH
from covey.plan import Plan

if TYPE_CHECKING:
    from typing_extensions import Unpack

jax: Any = import_framework("jax")

Mesh, NamedSharding = jax.sharding.Mesh, jax.sharding.NamedSharding
PartitionSpec = jax.sharding.PartitionSpec

_check = partial(check, error=PlanError)

_REMEDY = (
    "choose classes_per_batch or batch_size as a multiple of it, and remainder='drop' or 'fill'"
)
_X64 = "call jax.config.update('jax_enable_x64', True)"


def tensor(value: Any, sharding: Any = None) -> Any:
    """Return an array of JAX; values that JAX has no type for, such as strings, are returned as is.

    Args:
        value: An array of numpy or JAX. Memory is shared if JAX can share it.
        sharding: Where the array is stored, as for :func:`to_jax` (default: the default device).

    Raises:
        PlanError: If JAX would change values, or the array cannot be sharded.

    >>> tensor(np.arange(3)), tensor("wren")
    (Array([0, 1, 2], dtype=int32), 'wren')
    """
    is_jax = isinstance(value, jax.Array)
    if not is_jax:
        if not isinstance(value, (np.ndarray, np.generic)) or not _is_number(value.dtype):
            return value
        value = _check_values(value)
    if sharding is None:
        return value if is_jax else jax.device_put(value)
    fitted, parts = _fit(sharding, value.ndim), _parts(sharding)
    rows = value.shape[0] if value.ndim else 0
    allowed = f"divisible among {parts} devices"
    _check("number of rows", rows, rows % parts == 0, allowed, remedy=_REMEDY)
    if fitted.is_fully_addressable or (is_jax and not value.is_fully_addressable):
        return jax.device_put(value, fitted)
    return jax.make_array_from_process_local_data(fitted, np.asarray(value))


class JaxKeywords(ImageKeywords, total=False):
    """Keyword arguments of :func:`to_jax`."""

    prefetch: int


def to_jax(
    loader: Loader, sharding: Any = None, *, prefetch: int = 2, **images: Unpack[ImageKeywords]
) -> JaxBatches:
    """Return an iterable over the batches of a loader; each ``for`` is an epoch.

    An iteration begins at the position of the loader, which counts the batches that were returned,
    not those that were prefetched.

    With several processes, each loads its part, and an array consists of all parts; the batches are
    those of a single process::

        loader = ds.batches(32, 4, rank=jax.process_index(), world_size=jax.process_count())
        sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
        for x, y in loader.to_jax(sharding):  # x has 128 rows, some of which are on this process
            ...

    Args:
        loader: The loader.
        sharding: How each array is sharded: a ``jax.sharding.Sharding`` (lower-rank arrays, such as
            y, use its leading axes); a mesh with one axis, over which the first dimension is
            divided; or a device (default: the default device). If the number of devices divides the
            classes of a batch, each device has complete classes.
        prefetch: Number of batches whose copy to the device begins before they are requested.
        images: `layout`, `dtype`, `mean` and `std` of images, as for
            :class:`covey.adapters.image_format.ImageFormat`. They are converted on the device.

    Raises:
        PlanError: If an option is invalid, batches cannot be sharded, or the parts of the ranks do
            not fit together.

    >>> import covey
    >>> birds = ({"size": float(n), "species": n % 3} for n in range(30))
    >>> _ = covey.write(birds, "birds", split="train", label="species", progress=False)
    >>> x, y = next(to_jax(covey.open("birds").batches(2, 2, seed=1)))
    >>> x.shape, y.dtype
    ((4,), dtype('int32'))
    """
    conversion = ImageFormat(**images)
    name = conversion.dtype
    found = None if name is None else jax.dtypes.canonicalize_dtype(name).name
    _check("dtype", name, found == name, f"{found}, to which JAX converts it", remedy=_X64)
    count = check_int("prefetch", prefetch, 0, MAX_PREFETCH)
    batches = JaxBatches(loader, _as_sharding(sharding), count, conversion)
    batches.check()
    return batches


class JaxBatches(Iterator[Any]):
    """The batches of a loader as arrays of JAX; each iteration continues to the end of an epoch.

    ``next`` continues the iteration that it began.

    Copies to a device are asynchronous. JAX makes them through pinned memory of its own, into which
    a loader cannot write.

    Args:
        loader: The loader, whose position advances.
        sharding: How each array is sharded, or None.
        prefetch: Number of batches whose copy begins before they are requested.
        images: Conversion of images.
    """

    def __init__(self, loader: Loader, sharding: Any, prefetch: int, images: ImageFormat) -> None:
        self._loader = loader
        self._sharding = sharding
        self._prefetch = prefetch
        self._images = images
        is_changed = images.dtype is not None or images.layout != "NHWC"
        self._to_images = jax.jit(self._convert_images) if is_changed else None
        self._current: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        loader, plan = self._loader, self._loader.plan
        batch = loader.state_dict()["batch"]
        end, batches = plan.end_of_epoch(batch), self._prefetched()
        for _ in range(plan.steps_left(batch)):
            if loader.step != plan.step_at(batch):
                raise ClosedError("the iteration has ended: the loader was moved")
            if loader.plan is not plan:  # class weights were changed
                plan, batches = loader.plan, self._prefetched()
            result = next(batches)
            batch += plan.batches_per_step
            loader.move(plan, batch if plan.is_endless else min(batch, end))
            yield result
        if not plan.is_endless and batch < end:  # other ranks have one more step
            loader.move(plan, end)

    def _prefetched(self) -> Iterator[Any]:
        """Iterate over the converted batches from the position of the loader on."""
        return made_ahead(map(self._convert, self._loader.copy()), self._prefetch)

    def __next__(self) -> Any:
        if self._current is None:
            self._current = iter(self)
        try:
            return next(self._current)
        except BaseException:
            self._current = None
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another loader, up to the end of its epoch."""
        self._loader.load_state_dict(state)
        self._current = None

    def check(self) -> None:
        """Raise PlanError if the batches of the epoch cannot be sharded."""
        if self._sharding is None:
            return
        loader, batch = self._loader, self._loader.plan.batch_at(self._loader.step)
        _check_ranks(loader.plan, batch, self._sharding)
        form = loader.format
        is_open = isinstance(form, BatchFormat) and form.pads_to_longest
        _check(
            "pad_length",
            loader.options.pad_length,
            self._sharding.is_fully_addressable or not is_open,
            "a length for all padded features",
            reason="each process pads rows to the longest one of its part of a batch",
        )
        for step, rows in _row_counts(loader.plan, batch).items():
            if rows % _parts(self._sharding):  # unless a hook changes the number of rows
                self._convert(loader.batch(loader.step + step))

    def _convert(self, batch: Any) -> Any:
        # A buffer that is overwritten cannot be shared with an array.
        copies = self._loader.options.reuse_buffers
        sharding = self._sharding

        def to_array(value: Any) -> Any:
            is_shared = copies and isinstance(value, np.ndarray)
            array = tensor(value.copy() if is_shared else value, sharding)
            is_image = isinstance(array, jax.Array) and array.ndim == 4
            is_image = is_image and array.dtype.name in IMAGE_SCALES
            return self._to_images(array) if is_image and self._to_images else array

        if sharding is not None:
            _check_lists(batch)
        return convert(batch, to_array)

    def _convert_images(self, x: Any) -> Any:
        """Return converted images; compiled by JAX."""
        name = self._images.dtype
        if name is not None:
            if self._images.is_normalized or x.dtype.kind == "u":
                scale, shift = self._images.coefficients(x.dtype.name, x.shape[3])
                compute = name if name == "float64" else "float32"
                x = x.astype(compute) * scale.astype(compute) + shift.astype(compute)
            x = x.astype(name)
        return x.transpose(0, 3, 1, 2) if self._images.layout == "NCHW" else x


def _is_number(dtype: np.dtype[Any]) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.number)) or dtype == np.bool_


def _check_values(value: Any) -> Any:
    """Return an array whose values JAX does not change."""
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if value.dtype.kind in "iu" and dtype != value.dtype and value.size:
        bounds, smallest, largest = np.iinfo(dtype), value.min(), value.max()
        if smallest < bounds.min or largest > bounds.max:
            raise PlanError(
                f"{value.dtype} values from {smallest} to {largest} do not fit into {dtype}, to "
                "which JAX converts them",
                remedy=f"{_X64}, or map them to smaller values in batch_transform= or an augmenter",
            )
    return value


def _check_lists(batch: Any) -> None:
    """Reject lists of arrays, which are rows of different shapes."""
    columns = jax.tree.leaves(batch, is_leaf=lambda each: isinstance(each, list))
    lists = [each for each in columns if isinstance(each, list)]
    if any(isinstance(row, (np.ndarray, jax.Array)) for rows in lists for row in rows):
        raise PlanError(
            "a list of arrays cannot be divided among devices",
            remedy="give the rows one shape with image_size=, pad= or transform=, or return a "
            "tuple from a hook that returns several arrays",
        )


def _as_sharding(sharding: Any) -> Any:
    if isinstance(sharding, jax.Device):
        return jax.sharding.SingleDeviceSharding(sharding)
    if isinstance(sharding, Mesh) and len(sharding.axis_names) == 1:
        return NamedSharding(sharding, PartitionSpec(sharding.axis_names[0]))
    is_mesh = isinstance(sharding, Mesh)
    _check(
        "sharding",
        f"a mesh of the axes {sharding.axis_names}" if is_mesh else sharding,
        sharding is None or isinstance(sharding, jax.sharding.Sharding),
        "a jax.sharding.Sharding, a device, or a mesh with one axis",
        remedy="name the axis: NamedSharding(mesh, PartitionSpec('data'))" if is_mesh else "",
    )
    return sharding


@lru_cache(maxsize=64)
def _fit(sharding: Any, dimensions: int) -> Any:
    """Return a sharding without the dimensions that an array does not have."""
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= dimensions:
        return sharding
    spec = PartitionSpec(*sharding.spec[:dimensions])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


@lru_cache(maxsize=64)
def _row_ranges(sharding: Any) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the ranges of rows of this process, for one row per device, and all rows."""
    rows = len(sharding.device_set)
    indices = _fit(sharding, 1).devices_indices_map((rows,))
    ranges = {indices[device][0].indices(rows)[:2] for device in sharding.addressable_devices}
    return tuple(sorted(ranges)), rows


def _parts(sharding: Any) -> int:
    """Return the number of parts into which this process divides its rows."""
    return len(_row_ranges(sharding)[0])


def _row_counts(plan: Plan, batch: int) -> dict[int, int]:
    """Return the rows of the next step, and of the last one if it may differ, by step."""
    share, left = plan.share(batch), plan.steps_left(batch)
    steps = sorted({0} if plan.is_endless else {0, left - 1} if left else ())
    return {step: plan.native.draw(step, 1, share)[0].shape[1] for step in steps}


def _check_ranks(plan: Plan, batch: int, sharding: Any) -> None:
    """Reject shardings in which the arrays of all processes are not the batches of all ranks."""
    if sharding.is_fully_addressable:
        return
    ranges, rows = _row_ranges(sharding)
    begins, ends = zip(*ranges, strict=True)
    is_ordered = begins[0] * plan.world_size == plan.rank * rows and begins[1:] == ends[:-1]
    if not is_ordered or ends[-1] * plan.world_size != (plan.rank + 1) * rows:
        raise PlanError(
            f"the rows of this process in the sharding are not those of rank {plan.rank} of "
            f"{plan.world_size}",
            remedy="pass rank=jax.process_index() and world_size=jax.process_count(), and order "
            "the devices of the mesh by process, as jax.devices() does",
        )
    ranks = [plan.for_rank(rank, plan.world_size, plan.mode) for rank in range(plan.world_size)]
    counts = [_row_counts(rank, batch) for rank in ranks]
    if any(each != counts[0] for each in counts):
        raise PlanError(
            f"ranks have different steps or rows: {', '.join(map(str, counts))}, as rows by step",
            remedy=_REMEDY,
        )
