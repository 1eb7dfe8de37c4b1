"""I3: recomputation alone, pages alone and both, as executed."""

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Final, Literal

import torch
from rich.console import Console
from torch import nn

import tightrope
from benchmarks.zoo import build
from tightrope.capture._torch import reset_dynamo
from tightrope.core import Bytes, Graph, InfeasibleError, Plan, StorageId
from tightrope.plan import solve
from tightrope.plan.paging.joint import may_page, solve_paged
from tightrope.plan.paging.search import PagingKnobs, plan_paging
from tightrope.run.compile import compiled_of
from tightrope.run.paging import Paging
from tightrope.run.prepared import prepare
from tightrope.run.unit import Unit

NETS: Final = ("mlp", "gpt2", "vit", "unet", "resnet18")
SHARES: Final = ("60%", "45%", "30%")
_Step = Callable[[], torch.Tensor]


def speed(
    console: Console, nets: Sequence[str], scale: Literal["bench", "test"], rounds: int, folder: str
) -> None:
    """Print a row per net and budget."""
    console.print(
        f"{'net':10}{'budget':>7}{'x budget':>9}  {'recompute':>10}{'pages':>10}{'joint':>10}{'forecast':>10}"
        f"{'off':>6}  joint/best  pages  bits"
    )
    for name in nets:
        for share in SHARES:
            try:
                console.print(
                    f"{name:10}{share:>7}{_row(name, share, scale, rounds, folder)}", highlight=False
                )
            except InfeasibleError as error:
                console.print(f"{name:10}{share:>7}  refused: {str(error).split(';')[0]}", highlight=False)


def _row(name: str, share: str, scale: Literal["bench", "test"], rounds: int, folder: str) -> str:
    expected, _ = _losses(*_made(name, scale), 3 * (rounds + 1) + 2)
    model, step = _made(name, scale)
    tightrope.compile(model, budget=share, page_to=folder, progress=False)
    seen, update = _losses(model, step, 2)
    compiled = compiled_of(model)
    (unit,) = (unit for unit in compiled.calls.units.values() if unit.prepared is not None)
    pages = compiled.settings.pages
    assert pages is not None
    plans = _plans(unit, pages)
    times: dict[str, list[float]] = {way: [] for way in plans}
    ready = {
        way: prepare(unit.graph, plan, unit.accounts.allocator, paging=pages) for way, plan in plans.items()
    }
    for _ in range(rounds + 1):
        for way, prepared in ready.items():
            restore = unit.substitute(prepared)
            start = time.perf_counter()
            seen.append(_stepped(step, update))
            times[way].append(time.perf_counter() - start)
            restore()
    took = {way: median(spent[1:]) for way, spent in times.items()}
    said = plans["joint"].forecast.ns * 1e-9
    best = min(seconds for way, seconds in took.items() if way != "joint")
    cells = "".join(f"{1e3 * took[way]:8.0f}ms" if way in took else f"{'-':>10}" for way in _WAYS)
    graph = unit.graph
    ratio = _activations(graph) / compiled.calls.budget
    num = sum(reason.decision == "paged" for reason in plans["joint"].reasons)
    bits = "equal" if seen == expected[: len(seen)] else "DIFFER"
    return (
        f"{ratio:9.1f}  {cells}{1e3 * said:8.0f}ms{took['joint'] / said:6.2f}  {took['joint'] / best:10.2f}"
        f"  {num:5}  {bits}"
    )


_WAYS: Final = ("recompute", "pages", "joint")


def _plans(unit: Unit, pages: Paging) -> dict[str, Plan]:
    """Plan the same graph three ways under the budget of the plan that runs."""
    assert unit.prepared is not None
    graph, budget = unit.graph, unit.prepared.plan.budget
    found: dict[str, Plan] = {}
    knobs = PagingKnobs(recompute=False, moves=20_000)
    with suppress(InfeasibleError):
        found["recompute"] = solve(graph, budget=budget)
    with suppress(InfeasibleError):
        found["pages"] = plan_paging(
            graph, machine=pages.machine, budget=budget, knobs=knobs, can=may_page(graph)
        )
    found["joint"] = solve_paged(
        graph, budget=budget, machine=pages.machine, alone=lambda: solve(graph, budget=budget)
    )
    return found


def _activations(graph: Graph) -> Bytes:
    """Bytes of what the forward makes and the backward reads."""
    end = graph.boundaries[0]
    late: set[StorageId] = {storage for op in graph.ops[end:] for storage in op.reads}
    made = {storage for op in graph.ops[:end] for storage in op.creates}
    return sum(graph.storages[storage].size for storage in made & late)


def _made(name: str, scale: Literal["bench", "test"]) -> tuple[nn.Module, _Step]:
    reset_dynamo()
    gc.collect()
    if name != "mlp":
        case = build(name, scale=scale)
        return case.model, lambda: case.model(*case.inputs)
    torch.manual_seed(1)
    rows = 8192 if scale == "bench" else 512
    layers = [layer for _ in range(16) for layer in (nn.Linear(128, 128), nn.GELU())]
    model = nn.Sequential(*layers)
    batch = torch.randn(rows, 128)
    return model, lambda: model(batch).square().mean()


def _losses(model: nn.Module, step: _Step, count: int) -> tuple[list[float], torch.optim.Optimizer]:
    torch.manual_seed(5)
    update = torch.optim.SGD(model.parameters(), lr=1e-3)
    return [_stepped(step, update) for _ in range(count)], update


def _stepped(step: _Step, update: torch.optim.Optimizer) -> float:
    loss: Any = step()
    loss.backward()
    update.step()
    update.zero_grad()
    return float(loss.detach())
