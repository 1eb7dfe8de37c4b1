"""Run the models of a plan for real, against a virtual clock that their CPU time drives.

Idea        Each model is captured and planned under a byte limit of its own (`tightrope.compile`). A profile,
            the mean CPU time of calls that take turns, is what the plan is made from: a model that runs after
            another one finds its data out of the caches, and alone it would look faster than it is. Then
            every frame of the plan runs: its measured CPU time is how long it took on the virtual clock,
            whatever else the computer does meanwhile.
Guarantee   Which frame runs where and in which order is the plan's. No model ever holds more than its limit:
            the allocator refuses.
Gaps        Processors of the plan are one and the same computer, one frame at a time. Weights stay where they
            are: where the machine has an arena, the copies that bring weights in are timed, not made again.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tightrope.core import Bytes, TightropeError
from tightrope_fleet.streams.frames import StreamCase
from tightrope_fleet.streams.policies import follow, skipped
from tightrope_fleet.streams.simulate import simulate
from tightrope_fleet.values.streams import ModelCost, StreamMachine, StreamPlan, StreamProcessor, StreamRun

_WARM = 5


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model that is ready to run.

    Attributes:
        call: runs one frame.
        weights: bytes of its parameters and buffers.
        observed_peak: gives the most bytes that a call has held beside them.
        limit: bytes that a call may hold beside them.
    """

    call: Callable[[], object]
    weights: Bytes
    observed_peak: Callable[[], Bytes]
    limit: Bytes


def prepare_model(model: torch.nn.Module, inputs: Sequence[torch.Tensor], *, room: Bytes) -> RealModel:
    """Capture a model and plan its calls within ``room`` bytes beside its weights and all else that is held.

    Raises:
        InfeasibleError: the room is too small; says the smallest that is not.
    """
    from tightrope.run.compile import compile as compile_model
    from tightrope.run.ledger.accounts import accounts
    from tightrope.run.report import report

    kept = [*model.parameters(), *model.buffers()]
    accounts().note_tensors([*kept, *inputs])
    planned = compile_model(model.eval(), budget=accounts().held() + room)

    def call() -> object:
        with torch.no_grad():
            return planned(*inputs)

    for _ in range(_WARM):
        call()
    weights = sum(tensor.numel() * tensor.element_size() for tensor in kept)
    return RealModel(call, weights, lambda: report(planned).observed_peak, room)


def measured_ns(real: RealModel) -> int:
    """Run one frame; give its CPU time of this thread, nanoseconds."""
    begun = time.thread_time_ns()
    real.call()
    return max(1, time.thread_time_ns() - begun)


def profile_machine(models: Mapping[str, RealModel], *, processors: int = 1, runs: int = 50) -> StreamMachine:
    """Describe this computer as a machine: the mean CPU time of every model, when models take turns."""
    turns = [{name: measured_ns(real) for name, real in models.items()} for _ in range(runs)]
    costs = {name: ModelCost(round(statistics.fmean(turn[name] for turn in turns))) for name in models}
    return StreamMachine("here", tuple(StreamProcessor(f"cpu#{p}", costs) for p in range(processors)))


def run_real(case: StreamCase, plan: StreamPlan, models: Mapping[str, RealModel]) -> StreamRun:
    """Run every frame of a plan; the virtual clock goes on by what each took.

    Raises:
        TightropeError: a model of the scenario is missing, or rules are compatible.
    """
    names = [model.name for model in case.scenario.models]
    missing = [name for name in names if name not in models]
    if missing or case.compatible:
        raise TightropeError(
            f"real runs need every model ({', '.join(missing) or 'all are there'}) and strict rules "
            f"({case.rules})."
        )
    return simulate(
        case,
        follow(plan.choices),
        skip=skipped(plan.choices),
        measure=lambda m, f, p: measured_ns(models[names[m]]),
    )
