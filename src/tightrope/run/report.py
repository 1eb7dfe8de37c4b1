"""What was planned, what happened, and why: one value per compiled model."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from tightrope.core import Bytes, Reason, format_bytes
from tightrope.run.compile import handle_of
from tightrope.run.runner import PlannedRunner


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of the last step of a compiled model.

    Attributes:
        level: ``L1`` or ``L0``.
        why: why not a higher level, or the empty string.
        enforced: whether the allocator's hard limit is on; else bytes are checked, not enforced.
        budget: total bytes asked for.
        persistent: bytes held by everything but the step (parameters, state, inputs, user tensors).
        arena: bytes reserved for planned addresses.
        outside: bytes of values handed to the user in mid-step, outside the arena.
        forecast_peak: largest number of live bytes made by the step, as planned.
        observed_peak: the same, as counted by the allocator in the last step.
        observed_total: largest number of bytes charged against the limit.
        overhead: forecast time over running each op once, in percent.
        bound: total bytes below which no plan exists (proved).
        num_recomputed: ops that run more than once.
        verified: what was compared with what in the first step.
        divergences: allocations that did not go as planned, since the start.
        reasons: one per storage made by an op.
        recomputed: (module, op, copies), most expensive first.
    """

    level: str
    why: str
    enforced: bool
    budget: Bytes
    persistent: Bytes
    arena: Bytes
    outside: Bytes
    forecast_peak: Bytes
    observed_peak: Bytes
    observed_total: Bytes
    overhead: float
    bound: Bytes
    num_recomputed: int
    verified: str
    divergences: int
    reasons: tuple[Reason, ...]
    recomputed: tuple[tuple[str, str, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = asdict(self)
        found["reasons"] = [
            {name: getattr(reason, name) for name in reason.__struct_fields__} for reason in self.reasons
        ]
        return found

    def __str__(self) -> str:
        lines = [
            f"level {self.level}" + (f" ({self.why})" if self.why else ""),
            f"budget {format_bytes(self.budget)}, "
            + ("enforced by the allocator" if self.enforced else "checked, not enforced"),
            f"persistent {format_bytes(self.persistent)} + arena {format_bytes(self.arena)}"
            + (f" + outside {format_bytes(self.outside)}" if self.outside else ""),
            f"peak of the step: forecast {self.forecast_peak} B, observed {self.observed_peak} B "
            f"(difference {self.forecast_peak - self.observed_peak} B)",
            f"recomputed {self.num_recomputed} ops, {self.overhead:.1f} % more time; no plan needs less than {format_bytes(self.bound)}",
            f"verified: {self.verified}",
        ]
        return "\n".join(lines)


def report(model: torch.nn.Module) -> Report:
    """Describe the plan and the last step of a compiled model.

    Raises:
        TightropeError: the model was not compiled.

    Example:
        >>> import torch, tightrope
        >>> model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> tightrope.report(model).level
        'L1'
    """
    handle = handle_of(model)
    if handle.level == "L0":
        replayed = handle.replay
        assert replayed is not None
        return Report(
            "L0", handle.why, replayed.enforced, handle.ledger.budget_of(handle), 0, replayed.arena, 0, replayed.live_peak,
            replayed.live_peak, 0, 0.0, 0, 0, "not needed: the model runs unchanged", 0, (), (),
        )  # fmt: skip
    if not handle.runners:
        return Report(
            "L1", "no training step has run yet", handle.ledger.allocator is not None, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0,
            "nothing yet", 0, (), (),
        )  # fmt: skip
    return _planned(handle.runners[-1])


def _planned(runner: PlannedRunner) -> Report:
    assert runner.chosen is not None
    plan, graph = runner.chosen.plan, runner.program.graph
    counts: dict[int, int] = {}
    for op in plan.schedule.computes():
        base = op if op < len(graph.ops) else next(o.id for o in graph.ops if o.replay == op)
        counts[base] = counts.get(base, 0) + 1
    again = sorted(
        ((n, op) for op, n in counts.items() if n > 1), key=lambda item: -graph.ops[item[1]].ns * item[0]
    )
    shift = runner.persistent - graph.persistent
    return Report(
        level="L1",
        why=runner.ledger.note,
        enforced=runner.ledger.allocator is not None,
        budget=runner.budget,
        persistent=runner.persistent,
        arena=plan.forecast.arena,
        outside=plan.forecast.outside,
        forecast_peak=plan.forecast.peak,
        observed_peak=runner.observed_peak,
        observed_total=runner.observed_charged,
        overhead=plan.forecast.tdi_percent,
        bound=plan.certificate.lower_bound + shift,
        num_recomputed=len(again),
        verified=str(runner.verified) if runner.verified else "not asked for",
        divergences=len(runner.divergences),
        reasons=plan.reasons,
        recomputed=tuple((graph.ops[op].module, graph.ops[op].target, n) for n, op in again),
    )
