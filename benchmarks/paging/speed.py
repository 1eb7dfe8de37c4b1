"""I3: recomputation alone, pages alone and both, as executed.

Times are of what a forecast is of: the parts of a step, forward and backward, by the clock on the wall; a
loss outside the model and the optimizer are not in it. *off* is the executed time of the joint plan over its
forecast, *by pages* that over the same ratio of the plan that recomputes, step by step: what both leave out
(other processes, ops slower than when measured alone) cancels, and what the forecast leaves out of pages is
left. *runs/best* is the time of what goes on over that of the better of the two alone, also step by step.
Both are medians with their 95 % interval; *is* names the plan that goes on where it is one of the three, so
that *runs/best* shows noise where it is the better one. A row is slower where the whole interval is above 1.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import torch
from rich.console import Console
from torch import nn

import tightrope
from benchmarks._measure import Ratio, bootstrap
from benchmarks.zoo import build
from tightrope.capture._torch import reset_dynamo
from tightrope.core import Bytes, Graph, InfeasibleError, Plan, StorageId
from tightrope.plan import solve
from tightrope.plan.paging.joint import RUN_KNOBS, may_page, solve_paged
from tightrope.plan.paging.search import PagingKnobs, plan_paging
from tightrope.run.compile import compiled_of
from tightrope.run.execute.contest import STEPS
from tightrope.run.execute.paging import Paging
from tightrope.run.execute.prepared import prepare
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.room import RESERVE
from tightrope.run.session.unit import Unit

NETS: Final = ("mlp", "gpt2", "vit", "unet", "resnet18")
SHARES: Final = (0.6, 0.3, 0.1)
"""Of the way from the smallest budget that is named to what every op once takes."""
_Step = Callable[[], torch.Tensor]


def speed(
    console: Console, nets: Sequence[str], scale: Literal["bench", "test"], rounds: int, folder: str
) -> None:
    """Print a row per net and budget."""
    console.print(
        f"{'net':10}{'of the way':>11}{'x budget':>9}  {'recompute':>10}{'pages':>10}{'joint':>10}"
        f"{'forecast':>10}{'off':>6}{'by pages':>19}{'runs':>10}{'runs/best':>19}  is         pages  bits",
        highlight=False,
        soft_wrap=True,
    )
    rows: list[_Row] = []
    for name in nets:
        least, whole = _ends(name, scale, folder)
        expected, _ = _losses(*_made(name, scale), 2 + STEPS + 2 * (len(_WAYS) + 1) * (rounds + 1))
        for share in SHARES:
            above = round(least + share * (whole - least))
            cells = f"{name:10}{share:>11.0%}"
            try:
                rows.append(_row(name, above, scale, rounds, folder, expected))
                found = rows[-1].cells
            except InfeasibleError as error:
                found = f"  refused: {str(error).split(';')[0]}"
            console.print(cells + found, highlight=False, soft_wrap=True)
    console.print(_verdict(rows), highlight=False, soft_wrap=True)


class _Row(NamedTuple):
    """A row: its text, executed over forecast time as it is and at a pace, what goes on over the better."""

    cells: str
    off: float
    paced: Ratio | None
    over: Ratio
    equal: bool


def _verdict(rows: Sequence[_Row]) -> str:
    slower = sum(row.over.low > 1 for row in rows)
    worst = max((row.over.median for row in rows), default=1.0)
    near = sum(_within(row.off) for row in rows)
    paced = [row.paced.median for row in rows if row.paced is not None]
    return (
        f"{len(rows)} rows: {slower} slower than the better alone, at worst {worst:.2f}; within 15 % of the "
        f"forecast: {near} as it is, {sum(map(_within, paced))} of {len(paced)} at the pace of the plan that "
        f"recomputes; bits {'equal' if all(row.equal for row in rows) else 'DIFFER'}"
    )


def _within(ratio: float) -> bool:
    return 1 / 1.15 <= ratio <= 1.15


def _ends(name: str, scale: Literal["bench", "test"], folder: str) -> tuple[Bytes, Bytes]:
    """The smallest budget that a refusal names, and what every op once takes, above what was held."""
    gc.collect()
    held = accounts().charged()
    model, step = _made(name, scale)
    tightrope.compile(model, budget=accounts().charged() + RESERVE, page_to=folder, progress=False)
    least = 0
    try:
        _losses(model, step, 1)
    except InfeasibleError as error:
        least = error.smallest_found or 0
    del model, step
    gc.collect()
    model, step = _made(name, scale)
    tightrope.compile(model, budget="4GiB", page_to=folder, progress=False)
    _losses(model, step, 2)
    return least - held, max(least, tightrope.report(model).observed_total) - held


def _row(
    name: str,
    above: Bytes,
    scale: Literal["bench", "test"],
    rounds: int,
    folder: str,
    expected: Sequence[float],
) -> _Row:
    gc.collect()
    budget = accounts().charged() + above
    model, step = _made(name, scale)
    tightrope.compile(model, budget=budget, page_to=folder, progress=False)
    seen, update = _losses(model, step, 2)
    compiled = compiled_of(model)
    (unit,) = (unit for unit in compiled.calls.units.values() if unit.prepared is not None)
    pages = compiled.settings.pages
    assert pages is not None
    assert unit.prepared is not None
    planned = unit.prepared.plan
    seen += [_stepped(step, update) for _ in range(STEPS)]  # in which two forms take turns
    plans = _plans(unit, pages, planned)
    assert unit.prepared is not None
    times: dict[str, list[float]] = {way: [] for way in (*plans, "runs")}
    ready = {"runs": unit.prepared} | {
        way: prepare(unit.graph, plan, unit.accounts.allocator, paging=pages) for way, plan in plans.items()
    }
    for number in range(rounds + 1):  # the first one is checked
        for way in _turned([*ready], number):
            restore = unit.substitute(ready[way])
            seen += [_stepped(step, update) for _ in range(2)]  # the first finds the memory of another plan
            times[way].append((ready[way].times.latest_wall_ns or 0) * 1e-9)
            restore()
    took = {way: median(spent[1:]) for way, spent in times.items()}
    said = plans["joint"].forecast.ns * 1e-9
    paced = None
    if "recompute" in plans:
        less = plans["recompute"].forecast.ns * 1e-9 / said
        paced = bootstrap([less * one for one in _over(times, "joint", "recompute")])
    best = min((way for way in ("recompute", "pages") if way in took), key=took.__getitem__)
    over = bootstrap(_over(times, "runs", best))
    runs = ready["runs"].executable.fingerprint
    same = next((way for way in _WAYS if way in plans and ready[way].executable.fingerprint == runs), "-")
    cells = "".join(f"{1e3 * took[way]:8.0f}ms" if way in took else f"{'-':>10}" for way in _WAYS)
    graph = unit.graph
    ratio = _activations(graph) / compiled.calls.budget
    num = sum(reason.decision == "paged" for reason in plans["joint"].reasons)
    equal = seen == expected[: len(seen)]
    return _Row(
        f"{ratio:9.1f}  {cells}{1e3 * said:8.0f}ms{took['joint'] / said:6.2f}{_text(paced)}"
        f"{1e3 * took['runs']:8.0f}ms{_text(over)}  {same:9}  {num:5}  {'equal' if equal else 'DIFFER'}",
        took["joint"] / said,
        paced,
        over,
        equal,
    )


def _turned(ways: list[str], number: int) -> list[str]:
    """Begin with another one every round, so that none always follows the same."""
    number %= len(ways)
    return ways[number:] + ways[:number]


def _over(times: dict[str, list[float]], way: str, other: str) -> list[float]:
    """Divide the times of one plan by those of another, round by round; the first is not counted."""
    return [one / base for one, base in zip(times[way][1:], times[other][1:], strict=True)]


def _text(found: Ratio | None) -> str:
    return f"{'-':>19}" if found is None else f"{found.median:6.2f} [{found.low:.2f}, {found.high:.2f}]"


_WAYS: Final = ("recompute", "pages", "joint")


def _plans(unit: Unit, pages: Paging, planned: Plan) -> dict[str, Plan]:
    """Plan the same graph three ways under the budget of the plan that runs; ``planned`` is the joint one."""
    assert unit.prepared is not None
    graph, budget = unit.graph, unit.prepared.plan.budget
    found: dict[str, Plan] = {}
    knobs = PagingKnobs(recompute=False, moves=RUN_KNOBS.moves)

    def alone() -> Plan:
        """The plan that recomputes, searched once."""
        if "recompute" not in found:
            found["recompute"] = solve(graph, budget=budget)
        return found["recompute"]

    with suppress(InfeasibleError):
        alone()
    with suppress(InfeasibleError):
        found["pages"] = plan_paging(
            graph, machine=pages.machine, budget=budget, knobs=knobs, can=may_page(graph)
        )
    found["joint"] = planned
    if planned.budget != budget:
        found["joint"] = solve_paged(graph, budget=budget, machine=pages.machine, alone=alone)
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
