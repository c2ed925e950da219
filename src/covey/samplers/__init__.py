"""TensorFlow Similarity's samplers, with the same names and arguments and exactly balanced batches.

The classes work in ``keras.Model.fit`` and in any other loop; the functions return a
``tf.data.Dataset``. Names are imported on first use, because their modules import Keras or
TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from covey.adapters import is_installed

if TYPE_CHECKING:
    from covey.samplers.base import Sampler as Sampler
    from covey.samplers.inputs import select_examples as select_examples
    from covey.samplers.memory import (
        MultiShotFileSampler as MultiShotFileSampler,
    )
    from covey.samplers.memory import (
        MultiShotMemorySampler as MultiShotMemorySampler,
    )
    from covey.samplers.memory import (
        SingleShotMemorySampler as SingleShotMemorySampler,
    )
    from covey.samplers.memory import (
        load_image as load_image,
    )
    from covey.samplers.tfdata import TFDataSampler as TFDataSampler
    from covey.samplers.tfds import (
        TFDatasetMultiShotMemorySampler as TFDatasetMultiShotMemorySampler,
    )
    from covey.samplers.tfrecord import TFRecordDatasetSampler as TFRecordDatasetSampler

_MODULES = {
    "MultiShotFileSampler": "memory",
    "MultiShotMemorySampler": "memory",
    "Sampler": "base",
    "SingleShotMemorySampler": "memory",
    "TFDataSampler": "tfdata",
    "TFDatasetMultiShotMemorySampler": "tfds",
    "TFRecordDatasetSampler": "tfrecord",
    "load_image": "memory",
    "select_examples": "inputs",
}

# `from covey.samplers import *` works without TensorFlow, too.
__all__ = [
    name
    for name, module in _MODULES.items()
    if module not in ("tfdata", "tfrecord") or is_installed("tensorflow")
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'covey.samplers' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"covey.samplers.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
