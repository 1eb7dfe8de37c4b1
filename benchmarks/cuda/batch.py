"""C4: the largest batch of GPT-2 355M that trains under a limit, as it is and under a plan."""

import gc
from collections.abc import Iterator
from typing import Any, Final

import torch

import tightrope
from benchmarks.cuda.nets import build
from benchmarks.cuda.steps import Call, clean, optimizer_of, step
from benchmarks.zoo.case import Case
from tightrope.core import InfeasibleError
from tightrope.run.compile import compiled_of

LIMIT: Final = 24 * 2**30
_NET: Final = "gpt2_medium"


def rows(_: str = _NET, *, seconds: float) -> Iterator[dict[str, Any]]:
    """Find the largest batch of eager steps, then look for a plan for more than that."""
    total = torch.cuda.get_device_properties(0).total_memory
    largest = 0
    torch.cuda.set_per_process_memory_fraction(LIMIT / total)
    for batch in range(2, 64):
        if not _trains(batch, None):
            break
        largest = batch
    torch.cuda.set_per_process_memory_fraction(1.0)
    yield {"how": "eager", "batch": largest}
    best = 0
    for times in (1.75, 2.25, 2.75):
        batch = -int(-largest * times // 1)
        if not _trains(batch, seconds):
            break
        best = batch
        yield {"how": "plan", "batch": best, "times": best / largest,
               "reserved": torch.cuda.max_memory_reserved()}  # fmt: skip


def _trains(batch: int, seconds: float | None) -> bool:
    gc.collect()
    clean()
    case = build(_NET, batch=batch)
    call: Call = case.model.forward
    if seconds is not None:
        torch._dynamo.reset()
        call = tightrope.compile(case.model, budget=LIMIT, verify=None, seconds=seconds, progress=False)
    torch.cuda.reset_peak_memory_stats()
    try:
        _steps(case, call)
    except (torch.OutOfMemoryError, InfeasibleError):
        return False
    finally:
        if seconds is not None:
            compiled_of(case.model).close()
        case.model.zero_grad(set_to_none=True)
    return True


def _steps(case: Case, call: Call) -> None:
    optimizer = optimizer_of(case)
    for _ in range(3):
        step(case, call, optimizer)
    torch.cuda.synchronize()
