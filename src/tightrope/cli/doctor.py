"""`tightrope doctor`: versions, the native part, adapters to torch, a small model, broken companions."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from tightrope.capture import _probes
from tightrope.capture._checks import broken
from tightrope.cli.plugins import KNOWN
from tightrope.core import NativeError, format_bytes
from tightrope.native import compiler, library
from tightrope.native.interface import load, missing
from tightrope.run.compile import plan_small
from tightrope.run.execute.untested import Loss, loss_of, small_step
from tightrope.run.report import report
from tightrope.run.step import step

_PACKAGES = ("tightrope", "torch", "numpy", "msgspec", "highspy", "transformers", "torchvision", "triton")


def examine() -> dict[str, str]:
    """List versions, what the native part can enforce, which adapters to torch work, and how a model runs."""
    found = {"python": platform.python_version()}
    for name in (*_PACKAGES, *dict.fromkeys(part.distribution for part in KNOWN.values())):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    if (minor := _probes.minor()) not in _probes.TESTED_MINORS:
        found["torch version"] = f"{minor} is not among the tested ones ({', '.join(_probes.TESTED_MINORS)})"
    if found["torchvision"] != "not installed" and "+cpu" in torch.__version__:
        found["torchvision"] += (
            " (beside a CPU build of torch it often fails at import and breaks other packages)"
        )
    found["threads"] = str(torch.get_num_threads())
    found["memory"] = format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    found["cuda"] = "available" if torch.cuda.is_available() else "not available"
    has_hook = not missing("allocator")
    found["compiler"] = compiler() or ("none" if has_hook else "none: budgets are checked, not enforced")
    for part in ("allocator", "solver", "packer"):
        found[f"native {part}"] = _native(part, library)
    found["native batch norm"] = _native("batch_norm", load)
    found |= adapters()
    for name, plan in (("compile", plan_small), ("step", _step), ("torch.compile", _backend)):
        found[name] = small_step(plan).level
    return found


def adapters() -> dict[str, str]:
    """Say of each adapter to torch whether it works."""
    wrong = broken(tuple(_probes.PROBES))
    return {
        f"torch: {name}": f"broken: {wrong[name]}" if name in wrong else "works" for name in _probes.PROBES
    }


def _step(model: torch.nn.Module, budget: int) -> tuple[Loss, Callable[[], str]]:
    train = step(lambda given: loss_of(model(given)), budget=budget, model=model, progress=False)
    return train, lambda: train.report().level


def _backend(model: torch.nn.Module, budget: int) -> tuple[Loss, Callable[[], str]]:
    planned: Any = torch.compile(model, backend="tightrope", options={"budget": budget, "progress": False})
    return lambda given: loss_of(planned(given)), lambda: report(planned).level


def _native(part: str, make: Callable[[str], object]) -> str:
    start = time.perf_counter()
    try:
        make(part)
    except NativeError as error:
        return f"unavailable: {error}"
    return f"ready ({time.perf_counter() - start:.1f} s)"
