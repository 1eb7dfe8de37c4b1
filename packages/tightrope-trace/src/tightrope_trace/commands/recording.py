"""The command ``record``, without its words."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from tightrope.capture import capture_program
from tightrope.cli.capturing import is_on_meta, provenance_of_program
from tightrope.cli.sound import Sound
from tightrope.cli.target import Built
from tightrope.core import Graph, Plan, TightropeError, Trace
from tightrope.run.base.status import NO_LIMIT
from tightrope.run.compile import compile as planned
from tightrope.run.report import report
from tightrope_trace import record_eager
from tightrope_trace.planned import Recording, demand_code_of, record_run


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """How the command line asks to run: eagerly, under a budget, fused or not, or by a plan."""

    budget: str | None
    sound: Sound | None
    fuse: bool = False
    steps: int = 5


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran; an eager run has no plan and no graph."""

    trace: Trace
    recording: Recording | None

    @property
    def plan(self) -> Plan:
        """The plan that ran."""
        assert self.recording is not None
        return self.recording.plan

    @property
    def graph(self) -> Graph:
        """The graph of that plan, with times as they were measured for it."""
        assert self.recording is not None
        return self.recording.graph


def recorded(built: Built, wanted: RecordingRequest) -> Ran:
    """Run two training steps, then as many as are wanted, and record those.

    The trace is that of the last one, with the times of the others that ran the same ops.

    Raises:
        TightropeError: the forward does not return the loss, the plan cannot be run for this model, or there
            are no values to run on.
    """
    model: Any = built.model
    if is_on_meta([*model.parameters(), *model.buffers(), *built.args, *built.kwargs.values()]):
        raise TightropeError(
            f"{type(model).__name__} or its inputs lie on the meta device, so no step can run. Build them "
            "with values to record one. Without values, tightrope estimate sizes it."
        )

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss = model(*built.args, **built.kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TightropeError("the model's forward must return the loss, a tensor with one element.")
        loss.backward()  # type: ignore[no-untyped-call]

    if wanted.budget is None and wanted.sound is None:
        for _ in range(2):
            step()
        traces = []
        for _ in range(wanted.steps):
            with record_eager(model) as eager:
                step()
            traces.append(eager.trace)
        return Ran(repeated(traces), None)
    if wanted.sound is not None and wanted.sound.plan.provenance is not None:
        demand_same_code(built, wanted.sound)
    sound, trained = wanted.sound, [p for p in model.parameters() if p.requires_grad]
    # these steps update nothing: an optimizer without state is there, so that no other one is assumed
    stateless = torch.optim.SGD(trained, lr=0.0) if trained else None
    # where the plan is given it decides, and every plan fits
    planned(model, budget=NO_LIMIT if wanted.budget is None else wanted.budget, fuse=wanted.fuse)
    for _ in range(2):
        step()
    if wanted.fuse and (why := report(model).why):
        sys.stderr.write(f"tightrope: {why}\n")
    plan, graph = (sound.plan, sound.graph) if sound is not None else (None, None)
    with record_run(model, plan=plan, graph=graph) as run:
        for _ in range(wanted.steps):
            step()
    del stateless
    return Ran(run.trace, run)


def demand_same_code(built: Built, sound: Sound) -> None:
    """Refuse to run a plan where its code is not the code that is here; the model is captured once more.

    Raises:
        IntegrityError: names the file, its owner, and what was expected and found.
    """
    program, _ = capture_program(built.model, built.args, built.kwargs)
    captured = provenance_of_program(program)
    demand_code_of(sound.plan, captured=captured)


def repeated(traces: Sequence[Trace]) -> Trace:
    """Give the last trace the times of those before it that ran the same ops; say how many did not."""
    last = traces[-1]
    ran = [[(event.name, event.module, event.phase) for event in trace.events] for trace in traces]
    same = [trace for trace, ops in zip(traces[:-1], ran, strict=False) if ops == ran[-1]]
    if others := len(traces) - 1 - len(same):
        sys.stderr.write(
            f"tightrope: of {len(traces)} recorded steps, {others} ran other ops than the last: "
            "their times are left out\n"
        )
    return msgspec.structs.replace(last, repeats=tuple(tuple(trace.self_times()) for trace in same))
