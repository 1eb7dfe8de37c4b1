"""Capture inference: a forward in evaluation mode as ops of the C library, weights as constants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from tightrope.capture import capture_program
from tightrope.core import Argument, CaptureError, Graph, Items, Op, StorageId, View
from tightrope.core.values import CONSTANTS, EMPTY
from tightrope_micro.constants import Constants
from tightrope_micro.infer.fuse import with_sums_inside
from tightrope_micro.rules import RULES, max_pool_window
from tightrope_micro.translator import Translator, is_dense

_MOST_DIMENSIONS: Final = 4


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
        with torch.no_grad():
            program, real = capture_program(model.eval(), given, {})
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
            frozen[view.base] = tensor.detach().cpu().contiguous().numpy().ravel()
            called[view.base] = names.get(id(tensor), f"value_{at}")
        else:
            called[view.base] = f"input_{number}"
            shapes[called[view.base]] = tuple(tensor.shape)
    writer = NetTranslator(graph, {}, called, tuple(NET_RULES), frozen=frozen)
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


def _compact(graph: Graph, constants: Constants) -> tuple[Graph, Constants]:
    """Keep the constants that ops read: not what went into others."""
    kept = Constants()

    def moved(value: Argument) -> Argument:
        return kept.put(constants.read(value)) if isinstance(value, View) and value.base == EMPTY else value

    ops = tuple(replace(op, arguments=tuple(moved(value) for value in op.arguments)) for op in graph.ops)
    said = (*graph.environment, (CONSTANTS, str(len(kept.data))))
    return replace(graph, ops=ops, environment=said), kept


@dataclass
class NetTranslator(Translator):
    """The new graph while it is written; tensors that lie otherwise than their indices are copied.

    Attributes:
        frozen: captured storage of a weight -> its numbers.
        flash: constants that the new graph reads.
    """

    frozen: Mapping[StorageId, NDArray[Any]] = field(default_factory=dict)
    flash: Constants = field(default_factory=Constants)

    def look(self, value: Argument) -> View:
        """Look at a tensor: a constant, or a dense one, made so where it is not."""
        if not isinstance(value, View):
            self.refuse(f"takes {value!r:.60} where a tensor is expected")
        if value.base in self.frozen:
            flat = self.frozen[value.base][value.offset :]
            strides = tuple(stride * flat.itemsize for stride in value.strides)
            return self.flash.put(np.lib.stride_tricks.as_strided(flat, value.shape, strides))
        if value.base not in self.known:
            self._caller(value)
        storage = self.storages[self.known[value.base]]
        whole = not value.offset and prod(value.shape) * 4 == storage.bytes
        if storage.label.startswith("float32") and not (whole and is_dense(value)):
            return self.gather(value)
        return super().look(value)

    def gather(self, value: View) -> View:
        """Copy what a view shows, in the order of its indices."""
        if len(value.shape) > _MOST_DIMENSIONS:
            self.refuse(f"reads a permutation of {len(value.shape)} dimensions; the kernel has 4")
        source = self.storages[self.known[value.base]]
        x = self._plain(source.id, "float32", (source.bytes // 4,))
        arguments = (x, Items(value.shape), Items(value.strides), value.offset)
        return self.emit("gather", arguments, [("float32", value.shape)])[0]


def _batch_norm(t: Translator, op: Op) -> None:
    """``aten._native_batch_norm_legit_no_training``: into weight and bias of the convolution before it."""
    assert isinstance(t, NetTranslator)
    x = t.look(op.arguments[0])
    weight, bias, mean_, variance = (
        None if a is None else t.flash.read(t.look(a)).astype(np.float64) for a in op.arguments[1:5]
    )
    eps, old = op.arguments[6], t.result(0)
    at = next((k for k, made in enumerate(t.ops) if x.base in made.creates), None)
    once = sum(o.reads.count(v.base) for o in t.graph.ops for v in [op.arguments[0]] if isinstance(v, View))
    if at is None or t.ops[at].target not in ("micro.conv2d", "micro.linear") or once != 1:
        t.refuse("does not stand behind a convolution or a dense layer of its own")
    assert isinstance(eps, float)
    assert mean_ is not None
    assert variance is not None
    before = t.ops[at]
    _, kernel, start, *rest = before.arguments
    assert isinstance(kernel, View)
    w = t.flash.read(kernel)
    scale = (1.0 if weight is None else weight) / np.sqrt(variance + eps)
    b = 0.0 if not isinstance(start, View) else t.flash.read(start)
    moved = (b - mean_) * scale + (0.0 if bias is None else bias)
    folded = (
        t.flash.put((w * scale.reshape(-1, *(1,) * (w.ndim - 1))).astype(np.float32)),
        t.flash.put(np.asarray(moved, np.float32)),
    )
    t.ops[at] = replace(before, arguments=(before.arguments[0], *folded, *rest))
    t.bind(old, x)


def _max_pool(t: Translator, op: Op) -> None:
    """``aten.max_pool2d_with_indices`` without positions."""
    arguments, old = max_pool_window(t, op), t.result(0)
    assert old is not None
    t.bind(old, t.emit("max_pool2d_only", arguments, [("float32", old.shape)])[0])


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
    t.bind(t.result(0), t.emit("attention", (*dense, *numbers), makes)[0])


def _cat(t: Translator, op: Op) -> None:
    """``aten.cat`` of two along the outermost dimension that is not 1: one lies behind the other."""
    items, old = op.arguments[0], t.result(0)
    assert isinstance(items, Items)
    assert old is not None
    axis = op.arguments[1] if len(op.arguments) > 1 else 0
    assert isinstance(axis, int)
    if len(items.items) != 2 or prod(old.shape[: axis % len(old.shape)]) != 1:
        t.refuse("joins more than two tensors, or along an inner dimension")
    t.bind(old, t.emit("cat", tuple(t.look(item) for item in items.items), [("float32", old.shape)])[0])


def _copy(t: Translator, op: Op) -> None:
    """``aten.clone``: what is looked at is dense."""
    given = op.arguments[0]
    assert isinstance(given, View)
    t.bind(t.result(0), t.look(given))


_SHARED = (
    "add.Tensor", "addmm.default", "avg_pool2d.default", "convolution.default", "gelu.default", "mean.dim",
    "mm.default", "native_layer_norm.default", "relu.default",
)  # fmt: skip
NET_RULES: Final[dict[str, Callable[[Translator, Op], None]]] = {
    **{f"aten.{name}": RULES[f"aten.{name}"] for name in _SHARED},
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten.cat.default": _cat,
    "aten.clone.default": _copy,
    "aten.max_pool2d_with_indices.default": _max_pool,
}
"""Captured op -> its rule, of inference."""
