"""Rules for ops that work on rows: layer norm, GELU, attention, embeddings, means over rows."""

from collections.abc import Callable
from math import prod
from typing import Final

from tightrope.core import Argument, Op, View
from tightrope_micro.translator import PendingGradient, Translator, contiguous, whole_numbers


def spread_rows(left: View, right: View) -> bool:
    """Tell whether a tensor is added to every row of another one.

    >>> shapes = ((4, 8, 16), (1, 8, 16))
    >>> spread_rows(*(View(k, "float32", shape, contiguous(shape)) for k, shape in enumerate(shapes)))
    True
    """
    inner = right.shape
    while inner[:1] == (1,):
        inner = inner[1:]
    return left.shape != right.shape and inner == left.shape[len(left.shape) - len(inner) :]


def mean_rows(t: Translator, op: Op) -> bool:
    """``aten.mean.dim`` over the middle one of three dimensions; False where it is another one."""
    given, old = op.arguments[0], t.result(0)
    if not isinstance(given, View) or len(given.shape) != 3 or whole_numbers(op.arguments[1]) != (1,):
        return False
    x = t.look(given)
    (made,) = t.emit("mean_rows", (x,), [("float32", (x.shape[0], x.shape[2]))])
    t.bind(old, made)
    return True


def mean_rows_backward(t: Translator, op: Op) -> bool:
    """``aten.div.Scalar`` of a tensor that was spread over rows; False where it was not."""
    given, old = op.arguments[0], t.result(0)
    if (
        not isinstance(given, View)
        or len(given.shape) != 3
        or given.strides[1]
        or op.arguments[1] != given.shape[1]
    ):
        return False
    shape = (given.shape[0], given.shape[2])
    g = t.look(View(given.base, given.dtype, shape, (given.strides[0], given.strides[2]), given.offset))
    (made,) = t.emit("mean_rows_backward", (g,), [("float32", given.shape)])
    t.bind(old, made)
    return True


def embedding(t: Translator, op: Op) -> None:
    """``aten.embedding``."""
    table, index, old = t.look(op.arguments[0]), t.look(op.arguments[1]), t.result(0)
    assert old is not None
    (made,) = t.emit("embedding", (table, index), [("float32", old.shape)])
    t.bind(old, made)


def embedding_backward(t: Translator, op: Op) -> None:
    """``aten.embedding_dense_backward``: computed in the table's update."""
    old = t.result(0)
    assert old is not None
    if op.arguments[3] != -1 or op.arguments[4]:
        t.refuse("has a row without a gradient, or divides by how often a row is read")
    t.pending[old.base] = PendingGradient("embedding_sgd", (t.look(op.arguments[0]), t.look(op.arguments[1])))


def _optional(t: Translator, value: Argument) -> View | None:
    return None if value is None else t.look(value)


def layer_norm(t: Translator, op: Op) -> None:
    """``aten.native_layer_norm`` over the last dimension; mean and scale are two rows of one tensor."""
    x, eps, old = t.look(op.arguments[0]), op.arguments[4], t.result(0)
    assert old is not None
    if len(whole_numbers(op.arguments[1])) != 1:
        t.refuse("normalizes over several dimensions; the kernel takes the last one")
    weight, bias = _optional(t, op.arguments[2]), _optional(t, op.arguments[3])
    (stats,) = t.emit("row_stats", (x, eps), [("float32", (2, prod(x.shape[:-1])))])
    (made,) = t.emit("layer_norm", (x, stats, weight, bias), [("float32", x.shape)])
    t.bind(old, made)
    for position in (1, 2):
        if (saved := t.result(position)) is not None:
            t.bind(saved, stats)


def layer_norm_backward(t: Translator, op: Op) -> None:
    """``aten.native_layer_norm_backward``: the input's gradient; weight and bias in their updates."""
    g, x, saved = t.look(op.arguments[0]), t.look(op.arguments[1]), op.arguments[3]
    weight = _optional(t, op.arguments[5])
    if not isinstance(saved, View) or saved.base not in t.known:
        t.refuse("has a mean that no norm here makes")
    shape = (2, prod(x.shape[:-1]))
    stats = View(t.known[saved.base], "float32", shape, contiguous(shape))
    rows = View(g.base, g.dtype, (shape[1], x.shape[-1]), (x.shape[-1], 1), input=g.input)
    if (old := t.result(0)) is not None:
        (made,) = t.emit("layer_norm_input", (g, x, stats, weight), [("float32", x.shape)])
        t.bind(old, made)
    if (old := t.result(1)) is not None:
        t.pending[old.base] = PendingGradient("layer_norm_weight_sgd", (g, x, stats))
    if (old := t.result(2)) is not None:
        t.pending[old.base] = PendingGradient("channel_sum_sgd", (rows,))


def gelu(t: Translator, op: Op) -> None:
    """``aten.gelu`` by the error function."""
    if op.keywords:
        t.refuse("is approximated by tanh; the kernel takes the error function")
    x, old = t.look(op.arguments[0]), t.result(0)
    (made,) = t.emit("gelu", (x,), [("float32", x.shape)])
    t.bind(old, made)


def gelu_backward(t: Translator, op: Op) -> None:
    """``aten.gelu_backward`` by the error function."""
    if op.keywords:
        t.refuse("is approximated by tanh; the kernel takes the error function")
    g, x, old = t.look(op.arguments[0]), t.look(op.arguments[1]), t.result(0)
    (made,) = t.emit("gelu_backward", (g, x), [("float32", x.shape)])
    t.bind(old, made)


def _heads(t: Translator, value: Argument) -> View:
    """Look at a tensor of [batch][head][row][size] that lies as [batch][row][head][size]."""
    assert isinstance(value, View)
    batch, heads, rows, size = value.shape
    lies = (batch, rows, heads, size)
    order = contiguous(lies)
    if value.strides != (order[0], order[2], order[1], order[3]) and 1 not in (rows, heads):
        t.refuse("reads heads that do not lie side by side in every row")
    return t.look(View(value.base, value.dtype, lies, order, value.offset, value.bits, value.input))


def _attention_numbers(t: Translator, op: Op, at: int, size: int) -> tuple[float, int]:
    """Scale, and whether it is causal, of an attention whose dropout is the argument ``at``."""
    numbers, named = op.arguments[at : at + 2], dict(op.keywords)
    scale = named.get("scale")
    if any(numbers[:1]) or named.get("attn_mask") is not None or len(op.arguments) > at + 2:
        t.refuse("has dropout or a mask")
    found = size**-0.5 if scale is None else scale
    assert isinstance(found, float)
    return found, int(any(numbers[1:]))


def attention(t: Translator, op: Op) -> None:
    """Softmax attention without a mask, or a causal one: scores are never stored."""
    q, k, v = (_heads(t, op.arguments[at]) for at in range(3))
    numbers = _attention_numbers(t, op, 3, q.shape[3])
    makes = [("float32", q.shape), ("float32", (q.shape[0], q.shape[2], q.shape[1]))]
    for position, new in enumerate(t.emit("attention", (q, k, v, *numbers), makes)):
        if (old := t.result(position)) is not None:
            t.bind_as_it_lies(old, new)


def attention_backward(t: Translator, op: Op) -> None:
    """Gradients of attention's three inputs."""
    g, q, k, v, y = (_heads(t, op.arguments[at]) for at in range(5))
    saved = op.arguments[5]
    assert isinstance(saved, View)
    shape = (q.shape[0], q.shape[2], q.shape[1])
    logs = View(t.known[saved.base], "float32", shape, contiguous(shape))
    numbers = _attention_numbers(t, op, 6, q.shape[3])
    makes = [("float32", one.shape) for one in (q, k, v)]
    for position, new in enumerate(t.emit("attention_backward", (g, q, k, v, y, logs, *numbers), makes)):
        if (old := t.result(position)) is not None:
            t.bind_as_it_lies(old, new)


ROW_RULES: Final[dict[str, Callable[[Translator, Op], None]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
    "aten.embedding.default": embedding,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.gelu.default": gelu,
    "aten.gelu_backward.default": gelu_backward,
    "aten.native_layer_norm.default": layer_norm,
    "aten.native_layer_norm_backward.default": layer_norm_backward,
}
"""Captured op -> its rule."""
