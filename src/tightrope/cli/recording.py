"""The command ``record``, without its words."""

import sys
from dataclasses import dataclass
from typing import Any

import torch

from tightrope.cli.sound import Sound
from tightrope.cli.target import Built
from tightrope.core import Graph, Plan, TightropeError, Trace
from tightrope.record import Recording, record_eager, record_run
from tightrope.run.compile import compile as planned
from tightrope.run.report import report
from tightrope.run.status import NO_LIMIT


@dataclass(frozen=True, slots=True)
class RecordingRequest:
    """How the command line asks to run: eagerly, under a budget, fused or not, or by a plan."""

    budget: str | None
    sound: Sound | None
    fuse: bool = False

    def check(self, *, save: bool, graph: bool) -> None:
        """Refuse options that contradict each other.

        Raises:
            TightropeError: says which, and what to give instead.
        """
        if self.sound is not None and self.budget is not None:
            raise TightropeError("--plan has a budget of its own: leave out --budget, or leave out --plan.")
        if graph and self.sound is None:
            raise TightropeError("--graph is the graph of a plan: add --plan FILE.")
        if self.fuse and self.budget is None:
            raise TightropeError("--fuse compiles stretches of a plan for a budget: add --budget.")
        if save and self.sound is None and self.budget is None:
            raise TightropeError("an eager run has no plan to write: add --budget, or --plan FILE.")


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
    """Run three training steps and record the last one.

    Raises:
        TightropeError: the forward does not return the loss, or the plan cannot be run for this model.
    """
    model: Any = built.model

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss = model(*built.args, **built.kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TightropeError("the model's forward must return the loss, a tensor with one element.")
        loss.backward()  # type: ignore[no-untyped-call]

    if wanted.budget is None and wanted.sound is None:
        for _ in range(2):
            step()
        with record_eager(model) as eager:
            step()
        return Ran(eager.trace, None)
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
        step()
    del stateless
    return Ran(run.trace, run)
