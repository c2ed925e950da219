"""Sides of the image benchmarks: python -m benchmarks.image_sides NAME FILE_OR_DIRECTORY.

The other libraries read JPEGs from memory, in the order of the batches: reading and sampling, which
covey does too, cost them nothing. A side with several settings uses the fastest one, determined
when it starts.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.photos import BATCH, K, P, unpack
from benchmarks.sides import serve, take

Made = tuple[Iterator[Any], str]

CROP = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
WORKERS = 2


def endless(again: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    while True:
        yield from again()


def fastest(settings: dict[str, Callable[[], Iterator[Any]]]) -> Made:
    """Return the fastest of several iterators, restarted, and the name of its setting."""
    rates: dict[str, float] = {}
    for name, make in settings.items():
        batches = make()
        take(batches, 4)
        rates[name] = take(batches, 8)
        del batches
    best = min(rates, key=rates.__getitem__)
    return settings[best](), best


# covey


def covey_side(path: Path, **options: Any) -> Made:
    import covey

    loader = covey.open(path).batches(P, K, seed=1, **options)
    return loader.take(10**12), f"covey {covey.__version__}"


def covey_crop(path: Path, **options: Any) -> Made:
    crop = {"image_size": (CROP, CROP), "crop": "random", "flip": True}
    return covey_side(path, **crop, **options)


# tf.data


def tf_batches(path: Path, decode: Callable[[Any], Any]) -> Made:
    """Decode in a parallel map; P x K requires the order of the elements, which is kept."""
    import tensorflow as tf

    jpegs, classes = unpack(path)

    def make(calls: int, fused: bool) -> Iterator[Any]:
        elements = tf.data.Dataset.from_tensor_slices((jpegs, classes)).repeat()
        decoded = elements.map(lambda x, y: (decode(x), y), num_parallel_calls=calls)
        batches = decoded.batch(BATCH, drop_remainder=True)
        options = tf.data.Options()
        options.experimental_optimization.map_and_batch_fusion = fused
        return iter(batches.prefetch(2).with_options(options))

    settings = {
        f"num_parallel_calls={name}{', map and batch fused' if fused else ''}": (
            lambda calls=calls, fused=fused: make(calls, fused)
        )
        for name, calls in {"2": 2, "4": 4, "AUTOTUNE": tf.data.AUTOTUNE}.items()
        for fused in (False, True)
    }
    batches, setting = fastest(settings)
    return batches, f"TensorFlow {tf.__version__}, {setting}"


def tf_decode(path: Path, method: str) -> Made:
    import tensorflow as tf

    def decode(jpeg: Any) -> Any:
        image = tf.io.decode_jpeg(jpeg, channels=3, dct_method=method)
        return tf.ensure_shape(image, [256, 256, 3])

    return tf_batches(path, decode)


def tf_crop(path: Path, method: str, antialias: bool) -> Made:
    import tensorflow as tf

    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def decode(jpeg: Any) -> Any:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(jpeg),
            whole,
            min_object_covered=0,
            area_range=SCALE,
            aspect_ratio_range=RATIO,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.io.decode_and_crop_jpeg(jpeg, window, channels=3, dct_method=method)
        image = tf.image.random_flip_left_right(image)
        image = tf.image.resize(image, [CROP, CROP], antialias=antialias)
        return tf.ensure_shape(tf.cast(image + 0.5, tf.uint8), [CROP, CROP, 3])

    return tf_batches(path, decode)


# torch


class Images:
    """JPEGs in memory, decoded one at a time."""

    def __init__(self, path: Path, decode: Callable[[bytes], Any]) -> None:
        self._jpegs, self.labels = unpack(path)
        self._decode = decode

    def __len__(self) -> int:
        return len(self._jpegs)

    def __getitem__(self, index: int) -> Any:
        return self._decode(self._jpegs[index]), self.labels[index]


class SharedBatches(Images):
    """The same, decoded into the rows of a batch in shared memory: no copy is left."""

    def __getitems__(self, ids: list[int]) -> Any:
        import simplejpeg
        import torch

        shape = (len(ids), 256, 256, 3)
        size = int(np.prod(shape))
        storage = torch.UntypedStorage._new_shared(size)
        images = torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)
        for row, index in zip(images.numpy(), ids, strict=True):
            simplejpeg.decode_jpeg(self._jpegs[index], buffer=row)
        return images, torch.tensor([self.labels[index] for index in ids])


def keep(batch: Any) -> Any:
    return batch


def data_loader(images: Images, **options: Any) -> Iterator[Any]:
    from pytorch_metric_learning.samplers import MPerClassSampler
    from torch.utils.data import DataLoader

    count = len(images) * 50  # workers wait at the end of an epoch
    sampler = MPerClassSampler(images.labels, K, batch_size=BATCH, length_before_new_iter=count)
    loader: Any = DataLoader(
        images,  # type: ignore[arg-type]
        batch_size=BATCH,
        sampler=sampler,
        num_workers=WORKERS,
        persistent_workers=True,
        **options,
    )
    return endless(lambda: loader)


def decode_simplejpeg(jpeg: bytes) -> Any:
    import simplejpeg
    import torch

    return torch.from_numpy(simplejpeg.decode_jpeg(jpeg))


def torch_decode(path: Path) -> Made:
    import simplejpeg
    import torch

    plain = Images(path, decode_simplejpeg)
    shared = SharedBatches(path, decode_simplejpeg)
    batches, setting = fastest(
        {
            "default collate": lambda: data_loader(plain),
            "decoded into shared memory": lambda: data_loader(shared, collate_fn=keep),
        }
    )
    return batches, f"torch {torch.__version__}, simplejpeg {simplejpeg.__version__}, {setting}"


def torchvision_crop(path: Path) -> Made:
    """Crop with torchvision's v2 transforms: its own decoder, and Pillow's."""
    import torch
    from PIL import Image

    from benchmarks import torchvision_cpu

    torchvision = torchvision_cpu.load()
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    crop = v2.Compose(
        [
            v2.RandomResizedCrop(CROP, scale=SCALE, ratio=RATIO, antialias=True),
            v2.RandomHorizontalFlip(),
        ]
    )

    def tensors(jpeg: bytes) -> Any:
        encoded = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
        return crop(decode_jpeg(encoded, mode=ImageReadMode.RGB))

    def pillow(jpeg: bytes) -> Any:
        return v2.functional.pil_to_tensor(crop(Image.open(io.BytesIO(jpeg)).convert("RGB")))

    settings = {"transforms of Pillow images": pillow}
    try:
        tensors(unpack(path)[0][0])
        settings["decode_jpeg, transforms of tensors"] = tensors
    except Exception as error:  # an extension that does not load: Pillow's decoder remains
        print("torchvision.io:", error, file=sys.stderr)
    made = {name: Images(path, decode) for name, decode in settings.items()}
    batches, setting = fastest(
        {name: lambda images=images: data_loader(images) for name, images in made.items()}
    )
    absent = "" if len(settings) == 2 else " (decode_jpeg does not load here)"
    version = f"torch {torch.__version__}, torchvision {torchvision.__version__}"
    return batches, f"{version}, {setting}{absent}"


# DALI

Graph = Callable[[Any, Any, Any], Any]


def dali(path: Path, graphs: dict[str, Graph]) -> Made:
    from nvidia import dali as library
    from nvidia.dali import fn, types

    encoded = [np.frombuffer(jpeg, np.uint8) for jpeg in unpack(path)[0]]
    batches = [encoded[n : n + BATCH] for n in range(0, len(encoded), BATCH)]

    def make(graph: Graph, depth: int) -> Iterator[Any]:
        @library.pipeline_def(
            batch_size=BATCH,
            num_threads=WORKERS,
            device_id=None,
            prefetch_queue_depth=depth,
            seed=1,
        )
        def pipeline() -> Any:
            source = endless(lambda: batches)
            return graph(fn.external_source(source=source, batch=True, no_copy=True), fn, types)

        pipe = pipeline()
        pipe.build()
        return endless(lambda: [pipe.run()])

    settings = {
        f"{name}, prefetch_queue_depth={depth}": (
            lambda graph=graph, depth=depth: make(graph, depth)
        )
        for name, graph in graphs.items()
        for depth in (2, 4)
    }
    made, setting = fastest(settings)
    return made, f"DALI {library.__version__}, {setting}"


def dali_decode(path: Path) -> Made:
    def graph(jpegs: Any, fn: Any, types: Any) -> Any:
        return fn.decoders.image(jpegs, output_type=types.RGB, device="cpu")

    return dali(path, {"decoders.image": graph})


def dali_crop(path: Path, antialias: bool) -> Made:
    area: dict[str, Any] = {
        "random_area": list(SCALE),
        "random_aspect_ratio": list(RATIO),
        "num_attempts": 10,
    }

    def fused(interpolation: str) -> Graph:
        def graph(jpegs: Any, fn: Any, types: Any) -> Any:
            cropped = fn.decoders.image_random_crop(jpegs, device="cpu", **area)
            linear = getattr(types, f"INTERP_{interpolation}")
            resized = fn.resize(cropped, size=(CROP, CROP), interp_type=linear, antialias=antialias)
            return fn.flip(resized, horizontal=fn.random.coin_flip())

        return graph

    def complete(jpegs: Any, fn: Any, types: Any) -> Any:
        image = fn.decoders.image(jpegs, device="cpu")
        resized = fn.random_resized_crop(image, size=(CROP, CROP), antialias=antialias, **area)
        return fn.flip(resized, horizontal=fn.random.coin_flip())

    graphs = {"decoders.image_random_crop + resize": fused("LINEAR")}
    if antialias:
        graphs["decoders.image_random_crop + resize, triangular"] = fused("TRIANGULAR")
    graphs["decoders.image + random_resized_crop"] = complete
    return dali(path, graphs)


SIDES: dict[str, Callable[[Path], Made]] = {
    "covey": covey_side,
    "covey, reuse_buffers": lambda path: covey_side(path, reuse_buffers=True),
    "tf.data": lambda path: tf_decode(path, "INTEGER_ACCURATE"),
    "tf.data, fast DCT": lambda path: tf_decode(path, "INTEGER_FAST"),
    "DataLoader": torch_decode,
    "DALI": dali_decode,
    "covey, crop": covey_crop,
    "covey, crop, fast": lambda path: covey_crop(path, decode="fast"),
    "covey, crop, two views": lambda path: covey_crop(path, views=2),
    "torchvision, crop": torchvision_crop,
    "DALI, crop": lambda path: dali_crop(path, antialias=True),
    "DALI, crop, not antialiased": lambda path: dali_crop(path, antialias=False),
    "tf.data, crop": lambda path: tf_crop(path, "INTEGER_ACCURATE", antialias=True),
    "tf.data, crop, not antialiased": (
        lambda path: tf_crop(path, "INTEGER_ACCURATE", antialias=False)
    ),
    "tf.data, crop, not antialiased, fast DCT": (
        lambda path: tf_crop(path, "INTEGER_FAST", antialias=False)
    ),
}


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    name, path = sys.argv[1:]
    serve(name, {key: lambda make=make: make(Path(path)) for key, make in SIDES.items()})


if __name__ == "__main__":
    main()
