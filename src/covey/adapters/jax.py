"""JAX: batches as its arrays, on a device, or split over the devices of a mesh."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

from covey.adapters import convert
from covey.errors import PlanError
from covey.loader import Loader
from covey.plan import Plan

try:
    jax: Any = importlib.import_module("jax")  # whatever its types are, if it has any
except ImportError as error:
    raise ImportError(
        "arrays of JAX need it, and it is not installed; run: pip install 'covey[jax]'"
    ) from error

Mesh, NamedSharding = jax.sharding.Mesh, jax.sharding.NamedSharding
PartitionSpec = jax.sharding.PartitionSpec

_REMEDY = (
    "have classes_per_batch, or batch_size, be a multiple of them, and if the last batch of an "
    "epoch is shorter, remainder='drop' or remainder='fill'"
)


def tensor(value: Any, sharding: Any = None) -> Any:
    """An array of JAX; what JAX cannot hold, such as strings, stays as it is.

    Args:
        value: An array of numpy, or of JAX. Memory is shared where JAX can do so.
        sharding: Where it goes, as for :func:`to_jax`; the default device if None.

    Raises:
        PlanError: If JAX would change its numbers, or it cannot be split so.

    >>> tensor(np.arange(3)), tensor("wren")
    (Array([0, 1, 2], dtype=int32), 'wren')
    """
    is_ours = isinstance(value, jax.Array)
    if not is_ours:
        if not isinstance(value, (np.ndarray, np.generic)) or not _is_held(value.dtype):
            return value
        value = _checked(value)
    if sharding is None:
        return value if is_ours else jax.device_put(value)
    fitted = _fitted(sharding, value.ndim)
    if value.ndim and value.shape[0] % _parts(sharding):
        raise PlanError(
            f"an array of a batch has {value.shape[0]} rows, which cannot be split evenly over "
            f"{_parts(sharding)} devices; {_REMEDY}"
        )
    if fitted.is_fully_addressable or (is_ours and not value.is_fully_addressable):
        return jax.device_put(value, fitted)
    return jax.make_array_from_process_local_data(fitted, np.asarray(value))


def to_jax(loader: Loader, sharding: Any = None) -> Iterator[Any]:
    """The batches of a loader up to the end of its epoch, as arrays of JAX.

    Nothing is taken ahead: the loader's state says how many batches were returned. Copies to a
    device go on while the next computation is prepared.

    With several processes, each loads its part, and an array is made of all of them; the batches
    are those that one process would have::

        loader = ds.batches(32, 4, rank=jax.process_index(), world_size=jax.process_count())
        sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
        for x, y in loader.to_jax(sharding):  # x has 128 rows, and this process some of them
            ...

    Args:
        loader: Whose batches.
        sharding: How each array is split: a ``jax.sharding.Sharding`` (arrays with fewer dimensions
            than it names take the first ones); a mesh of one axis, over which the first dimension
            is split; or a device. If the devices divide the classes of a batch, each has whole
            classes. The default device if None.

    Raises:
        PlanError: If batches cannot be split so, or the parts of the ranks do not fit together.

    >>> import covey
    >>> birds = ({"size": float(n), "species": n % 3} for n in range(30))
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> x, y = next(to_jax(covey.open("birds").batches(2, 2, seed=1)))
    >>> x.shape, y.dtype
    ((4,), dtype('int32'))
    """
    sharding = _as_sharding(sharding)
    # What is overwritten when the next batch is asked for cannot be shared with it.
    emit = partial(_hand_over, sharding=sharding, copy=loader.options.reuse_buffers)
    if sharding is not None:
        batch = loader.state_dict()["batch"]
        _check_ranks(loader.plan, batch, sharding)
        for step, rows in _lengths(loader.plan, batch).items():
            # A hook may give other rows than the plan says: it is asked before all is off.
            if rows % _parts(sharding):
                emit(loader.batch(loader.step + step))
    return map(emit, loader)


def _hand_over(batch: Any, *, sharding: Any, copy: bool) -> Any:
    def place(value: Any) -> Any:
        return tensor(value.copy() if copy and isinstance(value, np.ndarray) else value, sharding)

    if sharding is not None:
        _check_lists(batch)
    return convert(batch, place)


def _is_held(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has numbers of a type, or such as take its place."""
    is_number = jax.dtypes.issubdtype(dtype, np.number) or dtype == np.bool_
    return bool(is_number) and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _checked(value: Any) -> Any:
    """An array whose numbers JAX does not change."""
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    becomes = jax.dtypes.canonicalize_dtype(value.dtype)
    if value.dtype.kind in "iu" and becomes != value.dtype and value.size:
        bounds, least, most = np.iinfo(becomes), value.min(), value.max()
        if least < bounds.min or most > bounds.max:
            raise PlanError(
                f"an array of a batch has {value.dtype} values from {least} to {most}, of which "
                f"JAX would make other numbers, as it makes them {becomes}; call "
                "jax.config.update('jax_enable_x64', True), or map them to smaller ones before, as "
                "batch_transform= or an augmenter can"
            )
    return value


def _check_lists(batch: Any) -> None:
    """Lists of arrays are rows that have different shapes: none of them is to be split."""
    if isinstance(batch, list):
        if any(isinstance(each, (np.ndarray, jax.Array)) for each in batch):
            raise PlanError(
                "a batch has a list of arrays, which cannot be split over devices; give them one "
                "shape, as image_size= or transform= can (a hook that returns several arrays "
                "returns a tuple)"
            )
    elif isinstance(batch, (dict, tuple)):
        for each in batch.values() if isinstance(batch, dict) else batch:
            _check_lists(each)


# How arrays are split.


def _as_sharding(given: Any) -> Any:
    if given is None or isinstance(given, jax.sharding.Sharding):
        return given
    if isinstance(given, jax.Device):
        return jax.sharding.SingleDeviceSharding(given)
    if isinstance(given, Mesh) and len(given.axis_names) == 1:
        return NamedSharding(given, PartitionSpec(given.axis_names[0]))
    found = f"a mesh of the axes {given.axis_names}" if isinstance(given, Mesh) else repr(given)
    raise PlanError(
        option="sharding",
        found=found,
        allowed="a jax.sharding.Sharding, a device, or a mesh of one axis",
        remedy="with several, say which: NamedSharding(mesh, PartitionSpec('data'))",
    )


@lru_cache(maxsize=64)
def _fitted(sharding: Any, dimensions: int) -> Any:
    """A sharding of so many dimensions: those that an array lacks are left out."""
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= dimensions:
        return sharding
    spec = PartitionSpec(*sharding.spec[:dimensions])
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


@lru_cache(maxsize=64)
def _spans(sharding: Any) -> tuple[tuple[tuple[int, int], ...], int]:
    """The rows that devices of this process have, if there are as many rows as devices at all."""
    rows = len(sharding.device_set)
    indices = _fitted(sharding, 1).devices_indices_map((rows,))
    spans = {indices[each][0].indices(rows)[:2] for each in sharding.addressable_devices}
    return tuple(sorted(spans)), rows


def _parts(sharding: Any) -> int:
    """In how many parts this process splits its rows."""
    return len(_spans(sharding)[0])


def _lengths(plan: Plan, batch: int) -> dict[int, int]:
    """The rows of the next step, and of the last if that may have others: by steps from a batch."""
    share, left = plan.share(batch), plan.steps_left(batch)
    steps = sorted({0} if plan.is_endless else {0, left - 1} if left else ())
    return {step: plan.native.draw(step, 1, share)[0].shape[1] for step in steps}


def _check_ranks(plan: Plan, batch: int, sharding: Any) -> None:
    """Make sure that arrays of all processes are the batches of all ranks, in order."""
    if sharding.is_fully_addressable:
        return
    spans, rows = _spans(sharding)
    begins, ends = zip(*spans, strict=True)
    is_in_order = begins[0] * plan.world_size == plan.rank * rows and begins[1:] == ends[:-1]
    if not is_in_order or ends[-1] * plan.world_size != (plan.rank + 1) * rows:
        raise PlanError(
            f"this is rank {plan.rank} of {plan.world_size}, but it has other rows of the sharding; "
            "pass rank=jax.process_index(), world_size=jax.process_count(), and have a mesh whose "
            "devices are in the order of their processes, as those of jax.devices() are"
        )
    ranks = [plan.for_rank(rank, plan.world_size, plan.mode) for rank in range(plan.world_size)]
    steps = {rank.steps_left(batch) for rank in ranks}
    if len(steps) > 1:
        raise PlanError(
            f"ranks have {min(steps)} to {max(steps)} steps in this epoch, so that some would wait "
            "for others for ever; pass remainder='fill'"
        )
    if any(_lengths(rank, batch) != _lengths(plan, batch) for rank in ranks):
        raise PlanError(
            f"a step has parts of different lengths for {plan.world_size} ranks, of which JAX cannot "
            f"make one array; {_REMEDY}"
        )
