"""Judge what runs, and what a plan says about it.

Idea        Walk the executable with code that no planner, placer or lowering uses; re-derive every
            figure of the plan from it, and compare to the byte.
Guarantee   An executable that passes computes the values of its graph and keeps every block at a
            valid address. A plan that passes with it was made for this graph, takes exactly the bytes
            and the time that it forecasts, and keeps its budget and its certificate.
Complexity  O(n log n) in the allocations of the executable.
Gaps        Without a machine, joules are not derived and a plan that pages is refused. The
            sentences of the reasons are not derived.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tightrope.core import (
    Bytes,
    Copy,
    Executable,
    Graph,
    JudgeError,
    Machine,
    Nanoseconds,
    Plan,
    PlanFileError,
    Space,
    fitted,
)
from tightrope.core.codec import check_graph, check_plan
from tightrope.core.executable import ARENA, CALLER, HEAP, SLOWER
from tightrope.core.plugins import absent, installed, loaded
from tightrope.judge.bound import check_bound, check_time_bound
from tightrope.judge.footprint import Walk
from tightrope.judge.forecast import arena_used, check_forecast, check_limits, check_reasons
from tightrope.judge.offsets import check_offsets
from tightrope.judge.walk import walk_executable

_LARGEST = 2**62


def check_spaces(graph: Graph, executable: Executable, machine: Machine | None) -> None:
    """Refuse spaces that are not those of the graph's machine.

    The caller's space, the arena and the heap lie in fast memory and have the graph's alignment; each
    slower tier is a space of its own, with the tier's bytes and alignment.

    Without a machine there is no slower tier.

    Raises:
        JudgeError: names the space.
    """
    spaces = executable.spaces
    if len(spaces) < SLOWER:
        raise JudgeError(f"spaces: {len(spaces)}; there are at least a caller's, an arena and a heap.")
    for name, space in (("caller", spaces[CALLER]), ("arena", spaces[ARENA]), ("heap", spaces[HEAP])):
        if space.name != name or space.tier != 0 or space.alignment != graph.alignment:
            raise JudgeError(
                f"spaces: {space.name!r} in tier {space.tier} with alignment {space.alignment}; {name!r} in "
                f"tier 0 with alignment {graph.alignment} stands there."
            )
    tiers = () if machine is None else machine.tiers[1:]
    device = spaces[CALLER].device if machine is None else machine.device
    slower = tuple(Space(t.name, t.bytes, t.alignment, k, device) for k, t in enumerate(tiers, 1))
    if spaces[SLOWER:] != slower:
        whose = "none, because no machine is given" if machine is None else f"the tiers of {machine.name!r}"
        raise JudgeError(f"spaces: the slower ones are {len(spaces) - SLOWER} others than {whose}.")
    if any(space.device != device for space in spaces):
        raise JudgeError(f"spaces: {device!r} is the device of the first; another one lies elsewhere.")
    if any(not 0 <= space.capacity <= _LARGEST or space.alignment < 1 for space in spaces):
        raise JudgeError("spaces: a capacity or an alignment is out of range.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on an executable, and on the plan that it was made from.

    Attributes:
        ok: whether every check passed.
        checks: one line per check, passed or failed.
        problems: one line per failed check.
        peak: largest number of live bytes made by the step, above what the caller holds.
        arena: bytes reserved for planned addresses.
        total: bytes of the whole step: persistent + arena + outside.
        ns: time of the executable.
        executable: fingerprint of what was judged.
    """

    ok: bool
    checks: tuple[str, ...]
    problems: tuple[str, ...]
    peak: Bytes
    arena: Bytes
    total: Bytes
    ns: Nanoseconds
    executable: str = ""


def judge(
    graph: Graph, executable: Executable, plan: Plan | None = None, machine: Machine | None = None
) -> Verdict:
    """Judge an executable, and the plan that it was made from.

    Args:
        graph: what it computes.
        executable: any.
        plan: whose forecast, limits, certificate and reasons are compared with what is derived.
        machine: the profile that it was made for; needed where something is copied between tiers.

    Returns:
        What was checked, and what is wrong; checks that need a valid graph or executable are left out
        when that is what is wrong.
    """
    if machine is not None:
        graph = fitted(graph, machine.tiers[0].alignment)
    bench, walked = _Bench(), list[Walk]()
    if bench.holds("form", "well formed", lambda: _check_form(graph, executable, plan, machine)):
        if plan is not None:
            _judge_claims(bench, graph, plan)
        order = "given" if plan is None else plan.certificate.order
        runs = f"{executable.num_runs} runs keep the rules"
        if bench.holds("instructions", runs, lambda: walked.append(_walk(graph, executable, machine, order))):
            _judge_memory(bench, graph, executable, plan, walked[0], machine)
    walk = walked[0] if walked else None
    arena = arena_used(walk, placed=executable.placed) if walk is not None else 0
    return Verdict(
        ok=not bench.wrong,
        checks=tuple(bench.lines),
        problems=tuple(bench.wrong),
        peak=walk.peak if walk is not None else 0,
        arena=arena,
        total=graph.persistent + arena + walk.outside_peak if walk is not None else 0,
        ns=walk.ns if walk is not None else 0,
        executable=executable.fingerprint,
    )


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


def _walk(graph: Graph, executable: Executable, machine: Machine | None, order: str) -> Walk:
    if order == "free":
        if not (entries := installed("tightrope.judges").get("order", ())):
            raise JudgeError(f"certificate: {absent('the judge of other orders', 'planners')}")
        graph, executable = loaded("the judge of orders", entries)(graph, executable)
    return walk_executable(graph, executable, machine)


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


def _judge_memory(
    bench: _Bench,
    graph: Graph,
    executable: Executable,
    plan: Plan | None,
    walk: Walk,
    machine: Machine | None,
) -> None:
    arena = executable.spaces[ARENA].capacity
    alignment = executable.spaces[ARENA].alignment
    if executable.placed:
        placed = f"{len(walk.intervals)} allocations without overlap in {arena} bytes"
        bench.holds("offsets", placed, lambda: _check_placed(walk, arena, alignment))
    else:
        bench.holds("offsets", "none", lambda: _check_unplaced(walk))
    if plan is None:
        return
    bench.holds("addresses", "those of the plan", lambda: _check_addresses(plan, walk))
    bench.holds("forecast", "every figure as derived", lambda: check_forecast(graph, plan, walk, machine))
    bench.holds("reasons", f"{len(plan.reasons)} fit what runs", lambda: check_reasons(graph, plan, walk))


def _check_form(graph: Graph, executable: Executable, plan: Plan | None, machine: Machine | None) -> None:
    check_graph(graph)
    if plan is not None:
        check_plan(plan)
        if plan.placed != executable.placed:
            raise JudgeError("addresses: the plan and what runs do not both have some.")
        if machine is not None and plan.machine != machine.name and _copies(executable):
            raise JudgeError(
                f"machine: the plan was made for {plan.machine!r}, this one is {machine.name!r}."
            )
    if executable.graph != graph.fingerprint:
        raise JudgeError(
            f"fingerprint: the executable was made for graph {executable.graph[:12]}, this one is "
            f"{graph.fingerprint[:12]}: its shapes, ops or environment differ. Lower it again."
        )
    check_spaces(graph, executable, machine)


def _copies(executable: Executable) -> bool:
    """Tell whether an executable copies between tiers, so that its time depends on the machine."""
    return any(isinstance(instruction, Copy) for instruction in executable.instructions)


def _check_fingerprint(graph: Graph, plan: Plan) -> None:
    if plan.fingerprint != graph.fingerprint:
        raise JudgeError(
            f"fingerprint: the plan was made for graph {plan.fingerprint[:12]}, this one is "
            f"{graph.fingerprint[:12]}: its shapes, ops or environment differ. Plan again."
        )


def _check_unplaced(walk: Walk) -> None:
    if any(interval.offset != -1 for interval in walk.intervals):
        raise JudgeError("offsets: an allocation has an address, though the executable has none.")


def _check_placed(walk: Walk, arena: Bytes, alignment: Bytes) -> None:
    check_offsets(walk.intervals, arena=arena, alignment=alignment)
    if (used := arena_used(walk, placed=True)) != arena:
        raise JudgeError(f"offsets: {arena} bytes are reserved for the arena; addresses end at {used}.")


def _check_addresses(plan: Plan, walk: Walk) -> None:
    found = tuple(interval.offset for interval in walk.intervals) if plan.placed else ()
    if found != plan.offsets:
        raise JudgeError("addresses: what runs has other offsets than the plan.")
