"""Whole steps (forward, backward, update as one plan) for S5, beside the same steps run eagerly.

The eager twin keeps its gradients until ``zero_grad`` and updates them one by one (``foreach=False``,
whose bits a planned update has); its peak is counted above parameters, buffers, optimizer state and
inputs, and the planned step's likewise.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import tightrope
from benchmarks._measure import digest, paired_ratio
from benchmarks.spine.bar import Row, Settings
from benchmarks.spine.nets import UNLIMITED, clean, eager_loop, fresh, held, native
from benchmarks.zoo import Case
from tightrope.core import Bytes, InfeasibleError, round_up
from tightrope.plan import smallest
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import CAPTURE_SLACK, RESERVE

_NUM_STEPS = 5


@dataclass(frozen=True, slots=True)
class _Whole:
    """A planned whole step, to be timed beside a loop."""

    train: tightrope.TrainingStep
    case: Case

    def clear(self) -> None:
        """Drop the gradients that an eager twin left; a whole step leaves none."""
        self.case.model.zero_grad()

    def seconds(self) -> float:
        """Return the thread-CPU seconds of one step."""
        self.clear()
        start = time.thread_time()
        self.train(*self.case.inputs)
        return time.thread_time() - start


def whole_step(name: str, settings: Settings, portion: float | None) -> Row:
    """Train a net as one planned call per step at a share of the peak of the eager step with AdamW.

    Without a share, at the smallest one found.
    """
    peak, state, want = _eager(name, settings)
    who = "smallest" if portion is None else f"{portion:g}"
    if portion is None:
        portion = _least(name, settings) / peak
    case = fresh(name, settings)
    budget = held(case) + state + RESERVE + int(portion * peak)
    optimizer = _adamw(case.model)
    train = tightrope.step(
        lambda *batch: case.model(*batch),
        budget=budget,
        model=case.model,
        optimizer=optimizer,
        progress=False,
    )
    row: Row = {"eager_peak": peak, "who": f"tightrope.step {who}"}
    try:
        return row | _planned(train, optimizer, case, peak, want, settings)
    except InfeasibleError as error:
        return row | {"refused": True, "note": f"refused: {error}"[:160]}
    finally:
        accounts().release(train)
        native().limit = None
        clean()


def _least(name: str, settings: Settings) -> Bytes:
    """Bytes of the smallest plan of a whole step, with room for what a capture leaves."""
    case = fresh(name, settings)
    held(case)
    train = tightrope.step(
        lambda *batch: case.model(*batch),
        budget=UNLIMITED,
        model=case.model,
        optimizer=_adamw(case.model),
        progress=False,
    )
    try:
        train(*case.inputs)
        least, hidden = smallest(train.wholes[-1].calls.captured[-1].graph).forecast, accounts().hidden
    finally:
        accounts().release(train)
        native().limit = None
    return least.arena + least.outside + hidden + CAPTURE_SLACK


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def _trained(model: nn.Module, run: Callable[[], Tensor]) -> str:
    """Digest of the losses, parameters and buffers of consecutive steps from one seed."""
    torch.manual_seed(0)
    losses = [run().detach() for _ in range(_NUM_STEPS)]
    return digest([*losses, *model.parameters(), *model.buffers()])


def _eager(name: str, settings: Settings) -> tuple[Bytes, Bytes, str]:
    """The eager step's peak, the optimizer's state, and the digest of the first steps."""
    loop = eager_loop(fresh(name, settings))
    loop.optimizer = _adamw(loop.model)

    def run() -> Tensor:
        loop.clear()
        return loop.step()

    want = _trained(loop.model, run)
    loop.clear()
    gc.collect()
    before = native().stats().live
    native().reset_peaks()
    run()
    peak = native().stats().live_peak - before
    values = [value for state in loop.optimizer.state.values() for value in state.values()]
    tensors = [value for value in values if isinstance(value, Tensor)]
    return peak, sum(round_up(tensor.untyped_storage().nbytes()) for tensor in tensors), want


def _planned(
    train: tightrope.TrainingStep,
    optimizer: torch.optim.Optimizer,
    case: Case,
    peak: Bytes,
    want: str,
    settings: Settings,
) -> Row:
    equal = _trained(case.model, lambda: train(*case.inputs)) == want
    gc.collect()
    seen = train.report()
    base = native().stats().charged - seen.arena
    train(*case.inputs)
    seen = train.report()
    row: Row = {
        "share": (seen.observed_total - base) / peak,
        "live": seen.observed_peak / peak,
        "tdi": seen.overhead,
        "equal": equal,
    }
    twin = eager_loop(case)
    twin.optimizer = optimizer  # its own would hold bytes that the planned step needs
    with accounts().unlimited():  # the twin needs more than the planned step
        ratio = paired_ratio(_Whole(train, case), twin, num_pairs=settings.num_pairs)
    return row | {"ratio": ratio.median, "interval": [ratio.low, ratio.high], "time": str(ratio)}
