"""covey: labelled data to TFRecords, and TFRecords to exactly balanced batches.

Names are imported on first use: ``import covey`` loads numpy and nothing heavier. The public names
are listed in ``__init__.pyi``, where type checkers find them.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

__version__ = "0.1.0"

# The module of each public name; "covey" for a submodule.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as _stub:
    _LINES = [line.split() for line in _stub if line.startswith("from ")]
_MODULES = {name: module for _, module, _, name, *_ in _LINES}

__all__ = sorted(name for name, module in _MODULES.items() if module != "covey")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        module = _MODULES[name]
        if module == "covey":
            return importlib.import_module(f"covey.{name}")
        value = globals()[name] = getattr(importlib.import_module(module), name)
        return value
    if name.startswith("_"):  # `from covey import _core` asks for the attribute first
        raise AttributeError(name)
    from covey.errors import closest

    similar = closest(name, __dir__())
    hint = "" if similar is None else f"; did you mean {similar!r}?"
    # Python suggests names of `obj` as well.
    raise AttributeError(f"module 'covey' has no attribute {name!r}{hint}", name=name, obj=None)


def __dir__() -> list[str]:
    return sorted([*_MODULES, "__version__"])
