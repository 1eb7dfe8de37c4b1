"""A plan made executable: code, registered addresses, and where the forward ends."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tightrope.capture.program import Program
from tightrope.core import Bytes, Compute, Free, Graph, Plan, Trace
from tightrope.native.allocator import Allocator
from tightrope.plan import timeline
from tightrope.run.emit import Code, emit


@dataclass(frozen=True)
class Chosen:
    """A plan, its code and its addresses; the registered addresses go when nothing can run it any more.

    Attributes:
        plan: as found.
        code: flat functions.
        table: id of the registered sizes and offsets, -1 without a hook.
        num_allocations: in one step.
        num_forward: of those, before control returns to the user.
        arena: bytes.
        forecast: allocations with lifetimes, as planned.
        released: bytes of new values of mutated inputs (running statistics): they live when the
            forward returns and are gone when the backward begins.
        allocator: where the addresses are registered.
    """

    plan: Plan
    code: Code
    table: int
    num_allocations: int
    num_forward: int
    arena: Bytes
    forecast: Trace
    released: Bytes
    allocator: Allocator | None

    def __del__(self) -> None:
        if self.allocator is not None:
            self.allocator.drop_plan(self.table)


def choose(
    program: Program,
    plan: Plan,
    allocator: Allocator | None,
    *,
    wrap: Callable[[Code], Code] | None = None,
) -> Chosen:
    """Compile a plan and register its addresses; ``wrap`` may put something around its code."""
    trace = timeline(program.graph, plan.schedule)
    sizes = [buffer.bytes for buffer in trace.buffers]
    table = allocator.register_plan(sizes, plan.offsets) if allocator is not None else -1
    code = emit(program, plan.schedule)
    return Chosen(
        plan, code if wrap is None else wrap(code), table, len(sizes),
        _num_forward(program.graph, plan), plan.forecast.arena, trace,
        _released(program.graph, plan), allocator,
    )  # fmt: skip


def _released(graph: Graph, plan: Plan) -> Bytes:
    """Bytes that the schedule frees right after control has returned to the user."""
    steps = plan.schedule.steps
    if graph.split < 0:
        return 0
    after = steps.index(Compute(graph.boundary - 1)) + 1
    freed = itertools.takewhile(lambda step: isinstance(step, Free), steps[after:])
    return sum(graph.storages[step.storage].size for step in freed if isinstance(step, Free))


def _num_forward(graph: Graph, plan: Plan) -> int:
    count = 0
    for step in plan.schedule.steps:
        if isinstance(step, Compute):
            if graph.split >= 0 and step.op == graph.boundary - 1:
                break
            count += len(graph.allocations(graph.op(step.op)))
    return count
