"""Load a torchvision for CUDA beside a torch without CUDA, to use its decoders on the processor.

Its extensions link to two libraries that such a torch lacks. They are replaced by libraries that
define the same symbols; calling one ends the process, which decoding on the processor never does.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.data import FOLDER

MISSING = ("libc10_cuda.so", "libtorch_cuda.so")


def load() -> Any:
    """Import torchvision.

    Raises:
        ImportError: If it is not installed.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ImportError("torchvision is not installed")
    libraries = Path(torch.__file__).parent / "lib"
    if not (libraries / MISSING[0]).exists():
        replace(Path(spec.origin).parent)
    import torchvision

    return torchvision


def replace(package: Path) -> None:
    names = {name for path in package.glob("*.so") for name in undefined(path)}
    if not names:  # built without CUDA
        return
    data = {name for name in names if name.endswith("9allocatorE")}
    lines = [".text", *declared(names - data), "ud2", ".data", ".balign 8", *declared(data)]
    lines += [".quad 0", '.section .note.GNU-stack,"",@progbits']
    directory = FOLDER / "images"
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "cuda.s"
    source.write_text("\n".join(lines) + "\n")
    for name in MISSING:
        command = ["g++", "-shared", str(source), f"-Wl,-soname,{name}", "-o", directory / name]
        subprocess.run(command, check=True, capture_output=True)
        ctypes.CDLL(str(directory / name), mode=ctypes.RTLD_GLOBAL)


def undefined(path: Path) -> set[str]:
    """Return the symbols of the namespaces c10::cuda and at::cuda that a library requires."""
    command = ["nm", "-D", "--undefined-only", str(path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = (line.split()[-1].partition("@")[0] for line in found.splitlines())
    return {name for name in names if name.startswith("_Z") and "4cuda" in name}


def declared(names: set[str]) -> list[str]:
    return [line for name in sorted(names) for line in (f".globl {name}", f"{name}:")]
