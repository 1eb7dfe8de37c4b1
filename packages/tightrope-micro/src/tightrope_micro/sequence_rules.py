"""Rules of steps for recurrent layers, and for copies and parts of what they make."""

from math import prod
from typing import Final

from tightrope.core import Items, Op, View
from tightrope_micro.curve_rules import Rule, made_by, write
from tightrope_micro.names import DIMENSIONS
from tightrope_micro.translator import PendingGradient, Translator, contiguous, whole_numbers


def recurrent(t: Translator, op: Op) -> None:
    """``tightrope_micro.recurrent``: all steps of one layer in one direction."""
    x, w, u, b, c, h0, c0 = (None if a is None else t.look(a) for a in op.arguments[:7])
    kind, backwards, keeps = op.arguments[7:10]
    assert x is not None
    assert u is not None
    (steps, n), hidden = x.shape[:2], u.shape[1]
    cells = (steps, n, hidden) if keeps else (n, hidden)
    makes = [(steps, n, hidden), (n, hidden), cells, (4 * hidden,)]
    given = (x, w, u, b, c, h0, c0, kind, int(bool(backwards)), int(bool(keeps)))
    for position, new in enumerate(t.emit("recurrent", given, [("float32", shape) for shape in makes])):
        if position < 3 and (old := t.result(position)) is not None:
            t.bind(old, new)


def recurrent_gates(t: Translator, op: Op) -> None:
    """``tightrope_micro.recurrent_gates``: gradients of what the gates of every step are computed from."""
    given = [None if a is None else t.look(a) for a in op.arguments[:12]]
    kind, backwards, _ = op.arguments[12:]
    x, u = given[0], given[2]
    assert x is not None
    assert u is not None
    made, (rows, hidden) = x.shape[:2], u.shape
    sizes = [rows, rows] if op.target.endswith("gru.default") else [rows]
    makes = [*((*made, size) for size in sizes), ((2 * made[1] + 4) * hidden,)]
    arguments = (*given, kind, int(bool(backwards)))
    found = t.emit("recurrent_gates", arguments, [("float32", shape) for shape in makes])
    for position, new in enumerate(found[:-1]):
        t.bind(t.result(position), new)


def recurrent_weight(t: Translator, op: Op) -> None:
    """``tightrope_micro.recurrent_weight``: the gradient of the weight of a state, in its update."""
    g, y, h0 = (None if a is None else t.look(a) for a in op.arguments[:3])
    t.pending[made_by(t).base] = PendingGradient(
        "recurrent_weight_sgd", (g, y, h0, int(bool(op.arguments[3])))
    )


def cat(t: Translator, op: Op) -> None:
    """``aten.cat``: two by two."""
    items, old = op.arguments[0], made_by(t)
    assert isinstance(items, Items)
    axis = op.arguments[1] if len(op.arguments) > 1 else 0
    assert isinstance(axis, int)
    axis %= len(old.shape)
    filled = [item for item in items.items if isinstance(item, View) and 0 not in item.shape]
    first, *others = map(t.look, filled)
    outer = prod(old.shape[:axis])
    for other in others:
        shape = list(old.shape)
        shape[axis] = first.shape[axis] + other.shape[axis]
        (first,) = t.emit("cat", (first, other, outer), [("float32", tuple(shape))])
    t.bind(old, first)


def copy(t: Translator, op: Op) -> None:
    """``aten.clone``: what is looked at is dense."""
    given = op.arguments[0]
    assert isinstance(given, View)
    t.bind(t.result(0), t.look(given))


def part_backward(t: Translator, op: Op) -> None:
    """``aten.select_backward`` and ``aten.slice_backward``: zeros around the gradient of a part."""
    g, sizes = t.look(op.arguments[0]), whole_numbers(op.arguments[1])
    axis, first = op.arguments[2:4]
    assert isinstance(axis, int)
    assert isinstance(first, int)
    axis, first = axis % len(sizes), max(0, first + sizes[axis] * (first < 0))
    if op.arguments[5:] not in ((), (1,)):
        t.refuse("takes a part with gaps")
    if len(sizes) > DIMENSIONS:
        t.refuse(f"takes a part of {len(sizes)} dimensions; the kernel has {DIMENSIONS}")
    count = 1 if "select" in op.target else g.shape[axis]
    shape = (*sizes[:axis], count, *sizes[axis + 1 :])
    strides = contiguous(shape)
    before = Items(tuple(first if k == axis else 0 for k in range(len(sizes))))
    write(t, "pad", (View(g.base, g.dtype, shape, strides, input=g.input), before, 0.0))


SEQUENCE_RULES: Final[dict[str, Rule]] = {
    "aten.cat.default": cat,
    "aten.clone.default": copy,
    "aten.select_backward.default": part_backward,
    "aten.slice_backward.default": part_backward,
    "tightrope_micro.recurrent.default": recurrent,
    "tightrope_micro.recurrent_gates.default": recurrent_gates,
    "tightrope_micro.recurrent_gates_gru.default": recurrent_gates,
    "tightrope_micro.recurrent_weight.default": recurrent_weight,
}
"""Captured op -> its rule."""
