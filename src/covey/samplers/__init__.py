"""TensorFlow Similarity's samplers, with the same names and arguments and exactly balanced batches.

The classes work in ``keras.Model.fit`` and in any other loop; the functions return a
``tf.data.Dataset``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from covey.adapters import is_installed
from covey.samplers.base import Sampler
from covey.samplers.files import MultiShotFileSampler, load_image
from covey.samplers.memory import MultiShotMemorySampler
from covey.samplers.select import select_examples
from covey.samplers.single_shot import SingleShotMemorySampler
from covey.samplers.tfds import TFDatasetMultiShotMemorySampler

if TYPE_CHECKING:
    from covey.samplers.tfdata import TFDataSampler
    from covey.samplers.tfrecord import TFRecordDatasetSampler

__all__ = [
    "MultiShotFileSampler",
    "MultiShotMemorySampler",
    "Sampler",
    "SingleShotMemorySampler",
    "TFDataSampler",
    "TFDatasetMultiShotMemorySampler",
    "TFRecordDatasetSampler",
    "load_image",
    "select_examples",
]

# Imported on first use, because they import TensorFlow.
_WITH_TENSORFLOW = {"TFDataSampler": "tfdata", "TFRecordDatasetSampler": "tfrecord"}

if not is_installed("tensorflow"):  # else `from covey.samplers import *` would fail
    __all__ = [name for name in __all__ if name not in _WITH_TENSORFLOW]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TENSORFLOW:
        raise AttributeError(f"module 'covey.samplers' has no attribute {name!r}")
    module = importlib.import_module(f"covey.samplers.{_WITH_TENSORFLOW[name]}")
    value = globals()[name] = getattr(module, name)
    return value
