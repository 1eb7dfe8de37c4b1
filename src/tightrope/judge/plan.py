"""Judge a whole plan.

Idea        Re-derive every figure of the plan from its graph and its schedule, with code that no
            planner or placer uses, and compare to the byte.
Guarantee   A plan that passes was made for this graph; computes the same values; keeps every block
            at a valid address; takes exactly the bytes and the time that it forecasts; and keeps
            its budget and its certificate.
Complexity  O(n log n) in the allocations of the schedule.
Gaps        Without a machine, joules are not derived and a plan that pages is refused. The
            sentences of the reasons are not derived.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tightrope.core import Bytes, Graph, JudgeError, Machine, Nanoseconds, Plan, PlanFileError
from tightrope.core.codec import check_graph, check_plan
from tightrope.judge.bound import check_bound, check_time_bound
from tightrope.judge.forecast import check_forecast, check_limits, check_reasons
from tightrope.judge.offsets import check_offsets
from tightrope.judge.reorder import in_base_order
from tightrope.judge.schedule import Replay, replay_schedule


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on a plan.

    Attributes:
        ok: whether every check passed.
        checks: one line per check, passed or failed.
        problems: one line per failed check.
        peak: largest number of live bytes made by the step, above what the caller holds.
        arena: bytes reserved for planned addresses.
        total: bytes of the whole step: persistent + arena + outside.
        ns: time of the schedule.
    """

    ok: bool
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    peak: Bytes
    arena: Bytes
    total: Bytes
    ns: Nanoseconds


def judge_plan(graph: Graph, plan: Plan, machine: Machine | None = None) -> Verdict:
    """Judge a plan for a graph.

    Args:
        graph: what it was made for.
        plan: any.
        machine: the profile that it was made for; needed by a plan that pages.

    Returns:
        A verdict that is ``ok``, with a line for every check made.

    Raises:
        JudgeError: the first check that failed; `problems` lists all.
    """
    verdict = _judge(graph, plan, machine)
    if verdict.problems:
        raise JudgeError(verdict.problems[0])
    return verdict


def problems(graph: Graph, plan: Plan, machine: Machine | None = None) -> list[str]:
    """List everything that is wrong with a plan, empty when nothing is.

    Checks that need a valid graph or schedule are left out when that is what is wrong.
    """
    return list(_judge(graph, plan, machine).problems)


class _Bench:
    """Lines and problems of one judgement."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.wrong: list[str] = []

    def holds(self, name: str, line: str, check: Callable[[], object]) -> bool:
        """Run one check, note its line, and tell whether it passed."""
        try:
            check()
        except (JudgeError, PlanFileError) as error:
            self.wrong.append(str(error))
            self.lines.append(f"{name}: FAILED: {error}")
            return False
        self.lines.append(f"{name}: {line}")
        return True


def _judge(graph: Graph, plan: Plan, machine: Machine | None) -> Verdict:
    bench = _Bench()
    walked: list[Replay] = []
    if bench.holds("form", "graph and plan are well formed", lambda: _check_form(graph, plan)):
        _judge_claims(bench, graph, plan)
        steps = f"{len(plan.schedule.steps)} steps keep the rules"
        if bench.holds("schedule", steps, lambda: walked.append(_walk(graph, plan, machine))):
            _judge_memory(bench, graph, plan, walked[0], machine)
    return Verdict(
        ok=not bench.wrong,
        checks=tuple(bench.lines),
        problems=tuple(bench.wrong),
        peak=walked[0].peak if walked else plan.forecast.peak,
        arena=plan.forecast.arena,
        total=plan.forecast.total,
        ns=walked[0].ns if walked else plan.forecast.ns,
    )


def _walk(graph: Graph, plan: Plan, machine: Machine | None) -> Replay:
    if plan.certificate.order == "free":
        graph, schedule = in_base_order(graph, plan.schedule)
        return replay_schedule(graph, schedule, machine)
    return replay_schedule(graph, plan.schedule, machine)


def _judge_claims(bench: _Bench, graph: Graph, plan: Plan) -> None:
    claim = plan.certificate
    bench.holds("fingerprint", "the plan was made for this graph", lambda: _check_fingerprint(graph, plan))
    bench.holds("budget", f"{plan.forecast.total} of {plan.budget} bytes", lambda: check_limits(plan))
    supported = f"{claim.lower_bound} bytes, supported by op {claim.witness}"
    bench.holds(
        "bound",
        supported,
        lambda: check_bound(graph, claim.lower_bound, claim.witness, free_order=claim.order == "free"),
    )
    bench.holds("time bound", f"{claim.ns_bound} ns", lambda: check_time_bound(graph, plan))


def _judge_memory(bench: _Bench, graph: Graph, plan: Plan, replay: Replay, machine: Machine | None) -> None:
    arena = plan.forecast.arena
    placed = f"{len(plan.offsets)} allocations without overlap in {arena} bytes"
    if plan.placed:
        bench.holds("offsets", placed, lambda: check_offsets(replay.intervals, plan.offsets, arena=arena))
    bench.holds("forecast", "every figure as derived", lambda: check_forecast(graph, plan, replay, machine))
    if machine is not None and replay.windows:
        bench.holds("machine", plan.machine, lambda: _check_machine(plan, machine))
    bench.holds(
        "reasons", f"{len(plan.reasons)} fit the schedule", lambda: check_reasons(graph, plan, replay)
    )


def _check_form(graph: Graph, plan: Plan) -> None:
    check_graph(graph)
    check_plan(plan)


def _check_fingerprint(graph: Graph, plan: Plan) -> None:
    if plan.fingerprint != graph.fingerprint:
        raise JudgeError(
            f"fingerprint: the plan was made for graph {plan.fingerprint[:12]}, this one is "
            f"{graph.fingerprint[:12]}: its shapes, ops or environment differ. Plan again."
        )


def _check_machine(plan: Plan, machine: Machine) -> None:
    if plan.machine != machine.name:
        raise JudgeError(f"machine: the plan was made for {plan.machine!r}, this one is {machine.name!r}.")
