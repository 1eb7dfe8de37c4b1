"""Ops that must not simply run again, and what runs in their place.

Random ops are never redrawn. ``native_dropout`` returns its mask, so its output is rebuilt from
the input and the mask by the kernel that the backward uses. On a CPU eager has another kernel for
dropout, which rounds otherwise: `dropouts_as_eager`. Any other random op is run again from
the generator's state as it was just before the first run; the state (5,056 bytes on CPU) is saved by
an op of its own and is freed at once when no schedule needs it.

Batch norm in training reads the running statistics, which have new values once the forward is
over, only to make those new values. Its variant is the same kernel without running statistics.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from tightrope.capture import _torch
from tightrope.capture.attribution import target_name
from tightrope.capture.typed import tensor_of
from tightrope.native.kernels import batch_norm
from tightrope.price.kernels import dropout, dropout_again, dropout_scale, norm_backward

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_BATCH_NORM_NO_STATS = "aten._native_batch_norm_legit.no_stats"
_BATCH_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
_DROPOUT = torch.ops.aten.native_dropout.default
_DROPOUT_BACKWARD = torch.ops.aten.native_dropout_backward.default
KERNEL = "tightrope_kernel"
"""Under this name a node remembers the kernel of this package that is called in its place."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A call that makes the same values again.

    Attributes:
        target: what is called.
        args: nodes and values.
        kwargs: likewise.
        results: position in its result -> position in the result of the op that it stands for.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)


def draws(node: torch.fx.Node) -> bool:
    """Tell whether a random op really draws: attention with dropout 0 does not, nor does a backward of it."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and any(argument.name == "philox_seed" for argument in schema.arguments):
        return False  # it is given what the forward drew
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given != 0.0)
    return True


def members(node: torch.fx.Node) -> dict[int, torch.fx.Node]:
    """The nodes that pick members of a node's result, by position."""
    found = {user.args[1]: user for user in node.users if "getitem" in str(user.target)}
    return {position: user for position, user in found.items() if isinstance(position, int)}


def called(node: torch.fx.Node) -> Any:
    """What is called for a node: its target, or a kernel of this package that stands for it."""
    return node.meta.get(KERNEL, node.target)


def dropouts_as_eager(graph: torch.fx.Graph) -> None:
    """Let dropouts on a CPU, and their backward, be computed by the ops that eager calls there."""
    for node in graph.find_nodes(op="call_function", target=_DROPOUT):
        on_cpu = tensor_of(node)[0].device.type == "cpu"
        if not on_cpu or node.args[2] is not True or not 0.0 < _probability(node) < 1.0:
            continue
        node.meta[KERNEL] = dropout
        mask = members(node).get(1)
        for user in list(mask.users) if mask is not None else ():
            if user.target is _DROPOUT_BACKWARD and user.args[1] is mask:
                user.meta[KERNEL] = dropout_again
                user.update_arg(2, _scale(node))


def norms_without_waste(graph: torch.fx.Graph) -> None:
    """Let the backward of batch norms on a CPU run without a tensor that torch makes and drops unused."""
    for node in graph.find_nodes(op="call_function", target=_BATCH_NORM_BACKWARD):
        if not batch_norm.missing() and tensor_of(node)[0].device.type == "cpu":
            node.meta[KERNEL] = norm_backward


def _scale(node: torch.fx.Node) -> float:
    with _torch.real_tensors():
        return dropout_scale(tensor_of(node)[0].dtype, _probability(node))


def has_mask(node: torch.fx.Node) -> bool:
    """Tell whether the op's output can be rebuilt from a mask that it returns."""
    mask = 1 in members(node)
    return node.target is _DROPOUT and mask and node.args[2] is True and 0.0 < _probability(node) < 1.0


def _probability(node: torch.fx.Node) -> float:
    given = node.args[1]
    assert isinstance(given, int | float)
    return float(given)


def from_mask(node: torch.fx.Node) -> Variant | None:
    """The variant of a dropout with a mask; None where only the mask is used."""
    found = members(node)
    if 0 not in found:
        return None
    if KERNEL in node.meta:
        return Variant(target_name(dropout_again), (node.args[0], found[1], _scale(node)), {}, {-1: 0})
    scale = 1.0 / (1.0 - _probability(node))
    return Variant(str(_DROPOUT_BACKWARD), (node.args[0], found[1], scale), {}, {-1: 0})


def from_state(node: torch.fx.Node, state: torch.fx.Node, positions: list[int]) -> Variant:
    """The variant of any other random op: the generator as it was."""
    args = (state, called(node), *node.args)
    return Variant(
        "tightrope.run_with_state", args, dict(node.kwargs), dict(zip(positions, positions, strict=True))
    )


def without_statistics(node: torch.fx.Node) -> Variant | None:
    """The variant of a training batch norm, or None for any other op."""
    if node.target is not _BATCH_NORM or node.args[5] is not True:
        return None
    x, weight, bias, _, _, training, momentum, eps = node.args
    return Variant(_BATCH_NORM_NO_STATS, (x, weight, bias, training, momentum, eps), {}, {0: 0, 1: 1, 2: 2})
