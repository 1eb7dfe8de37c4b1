"""Rewritten models: proofs of rules (R1), extraction against search (R2), bytes of training steps (R3)."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.forms.nets import NETS, Net
from benchmarks.forms.prove import example_of, prove
from benchmarks.forms.search import backtracked, restarted, steepest
from benchmarks.forms.terms import random_term
from tightrope.core import Graph, InfeasibleError
from tightrope.plan import solve
from tightrope.run.compile import compile as planned_model
from tightrope.run.report import Report, report
from tightrope_forms.compiled import solve_part
from tightrope_forms.rewrite.extract import CostWeights, FormCosts, extract
from tightrope_forms.rewrite.front import ExportedValues, exported, sections
from tightrope_forms.rewrite.rules import RULES


def proofs(_: Path | None, console: Console, pairs: int) -> list[dict[str, Any]]:
    """R1: prove every rule on 100 examples a pair (``--pairs 10`` is a thousand)."""
    rows = []
    for name, rule in RULES.items():
        worst = prove(name, rule, example_of(name), times=100 * pairs)
        console.print(f"{name:<70}{worst:>10.1e}")
        rows.append({"rule": name, "times": 100 * pairs, "worst": worst})
    return rows


def searches(_: Path | None, console: Console, __: int) -> list[dict[str, Any]]:
    """R2: extract the unlike parts of all nets, and random terms; print peers' costs over ours."""
    parts = [(name, part) for name, make in NETS.items() for part in _parts(make)]
    terms = [("terms", random_term(seed, size)) for size in (8, 16, 32) for seed in range(8)]
    rows = [_beside_search(name, costs) for name, costs in (*parts, *terms) if costs.graph.applied]
    for what, inside in (
        ("parts of nets", [row for row in rows if row["set"] != "terms"]),
        ("random terms", rows[-len(terms) :]),
    ):
        proved = sum(row["status"] == "optimal" for row in inside)
        slowest, largest = max(row["seconds"] for row in inside), max(row["nodes"] for row in inside)
        console.print(
            f"{what}: {proved} of {len(inside)} proved optimal, of up to {largest} nodes, in {slowest:.1f} s"
        )
        for peer in ("given", "greedy", "backtracking", "restarts"):
            ratios = [row[peer] for row in inside]
            mean, low, high = math.exp(sum(map(math.log, ratios)) / len(ratios)), min(ratios), max(ratios)
            console.print(f"  {peer:<14} over ours: geometric mean {mean:.3f}x, {low:.3f}x to {high:.3f}x")
    return rows


def _parts(make: Callable[[], Net]) -> list[FormCosts]:
    torch.manual_seed(0)
    model, args = make()
    module = exported(model, args, {})
    unlike = {part.key: part for part in sections(module, ExportedValues(module))}
    solved = (solve_part(part, CostWeights(1.0, 1.0)) for part in unlike.values())
    return [one.costs for one in solved if one is not None]


def _beside_search(name: str, costs: FormCosts) -> dict[str, Any]:
    start = time.process_time()
    found = extract(costs)
    seconds = time.process_time() - start
    peers = {
        "given": costs.of(costs.given()),
        "greedy": steepest(costs)[1],
        "backtracking": backtracked(costs)[1],
        "restarts": restarted(costs, restarts=4)[1],
    }
    shares = {peer: cost / found.cost for peer, cost in peers.items()}
    return {"set": name, "nodes": costs.graph.num_nodes, "status": found.status, "seconds": seconds, **shares}


def trainings(_: Path | None, console: Console, __: int) -> list[dict[str, Any]]:
    """R3: train six nets through `tightrope.compile`, as they are and rewritten, with the same budgets."""
    rows = []
    for name, make in NETS.items():
        start = time.process_time()
        plain, right = _trained(make, "100%", rewrite=False)
        least = _smallest(plain.planned[0][0])
        for budget in (plain.budget, least + plain.budget - plain.planned[0][1].forecast.total):
            found, grads = _trained(make, budget, rewrite=True)
            graph, plan = found.planned[0]
            row = {
                "net": name, "budget": budget, "form": found.form, "far": _far(right, grads),
                "kept": _kept(graph) / _kept(plain.planned[0][0]),
                "peak": plan.forecast.total / plain.planned[0][1].forecast.total,
                "smallest": _smallest(graph) / least, "seconds": time.process_time() - start,
            }  # fmt: skip
            rows.append(row)
            shares = " ".join(f"{key} {row[key]:.3f}" for key in ("kept", "peak", "smallest"))
            console.print(f"{name:<10}{budget:>12,} B  {shares}  off by {row['far']:.0e}", markup=False)
            console.print(f"{'':<10}{found.form}", markup=False, soft_wrap=True)
    return rows


def _trained(make: Callable[[], Net], budget: str | int, *, rewrite: bool) -> tuple[Report, list[Tensor]]:
    """Run a training step; return its report, and the loss with the gradients."""
    torch.manual_seed(0)
    model, args = make()
    planned_model(model, budget=budget, rewrite=rewrite, progress=False)
    loss = model(*args)
    loss.backward()
    grads = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    return report(model), [loss.detach(), *grads]


def _kept(graph: Graph) -> int:
    """Add up what a forward leaves for its backward where nothing is computed again."""
    end = graph.parts[0].end
    made = {storage for op in graph.ops[:end] for storage in op.creates}
    read = {storage for op in graph.ops[end:] for storage in op.reads}
    return sum(one.size for one in graph.storages if one.id in made & read)


def _smallest(graph: Graph) -> int:
    """Find the smallest total of a plan."""
    try:
        return solve(graph, budget=1).forecast.total
    except InfeasibleError as error:
        return error.smallest_found or 0


def _far(right: list[Tensor], found: list[Tensor]) -> float:
    """Compare losses and gradients; differences are relative to the largest number of all gradients."""
    most = max(float(one.abs().max()) for one in right[1:])
    loss = abs(float(right[0] - found[0])) / abs(float(right[0]))
    return max(loss, *(float((a - b).abs().max()) / most for a, b in zip(right[1:], found[1:], strict=True)))
