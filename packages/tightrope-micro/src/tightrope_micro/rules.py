"""Rules: what each captured op becomes in the C library.

A rule gets the translator and the captured op. It reads the op's arguments through `Translator.look`, writes
ops with `Translator.emit`, and binds the captured results to the new ones.
"""

from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np

from tightrope.core import Argument, Items, Kind, Op, View
from tightrope_micro.curve_rules import CURVE_RULES
from tightrope_micro.pad_rules import as_map, cropped, pad, unpadded
from tightrope_micro.row_rules import ROW_RULES, mean_rows, mean_rows_backward, spread_rows
from tightrope_micro.sequence_rules import SEQUENCE_RULES
from tightrope_micro.translator import AdamRule, PendingGradient, Translator, is_dense, whole_numbers


def _window(t: Translator, op: Op, at: int, default: Argument = None) -> tuple[int, int]:
    """Two numbers of an op's argument, height and width."""
    value = op.arguments[at] if at < len(op.arguments) else default
    found = whole_numbers(value) if isinstance(value, Items) else ()
    if not found and isinstance(default, Items):
        found = whole_numbers(default)
    if not 1 <= len(found) <= 2:
        t.refuse(f"has {value!r:.40} where a height and a width are expected")
    return found[0], found[-1]


def _pair(values: tuple[int, int]) -> Items:
    return Items(values)


def convolution_numbers(
    t: Translator, op: Op, at: int
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    """Stride, padding, dilation and groups of a convolution whose stride is the argument ``at``."""
    stride, padding, dilation = (_window(t, op, at + k) for k in range(3))
    groups = op.arguments[at + 5]
    if op.arguments[at + 3] or not isinstance(groups, int):
        t.refuse("is transposed")
    if len(whole_numbers(op.arguments[at])) == 1:  # a row of samples is a map of one row
        return (1, stride[1]), (0, padding[1]), (1, dilation[1]), groups
    return stride, padding, dilation, groups


def _conv(t: Translator, op: Op, at: int) -> tuple[Items, Items, int]:
    stride, padding, dilation, groups = convolution_numbers(t, op, at)
    if dilation != (1, 1):
        t.refuse("is dilated")
    return _pair(stride), _pair(padding), groups


def four(t: Translator, view: View) -> View:
    """Refuse what is no map of batch, channels, height and width."""
    if len(view.shape) != 4:
        t.refuse(f"works on {len(view.shape)} dimensions; the kernel has 4")
    return view


def _read(t: Translator, value: Argument) -> tuple[View, tuple[int, int]]:
    """The input of a convolution as a map, and the zeros above and to the left."""
    assert isinstance(value, View)
    given, more = unpadded(t, value)
    return four(t, as_map(t.look(given))), more


def _wider(padding: Items, more: tuple[int, int]) -> Items:
    height, width = whole_numbers(padding)
    return Items((height + more[0], width + more[1]))


def convolution(t: Translator, op: Op) -> None:
    """``aten.convolution`` of one or two dimensions."""
    x, more = _read(t, op.arguments[0])
    weight = as_map(t.look(op.arguments[1]))
    bias = None if op.arguments[2] is None else t.look(op.arguments[2])
    stride, padding, groups = _conv(t, op, 3)
    old = t.result(0)
    assert old is not None
    geometry = (stride, _wider(padding, more), groups)
    (made,) = t.emit("conv2d", (x, weight, bias, *geometry), [("float32", as_map(old).shape)])
    t.bind(old, made)


def convolution_backward(t: Translator, op: Op) -> None:
    """``aten.convolution_backward`` of weight and bias: both are computed in their updates."""
    g, (x, more) = four(t, as_map(t.look(op.arguments[0]))), _read(t, op.arguments[1])
    stride, padding, groups = _conv(t, op, 4)
    geometry = (stride, _wider(padding, more), groups)
    if (old := t.result(1)) is not None:
        t.pending[old.base] = PendingGradient("conv2d_weight_sgd", (g, x), geometry)
    if (old := t.result(2)) is not None:
        t.pending[old.base] = PendingGradient("channel_sum_sgd", (g,))


def convolution_input(t: Translator, op: Op) -> None:
    """``tightrope.convolution_input``."""
    g, weight = (four(t, as_map(t.look(op.arguments[k]))) for k in range(2))
    old = t.result(0)
    assert old is not None
    left, more = cropped(t, old)
    stride, padding, groups = _conv(t, op, 4)
    arguments = (g, weight, stride, _wider(padding, more), groups)
    (made,) = t.emit("conv2d_input", arguments, [("float32", as_map(left).shape)])
    t.bind(left, made)


def batch_norm(t: Translator, op: Op) -> None:
    """``aten._native_batch_norm_legit_functional``; mean and variance are two rows of one tensor."""
    x = t.look(op.arguments[0])
    weight, bias = (None if a is None else t.look(a) for a in op.arguments[1:3])
    mean, var = (None if a is None else t.whole(a) for a in op.arguments[3:5])
    training, momentum, eps = op.arguments[5:8]
    if training is not True or not isinstance(momentum, float) or not isinstance(eps, float):
        t.refuse("normalizes with running statistics; the kernel is that of training mode")
    (stats,) = t.emit("batch_norm_stats", (x,), [("float32", (2, x.shape[1]))])
    if mean is not None and var is not None:
        count = x.shape[0]
        for size in x.shape[2:]:
            count *= size
        t.emit("batch_norm_running", (stats, mean, var, momentum, count), mutates=(mean, var))
    (made,) = t.emit("batch_norm", (x, stats, weight, bias, eps), [("float32", x.shape)])
    for position, new in ((0, made), (1, stats), (2, stats)):
        old = t.result(position)
        assert old is not None
        t.bind(old, new)


def batch_norm_backward(t: Translator, op: Op) -> None:
    """``tightrope.norm_backward``: sums, then the input's gradient; weight and bias in their updates."""
    g, x = t.look(op.arguments[0]), t.look(op.arguments[1])
    weight = None if op.arguments[2] is None else t.look(op.arguments[2])
    saved, eps = op.arguments[5], op.arguments[8]
    if op.arguments[7] is not True or not isinstance(saved, View):
        t.refuse("normalizes with running statistics; the kernel is that of training mode")
    rows = (2, x.shape[1])
    stats = View(t.known[saved.base], "float32", rows, (x.shape[1], 1))
    (sums,) = t.emit("batch_norm_sums", (g, x, stats, eps), [("float32", rows)])
    if (old := t.result(0)) is not None:
        (made,) = t.emit("batch_norm_input", (g, x, stats, sums, weight, eps), [("float32", x.shape)])
        t.bind(old, made)
    for position, row in ((1, 1), (2, 0)):
        if (old := t.result(position)) is not None:
            part = View(sums.base, "float32", (x.shape[1],), (1,), offset=row * x.shape[1])
            t.pending[old.base] = PendingGradient("vector_sgd", (part,))


def _unary(name: str) -> Callable[[Translator, Op], None]:
    def rule(t: Translator, op: Op) -> None:
        x, old = t.look(op.arguments[0]), t.result(0)
        assert old is not None
        (made,) = t.emit(name, (x,), [("float32", x.shape)])
        t.bind(old, made)

    rule.__doc__ = f"An op of one tensor: ``micro.{name}``."
    return rule


def add(t: Translator, op: Op) -> None:
    """``aten.add.Tensor`` of two tensors of one shape; a counter of batches is left out."""
    first, old = op.arguments[0], t.result(0)
    assert old is not None
    if isinstance(first, View) and first.dtype == "int64" and first.shape == () and op.arguments[1] == 1:
        return
    left, right = t.look(first), t.look(op.arguments[1])
    if spread_rows(left, right) and not op.keywords and len(op.arguments) == 2:
        (made,) = t.emit("add_rows", (left, right), [("float32", left.shape)])
        t.bind(old, made)
        return
    if left.shape != right.shape or op.keywords or len(op.arguments) > 2:
        t.refuse("adds tensors of two shapes, or a multiple")
    (made,) = t.emit("add", (left, right), [("float32", left.shape)])
    t.bind(old, made)


def relu_backward(t: Translator, op: Op) -> None:
    """``aten.threshold_backward`` at zero."""
    if op.arguments[2] != 0:
        t.refuse("has a threshold that is not 0")
    g, y, old = t.look(op.arguments[0]), t.look(op.arguments[1]), t.result(0)
    assert old is not None
    (made,) = t.emit("relu_backward", (g, y), [("float32", y.shape)])
    t.bind(old, made)


def max_pool_window(t: Translator, op: Op) -> tuple[View, Items, Items, Items]:
    """Input, window, stride and padding of ``aten.max_pool2d_with_indices``."""
    x = four(t, t.look(op.arguments[0]))
    kernel = _window(t, op, 1)
    stride, padding = _window(t, op, 2, op.arguments[1]), _window(t, op, 3, Items((0, 0)))
    if _window(t, op, 4, Items((1, 1))) != (1, 1) or kernel[0] * kernel[1] > 255:
        t.refuse("has a dilation or a window of more than 255 elements")
    return x, _pair(kernel), _pair(stride), _pair(padding)


def max_pool(t: Translator, op: Op) -> None:
    """``aten.max_pool2d_with_indices``; a position is one byte, counted inside its window."""
    arguments = max_pool_window(t, op)
    old, places = t.result(0), t.result(1)
    assert old is not None
    makes = [("float32", old.shape), ("uint8", old.shape)]
    made, index = t.emit("max_pool2d", arguments, makes)
    t.bind(old, made)
    if places is not None:
        t.known[places.base] = index.base


def max_pool_backward(t: Translator, op: Op) -> None:
    """``tightrope.max_pool_input``."""
    g, places, old = t.look(op.arguments[0]), op.arguments[8], t.result(0)
    assert old is not None
    if not isinstance(places, View) or places.base not in t.known:
        t.refuse("has positions that no pooling here makes")
    index = View(t.known[places.base], "uint8", g.shape, g.strides)
    kernel = _window(t, op, 3)
    stride, padding = _window(t, op, 4, op.arguments[3]), _window(t, op, 5)
    arguments = (g, index, _pair(kernel), _pair(stride), _pair(padding))
    (made,) = t.emit("max_pool2d_backward", arguments, [("float32", old.shape)])
    t.bind(old, made)


def _average(t: Translator, op: Op, at: int) -> tuple[Items, Items]:
    """Window and stride of an average pool without padding."""
    kernel = _window(t, op, at)
    stride = _window(t, op, at + 1, op.arguments[at])
    if _window(t, op, at + 2, Items((0, 0))) != (0, 0) or any(op.arguments[at + 3 : at + 4]):
        t.refuse("has padding, or windows that end outside")
    if len(op.arguments) > at + 5 and op.arguments[at + 5] is not None:
        t.refuse("divides by another number than its window has elements")
    return _pair(kernel), _pair(stride)


def avg_pool(t: Translator, op: Op) -> None:
    """``aten.avg_pool2d``."""
    x, geometry, old = four(t, t.look(op.arguments[0])), _average(t, op, 1), t.result(0)
    assert old is not None
    (made,) = t.emit("avg_pool2d", (x, *geometry), [("float32", old.shape)])
    t.bind(old, made)


def avg_pool_backward(t: Translator, op: Op) -> None:
    """``aten.avg_pool2d_backward``."""
    g, geometry, old = four(t, t.look(op.arguments[0])), _average(t, op, 2), t.result(0)
    assert old is not None
    (made,) = t.emit("avg_pool2d_backward", (g, *geometry), [("float32", old.shape)])
    t.bind(old, made)


def mean(t: Translator, op: Op) -> None:
    """``aten.mean.dim`` over what is behind the channels, an average pool, or over the rows of three."""
    if mean_rows(t, op):
        return
    given, old = t.look(op.arguments[0]), t.result(0)
    assert old is not None
    rank = len(given.shape)
    if rank not in (3, 4) or sorted(k % rank for k in whole_numbers(op.arguments[1])) != list(range(2, rank)):
        t.refuse("averages over other dimensions than those behind the channels")
    x = as_map(given)
    window = _pair((x.shape[2], x.shape[3]))
    (made,) = t.emit("avg_pool2d", (x, window, window), [("float32", (*x.shape[:2], 1, 1))])
    t.bind(old, made)


def divide(t: Translator, op: Op) -> None:
    """``aten.div.Scalar`` of a tensor that was spread over height and width: an average pool's backward."""
    if mean_rows_backward(t, op):
        return
    given, by, old = op.arguments[0], op.arguments[1], t.result(0)
    assert old is not None
    if not isinstance(given, View) or len(given.shape) not in (3, 4) or by != prod(given.shape[2:]):
        t.refuse("divides what is not the mean over what is behind the channels")
    if any(step for size, step in zip(given.shape[2:], given.strides[2:], strict=True) if size > 1):
        t.refuse("divides what is not the mean over what is behind the channels")
    made_of = as_map(given).shape
    dense = View(given.base, given.dtype, (*made_of[:2], 1, 1), (*given.strides[:2], 1, 1), given.offset)
    window = _pair((made_of[2], made_of[3]))
    (made,) = t.emit("avg_pool2d_backward", (t.look(dense), window, window), [("float32", made_of)])
    t.bind(old, made)


def _flipped(view: Argument) -> View | None:
    """The tensor of which a view is the transpose, None where it is none."""
    if not isinstance(view, View) or len(view.shape) != 2:
        return None
    flipped = View(
        view.base, view.dtype, view.shape[::-1], view.strides[::-1], view.offset, view.bits, view.input
    )
    return flipped if is_dense(flipped) else None


def addmm(t: Translator, op: Op) -> None:
    """``aten.addmm`` of a bias, a batch and a transposed weight."""
    weight, old = _flipped(op.arguments[2]), t.result(0)
    assert old is not None
    if weight is None or op.keywords:
        t.refuse("multiplies by what is not a transposed weight")
    arguments = (t.look(op.arguments[1]), t.look(weight), t.look(op.arguments[0]))
    (made,) = t.emit("linear", arguments, [("float32", old.shape)])
    t.bind(old, made)


def mm(t: Translator, op: Op) -> None:
    """``aten.mm``: a layer without bias, or a gradient of its input or of its weight."""
    left, right, old = op.arguments[0], op.arguments[1], t.result(0)
    assert old is not None
    assert isinstance(left, View)
    assert isinstance(right, View)
    is_weight = t.graph.storages[right.base].kind == Kind.PARAMETER
    if op.phase == "forward":
        weight = _flipped(right)
        if weight is None or not is_weight:
            t.refuse("multiplies by what is not a transposed weight")
        (made,) = t.emit("linear", (t.look(left), t.look(weight), None), [("float32", old.shape)])
        t.bind(old, made)
    elif is_weight and is_dense(right) and is_dense(left):
        (made,) = t.emit("linear_input", (t.look(left), t.look(right)), [("float32", old.shape)])
        t.bind(old, made)
    else:
        rows, columns = left.shape
        g = View(left.base, left.dtype, (columns, rows), (rows, 1), left.offset, left.bits, left.input)
        t.pending[old.base] = PendingGradient("linear_weight_sgd", (t.look(g), t.look(right)))


def column_sum(t: Translator, op: Op) -> None:
    """``aten.sum.dim_IntList`` over the first dimension: the gradient of what was added to all of it."""
    g, old = t.look(op.arguments[0]), t.result(0)
    assert old is not None
    if whole_numbers(op.arguments[1]) != (0,) or len(g.shape) < 2:
        t.refuse("sums over other dimensions than the first")
    if len(g.shape) > 2:
        count = prod(g.shape[1:])
        g = View(g.base, g.dtype, (g.shape[0], count), (count, 1), input=g.input)
    t.pending[old.base] = PendingGradient("channel_sum_sgd", (g,))


def log_softmax(t: Translator, op: Op) -> None:
    """``aten._log_softmax`` over columns."""
    x, old = t.look(op.arguments[0]), t.result(0)
    assert old is not None
    if len(x.shape) != 2 or op.arguments[1] not in (1, -1):
        t.refuse("normalizes over another dimension than the columns of a matrix")
    (made,) = t.emit("log_softmax", (x,), [("float32", x.shape)])
    t.bind(old, made)


def log_softmax_backward(t: Translator, op: Op) -> None:
    """``aten._log_softmax_backward_data`` over columns."""
    g, y, old = t.look(op.arguments[0]), t.look(op.arguments[1]), t.result(0)
    assert old is not None
    (made,) = t.emit("log_softmax_backward", (g, y), [("float32", y.shape)])
    t.bind(old, made)


def _plain_nll(t: Translator, arguments: tuple[Argument, ...]) -> None:
    if arguments != (None, 1, -100):
        t.refuse("has weights, a sum, or a class to ignore; the kernel takes the mean over all rows")


def nll_loss(t: Translator, op: Op) -> None:
    """``aten.nll_loss_forward``, the mean over rows."""
    _plain_nll(t, op.arguments[2:5])
    old = t.result(0)
    assert old is not None
    (made,) = t.emit("nll_loss", (t.look(op.arguments[0]), t.look(op.arguments[1])), [("float32", ())])
    t.bind(old, made)


def nll_loss_backward(t: Translator, op: Op) -> None:
    """``aten.nll_loss_backward`` from a gradient of one."""
    _plain_nll(t, op.arguments[3:6])
    logp, old = t.look(op.arguments[1]), t.result(0)
    assert old is not None
    _from_one(t, op.arguments[0])
    (made,) = t.emit("nll_loss_backward", (t.look(op.arguments[2]),), [("float32", logp.shape)])
    t.bind(old, made)


def mse_loss(t: Translator, op: Op) -> None:
    """``aten.mse_loss``, the mean over elements."""
    if op.arguments[2:] not in ((), (1,)):
        t.refuse("takes a sum; the kernel takes the mean")
    old = t.result(0)
    assert old is not None
    (made,) = t.emit("mse_loss", (t.look(op.arguments[0]), t.look(op.arguments[1])), [("float32", ())])
    t.bind(old, made)


def mse_loss_backward(t: Translator, op: Op) -> None:
    """``aten.mse_loss_backward`` from a gradient of one."""
    if op.arguments[3] != 1:
        t.refuse("takes a sum; the kernel takes the mean")
    _from_one(t, op.arguments[0])
    x, target, old = t.look(op.arguments[1]), t.look(op.arguments[2]), t.result(0)
    assert old is not None
    (made,) = t.emit("mse_loss_backward", (x, target), [("float32", x.shape)])
    t.bind(old, made)


def _from_one(t: Translator, start: Argument) -> None:
    if not isinstance(start, View) or t.constants.get(start.base) != 1.0:
        t.refuse("starts from a gradient that is not 1: the loss must be what the model returns")


def full(t: Translator, op: Op) -> None:
    """``aten.full`` of one number: the gradient that the backward starts from."""
    old, value = t.result(0), op.arguments[1]
    assert old is not None
    if old.shape != () or not isinstance(value, int | float):
        t.refuse("fills a tensor")
    t.constants[old.base] = float(value)


def update(t: Translator, op: Op) -> None:
    """``tightrope.sgd_``: the gradient is computed inside it."""
    parameter, gradient, *rest = op.arguments
    state, settings = (
        [v for v in rest if isinstance(v, View)][:-1],
        [v for v in rest if isinstance(v, View)][-1],
    )
    assert isinstance(gradient, View)
    numbers = t.updates[settings.base]
    if gradient.base in t.known and gradient.base not in t.pending:  # it flows on, to other layers
        t.pending[gradient.base] = PendingGradient("vector_sgd", (t.look(gradient),))
    if gradient.base not in t.pending:
        t.refuse("has a gradient that is a sum: a weight that is used twice")
    found = t.pending[gradient.base]  # which two biases may share
    weight = t.whole(parameter)
    weight = as_map(weight) if found.target.startswith("conv2d") else weight
    if isinstance(numbers, AdamRule):
        first, second = (t.whole(one) for one in state)
        behind = (*found.behind, second, t.adam_rates(numbers), *_adamw(numbers))
        target = f"{found.target.removesuffix('sgd')}adamw"
        t.emit(target, (*found.before, weight, first, *behind), mutates=(weight, first, second))
        return
    momentum = t.whole(state[0]) if state else None
    changed = (weight,) if momentum is None else (weight, momentum)
    rule = (numbers.lr, numbers.momentum, numbers.weight_decay, numbers.nesterov, numbers.maximize)
    t.emit(found.target, (*found.before, weight, momentum, *found.behind, *rule), mutates=changed)


def _adamw(rule: AdamRule) -> tuple[float | bool, ...]:
    """Numbers of an update, each the float32 that PyTorch rounds it to."""
    (one, two), shrink = rule.betas, 1.0 - rule.lr * rule.weight_decay
    rounded = (float(np.float32(value)) for value in (shrink, 1.0 - one, two, 1.0 - two, rule.eps))
    return (*rounded, rule.maximize)


RULES: Final[dict[str, Callable[[Translator, Op], None]]] = {
    "aten._log_softmax.default": log_softmax,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
    "aten._native_batch_norm_legit_functional.default": batch_norm,
    "aten.add.Tensor": add,
    "aten.addmm.default": addmm,
    "aten.avg_pool2d.default": avg_pool,
    "aten.avg_pool2d_backward.default": avg_pool_backward,
    "aten.constant_pad_nd.default": pad,
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
    "aten.div.Scalar": divide,
    "aten.full.default": full,
    "aten.max_pool2d_with_indices.default": max_pool,
    "aten.mean.dim": mean,
    "aten.mm.default": mm,
    "aten.mse_loss.default": mse_loss,
    "aten.mse_loss_backward.default": mse_loss_backward,
    "aten.nll_loss_backward.default": nll_loss_backward,
    "aten.nll_loss_forward.default": nll_loss,
    "aten.relu.default": _unary("relu"),
    "aten.sum.dim_IntList": column_sum,
    "aten.threshold_backward.default": relu_backward,
    "tightrope.convolution_input": convolution_input,
    "tightrope.max_pool_input": max_pool_backward,
    "tightrope.norm_backward": batch_norm_backward,
    "tightrope.sgd_": update,
    **CURVE_RULES,
    **ROW_RULES,
    **SEQUENCE_RULES,
}
"""Captured op -> its rule."""
