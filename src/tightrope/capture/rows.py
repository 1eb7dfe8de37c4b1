"""What ops do to rows: the rules by which a stretch of a step may run on a part of the rows at a time.

A value *has rows* if its leading dimensions, or the last one of a transposed matrix, count the rows and
what an op makes of a row depends on that row alone. A rule says how an op runs on some of the rows: as a
call whose arguments are parts of values with rows, and other values as they are. What it gives are those
rows of the result, or what the rows add to a sum over all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
import torch.fx

from tightrope.capture.typed import tensor_of

_aten = torch.ops.aten

TRANSPOSED: Final = -1
"""In place of a number of leading dimensions: the rows are the last dimension of a matrix."""


class RowPart(NamedTuple):
    """Stands in arguments for the part of a value with rows that a chunk has."""

    node: torch.fx.Node


class RowSlice(NamedTuple):
    """Stands for the rows of a value from elsewhere, whose leading dimensions (or last one) count them."""

    node: torch.fx.Node
    lead: int


class NumRows(NamedTuple):
    """Stands for the number of rows that a chunk has."""


@dataclass(frozen=True)
class Recipe:
    """How an op runs on some rows.

    Attributes:
        target: what is called.
        args: arguments, with `RowPart`, `RowSlice` and `NumRows` in them.
        kwargs: keyword arguments.
        lead: leading dimensions of the whole result that count rows, or `TRANSPOSED`; 0 = the result is a sum
            over the rows.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    lead: int


class Rows:
    """Values with rows, as far as they are known."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.lead: dict[torch.fx.Node, int] = {}

    def recipe(self, node: torch.fx.Node) -> Recipe | None:
        """Say how a node that reads values with rows runs on some of them; None where no rule is known."""
        rule = _RULES.get(_target(node))
        value = tensor_of(node)
        return rule(self, node) if rule is not None and isinstance(value, torch.Tensor) else None

    def leading(self, shape: tuple[int, ...]) -> int | None:
        """The number of leading dimensions that together count the rows."""
        return next((k for k in range(1, len(shape) + 1) if math.prod(shape[:k]) == self.num), None)

    def slice(self, node: torch.fx.Node, lead: int, shape: tuple[int, ...]) -> RowSlice | None:
        """The rows of a value from elsewhere, if its leading dimensions are those of ``shape``."""
        value = tensor_of(node)
        alike = value.dim() >= lead and tuple(value.shape[:lead]) == shape[:lead]
        return RowSlice(node, lead) if alike and (lead == 1 or value.is_contiguous()) else None


Rule = Callable[[Rows, torch.fx.Node], Recipe | None]


def _args(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args


def _target(node: torch.fx.Node) -> Any:
    return node.target


def _view(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    source, shape = _args(node)[0], tuple(tensor_of(node).shape)
    lead = rows.leading(shape)
    if lead is None or rows.lead[source] == TRANSPOSED:
        return None
    return Recipe(_target(node), (RowPart(source), [NumRows(), *shape[lead:]]), {}, lead)


def _reshaped(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    found = _view(rows, node)
    return found and replace(found, target=_aten.view.default)


def _expanded(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    source, shape = _args(node)[0], tuple(tensor_of(node).shape)
    lead, before = rows.lead[source], tuple(tensor_of(source).shape)
    if lead < 1 or len(before) != len(shape) or before[:lead] != shape[:lead]:
        return None
    return Recipe(_target(node), (RowPart(source), [NumRows(), *shape[lead:]]), {}, lead)


def _same(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    return Recipe(_target(node), (RowPart(_args(node)[0]),), {}, rows.lead[_args(node)[0]])


def _transpose(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    source = _args(node)[0]
    if tensor_of(source).dim() != 2 or rows.lead[source] not in (1, TRANSPOSED):
        return None
    return Recipe(_target(node), (RowPart(source),), {}, -rows.lead[source])


def _product(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    """Rows times a matrix gives rows; columns times rows, over all rows, a sum."""
    one, two = _args(node)
    leads = rows.lead.get(one, 0), rows.lead.get(two, 0)
    if leads == (1, 0):
        return Recipe(_target(node), (RowPart(one), two), {}, 1)
    sides = {
        (TRANSPOSED, 1): (RowPart(one), RowPart(two)),
        (TRANSPOSED, 0): (RowPart(one), RowSlice(two, 1)),
        (0, 1): (RowSlice(one, TRANSPOSED), RowPart(two)),
    }
    return Recipe(_target(node), sides[leads], {}, 0) if leads in sides else None


def _product_and_bias(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    bias, one, two = _args(node)
    plain = bias not in rows.lead and two not in rows.lead and not node.kwargs
    if not plain or rows.lead.get(one) != 1 or tensor_of(bias).dim() != 1:
        return None
    return Recipe(_target(node), (bias, RowPart(one), two), {}, 1)


def _element_by_element(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    shape = tuple(tensor_of(node).shape)
    own = {rows.lead[source] for source in node.all_input_nodes if source in rows.lead}
    if len(own) != 1 or min(own) < 1:
        return None
    (lead,) = own
    found: list[Any] = []
    for arg in _args(node):
        part = _element(rows, arg, lead, shape)
        if part is None and arg is not None:
            return None
        found.append(part)
    if any(isinstance(value, torch.fx.Node) for value in node.kwargs.values()):
        return None
    return Recipe(_target(node), tuple(found), node.kwargs, lead)


def _element(rows: Rows, arg: Any, lead: int, shape: tuple[int, ...]) -> Any:
    if not isinstance(arg, torch.fx.Node):
        return arg
    value = tensor_of(arg)
    if arg in rows.lead:
        return (
            RowPart(arg) if value.dim() == len(shape) and tuple(value.shape[:lead]) == shape[:lead] else None
        )
    if value.dim() <= len(shape) - lead:
        return arg
    return rows.slice(arg, lead, shape) if value.dim() == len(shape) else None


def _along_a_row(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    """Kernels with (values of one shape ..., dimension, options)."""
    sources = [arg for arg in _args(node) if isinstance(arg, torch.fx.Node)]
    leads = {rows.lead.get(source, 0) for source in sources}
    (lead,) = leads if len(leads) == 1 else (0,)
    at = len(sources)
    dim = _args(node)[at]
    dim = dim % tensor_of(sources[0]).dim() if isinstance(dim, int) else -1
    if lead < 1 or dim < lead:
        return None
    return Recipe(
        _target(node), (*map(RowPart, sources), dim - lead + 1, *_args(node)[at + 1 :]), node.kwargs, lead
    )


def _reduction(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    """Along each row; or a sum over the rows, and dimensions behind them."""
    source, *rest = _args(node)
    dims, keep = (*rest, *((), False)[len(rest) :])[:2]
    lead, num = rows.lead[source], tensor_of(source).dim()
    if lead < 1 or not isinstance(dims, list | tuple) or not dims:
        return None
    found = sorted(int(dim) % num for dim in dims)
    if found[0] >= lead:
        shifted = [dim - lead + 1 for dim in found]
        return Recipe(_target(node), (RowPart(source), shifted, keep), node.kwargs, lead)
    if found[:lead] == list(range(lead)) and _target(node) is _aten.sum.dim_IntList:
        shifted = [0, *(dim - lead + 1 for dim in found[lead:])]
        return Recipe(_target(node), (RowPart(source), shifted, False), node.kwargs, 0)
    return None


def _sum_of_all(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    return Recipe(_target(node), (RowPart(_args(node)[0]),), node.kwargs, 0)


def _gather(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    source, dim, index = _args(node)[:3]
    flat = tensor_of(source).dim() == 2 and rows.lead[source] == 1 and dim in (1, -1)
    if not flat or index in rows.lead or tensor_of(index).shape[0] != rows.num:
        return None
    return Recipe(_target(node), (RowPart(source), 1, RowSlice(index, 1)), node.kwargs, 1)


def _loss_backward(rows: Rows, node: torch.fx.Node) -> Recipe | None:
    """The backward of `nll_loss` from its mean or sum: the number of rows that count is an input."""
    gradient, source, target, weight, reduction, ignored, total = _args(node)
    if {gradient, target, weight, total} & rows.lead.keys() or reduction == 0 or rows.lead[source] != 1:
        return None
    args = (gradient, RowPart(source), RowSlice(target, 1), weight, reduction, ignored, total)
    return Recipe(_target(node), args, {}, 1)


def _rules() -> dict[Any, Rule]:
    found: dict[Any, Rule] = {
        _aten.view.default: _view, _aten._unsafe_view.default: _view,
        _aten.detach.default: _same, _aten.alias.default: _same, _aten.clone.default: _element_by_element,
        _aten.t.default: _transpose, _aten.mm.default: _product, _aten.addmm.default: _product_and_bias,
        _aten._softmax.default: _along_a_row, _aten._log_softmax.default: _along_a_row,
        _aten._softmax_backward_data.default: _along_a_row,
        _aten._log_softmax_backward_data.default: _along_a_row,
        _aten.sum.dim_IntList: _reduction, _aten.logsumexp.default: _reduction,
        _aten.amax.default: _reduction, _aten.sum.default: _sum_of_all, _aten.gather.default: _gather,
        _aten.unsqueeze.default: _reshaped, _aten.squeeze.dim: _reshaped, _aten.expand.default: _expanded,
        _aten.nll_loss_backward.default: _loss_backward,
    }  # fmt: skip
    for name in ("add", "sub", "mul", "div"):
        found[getattr(_aten, name).Tensor] = found[getattr(_aten, name).Scalar] = _element_by_element
    for name in ("neg", "exp", "log", "tanh", "sigmoid", "tanh_backward", "sigmoid_backward", "_to_copy"):
        found[getattr(_aten, name).default] = _element_by_element
    for overload in (_aten.where.self, _aten.masked_fill.Scalar, _aten.pow.Tensor_Scalar):
        found[overload] = _element_by_element
    return found


_RULES: Final = _rules()
