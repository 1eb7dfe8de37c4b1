"""G1 to G7, W1 to W3: tasks on devices.

G1: the simulator against a clock that ticks. G2: HEFT and the ladder against CP-SAT's best, on made-up
graphs, on those of anrg-saga's generators, whose schedulers run too, and on workflows of wfcommons. G3:
proofs within 20 s on one thread. G4: the policy from random starts, against HEFT and random moves with as
many placements tried. G5: 50 devices come and go. G6: CPU time of a decision. G7: tight bytes. W1: damaged
plans. W2: exhaustive search. W3: a lost device.
"""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from rich.console import Console

from benchmarks.assign.cases import Case, has_saga, made_up, of_saga, oracles, saga_pairs, workflows
from benchmarks.micro.rows import Row
from tightrope.core import InfeasibleError, JudgeError
from tightrope_assign.fit import fitting
from tightrope_assign.judge.tasks import check_task_plan
from tightrope_assign.tasks import Cluster, TaskOptions, TaskPlan, place_tasks
from tightrope_assign.tasks.exact import solve_exactly
from tightrope_assign.tasks.gpnet import OptionGraph
from tightrope_assign.tasks.heft import Timetable, heft
from tightrope_assign.tasks.made_up import KINDS, made_up_cluster, made_up_device, made_up_graph, made_up_link
from tightrope_assign.tasks.policy import load_policy, run_policy
from tightrope_assign.tasks.problem import TaskProblem, task_problem
from tightrope_assign.tasks.search import better_start, improve
from tightrope_assign.tasks.simulate import makespan, simulate
from tightrope_assign.tasks.train import random_hosts
from tightrope_shared.cp import Worker

NUM_SAGA: Final = 200
NUM_WORKFLOWS: Final = 50
MOVES: Final = 15_000


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """Give the bars by their names."""
    return {
        "G1": g1,
        "G2": g2,
        "G3": g3,
        "G4": g4,
        "G5": g5,
        "G6": g6,
        "G7": g7,
        "W1": w1,
        "W2": w2,
        "W3": w3,
    }


def g1() -> list[Row]:
    equal = 0
    for seed in range(200):
        graph, cluster = oracles().small_case(seed, tasks=9, devices=3)
        problem = task_problem(graph, cluster)
        hosts = [random.Random(seed).choice(able) for able in problem.options]
        equal += simulate(problem, hosts) == oracles().ticking(graph, cluster, hosts)
    return [
        Row("G1", "the simulator equals a clock that ticks on 200 cases", f"{equal} of 200", equal == 200)
    ]


def _against_exact(
    cases: list[Case], seconds: float
) -> tuple[list[float], list[float], list[bool], list[float]]:
    """HEFT and search relative to CP-SAT's best, whether it is proved, and seconds."""
    hefts, searches, proofs, took = [], [], [], []
    with Worker() as worker:
        for graph, cluster in cases:
            problem = task_problem(graph, cluster)
            first = heft(problem)
            second = improve(problem, *better_start(problem, *first), moves=MOVES)
            begun = time.monotonic()
            hosts, starts, proved = solve_exactly(problem, *second, seconds=seconds, worker=worker)
            took.append(time.monotonic() - begun)
            best = makespan(problem, hosts, starts)
            hefts.append(makespan(problem, *first) / best)
            searches.append(makespan(problem, *second) / best)
            proofs.append(proved)
    return hefts, searches, proofs, took


def _ratios(name: str, cases: list[Case], seconds: float, peer: str = "") -> list[Row]:
    hefts, searches, proofs, _ = _against_exact(cases, seconds)
    by_heft, by_search = statistics.mean(hefts), statistics.mean(searches)
    base = f"CP-SAT's best in {seconds:g} s ({sum(proofs)} of {len(cases)} proved)"
    return [
        Row(
            "G2",
            f"HEFT within 6 % of {base}, {name}",
            f"{by_heft:.4f}, worst {max(hefts):.3f}",
            by_heft <= 1.06,
            peer,
        ),
        Row(
            "G2",
            f"search alone within 2 % of {base}, {name}",
            f"{by_search:.4f}, worst {max(searches):.3f}",
            by_search <= 1.02,
        ),
    ]


def g2() -> list[Row]:
    found = _ratios("made-up 25 tasks x 20 devices", made_up(20, 25, 20), 20)
    if has_saga():
        pairs = list(saga_pairs(NUM_SAGA))
        cases = [of_saga(*pair) for pair in pairs]
        found += _ratios(f"{NUM_SAGA} of anrg-saga", cases, 5, _saga_heft(pairs, cases))
    real = workflows(NUM_WORKFLOWS)
    if real:
        found.append(_on_workflows(real))
    return found


def _saga_heft(pairs: list[tuple[Any, Any]], cases: list[Case]) -> str:
    """Run anrg-saga's schedulers on its own graphs, and tell their spans relative to our HEFT."""
    from saga.schedulers.cpop import CpopScheduler
    from saga.schedulers.etf import ETFScheduler
    from saga.schedulers.heft import HeftScheduler
    from saga.schedulers.minmin import MinMinScheduler

    said = []
    ours = []
    for graph, cluster in cases:
        problem = task_problem(graph, cluster)
        ours.append(makespan(problem, *heft(problem)))
    for kind in (HeftScheduler, CpopScheduler, ETFScheduler, MinMinScheduler):
        ratios = [
            1e6 * kind().schedule(network, graph).makespan / mine
            for (network, graph), mine in zip(pairs, ours, strict=True)
        ]
        said.append(f"{kind.__name__} {statistics.mean(ratios):.4f}")
    return "anrg-saga's relative to our HEFT: " + ", ".join(said)


def _on_workflows(cases: list[Case]) -> Row:
    gains, gaps = [], []
    for graph, cluster in cases:
        first = place_tasks(graph, cluster, options=TaskOptions(method="heft"))
        plan = place_tasks(graph, cluster, options=TaskOptions(method="search", seconds=5))
        check_task_plan(graph, cluster, plan)
        gains.append(plan.makespan / first.makespan)
        gaps.append(plan.gap)
    sizes = [len(graph.tasks) for graph, _ in cases]
    return Row(
        "G2",
        f"{len(cases)} workflows of wfcommons ({min(sizes)} to {max(sizes)} tasks): the search is no worse",
        f"{statistics.mean(gains):.4f} of HEFT; {100 * statistics.median(gaps):.1f} % above the bound",
        max(gains) <= 1,
    )


def g3() -> list[Row]:
    _, _, proofs, took = _against_exact(made_up(30, 25, 20, seed=2 * 10**6), 20)
    share = sum(proofs) / len(proofs)
    return [
        Row(
            "G3",
            "CP-SAT proves 70 % of 25 tasks x 20 devices in 20 s",
            f"{100 * share:.0f} % of 30 on one thread, {statistics.median(took):.1f} s in the median",
            share >= 0.7,
        )
    ]


def random_moves(problem: TaskProblem, hosts: list[int], steps: int, chance: random.Random) -> int:
    """Move a random task to a random device, and keep what is better; the makespan at the end."""
    graph = OptionGraph(problem, hosts)
    best, now = graph.makespan, list(hosts)
    for _ in range(steps):
        task = chance.randrange(problem.num_tasks)
        trial = list(now)
        trial[task] = chance.choice(problem.options[task])
        graph.move_to(trial)
        if graph.makespan < best:
            best, now = graph.makespan, trial
    return best


def _policy_ratios(cases: list[Case]) -> tuple[float, float]:
    """The policy relative to HEFT, and to random moves."""
    policy, hefts, others = load_policy(), [], []
    for at, (graph, cluster) in enumerate(cases):
        problem = task_problem(graph, cluster)
        chance = random.Random(at)
        hosts = random_hosts(problem, chance)
        found = makespan(problem, *run_policy(problem, policy, hosts, seed=at))
        hefts.append(found / makespan(problem, *heft(problem)))
        others.append(found / random_moves(problem, hosts, 2 * problem.num_tasks, chance))
    return statistics.mean(hefts), statistics.mean(others)


def g4() -> list[Row]:
    torch.set_num_threads(1)
    found = []
    known, _ = _policy_ratios(made_up(30, 25, 20, seed=3 * 10**6))
    suites = [("made-up 25 tasks x 20 devices", made_up(30, 25, 20, seed=3 * 10**6))]
    if has_saga():
        suites.append((f"{NUM_SAGA} of anrg-saga", [of_saga(*pair) for pair in saga_pairs(NUM_SAGA)]))
    if real := workflows(NUM_WORKFLOWS):
        suites.append(
            (f"{len(real)} workflows of wfcommons", [case for case in real if len(case[0].tasks) <= 200])
        )
    for name, cases in suites:
        by_heft, by_moves = _policy_ratios(cases)
        found.append(
            Row(
                "G4",
                f"policy from random starts, 2n steps: <= 1.03 of HEFT and 12 % below random moves, {name}",
                f"{by_heft:.4f} of HEFT, {by_moves:.4f} of random moves",
                by_heft <= 1.03 and by_moves <= 0.88,
            )
        )
    for devices in (8, 40):
        other, _ = _policy_ratios(made_up(30, 25, devices, seed=4 * 10**6))
        found.append(
            Row(
                "G4",
                f"a cluster of {devices} devices, of a size unseen, costs at most 5 %",
                f"{other:.4f} of HEFT, {known:.4f} with 20 devices",
                other <= 1.05 * known,
            )
        )
    return found


def churn(num: int, *, seed: int = 0) -> list[Cluster]:
    """Draw clusters that follow each other: a device leaves or joins; every kind keeps a device."""
    chance = random.Random(seed)
    now, fresh = made_up_cluster(20, seed=seed), 0
    found: list[Cluster] = []
    while len(found) < num:
        if len(now.devices) > 15 and chance.random() < 0.5:
            left = now.without([chance.choice(now.names)])
            if len({kind for device in left.devices for kind in device.rates}) < KINDS:
                continue
            now = left
        else:
            kinds = sorted(chance.sample(range(KINDS), chance.randint(1, 2)))
            device = made_up_device(f"new{fresh}", kinds, chance)
            fresh += 1
            links = tuple(made_up_link(device.name, name, chance) for name in now.names)
            now = Cluster((*now.devices, device), (), (*now.pairs, *links), now.name)
        found.append(now)
    return found


def by_chance_and_earliest_end(
    problem: TaskProblem, hosts: list[int], wanted: float, most: int, chance: random.Random
) -> int:
    """Move random tasks to the device where each ends earliest; how many until ``wanted`` is reached."""
    now = list(hosts)
    best = makespan(problem, now, OptionGraph(problem, now).starts)
    graph = OptionGraph(problem, now)
    for step in range(most):
        if best <= wanted:
            return step
        task = chance.randrange(problem.num_tasks)
        graph.move_to(now)
        table = Timetable(problem)
        for other, host in enumerate(now):
            if other != task:
                table.put(other, host, graph.starts[other])
        device = min(problem.options[task], key=lambda d: table.earliest(task, d) + problem.cost[task][d])
        trial = list(now)
        trial[task] = device
        graph.move_to(trial)
        if graph.makespan <= best:
            best, now = graph.makespan, trial
    return most


def g5() -> list[Row]:
    torch.set_num_threads(1)
    graph, policy = made_up_graph(30, seed=5 * 10**6), load_policy()
    clusters = churn(50, seed=5)
    plan = place_tasks(graph, made_up_cluster(20, seed=5), options=TaskOptions(method="heft"))
    ratios, used, others = [], [], []
    for at, cluster in enumerate(clusters):
        problem = task_problem(graph, cluster)
        where = {one.task: one.device for one in plan.placed}
        names = {name: position for position, name in enumerate(cluster.names)}
        kept = [names.get(where[task.name], -1) for task in graph.tasks]
        kept = [host if host in problem.options[t] else -1 for t, host in enumerate(kept)]
        hosts, starts = heft(problem, kept)
        found = run_policy(problem, policy, hosts, steps=problem.num_tasks // 2, seed=at)
        best = min((hosts, starts), found, key=lambda pair: makespan(problem, *pair))
        reached = makespan(problem, *best)
        solved = makespan(problem, *heft(problem))
        ratios.append(reached / solved)
        used.append(problem.num_tasks // 2)
        others.append(
            by_chance_and_earliest_end(problem, hosts, reached, 10 * problem.num_tasks, random.Random(at))
        )
        plan = TaskPlan(problem.placed(*best), reached, 0)
    mean, rate = statistics.mean(ratios), statistics.mean(others) / statistics.mean(used)
    return [
        Row("G5", "50 events, n/2 evaluations each: within 3 % of HEFT anew", f"{mean:.4f}", mean <= 1.03),
        Row(
            "G5",
            "3 times fewer evaluations than random tasks to where they end first, for equal quality",
            f"{rate:.2f} times (at most 10n were tried)",
            rate >= 3,
        ),
    ]


def g6() -> list[Row]:
    torch.set_num_threads(1)
    ((graph, cluster),) = made_up(1, 100, 30)
    problem, policy = task_problem(graph, cluster), load_policy()
    hosts, _ = heft(problem)
    times = []
    for seed in range(7):
        begun = time.thread_time()
        run_policy(problem, policy, hosts, steps=20, seed=seed)
        times.append((time.thread_time() - begun) / 20)
    took = 1000 * statistics.median(times)
    said = msgspec.json.decode((Path(load_policy.__code__.co_filename).parent / "policy.json").read_bytes())[
        "trained"
    ]
    return [
        Row(
            "G6",
            "10 ms of CPU time a decision, 100 tasks x 30 devices",
            f"{took:.1f} ms; trained: {said}",
            took <= 10,
        )
    ]


def g7() -> list[Row]:
    wrong = missed = feasible = 0
    policy = load_policy()
    for seed in range(100):
        graph = made_up_graph(16, seed=seed, bytes=1000)
        cluster = made_up_cluster(6, seed=seed, bytes=3600, support=0.5)
        problem = task_problem(graph, cluster)
        try:
            fitting(problem)
        except InfeasibleError:
            continue
        feasible += 1
        try:
            plan = place_tasks(graph, cluster, options=TaskOptions(method="search", moves=500))
            check_task_plan(graph, cluster, plan)
            hosts, _ = run_policy(problem, policy, heft(problem)[0], steps=8, seed=seed)
            wrong += min(problem.free(hosts)) < 0
        except InfeasibleError:
            missed += 1
        except JudgeError:
            wrong += 1
    return [
        Row(
            "G7",
            "tight bytes: no violation, and a plan wherever CP-SAT finds an assignment",
            f"{feasible} of 100 feasible, {missed} missed, {wrong} violated",
            not wrong and not missed,
        )
    ]


def w1() -> list[Row]:
    tests = oracles("test_tasks_judge")
    refused = 0
    for seed in range(2000):
        try:
            check_task_plan(tests.GRAPH, tests.CLUSTER, tests.damaged(seed))
        except JudgeError:
            refused += 1
    return [Row("W1", "2,000 damaged plans of tasks are refused", f"{refused}", refused == 2000)]


def w2() -> list[Row]:
    equal = above = wrong = total = 0
    with Worker() as worker:
        for seed in range(500):
            graph, cluster = oracles().small_case(seed, bytes=seed % 2 == 1)
            best = oracles().brute_force(graph, cluster)
            if best is None:
                continue
            total += 1
            problem = task_problem(graph, cluster)
            first = heft(problem)
            hosts, starts, proved = solve_exactly(problem, *first, seconds=20, worker=worker)
            equal += proved and makespan(problem, hosts, starts) == best
            plan = place_tasks(graph, cluster, options=TaskOptions(method="search", moves=300))
            above += plan.makespan > best
            wrong += plan.lower_bound > best
    return [
        Row(
            "W2",
            "500 small cases: CP-SAT equals exhaustive search, and no bound is above it",
            f"{equal} of {total} feasible equal, {wrong} bounds above; the search misses {above}",
            equal == total and not wrong,
        )
    ]


def w3() -> list[Row]:
    took, ratios = [], []
    for seed in range(10):
        graph = made_up_graph(100, seed=seed, bytes=1000)
        cluster = made_up_cluster(20, seed=seed, bytes=20_000, support=0.4)
        plan = place_tasks(graph, cluster, options=TaskOptions(method="search"))
        lost = max(cluster.names, key=lambda name: sum(one.device == name for one in plan.placed))
        left = cluster.without([lost])
        begun = time.thread_time()
        again = place_tasks(graph, left, options=TaskOptions(method="search", seconds=1.2), replaces=plan)
        took.append(time.thread_time() - begun)
        check_task_plan(graph, left, again, replaces=plan)
        ratios.append(
            again.makespan / place_tasks(graph, left, options=TaskOptions(method="search")).makespan
        )
    return [
        Row(
            "W3",
            "a lost device: 100 tasks x 20 devices are planned anew within 2 s",
            f"{max(took):.2f} s at most; {statistics.mean(ratios):.3f} of a plan from nothing",
            max(took) <= 2,
        )
    ]
