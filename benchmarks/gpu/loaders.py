"""Batches of JPEGs by torch's DataLoader, with one worker per core."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.common import BATCH, PACKED, SIDE, K, cores, endless
from benchmarks.photos import unpack

PREFETCH = 2  # batches per worker


class Jpegs:
    """JPEGs in memory, decoded one at a time."""

    def __init__(self, decode: Callable[[bytes], Any], path: Path = PACKED) -> None:
        self.jpegs, self.labels = unpack(path)
        self._decode = decode

    def __len__(self) -> int:
        return len(self.jpegs)

    def __getitem__(self, index: int) -> Any:
        return self._decode(self.jpegs[index]), self.labels[index]


class SharedJpegs(Jpegs):
    """The same, decoded into the rows of a batch in shared memory."""

    def __getitems__(self, ids: list[int]) -> Any:
        import simplejpeg
        import torch

        shape = (len(ids), SIDE, SIDE, 3)
        storage = torch.UntypedStorage._new_shared(int(np.prod(shape)))
        images = torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)
        for row, index in zip(images.numpy(), ids, strict=True):
            simplejpeg.decode_jpeg(self.jpegs[index], buffer=row)
        return images, torch.tensor([self.labels[index] for index in ids])


def by_simplejpeg(jpeg: bytes) -> Any:
    import simplejpeg
    import torch

    return torch.from_numpy(simplejpeg.decode_jpeg(jpeg))


def by_pillow(jpeg: bytes) -> Any:
    import torch
    from PIL import Image

    return torch.from_numpy(np.array(Image.open(io.BytesIO(jpeg)).convert("RGB")))


def keep(batch: Any) -> Any:
    return batch


def batches(images: Any, labels: Any, *, pin: bool, **options: Any) -> Iterator[Any]:
    from pytorch_metric_learning.samplers import MPerClassSampler
    from torch.utils.data import DataLoader

    sampler = MPerClassSampler(labels, K, batch_size=BATCH, length_before_new_iter=len(labels) * 20)
    loader: Any = DataLoader(
        images,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=cores(),
        pin_memory=pin,
        prefetch_factor=PREFETCH,
        **options,
    )
    return endless(lambda: loader)


def simplejpeg_batches(pin: bool) -> Iterator[Any]:
    jpegs = Jpegs(by_simplejpeg)
    return batches(jpegs, jpegs.labels, pin=pin)


def shared_batches(pin: bool) -> Iterator[Any]:
    jpegs = SharedJpegs(by_simplejpeg)
    return batches(jpegs, jpegs.labels, pin=pin, collate_fn=keep)


def pillow_batches(pin: bool) -> Iterator[Any]:
    jpegs = Jpegs(by_pillow)
    return batches(jpegs, jpegs.labels, pin=pin)
