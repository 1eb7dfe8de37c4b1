"""`tightrope doctor`: versions, the native part, private torch names, broken companions."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable

import torch

from tightrope.capture import _probes
from tightrope.core import NativeError, format_bytes
from tightrope.native import compiler, library
from tightrope.native.interface import load

_PACKAGES = ("tightrope", "torch", "numpy", "msgspec", "highspy", "transformers", "torchvision", "triton")


def examine() -> dict[str, str]:
    """List versions, what the native part can enforce, and which private torch names exist."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    minor = ".".join(torch.__version__.split(".")[:2])
    if minor not in _probes.TESTED_MINORS:
        found["torch version"] = f"{minor} is not among the tested ones ({', '.join(_probes.TESTED_MINORS)})"
    if found["torchvision"] != "not installed" and "+cpu" in torch.__version__:
        found["torchvision"] += (
            " (beside a CPU build of torch it often fails at import and breaks other packages)"
        )
    found["threads"] = str(torch.get_num_threads())
    found["memory"] = format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    found["cuda"] = "available" if torch.cuda.is_available() else "not available"
    found["compiler"] = compiler() or "none: budgets are checked, not enforced"
    for part in ("allocator", "solver", "packer"):
        found[f"native {part}"] = _native(part, library)
    found["native batch norm"] = _native("batch_norm", load)
    for name, there in _probes.probe().items():
        found[f"torch: {name}"] = "present" if there else "missing"
    return found


def _native(part: str, make: Callable[[str], object]) -> str:
    start = time.perf_counter()
    try:
        make(part)
    except NativeError as error:
        return f"unavailable: {error}"
    return f"ready ({time.perf_counter() - start:.1f} s)"
