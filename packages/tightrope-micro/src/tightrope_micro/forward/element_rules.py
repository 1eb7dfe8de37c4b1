"""Rules of inference for functions of numbers: curves, sums of unlike shapes, softmax, reductions."""

from collections.abc import Callable
from math import prod
from typing import Final

from msgspec.structs import replace

from tightrope.core import Argument, Items, Op, View
from tightrope_micro.curve_rules import CURVE_RULES, LARGEST, Rule, curve, made_by, number_of, write
from tightrope_micro.names import CURVES, DIMENSIONS
from tightrope_micro.pad_rules import as_map
from tightrope_micro.rules import RULES
from tightrope_micro.translator import Translator, whole_numbers


def _line(scale: float, shift: float, *, by_scale: bool) -> Callable[[float], tuple[float, float]]:
    return lambda value: (value * scale, shift) if by_scale else (scale, value * shift)


_LINES: Final[dict[str, Callable[[float], tuple[float, float]]]] = {
    "add": _line(1.0, 1.0, by_scale=False),
    "sub": _line(1.0, -1.0, by_scale=False),
    "rsub": _line(-1.0, 1.0, by_scale=False),
    "mul": _line(1.0, 0.0, by_scale=True),
    "div": lambda value: (1.0 / value if value else LARGEST, 0.0),
}
"""Op of a tensor and a number -> factor and summand."""


def blend(name: str) -> Rule:
    """A function of two tensors that are spread over each other, or of a tensor and a number."""

    def rule(t: Translator, op: Op) -> None:
        left, right = op.arguments[:2]
        if op.keywords or any(value not in (1, None) for value in op.arguments[2:]):
            t.refuse("multiplies one of the two, or rounds")
        if isinstance(left, View) and not isinstance(right, View):
            write(t, "curve", (t.look(left), "line", *_LINES[name](number_of(t, right))))
            return
        x, y, made = t.look(left), t.look(right), made_by(t)
        if len(made.shape) > DIMENSIONS:
            t.refuse(f"spreads {len(made.shape)} dimensions; the kernel has {DIMENSIONS}")
        write(t, "blend", (x, y, name))

    rule.__doc__ = f"Two tensors: {name}."
    return rule


def _add(t: Translator, op: Op) -> None:
    """``aten.add.Tensor``: of one shape or over rows as in training, else spread."""
    left, right = op.arguments[:2]
    same = isinstance(left, View) and isinstance(right, View) and left.shape == right.shape
    if not op.keywords and (same or _over_rows(left, right)):
        RULES[op.target](t, op)
    else:
        blend("add")(t, op)


def _over_rows(left: Argument, right: Argument) -> bool:
    if not isinstance(left, View) or not isinstance(right, View):
        return False
    inner = right.shape
    while inner[:1] == (1,):
        inner = inner[1:]
    return bool(inner) and inner == left.shape[len(left.shape) - len(inner) :] and len(left.shape) > 1


def _power(t: Translator, op: Op) -> None:
    """``aten.pow.Tensor_Scalar``: squares and roots."""
    names = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    x, exponent = t.look(op.arguments[0]), op.arguments[1]
    if exponent == 2:
        write(t, "blend", (x, x, "mul"))
    elif isinstance(exponent, int | float) and exponent in names:
        write(t, "curve", (x, names[exponent], 0.0, 0.0))
    else:
        t.refuse("takes another power than 2, 1/2, -1/2 or -1")


def _softmax(t: Translator, op: Op) -> None:
    """``aten._softmax`` and ``aten._log_softmax`` over any dimension."""
    x, axis = t.look(op.arguments[0]), op.arguments[1]
    assert isinstance(axis, int)
    axis %= len(x.shape)
    logs = "log" in op.target
    write(t, "softmax", (x, x.shape[axis], prod(x.shape[axis + 1 :]), int(logs)))


def _reduction(name: str) -> Rule:
    def rule(t: Translator, op: Op) -> None:
        given = op.arguments[0]
        assert isinstance(given, View)
        chosen = op.arguments[1] if len(op.arguments) > 1 else None
        rank = len(given.shape)
        axes = sorted(a % rank for a in whole_numbers(chosen)) if isinstance(chosen, Items) else []
        axes = axes or list(range(rank))
        if axes == list(range(axes[0], axes[-1] + 1)):
            x = t.look(given)
        else:
            others = [k for k in range(rank) if k not in axes]
            order = (*others, *axes)
            turned = replace(
                given,
                shape=tuple(given.shape[k] for k in order),
                strides=tuple(given.strides[k] for k in order),
            )
            x, axes = t.look(turned), list(range(len(others), rank))
        if name == "mean" and rank in (3, 4) and axes == list(range(2, rank)):
            x = as_map(x)
            window = Items((x.shape[2], x.shape[3]))
            (made,) = t.emit("avg_pool2d", (x, window, window), [("float32", (*x.shape[:2], 1, 1))])
            t.bind(made_by(t), made)
            return
        if name == "mean" and rank == 3 and axes == [1]:
            (made,) = t.emit("mean_rows", (x,), [("float32", (x.shape[0], x.shape[2]))])
            t.bind(made_by(t), made)
            return
        size, inner = prod(x.shape[axes[0] : axes[-1] + 1]), prod(x.shape[axes[-1] + 1 :])
        write(t, "reduce", (x, name, size, inner))

    rule.__doc__ = f"A reduction over neighbouring dimensions: {name}."
    return rule


def _argmax(t: Translator, op: Op) -> None:
    """``aten.argmax`` over one dimension, or all."""
    x, axis = t.look(op.arguments[0]), op.arguments[1] if len(op.arguments) > 1 else None
    if isinstance(axis, int):
        axis %= len(x.shape)
        write(t, "argmax", (x, x.shape[axis], prod(x.shape[axis + 1 :])), "int32")
    else:
        write(t, "argmax", (x, prod(x.shape), 1), "int32")


ELEMENT_RULES: Final[dict[str, Rule]] = {
    **{f"aten.{name}.default": curve(name) for name in CURVES if name not in ("line", "clamp", "gelu_tanh")},
    **{name: rule for name, rule in CURVE_RULES.items() if name.startswith("aten.")},  # no dropout
    "aten.elu.default": curve("elu", 1.0),
    "aten.clamp.default": curve("clamp", -LARGEST, LARGEST),
    "aten.clamp_min.default": curve("clamp", -LARGEST, LARGEST),
    "aten.clamp_max.default": lambda t, op: curve("clamp", -LARGEST, LARGEST)(
        t, replace(op, arguments=(op.arguments[0], None, op.arguments[1]))
    ),
    "aten.neg.default": lambda t, op: blend("mul")(t, replace(op, arguments=(op.arguments[0], -1.0))),
    "aten.add.Tensor": _add,
    **{f"aten.{name}.Tensor": blend(name) for name in ("sub", "mul", "div")},
    **{f"aten.{name}.Scalar": blend(name) for name in ("add", "sub", "mul", "div", "rsub")},
    **{f"aten.{name}.default": blend(name) for name in ("maximum", "minimum")},
    "aten._prelu_kernel.default": blend("prelu"),
    "aten.pow.Tensor_Scalar": _power,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten.sum.dim_IntList": _reduction("sum"),
    "aten.mean.dim": _reduction("mean"),
    "aten.mean.default": _reduction("mean"),
    "aten.amax.default": _reduction("amax"),
    "aten.amin.default": _reduction("amin"),
    "aten.argmax.default": _argmax,
}
"""Captured op -> its rule."""
