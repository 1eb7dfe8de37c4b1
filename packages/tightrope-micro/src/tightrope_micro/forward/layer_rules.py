"""Rules of inference for layers of sensor nets: convolutions, pools, norms, copies, recurrence."""

from math import prod
from typing import Final

import numpy as np
from msgspec.structs import replace

from tightrope.core import Items, Op, View
from tightrope_micro.curve_rules import Rule, made_by, number_of, write
from tightrope_micro.forward.element_rules import ELEMENT_RULES
from tightrope_micro.forward.writer import NetTranslator
from tightrope_micro.names import DIMENSIONS
from tightrope_micro.pad_rules import as_map, inside_convolutions, unpadded
from tightrope_micro.rules import RULES, convolution_numbers, four, max_pool_window
from tightrope_micro.sequence_rules import cat, copy, recurrent
from tightrope_micro.translator import Translator, contiguous, merged, whole_numbers


def _net(t: Translator) -> NetTranslator:
    assert isinstance(t, NetTranslator)
    return t


def _pad(t: Translator, op: Op) -> None:
    """``aten.constant_pad_nd``: part of the convolutions that read it, where those are all."""
    given, amounts = op.arguments[0], whole_numbers(op.arguments[1])
    assert isinstance(given, View)
    value = number_of(t, op.arguments[2] if len(op.arguments) > 2 else 0.0)
    before = [0] * len(given.shape)
    for k in range(len(amounts) // 2):
        before[-1 - k] = amounts[2 * k]
    old = made_by(t)
    if inside_convolutions(t, given, old, amounts, value):
        return
    if len(given.shape) > DIMENSIONS:
        t.refuse(f"pads {len(given.shape)} dimensions; the kernel has {DIMENSIONS}")
    write(t, "pad", (t.look(given), Items(tuple(before)), value))


def _convolution(t: Translator, op: Op) -> None:
    """``aten.convolution`` of one or two dimensions: as in training, or dilated."""
    stride, padding, dilation, groups = convolution_numbers(t, op, 3)
    if dilation == (1, 1):
        RULES[op.target](t, op)
        return
    given, old = op.arguments[0], made_by(t)
    assert isinstance(given, View)
    inside, (top, left) = unpadded(t, given)
    x, weight = four(t, as_map(t.look(inside))), as_map(t.look(op.arguments[1]))
    bias = None if op.arguments[2] is None else t.look(op.arguments[2])
    windows = (Items(stride), Items((padding[0] + top, padding[1] + left)), Items(dilation))
    arguments = (x, weight, bias, *windows, groups)
    (made,) = t.emit("conv2d_dilated", arguments, [("float32", as_map(old).shape)])
    t.bind(old, made)


def _batch_norm(t: Translator, op: Op) -> None:
    """``aten._native_batch_norm_legit_no_training``: into the layer before it, or a layer of its own."""
    net = _net(t)
    given = op.arguments[0]
    assert isinstance(given, View)
    x = t.look(given)
    weight, bias, mean, variance = (
        None if a is None else net.flash.read(t.look(a)).astype(np.float64) for a in op.arguments[1:5]
    )
    eps, old = op.arguments[6], made_by(t)
    assert isinstance(eps, float)
    assert mean is not None
    assert variance is not None
    scale = (1.0 if weight is None else weight) / np.sqrt(variance + eps)
    shift = (0.0 if bias is None else bias) - mean * scale
    at = next((k for k, made in enumerate(t.ops) if x.base in made.creates), None)
    kept = [v.base for v in t.graph.parts[0].outputs if isinstance(v, View)]
    once = sum(o.reads.count(given.base) for o in t.graph.ops) + kept.count(given.base)
    if (
        at is not None
        and t.ops[at].target in ("micro.conv2d", "micro.linear", "micro.conv2d_dilated")
        and t.ops[at].results[0].view.shape[:2] == given.shape[:2]  # the channels are those of the layer
        and once == 1
    ):
        before = t.ops[at]
        _, kernel, start, *rest = before.arguments
        assert isinstance(kernel, View)
        w = net.flash.read(kernel)
        b = net.flash.read(start) if isinstance(start, View) else 0.0
        folded = (
            net.flash.put((w * scale.reshape(-1, *(1,) * (w.ndim - 1))).astype(np.float32)),
            net.flash.put(np.asarray(b * scale + shift, np.float32)),
        )
        t.ops[at] = replace(before, arguments=(before.arguments[0], *folded, *rest))
        t.bind(old, x)
        return
    n, c = x.shape[:2]
    inner = (1, prod(x.shape[2:])) if len(x.shape) != 4 else x.shape[2:]
    shape = (n, c, *inner)
    x = replace(x, shape=shape, strides=contiguous(shape))
    kernel = net.flash.put(scale.reshape(c, 1, 1, 1).astype(np.float32))
    numbers = (Items((1, 1)), Items((0, 0)), c)
    bias_of = net.flash.put(np.asarray(shift, np.float32))
    (made,) = t.emit("conv2d", (x, kernel, bias_of, *numbers), [("float32", shape)])
    t.bind(old, made)


def _group_norm(t: Translator, op: Op) -> None:
    """``aten.native_group_norm``."""
    weight, bias = (None if a is None else t.look(a) for a in op.arguments[1:3])
    write(t, "group_norm", (t.look(op.arguments[0]), weight, bias, *op.arguments[6:8]))


def _instance_norm(t: Translator, op: Op) -> None:
    """``aten._native_batch_norm_legit.no_stats`` of one sample: a group norm with a group per channel."""
    x = t.look(op.arguments[0])
    if x.shape[0] != 1 or op.arguments[3] is not True:
        t.refuse("normalizes over several samples")
    weight, bias = (None if a is None else t.look(a) for a in op.arguments[1:3])
    write(t, "group_norm", (x, weight, bias, x.shape[1], op.arguments[5]))


def _repeat(t: Translator, op: Op) -> None:
    """``aten.repeat`` of a weight."""
    given = op.arguments[0]
    if not isinstance(given, View) or given.base not in _net(t).frozen:
        t.refuse("repeats what is not a weight")
    found = np.tile(_net(t).flash.read(t.look(given)), whole_numbers(op.arguments[1]))
    _net(t).frozen[made_by(t).base] = found.ravel()


def _zeros(t: Translator, op: Op) -> None:
    """``aten.zeros``: a constant."""
    old = made_by(t)
    _net(t).frozen[old.base] = np.zeros(prod(old.shape), np.float32)


def _max_pool(t: Translator, op: Op) -> None:
    """``aten.max_pool2d_with_indices`` without positions."""
    write(t, "max_pool2d_only", max_pool_window(t, op))


def _avg_pool(t: Translator, op: Op) -> None:
    """``aten.avg_pool2d``: with windows inside as in training, else with edges."""
    given = op.arguments
    padding = whole_numbers(given[3]) if len(given) > 3 else (0, 0)
    ceil, includes, divisor = (
        given[k] if len(given) > k else default for k, default in ((4, False), (5, True), (6, None))
    )
    if not any(padding) and not ceil and divisor is None:
        RULES["aten.avg_pool2d.default"](t, replace(op, arguments=given[:3]))
        return
    kernel = whole_numbers(given[1])
    stride = (
        whole_numbers(given[2])
        if len(given) > 2 and isinstance(given[2], Items) and given[2].items
        else kernel
    )
    windows = tuple(Items((one[0], one[-1])) for one in (kernel, stride, padding))
    write(t, "avg_pool2d_edge", (four(t, t.look(given[0])), *windows, int(bool(includes)), divisor or 0))


def _adaptive(kind: str) -> Rule:
    def rule(t: Translator, op: Op) -> None:
        x, old = four(t, t.look(op.arguments[0])), made_by(t)
        (h, w), (oh, ow) = x.shape[2:], old.shape[2:]
        if kind == "mean" and h % oh == 0 and w % ow == 0:
            window = Items((h // oh, w // ow))
            write(t, "avg_pool2d", (x, window, window))
        else:
            write(t, "adaptive_pool2d", (x, kind))

    rule.__doc__ = f"An adaptive pool: {kind}."
    return rule


def _upsample(kind: str) -> Rule:
    def rule(t: Translator, op: Op) -> None:
        x, old = t.look(op.arguments[0]), made_by(t)
        (h, w), (oh, ow) = x.shape[2:], old.shape[2:]
        by, across = oh // h, ow // w
        if kind == "nearest" and (by * h, across * w) == (oh, ow):
            sizes, strides = (prod(x.shape[:3]), by, w, across), (w, 0, 1, 0)
            flat = replace(x, shape=(prod(x.shape),), strides=(1,))
            (made,) = t.emit("gather", (flat, Items(sizes), Items(strides), 0), [("float32", old.shape)])
            t.bind(old, made)
            return
        corners = kind == "bilinear" and op.arguments[2] is True
        scales = [value for value in op.arguments[2:] if isinstance(value, float)]
        ratios = [
            (i - 1) / max(o - 1, 1) if corners else 1 / scales[k] if scales else i / o
            for k, (i, o) in enumerate(((h, oh), (w, ow)))
        ]
        write(t, "upsample2d", (x, kind, int(corners), *ratios))

    rule.__doc__ = f"Upsampling: {kind}."
    return rule


def _shuffled(t: Translator, view: View, sizes: tuple[int, ...], order: tuple[int, ...]) -> None:
    """Copy what is looked at in another order of its dimensions."""
    strides = contiguous(sizes)
    shape, steps = merged(tuple(sizes[k] for k in order), tuple(strides[k] for k in order))
    if len(shape) > DIMENSIONS:
        t.refuse(f"reads a permutation of {len(shape)} dimensions; the kernel has {DIMENSIONS}")
    flat = replace(view, shape=(prod(view.shape),), strides=(1,))
    write(t, "gather", (flat, Items(shape), Items(steps), 0))


def _channel_shuffle(t: Translator, op: Op) -> None:
    """``aten.channel_shuffle``."""
    x, groups = t.look(op.arguments[0]), op.arguments[1]
    assert isinstance(groups, int)
    n, c, *rest = x.shape
    _shuffled(t, x, (n, groups, c // groups, prod(rest)), (0, 2, 1, 3))


def _pixel_shuffle(t: Translator, op: Op) -> None:
    """``aten.pixel_shuffle``."""
    x, by = t.look(op.arguments[0]), op.arguments[1]
    assert isinstance(by, int)
    n, c, h, w = x.shape
    _shuffled(t, x, (n * c // by**2, by, by, h, w), (0, 3, 1, 4, 2))


def _bmm(t: Translator, op: Op) -> None:
    """``aten.bmm``."""
    write(t, "bmm", (t.look(op.arguments[0]), t.look(op.arguments[1])))


def _linear(t: Translator, op: Op) -> None:
    """``aten.addmm`` of a bias, rows and a weight, whichever way that lies."""
    bias, x, right = op.arguments[:3]
    if not isinstance(right, View) or right.base not in _net(t).frozen or op.keywords:
        t.refuse("multiplies by what is not a weight, or by a number")
    weight = _net(t).flash.put(np.ascontiguousarray(_net(t).flash.read(t.look(right)).T))
    if bias is not None:
        alone = isinstance(bias, View) and bias.base in _net(t).frozen
        if (
            not alone
            or not isinstance(bias, View)
            or prod(bias.shape[:-1]) != 1
            or bias.shape[-1:] != weight.shape[:1]
        ):
            t.refuse("adds what is not one weight per output")
    write(t, "linear", (t.look(x), weight, None if bias is None else t.look(bias)))


def _mm(t: Translator, op: Op) -> None:
    """``aten.mm``: a layer without bias, or a product of two tensors."""
    right = op.arguments[1]
    assert isinstance(right, View)
    if right.base in _net(t).frozen:
        _linear(t, replace(op, arguments=(None, *op.arguments)))
    else:
        x, y = t.look(op.arguments[0]), t.look(right)
        one, other = (replace(v, shape=(1, *v.shape), strides=contiguous((1, *v.shape))) for v in (x, y))
        write(t, "bmm", (one, other))


MORE_RULES: Final[dict[str, Rule]] = {
    **ELEMENT_RULES,
    "aten.constant_pad_nd.default": _pad,
    "aten.convolution.default": _convolution,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten._native_batch_norm_legit.no_stats": _instance_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten.repeat.default": _repeat,
    "aten.new_zeros.default": _zeros,
    "aten.zeros.default": _zeros,
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.avg_pool2d.default": _avg_pool,
    "aten._adaptive_avg_pool2d.default": _adaptive("mean"),
    "aten.adaptive_max_pool2d.default": _adaptive("amax"),
    "aten.upsample_nearest2d.default": _upsample("nearest"),
    "aten.upsample_bilinear2d.default": _upsample("bilinear"),
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.cat.default": cat,
    "aten.clone.default": copy,
    "aten.bmm.default": _bmm,
    "aten.addmm.default": _linear,
    "aten.mm.default": _mm,
    "tightrope_micro.recurrent.default": recurrent,
}
"""Captured op -> its rule."""
