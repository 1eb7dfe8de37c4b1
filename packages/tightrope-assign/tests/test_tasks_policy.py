"""The policy: what it may choose, its file, and that training changes it for the better."""

import random
from pathlib import Path

import msgspec
import pytest
import torch

from tightrope.core import PlanFileError, TightropeError
from tightrope_assign.tasks.gpnet import OptionGraph
from tightrope_assign.tasks.heft import heft
from tightrope_assign.tasks.made_up import made_up_cluster, made_up_graph
from tightrope_assign.tasks.policy import OptionBatch, PlacementPolicy, load_policy, run_policy, save_policy
from tightrope_assign.tasks.problem import TaskProblem, task_problem
from tightrope_assign.tasks.simulate import makespan
from tightrope_assign.tasks.train import TrainOptions, random_hosts, train_policy
from tightrope_assign.values.files import write_value


def problem(seed: int, tasks: int = 14, bytes: int = 0) -> TaskProblem:
    cluster = made_up_cluster(8, seed=seed, bytes=bytes * tasks // 2, support=0.4)
    return task_problem(made_up_graph(tasks, seed=seed, bytes=bytes), cluster)


def test_options_that_may_be_chosen_are_within_the_bytes_and_no_pivots() -> None:
    for seed in range(20):
        case = problem(seed, bytes=1000)
        hosts, _ = heft(case)
        graph = OptionGraph(case, hosts)
        able = graph.allowed(3)
        for node, allowed in enumerate(able):
            task, device = int(graph.node_task[node]), int(graph.node_device[node])
            moved = [device if at == task else host for at, host in enumerate(hosts)]
            assert allowed == (task != 3 and device != hosts[task] and min(case.free(moved)) >= 0)


def test_edges_are_those_of_gpnet() -> None:
    """Pivot parent to every option of the child; every other option of the parent to the child's pivot."""
    case = problem(1)
    graph = OptionGraph(case, heft(case)[0])
    batch = OptionBatch([graph])
    _, _, source, target, _ = batch.look()
    of = {int(place): node for node, place in enumerate(batch.nodes[0])}
    found = sorted((of[a], of[b]) for a, b in zip(source.tolist(), target.tolist(), strict=True))
    nodes = [
        [n for n in range(len(graph.node_task)) if graph.node_task[n] == t] for t in range(case.num_tasks)
    ]
    wanted = [
        (a, b)
        for child, rows in enumerate(case.parents)
        for parent, _ in rows
        for a in nodes[parent]
        for b in nodes[child]
        if a == graph.pivots[parent] or b == graph.pivots[child]
    ]
    assert found == sorted(wanted)


def test_a_batch_scores_every_graph_as_if_alone() -> None:
    torch.manual_seed(0)
    policy = PlacementPolicy()
    graphs = [OptionGraph(case, heft(case)[0]) for case in (problem(1), problem(2, 9), problem(3, 20))]
    batch = OptionBatch(graphs)
    together = policy(batch)
    for at, graph in enumerate(graphs):
        one = OptionBatch([graph])
        alone = policy(one)[torch.from_numpy(one.nodes[0])]
        torch.testing.assert_close(together[torch.from_numpy(batch.nodes[at])], alone)


def test_a_policy_keeps_bytes_and_is_never_worse_than_its_start() -> None:
    policy = load_policy()
    for seed in range(4):
        case = problem(seed, bytes=1000)
        hosts = random_hosts(case, random.Random(seed))
        before = OptionGraph(case, hosts).makespan
        found, starts = run_policy(case, policy, hosts, seed=seed)
        assert min(case.free(found)) >= 0
        assert makespan(case, found, starts) <= before


def test_a_policy_follows_a_cluster_that_changes() -> None:
    """Ten devices leave or join; n / 2 moves each stay within 3 % of HEFT anew, in the mean."""
    graph = made_up_graph(24, seed=9)
    policy, ratios = load_policy(), []
    cluster = made_up_cluster(14, seed=9, support=0.4)
    where = dict.fromkeys((task.name for task in graph.tasks), "")
    for event in range(10):
        if event % 2:
            joined = made_up_cluster(14, seed=9, support=0.4)
        else:
            joined = cluster.without([cluster.names[event]])
        case = task_problem(graph, joined)
        names = {name: at for at, name in enumerate(joined.names)}
        kept = [names.get(where[task.name], -1) for task in graph.tasks]
        start = heft(case, kept)
        found = run_policy(case, policy, start[0], steps=case.num_tasks // 2, seed=event)
        best = min(start, found, key=lambda pair: makespan(case, *pair))
        ratios.append(makespan(case, *best) / makespan(case, *heft(case)))
        where = {task.name: joined.names[host] for task, host in zip(graph.tasks, best[0], strict=True)}
    assert sum(ratios) / len(ratios) <= 1.03


def test_training_repeats_and_shortens_what_it_trains_on() -> None:
    options = TrainOptions(updates=3, batch=2, tasks=(6, 8), devices=(5, 6))
    one, two = train_policy(options), train_policy(options)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    torch.manual_seed(0)
    fresh = PlacementPolicy()
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), fresh.parameters(), strict=True))


def test_a_policy_comes_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_bytes(write_value(save_policy(PlacementPolicy(), "not at all")))
    policy = load_policy(str(file))
    assert save_policy(policy, "not at all") == msgspec.json.decode(
        file.read_bytes(), type=type(save_policy(policy, ""))
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2; this version reads 1"),
        ({"features": [3, 4]}, r"reads \[3, 4\] features"),
        ({"weights": {}}, "features"),
    ],
)
def test_policies_of_another_version_are_refused(tmp_path: Path, change: dict, said: str) -> None:
    file = tmp_path / "policy.json"
    tree = msgspec.to_builtins(save_policy(PlacementPolicy(), ""))
    file.write_bytes(msgspec.json.encode({**tree, **change}))
    with pytest.raises(PlanFileError, match=said):
        load_policy(str(file))


def test_weights_that_give_no_numbers_are_refused() -> None:
    policy, case = load_policy(), problem(1)
    with torch.no_grad():
        for one in policy.parameters():
            one.mul_(torch.inf)
    with pytest.raises(TightropeError, match="scores that are no numbers"):
        run_policy(case, policy, heft(case)[0], seed=0)
