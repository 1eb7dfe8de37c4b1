"""`tightrope estimate`: will a training loop fit, and at what price? Capture without running, and look."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch

from tightrope.capture import Program, measured
from tightrope.capture._eager import tensors_in
from tightrope.capture._torch import storage_key
from tightrope.capture.alike import ShortProgram
from tightrope.cli.capturing import capture_target, is_on_meta
from tightrope.cli.sizes import AXES, Axis, length_of, resized, size_of
from tightrope.cli.target import Built
from tightrope.core import (
    Buffer,
    Bytes,
    CaptureError,
    Graph,
    InfeasibleError,
    Machine,
    Plan,
    format_bytes,
    parse_bytes,
    round_up,
)
from tightrope.core.ledger import Ledger, Row, When
from tightrope.core.units import shown
from tightrope.lower import lower, timeline, with_writes
from tightrope.lower.lengthen import Gone, lengthened
from tightrope.plan import base_schedule, lower_bound, solve
from tightrope.price import price_graph
from tightrope.price.waiting import MUCH, Waiting
from tightrope.run.base.status import StatusLine
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.optimizer import NO_UPDATE, Foresight, UpdateBytes
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.floor import Floor, floor_of

_NUM_SHOWN = 20
_FULL_EFFORT_OPS = 100
"""Largest graph whose smallest plan is searched for with all moves, as `tightrope.compile` does."""
_MANY_OPS = 2000
_SECONDS = 2.0
"""Of a search for the fastest plan in a graph of more ops; else the search is that of `tightrope.compile`."""
_Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: Final[dict[str, _Make | None]] = {
    "none": None,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
"""By the names that the command line takes."""


@dataclass(frozen=True)
class Asked:
    """What is asked about a step.

    Attributes:
        target: what to capture.
        budget: bytes to fit in, or a share of what the step needs; None = the machine's memory.
        machine: whose memory and rates count; None = this one, and every op is measured here, alone.
        optimizer: one of `OPTIMIZERS`.
    """

    target: str
    budget: str | None = None
    machine: Machine | None = None
    optimizer: str = "adamw"

    @property
    def on(self) -> Machine:
        """The machine whose memory counts."""
        return self.machine or Machine.here()


class Step:
    """A captured training step with its prices, and what a loop needs beside it.

    Args:
        asked: target, machine and optimizer.
        built: the model and its inputs.
        noted: whether it is said what the step lacks to be a whole one.
    """

    def __init__(self, asked: Asked, built: Built, *, noted: bool = True) -> None:
        self.asked, self.built = asked, built
        with StatusLine().slow(f"capturing the step of {shown(asked.target)}"):
            found = _graphs(asked, built, capture_target(asked.target, built, noted=noted))
            if found is None:
                found = _graphs(asked, built, capture_target(asked.target, built, short=False, noted=False))
        assert found is not None, "a program without a gap has a graph"
        self.captured, self.graph, program, self.measured, unread, self.waited = found
        self.parameters = [p for p in built.model.parameters() if p.requires_grad and program.has_backward]
        self.held = self.graph.persistent + unread
        self.sizes = [parameter.untyped_storage().nbytes() for parameter in self.parameters]
        self.update = self.update_of(asked.optimizer)

    @cached_property
    def floor(self) -> Floor:
        """The smallest plan and what stands beside it."""
        with StatusLine().slow("looking for the smallest plan"):
            unread = self.held - self.graph.persistent
            effort = min(1.0, _FULL_EFFORT_OPS / max(len(self.graph.ops), 1))
            return floor_of(self.graph, self.sizes, self.update, unread, effort=effort)

    @property
    def seconds(self) -> float | None:
        """Of one search; None = effort by the size of the graph."""
        return _SECONDS if len(self.graph.ops) > _MANY_OPS else None

    @property
    def prices(self) -> str:
        """Where times come from, in words."""
        if self.measured:
            beside = (
                f"; for {self.waited:.0%} of that time others had the processor, so that times may be too "
                "long: ask again when this machine is idle"
            )
            return f"every op was measured alone, here{beside * (self.waited >= MUCH)}"
        rates = "the rates of this machine's profile" if self.asked.machine else "10 GB/s and 50 GFLOP/s"
        return (
            f"times are modelled and not measured: {rates}, reached in full; tensor bytes are exact, the "
            "kernels' own work space is not included"
        )

    def update_of(self, name: str) -> UpdateBytes:
        """What an update by an optimizer takes: of all parameters, one after another."""
        make = OPTIMIZERS[name]
        if make is None or not self.parameters:
            return NO_UPDATE
        return Foresight(self.parameters, accounts().allocator).update_of(make(self.parameters))

    def total(self, optimizer: str | None = None) -> Bytes:
        """Bytes of the loop without a plan: each op once, in the given order."""
        return self._needed(self.update_of(optimizer or self.asked.optimizer))

    def once(self, optimizer: str | None = None) -> Bytes:
        """The budget from which `tightrope.compile` runs every op once.

        What it holds back for itself is in it.
        """
        update = self.update_of(optimizer or self.asked.optimizer)
        return self._needed(update, Row("runtime reserve", RESERVE))

    def _needed(self, update: UpdateBytes, *more: Row) -> Bytes:
        updating = Row("gradients and update", self.updating(update), moment=When.UPDATE)
        rows = (Row("parameters and inputs", self.held), Row("optimizer state", update.state), updating)
        return Ledger(0, (*rows, *more)).needed(self.peak[0])

    def updating(self, update: UpdateBytes) -> Bytes:
        """Bytes of all gradients and of what an update makes."""
        return sum(map(round_up, self.sizes)) + update.beside if update is not NO_UPDATE else 0

    @cached_property
    def peak(self) -> tuple[Bytes, list[Buffer]]:
        """The most bytes alive at once beside persistent ones, and which those are, largest first."""
        trace = timeline(lower(self.graph, base_schedule(self.graph), self.asked.on))
        profile = trace.profile()
        most = max(profile, default=0)
        at = profile.index(most) if profile else 0
        alive = [buffer for buffer in trace.buffers if buffer.start <= at < buffer.end]
        return most, sorted(alive, key=lambda buffer: -buffer.bytes)

    def planned(self, limit: Bytes, floor: Floor | None = None) -> Plan | None:
        """Find a plan for a loop that drops its gradients before each forward; None = none was found."""
        floor = floor or self.floor
        if floor.dropping > limit:
            return None
        try:
            # a proof of the time can take several times the search; nobody asked for one
            with StatusLine().slow(f"looking for a plan for {format_bytes(limit)}"):
                return solve(
                    self.graph,
                    budget=floor.left(limit),
                    machine=self.asked.machine,
                    seconds=self.seconds,
                    bound=False if self.seconds else None,
                )
        except InfeasibleError:
            return None


class _Graphs(NamedTuple):
    """A step as captured.

    Attributes:
        captured: without prices.
        priced: with them.
        program: of a few layers, where others were left out.
        measured: whether ops were measured.
        unread: bytes of the model and of what it is called with that no op reads.
        waited: share of the time of measuring in which others had the processor.
    """

    captured: Graph
    priced: Graph
    program: Program
    measured: bool
    unread: Bytes
    waited: float = 0.0


def _graphs(asked: Asked, built: Built, found: ShortProgram) -> _Graphs | None:
    """Price a captured step; None where the layers that were left out cannot be put back."""
    program, real, gone = found
    here = asked.machine is None and not is_on_meta(real)
    whole = _whole(program.graph, gone)
    if whole is None:
        return None
    unread = _unread(built, real) - (whole.persistent - program.graph.persistent)
    if not here:
        return _Graphs(whole, with_writes(price_graph(whole, asked.on)), program, here, unread)
    with Waiting() as waiting:
        priced = _whole(measured(program, real, accounts().allocator).graph, gone)
    if priced is None:
        return None
    return _Graphs(whole, with_writes(priced), program, here, unread, waiting.share)


def _unread(built: Built, real: Sequence[object]) -> Bytes:
    """Bytes of the model and its inputs that are not among the inputs of a graph."""
    read = {storage_key(tensor) for tensor in tensors_in(real)}
    ours = (*built.model.parameters(), *built.model.buffers(), *tensors_in((built.args, built.kwargs)))
    sizes = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in ours}
    return sum(round_up(size) for key, size in sizes.items() if key not in read)


def _whole(graph: Graph, gone: Gone | None) -> Graph | None:
    return graph if gone is None else lengthened(graph, gone)


def steps_of(
    asked: Asked, built: Built, batches: Sequence[int] = (), lengths: Sequence[int] = ()
) -> Iterator[Step]:
    """Capture what ``FILE.py:FUNCTION`` built at every size of batch and sequence.

    Raises:
        TightropeError: the step cannot be captured.
    """
    for number, sizes in enumerate(itertools.product(batches or (None,), lengths or (None,))):
        given = {axis: size for axis, size in zip(AXES, sizes, strict=True) if size is not None}
        yield sized_step(asked, built, given, noted=number == 0)


def sized_step(asked: Asked, built: Built, sizes: Mapping[Axis, int], *, noted: bool = True) -> Step:
    """Capture the step at some sizes of batch and sequence.

    Args:
        asked: target, machine and optimizer.
        built: the model and its inputs.
        sizes: of the inputs; an axis that is absent stays.
        noted: whether it is said what the step lacks to be a whole one.

    Raises:
        CaptureError: the step cannot be captured; the message quotes the sizes.
        TightropeError: the inputs have no such axis.
    """
    call = built
    for axis, size in sizes.items():
        call = resized(call, axis, size)
    try:
        return Step(asked, call, noted=noted)
    except CaptureError as error:
        if not sizes:
            raise
        said = " ".join(f"--{axis} {size}" for axis, size in sizes.items())
        raise CaptureError(f"with {said}: {error}") from error


def limit_of(step: Step) -> Bytes:
    """Bytes to fit in."""
    asked = step.asked
    if asked.budget is None:
        return asked.on.tiers[0].bytes
    return parse_bytes(asked.budget, whole=step.total())


def describe(step: Step) -> dict[str, Any]:
    """Say whether a loop fits, without a plan or with one, and what is alive at its peak.

    Returns:
        Plain values: ``fits`` (each op once, in the given order, results written over inputs where nobody
        needs them), bytes of each part, the smallest budgets, the smallest bytes any plan may need, the time
        that the plan for the limit adds in ``more_time_percent`` (None = no plan), and the storages alive
        at the peak. ``fits`` and ``fits_with_a_plan`` are about `tightrope.compile` and a loop that drops its
        gradients before each forward, of which ``smallest_dropping_bytes`` is the smallest budget;
        ``smallest_bytes`` is that of a loop of any order, and ``fits_in_any_loop`` compares it.
    """
    graph, update, limit = step.graph, step.update, limit_of(step)
    total, alive = step.total(), step.peak[1]
    bound, witness = lower_bound(graph)
    fits = max(step.once(), step.floor.dropping) <= limit
    plan = None if fits else step.planned(limit)
    added = 0.0 if fits else plan.forecast.tdi_percent if plan else None
    return {
        "batch": size_of(step.built, "batch"),
        "seq": length_of(step.built),
        "optimizer": step.asked.optimizer,
        "fits": fits,
        "fits_with_a_plan": added is not None,
        "fits_in_any_loop": step.floor.budget <= limit,
        "a_plan_may_fit": bound + update.state <= limit,
        "limit_bytes": limit,
        "machine": step.asked.on.name,
        "total_bytes": total,
        "persistent_bytes": step.held + update.state,
        "state_bytes": update.state,
        "peak_bytes": total - step.held - update.state,
        "update_bytes": step.updating(step.update),
        "once_bytes": max(step.once(), step.floor.dropping),
        "smallest_bytes": step.floor.budget,
        "smallest_dropping_bytes": step.floor.dropping,
        "lower_bound_bytes": bound + update.state,
        "lower_bound_op": graph.ops[witness].describe() if witness >= 0 else "",
        "estimated_seconds": graph.base_ns / 1e9,
        "more_time_percent": added,
        "num_ops": len(graph.ops),
        "num_alive_at_peak": len(alive),
        "alive_at_peak": _alive(graph, alive[:_NUM_SHOWN]),
        "note": step.prices,
    }


def _alive(graph: Graph, buffers: list[Buffer]) -> list[dict[str, Any]]:
    maker = {storage: op for op in graph.ops for storage in op.creates}
    rows = []
    for buffer in buffers:
        row = {"bytes": buffer.bytes, "what": "temporary", "module": "", "tensor": "", "source": ""}
        if buffer.storage >= 0:
            found = graph.storages[buffer.storage]
            row |= {"what": str(found.kind), "module": found.module, "tensor": found.label}
            row |= {"source": maker[found.id].source}
        rows.append(row)
    return rows
