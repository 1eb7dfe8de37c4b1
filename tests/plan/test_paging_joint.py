"""Steps that may be paged: never slower than without pages or with pages alone; limits of both tiers."""

import pytest

from tests.judge.families import FAMILIES
from tightrope.core import Flag, Graph, InfeasibleError, Machine, Op, PageIn, Part, Plan, Storage, Tier
from tightrope.core.graph import RETURN
from tightrope.lower import lower, lowered
from tightrope.lower.pages import page_offsets
from tightrope.plan import smallest, solve
from tightrope.plan.paging import joint
from tightrope.plan.paging.joint import may_page, smallest_paged, solve_paged
from tightrope.plan.paging.search import PagingKnobs, plan_paging

KNOBS = PagingKnobs(moves=2_000)


def machine(*, rate: float = 1e9, holds: int = 2**20) -> Machine:
    return Machine("two tiers", (Tier("fast", 2**20), Tier("file", holds, 64, read=rate, write=rate)))


def planned(graph: Graph, budget: int, to: Machine) -> Plan:
    return solve_paged(
        graph, budget=budget, machine=to, alone=lambda: solve(graph, budget=budget), knobs=KNOBS
    )


def fits(plan: Plan, graph: Graph, budget: int, to: Machine) -> bool:
    held = sum(plan.forecast.tiers)
    lowered(graph, plan, to if held else None)
    return plan.forecast.total <= budget and held <= to.tiers[1].bytes


@pytest.mark.few(3)
@pytest.mark.parametrize("rate", [1e6, 1e9, 1e12])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_both_together_are_never_slower_than_either_alone(family: str, rate: float) -> None:
    to = machine(rate=rate)
    for seed in range(3):
        graph = FAMILIES[family](seed)
        least = smallest(graph).forecast.total
        most = solve(graph, budget=2**40, planner="given").forecast.total
        for budget in {least, (least + most) // 2, most}:
            found = planned(graph, budget, to)
            assert fits(found, graph, budget, to)
            assert found.forecast.ns <= solve(graph, budget=budget).forecast.ns
            try:
                paged = plan_paging(
                    graph, machine=to, budget=budget, can=may_page(graph),
                    knobs=PagingKnobs(recompute=False, moves=2_000),
                )  # fmt: skip
            except InfeasibleError:
                continue
            assert found.forecast.ns <= paged.forecast.ns


def test_without_the_native_search_a_step_pages_only_where_nothing_else_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, to = chain(), machine(rate=1e12)
    ample = smallest(graph)
    alone = solve(graph, budget=ample.forecast.total)
    tight = smallest_paged(graph, to)
    assert tight is not None
    assert tight.forecast.total < ample.forecast.total
    monkeypatch.setattr(joint, "missing", lambda _: "no compiler")
    assert planned(graph, alone.budget, to).schedule == alone.schedule
    assert planned(graph, tight.forecast.total, to).schedule == tight.schedule
    with pytest.raises(InfeasibleError):
        planned(graph, tight.forecast.total - 64, to)


def chain(*, part: bool = False) -> Graph:
    """Four storages of 640 bytes made one after the other, and read the other way round; op 1 runs once."""
    ops = [Op(k, "f", "f", (k - 1,) * (k > 0), (k,), ns=1000) for k in range(4)]
    ops[1] = Op(1, "f", "f", (0,), (1,), ns=1000, flags=Flag.NEVER_RECOMPUTE)
    ops += [Op(4, "return", RETURN)] * part
    for k in range(4):
        last = len(ops)
        ops.append(Op(last, "b", "b", (3 - k, *((3 + k,) if k else ())), (4 + k,), ns=1000))
    storages = [Storage(k, 640, resident_at_end=k == 7) for k in range(8)]
    return Graph(tuple(ops), tuple(storages), (), (Part(5), Part(9)) if part else ())


def test_what_no_schedule_without_pages_reaches_is_reached_with_them() -> None:
    graph, to = chain(), machine()
    least = smallest_paged(graph, to)
    assert least is not None
    assert least.forecast.total < smallest(graph).forecast.total
    plan = planned(graph, least.forecast.total, to)
    assert fits(plan, graph, least.forecast.total, to)
    assert any(isinstance(step, PageIn) for step in plan.schedule.steps)
    with pytest.raises(InfeasibleError, match="smallest feasible found, with pages or without") as refused:
        planned(graph, least.forecast.total - 64, to)
    assert refused.value.smallest_found == least.forecast.total
    none = PagingKnobs(moves=1)
    rescued = solve_paged(
        graph, budget=least.forecast.total, machine=to, knobs=none,
        alone=lambda: solve(graph, budget=least.forecast.total),
    )  # fmt: skip
    assert fits(rescued, graph, least.forecast.total, to)


def test_the_slower_tier_is_a_limit() -> None:
    graph = chain()
    least = smallest_paged(graph, machine())
    assert least is not None
    (held,) = least.forecast.tiers
    assert smallest_paged(graph, machine(holds=held - 64)) is None
    with pytest.raises(InfeasibleError):
        planned(graph, least.forecast.total, machine(holds=64))


def test_only_what_can_be_made_again_is_paged_across_the_callers_code() -> None:
    assert may_page(chain())[:4] == (True, True, True, True)
    assert may_page(chain(part=True))[:4] == (True, False, True, True)
    two_calls = Graph(chain(part=True).ops, chain().storages, (), (Part(5), Part(9, call=1)))
    assert not any(may_page(two_calls))


def test_pages_lie_apart_and_fill_gaps() -> None:
    graph, to = chain(), machine()
    plan = smallest_paged(graph, to)
    assert plan is not None
    offsets = page_offsets(lower(graph, plan.schedule, to))
    assert sorted(offsets.values()) == [640 * k for k in range(len(offsets))]
    assert plan.forecast.tiers == (640 * len(offsets),)
