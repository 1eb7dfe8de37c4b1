"""Capture inference: a forward in evaluation mode as ops of the C library, weights as constants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from tightrope.capture import capture_program
from tightrope.core import Argument, CaptureError, Graph, Items, Op, View
from tightrope.core.values import CONSTANTS, EMPTY
from tightrope_micro.constants import Constants
from tightrope_micro.curve_rules import curve
from tightrope_micro.forward.fuse import with_sums_inside
from tightrope_micro.forward.layer_rules import MORE_RULES
from tightrope_micro.forward.writer import NetTranslator
from tightrope_micro.recurrent import recurrence_as_ops
from tightrope_micro.rules import RULES
from tightrope_micro.translator import Translator, merged


@dataclass(frozen=True)
class FloatNet:
    """A forward in float32 as ops of the C library.

    Attributes:
        graph: one part; its input lies in tier 1, its weights in flash.
        constants: the weights.
        inputs: shapes of the inputs, in the order of the call.
    """

    graph: Graph
    constants: Constants
    inputs: tuple[tuple[int, ...], ...]


def capture_net(model: torch.nn.Module, args: Sequence[torch.Tensor]) -> FloatNet:
    """Capture ``model(*args)`` in evaluation mode; batch norm goes into the layer before it.

    Args:
        model: its forward returns one tensor; its mode is left as it was.
        args: one sample: the batch that the device will compute, mostly of one.

    Raises:
        UnsupportedOpError: an op has no kernel in C; names op, module and line.
        CaptureError: the forward is not one graph, or returns other than one tensor.

    Example:
        >>> net = capture_net(torch.nn.Linear(4, 2), (torch.zeros(1, 4),))
        >>> [op.target for op in net.graph.ops], len(net.constants.data)
        (['micro.linear'], 40)
    """
    given = [value.detach().clone().contiguous() for value in args]
    was = model.training
    try:
        with torch.no_grad(), recurrence_as_ops(model.eval()) as asked:
            program, real = capture_program(asked, given, {})
    finally:
        model.train(was)
    if program.has_backward:
        raise CaptureError("the forward keeps gradients although none are needed: detach what it keeps.")
    graph = program.graph
    outputs = [value for value in graph.parts[0].outputs if isinstance(value, View)]
    if len(outputs) != 1:
        raise CaptureError(
            f"the forward returns {len(outputs)} tensors; the device returns one. Return the scores alone."
        )
    names = {id(v): n for n, v in (*model.named_parameters(), *model.named_buffers())}
    frozen, called, shapes = {}, {}, {}
    for at, tensor in enumerate(real):
        view = graph.parts[0].inputs[at].view
        if view is None or not isinstance(tensor, torch.Tensor):
            continue
        number = next((k for k, value in enumerate(given) if value is tensor), None)
        if number is None:
            frozen[view.base] = _as_it_lies(tensor, view.offset)
            called[view.base] = names.get(id(tensor), f"value_{at}")
        else:
            called[view.base] = f"input_{number}"
            shapes[called[view.base]] = tuple(tensor.shape)
    writer = NetTranslator(graph, {}, called, frozen=frozen)
    for op in graph.ops:
        writer.here = op
        rule = NET_RULES.get(op.target)
        if rule is None:
            writer.refuse("has no kernel")
        rule(writer, op)
    if not writer.ops:
        raise CaptureError("the forward computes nothing: it returns an input as it is.")
    found, constants = _compact(with_sums_inside(writer.finish()), writer.flash)
    return FloatNet(found, constants, tuple(shape for _, shape in sorted(shapes.items())))


def _as_it_lies(tensor: torch.Tensor, before: int) -> NDArray[Any]:
    """The numbers of a weight in the order in which they lie, behind as many as a view of it skips."""
    if not tensor.numel():
        return np.zeros(0, np.float32)
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.detach().as_strided((span,), (1,), tensor.storage_offset()).cpu().numpy()
    return np.concatenate((np.zeros(before, flat.dtype), flat))


def _compact(graph: Graph, constants: Constants) -> tuple[Graph, Constants]:
    """Keep the constants that ops read: not what went into others."""
    kept = Constants()

    def moved(value: Argument) -> Argument:
        return kept.put(constants.read(value)) if isinstance(value, View) and value.base == EMPTY else value

    ops = tuple(replace(op, arguments=tuple(moved(value) for value in op.arguments)) for op in graph.ops)
    said = (*graph.environment, (CONSTANTS, str(len(kept.data))))
    return replace(graph, ops=ops, environment=said), kept


def _attention(t: Translator, op: Op) -> None:
    """Softmax attention of heads that lie anyhow."""
    dense = []
    for value in op.arguments[:3]:
        assert isinstance(value, View)
        shape, strides = (tuple(of[k] for k in (0, 2, 1, 3)) for of in (value.shape, value.strides))
        dense.append(t.look(replace(value, shape=shape, strides=strides)))
    named = dict(op.keywords)
    if any(op.arguments[3:4]) or named.get("attn_mask") is not None:
        t.refuse("has dropout or a mask")
    q = dense[0]
    scale = named.get("scale")
    numbers = (q.shape[3] ** -0.5 if scale is None else scale, int(any(op.arguments[4:5])))
    makes = [("float32", q.shape), ("float32", (q.shape[0], q.shape[2], q.shape[1]))]
    made, old = t.emit("attention", (*dense, *numbers), makes)[0], t.result(0)
    assert isinstance(t, NetTranslator)
    assert old is not None
    batch, rows, heads, size = q.shape
    steps = (rows * heads * size, size, heads * size, 1)
    if merged(old.shape, old.strides) == merged(old.shape, steps):
        t.bind_as_it_lies(old, made)
        return
    flat = replace(made, shape=(prod(q.shape),), strides=(1,))
    turned = (flat, Items((batch, heads, rows, size)), Items(steps), 0)
    t.bind(old, t.emit("gather", turned, [("float32", old.shape)])[0])


def _gelu(t: Translator, op: Op) -> None:
    """``aten.gelu`` by the error function or by tanh."""
    if dict(op.keywords).get("approximate") == "tanh":
        curve("gelu_tanh")(t, replace(op, arguments=op.arguments[:1]))
    else:
        RULES[op.target](t, op)


_SHARED = ("native_layer_norm.default", "relu.default")
NET_RULES: Final[dict[str, Callable[[Translator, Op], None]]] = {
    **{f"aten.{name}": RULES[f"aten.{name}"] for name in _SHARED},
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten.gelu.default": _gelu,
    **MORE_RULES,
}
"""Captured op -> its rule, of inference."""
