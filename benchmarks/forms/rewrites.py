"""Rewritten models: proofs of rules (R1), extraction against search (R2), bytes of training steps (R3)."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.forms.nets import NETS, Net
from benchmarks.forms.prove import example_of, prove
from benchmarks.forms.search import backtracked, restarted, steepest
from benchmarks.forms.terms import random_term
from tightrope.capture import capture
from tightrope.plan.api import plan
from tightrope_forms.rewrite import rewrite
from tightrope_forms.rewrite.api import solve_part
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
    """R3: rewrite six nets; for what the given order needed before, and for the smallest budget."""
    rows = []
    for name, make in NETS.items():
        for budget in ("100%", None):
            torch.manual_seed(0)
            model, args = make()
            start = time.process_time()
            found = rewrite(model, args, budget=budget)
            spent = time.process_time() - start
            peak = plan(capture(found.model, *args), budget=found.whole[0]).forecast.total
            far = _far(model, found.model, args)
            row = {
                "net": name, "budget": budget, "peak": peak / found.whole[0], "seconds": spent, "far": far,
                "kept": found.kept / max(found.kept_before, 1) if found.rules else 1.0,
                "whole": found.whole[1] / found.whole[0], "smallest": found.smallest[1] / found.smallest[0],
                "rules": found.rules,
            }  # fmt: skip
            rows.append(row)
            shares = " ".join(f"{key} {row[key]:.3f}" for key in ("kept", "whole", "peak", "smallest"))
            console.print(f"{name:<10}{budget or 'smallest':<9}{shares}  off by {far:.0e}, {spent:.0f} s")
    return rows


def _far(model: nn.Module, other: nn.Module, args: Sequence[Tensor]) -> float:
    """Compare losses and gradients; differences are relative to the largest number of all gradients."""
    state = torch.get_rng_state()
    found = []
    for one in (model, other):
        torch.set_rng_state(state)
        loss = one(*args)
        wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found.append([loss.detach(), *torch.autograd.grad(loss, wanted)])
    most = max(float(one.abs().max()) for one in found[0][1:])
    loss = abs(float(found[0][0] - found[1][0])) / abs(float(found[0][0]))
    pairs = zip(found[0][1:], found[1][1:], strict=True)
    return max(loss, *(float((one - two).abs().max()) / most for one, two in pairs))
