"""What was planned, what happened, and why: one value per compiled model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Protocol

import torch

from tightrope.core import Bytes, Graph, Machine, Plan, Reason, TightropeError, format_bytes
from tightrope.core.units import shown
from tightrope.native.kernels import batch_norm
from tightrope.price import StepTime, summed
from tightrope.price.device import device_of
from tightrope.run.compile import compiled_of
from tightrope.run.drawing import drawn
from tightrope.run.evict.level_e import EvictedSteps
from tightrope.run.execute.prepared import Proof
from tightrope.run.execute.running import Running
from tightrope.run.ledger.accounts import Accounts, accounts
from tightrope.run.session.buckets import Bucket
from tightrope.run.session.calls import Calls
from tightrope.run.session.compiled import CompiledModel, graphs_of
from tightrope.run.session.equal_forms import form_of
from tightrope.run.session.replay import Replay
from tightrope.run.session.unit import LENT

_NOTHING: Final = (
    "nothing is planned yet: the module itself, model(...), was not called; forward(), training_step() and "
    "parts of it run as they are"
)


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of the last step of a compiled model.

    Attributes:
        level: ``L2`` (planned, then fused), ``L1``, ``E`` (evicted) or ``L0``.
        why: why not a higher level, or the empty string.
        enforced: whether the allocator's hard limit is on; else bytes are checked, not enforced.
        budget: total bytes asked for.
        persistent: bytes held by everything but the step (parameters, state, inputs, user tensors).
        arena: bytes reserved for planned addresses.
        outside: bytes of values handed to the user in mid-step, outside the arena.
        hidden: bytes of the budget held back for what kernels take behind torch's allocator while they run;
            no part of any other figure but the bound.
        forecast_peak: largest number of live bytes made by the step, as planned; 0 = nothing was.
        observed_peak: the same, as counted by the allocator in the last step.
        observed_total: largest number of bytes charged against the limit, updates of optimizers included.
        overhead: forecast time over running each op once, in percent.
        bound: total bytes below which no plan exists (proved); 0 = nothing is proved.
        num_recomputed: ops that run more than once.
        verified: which executable was judged and checked, when, and against what.
        divergences: allocations that did not go as planned, since the start.
        reasons: one per storage made by an op; graph by graph where there are several.
        recomputed: (module, op, copies), most expensive first.
        planned: the graphs that ran, each with its plan.
        limit: total bytes that the process is held to, the largest budget alive in it; 0 = none is.
        time: of a step: as planned, and as observed in recent steps.
        unlike_eager: ops and lines of code where eager may go another way, so that last bits may differ.
        proofs: every plan that was made so far, with the reason, the time that it took, and its checks.
        unread: dtype and shape of outputs that are taken to be read by no loss: no backward starts from them.
        num_chunks: chunks of rows in which the loss, or a stretch like it, ran; 0 = it ran whole.
        channels_last: whether its convolutions worked channels-last, which is faster here.
        num_products: matrix products that oneDNN computed, which is faster here.
        form: which equal form was planned and what it saves, or why none, where ``rewrite`` was given.
        machine: with the tier that was paged to; None where nothing was.
        bucket: which bucket of shapes served the last call, where ``shapes`` was given.
        buckets: every bucket of shapes that was planned, and what it served.
        share: the budget in percent, where the user gave one.
        unplanned: bytes of the unplanned step, everything included: what 100 % stands for; 0 = the budget is
            in bytes.
    """

    level: str
    why: str
    enforced: bool
    budget: Bytes
    persistent: Bytes = 0
    arena: Bytes = 0
    outside: Bytes = 0
    forecast_peak: Bytes = 0
    observed_peak: Bytes = 0
    observed_total: Bytes = 0
    overhead: float = 0.0
    bound: Bytes = 0
    num_recomputed: int = 0
    verified: str = "nothing yet"
    divergences: int = 0
    reasons: tuple[Reason, ...] = ()
    recomputed: tuple[tuple[str, str, int], ...] = ()
    planned: tuple[tuple[Graph, Plan], ...] = field(default=(), repr=False, compare=False)
    limit: Bytes = 0
    proofs: tuple[Proof, ...] = ()
    hidden: Bytes = 0
    unlike_eager: tuple[str, ...] = ()
    time: StepTime = field(default_factory=StepTime)
    unread: tuple[str, ...] = ()
    num_chunks: int = 0
    channels_last: bool = False
    num_products: int = 0
    form: str = ""
    machine: Machine | None = field(default=None, repr=False, compare=False)
    bucket: str = ""
    buckets: tuple[Bucket, ...] = ()
    share: str = ""
    unplanned: Bytes = 0

    def html(self) -> str:
        """Draw the plan as one offline HTML page; of several graphs, the one that needs most bytes.

        Searches for some 2 seconds for plans at other budgets, so that the page knows what they cost.

        Raises:
            TightropeError: no captured graph has run.
        """
        largest = max(self.planned, key=lambda pair: pair[1].forecast.total, default=None)
        page = None if largest is None else drawn(*largest, self.machine)
        if page is None:
            raise TightropeError("there is no plan to draw: run a training step of a compiled model first.")
        return page

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        names = [part.name for part in fields(self) if part.name not in ("planned", "machine")]
        found = {name: getattr(self, name) for name in names}
        found["time"] = asdict(self.time) | {"ratio": self.time.ratio}
        found["buckets"] = [asdict(bucket) for bucket in self.buckets]
        found["proofs"] = [asdict(proof) for proof in self.proofs]
        found["reasons"] = [
            {name: getattr(reason, name) for name in reason.__struct_fields__} for reason in self.reasons
        ]
        return found

    def _given(self) -> str:
        if not self.unplanned:
            return format_bytes(self.budget)
        whole, saved = format_bytes(self.unplanned), self.unplanned - (self.observed_total or self.budget)
        return (
            f"{self.share} of {whole} = {format_bytes(self.budget)} (unplanned {whole}, saved "
            f"{format_bytes(saved)})"
        )

    def _enforcement(self) -> str:
        if not self.enforced:
            return "not limited before the first call" if self.why == _NOTHING else "checked, not enforced"
        if self.limit > self.budget:
            return f"planned for; the process is held to {format_bytes(self.limit)}, the largest budget in it"
        return "enforced by the allocator"

    def _hidden(self) -> list[str]:
        if not self.hidden:
            return []
        return [f"held back for kernels, which take it beside torch's allocator: {format_bytes(self.hidden)}"]

    def _paged(self) -> list[str]:
        if self.machine is None:
            return []
        paged = [reason for reason in self.reasons if reason.decision == "paged"]
        held = sum(sum(plan.forecast.tiers) for _, plan in self.planned)
        tier = self.machine.tiers[1]
        return [
            f"paged {len(paged)} tensors of {format_bytes(sum(reason.bytes for reason in paged))}: the file "
            f"holds {format_bytes(held)} at most; written at {tier.write / 1e6:.0f} MB/s, read at "
            f"{tier.read / 1e6:.0f} MB/s"
        ]

    def _step(self) -> list[str]:
        """Peak, time and ops that ran again; what a plan said of them, where there is one."""
        peak, bound = f"peak of the step: observed {self.observed_peak} B", ""
        if self.forecast_peak:
            difference = self.forecast_peak - self.observed_peak
            peak = (
                f"peak of the step: forecast {self.forecast_peak} B, observed {self.observed_peak} B "
                f"(difference {difference} B)"
            )
        if self.bound:
            bound = f"; no plan needs less than {format_bytes(self.bound)}"
        again = (
            f"recomputed {self.num_recomputed} ops, {abs(self.overhead):.1f} % "
            f"{'less' if self.overhead < 0 else 'more'} time than every op once{bound}"
        )
        return [peak, *([str(self.time)] if self.planned else []), again]

    def __str__(self) -> str:
        lines = [
            f"level {self.level}" + (f" ({self.why})" if self.why else ""),
            f"budget {self._given()}, " + self._enforcement(),
        ]
        if self.why == _NOTHING:
            return "\n".join(lines)
        lines += [
            f"persistent {format_bytes(self.persistent)} + arena {format_bytes(self.arena)}"
            + (f" + outside {format_bytes(self.outside)}" if self.outside else ""),
            *self._hidden(),
            *self._step(),
            *self._paged(),
            f"verified: {self.verified}",
        ]
        chunks = (
            f"the loss ran in {self.num_chunks} chunks of rows: sums over rows, as in its weight's gradient,"
        )
        faster = "which takes less time here: their sums"
        others = (
            (self.num_chunks, chunks),
            (self.channels_last, f"convolutions worked channels-last, {faster}"),
            (self.num_products, f"oneDNN computed {self.num_products} matrix products, {faster}"),
        )
        lines += [
            f"{said} are taken in another order, so results are equal within a tolerance"
            for ran, said in others
            if ran
        ]
        if self.form:
            lines.append(self.form)
        if self.unread:
            count = Counter(self.unread).items()
            said = ", ".join(f"{num} x {what}" if num > 1 else what for what, num in count)
            lines.append(f"no loss reads these outputs, so nothing runs backward from them: {said}")
        if self.unlike_eager:
            lines.append(f"eager may go another way, last bits may differ: {'; '.join(self.unlike_eager)}")
        if self.bucket:
            lines.append(self.bucket)
            lines += [f"  {bucket}" for bucket in self.buckets]
        own = [proof for proof in self.proofs if proof.cause != LENT]
        if len(own) > 1:
            lines.append(f"planned {len(own)} times:")
            lines += [f"  {proof.executable[:12]} in {proof.seconds:.1f} s: {proof.cause}" for proof in own]
        if self.divergences:
            lines.append(f"{self.divergences} divergences from the plan since the start")
        return "\n".join(lines)


class Reporting(Protocol):
    """Something that describes itself, such as `tightrope.Step`."""

    def report(self) -> Report:
        """Describe the plan and the last step."""


def report(model: torch.nn.Module | Reporting | Replay) -> Report:
    """Describe the plan and the last step of a compiled model, a `tightrope.step` or a `tightrope.replay`.

    Raises:
        TightropeError: the model was not compiled, or the step has not run.

    Example:
        >>> import torch, tightrope
        >>> model = tightrope.compile(torch.nn.Linear(8, 8), budget="64MiB")
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> tightrope.report(model).level
        'L1'
    """
    return replace(_report(model), limit=_accounts_of(model).budget)


def _accounts_of(model: torch.nn.Module | Reporting | Replay) -> Accounts:
    if isinstance(model, torch.nn.Module):
        return accounts(device_of(model.parameters()))
    found = getattr(model, "accounts", None)
    return found if isinstance(found, Accounts) else accounts()


def _report(model: torch.nn.Module | Reporting | Replay) -> Report:
    if isinstance(model, Replay):
        return _replaying("", model)
    if not isinstance(model, torch.nn.Module):
        describe = getattr(model, "report", None) if hasattr(type(model), "report") else None
        if isinstance(model, type) or not callable(describe):
            raise TightropeError(
                f"there is no report of {shown(model)}: give what tightrope.compile, tightrope.step or "
                "tightrope.replay returned (what tightrope.evict counts is in its `statistics`)."
            )
        return model.report()
    reports = [_compiled_report(compiled) for compiled in graphs_of(model) or [compiled_of(model)]]
    return reports[0] if len(reports) == 1 else _together(reports)


def _compiled_report(compiled: CompiledModel) -> Report:
    if compiled.level == "L0":
        replayed = compiled.replay
        assert replayed is not None
        return replace(_replaying(compiled.why, replayed), form=form_of(compiled.calls))
    if compiled.evicted is not None:
        return replace(_evicting(compiled.why, compiled.evicted), form=form_of(compiled.calls))
    if not compiled.calls.recent:
        return Report("L1", _NOTHING, compiled.accounts.budget_of(compiled) > 0, compiled.calls.budget)
    found = planned_report(compiled.calls, compiled.why)
    return replace(found, bucket=compiled.buckets.text(), buckets=compiled.buckets.used())


def _together(reports: Sequence[Report]) -> Report:
    """Describe the graphs of one model that were planned one by one, as the backend by name gets them."""
    ran = [report for report in reports if report.planned] or list(reports)
    proofs = sorted((proof for report in ran for proof in report.proofs), key=lambda proof: proof.judged)
    return replace(
        _joined(ran, [f"{len(ran)} graphs were planned one by one", *(report.why for report in ran)]),
        persistent=max(report.persistent for report in ran),
        observed_total=max(report.observed_total for report in ran),
        divergences=sum(report.divergences for report in ran),
        proofs=tuple(proofs),
        unlike_eager=tuple(dict.fromkeys(line for report in ran for line in report.unlike_eager)),
        unread=tuple(what for report in ran for what in report.unread),
        form="; ".join(dict.fromkeys(report.form for report in ran if report.form)),
    )


def _joined(parts: Sequence[Report], notes: Sequence[str]) -> Report:
    """Add up what graphs that were planned one by one take: their arenas and peaks are held together."""
    forecasts = [plan.forecast for part in parts for _, plan in part.planned]
    base_ns = sum(forecast.base_ns for forecast in forecasts)
    extra_ns = sum(forecast.ns for forecast in forecasts) - base_ns
    return replace(
        parts[0],
        why="; ".join(dict.fromkeys(note for note in notes if note)),
        hidden=max(part.hidden for part in parts),
        arena=sum(part.arena for part in parts),
        outside=sum(part.outside for part in parts),
        forecast_peak=sum(part.forecast_peak for part in parts),
        observed_peak=sum(part.observed_peak for part in parts),
        overhead=100 * extra_ns / base_ns if base_ns else 0.0,
        bound=max(part.bound for part in parts),
        num_recomputed=sum(part.num_recomputed for part in parts),
        verified="; ".join(dict.fromkeys(part.verified for part in parts)),
        reasons=tuple(reason for part in parts for reason in part.reasons),
        recomputed=tuple(line for part in parts for line in part.recomputed),
        planned=tuple(pair for part in parts for pair in part.planned),
        time=summed(part.time for part in parts),
        machine=next((part.machine for part in parts if part.machine is not None), None),
    )


def _replaying(why: str, replayed: Replay) -> Report:
    return replace(
        Report("L0", why, replayed.enforced, replayed.budget),
        persistent=replayed.persistent,
        arena=replayed.arena,
        forecast_peak=replayed.forecast_peak,
        observed_peak=replayed.live_peak,
        observed_total=replayed.most_charged,
        verified="not needed: the model runs unchanged",
        divergences=int(replayed.divergence is not None),
        hidden=replayed.hidden,
    )


def _evicting(why: str, evicted: EvictedSteps) -> Report:
    found = replace(
        Report("E", why, True, evicted.budget),
        persistent=evicted.persistent,
        arena=evicted.arena,
        share=evicted.given[0],
        unplanned=evicted.given[1],
        verified="not needed: ops run unchanged, and again from the same inputs",
    )
    block = evicted.last
    if block is None:
        return found
    most = block.statistics().high_water
    return replace(
        found,
        observed_peak=most,
        observed_total=max(evicted.observed, evicted.persistent + evicted.arena),
        overhead=100 * block.recomputed_ns / max(block.operator_ns, 1),
        num_recomputed=block.num_recomputed,
    )


def planned_report(calls: Calls, why: str = "") -> Report:
    """Describe what ran last: one execution, or those of calls that were planned one by one."""
    parts = [_running_report(calls, running) for running in calls.recent]
    notes = [why, *(part.why for part in parts), calls.accounts.note, _norms(calls), calls.note]
    if len(parts) > 1:
        apart = calls.patterns.why_apart()
        because = f" ({apart})" if apart else ""
        notes.insert(1, f"{len(parts)} calls were planned one by one{because}")
    return replace(
        _joined(parts, notes),
        observed_total=max(calls.observed_charged, calls.prospects.observed),
        divergences=calls.num_divergences,
        proofs=proofs(calls),
        unlike_eager=_unlike_eager(calls),
        unread=_unread(calls),
        form=form_of(calls),
        share=calls.prospects.asked,
        unplanned=calls.prospects.whole,
    )


def _norms(calls: Calls) -> str:
    """Say where the backward of batch norms makes a tensor that it drops, for want of a kernel of ours."""
    why, ops = batch_norm.missing(), (op.target for one in calls.captured for op in one.graph.ops)
    if not why or "aten.native_batch_norm_backward.default" not in ops:
        return ""
    return f"the backward of batch norm is torch's, with a tensor that it drops unused: {why}"


def _unread(calls: Calls) -> tuple[str, ...]:
    """Outputs of the graphs that ran last from which their backward does not start."""
    graphs = dict.fromkeys(turn.graph for running in calls.recent for turn in running.turns)
    programs = [calls.captured[graph].program for graph in graphs]
    return tuple(
        what for one in programs for number, what in one.ends.items() if number not in one.start.read
    )


def _unlike_eager(calls: Calls) -> tuple[str, ...]:
    found = []
    for number, one in enumerate(calls.captured):
        ops = {op.name: op for op in one.graph.ops}
        names = (*one.program.unlike, *(one.program.summed if number in calls.overlapped else ()))
        found += [ops[name].describe() if name in ops else name for name in names]
    return tuple(dict.fromkeys(found))


def proofs(calls: Calls) -> tuple[Proof, ...]:
    """List what was judged and checked of every plan that was made, in that order."""
    every = (proof for unit in calls.units.values() for proof in unit.proofs)
    return tuple(sorted(every, key=lambda proof: proof.judged))


def _running_report(calls: Calls, running: Running) -> Report:
    """Describe one execution."""
    prepared = running.prepared
    plan, graph = prepared.plan, prepared.graph
    counts: dict[int, int] = {}
    base_of = {op.variant: op.id for op in graph.ops if op.variant >= 0}
    for op in plan.schedule.computes():
        base = base_of.get(op, op)
        counts[base] = counts.get(base, 0) + 1
    again = sorted(
        ((n, op) for op, n in counts.items() if n > 1), key=lambda item: -graph.ops[item[1]].ns * item[0]
    )
    return Report(
        level="L2" if plan.stretches or prepared.proof.rewritten else "L1",
        why=prepared.proof.lost,
        enforced=calls.accounts.allocator is not None,
        budget=calls.budget,
        persistent=running.held,
        arena=plan.forecast.arena,
        outside=plan.forecast.outside,
        forecast_peak=running.forecast_peak,
        observed_peak=running.peak,
        observed_total=running.charged,
        overhead=plan.forecast.tdi_percent,
        bound=plan.certificate.lower_bound + running.held + graph.hidden - graph.persistent,
        num_recomputed=len(again),
        verified=str(prepared.proof),
        divergences=len(running.divergences),
        reasons=plan.reasons,
        recomputed=tuple((graph.ops[op].module, graph.ops[op].target, n) for n, op in again),
        planned=((graph, plan),),
        hidden=calls.accounts.hidden,
        num_chunks=prepared.proof.num_chunks,
        channels_last=prepared.proof.channels_last,
        num_products=prepared.proof.num_products,
        time=prepared.times.found(clock=prepared.clock[0]),
        machine=prepared.machine,
    )
