"""covey: labelled data to TFRecords, and TFRecords to exactly balanced batches.

Names are imported on first use: ``import covey`` loads numpy and nothing heavier.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey import adapters as adapters
    from covey import arrays as arrays
    from covey import augmenters as augmenters
    from covey import classes as classes
    from covey import engines as engines
    from covey import errors as errors
    from covey import metrics as metrics
    from covey import plan as plan
    from covey import reading as reading
    from covey import results as results
    from covey import samplers as samplers
    from covey import sources as sources
    from covey import tfrecord as tfrecord
    from covey import writer as writer
    from covey.dataset.dataset import Dataset as Dataset
    from covey.dataset.open import open as open  # noqa: A004
    from covey.errors import CoveyError as CoveyError
    from covey.loader import Loader as Loader
    from covey.maintenance.build_index import build_index as build_index
    from covey.maintenance.info import info as info
    from covey.maintenance.repair import repair as repair
    from covey.maintenance.verify import verify as verify
    from covey.schema import Audio as Audio
    from covey.schema import ClassLabel as ClassLabel
    from covey.schema import Feature as Feature
    from covey.schema import Features as Features
    from covey.schema import Image as Image
    from covey.schema import Ragged as Ragged
    from covey.schema import Sparse as Sparse
    from covey.schema import Steps as Steps
    from covey.schema import Tensor as Tensor
    from covey.tfrecord import RecordReader as RecordReader
    from covey.tfrecord import RecordWriter as RecordWriter
    from covey.view.pictures import show as show
    from covey.writing.hold_out import HoldOut as HoldOut
    from covey.writing.parts import commit as commit
    from covey.writing.write import write as write

__version__ = "0.1.0"

_MODULES = {
    "Audio": "covey.schema.audio",
    "ClassLabel": "covey.schema.types",
    "CoveyError": "covey.errors",
    "Dataset": "covey.dataset.dataset",
    "Feature": "covey.schema.types",
    "Features": "covey.schema.features",
    "HoldOut": "covey.writing.hold_out",
    "Image": "covey.schema.images",
    "Loader": "covey.loader",
    "Ragged": "covey.schema.types",
    "RecordReader": "covey.tfrecord.reader",
    "RecordWriter": "covey.tfrecord.writer",
    "Sparse": "covey.schema.types",
    "Steps": "covey.schema.tensor",
    "Tensor": "covey.schema.tensor",
    "build_index": "covey.maintenance.build_index",
    "commit": "covey.writing.parts",
    "info": "covey.maintenance.info",
    "open": "covey.dataset.open",
    "repair": "covey.maintenance.repair",
    "show": "covey.view.pictures",
    "verify": "covey.maintenance.verify",
    "write": "covey.writing.write",
}

_SUBMODULES = (
    "adapters",
    "arrays",
    "augmenters",
    "classes",
    "engines",
    "errors",
    "metrics",
    "plan",
    "reading",
    "results",
    "samplers",
    "sources",
    "tfrecord",
    "writer",
)

if not TYPE_CHECKING:  # to type checkers, the imports above are the public names
    __all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"covey.{name}")
    if name not in _MODULES:
        if name.startswith("_"):  # `from covey import _core` asks for the attribute first
            raise AttributeError(name)
        from covey.errors import closest

        similar = closest(name, __dir__())
        hint = "" if similar is None else f"; did you mean {similar!r}?"
        # Python suggests names of `obj` as well.
        raise AttributeError(f"module 'covey' has no attribute {name!r}{hint}", name=name, obj=None)
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_MODULES, *_SUBMODULES, "__version__"])
