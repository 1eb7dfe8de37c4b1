"""Gradients clipped between backward and update, with the bits of ``torch.nn.utils.clip_grad_*_``.

Idea        By value, a gradient is clamped where it is made, and dies in its update as without clipping.
            By norm, no gradient can be scaled before all are known, so the norm of each is taken where it
            is made, then their norm and the factor, and then every gradient is scaled and used. Between
            its norm and its scaling a gradient is a value like any other: a plan may drop it and make it
            again, which is a second backward where bytes are short. So that this second backward still
            finds the old parameters, an update waits for the first gradient that comes of a read of what
            it changes.
Source      torch.nn.utils.clip_grad; two passes where the norm comes first, as in LOMO (ACL 2024).
Guarantee   The bits of ``clip_grad_norm_`` or ``clip_grad_value_``: the same kernels on the same layouts,
            norms stacked in the order in which torch stacks them.
Complexity  Linear in ops.
Gaps        A clipped gradient takes bytes of its own where it may not be written over the raw one.

    by norm    backward: g3 |g3| g2 |g2| g1 |g1| | total | g3*f  (again: g2) g2*f  W3 -= g3*f  ...
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor

from tightrope.capture.typed import tensor_of
from tightrope.core.total_norm import TOTAL_NORM
from tightrope.price.kernels import register

_NOTES = ("nn_module_stack", "fwd_nn_module_stack")


@dataclass(frozen=True, slots=True)
class Clip:
    """How gradients are clipped; not at all without a value and a norm.

    Attributes:
        value: largest magnitude of an element.
        norm: largest norm of all gradients together.
        norm_type: which norm, 2 or ``inf`` for example.
    """

    value: float | None = None
    norm: float | None = None
    norm_type: float = 2.0

    def eagerly(self, parameters: Iterable[Tensor]) -> Tensor | None:
        """Clip the gradients that parameters have; return the total norm, None by value.

        Example:
            >>> weight = torch.nn.Parameter(torch.zeros(2))
            >>> weight.grad = torch.tensor([3.0, 4.0])
            >>> Clip(norm=1.0).eagerly([weight])
            tensor(5.)
        """
        if self.value is not None:
            torch.nn.utils.clip_grad_value_(parameters, self.value)
        if self.norm is None:
            return None
        found: Tensor = torch.nn.utils.clip_grad_norm_(parameters, self.norm, self.norm_type)
        return found


@register(TOTAL_NORM)
def total_norm(norms: list[Tensor], norm_type: float) -> Tensor:
    """Take the norm of the norms of gradients."""
    found: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return found


@register("tightrope.clip_factor")
def clip_factor(total: Tensor, max_norm: float) -> Tensor:
    """What gradients are multiplied by, at most 1."""
    return torch.clamp(max_norm / (total + 1e-6), max=1.0)


def write_clipped(
    graph: torch.fx.Graph, clip: Clip, gradients: Sequence[torch.fx.Node], stacked: Sequence[int]
) -> tuple[list[torch.fx.Node], torch.fx.Node | None]:
    """Write the clipping of gradients into a graph that ends with its last gradient.

    Args:
        graph: without its output.
        clip: how.
        gradients: of the parameters that are updated.
        stacked: positions in ``gradients``, in the order in which their norms are stacked.

    Returns:
        The clipped gradients, and the total norm where there is one.
    """
    if clip.value is not None:
        bounds = -clip.value, clip.value
        return [_behind(graph, node, torch.ops.aten.clamp.default, *bounds) for node in gradients], None
    if clip.norm is None or not gradients:
        return list(gradients), None
    kind = clip.norm_type
    norms = [_behind(graph, node, torch.ops.aten.linalg_vector_norm.default, kind) for node in gradients]
    total = _call(graph, total_norm, [norms[position] for position in stacked], kind)
    factor = _call(graph, clip_factor, total, clip.norm)
    place = {node: position for position, node in enumerate(graph.nodes)}
    order = sorted(range(len(gradients)), key=lambda position: place[gradients[position]])
    scaled = {position: _scaled(graph, gradients[position], factor) for position in order}
    return [scaled[position] for position in range(len(gradients))], total


def _scaled(graph: torch.fx.Graph, gradient: torch.fx.Node, factor: torch.fx.Node) -> torch.fx.Node:
    """Multiply as in place: a number of a narrower dtype than the factor keeps its own."""
    made = _call(graph, torch.ops.aten.mul.Tensor, gradient, factor)
    dtype = tensor_of(gradient).dtype
    if tensor_of(made).dtype == dtype:
        return made
    return _call(graph, torch.ops.aten._to_copy.default, made, dtype=dtype)


def _behind(
    graph: torch.fx.Graph, source: torch.fx.Node, target: Callable[..., Any], *more: Any
) -> torch.fx.Node:
    with graph.inserting_after(source):
        return _call(graph, target, source, *more)


def _call(graph: torch.fx.Graph, target: Callable[..., Any], *args: Any, **options: Any) -> torch.fx.Node:
    node = graph.call_function(target, args, options)
    node.meta["partitioner_tag"] = "is_backward"
    source = args[0] if isinstance(args[0], torch.fx.Node) else None
    if source is not None:
        node.meta.update({name: source.meta[name] for name in _NOTES if name in source.meta})
    node.meta["val"] = target(*torch.fx.node.map_arg(args, tensor_of), **options)
    return node
