"""What ops of ATen do, element by element: formulas, views, and products."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tightrope.core import CaptureError
from tightrope_forms.values.loops import Formula

aten: Final = torch.ops.aten
Made: TypeAlias = Callable[..., Formula]


def _plus(op: str) -> Made:
    def make(one: Formula, two: Formula, *, alpha: float = 1) -> Formula:
        return (op, one, two if alpha == 1 else ("mul", float(alpha), two))

    return make


def _named(op: str) -> Made:
    return lambda *given: (op, *given)


def _power(one: Formula, exponent: float) -> Formula:
    if exponent not in (2, 3):
        raise CaptureError(f"pow with exponent {exponent} has no formula")
    square = ("mul", one, one)
    return square if exponent == 2 else ("mul", square, one)


POINTWISE: Final[dict[Any, Made]] = {
    aten.add.Tensor: _plus("add"), aten.sub.Tensor: _plus("sub"),
    aten.rsub.Scalar: lambda x, y, alpha=1: ("sub", y, x if alpha == 1 else ("mul", float(alpha), x)),
    aten.mul.Tensor: _named("mul"), aten.div.Tensor: _named("div"), aten.neg.default: _named("neg"),
    aten.sigmoid.default: _named("sigmoid"), aten.tanh.default: _named("tanh"),
    aten.relu.default: _named("relu"), aten.exp.default: _named("exp"), aten.abs.default: _named("abs"),
    aten.sgn.default: _named("sign"), aten.maximum.default: _named("max"),
    aten.minimum.default: _named("min"),
    aten.reciprocal.default: lambda x: ("div", 1.0, x), aten.sqrt.default: _named("sqrt"),
    aten.silu.default: lambda x: ("mul", x, ("sigmoid", x)),
    aten.pow.Tensor_Scalar: _power,
    aten.sigmoid_backward.default: lambda g, y: ("mul", g, ("mul", ("sub", 1.0, y), y)),
    aten.tanh_backward.default: lambda g, y: ("mul", g, ("sub", 1.0, ("mul", y, y))),
    aten.threshold_backward.default: lambda g, x, at: ("above", x, float(at), g, 0.0),
}  # fmt: skip
"""Ops whose every element is a formula of the elements at its place."""
EXPENSIVE: Final = frozenset({"sigmoid", "tanh", "exp", "sqrt", "div"})
CONSTANTS: Final = {
    aten.zeros_like.default: 0.0, aten.ones_like.default: 1.0, aten.zeros.default: 0.0,
    aten.ones.default: 1.0,
    aten.new_zeros.default: 0.0, aten.new_ones.default: 1.0,
}  # fmt: skip
VIEWS: Final = frozenset({
    aten.t.default, aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.expand.default,
    aten.permute.default, aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.squeeze.dim,
    aten.squeeze.default, aten.squeeze.dims, aten.alias.default, aten.detach.default, aten.reshape.default,
})  # fmt: skip
SPLITS: Final[dict[Any, Any]] = {
    aten.split.Tensor: torch.split, aten.unsafe_split.Tensor: torch.split,
    aten.split_with_sizes.default: torch.split, aten.unbind.int: torch.unbind,
}  # fmt: skip
SAME: Final = frozenset({aten.clone.default, aten.lift_fresh.default})
PRODUCTS: Final = {aten.mm.default: (None, 0, 1), aten.addmm.default: (0, 1, 2)}
"""Where the bias and the two factors are among the operands."""


class ElementView(NamedTuple):
    """Elements of an array: ``meta`` has their shape, strides and offset in one step of it."""

    array: str
    meta: Tensor  # without values, as if it were one step of the array
    step: int = 0  # which step is read, from the one that runs

    def same(self, other: "ElementView") -> bool:
        """Tell whether two views are the same elements, in one order."""
        one, two = ((*x[::2], x.meta.shape, x.meta.stride(), x.meta.storage_offset()) for x in (self, other))
        return one == two


class Lazy(NamedTuple):
    """A value that is computed where it is read: a formula of views of its own shape."""

    formula: Formula
    reads: tuple[ElementView, ...]
    shape: tuple[int, ...]

    @property
    def view(self) -> ElementView | None:
        """The elements of an array that it is, if it is no more."""
        return self.reads[0] if self.formula == 0 and type(self.formula) is int else None


def seen(view: ElementView) -> Lazy:
    """Read a view."""
    return Lazy(0, (view,), tuple(view.meta.shape))


def looked(value: Lazy, change: Callable[[Tensor], Tensor]) -> Lazy | None:
    """Look at a value otherwise, as a view op does; None where strides do not allow it."""
    if not value.reads:
        return Lazy(value.formula, (), tuple(change(torch.empty(value.shape, device="meta")).shape))
    try:
        reads = tuple(one._replace(meta=change(one.meta)) for one in value.reads)
    except RuntimeError:
        return None
    return Lazy(value.formula, reads, tuple(reads[0].meta.shape))


def combined(made: Made, operands: Sequence[Lazy | float], shape: tuple[int, ...], **named: Any) -> Lazy:
    """Write an op down as one formula of all that its operands read."""
    reads, formulas = list[ElementView](), list[Formula]()

    def place(view: ElementView) -> int:
        spread = view._replace(meta=view.meta.expand(shape))
        known = next((k for k, other in enumerate(reads) if other.same(spread)), len(reads))
        reads.extend([spread] if known == len(reads) else [])
        return known

    def renumbered(formula: Any, places: Sequence[int]) -> Formula:
        if isinstance(formula, tuple):
            return (formula[0], *(renumbered(one, places) for one in formula[1:]))
        return places[formula] if isinstance(formula, int) else formula

    for one in operands:
        lazy = one if isinstance(one, Lazy) else Lazy(float(one), (), shape)
        formulas.append(renumbered(lazy.formula, list(map(place, lazy.reads))))
    return Lazy(made(*formulas, **named), tuple(reads), shape)


def expensive(formula: Formula) -> bool:
    """Tell whether a formula has an op that is better not computed twice."""
    return isinstance(formula, tuple) and (formula[0] in EXPENSIVE or any(map(expensive, formula[1:])))  # type: ignore[arg-type]


class Nest(NamedTuple):
    """A pointwise statement: every element of ``target`` is the formula."""

    target: ElementView
    value: Lazy


class Product(NamedTuple):
    """``target = bias + left @ right``."""

    target: ElementView
    bias: ElementView | None
    left: ElementView
    right: ElementView


class LoweredWay(NamedTuple):
    """One direction of a loop."""

    arrays: dict[str, tuple[int, ...]]  # shapes of one step
    timed: set[str]  # arrays over time
    work: list[Nest | Product]  # statements in order
    before: list[Product]  # they run before the loop, for many steps at once
    kept: set[str]  # arrays that something outside reads or writes

    @property
    def made(self) -> set[str]:
        """Arrays that statements write."""
        return {one.target.array for one in (*self.work, *self.before)}

    def array(self, name: str, shape: Sequence[int], *, timed: bool = True) -> ElementView:
        """Add an array; return all of its elements."""
        self.arrays[name] = tuple(shape)
        if timed:
            self.timed.add(name)
        return ElementView(name, torch.empty(tuple(shape), device="meta"))


def reads_of(one: Nest | Product) -> list[ElementView]:
    """List what a statement reads."""
    if isinstance(one, Nest):
        return list(one.value.reads)
    return [view for view in (one.bias, one.left, one.right) if view is not None]


def touched(one: Nest | Product) -> list[ElementView]:
    """List what a statement reads, and what it writes."""
    return [*reads_of(one), one.target]
