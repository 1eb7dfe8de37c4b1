"""`tightrope estimate`: will it fit? Capture without running, and look at the peak of a training loop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from tightrope.capture import Program, measured
from tightrope.cli.target import Built, build, capture_target, is_on_meta
from tightrope.core import Buffer, Graph, Machine, TightropeError, parse_bytes
from tightrope.lower import lower, timeline, with_writes
from tightrope.plan import base_schedule, lower_bound
from tightrope.price import price_graph
from tightrope.run.accounts import accounts
from tightrope.run.floor import smallest_budget
from tightrope.run.foresee import NO_UPDATE, Foresight, UpdateBytes

_NUM_SHOWN = 20
_MOST_BATCHES = 64
_Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: Final[dict[str, _Make | None]] = {
    "none": None,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
"""By the names that the command line takes."""


def estimate_step(
    target: str, budget: str | None, machine: Machine | None, optimizer: str, batches: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Size the training step of ``FILE.py:FUNCTION`` without running it.

    Args:
        target: what to capture.
        budget: bytes to fit in, or a share of what the step needs; None = the machine's memory.
        machine: whose memory and rates count; None = this one, and every op is measured here, alone.
        optimizer: one of `OPTIMIZERS`.
        batches: sizes of the inputs' first dimension; none = as they are.

    Returns:
        Per batch plain values: ``fits``, bytes of each part, the smallest budget, the smallest bytes any
        plan may need, and the storages alive at the peak.

    Raises:
        TightropeError: the step cannot be captured, or an argument cannot be read.
    """
    if budget is not None:
        parse_bytes(budget, whole=1)
    if optimizer not in OPTIMIZERS:
        raise TightropeError(f"no optimizer {optimizer!r}: there are {', '.join(OPTIMIZERS)}.")
    built = build(target)
    found = []
    for size, one in _resized(built, batches) if batches else ((_size(built), built),):
        program, real = capture_target(target, one)
        trained = [p for p in one.model.parameters() if p.requires_grad and program.has_backward]
        graph, note = _priced(program, real, machine)
        update = _update(optimizer, trained)
        row = describe(graph, budget, machine or Machine.here(), update, trained)
        found.append({"batch": size, "optimizer": optimizer, **row, "note": note})
    return found


def _priced(program: Program, real: list[Any], machine: Machine | None) -> tuple[Graph, str]:
    if machine is None and not is_on_meta(real):
        return measured(program, real, accounts().allocator).graph, "every op was measured alone"
    note = "tensor bytes are exact; the kernels' own work space is not included until ops are measured"
    return with_writes(price_graph(program.graph, machine or Machine.here())), note


def _update(name: str, trained: list[torch.nn.Parameter]) -> UpdateBytes:
    make = OPTIMIZERS[name]
    if make is None or not trained:
        return NO_UPDATE
    return Foresight(trained, accounts().allocator).update_of(make(trained))


def parse_batches(text: str) -> tuple[int, ...]:
    """Read sizes of batches: ``1,2,4,8``.

    Raises:
        TightropeError: quotes what is no size.

    >>> parse_batches("1, 2,4")
    (1, 2, 4)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**31 for part in parts):
        raise TightropeError(f"batch {text[:64]!r}: write sizes, at least 1 each, as in --batch 1,2,4,8.")
    if len(parts) > _MOST_BATCHES:
        raise TightropeError(f"{len(parts)} batches: give at most {_MOST_BATCHES}.")
    return tuple(int(part) for part in parts)


def _tensors(built: Built) -> Iterator[torch.Tensor]:
    every = (*built.args, *built.kwargs.values())
    return (value for value in every if isinstance(value, torch.Tensor) and value.dim())


def _size(built: Built) -> int | None:
    return next((tensor.shape[0] for tensor in _tensors(built)), None)


def _resized(built: Built, batches: Sequence[int]) -> Iterator[tuple[int, Built]]:
    """The same call with batches of other sizes: rows of the inputs are left out, or repeated."""
    size = _size(built)
    if not size:
        raise TightropeError("--batch needs an input with rows: a tensor whose first dimension is the batch.")

    def resized(value: Any, wanted: int) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != size:
            return value
        rows = torch.arange(wanted, device=value.device) % size
        return value.detach()[rows].requires_grad_(value.requires_grad)

    for wanted in batches:
        kwargs = {name: resized(value, wanted) for name, value in built.kwargs.items()}
        yield wanted, Built(built.model, tuple(resized(value, wanted) for value in built.args), kwargs)


def describe(
    graph: Graph, budget: str | None, machine: Machine, update: UpdateBytes, trained: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """Say whether the given order of a graph fits with its update, and what is alive at its peak."""
    trace = timeline(lower(graph, base_schedule(graph), machine))
    profile = trace.profile()
    peak = max(profile, default=0)
    at = profile.index(peak) if profile else 0
    bound, witness = lower_bound(graph)
    sizes = [parameter.untyped_storage().nbytes() for parameter in trained]
    updating = sum(sizes) + update.beside if update is not NO_UPDATE else 0
    persistent = graph.persistent + update.state
    total = persistent + max(peak, updating)
    limit = machine.tiers[0].bytes if budget is None else parse_bytes(budget, whole=total)
    alive = [buffer for buffer in trace.buffers if buffer.start <= at < buffer.end]
    alive.sort(key=lambda buffer: -buffer.bytes)
    return {
        "fits": total <= limit,
        "a_plan_may_fit": bound + update.state <= limit,
        "limit_bytes": limit,
        "machine": machine.name,
        "total_bytes": total,
        "persistent_bytes": persistent,
        "state_bytes": update.state,
        "peak_bytes": max(peak, updating),
        "update_bytes": updating,
        "smallest_bytes": smallest_budget(graph, sizes, update),
        "lower_bound_bytes": bound + update.state,
        "lower_bound_op": graph.ops[witness].describe() if witness >= 0 else "",
        "estimated_seconds": graph.base_ns / 1e9,
        "num_ops": len(graph.ops),
        "num_alive_at_peak": len(alive),
        "alive_at_peak": _alive(graph, alive[:_NUM_SHOWN]),
    }


def _alive(graph: Graph, buffers: list[Buffer]) -> list[dict[str, Any]]:
    maker = {storage: op for op in graph.ops for storage in op.creates}
    rows = []
    for buffer in buffers:
        row = {"bytes": buffer.bytes, "what": "temporary", "module": "", "tensor": "", "source": ""}
        if buffer.storage >= 0:
            found = graph.storages[buffer.storage]
            row |= {"what": str(found.kind), "module": found.module, "tensor": found.label}
            row |= {"source": maker[found.id].source}
        rows.append(row)
    return rows
