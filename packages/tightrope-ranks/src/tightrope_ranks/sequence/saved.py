"""Bytes that wait for the backward: in closed form, by a schedule, and as measured.

Source      Korthikanti et al. (2022), table 2 and equations 1 to 6
Guarantee   By a schedule: exact for what runs. Measured: every tensor that autograd saves is seen once per
            storage; parameters and buffers do not count.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import torch

from tightrope.core import Bytes, Compute, Free, Graph, Kind, Schedule, TightropeError
from tightrope.core.units import shown
from tightrope_shared.attention import TransformerShape

Technique = Literal[
    "none",
    "tensor",
    "sequence",
    "selective",
    "tensor+selective",
    "sequence+selective",
    "full",
    "full+sequence",
]
TECHNIQUES: Final[tuple[Technique, ...]] = get_args(Technique)


def layer_bytes(shape: TransformerShape, technique: Technique) -> float:
    """Bytes that one layer saves per rank: 16-bit values, masks of one byte.

    Example:
        >>> gpt = TransformerShape(s=2048, b=1, h=12288, a=96, t=8)
        >>> round(layer_bytes(gpt, "tensor") / layer_bytes(gpt, "sequence+selective"), 1)
        5.4

    Raises:
        TightropeError: no such technique.
    """
    one, scores = shape.s * shape.b * shape.h, 5 * shape.a * shape.s / shape.h
    t = shape.t
    match technique:
        case "none":
            return one * (34 + scores)
        case "selective":
            return one * 34.0
        case "tensor":
            return one * (10 + 24 / t + scores / t)
        case "tensor+selective":
            return one * (10 + 24 / t)
        case "sequence":
            return one * (34 + scores) / t
        case "sequence+selective":
            return one * 34 / t
        case "full":
            return one * 2.0
        case "full+sequence":
            return one * 2 / t
    raise TightropeError(f"technique={shown(technique)}: give one of {', '.join(TECHNIQUES)}.")


def saved_bytes(graph: Graph, schedule: Schedule) -> Bytes:
    """Bytes that a schedule holds for the backward when control goes to the caller in between.

    Inputs of the forward that the backward reads count; parameters, buffers and the incoming gradient do not.
    Storages that are there but that no later op reads (outputs) do not either.
    """
    if not graph.boundaries:
        return 0
    end = graph.boundaries[0]
    before = {item.view.base for item in graph.parts[0].inputs if item.view is not None}
    held = {s.id for s in graph.storages if s.external and s.kind is Kind.INPUT and s.id in before}
    live: set[int] = set()
    steps = iter(schedule.steps)
    for step in steps:
        if isinstance(step, Compute):
            live.update(set(graph.op(step.op).creates) - set(step.drop))
            if step.op == end - 1:
                break
        elif isinstance(step, Free):
            live.discard(step.storage)
    made: set[int] = set()
    read: set[int] = set()
    for step in steps:
        if isinstance(step, Compute):
            op = graph.op(step.op)
            read.update(storage for storage in op.reads if storage not in made)
            made.update(op.creates)
    return sum(graph.storages[storage].bytes for storage in (live | held) & read)


class SavedMeter:
    """Counts what autograd saves while it is open: ``with SavedMeter(model) as meter: ...``.

    Attributes:
        bytes: of all storages that were saved, each once, without the parameters and buffers of ``model``.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._hooks: Any = None
        self._seen: dict[int, torch.UntypedStorage] = {}

    def __enter__(self) -> "SavedMeter":
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._seen.setdefault(storage.data_ptr(), storage)
        return tensor

    @property
    def bytes(self) -> Bytes:
        """Bytes of what was saved so far."""
        own = {
            tensor.untyped_storage().data_ptr()
            for tensor in (*self.model.parameters(), *self.model.buffers())
        }
        return sum(storage.nbytes() for at, storage in self._seen.items() if at not in own)


def measure_saved(model: torch.nn.Module, call: Callable[[], torch.Tensor]) -> Bytes:
    """Run ``call`` and count the bytes that autograd saves for its backward."""
    with SavedMeter(model) as meter:
        result = call()
        found = meter.bytes
        del result
    return found
