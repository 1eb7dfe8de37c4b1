"""Moccasin's retention intervals against brute force, with the switches on and off, and the polish."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.oracles import allowed_pairs, evaluate, random_graph
from tests.plan.brute import Brute
from tightrope.core import Graph, Limits, TightropeError
from tightrope.lower import walked
from tightrope.plan.model import build
from tightrope.plan.options import Options
from tightrope_planners.peers.moccasin import MoccasinKnobs, moccasin, moccasin_pairs, polish, polished
from tightrope_shared import cp
from tightrope_shared.cp import Worker

if find_spec("ortools") is None:
    pytest.skip("needs the extra tightrope[exact]", allow_module_level=True)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as started:
        yield started


def small(seed: int) -> Graph:
    return random_graph(seed, num_ops=6 + seed % 2, rich=seed % 5 != 0)


def check(worker: Worker, seed: int) -> None:
    graph, copies = small(seed), 2 + seed % 2
    model, brute, plain = build(graph), Brute(graph, max_runs=copies), evaluate(graph, ())[0]
    least = brute.least_peak()
    for limit in sorted({least - 1, least, (least + plain) // 2}):
        best = brute.least_ns(limit)
        for two in (True, False):
            answer = moccasin_pairs(worker, model, limit, knobs=MoccasinKnobs(copies=copies, two_phases=two))
            assert answer.proved
            if best is None:
                assert answer.peak > limit
                continue
            peak, ns = evaluate(graph, answer.pairs)
            assert peak == answer.peak <= limit
            assert ns == best == graph.base_ns + answer.ns_bound


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_least_time_with_at_most_c_runs(worker: Worker, seed: int) -> None:
    check(worker, seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 500, 50))
def test_it_finds_the_least_time_with_at_most_c_runs_on_500_graphs(worker: Worker, start: int) -> None:
    for seed in range(start, start + 50):
        check(worker, seed)


@pytest.mark.parametrize("seed", range(6))
def test_the_polish_is_never_worse_and_one_window_over_all_is_optimal(worker: Worker, seed: int) -> None:
    graph, rng = small(seed), Random(seed)
    model, pairs = build(graph), allowed_pairs(graph)
    start = tuple(rng.sample(pairs, min(len(pairs), 5)))
    limit, ns = evaluate(graph, start)
    narrow = polished(worker, model, start, limit, knobs=MoccasinKnobs(window=3))
    assert evaluate(graph, narrow)[0] <= limit
    assert evaluate(graph, narrow)[1] <= ns
    whole = polished(worker, model, start, limit, knobs=MoccasinKnobs(window=100, rounds=1))
    runs = max([1, *(sum(op == other for _, other in start) for _, op in start)])
    best = Brute(graph, max_runs=runs + 1).least_ns(limit)
    assert best is not None
    assert (evaluate(graph, whole)[1] == best) if runs == 1 else (evaluate(graph, whole)[1] >= best)


def test_what_does_not_fit_is_not_polished(worker: Worker) -> None:
    graph = small(3)
    start = tuple(allowed_pairs(graph)[:3])
    assert polished(worker, build(graph), start, 1) == tuple(sorted(start))


@pytest.mark.few(3)
@pytest.mark.parametrize("planner", [moccasin, polish])
@pytest.mark.parametrize("seed", range(4))
def test_the_judge_accepts_the_schedule(planner: Any, seed: int) -> None:
    graph = small(seed)
    limits = Limits(bytes=(graph.persistent + evaluate(graph, ())[0],))
    walk = walked(graph, planner(graph, None, limits, Options()))
    assert walk.ns == graph.base_ns


def test_without_or_tools_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ortools.py").write_text("raise ImportError('no ortools')")
    worker = Path(cp.__file__).with_name("cp_worker.py").read_text()
    script = tmp_path / "cp_worker.py"
    script.write_text(
        worker.replace("import json", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport json")
    )
    monkeypatch.setattr(cp, "__file__", str(tmp_path / "cp.py"))
    with pytest.raises(TightropeError, match=r"pip install 'tightrope\[exact\]'"):
        Worker()


def test_a_process_that_ended_is_reported() -> None:
    with Worker() as ended:
        ended.close()
        with pytest.raises(TightropeError, match="ended"):
            moccasin_pairs(ended, build(small(1)), 10)
