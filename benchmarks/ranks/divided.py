"""S1: pipelines whose replicas divide parameters (FSDP2), on real ranks, beside one process."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.micro.rows import Row
from benchmarks.ranks import units
from benchmarks.ranks.real import MICRO, Layer, batch, loss
from tightrope_ranks.pipeline import (
    Orders,
    breadth_first,
    interleaved,
    looped,
    lower,
    one_f_one_b,
    with_wires,
)
from tightrope_ranks.pipeline.emit import orders_of
from tightrope_ranks.pipeline.launch import run_ranks
from tightrope_ranks.pipeline.run import PipelineRun
from tightrope_ranks.values.ranks import JointPlan

PIPELINE, REPLICAS = 2, 2
HALF: int = MICRO // REPLICAS
"""Micro-batches of a replica."""


def plans() -> dict[str, JointPlan]:
    """Plans with gathers and reductions, some with forwards that are computed again."""
    single, loop = looped(PIPELINE, 1), looped(PIPELINE, 2)
    orders: dict[str, tuple[tuple[int, ...], Orders]] = {
        "1F1B": (single, one_f_one_b(PIPELINE, HALF)),
        "interleaved": (loop, interleaved(PIPELINE, 2, HALF)),
        "breadth-first": (loop, breadth_first(PIPELINE, 2, HALF)),
    }
    found = {}
    for name, (owners, order) in orders.items():
        work = units.work(owners, len(owners), HALF, gather=1, reduce=1, replicas=REPLICAS, sharded=True)
        wired = with_wires(work, order)
        found[name] = lower(work, units.machine(0.1), wired)
        again = [(stage, micro) for stage in range(len(owners)) for micro in range(HALF) if micro % 2]
        found[f"{name}, some again"] = lower(work, units.machine(0.1), wired, again=again)
    return found


def planned(plan: JointPlan, rank: int) -> dict[str, int]:
    """Count the gathers and reductions of a rank."""
    kinds = Counter(action.kind for action in orders_of(plan)[rank])
    return {kind: kinds[kind] for kind in ("UNSHARD", "REDUCE_GRAD")}


def gradients(rank: int, num_ranks: int, given: dict[str, JointPlan]) -> dict[str, Any]:
    """Run every plan on this rank; return the whole gradients of its stages, and what was called."""
    del num_ranks
    mesh = init_device_mesh("cpu", (PIPELINE, REPLICAS), mesh_dim_names=("pipeline", "replica"))
    place, replica = divmod(rank, REPLICAS)
    inputs, targets = (one.chunk(REPLICAS)[replica] for one in batch())
    found: dict[str, Any] = {}
    for name, plan in given.items():
        mine: dict[int, Any] = {stage: Layer(stage) for stage in plan.work.local(place)}
        for layer in mine.values():
            fully_shard(layer, mesh=mesh["replica"], reshard_after_forward=False)
        run = PipelineRun(plan, mine, loss, group=mesh.get_group("pipeline"))
        first, last = 0 in mine, plan.work.owners[-1] == place
        for _ in range(2):  # in its first step torch's runtime runs stages once more, for their shapes
            for parameter in (p for one in mine.values() for p in one.parameters()):
                parameter.grad = None
            with collectives() as calls:
                run.step(*([inputs] if first else []), target=targets if last else None)
        whole = {
            stage: [p.grad.full_tensor().numpy() for p in one.parameters()] for stage, one in mine.items()
        }
        found[name] = (place, whole, calls)
        dist.barrier()
    return found


@contextmanager
def collectives() -> Iterator[dict[str, int]]:
    """Count what goes between replicas: calls of torch's collectives."""
    found: dict[str, int] = {}
    with (
        patch.object(dist, "all_gather_single", wraps=dist.all_gather_single) as gather,
        patch.object(dist, "reduce_scatter_single", wraps=dist.reduce_scatter_single) as reduce,
    ):
        yield found
    found |= {"UNSHARD": gather.call_count, "REDUCE_GRAD": reduce.call_count}


def serial(num_stages: int) -> list[list[torch.Tensor]]:
    """Gradients of one process: each replica's, added up in ascending order, then their mean."""
    sums: list[list[list[torch.Tensor]]] = []
    for x_all, y_all in zip(*(one.chunk(REPLICAS) for one in batch()), strict=True):
        stages = [Layer(stage) for stage in range(num_stages)]
        for x, y in zip(x_all.chunk(HALF), y_all.chunk(HALF), strict=True):
            for stage in stages:
                x = stage(x)
            loss(x, y).backward()  # type: ignore[no-untyped-call]
        sums.append([[p.grad / HALF for p in one.parameters() if p.grad is not None] for one in stages])
    return [[sum(parts) / REPLICAS for parts in zip(*one, strict=True)] for one in zip(*sums, strict=True)]


def rows(quick: bool) -> list[Row]:
    """S1: 2 ranks of a pipeline times 2 replicas."""
    del quick
    given = plans()
    answers = run_ranks(gradients, PIPELINE * REPLICAS, given)
    equal, wrong = 0, []
    for name, plan in given.items():
        wanted = serial(len(plan.work.stages))
        for answer in answers:
            place, whole, calls = answer[name]
            same = all(
                torch.equal(torch.from_numpy(a), b)
                for stage, grads in whole.items()
                for a, b in zip(grads, wanted[stage], strict=True)
            )
            if not same or calls != planned(plan, place):
                wrong.append(f"{name}: bits {same}, called {calls}, planned {planned(plan, place)}")
        equal += not any(one.startswith(f"{name}:") for one in wrong)
    return [
        Row(
            "S1",
            "2 ranks of a pipeline times 2 replicas that divide parameters: gradients bit-equal to one "
            "process, gathers and reductions as planned",
            f"{equal} of {len(given)} plans{'; wrong: ' + '; '.join(wrong[:3]) if wrong else ''} (real gloo "
            "ranks, FSDP2)",
            not wrong,
            own=True,
        )
    ]
