"""Plans of graph messages: the judge refuses damaged ones; wrong graphs and limits get one sentence."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace as changed

from benchmarks.graphs.damaged import damaged
from benchmarks.graphs.made import clustered
from tightrope.core import InfeasibleError, JudgeError, TightropeError
from tightrope_ranks.graphs import GraphOptions, plan
from tightrope_ranks.graphs.divide import divide, routes_of
from tightrope_ranks.judge.graphs import check_graph_plan
from tightrope_ranks.values.graphs import GraphPlan

GRAPH = clustered(2, num=400, clusters=4, columns=12, mixed=0.2)
GAT = GraphOptions(model="gat", bits=4, hidden=16)


def tightest(ranks: int, options: GraphOptions) -> int:
    with pytest.raises(InfeasibleError) as refused:
        plan(GRAPH, ranks, replace(options, limit=1))
    assert f"smallest limit that works is {refused.value.smallest_found} bytes" in str(refused.value)
    return int(refused.value.smallest_found or 0)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_plans_are_accepted_with_any_limit_that_is_named(model: str, ranks: int) -> None:
    options = replace(GAT, model=model)
    free = plan(GRAPH, ranks, options)
    check_graph_plan(GRAPH.edges, free)
    assert free.divided_by in ("metis", "given")
    if ranks > 1:
        smallest = tightest(ranks, options)
        assert smallest < max(free.peaks)
        for limit in np.linspace(smallest, max(free.peaks), 5).astype(int).tolist():
            made = plan(GRAPH, ranks, replace(options, limit=limit))
            check_graph_plan(GRAPH.edges, made)
            assert max(made.peaks) <= limit
        with pytest.raises(InfeasibleError, match="cannot be held"):
            plan(GRAPH, ranks, replace(options, limit=smallest - 1))


@pytest.mark.parametrize("limited", [False, True])
def test_two_hundred_damaged_plans_are_refused(limited: bool) -> None:
    made = plan(GRAPH, 3, replace(GAT, limit=tightest(3, GAT) if limited else None))
    rng = random.Random(limited)
    for number in range(200):
        wrong = damaged(made, rng)
        assert wrong != made, number
        with pytest.raises(JudgeError):
            check_graph_plan(GRAPH.edges, wrong)


def with_message(made: GraphPlan, **changes: Any) -> GraphPlan:
    return changed(made, messages=(changed(made.messages[0], **changes), *made.messages[1:]))


BROKEN: dict[str, tuple[Callable[[GraphPlan], GraphPlan], str]] = {
    "a width that is none": (
        lambda made: with_message(made, widths=b"\x03" + made.messages[0].widths[1:]),
        "needs one of the widths",
    ),
    "the bytes of another width": (
        lambda made: with_message(made, widths=b"\x08" + made.messages[0].widths[1:]),
        "claims .* bytes; its rows have",
    ),
    "a row twice": (
        lambda made: changed(
            made,
            routes=(
                changed(made.routes[0], rows=(made.routes[0].rows[0], *made.routes[0].rows)),
                *made.routes[1:],
            ),
        ),
        "goes 2 times from rank 0 to 1",
    ),
    "a row left out": (
        lambda made: changed(
            made, routes=(changed(made.routes[0], rows=made.routes[0].rows[1:]), *made.routes[1:])
        ),
        "rank 1 needs row .* of rank 0; no route has it",
    ),
    "a message twice": (
        lambda made: changed(made, messages=(*made.messages, made.messages[0])), "is there twice"
    ),
    "a message left out": (lambda made: changed(made, messages=made.messages[1:]), "1 messages are missing"),
    "over the bytes": (
        lambda made: changed(made, limit=max(made.peaks) - 1), "bytes are held; the limit is"
    ),
    "fewer bytes than are held": (
        lambda made: changed(made, peaks=tuple(one - 1 for one in made.peaks)), "played, it takes"
    ),
    "a node without an owner": (
        lambda made: changed(made, owner=made.owner[:390]),
        "an edge names node 399; 390 have owners",
    ),
    "a bound above": (lambda made: changed(made, bound=(2.0, 1.0)), "cannot be right"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_the_judge_says_what_is_wrong(name: str) -> None:
    broken, says = BROKEN[name]
    with pytest.raises(JudgeError, match=says):
        check_graph_plan(GRAPH.edges, broken(plan(GRAPH, 2, GAT)))


def test_plans_can_be_written_and_read() -> None:
    made = plan(GRAPH, 2, GAT)
    assert msgspec.json.decode(msgspec.json.encode(made), type=GraphPlan) == made


def test_no_part_of_a_tiny_graph_is_empty_and_clusters_are_found() -> None:
    graph = clustered(1, num=1200, clusters=4, mixed=0.02)
    owner, name = divide(graph, 4)
    assert (name, np.bincount(owner).min() >= 280) == ("metis", True)
    assert float((owner[graph.edges[0]] != owner[graph.edges[1]]).mean()) < 0.05  # at random it is 0.75
    for ranks in (2, 5, 9):
        tiny = clustered(1, num=9, clusters=1, classes=1, degree=1)
        assert np.bincount(divide(tiny, ranks)[0], minlength=ranks).min() >= 1


def test_without_metis_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(TightropeError, match=r"pip install 'tightrope-ranks\[graphs\]', or give parts"):
        plan(GRAPH, 2)
    assert plan(GRAPH, 2, parts=np.arange(400) % 2).divided_by == "given"


def test_routes_are_those_of_the_edges_one_by_one() -> None:
    owner, _ = divide(GRAPH, 3)
    needed: dict[tuple[int, int], set[int]] = {}
    for a, b in GRAPH.edges.T.tolist():
        if owner[a] != owner[b]:
            needed.setdefault((int(owner[a]), int(owner[b])), set()).add(a)
    assert {(one.source, one.target): set(one.rows) for one in routes_of(GRAPH, owner, 3)} == needed


def as_data(**changes: Any) -> SimpleNamespace:
    """Give a graph as torch_geometric has it, with something changed."""
    values: dict[str, Any] = {
        "edge_index": torch.from_numpy(GRAPH.edges.copy()), "x": torch.from_numpy(GRAPH.features.copy()),
        "y": torch.from_numpy(GRAPH.labels.copy()), "train_mask": torch.from_numpy(GRAPH.train.copy()),
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def test_tensors_and_arrays_give_the_same_plan() -> None:
    assert plan(as_data(), 2, GAT, parts=np.arange(400) % 2) == plan(
        replace(GRAPH, validate=GRAPH.train, test=GRAPH.train), 2, GAT, parts=(np.arange(400) % 2).tolist()
    )


def nowhere() -> SimpleNamespace:
    data = as_data()
    data.edge_index[1, 7] = 400
    return data


def not_finite(value: float) -> SimpleNamespace:
    data = as_data()
    data.x[5, 3] = value
    return data


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an edge to nowhere": (nowhere, "edge 7 goes from .* to 400; nodes are 0 to 399"),
    "an edge from before": (lambda: as_data(edge_index=torch.tensor([[-1], [0]])), "edge 0 goes from -1"),
    "edges of floats": (lambda: as_data(edge_index=torch.zeros(2, 3)), "must be .2, E. of integers"),
    "edges by rows": (lambda: as_data(edge_index=torch.zeros(5, 2, dtype=torch.long)), "must be .2, E."),
    "NaN": (lambda: not_finite(float("nan")), "not finite in row 5"),
    "infinity": (lambda: not_finite(float("inf")), "not finite in row 5"),
    "huge": (lambda: as_data(x=np.full((400, 2), 1e300)), "beyond 32-bit floats"),
    "words": (lambda: as_data(x=np.full((400, 2), "a")), "must be real numbers"),
    "no features": (lambda: as_data(x=None), "has no x"),
    "flat features": (lambda: as_data(x=torch.zeros(400)), "one row of features per node"),
    "no node": (lambda: as_data(x=torch.zeros(0, 4)), "one row of features per node"),
    "labels of others": (lambda: as_data(y=torch.zeros(399, dtype=torch.long)), "y has shape"),
    "labels below 0": (lambda: as_data(y=torch.full((400,), -3)), "labels count from 0"),
    "too many labels": (lambda: as_data(y=torch.full((400,), 10**12)), "at most 65535 is read"),
    "a mask of numbers": (lambda: as_data(train_mask=torch.zeros(400)), "must be .400,. of bool"),
    "an empty mask": (lambda: as_data(train_mask=torch.zeros(400, dtype=torch.bool)), "nothing to train on"),
    "a file": (lambda: "graph.pt", "has no edge_index"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_graphs_are_refused_in_one_sentence(name: str) -> None:
    make, says = WRONG[name]
    with pytest.raises(TightropeError, match=says):
        plan(make(), 2)


@pytest.mark.parametrize(
    ("ranks", "options", "parts", "says"),
    [
        (0, {}, None, "cannot be divided over 0 ranks"),
        (401, {}, None, "cannot be divided over 401 ranks"),
        (2, {}, np.zeros(400, int), "part 1 of 2 has no node"),
        (2, {}, np.full(400, 2), "integers from 0 to 1"),
        (2, {}, np.zeros(3, int), "parts must be 400"),
        (2, {"model": "gin"}, None, "no model 'gin'"),
        (2, {"model": ["gcn"]}, None, "no model"),
        (2, {"bits": 3}, None, "bits is 3"),
        (2, {"epochs": 0}, None, "epochs is 0"),
        (2, {"layers": 9}, None, "layers is 9"),
        (2, {"hidden": 1.5}, None, "hidden is 1.5"),
        (2, {"weight": 1.0}, None, "weight is 1.0; it must be above 0"),
        (2, {"weight": "much"}, None, "weight is 'much'"),
        (2, {"rate": float("nan")}, None, "rate is nan"),
        (2, {"seed": -1}, None, "seed is -1"),
        (2, {"limit": "a lot"}, None, "limit 'a lot' is not an amount"),
        (2, {"limit": -5}, None, "limit"),
        ("two", {}, None, "over 'two' ranks"),
    ],
)
def test_wrong_options_are_refused(ranks: Any, options: dict[str, Any], parts: Any, says: str) -> None:
    with pytest.raises(TightropeError, match=says):
        plan(GRAPH, ranks, GraphOptions(**options), parts=parts)
