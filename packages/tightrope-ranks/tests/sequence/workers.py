"""What ranks do in tests."""

from dataclasses import replace
from typing import Any

import torch

from tightrope.core import DeviceLink, Machine, Tier
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.sequence.collectives import count_anew, counted
from tightrope_ranks.sequence.layers import Division, Stack
from tightrope_ranks.sequence.run import divide, part_of, plan_rank, sum_shared_gradients

S, B, H, A, L = 64, 2, 32, 4, 2
LINK = DeviceLink("loopback", latency=1e-4, bandwidth=1e8)
HOST = Machine("host", (Tier("dram", 1 << 34, read=10e9),), {"matmul": 50e9})


def serial() -> tuple[Stack, torch.Tensor, torch.Tensor]:
    """The whole model after one step, its rows and the gradient of what it returned."""
    torch.manual_seed(0)
    model = Stack(L, H, A, S, Division())
    rows = torch.randn(S, B, H, requires_grad=True)
    along = torch.randn(S, B, H)
    model(rows).backward(along)
    return model, rows, along


def _part(rank: int, whole: Stack, division: Division) -> Stack:
    model = Stack(L, H, A, S, division)
    divide(whole, model, rank)
    return model


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def compare(rank: int, ranks: int, mode: str) -> dict[str, Any]:
    """Errors against the serial model, of a module and of its plan, and whether both have equal bits."""
    whole, rows, along = serial()
    name: Any = mode.partition(" ")[0]
    division = Division(mode=name, ranks=ranks, regather="again" in mode)
    mine = (
        slice(rank * S // division.rows, (rank + 1) * S // division.rows)
        if division.rows > 1
        else slice(None)
    )
    found: dict[str, Any] = {}
    results = []
    for planned in (False, True):
        model = _part(rank, whole, division)
        part = rows.detach()[mine].clone().requires_grad_()
        run: Any = model
        if planned:
            run = plan_rank(model, part, budget="60%", machine=HOST, link=LINK)
            found["again"] = run.prepared.executable.num_runs - len(run.graph.ops)
        count_anew()
        gradient = along[mine].contiguous()
        native = allocator()
        native.reset_peaks()
        before = native.stats().live
        made = run(part)
        made.backward(gradient)
        if planned:
            found["peak"] = native.stats().charged_peak - before, run.plan.forecast.peak
        found[f"counted {planned}"] = counted()
        sum_shared_gradients(model)
        results.append([made.detach(), part.grad, *(p.grad for p in model.parameters())])
    found["bits"] = all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert rows.grad is not None
    found["error"] = _error(results[1][1], rows.grad[mine])
    for (name, parameter), grad in zip(whole.named_parameters(), results[1][2:], strict=True):
        wanted = part_of(name.split(".", 2)[2], parameter.grad, rank, ranks)  # type: ignore[arg-type]
        found["error"] = max(found["error"], _error(grad, wanted))
    return found


def differ(rank: int, ranks: int) -> str:
    """Plan with another budget on one rank."""
    whole, rows, _ = serial()
    division = Division(mode="sequence", ranks=ranks)
    model = _part(rank, whole, replace(division))
    part = rows.detach()[rank * S // ranks : (rank + 1) * S // ranks].requires_grad_()
    try:
        plan_rank(model, part, budget="60%" if rank else "120%", machine=HOST, link=LINK)
    except Exception as error:
        return str(error)
    return ""


def several(rank: int, ranks: int, modes: list[str]) -> dict[str, Any]:
    """`compare` for several modes, and what is said where budgets differ, in one start of the processes."""
    found = {mode: compare(rank, ranks, mode) for mode in modes}
    return found | {"differ": differ(rank, ranks)}
