"""Graphs of others: the published memory rule, every reader, and files that must be refused."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.core import Flag, Graph, Phase, PlanFileError, Schedule, TightropeError
from tightrope.core.codec import check_graph
from tightrope.formats import load_source, read_source
from tightrope.lower import lower, peak_bytes, walked
from tightrope.plan import base_schedule, lower_bound
from tightrope.plan.model import build
from tightrope.plan.schedule import expand, useful
from tightrope_planners.evict.log import LoggedOp, Released, StepEnd
from tightrope_planners.formats import (
    POET_NETWORKS,
    poet_network,
    random_layered,
    read_dtr_log,
    read_node_link,
)
from tightrope_planners.formats.eviction import log_of_graph, read_eviction_log, write_eviction_log
from tightrope_planners.formats.node_link import MAX_NODES

PUBLISHED = {
    "random_layered_n100_w0.27.json": (100, 236, 46_319, 47_769),
    "random_layered_n250_w0.43.json": (250, 944, 146_840, 125_569),
    "fcn8_vgg_b32_train.json": (73, 149, 13_484_795_520, 10_275_337_746_048),
    "resnet50_b256_train.json": (353, 751, 38_059_356_160, 405_670),
}


def by_the_rule(graph: Graph, sequence: list[int]) -> tuple[int, int]:
    """Evaluate a sequence of nodes by the published rule: peak and duration."""
    last, latest = list(range(len(sequence))), dict[int, int]()
    for event, node in enumerate(sequence):
        for read in graph.ops[node].reads:
            last[latest[read]] = event
        latest[node] = event
    peak = max(
        sum(graph.storages[n].bytes for k, n in enumerate(sequence) if k <= event <= last[k])
        for event in range(len(sequence))
    )
    return peak, sum(graph.ops[node].ns for node in sequence)


def ours(graph: Graph, schedule: Schedule) -> tuple[int, int]:
    return peak_bytes(lower(graph, schedule)), sum(graph.op(o).ns for o in schedule.computes())


def node_link(nodes: list[tuple[int, int]], links: list[tuple[int, int]], **more: Any) -> dict[str, Any]:
    rows = [{"id": i, "cost_ram": size, "cost_cpu": time} for i, (size, time) in enumerate(nodes)]
    return {"nodes": rows, "links": [{"source": a, "target": b} for a, b in links], **more}


@pytest.mark.parametrize("seed", range(25))
def test_bytes_and_time_follow_the_published_rule_with_and_without_recomputation(seed: int) -> None:
    draw = random.Random(seed)
    graph = random_layered(30, seed=seed)
    assert ours(graph, base_schedule(graph)) == by_the_rule(graph, list(range(30)))
    window = build(graph).window
    possible = [(t, u) for u, (first, last) in enumerate(window) for t in range(first, last + 1)]
    schedule = expand(graph, useful(graph, draw.sample(possible, 12)))
    found = ours(graph, schedule)
    assert found == by_the_rule(graph, list(schedule.computes()))
    judged = walked(graph, schedule)
    assert found == (judged.peak, judged.ns)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_graphs_have_the_published_figures(name: str) -> None:
    folder = os.environ.get("TIGHTROPE_DATA", "")
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip("set TIGHTROPE_DATA to the folder of the published graphs")
    graph = read_source(Path(folder) / name).graph
    check_graph(graph)
    num_links = sum(len(op.reads) for op in graph.ops)
    found = (len(graph.ops), num_links, *ours(graph, base_schedule(graph)))
    assert found == PUBLISHED[name]
    assert found[2:] == by_the_rule(graph, list(range(len(graph.ops))))


def test_training_graphs_keep_their_ids_names_and_phases() -> None:
    nodes = [
        {"id": 4, "name": "conv", "cost_ram": 10, "cost_cpu": 3, "backward": False},
        {"id": 9, "name": "conv_grad", "cost_ram": 20, "cost_cpu": 6.0, "backward": True},
    ]
    found = read_node_link({"nodes": nodes, "links": [{"source": 4, "target": 9}], "graph": {"name": "net"}})
    assert found.nodes == (4, 9)
    assert (found.graph.name, found.graph.ops[1].target, found.graph.ops[1].ns) == ("net", "conv_grad", 6)
    assert [op.phase for op in found.graph.ops] == [Phase.FORWARD, Phase.BACKWARD]
    assert [storage.size for storage in found.graph.storages] == [10, 20]
    assert not found.placed


def test_random_graphs_are_read_in_their_own_order() -> None:
    nodes = [{"name": i, "out_cost": 10 * (i + 1), "duration": i} for i in range(3)]
    tree = {"nodes": nodes, "links": [{"0": 0, "1": 2}, {"0": 2, "1": 1}], "graph": {"order": [0, 2, 1]}}
    found = read_node_link(tree)
    assert found.nodes == (0, 2, 1)
    assert [op.reads for op in found.graph.ops] == [(), (0,), (1,)]
    assert [storage.bytes for storage in found.graph.storages] == [10, 30, 20]


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (node_link([], []), "nodes"),
        ({"nodes": 3, "links": []}, r"\$.nodes = 3"),
        ({"nodes": [1], "links": []}, "array of objects"),
        (node_link([(1, 1)], [], directed=False), "directed"),
        (node_link([(1, 1)], [], multigraph=True), "directed"),
        (node_link([(1, 1), (2, 2)], [(1, 0)]), r"\$.links\[0\].*along the order"),
        (node_link([(1, 1), (2, 2)], [(1, 1)]), "along the order"),
        (node_link([(1, 1), (2, 2)], [(0, 1), (0, 1)]), "only edge"),
        (node_link([(1, 1)], [(0, 7)]), r"\$.links\[0\].target = 7"),
        (node_link([(-1, 1)], []), r"\$.nodes\[0\].cost_ram = -1"),
        (node_link([(1, 0.5)], []), "scale fractions up"),  # type: ignore[list-item]
        (node_link([(True, 1)], []), "cost_ram = True"),
        (node_link([(2**61, 1), (2**61, 1), (2**61, 1)], []), "in all"),
        (node_link([(1, 1)], [], graph={"order": [0, 0]}), "each of the 1 nodes once"),
        (node_link([(1, 1)], [], graph={"order": 5}), r"\$.graph.order = 5"),
        (node_link([(1, 1)], [], graph=[]), r"\$.graph"),
        ({"nodes": [{"cost_ram": 1}], "links": []}, "an id or a name"),
        ({"nodes": [{"id": [1]}], "links": []}, "an integer or a text"),
        ({"nodes": [{"id": 1}, {"id": 1}], "links": []}, "one node alone"),
        ({"nodes": [{"id": 1, "cost_cpu": 1}], "links": []}, "cost_ram or out_cost"),
        ({"nodes": [{"id": 1}], "links": [{"a": 1}]}, "one node alone|source and target|cost_ram"),
    ],
)
def test_malformed_node_link_files_are_refused(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanFileError, match=said):
        load_source(json.dumps(tree).encode())


def test_sizes_are_limited() -> None:
    with pytest.raises(PlanFileError, match=f"at most {MAX_NODES} items"):
        read_node_link({"nodes": [{"id": 0}] * (MAX_NODES + 1), "links": []})


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=5))
@settings(max_examples=50, deadline=None)
def test_nothing_but_a_plan_file_error_escapes(value: object) -> None:
    for tree in ({"nodes": value, "links": []}, {"nodes": [{"id": 0, "cost_ram": value}], "links": value}):
        with pytest.raises(PlanFileError):
            load_source(json.dumps(tree).encode())


def log(*entries: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps(entry) for entry in entries).encode()


def tensor(name: str, memory: int, alias: int | None = None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(memory)}]
    return rows if alias is None else [*rows, {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)}]


def call(target: str, arguments: list[str], **results: tuple[int, int]) -> list[dict[str, Any]]:
    head = {"INSTRUCTION": "CALL", "NAME": target, "ARGS": arguments, "RESULT": list(results), "TIME": "7"}
    return [head, *(row for name, (size, alias) in results.items() for row in tensor(name, size, alias))]


def release(name: str) -> dict[str, Any]:
    return {"INSTRUCTION": "RELEASE", "NAME": name}


STEP = [
    {"INSTRUCTION": "CONSTANT", "NAME": "warm"},
    *tensor("warm", 5),
    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"},
    {"INSTRUCTION": "CONSTANT", "NAME": "x"},
    *tensor("x", 100),
    *call("linear", ["x"], a=(40, -1), b=(24, -1)),
    *call("view", ["a"], v=(40, 0)),
    {"INSTRUCTION": "MUTATE", "NAME": "relu_", "ARGS": ["v", "x"], "MUTATE": [0], "TIME": "3"},
    release("a"),
    {"INSTRUCTION": "COPY", "DST": "c", "SRC": "b"},
    release("b"),
    *call("mul_backward", ["v", "c"], d=(8, -1)),
    {"INSTRUCTION": "COPY_FROM", "DST": "c", "SRC": "d"},
    release("v"),
    release("never_seen"),
]


def test_a_log_keeps_outputs_views_mutations_and_what_is_never_released() -> None:
    found = load_source(log(*STEP), name="step")
    graph = found.graph
    check_graph(graph)
    assert (found.format, found.placed, graph.name) == ("dtr-log", False, "step")
    assert [op.target for op in graph.ops] == ["linear", "view", "relu_", "mul_backward"]
    assert [(s.size, s.external) for s in graph.storages] == [
        (100, True), (40, False), (24, False), (8, False),
    ]  # fmt: skip
    linear, view, relu, backward = graph.ops
    assert (linear.creates, view.reads, view.creates, view.ns) == ((1, 2), (1,), (), 7)
    assert (relu.reads, relu.mutates, relu.flags) == ((0, 1), (1,), Flag.IN_PLACE)
    assert (backward.reads, backward.phase) == ((1, 2), Phase.BACKWARD)
    assert [s.resident_at_end for s in graph.storages] == [False, False, False, True]
    walked(graph, base_schedule(graph))
    assert lower_bound(graph)[0] == 100 + 40 + 24 + 8


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"INSTRUCTION": "JUMP"}], "line 1: INSTRUCTION = 'JUMP'"),
        ([{"INSTRUCTION": "CONSTANT", "NAME": "x"}], "MEMORY of 'x'"),
        ([{"INSTRUCTION": "CONSTANT", "NAME": "x"}, *tensor("y", 1)], "line 2: .* MEMORY of 'x'"),
        ([{"INSTRUCTION": "CONSTANT", "NAME": "x"}, *tensor("x", -1)], "MEMORY = -1"),
        (call("f", ["x"], y=(1, -1)), "ARGS = 'x': must be a tensor"),
        (call("f", [], y=(1, 0)), "ALIAS = 0"),
        ([*call("f", [], y=(1, -1)), *call("g", [], y=(1, -1))], "line 4: .*not taken|not taken"),
        (call("f", [], y=(1, -2)), "ALIAS = '-2'|ALIAS = -2"),
        ([*call("f", [], y=(1, -1)), {"INSTRUCTION": "COPY", "DST": "z", "SRC": "q"}], "SRC = 'q'"),
        ([{"INSTRUCTION": "MUTATE", "NAME": "f", "ARGS": [], "MUTATE": [0], "TIME": "1"}], "MUTATE = "),
        ([{"INSTRUCTION": "CALL", "NAME": "f", "ARGS": [], "RESULT": [], "TIME": "x"}], "TIME = 'x'"),
        ([{"INSTRUCTION": "CALL", "NAME": 3, "ARGS": [], "RESULT": [], "TIME": "1"}], "NAME = 3"),
        ([{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}], "hold a CALL"),
    ],
)
def test_malformed_logs_are_refused(entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(PlanFileError, match=said):
        read_dtr_log(log(*entries))


def test_a_log_line_that_is_not_an_object_is_refused() -> None:
    for line in (b"[1]", b"{", b'{"INSTRUCTION": NaN}', b"\xff"):
        with pytest.raises(PlanFileError, match=r"line 2|finite"):
            read_dtr_log(
                log(*call("f", []))[:0] + log({"INSTRUCTION": "ANNOTATE", "ANNOTATION": "X"}) + b"\n" + line
            )


@pytest.mark.parametrize(("num_ops", "width", "layers"), [(100, 0.27, 17), (250, 0.43, 19), (1000, 0.31, 48)])
def test_generated_graphs_have_the_published_shape(num_ops: int, width: float, layers: int) -> None:
    graph = random_layered(num_ops, seed=1, width=width)
    check_graph(graph)
    read = {storage for op in graph.ops for storage in op.reads}
    assert all(op.reads for op in graph.ops[1:])
    assert len(read) >= 0.98 * num_ops
    published = {100: 236, 250: 944, 1000: 5875}[num_ops]
    assert abs(sum(len(op.reads) for op in graph.ops) - published) < 0.15 * published
    sizes = [storage.bytes for storage in graph.storages]
    assert all(size % 10 == 0 and 10 <= size <= 8200 for size in sizes)
    assert abs(sum(sizes) / num_ops - 2000) < 350
    times = [op.ns for op in graph.ops]
    assert times[0] == times[-1] == 0
    assert all(1 <= ns <= 999 for ns in times[1:-1])
    depth = [0] * num_ops
    for op in graph.ops:
        depth[op.id] = max((depth[r] + 1 for r in op.reads), default=0)
    assert 0.8 * layers <= max(depth) <= 1.5 * layers


def test_generated_graphs_follow_their_seed_and_refuse_other_arguments() -> None:
    assert random_layered(50, seed=7) == random_layered(50, seed=7) != random_layered(50, seed=8)
    for wrong in ({"num_ops": 3}, {"num_ops": 10**6}, {"num_ops": 50, "width": 1.5}):
        with pytest.raises(TightropeError):
            random_layered(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POET_NETWORKS)
@pytest.mark.parametrize("parameters", [False, True])
def test_poet_networks_are_well_formed_and_their_gradients_have_the_right_shape(
    name: str, parameters: bool
) -> None:
    graph = poet_network(name, parameters=parameters)
    check_graph(graph)
    walked(graph, base_schedule(graph))
    maker = {storage: op for op in graph.ops for storage in op.creates}
    for op in graph.ops:
        base = op.target.removesuffix("_backward")
        if op.phase is Phase.FORWARD:
            continue
        resident = [s for s in op.creates if graph.storages[s].resident_at_end]
        assert bool(resident) <= (parameters or base == "cross_entropy")
        if base == "relu":
            (made,) = op.creates
            saved = [s for s in op.reads if maker[s].phase is Phase.FORWARD]
            assert [graph.storages[s].bytes for s in saved] == [graph.storages[made].bytes]
    weights = sum(s.bytes for s in graph.storages if s.external and s.kind == "parameter")
    assert (weights > 0) == parameters


def test_skip_connections_have_their_gradients_added_up() -> None:
    graph = poet_network("resnet18_cifar")
    added = [op for op in graph.ops if op.target == "add_gradients"]
    assert len(added) >= 6
    assert all(len({graph.storages[s].bytes for s in (*op.reads, *op.creates)}) == 1 for op in added)
    joules = sum(op.ns for op in graph.ops) / 1e9 * 6.37e6 / 40.1e6
    assert joules == pytest.approx(7.89, rel=0.01)


def test_dropout_is_replayed_from_its_mask() -> None:
    graph = poet_network("vgg16_cifar")
    (first, second) = graph.variants
    for replay in (first, second):
        base = next(op for op in graph.ops if op.variant == replay.id)
        assert base.flags == Flag.RANDOM
        assert set(replay.creates) < set(base.creates)
        assert replay.ns == base.ns
    with pytest.raises(TightropeError, match="there are: linear"):
        poet_network("lenet")
    with pytest.raises(TightropeError, match="batch 0"):
        poet_network("linear", batch=0)


def test_a_log_of_the_dtr_simulator_runs_as_steps_of_eviction() -> None:
    lines = [
        {"INSTRUCTION": "CONSTANT", "NAME": "x"},
        {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"},
        {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["x"], "RESULT": ["y"], "TIME": "5"},
        {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "64"},
        {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"},
    ]
    graph = read_dtr_log("\n".join(map(json.dumps, lines)).encode()).graph
    log = log_of_graph(graph, num_steps=2)
    assert log.sizes == (64, 64, 64)
    assert [type(event) for event in log.events] == [LoggedOp, Released, StepEnd] * 2
    assert read_eviction_log(write_eviction_log(log)) == log
