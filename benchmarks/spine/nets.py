"""Nets under a budget: building, holding, compiling, and putting everything back.

Every row builds its net anew, from the same seed, and leaves nothing behind: compiled code refers
to its model until Dynamo is reset.
"""

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

import tightrope
from benchmarks._measure import Loop, live_peak
from benchmarks.spine.bar import Settings
from benchmarks.zoo import Case, build
from tightrope.core import Bytes, Graph, InfeasibleError, Plan, TightropeError
from tightrope.native.hook.allocator import Allocator
from tightrope.run.compile import compiled_of
from tightrope.run.execute.contest import STEPS
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE
from tightrope.run.report import Report, report
from tightrope.run.session.compiled import CompiledModel

UNLIMITED: Bytes = 2**46
"""A budget that no net of the zoo needs."""


def native() -> Allocator:
    """Return the counting allocator.

    Raises:
        TightropeError: there is no C++ compiler, so bytes cannot be measured.
    """
    found = accounts().allocator
    if found is None:
        raise TightropeError("the spine counts bytes with the native allocator, which needs a C++ compiler.")
    return found


def clean() -> None:
    """Let go of everything that earlier rows left."""
    torch._dynamo.reset()
    gc.collect()


def fresh(name: str, settings: Settings) -> Case:
    """Build a net after letting go of the last one."""
    clean()
    native()
    return build(name, scale=settings.scale)


def held(case: Case) -> Bytes:
    """Sum all bytes charged now, those of the net and its batch included."""
    tensors = itertools.chain(case.model.parameters(), case.model.buffers(), case.inputs)
    accounts().note_tensors(tensors)
    return accounts().charged()


def eager_loop(case: Case) -> Loop:
    """The net as it is: ``forward`` is called itself, so this also works beside a compiled twin."""
    return Loop(case.model, case.inputs, case.model.forward)


def eager_peak(name: str, settings: Settings) -> Bytes:
    """Measure the peak of a plain eager step above what is held at its start."""
    return live_peak(eager_loop(fresh(name, settings)), native())


@dataclass
class Planned:
    """A net compiled under a budget."""

    case: Case
    budget: Bytes
    held: Bytes

    @property
    def loop(self) -> Loop:
        """The planned training step."""
        return Loop(self.case.model, self.case.inputs, self.case.model)

    @property
    def compiled(self) -> CompiledModel:
        """What belongs to the compiled model."""
        return compiled_of(self.case.model)

    @property
    def report(self) -> Report:
        """Figures of the last step."""
        return report(self.case.model)

    @property
    def graph(self) -> Graph:
        """The captured graph with measured costs."""
        return self.compiled.calls.captured[-1].graph

    def share_of(self, peak: Bytes) -> float:
        """Run two steps; return what is charged in the second above what is held, by ``peak``."""
        self.loop.step()
        self.loop.clear()
        gc.collect()
        before = native().stats().charged - self.report.arena
        self.loop.step()
        return (self.report.observed_total - before) / peak

    def refused(self, error: InfeasibleError, peak: Bytes) -> str:
        """Say which share of ``peak`` a refusal names."""
        found = error.smallest_found
        return f"refused: smallest found {'none' if found is None else f'{(found - self.held) / peak:.3f}'}"

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.compiled.calls.recent[0].prepared.plan


@contextmanager
def planned(
    name: str,
    settings: Settings,
    budget: Callable[[Bytes], Bytes],
    *,
    limited: bool = False,
    fuse: bool = False,
) -> Iterator[Planned]:
    """Build a net and compile it; the plan is made at its first step. Afterwards the limit is lifted.

    Args:
        name: of the net.
        settings: scale.
        budget: from the bytes held to the total.
        fuse: let stretches of the plan run fused.
        limited: set the allocator's limit to the budget before ``compile`` is called.
    """
    case = fresh(name, settings)
    before = held(case)
    size = budget(before)
    allocator = native()
    if limited:
        allocator.limit = size - accounts().older
    net = Planned(case, size, before)
    try:
        tightrope.compile(case.model, budget=size, progress=False, fuse=fuse)
        yield net
    finally:
        with suppress(TightropeError):
            accounts().release(compiled_of(case.model))
        allocator.limit = None
        del net.case, case
        clean()


def finish_contest(net: Planned) -> None:
    """Train until it is known which form of the step goes on, the fused one or the one op by op."""
    for _ in range(STEPS):
        net.loop.clear()
        net.loop.step()


def of_peak(portion: float, peak: Bytes) -> Callable[[Bytes], Bytes]:
    """Budget = what is held + the runtime's reserve + a share of the eager peak."""
    return lambda before: before + RESERVE + int(portion * peak)


def refusal(name: str, settings: Settings) -> tuple[InfeasibleError, Bytes]:
    """Ask for next to nothing above what is held, and return the refusal and the bytes held.

    Raises:
        TightropeError: the impossible request was accepted.
    """
    with planned(name, settings, lambda before: before + RESERVE) as net:
        try:
            net.loop.step()
        except InfeasibleError as error:
            return error, net.held
    raise TightropeError(f"{name} runs a training step without a byte above what it holds: that cannot be.")


def reachable(name: str, settings: Settings, portion: float, peak: Bytes) -> float:
    """Raise a share of the eager peak to 5 % above the smallest found, where that is more."""
    error, before = refusal(name, settings)
    least = 0 if error.smallest_found is None else error.smallest_found - before
    return max(portion, 1.05 * least / peak)


def smallest(name: str, settings: Settings) -> Callable[[Bytes], Bytes]:
    """Budget = what a refusal reports as the smallest found.

    Raises:
        TightropeError: the refusal names none.
    """
    error, then = refusal(name, settings)
    if error.smallest_found is None:
        raise TightropeError(f"the refusal of {name} names no smallest budget: {error}")
    above = error.smallest_found - then
    return lambda before: before + above
