"""Gradients of activations that leave a captured call: the whole sum reaches the tensor of the caller.

Idea        A captured call is one node of autograd. Where one output is computed from another, as a loss
            from features, the sum of gradients at the features is inside of that node. A caller who reads
            or changes it gets a part only. So each such output gets a small node of its own, with edges
            to the outputs that it is computed from. Its backward looks whether somebody wants the
            gradient there: a hook, ``retain_grad`` or ``torch.autograd.grad``.
Guarantee   A wanted gradient is never partial: that backward is refused, and from then on the call runs
            cut behind each such output. Then autograd makes the sums. Unwanted, the plan stays whole.
Complexity  A node of autograd for each such output.
Gaps        Outputs of tensor subclasses are left as they come.

    whole  inputs ── [ call ] ── features ┄┄ loss        cut  inputs ── [ a ] ── features ── [ b ] ── loss
"""

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx
from torch.fx.passes.split_module import split_module

from tightrope.capture import _edges
from tightrope.core import TightropeError

Inner: TypeAlias = Mapping[int, tuple[int, ...]]
"""Number of an output -> numbers of the outputs that it is computed from."""


def inner_outputs(module: torch.fx.GraphModule) -> Inner:
    """Find the outputs of a captured graph from which other ones are computed, and those other ones."""
    results = _results(module)
    numbers: dict[torch.fx.Node, int] = {}
    for number, node in enumerate(results):
        if isinstance(node, torch.fx.Node) and node.op != "placeholder" and _floats(node):
            numbers.setdefault(node, number)
    above: dict[torch.fx.Node, frozenset[int]] = {}
    for node in module.graph.nodes:
        found = [above[one] for one in node.all_input_nodes]
        found += [frozenset([numbers[one]]) for one in node.all_input_nodes if one in numbers]
        above[node] = frozenset().union(*found)
    return {number: tuple(sorted(above[node])) for node, number in numbers.items() if above[node]}


def _results(module: torch.fx.GraphModule) -> list[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return list(output.args[0])


def _floats(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


class Activations:
    """The outputs of one captured call whose gradient a caller may want.

    Attributes:
        inner: see `inner_outputs`.
        wanted: whether somebody wanted one of these gradients.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.inner = inner_outputs(module)
        self.wanted = False

    def hand_out(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Give the outputs nodes of autograd that notice who wants their gradients."""
        if not self.inner or not torch.is_grad_enabled():
            return outputs
        given, probe = list(outputs), _edges.Probe()
        watches: dict[int, _Watch] = {}
        before = {one for some in self.inner.values() for one in some}
        for number in _in_order(self.inner):
            one = given[number]
            if type(one) is not torch.Tensor or not one.requires_grad or one.is_leaf:
                continue
            above = [other for other in self.inner.get(number, ()) if other in watches]
            if not above and number not in before:
                continue
            watched = [watches[other] for other in above]
            edges = [given[other] for other in above]
            new = _Leaving.apply(self, probe, watched, one, probe.leaf, *edges)  # type: ignore[no-untyped-call]
            if number in before:
                watches[number] = _Watch(new)
            given[number] = new
        return given

    def refuse(self) -> None:
        """Cut the call from now on, and say so.

        Raises:
            TightropeError: always.
        """
        self.wanted = True
        raise TightropeError(
            "the gradient of an output of the model was wanted (register_hook, retain_grad or "
            "torch.autograd.grad), and another output is computed from it. This step was planned without "
            "that, so its gradients would be wrong: none was given. From now on the model is cut there: "
            "call it again and repeat the step."
        )


def _in_order(inner: Inner) -> list[int]:
    """List outputs, those first from which others are computed."""
    every = {*inner, *(one for some in inner.values() for one in some)}
    return sorted(every, key=lambda number: (len(inner.get(number, ())), number))


class _Watch:
    """Whether somebody wants the gradient of a tensor; the tensor may be gone."""

    def __init__(self, tensor: torch.Tensor) -> None:
        tensor._backward_hooks = self.hooks = OrderedDict[int, Any]()
        self._tensor, self._node = weakref.ref(tensor), tensor.grad_fn

    def wanted(self, probe: _edges.Probe) -> bool:
        tensor = self._tensor()
        retained = tensor is not None and tensor.retains_grad
        return bool(self.hooks) or retained or _edges.is_wanted(self._node, probe)


class _Leaving(torch.autograd.Function):
    """An output as it is."""

    @staticmethod
    def forward(
        ctx: Any, activations: Activations, probe: _edges.Probe, watched: list[_Watch], one: torch.Tensor, *_: Any
    ) -> torch.Tensor:
        ctx.activations, ctx.probe, ctx.watched = activations, probe, watched
        ctx.set_materialize_grads(False)
        return one.detach()  # autograd makes a view of what is returned as it came

    @staticmethod
    def backward(ctx: Any, came: torch.Tensor | None) -> Any:
        if came is not None and any(watch.wanted(ctx.probe) for watch in ctx.watched):
            ctx.activations.refuse()
        return None, None, None, came, None, *[None] * len(ctx.watched)


def cut(
    module: torch.fx.GraphModule, inner: Inner, compiled: Callable[[torch.fx.GraphModule, list[Any]], Any]
) -> torch.fx.GraphModule:
    """Cut a captured graph behind each output from which another is computed.

    Args:
        module: see there.
        inner: see `inner_outputs`.
        compiled: makes what runs a part, given it and what its first call is given.
    """
    results = _results(module)
    behind = {results[one] for some in inner.values() for one in some}
    part_of: dict[torch.fx.Node, int] = {}
    part = 0
    for node in module.graph.nodes:
        part_of[node] = part
        part += node in behind
    parts = split_module(module, module, part_of.__getitem__, keep_original_order=True)
    for name, child in list(parts.named_children()):
        if isinstance(child, torch.fx.GraphModule):
            setattr(parts, name, _Part(child, compiled))
    return parts


class _Part(torch.nn.Module):
    """A part of a captured graph, captured when it is first called."""

    def __init__(
        self, module: torch.fx.GraphModule, compiled: Callable[[torch.fx.GraphModule, list[Any]], Any]
    ) -> None:
        super().__init__()
        (output,) = module.graph.find_nodes(op="output")
        self._single = isinstance(output.args[0], torch.fx.Node)
        if self._single:
            output.args = ((output.args[0],),)
            module.recompile()
        self._module, self._compiled = module, compiled
        self._run: Any = None

    def forward(self, *args: Any) -> Any:
        if self._run is None:
            self._run = self._compiled(self._module, list(args))
        results = self._run(*args)
        return operator.getitem(results, 0) if self._single else tuple(results)
