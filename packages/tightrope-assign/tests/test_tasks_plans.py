"""Plans of tasks: the simulator against a ticking clock, the methods against exhaustive search."""

import itertools
import random

import pytest
from assign_references import brute_force, small_case, ticking

from tightrope.core import InfeasibleError, TightropeError
from tightrope_assign.fit import fitting
from tightrope_assign.judge.tasks import check_task_plan
from tightrope_assign.tasks import (
    Cluster,
    PlaceDevice,
    PlaceTask,
    TaskEdge,
    TaskGraph,
    TaskOptions,
    place_tasks,
)
from tightrope_assign.tasks.bound import lower_bound
from tightrope_assign.tasks.exact import solve_exactly
from tightrope_assign.tasks.heft import by_rank, heft
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph
from tightrope_assign.tasks.problem import task_problem
from tightrope_assign.tasks.search import better_start, coarse_start, improve
from tightrope_assign.tasks.simulate import in_sequence, makespan, simulate

SEARCH = TaskOptions(method="search", moves=300)


@pytest.mark.parametrize("seed", range(200))
def test_the_simulator_equals_a_clock_that_ticks(seed: int) -> None:
    graph, cluster = small_case(seed, tasks=9, devices=3)
    problem = task_problem(graph, cluster)
    chance = random.Random(seed)
    hosts = [chance.choice(able) for able in problem.options]
    assert simulate(problem, hosts) == ticking(graph, cluster, hosts)


def test_a_sequence_in_the_order_of_starts_ends_no_later_than_the_queues() -> None:
    for seed in range(100):
        problem = task_problem(*small_case(seed, tasks=9, devices=3))
        hosts = [random.Random(seed).choice(able) for able in problem.options]
        starts = simulate(problem, hosts)
        place = {task: at for at, task in enumerate(problem.order)}
        order = sorted(range(problem.num_tasks), key=lambda t: (starts[t], place[t]))
        assert makespan(problem, hosts, in_sequence(problem, hosts, order)) <= makespan(
            problem, hosts, starts
        )


def test_a_gap_between_tasks_is_used() -> None:
    """``late`` waits for a message, and ``small``, of a lower rank, runs before it on the same device."""
    graph = TaskGraph(
        (
            PlaceTask("first", 10, needs="b"),
            PlaceTask("late", 100, needs="a"),
            PlaceTask("small", 5, needs="a"),
        ),
        (TaskEdge("first", "late", 50),),
    )
    one = PlaceDevice("one", rates={"a": 1e9})
    other = PlaceDevice("other", rates={"b": 1e9})
    problem = task_problem(graph, Cluster((one, other), links=task_link()))
    hosts, starts = heft(problem)
    assert by_rank(problem) == [0, 1, 2]
    assert (starts[2], starts[1]) == (0, 60)
    assert makespan(problem, hosts, starts) == 160


def task_link() -> tuple:
    from tightrope.core import DeviceLink

    return (DeviceLink("all", bandwidth=1e9),)


@pytest.mark.few(80)
@pytest.mark.parametrize("seed", range(500))
def test_bounds_are_below_and_search_above_exhaustive_search(seed: int) -> None:
    graph, cluster = small_case(seed, tasks=5 if seed % 10 == 0 else 4, bytes=seed % 2 == 1)
    best = brute_force(graph, cluster)
    if best is None:
        with pytest.raises(InfeasibleError):
            place_tasks(graph, cluster, options=SEARCH)
        return
    plan = place_tasks(graph, cluster, options=SEARCH)
    check_task_plan(graph, cluster, plan)
    assert plan.lower_bound <= best <= plan.makespan


def test_the_search_finds_the_best_plan_of_most_small_cases() -> None:
    found = []
    for seed in range(60):
        graph, cluster = small_case(seed)
        found.append(place_tasks(graph, cluster, options=SEARCH).makespan == brute_force(graph, cluster))
    assert sum(found) >= 57


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(0, 500, 5))
def test_constraint_programming_meets_exhaustive_search(seed: int) -> None:
    pytest.importorskip("ortools")
    graph, cluster = small_case(seed, bytes=seed % 2 == 1)
    best = brute_force(graph, cluster)
    if best is None:
        with pytest.raises(InfeasibleError, match="bytes"):
            task_problem_and_fitting(graph, cluster)
        return
    problem = task_problem(graph, cluster)
    hosts = fitting(problem)
    found, starts, proved = solve_exactly(problem, hosts, simulate(problem, hosts), seconds=20)
    assert (makespan(problem, found, starts), proved) == (best, True)


def task_problem_and_fitting(graph: TaskGraph, cluster: Cluster) -> None:
    fitting(task_problem(graph, cluster))


def test_every_method_gives_a_plan_that_the_judge_accepts() -> None:
    pytest.importorskip("ortools")
    graph, cluster = (
        made_up_graph(14, seed=3, bytes=1000),
        made_up_cluster(8, seed=3, bytes=7000, support=0.4),
    )
    spans = {}
    for method in ("heft", "search", "exact", "auto", "policy"):
        plan = place_tasks(graph, cluster, options=TaskOptions(method=method, seconds=5, moves=1000))
        check_task_plan(graph, cluster, plan)
        spans[method] = plan.makespan
    assert spans["exact"] == spans["auto"] <= spans["search"] <= spans["heft"] >= spans["policy"]


def test_a_search_is_never_worse_than_its_start_and_repeats() -> None:
    problem = task_problem(made_up_graph(60, seed=5), made_up_cluster(12, seed=5))
    start = heft(problem)
    one = improve(problem, *start, moves=800, seed=2)
    assert one == improve(problem, *start, moves=800, seed=2)
    assert makespan(problem, *one) < makespan(problem, *start)


def test_a_start_on_one_device_is_taken_where_messages_cost_more_than_work() -> None:
    """HEFT sends one of two tasks away, and pays for the message of their reader."""
    tasks = tuple(PlaceTask(name, 100) for name in ("a", "b", "c"))
    edges = (TaskEdge("a", "c", 150), TaskEdge("b", "c", 150))
    cluster = Cluster((PlaceDevice("one"), PlaceDevice("two")), links=task_link())
    problem = task_problem(TaskGraph(tasks, edges), cluster)
    first = heft(problem)
    assert makespan(problem, *first) == 350
    assert makespan(problem, *better_start(problem, *first)) == 300


def test_tasks_that_send_much_share_a_device_in_a_coarse_plan() -> None:
    """Two chains with heavy edges: every chain ends up on one device, and HEFT's plan is not better."""
    names = [f"{chain}{at}" for chain in "ab" for at in range(20)]
    tasks = tuple(PlaceTask(name, 100) for name in names)
    edges = tuple(TaskEdge(a, b, 10_000) for a, b in itertools.pairwise(names) if a[0] == b[0])
    cluster = Cluster((PlaceDevice("one"), PlaceDevice("two")), links=task_link())
    problem = task_problem(TaskGraph(tasks, edges), cluster)
    hosts, starts = coarse_start(problem, most=2)
    assert len(set(hosts[:20])) == len(set(hosts[20:])) == 1
    assert makespan(problem, hosts, starts) == 2000 == lower_bound(problem)[0]


@pytest.mark.few(40)
@pytest.mark.parametrize("seed", range(300))
def test_an_assignment_within_tight_bytes_is_found_wherever_there_is_one(seed: int) -> None:
    pytest.importorskip("ortools")
    graph, cluster = small_case(1000 + seed, tasks=6, devices=3, bytes=True, longest=3)
    tight = Cluster(
        tuple(PlaceDevice(d.name, max(9, d.bytes * 2 // 3), d.rate, d.rates) for d in cluster.devices),
        (),
        cluster.pairs,
    )
    from assign_references import assignments

    if next(assignments(graph, tight), None) is None:
        with pytest.raises(InfeasibleError):
            place_tasks(graph, tight, options=SEARCH)
    else:
        check_task_plan(graph, tight, place_tasks(graph, tight, options=SEARCH))


def test_a_lost_device_moves_its_tasks_alone_at_first_and_counts_bytes() -> None:
    graph, cluster = made_up_graph(30, seed=1, bytes=1000), made_up_cluster(10, seed=1, support=0.4)
    plan = place_tasks(graph, cluster, options=SEARCH)
    lost = max(cluster.names, key=lambda name: sum(one.device == name for one in plan.placed))
    kinds = {kind for device in cluster.without([lost]).devices for kind in device.rates}
    assert kinds == {f"k{at}" for at in range(5)}
    left = cluster.without([lost])
    kept = place_tasks(graph, left, options=TaskOptions(method="heft"), replaces=plan)
    check_task_plan(graph, left, kept, replaces=plan)
    moved = {one.task for one in plan.placed if one.device == lost}
    assert kept.moved_bytes == sum(task.bytes for task in graph.tasks if task.name in moved) > 0
    better = place_tasks(graph, left, options=SEARCH, replaces=plan)
    assert better.makespan <= kept.makespan


@pytest.mark.parametrize(
    ("tasks", "edges", "said"),
    [
        ((PlaceTask("a", 1), PlaceTask("a", 1)), (), "'a' is there twice"),
        ((PlaceTask("a", float("nan")),), (), "work=nan: give a number"),
        ((PlaceTask("a", 1, 99),), (), "takes 99 bytes; no device that can run it has more than 50"),
        ((PlaceTask("a", 1, needs="gpu"),), (), "needs 'gpu', which no device has"),
        ((PlaceTask("a", 1),), (TaskEdge("a", "b"),), "no task is called 'b'"),
        (
            (PlaceTask("a", 1), PlaceTask("b", 1), PlaceTask("c", 1)),
            (TaskEdge("a", "b"), TaskEdge("b", "c"), TaskEdge("c", "b")),
            "b -> c -> b is a cycle",
        ),
    ],
)
def test_graphs_that_cannot_be_are_refused(tasks: tuple, edges: tuple, said: str) -> None:
    cluster = Cluster((PlaceDevice("one", 50),))
    with pytest.raises(TightropeError, match=said.replace("(", r"\(")):
        place_tasks(TaskGraph(tasks, edges), cluster)


def test_too_many_bytes_for_all_devices_together_say_both_sums() -> None:
    graph = TaskGraph(tuple(PlaceTask(f"t{at}", 1, 40) for at in range(3)))
    with pytest.raises(InfeasibleError, match="120 bytes, and the devices have 100"):
        place_tasks(graph, Cluster((PlaceDevice("a", 50), PlaceDevice("b", 50)), task_link()))
