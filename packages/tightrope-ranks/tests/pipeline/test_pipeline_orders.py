"""Orders, messages and the simulator: closed forms, and the judge's walk as the second opinion."""

import random
from itertools import product

import pytest

from benchmarks.ranks import units
from benchmarks.ranks.mutants import MISTAKES, claims, halves, mistaken, refused, right_plan
from tightrope.core import PlanFileError
from tightrope_ranks.judge.bound import step_bound
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline import (
    Action,
    DeadlockError,
    Orders,
    breadth_first,
    folded,
    gpipe,
    interleaved,
    looped,
    lower,
    one_f_one_b,
    read_action,
    read_csv,
    simulate,
    with_wires,
    write_csv,
)
from tightrope_ranks.pipeline.bounds import least_bytes
from tightrope_ranks.values.ranks import StageWork


def test_actions_come_back_from_text() -> None:
    orders = with_wires(units.work(looped(2, 2), 4, 3, replicas=2, sharded=True), breadth_first(2, 2, 3))
    assert read_csv(write_csv(orders)) == orders
    assert read_csv("0F0,(0F1;1B0)OVERLAP_F_B,\n")[0] == (
        Action(0, "F", 0),
        Action(0, "F", 1),
        Action(1, "B", 0),
    )


@pytest.mark.parametrize("text", ["", "F0", "0F", "0UNSHARD3", "1X2", "-1F0", "1F0; rm", "1234567F0"])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(PlanFileError, match="no pipeline action"):
        read_action(text)


@pytest.mark.parametrize(("ranks", "per_rank", "micro"), list(product((2, 3, 4), (1, 2), (1, 3, 4, 7))))
def test_every_order_is_right_and_costs_what_the_judge_counts(ranks: int, per_rank: int, micro: int) -> None:
    for sharded in (False, True):
        work = units.work(
            looped(ranks, per_rank),
            ranks * per_rank,
            micro,
            gather=0.5,
            reduce=0.7,
            replicas=2,
            sharded=sharded,
        )
        again = [(stage, m) for stage in range(ranks * per_rank) for m in range(micro) if (stage + m) % 2]
        orders = [
            interleaved(ranks, per_rank, micro),
            halves(breadth_first(ranks, per_rank, micro, mirrored=sharded)),
            interleaved(ranks, per_rank, micro, group=ranks + 1),
        ]
        for order in orders + ([gpipe(ranks, micro)] if per_rank == 1 else []):
            plan = lower(work, units.machine(0.25), with_wires(work, order), again=again)
            verdict = judge_ranks(plan)
            assert verdict.ns == plan.ns >= step_bound(plan)
            assert verdict.peaks == tuple(rank.peak for rank in plan.ranks)
            least = least_bytes(work, order, again=again)
            assert max(verdict.peaks) // 2 <= least <= max(verdict.peaks)


def test_idle_time_follows_the_closed_form() -> None:
    for ranks, per_rank, micro in ((2, 1, 2), (4, 3, 9), (8, 8, 8)):
        work = units.work(looped(ranks, per_rank), ranks * per_rank, micro)
        found = simulate(work, units.machine(0), with_wires(work, breadth_first(ranks, per_rank, micro)))
        form = 1 / (1 + (ranks - 1) / (micro * per_rank))
        assert max(found.busy) / found.ns == pytest.approx(form, rel=0.01)


def test_activations_in_flight_follow_the_closed_forms() -> None:
    """1F1B holds min(M, P) micro-batches on the first rank, breadth-first all of them."""
    ranks, micro = 4, 12
    work = units.work(looped(ranks, 1), ranks, micro)
    early = simulate(work, units.machine(0), with_wires(work, one_f_one_b(ranks, micro))).peaks[0]
    late = simulate(work, units.machine(0), with_wires(work, gpipe(ranks, micro))).peaks[0]
    assert 8 * 1000 <= late - early < 8 * 1200


def test_ranks_that_wait_for_each_other_are_found() -> None:
    work = units.work(looped(2, 1), 2, 2)
    stuck: Orders = ((Action(0, "B", 0), Action(0, "F", 0)), (Action(1, "F", 0), Action(1, "B", 0)))
    with pytest.raises(DeadlockError, match="rank 0 at 0B0"):
        simulate(work, units.machine(0), with_wires(work, stuck))


def test_folded_stages_talk_to_themselves_at_the_turn() -> None:
    work: StageWork = units.work(folded(2), 4, 2)
    order: Orders = (*read_csv("0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n"),)
    plan = lower(work, units.machine(0.1), with_wires(work, order))
    assert judge_ranks(plan).num_messages == 8


def test_the_judge_refuses_every_mistake() -> None:
    draw = random.Random(7)
    seen = set()
    for _ in range(6):
        plan = right_plan(draw)
        judge_ranks(plan)
        for name in MISTAKES:
            wrong = mistaken(plan, name, draw)
            if wrong is not None:
                seen.add(name)
                assert refused(wrong) == "judge", name
        assert all(refused(one) == "judge" for one in claims(plan, draw))
    assert seen == set(MISTAKES)
