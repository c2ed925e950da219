"""Balanced batches of TFRecord shards, as a ``tf.data.Dataset``."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from covey.adapters.tensorflow import group_size, make_dataset
from covey.adapters.tensorflow.map_examples import map_examples
from covey.adapters.tensorflow.spec import BatchSpec
from covey.adapters.tensorflow.tensors import tf
from covey.dataset.dataset import Dataset
from covey.dataset.layout import Layout, current_files, find_layout
from covey.dataset.open import open as open_dataset
from covey.errors import CoveyError, DatasetError, FeatureError, PlanError
from covey.labels import guess_label
from covey.maintenance.info import find_index_state
from covey.plan import Plan
from covey.plan.base import check_int, check_seed
from covey.samplers.streamed import stream
from covey.storage import Storage, open_storage
from covey.tfrecord.compression import parse_compression

Label = str | Callable[[Mapping[str, Any]], int | str]

# What lies beside shards, and is none.
_BESIDE = (".npy", ".json", ".txt", ".idx")


def TFRecordDatasetSampler(  # noqa: N802 - as the original is called
    shard_path: str | os.PathLike[str],
    deserialization_fn: Callable[[Any], Any] | None,
    example_per_class: int = 2,
    batch_size: int = 32,
    shards_per_cycle: int | None = None,
    compression: str | None = None,
    parallelism: int = -1,
    async_cycle: bool = False,
    prefetch_size: int | None = None,
    shard_suffix: str = "*.tfrec",
    num_repeat: int = -1,
    *,
    label: Label | None = None,
    seed: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Batches with ``example_per_class`` examples of each of their classes, of TFRecord shards.

    If it is known what tells the class of an example, every batch has exactly ``batch_size //
    example_per_class`` classes, wherever in the shards their examples lie, and every example comes
    once before any comes twice. It is known if ``label`` says so, if the shards have an index, or
    if their dataset has a description with a class in it.

    If it is not, shards are streamed, as in TensorFlow Similarity: blocks of ``example_per_class``
    consecutive records of each shard in turn, by operations of tf.data alone. That is balanced only
    if examples of a class lie together, in multiples of ``example_per_class``, and if there are at
    least as many shards as classes in a batch. The beginnings of shards are looked at, and a
    warning names those that break the rule. Records at the end of a shard that do not fill a block
    are left out.

    Args:
        shard_path: The directory of the shards; local, or a URL. URLs that TensorFlow cannot read need
            a label.
        deserialization_fn: Makes an example of a record, as for ``Dataset.map``; (x, y), or any
            other structure. None has covey decode examples by the features of their dataset, which
            is several times as fast, and needs a label: batches are those of
            :meth:`covey.Dataset.batches`.
        example_per_class: K.
        batch_size: P x K: a multiple of it.
        shards_per_cycle: How many shards are streamed side by side; all by default.
        compression: How shards that are streamed are compressed: None, ``"GZIP"`` or ``"ZLIB"``.
            Otherwise that is found out.
        parallelism: How many batches are worked on at once; -1 lets TensorFlow decide.
        async_cycle: Have shards that are streamed read by threads, one for each class of a batch.
        prefetch_size: How many batches are made ahead; 10 by default.
        shard_suffix: The pattern of the shards' names.
        num_repeat: How many epochs there are; -1 for ever. An epoch shows every example. What does
            not fill the last batch of a stream is left out.
        label: What tells the class, as for :func:`covey.open`: a feature, a function of an example,
            or ``"@file"``. If there is no index of that, all shards are read once to make it.
        seed: Which batches, or in which order shards are streamed; 0 if it is None. The same seed
            gives the same in every run, and another order in every epoch.
        storage_options: What fsspec needs for a URL.

    Raises:
        ValueError: If there is no shard, or an argument cannot be.
    """
    per_class = check_int("example_per_class", example_per_class, 1)
    size = check_int("batch_size", batch_size, 1)
    if size % per_class:
        raise PlanError(
            option="batch_size",
            found=size,
            allowed=f"a multiple of example_per_class, which is {per_class}",
            remedy=f"{(size // per_class + 1) * per_class}, for instance",
        )
    for name, count in (("parallelism", parallelism), ("num_repeat", num_repeat)):
        if check_int(name, count, -1) == 0:
            raise PlanError(f"{name} is 0; must be 1 or more, or -1")
    cycle = None if shards_per_cycle is None else check_int("shards_per_cycle", shards_per_cycle, 1)
    ahead = 10 if prefetch_size is None else check_int("prefetch_size", prefetch_size, -1)
    packed = parse_compression(compression)
    seed = check_seed(0 if seed is None else seed)
    if deserialization_fn is not None and not callable(deserialization_fn):
        raise FeatureError(
            option="deserialization_fn",
            found=deserialization_fn,
            allowed="a function of a record, or None",
        )
    shards = _find_shards(shard_path, shard_suffix, storage_options)
    dataset = _open_known(shards, label)
    if dataset is not None:
        threads = None if parallelism == -1 else parallelism
        classes = len(dataset.classes)
        if size // per_class > classes:
            raise PlanError(
                f"batch_size is {size} and example_per_class is {per_class}, which makes "
                f"{size // per_class} classes, but there are only {classes}"
            )
        loader = dataset.batches(size // per_class, per_class, seed=seed, threads=threads)
        if deserialization_fn is None:
            batches = loader.to_tf()
        else:
            records = _records(dataset, loader.plan, threads)
            batches = map_examples(records, deserialization_fn, size, parallelism=parallelism)
        batches = batches.repeat(num_repeat)
    elif deserialization_fn is None:
        raise DatasetError(
            f"{shards.directory}: nothing tells the classes of these examples, so covey cannot batch "
            "them by itself; pass label= with the feature that does, or a deserialization_fn, with "
            "which shards are streamed"
        )
    else:
        batches = stream(
            shards.storage,
            shards.files,
            deserialization_fn,
            classes=size // per_class,
            examples=per_class,
            cycle=cycle,
            compression=packed,
            parallelism=parallelism,
            threads=size // per_class if async_cycle else None,
            repeats=num_repeat,
            seed=seed,
        )
    return batches.prefetch(ahead) if ahead else batches


@dataclass(frozen=True)
class _Shards:
    """The shards that were asked for."""

    storage: Storage
    directory: str
    files: list[str]
    options: Mapping[str, Any] | None


def _find_shards(
    path: str | os.PathLike[str], suffix: str, options: Mapping[str, Any] | None
) -> _Shards:
    storage = open_storage(path, options)
    directory = storage.clean(path)
    if not isinstance(suffix, str) or not suffix:
        raise DatasetError(
            option="shard_suffix", found=suffix, allowed="a pattern such as '*.tfrec'"
        )
    # A directory is called what it is called.
    plain = directory if storage.is_remote else glob.escape(directory)
    found = current_files(storage, storage.glob(storage.join(plain, suffix)))
    found = [each for each in found if _is_shard(each)]
    if not found:
        is_there = storage.is_directory(directory)
        what = f"no file in it fits {suffix!r}" if is_there else "there is no such directory"
        raise DatasetError(
            f"{what}; shard_path= is the directory of the shards, and shard_suffix= a pattern "
            "of their names, such as '*.tfrecord*'",
            path=directory,
        )
    return _Shards(storage, directory, found, options)


def _is_shard(path: str) -> bool:
    return not path.lower().endswith(_BESIDE)


# What tells the classes.


def _open_known(shards: _Shards, label: Label | None) -> Dataset | None:
    """The shards as a dataset, if it is known what tells the class of an example.

    Shards of others are not indexed unless somebody says by what.
    """
    found = list(_candidates(shards))
    chosen = next((each for each in found if _is_known(*each[1:], label)), None)
    if chosen is None and label is None:
        return None
    # What a dataset says of its features holds, even if it has no index.
    described = (each for each in found if each[1].features is not None)
    path, _, split = chosen or next(described, found[-1])
    dataset = open_dataset(path, split=split, label=label, storage_options=shards.options)
    if dataset.label is not None:
        return dataset
    dataset.close()
    return None


def _candidates(shards: _Shards) -> Iterable[tuple[Any, Layout, str]]:
    """The ways to open the shards: as those of their directory, and by themselves; and the splits."""
    address = shards.storage.address
    files = [address(each) for each in shards.files]
    for path in (address(shards.directory), files):
        try:
            layout = find_layout(path, storage_options=shards.options)
        except (CoveyError, OSError):
            if path is files:
                raise
            continue  # the directory as a whole is something else, or corrupt
        split = _split_of(layout, shards.files)
        if split is not None:
            yield path, layout, split


def _split_of(layout: Layout, files: list[str]) -> str | None:
    """The splits, or shards of splits, that some files are; None if others are among them."""
    terms: list[str] = []
    left = set(files)
    for name, split in layout.splits.items():
        inside = [path in left for path in split.files.paths]
        left.difference_update(split.files.paths)
        if any(inside):
            parts = [f"{name}[{number}shard]" for number, there in enumerate(inside) if there]
            terms += [name] if all(inside) else parts
    return None if left else "+".join(terms)


def _is_known(layout: Layout, split: str, label: Label | None) -> bool:
    if layout.features is not None and label is None and guess_label(layout.features) is not None:
        return True
    for name in {term.partition("[")[0] for term in split.split("+")}:
        index = find_index_state(layout.splits[name]).index
        if (
            index is None
            or index.metadata.label is None
            or label not in (None, index.metadata.label)
        ):
            return False
    return True


# Records of balanced batches.


def _records(dataset: Dataset, plan: Plan, threads: int | None) -> Any:
    """The records of the batches of a plan."""
    nbytes = sum(map(len, dataset.raw[plan.batch(0)]))
    form = BatchSpec(tf.TensorSpec([len(plan.batch(0))], tf.string))
    return make_dataset(dataset.raw.batches(plan, threads=threads), form, group_size(nbytes))
