"""Rewritten models: proofs of rules (R1), extraction against search (R2), bytes of training steps (R3)."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.forms.nets import NETS, Net
from benchmarks.forms.prove import example_of, prove
from benchmarks.forms.terms import random_term
from benchmarks.forms.trained import far, isolated, smallest
from tightrope_forms.compiled import solve_part
from tightrope_forms.rewrite.extract import CostWeights, FormCosts, extract
from tightrope_forms.rewrite.front import ExportedValues, exported, sections
from tightrope_forms.rewrite.rules import RULES
from tightrope_forms.rewrite.search import backtracked, restarted, steepest
from tightrope_forms.rewrite.substitute import GraphForm


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
        "given": (form := GraphForm(costs, costs.given())).cost,
        "greedy": steepest(form).cost,
        "backtracking": backtracked(form).cost,
        "restarts": restarted(form, restarts=4).cost,
    }
    ours = GraphForm(costs, found.choice).cost  # on the layouts that its ops give, as those of peers
    shares = {peer: cost / ours for peer, cost in peers.items()}
    return {"set": name, "nodes": costs.graph.num_nodes, "status": found.status, "seconds": seconds, **shares}


def trainings(
    _: Path | None, console: Console, __: int, *, nets: Sequence[str] = tuple(NETS)
) -> list[dict[str, Any]]:
    """R3: train nets as they are and rewritten, in the same budget, and in the smallest that trains."""
    rows = []
    for name in nets:
        plain = isolated(name, "100%", rewrite=False)
        found = isolated(name, plain.budget, rewrite=True)
        both = [smallest(partial(isolated, name, rewrite=rewrite)) for rewrite in (False, True)]
        least, other = (one.run for one in both)
        row = {
            "net": name, "budget": plain.budget, "form": found.form, "kept": found.kept / plain.kept,
            "planned": found.planned / plain.planned, "observed": found.observed / plain.observed,
            "off": far(plain, found), "smallest_plain": least.budget, "smallest": other.budget / least.budget,
            "small_form": other.form, "refused": [one.refused for one in both], "seconds": found.seconds,
        }  # fmt: skip
        rows.append(row)
        shares = " ".join(f"{key} {row[key]:.3f}" for key in ("kept", "planned", "observed", "smallest"))
        said = f"{name:<10}{plain.budget:>12,} B  {shares}  off by {row['off']:.0e}"
        console.print(said, markup=False, soft_wrap=True)
        for what, one in (("in 100 %", found), ("smallest", other)):
            console.print(f"{what:>10}{one.budget:>12,} B  {one.form}", markup=False, soft_wrap=True)
    return rows
