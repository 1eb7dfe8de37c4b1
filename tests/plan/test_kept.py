"""Plans that outlive the process."""

import os
from pathlib import Path

import msgspec
import pytest

import oracles
from tightrope.core import InfeasibleError
from tightrope.lower import problems
from tightrope.plan import SMALLEST, KeptPlans, smallest, solve
from tightrope.plan import kept as module
from tightrope.plan.cache import graph_key, with_budget
from tightrope.plan.job import Job

GRAPH = oracles.random_graph(3, num_ops=30)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIGHTROPE_PLANS", str(tmp_path / "plans"))
    return tmp_path / "plans"


def a_tight_budget() -> int:
    return (smallest(GRAPH).budget + 2 * solve(GRAPH, budget=2**40).forecast.total) // 3


def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(Job, "run", fail)
    monkeypatch.setattr(Job, "rounds", fail)


def test_the_next_process_does_not_search(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = a_tight_budget()
    first = solve(GRAPH, budget=budget, cache=KeptPlans(0))
    no_search(monkeypatch)
    assert solve(GRAPH, budget=budget, cache=KeptPlans(0)) == first
    with pytest.raises(AssertionError, match="searched"):
        solve(GRAPH, budget=budget, cache=KeptPlans(1))


def test_a_refusal_is_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    least = smallest(GRAPH).budget
    with pytest.raises(InfeasibleError) as first:
        solve(GRAPH, budget=least // 2, cache=KeptPlans(0))
    no_search(monkeypatch)
    with pytest.raises(InfeasibleError) as again:
        solve(GRAPH, budget=least - 1, cache=KeptPlans(0))
    assert first.value.smallest_found == again.value.smallest_found == least


def test_a_damaged_file_costs_a_warning_and_a_search(folder: Path) -> None:
    budget = a_tight_budget()
    first = solve(GRAPH, budget=budget, cache=KeptPlans(0))
    (file,) = folder.rglob(f"auto-{first.budget}.json")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(UserWarning, match="of no use and was deleted"):
        assert solve(GRAPH, budget=budget, cache=KeptPlans(0)) == first
    assert solve(GRAPH, budget=budget, cache=KeptPlans(0)) == first


@pytest.mark.few(2)
@pytest.mark.parametrize("field", ["outside", "persistent", "witness", "steps"])
def test_figures_on_disk_are_judged_before_anything_relies_on_them(folder: Path, field: str) -> None:
    budget, least = a_tight_budget(), smallest(GRAPH)
    first = solve(GRAPH, budget=budget)
    writer, replaced = KeptPlans(0), msgspec.structs.replace
    for name, plan in (("auto", first), (SMALLEST, least)):
        forecast, proof = plan.forecast, plan.certificate
        wrong = {
            "outside": replaced(plan, forecast=replaced(forecast, outside=2**40)),
            "persistent": replaced(plan, forecast=replaced(forecast, persistent=forecast.persistent + 64)),
            "witness": replaced(plan, certificate=replaced(proof, witness=10**6)),
            "steps": replaced(plan, schedule=replaced(plan.schedule, steps=plan.schedule.steps[::-1])),
        }
        writer.store(GRAPH, wrong[field], planner=name)
    reader = KeptPlans(0)
    with pytest.warns(UserWarning, match="of no use and was deleted"):
        assert solve(GRAPH, budget=budget, cache=reader).forecast == first.forecast
    assert reader.least(GRAPH) is None


def test_a_plan_that_another_process_drops_meanwhile_is_skipped(folder: Path) -> None:
    budget = a_tight_budget()
    first = solve(GRAPH, budget=budget, cache=KeptPlans(0))
    (file,) = folder.rglob("auto-*.json")
    (file.parent / "auto-64.json").symlink_to(file.parent / "gone")
    assert solve(GRAPH, budget=budget, cache=KeptPlans(0)) == first
    assert file.exists()


def test_a_folder_that_cannot_be_written_stops_nothing(folder: Path) -> None:
    folder.write_text("in the way")
    with pytest.warns(RuntimeWarning, match=r"no plans are kept\. Set TIGHTROPE_PLANS"):
        cache = KeptPlans(0)
    assert solve(GRAPH, budget=2**40, cache=cache).forecast.ns == GRAPH.base_ns


def test_the_oldest_plans_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_PLANS", 3)
    cache, least = KeptPlans(0), smallest(GRAPH)
    for more in range(5):
        plan = solve(GRAPH, budget=2**40 + more)
        cache.store(GRAPH, plan, planner="auto")
        (made,) = folder.rglob(f"*-{2**40 + more}.json")
        os.utime(made, (more, more))
    cache.store(GRAPH, least, planner=SMALLEST)
    left = sorted(file.stem for file in folder.rglob("*.json"))
    assert left == [f"auto-{2**40 + 3}", f"auto-{2**40 + 4}", f"smallest-{least.budget}"]


def test_off_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTROPE_PLANS", "off")
    solve(GRAPH, budget=2**40, cache=KeptPlans(0))
    assert not folder.exists()


def test_a_folder_that_vanishes_while_it_is_pruned_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(path: object = ".") -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", vanished)
        assert solve(GRAPH, budget=2**40, cache=KeptPlans(0)).forecast.ns == GRAPH.base_ns
    assert list(folder.rglob("auto-*.json"))


def test_another_hidden_figure_or_alignment_is_another_graph() -> None:
    first, *rest = GRAPH.ops
    heavier = msgspec.structs.replace(first, hidden=first.hidden + 64)
    others = (
        msgspec.structs.replace(GRAPH, ops=(heavier, *rest)),
        msgspec.structs.replace(GRAPH, alignment=2 * GRAPH.alignment),
    )
    assert len({graph_key(graph) for graph in (GRAPH, *others)}) == 3


def test_a_planner_that_is_named_searches_below_the_smallest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, least = KeptPlans(0), smallest(GRAPH)
    cache.store(GRAPH, least, planner=SMALLEST)
    no_search(monkeypatch)
    with pytest.raises(InfeasibleError):
        solve(GRAPH, budget=least.budget - 1, cache=cache)
    with pytest.raises(AssertionError, match="searched"):
        solve(GRAPH, budget=least.budget - 1, planner="greedy", cache=cache)


def test_a_bucket_takes_a_plan_that_was_made_for_almost_its_budget() -> None:
    budget = a_tight_budget()
    made = solve(GRAPH, budget=budget, cache=KeptPlans(0))
    arena, total = made.forecast.arena, made.forecast.total
    for asked in (total, budget - 1, budget, budget + 1, budget + arena // module.SPARE):
        if asked < total:
            continue
        found = KeptPlans(0).close(GRAPH, budget=asked, planner="auto")
        assert found is not None
        assert found.budget == asked
        assert (found.schedule, found.offsets) == (made.schedule, made.offsets)
        assert not problems(GRAPH, found)
        proof = found.certificate
        if asked > budget:  # a bound for fewer bytes says nothing here
            assert proof.ns_bound == GRAPH.base_ns
        else:
            assert proof.ns_bound == made.certificate.ns_bound
    for asked in (total - 1, budget + arena // module.SPARE + module.SPARE):
        assert KeptPlans(0).close(GRAPH, budget=asked, planner="auto") is None
    assert KeptPlans(0).close(GRAPH, budget=budget, planner="greedy") is None
    assert KeptPlans(1).close(GRAPH, budget=budget, planner="auto") is None


def test_a_bucket_takes_the_fastest_kept_plan_that_fits() -> None:
    cache, budget = KeptPlans(0), a_tight_budget()
    fast, least = solve(GRAPH, budget=budget), smallest(GRAPH)
    slow = with_budget(least, budget + 1)
    assert slow.forecast.ns > fast.forecast.ns
    for plan in (fast, slow):
        cache.store(GRAPH, plan, planner="auto")
    found = KeptPlans(0).close(GRAPH, budget=budget + 1, planner="auto")
    assert found is not None
    assert found.schedule == fast.schedule
    again = KeptPlans(0).close(GRAPH, budget=fast.forecast.total - 1, planner="auto")
    assert again is not None
    assert again.schedule == slow.schedule


def test_a_plan_that_runs_every_op_once_does_for_every_larger_budget() -> None:
    made = solve(GRAPH, budget=2**30, cache=KeptPlans(0))
    found = KeptPlans(0).close(GRAPH, budget=2**40, planner="auto")
    assert found is not None
    assert found.forecast.ns == made.forecast.ns == GRAPH.base_ns
    assert found.certificate.proved


def test_a_plan_for_almost_the_same_budget_is_judged(folder: Path) -> None:
    made = solve(GRAPH, budget=a_tight_budget())
    wrong = msgspec.structs.replace(made, offsets=(0,) * len(made.offsets))
    KeptPlans(0).store(GRAPH, wrong, planner="auto")
    with pytest.warns(UserWarning, match="of no use and was deleted"):
        assert KeptPlans(0).close(GRAPH, budget=made.budget + 1, planner="auto") is None


def test_of_several_smallest_plans_the_smallest_counts() -> None:
    cache, least = KeptPlans(0), smallest(GRAPH)
    named = least.forecast.total
    larger = solve(GRAPH, budget=2**40, planner="given")
    assert named < larger.forecast.total
    cache.store(GRAPH, larger, planner=SMALLEST)  # as a search of few seconds finds it
    cache.store(GRAPH, least, planner=SMALLEST)
    assert solve(GRAPH, budget=named, cache=cache).forecast.total <= named
    with pytest.raises(InfeasibleError) as refused:
        solve(GRAPH, budget=named - 1, cache=cache)
    assert refused.value.smallest_found == named
