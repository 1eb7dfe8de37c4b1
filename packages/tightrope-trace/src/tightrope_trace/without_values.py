"""One forward of a model on shapes alone: which ops it makes, in which order, and for which module.

Idea        Module hooks are open around the ops while the profiler watches, as in `eager`; parameters
            and inputs have shapes and no values, so nothing is computed and hardly anything is
            allocated. What needs values (a branch on a sum, rows chosen by a router) runs a second time
            with them.
Guarantee   Parameters, buffers and random states are unchanged.
Complexity  One forward, without its arithmetic where shapes are enough.
Gaps        What a forward does depends on its inputs where it branches on values or loops over lengths;
            what it notes in plain attributes stays noted.
"""

import warnings
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from tightrope.capture._torch import shapes_only
from tightrope.core import Module, TightropeError
from tightrope_trace.eager import EagerRecording, inside, record_eager, slices_of


@dataclass(frozen=True, slots=True)
class DryRun:
    """The ops of one forward that no other op called.

    Attributes:
        modules: the module tree, root first.
        names: of the ops, in the order in which they ran.
        owners: positions in the module tree, one per op.
    """

    modules: tuple[Module, ...]
    names: tuple[str, ...]
    owners: tuple[int, ...]


def dry_run(
    model: torch.nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> DryRun:
    """Run one forward without values, or with them where it needs them.

    Args:
        model: as it is when the profile is taken: in training mode for a training step.
        args: of one call.
        kwargs: likewise.

    Raises:
        TightropeError: the forward fails with values, too.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> found = dry_run(model, (torch.ones(1, 2),))
        >>> found.names, found.owners
        (('aten::linear', 'aten::relu'), (1, 2))
    """
    named = dict(kwargs or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's own, and those about tensors without values
        try:
            return _found(_on_shapes(model, args, named))
        except Exception:  # torch has many errors for what needs values
            pass
        try:
            return _found(_with_values(model, args, named))
        except Exception as error:
            raise TightropeError(
                f"one forward of {type(model).__name__} on the inputs given fails: {type(error).__name__}: "
                f"{str(error)[:200]}"
            ) from error


def _on_shapes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> EagerRecording:
    with shapes_only() as without_values:
        state, args, kwargs = without_values((_held(model, "parameters", "buffers"), args, kwargs))
        with record_eager(model, memory=False) as recording:
            functional_call(model, state, args, kwargs, tie_weights=False)
    return recording


def _with_values(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> EagerRecording:
    """Buffers, such as running means, are copies that are thrown away; so is the random state."""
    copies = {id(tensor): tensor.detach().clone() for tensor in model.buffers()}
    state = {name: copies[id(tensor)] for name, tensor in _held(model, "buffers").items()}
    with torch.random.fork_rng(), record_eager(model, memory=False) as recording:
        functional_call(model, state, args, kwargs, tie_weights=False)
    return recording


def _held(model: torch.nn.Module, *kinds: str) -> dict[str, torch.Tensor]:
    """Tensors of a model by name, one name for every module and attribute.

    `functional_call` puts back what it finds under each name; a module with two names would keep what it is
    called with, so each has one here, and a tensor that two modules share has two.
    """
    return {
        f"{path}.{name}".lstrip("."): tensor
        for path, module in model.named_modules()
        for kind in kinds
        for name, tensor in getattr(module, f"named_{kind}")(recurse=False, remove_duplicate=False)
    }


def _found(recording: EagerRecording) -> DryRun:
    slices, base = slices_of(recording)
    times = [when - base for when, _ in recording._marks]
    names, owners, end = list[str](), list[int](), -1
    for one, ran in zip(slices, inside(recording, slices, base), strict=True):
        if ran and one.start >= end and "::" in one.name and not one.annotation:
            end = one.end
            names.append(one.name)
            owners.append(recording._marks[bisect_right(times, one.start) - 1][1])
    return DryRun(recording.modules, tuple(names), tuple(owners))
