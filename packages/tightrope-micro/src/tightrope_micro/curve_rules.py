"""Rules for functions of one number, their gradients, and dropout; what other rules share."""

from collections.abc import Callable
from math import prod
from typing import Final

from tightrope.core import Argument, Op, View
from tightrope_micro.translator import Translator

LARGEST: Final = 3.4028234e38
"""Of float32."""
Rule = Callable[[Translator, Op], None]


def made_by(t: Translator) -> View:
    """Look at what the captured op makes."""
    old = t.result(0)
    assert old is not None
    return old


def write(t: Translator, target: str, arguments: tuple[Argument, ...], dtype: str = "float32") -> None:
    """Write an op that makes what the captured one makes."""
    old = made_by(t)
    if not prod(old.shape) or any(isinstance(v, View) and not prod(v.shape) for v in arguments):
        t.refuse("has a tensor without elements")
    kinds = {v.dtype for v in arguments if isinstance(v, View)} | (
        {old.dtype} if dtype == "float32" else set()
    )
    if kinds != {"float32"}:
        t.refuse(f"computes in {' and '.join(sorted(kinds))}; the kernel in float32")
    (made,) = t.emit(target, arguments, [(dtype, old.shape)])
    t.bind(old, made)


def number_of(t: Translator, value: Argument) -> float:
    """Take a number, within what float32 holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        t.refuse(f"takes {value!r:.40} where a number is expected")
    return float(min(max(value, -LARGEST), LARGEST))


def curve(name: str, *defaults: float) -> Rule:
    """A function of one number with up to two numbers of its own."""

    def rule(t: Translator, op: Op) -> None:
        numbers = _numbers(t, op.arguments[1 : 1 + len(defaults)], defaults)
        usual = {"softplus": (1, 20), "elu": (1, 1)}.get(name, ())
        rest = op.arguments[1 + len(defaults) :]
        if rest != usual[: len(rest)]:
            t.refuse(f"has arguments that its kernel lacks: {', '.join(map(str, rest))}")
        if op.keywords and name != "gelu_tanh":
            t.refuse(f"has an option {op.keywords[0][0]}")
        write(t, "curve", (t.look(op.arguments[0]), name, *numbers))

    rule.__doc__ = f"A curve: {name}."
    return rule


def _numbers(t: Translator, given: tuple[Argument, ...], defaults: tuple[float, ...]) -> list[float]:
    """The two numbers of a curve: those that are given, defaults, zeros."""
    given = (*given, *[None] * (len(defaults) - len(given)))
    found = [default if one is None else one for one, default in zip(given, defaults, strict=True)]
    return [number_of(t, one) for one in (*found, 0.0, 0.0)[:2]]


def curve_backward(name: str, *defaults: float) -> Rule:
    """The gradient of a curve, from its input or, of tanh and sigmoid, its result."""

    def rule(t: Translator, op: Op) -> None:
        g, kept = t.look(op.arguments[0]), t.look(op.arguments[1])
        if name == "leaky_relu" and op.arguments[3:4] == (True,):
            t.refuse("reads the result; the kernel reads the input")
        numbers = _numbers(t, op.arguments[2 : 2 + len(defaults)], defaults)
        write(t, "curve_backward", (g, kept, name, *numbers))

    rule.__doc__ = f"The gradient of a curve: {name}."
    return rule


def dropout(t: Translator, op: Op) -> None:
    """``tightrope.dropout``: which elements stay follows from the step, the place and a count."""
    x, share, training = t.look(op.arguments[0]), op.arguments[1], op.arguments[2]
    old, mask = t.result(0), t.result(1)
    assert old is not None
    if not isinstance(share, float) or not training:
        t.refuse("is no dropout of training")
    key, number = t.drawn()
    makes = [("float32", x.shape), ("uint8", x.shape)]
    made, kept = t.emit("dropout", (x, key, number, share), makes)
    t.bind(old, made)
    if mask is not None:
        t.known[mask.base] = kept.base


def dropout_again(t: Translator, op: Op) -> None:
    """``tightrope.dropout_again``: the gradient of what stays."""
    g, mask, scale, old = t.look(op.arguments[0]), op.arguments[1], op.arguments[2], t.result(0)
    assert old is not None
    if not isinstance(mask, View) or mask.base not in t.known:
        t.refuse("has a mask that no dropout here makes")
    kept = View(t.known[mask.base], "uint8", g.shape, g.strides)
    (made,) = t.emit("dropout_backward", (g, kept, scale), [("float32", g.shape)])
    t.bind(old, made)


CURVE_RULES: Final[dict[str, Rule]] = {
    "aten.hardswish.default": curve("hardswish"),
    "aten.hardswish_backward.default": curve_backward("hardswish"),
    "aten.hardtanh.default": curve("clamp", -1.0, 1.0),
    "aten.hardtanh_backward.default": curve_backward("clamp", -1.0, 1.0),
    "aten.leaky_relu.default": curve("leaky_relu", 0.01),
    "aten.leaky_relu_backward.default": curve_backward("leaky_relu", 0.01),
    "aten.sigmoid.default": curve("sigmoid"),
    "aten.sigmoid_backward.default": curve_backward("sigmoid"),
    "aten.silu.default": curve("silu"),
    "aten.silu_backward.default": curve_backward("silu"),
    "aten.tanh.default": curve("tanh"),
    "aten.tanh_backward.default": curve_backward("tanh"),
    "tightrope.dropout": dropout,
    "tightrope.dropout_again": dropout_again,
}
"""Captured op -> its rule."""
