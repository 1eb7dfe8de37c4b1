"""The way in: a model as layers, a number of ranks and a budget per rank give a plan of all ranks."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import torch

from tightrope.core import DeviceLink, Machine, TightropeError, parse_bytes
from tightrope.core.units import ALIGNMENT, round_up, shown
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.agreement import dtype_name
from tightrope_ranks.pipeline.measure import Loss, measure_layers, shape_layers
from tightrope_ranks.pipeline.search import PipelineOptions, PipelineTask, plan_pipeline, smallest, staged
from tightrope_ranks.pipeline.tied import TiedParameters, buffers_unshared, tied_parameters
from tightrope_ranks.values.ranks import JointPlan, StageCost

LOOPBACK = DeviceLink("loopback", latency=2e-4, bandwidth=1e9)
"""Between processes of one host, where nothing else is said."""


def plan(
    model: Sequence[torch.nn.Module] | torch.nn.Sequential,
    example: torch.Tensor,
    target: torch.Tensor | None = None,
    loss: Loss | None = None,
    *,
    ranks: int,
    budget: str | int | None = None,
    micro_batches: int | None = None,
    machine: Machine | None = None,
    optimizer_states: float = 0.0,
    replicas: int = 1,
    sharded: bool = False,
    options: PipelineOptions | None = None,
) -> JointPlan:
    """Plan a training step on many ranks: which layers where, in which order, under bytes per rank.

    Args:
        model: layers in order; each takes the tensor that the one before returns.
        example: one micro-batch.
        target: for the loss; without it and ``loss``, costs are told from shapes.
        loss: of output and target.
        ranks: of the pipeline.
        budget: bytes per rank for all that it holds, inputs and targets included; a percentage is of what
            one rank holds that has all layers, activations left out.
        micro_batches: that a batch is cut into; None = twice the ranks.
        machine: with links; None = this host. With rates (``flops``) costs are told from shapes, else layers
            are measured here.
        optimizer_states: what the optimizer keeps, in multiples of the parameters' bytes: 2 for Adam.
        replicas: ranks that do the same on other data, for each rank of the pipeline.
        sharded: whether replicas divide parameters, gradients and state.
        options: of the search; by default gradients are added up as one process does.

    Returns:
        A plan that the judge accepted; ``tightrope_ranks.PipelineRun`` runs it.

    Raises:
        InfeasibleError: no plan was found; says the smallest that was.
        TightropeError: a wrong argument, quoted; a layer that returns something else than one tensor, or
            stops gradients; nothing to train; tied parameters with ``sharded``.

    Example:
        >>> layers, x = [torch.nn.Linear(8, 8) for _ in range(4)], torch.zeros(2, 8)
        >>> made = plan(layers, x, x, torch.nn.functional.mse_loss, ranks=2, budget="1MiB")
        >>> len(made.ranks), made.work.num_micro_batches
        (2, 4)
    """
    layers = tuple(model)
    if not isinstance(ranks, int) or not 1 <= ranks <= len(layers):
        raise TightropeError(f"ranks={shown(ranks)}: give 1 to {len(layers)}, the number of layers.")
    count = 2 * ranks if micro_batches is None else micro_batches
    if not isinstance(count, int) or count < 1:
        raise TightropeError(f"micro_batches={shown(micro_batches)}: give a whole number of at least 1.")
    tied = _tied(layers, sharded=sharded)
    machine = _linked(machine or Machine.here(), ranks * replicas)
    with buffers_unshared(layers):
        if machine.flops or target is None or loss is None:
            costs = shape_layers(layers, example, machine, states=optimizer_states)
        else:
            costs = measure_layers(layers, example, target, loss, states=optimizer_states)
    costs = _with_batch(costs, example, target, count, replicas if sharded else 1)
    known = (example,) if target is None else (example, target)
    task = PipelineTask(
        costs,
        machine,
        ranks,
        count,
        replicas=replicas,
        sharded=sharded,
        frozen=next((k for k, one in enumerate(costs) if one.backward or one.weight), 0),
        tied=tied,
        shapes=tuple(tuple(one.shape) for one in known),
        dtypes=tuple(dtype_name(one) for one in known),
    )
    if budget is not None:
        whole = staged(task, (0,) * 1).held(0) if isinstance(budget, str) and "%" in budget else None
        task = replace(task, budget=parse_bytes(budget, whole=whole))
    found = plan_pipeline(task, options or PipelineOptions(ascending=True, split=False))
    judge_ranks(found)
    return found


def _with_batch(
    costs: tuple[StageCost, ...], example: torch.Tensor, target: torch.Tensor | None, count: int, parts: int
) -> tuple[StageCost, ...]:
    """Count the batch, its losses and what ranks agree with, as what layers hold all the time.

    ``count`` is that of micro-batches, ``parts`` those that such bytes are divided into later.
    """
    held = [ALIGNMENT] * len(costs)  # all ranks agree before a step, in one small tensor
    held[0] += count * round_up(example.nbytes)
    held[-1] += count * (ALIGNMENT + (0 if target is None else round_up(target.nbytes)))
    return tuple(
        msgspec.structs.replace(cost, state=cost.state + parts * size)
        for cost, size in zip(costs, held, strict=True)
    )


def _linked(machine: Machine, devices: int) -> Machine:
    """Give a machine without links those between processes of one host."""
    if machine.links:
        return machine
    return msgspec.structs.replace(machine, devices=devices, links=(LOOPBACK,))


def _tied(layers: Sequence[torch.nn.Module], *, sharded: bool) -> TiedParameters:
    """Find what layers share, and refuse what cannot be trained."""
    if not any(one.requires_grad for layer in layers for one in layer.parameters()):
        raise TightropeError("no layer has a parameter that needs a gradient: there is nothing to train.")
    tied = tied_parameters(layers)
    if sharded and tied.names:
        raise TightropeError(
            f"{tied.names[0][1]} is a parameter of several layers, which sharded=True cannot keep equal. "
            "Give each layer its own, or leave out sharded."
        )
    return tied


__all__ = ["LOOPBACK", "plan", "smallest"]
