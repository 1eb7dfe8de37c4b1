"""Rules of training for functions of one number and their gradients, and for dropout."""

from collections.abc import Callable
from typing import Final

from tightrope.core import Argument, Op, View
from tightrope_micro.translator import Translator

Rule = Callable[[Translator, Op], None]


def curve(name: str, *defaults: float) -> Rule:
    """A function of one number with up to two numbers of its own."""

    def rule(t: Translator, op: Op) -> None:
        x, old = t.look(op.arguments[0]), t.result(0)
        assert old is not None
        numbers = _numbers(t, op.arguments[1:], defaults)
        (made,) = t.emit("curve", (x, name, *numbers), [("float32", x.shape)])
        t.bind(old, made)

    rule.__doc__ = f"A curve: {name}."
    return rule


def _numbers(t: Translator, given: tuple[Argument, ...], defaults: tuple[float, ...]) -> list[float]:
    found = [*given, *defaults[len(given) :], 0.0, 0.0][:2]
    if not all(isinstance(value, int | float) for value in found):
        t.refuse(f"takes {found!r:.40} where numbers are expected")
    return [float(value) for value in found if isinstance(value, int | float)]


def curve_backward(name: str, *defaults: float) -> Rule:
    """The gradient of a curve, from its input or, of tanh and sigmoid, its result."""

    def rule(t: Translator, op: Op) -> None:
        g, kept, old = t.look(op.arguments[0]), t.look(op.arguments[1]), t.result(0)
        assert old is not None
        if name == "leaky_relu" and op.arguments[3:4] == (True,):
            t.refuse("reads the result; the kernel reads the input")
        numbers = _numbers(t, op.arguments[2 : 2 + len(defaults)], defaults)
        (made,) = t.emit("curve_backward", (g, kept, name, *numbers), [("float32", g.shape)])
        t.bind(old, made)

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
