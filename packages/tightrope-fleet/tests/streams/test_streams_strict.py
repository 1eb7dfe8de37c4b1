"""Strict rules: repeatable, conserving, judged; plans never worse than policies, and exact where small."""

import itertools
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from benchmarks.fleet.random_streams import random_case
from tightrope.core import JudgeError, TightropeError
from tightrope_fleet.judge.streams import check_stream_plan, check_stream_run
from tightrope_fleet.streams import (
    POLICIES,
    StreamCase,
    StreamOptions,
    best_plan,
    follow,
    plan_streams,
    run_plan,
    score,
    simulate,
    skipped,
)
from tightrope_fleet.streams.scorer import Genes, choices_of, first_frames, scorer_of
from tightrope_fleet.values.streams import FrameChoice, Rules, StreamRun


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("arena", [False, True])
def test_every_policy_conserves_requests_and_is_judged(seed: int, arena: bool) -> None:
    case = random_case(seed, arena=arena)
    for policy in POLICIES.values():
        run = simulate(case, policy(case))
        assert run == simulate(case, policy(case))
        assert len(run.frames) == case.num_requests
        total = score(case.scenario, run)
        assert sum(m.num_done + m.num_dropped + m.num_open for m in total.models) == case.num_requests
        assert 0 <= total.total <= 100
        assert check_stream_run(case.scenario, case.machine, run) == pytest.approx(total.total, abs=1e-9)
        assert run.peak <= case.machine.arena or not case.machine.arena
        cut = simulate(case, policy(case), drained=False)
        assert len(cut.frames) == case.num_requests


@pytest.mark.parametrize(("arena", "rules"), [(False, "strict"), (True, "strict"), (False, "compatible")])
def test_plans_in_cpp_and_python_agree(arena: bool, rules: Rules) -> None:
    draw = np.random.default_rng(0)
    for seed in range(8):
        case = random_case(seed, arena=arena, rules=rules)
        size = first_frames(case)[-1]
        native, python = scorer_of(case), scorer_of(case, native=False)
        for _ in range(6):
            genes = Genes(draw.integers(-1, 2, size), draw.random(size) * 200e6)
            value, peak, starts = native.score(genes.processors, genes.ranks)
            found, most, begun = python.score(genes.processors, genes.ranks)
            assert value == pytest.approx(found, abs=1e-9)
            assert peak == most
            assert np.allclose(starts, begun, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_plans_are_never_worse_than_policies_and_repeat(seed: int) -> None:
    case = random_case(seed, arena=seed % 2 == 1)
    options = StreamOptions(moves=600, seed=seed)
    plan = plan_streams(case, options=options)
    assert plan == plan_streams(case, options=options)
    check_stream_plan(case.scenario, case.machine, plan, run_plan(case, plan))
    for policy in POLICIES.values():
        assert plan.score >= score(case.scenario, simulate(case, policy(case))).total - 1e-9
    off = plan_streams(case, options=StreamOptions(look_ahead=False))
    assert off.planner in POLICIES
    assert plan.score >= off.score


def brute_force(case: StreamCase) -> float:
    """Simulate every order of every choice of processors."""
    frames = [(m, f) for m, row in enumerate(case.wanted) for f, asked in enumerate(row) if asked]
    best = 0.0
    for where in itertools.product(range(-1, len(case.machine.processors)), repeat=len(frames)):
        for order in itertools.permutations(range(len(frames))):
            choices = [FrameChoice(*frames[at], where[at]) for at in order]
            run = simulate(case, follow(choices), skip=skipped(choices))
            best = max(best, score(case.scenario, run).total)
    return best


@pytest.mark.parametrize("seed", range(5))
def test_the_exact_method_is_brute_force(seed: int) -> None:
    case = random_case(seed, models=2, processors=1 + seed % 2, horizon_ms=45)
    while case.num_requests > 4:
        seed += 100
        case = random_case(seed, models=2, processors=1 + seed % 2, horizon_ms=45)
    assert best_plan(case).score == pytest.approx(brute_force(case), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_plans_of_small_cases_are_exact(seed: int) -> None:
    case = random_case(seed, models=3, processors=1 + seed % 2, horizon_ms=90)
    while case.num_requests > 8:
        seed += 100
        case = random_case(seed, models=3, processors=1 + seed % 2, horizon_ms=90)
    exact = best_plan(case)
    run = simulate(case, follow(exact.choices), skip=skipped(exact.choices))
    assert check_stream_run(case.scenario, case.machine, run) == pytest.approx(exact.score, abs=1e-9)
    plan = plan_streams(case, options=StreamOptions(moves=6000))
    assert plan.score == pytest.approx(exact.score, abs=1e-6)
    assert exact.score <= plan.upper_bound + 1e-9


def test_the_exact_method_refuses_large_cases() -> None:
    with pytest.raises(TightropeError, match="at most 12 requests"):
        best_plan(random_case(0, horizon_ms=2000))


def test_a_decision_that_cannot_be_is_refused() -> None:
    case = random_case(0)
    with pytest.raises(TightropeError, match="cannot start"):
        simulate(case, lambda now: (0, 99, 0))


def test_a_plan_of_another_case_is_refused() -> None:
    plan = plan_streams(random_case(0), options=StreamOptions(moves=0))
    with pytest.raises(TightropeError, match="made for"):
        run_plan(random_case(1), plan)


def _run(case: StreamCase) -> StreamRun:
    return simulate(case, POLICIES["deadline"](case))


def _changed(run: StreamRun, at: int, **fields: object) -> StreamRun:
    frames = list(run.frames)
    frames[at] = msgspec.structs.replace(frames[at], **fields)
    return msgspec.structs.replace(run, frames=tuple(frames))


def test_the_judge_refuses_runs_that_are_wrong() -> None:
    cases = (random_case(seed, arena=True, horizon_ms=400) for seed in range(200))
    certain = (c for c in cases if all(model.probability == 1 for model in c.scenario.models))
    runs = ((case, _run(case)) for case in certain)
    case, run = next((c, r) for c, r in runs if any(frame.state == "dropped" for frame in r.frames))
    check_stream_run(case.scenario, case.machine, run)
    ran = [at for at, frame in enumerate(run.frames) if frame.state == "done"]
    lost = [at for at, frame in enumerate(run.frames) if frame.state == "dropped"]
    assert len(ran) > 3
    assert lost
    first, last = run.frames[ran[0]], run.frames[ran[-1]]
    paged = next(at for at in ran if run.frames[at].page_ns)
    wrong = {
        "shorter": _changed(run, ran[0], end=first.end - 1),
        "before it appeared": _changed(run, ran[-1], start=last.released - 1),
        "another deadline": _changed(run, ran[0], deadline=first.deadline + 5),
        "less energy": _changed(run, ran[0], mj=first.mj / 2),
        "no processor": _changed(run, ran[0], processor=-1),
        "dropped on a processor": _changed(run, lost[0], processor=0),
        "twice": msgspec.structs.replace(run, frames=(*run.frames, first)),
        "missing": msgspec.structs.replace(run, frames=tuple(f for f in run.frames if f.model or f.frame)),
        "made up": _changed(run, ran[0], frame=9999),
        "weights from nowhere": _changed(
            run, paged, page_ns=0, end=run.frames[paged].end - run.frames[paged].page_ns
        ),
        "smaller peak": msgspec.structs.replace(run, peak=1),
        "larger peak": msgspec.structs.replace(run, peak=case.machine.arena + 1),
    }
    for name, one in wrong.items():
        assert _refused(lambda one=one: check_stream_run(case.scenario, case.machine, one)), name


def _refused(check: Callable[[], object]) -> bool:
    try:
        check()
    except JudgeError:
        return True
    return False


def test_the_judge_refuses_overlaps_and_early_successors() -> None:
    case = random_case(11, models=4, processors=1, horizon_ms=300)
    run = _run(case)
    ran = sorted((f.start, at) for at, f in enumerate(run.frames) if f.state == "done")
    pairs = [
        (a, b)
        for (_, a), (_, b) in itertools.pairwise(ran)
        if run.frames[b].start == run.frames[a].end and run.frames[b].released < run.frames[b].start
    ]
    assert pairs
    at = pairs[0][1]
    early = _changed(run, at, start=run.frames[at].start - 1, end=run.frames[at].end - 1)
    with pytest.raises(JudgeError, match=r"overlap|before what it needs"):
        check_stream_run(case.scenario, case.machine, early)


def test_the_judge_refuses_plans_that_say_too_much() -> None:
    case = random_case(2)
    plan = plan_streams(case, options=StreamOptions(moves=200))
    run = run_plan(case, plan)
    check_stream_plan(case.scenario, case.machine, plan, run)
    replace = msgspec.structs.replace
    wrong = [
        replace(plan, score=plan.score + 1),
        replace(plan, upper_bound=plan.score - 1),
        replace(plan, upper_bound=min(plan.upper_bound - 0.1, 99.9)),
        replace(plan, prices=tuple(-price - 1 for price in plan.prices)),
        replace(plan, prices=()),
        replace(plan, peak=plan.peak + 1),
        replace(plan, choices=plan.choices[::-1]),
        replace(plan, choices=(*plan.choices, plan.choices[0])),
        replace(plan, seed=plan.seed + 1),
    ]
    for at, one in enumerate(wrong):
        assert _refused(lambda one=one: check_stream_plan(case.scenario, case.machine, one, run)), at


def test_choices_and_genes_are_one_another() -> None:
    case = random_case(3)
    size = first_frames(case)[-1]
    genes = Genes(np.zeros(size, dtype=np.int64), np.arange(size, dtype=np.float64))
    assert len(choices_of(case, genes, every=True)) == size
