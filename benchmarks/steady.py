"""What a steady step costs: ``python -m benchmarks steady [--pairs 41]``.

Python calls of this package in a forward of two layers that found nothing changed, and the CPU time of a step
(forward, sum, backward, gradients dropped) of nets of two layers against eager's, in interleaved pairs.
``aot_eager`` is torch's own way through the same machinery without a plan: what remains is the plan's.
"""

import copy
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import torch
from rich.console import Console
from torch import nn

import tightrope
from benchmarks._measure import paired_ratio

_SIZES: Final = ((64, 8), (256, 64), (512, 512))
"""Width of the layers, rows of the batch."""
_STEPS: Final = 30


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the calls of a forward, and a row per net."""
    parser = ArgumentParser(prog="python -m benchmarks steady")
    parser.add_argument("--pairs", type=int, default=41)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    calls = _calls_of_a_forward()
    files = {name.partition(":")[0] for name in calls}
    console.print(f"a steady forward of two layers: {sum(calls.values())} calls in {len(files)} files")
    console.print(f"{'layers':>10}{'rows':>6}{'aot_eager / eager':>28}{'tightrope / eager':>28}")
    for width, rows in _SIZES:
        given, eager = torch.randn(rows, width), _net(width)
        aot, planned = copy.deepcopy(eager), copy.deepcopy(eager)
        compiled = torch.compile(aot, backend="aot_eager")
        tightrope.compile(planned, budget="256MiB", progress=False)
        base, *others = (_Steps(one, given) for one in (eager, compiled, planned))
        ratios = [paired_ratio(other, base, num_pairs=options.pairs) for other in others]
        console.print(f"{width:>10}{rows:>6}{ratios[0]!s:>28}{ratios[1]!s:>28}")
    return 0


@dataclass(frozen=True)
class _Steps:
    """Training steps of one net."""

    model: Any
    given: torch.Tensor

    def step(self) -> torch.Tensor:
        self.clear()
        loss: torch.Tensor = self.model(self.given).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def seconds(self) -> float:
        """Thread-CPU time of one of them."""
        start = time.thread_time()
        for _ in range(_STEPS):
            self.step()
        return (time.thread_time() - start) / _STEPS

    def clear(self) -> None:
        """Drop the gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None


def _net(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))


def _calls_of_a_forward() -> Counter[str]:
    """Count the calls of this package, by file and function."""
    model, given = _net(64), torch.randn(8, 64)
    steps = _Steps(tightrope.compile(model, budget="256MiB", progress=False), given)
    for _ in range(8):
        steps.step()
    steps.clear()
    found: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/tightrope/" in frame.f_code.co_filename:
            found[f"{frame.f_code.co_filename}: {frame.f_code.co_qualname}"] += 1

    sys.setprofile(see)
    try:
        result = model(given)
    finally:
        sys.setprofile(None)
    del result
    return found
