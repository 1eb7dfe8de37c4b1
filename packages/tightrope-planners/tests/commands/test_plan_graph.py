"""The command ``plan`` on graphs of others: its JSON object, and the judge on the same files."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_foreign import STEP, by_the_rule, log

from tests.cli.command import run
from tightrope.core import Graph
from tightrope_planners.formats import random_layered, read_node_link

KEYS = {
    "feasible", "tdi_percent", "peak_bytes", "budget_bytes", "bound_percent", "gap", "proved",
    "cpu_seconds", "planner", "sequence",
}  # fmt: skip


def as_node_link(graph: Graph) -> dict[str, Any]:
    """Write a graph as the random layered graphs are: names out of order, and their order beside them."""
    names = [(7 * op.id) % len(graph.ops) for op in graph.ops]
    nodes = [
        {"name": names[op.id], "out_cost": graph.storages[op.id].bytes, "duration": op.ns} for op in graph.ops
    ]
    links = [{"0": names[read], "1": names[op.id]} for op in graph.ops for read in op.reads]
    return {
        "directed": True,
        "multigraph": False,
        "graph": {"name": graph.name, "order": names},
        "nodes": sorted(nodes, key=lambda node: node["name"]),
        "links": links,
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random layered graph in node-link JSON."""
    path = tmp_path_factory.mktemp("graphs") / "layered.json"
    path.write_text(json.dumps(as_node_link(random_layered(30, seed=2))))
    return path


def printed(*arguments: str | Path, code: int = 0) -> Any:
    found = run(*arguments)
    assert found.code == code, found.err
    return json.loads(found.out)


def peak_of(file: Path) -> int:
    graph = read_node_link(json.loads(file.read_text())).graph
    return by_the_rule(graph, list(range(len(graph.ops))))[0]


def test_the_sequence_re_evaluates_to_the_figures(file: Path, tmp_path: Path) -> None:
    plan = tmp_path / "layered.plan.json"
    found = printed("plan", file, "--budget", "85%", "--seed", "3", "-o", plan, "--json")
    assert set(found) >= KEYS
    source = read_node_link(json.loads(file.read_text()))
    op_of = {node: op for op, node in enumerate(source.nodes)}
    peak, ns = by_the_rule(source.graph, [op_of[node] for node in found["sequence"]])
    assert found["feasible"] is True
    assert found["peak_bytes"] == peak <= found["budget_bytes"] == -(-peak_of(file) * 85 // 100)
    assert found["tdi_percent"] == pytest.approx(100 * (ns / source.graph.base_ns - 1))
    assert 0 <= found["bound_percent"] <= found["tdi_percent"] + 1e-9
    assert found["gap"] == pytest.approx(found["tdi_percent"] - found["bound_percent"])
    assert found["cpu_seconds"] > 0
    held = run("judge", plan, "--graph", file)
    assert (held.code, held.err) == (0, "")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(as_node_link(random_layered(30, seed=5))))
    assert run("judge", plan, "--graph", other).code == 3


def test_a_budget_that_the_given_order_fits_is_proved(file: Path) -> None:
    for order in ("given", "free"):
        found = printed("plan", file, "--budget", str(peak_of(file)), "--order", order, "--json")
        assert (found["tdi_percent"], found["bound_percent"], found["gap"], found["proved"]) == (
            0,
            0,
            0,
            True,
        )


def test_a_refusal_tells_what_is_proved_from_what_was_not_found(file: Path) -> None:
    proved = printed("plan", file, "--budget", "1B", "--json", code=3)
    assert (proved["feasible"], proved["proved"], proved["sequence"]) == (False, True, [])
    assert proved["lower_bound_bytes"] > proved["budget_bytes"] == 1
    assert "no plan exists" in proved["error"]
    assert proved["op"].startswith("node ")
    low = proved["lower_bound_bytes"]
    if low < proved["smallest_found_bytes"]:
        open_ = printed("plan", file, "--budget", str(low), "--json", code=3)
        assert (open_["feasible"], open_["proved"]) == (False, False)
        assert "not ruled out" in open_["error"]


def test_with_a_cache_time_never_rises_with_the_budget(file: Path, tmp_path: Path) -> None:
    taken = []
    for percent in range(80, 101, 2):
        found = printed("plan", file, "--budget", f"{percent}%", "--cache", tmp_path / "known", "--json")
        taken.append(found["tdi_percent"])
        assert found["bound_percent"] <= found["tdi_percent"] + 1e-9
    assert taken == sorted(taken, reverse=True)
    assert taken[0] > taken[-1] == 0


def test_a_log_is_planned_and_judged(tmp_path: Path) -> None:
    file, plan = tmp_path / "step.log", tmp_path / "step.plan.json"
    file.write_bytes(log(*STEP))
    found = printed("plan", file, "--budget", "100%", "-o", plan, "--json")
    assert found["sequence"] == [0, 1, 2, 3]
    assert found["total_bytes"] == 100 + 40 + 24 + 8
    assert run("judge", plan, "--graph", file).code == 0


def test_what_cannot_be_read_or_priced_is_an_error_of_one_line(file: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"nodes": [], "links": []}')
    for arguments, said in (
        ((wrong, "--budget", "80%"), "$.nodes"),
        ((file, "--budget", "0.8"), "bare fraction|no unit|unit"),
        ((file, "--budget", "80%", "--machine", "laptop-16gb"), "leave out --machine"),
        ((file, "--budget", "80%", "--planner", "magic"), "no planner"),
        ((tmp_path / "absent.json", "--budget", "80%"), "absent.json"),
    ):
        found = run("plan", *arguments)
        assert found.code == 2
        assert any(part in found.err for part in said.split("|")), found.err
        assert len(found.err.splitlines()) == 1
