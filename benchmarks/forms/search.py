"""Searches by one rule after another, on a net of branches as one part (R4)."""

import time
from functools import partial
from typing import Any, Final

import torch
from rich.console import Console
from torch import nn

from benchmarks.forms.branches import BranchedBlock
from tightrope_forms.compiled import Solved, equal_part
from tightrope_forms.rewrite.agent import train, walked
from tightrope_forms.rewrite.egraph import saturate
from tightrope_forms.rewrite.extract import CostWeights, FormCosts, extract
from tightrope_forms.rewrite.front import ExportedValues, exported, sections
from tightrope_forms.rewrite.rules import RULES
from tightrope_forms.rewrite.search import backtracked, restarted, steepest
from tightrope_forms.rewrite.substitute import GraphForm, searched

_EPISODES: Final = 200


def net_costs(depth: int, *, width: int = 64, size: int = 56) -> FormCosts:
    """Price so many RepVGG blocks for inference, as one part."""
    torch.manual_seed(0)
    model = nn.Sequential(*(BranchedBlock(width) for _ in range(depth))).eval()
    with torch.no_grad():
        whole = exported(model, (torch.randn(1, width, size, size),), {})
    (part,) = sections(whole, ExportedValues(whole, frozen=True), shortest=1 << 30)
    roots = [part.classes[one] for one in part.roots]
    return FormCosts(part.graph, roots, [], CostWeights(1.0, 0.0), frozen=True)


def best_known(depth: int, **sizes: int) -> tuple[float, str]:
    """Extract the cheapest form of so many blocks."""
    costs = net_costs(depth, **sizes)
    saturate(costs.graph, RULES, most_nodes=10_000)
    found = extract(FormCosts(costs.graph, costs.roots, [], costs.weights, frozen=True), seconds=60.0)
    return found.cost, found.status


def walks(console: Console, *, seeds: int = 2) -> list[dict[str, Any]]:
    """Print what searches of a net of four blocks reach, and what the agent does then with eight."""
    forms = {depth: GraphForm(costs := net_costs(depth), costs.given()) for depth in (4, 8)}
    best = {depth: best_known(depth) for depth in forms}
    rows: list[dict[str, Any]] = []

    def say(name: str, depth: int, found: GraphForm, start: float, more: str = "", **known: Any) -> None:
        gain = (forms[depth].cost - found.cost) / (forms[depth].cost - best[depth][0])
        seconds = time.process_time() - start
        rows.append({"search": name, "depth": depth, "gain": gain, "seconds": seconds, **known})
        console.print(f"{name:<24} depth {depth}: {gain:>6.1%} of the gain, {seconds:>5.1f} CPU s{more}")

    for depth, (cost, status) in best.items():
        console.print(f"depth {depth}: {forms[depth].cost:.3f} as captured, best known {cost:.3f} ({status})")
    for name, walk in (("greedy", steepest), ("backtracking", backtracked), ("restarts", restarted)):
        for depth, form in forms.items():
            start = time.process_time()
            say(name, depth, walk(form), start)
    for seed in range(seeds):
        start = time.process_time()
        made = train([forms[4]], episodes=_EPISODES, seed=seed)
        close = best[4][0] * (1 + 1e-5)  # of equal forms, each rule has its tick
        first = next((at for at, cost in enumerate(made.costs, 1) if cost <= close), 0)
        more = f", best known cost after {first} episodes" if first else ", best known cost not reached"
        say(f"agent, trains, seed {seed}", 4, made.best[0], start, more, first=first)
        costs, found = searched(net_costs(4, width=8, size=14), partial(walked, policy=made.policy))
        rows[-1]["equal"] = equal_part(Solved(costs, found))
        for depth, draws in ((4, 0), (8, 0)):
            start = time.process_time()
            found_form = walked(forms[depth], policy=made.policy, draws=draws, seed=seed)
            say("its policy, one walk", depth, found_form, start, draws=draws)
    return rows
