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
    from covey.samplers.base import Sampler
    from covey.samplers.inputs import select_examples
    from covey.samplers.memory import (
        MultiShotFileSampler,
        MultiShotMemorySampler,
        SingleShotMemorySampler,
        load_image,
    )
    from covey.samplers.tf import TFDataSampler, TFRecordDatasetSampler
    from covey.samplers.tfds import TFDatasetMultiShotMemorySampler

__all__ = [
    "MultiShotFileSampler",
    "MultiShotMemorySampler",
    "Sampler",
    "SingleShotMemorySampler",
    "TFDatasetMultiShotMemorySampler",
    "load_image",
    "select_examples",
]
# `from covey.samplers import *` works without TensorFlow, too.
if is_installed("tensorflow"):
    __all__ += ["TFDataSampler", "TFRecordDatasetSampler"]

_MODULES = {
    "Sampler": "base",
    "TFDataSampler": "tf",
    "TFDatasetMultiShotMemorySampler": "tfds",
    "TFRecordDatasetSampler": "tf",
    "select_examples": "inputs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in __all__:
        raise AttributeError(f"module 'covey.samplers' has no attribute {name!r}")
    module = importlib.import_module(f"covey.samplers.{_MODULES.get(name, 'memory')}")
    return getattr(module, name)
