"""Sums and maxima over lists of rows: ops in C++ on a CPU, and the same in plain torch elsewhere.

Idea        A hypergraph is two sets of lists: members of hyperedges, and hyperedges of vertices. A sum over
            one set has a sum over the other one as its gradient, so a sum keeps nothing but its scales.
Source      hypergraph convolution of HGNN (AAAI 2019); HyperGef (MLSys 2023) fuses it for GPUs
Guarantee   An op makes its results and nothing else: a plan knows all bytes. No number of threads changes a
            bit of a result.
Complexity  One read of a row per incidence, one write per row of the result.
Gaps        Plain torch makes a row per incidence. Maxima have no second derivatives.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from tightrope.core import TightropeError
from tightrope.core.cache import warn_once
from tightrope.native.interface import INTEGER, POINTER, load, missing

SOURCE: Final = Path(__file__).with_name("hypergraph.cpp")
_SIZES: Final = INTEGER * 5
_POINTERS: Final = POINTER * 5
_LIBRARY: Final = torch.library.Library("tightrope_forms", "DEF")  # type: ignore[no-untyped-call]


class Lists(NamedTuple):
    """Row ``rows[k]`` of a result takes the rows ``idx[ptr[k] : ptr[k + 1]]``, times their ``values``."""

    ptr: Tensor  # (rows + 1,) int32
    idx: Tensor  # (incidences,) int32
    rows: Tensor | None = None  # (rows,) int32; None = in order
    values: Tensor | None = None  # (incidences,)


@cache
def _calls() -> Any:
    """Load the library, or None: plain torch computes then, which is said once."""
    if said := missing(SOURCE):
        warn_once(f"sums over hypergraphs run in plain torch, which is slower and takes more bytes: {said}")
        return None
    call = load(SOURCE).tightrope_hypergraph
    call.argtypes = [POINTER] * 5
    return call


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _available() -> bool:
    return _calls() is not None


def native(x: Tensor) -> bool:
    """Tell whether C++ computes on this tensor's device."""
    return x.device.type == "cpu" and bool(_available())


def call_library(what: int, x: Tensor, lists: Any, others: Any) -> int:
    """Call sums (0), maxima (1), or their gradient (2), with the tensors that each takes."""
    sizes = (what, x.element_size(), len(lists[0]) - 1, x.shape[1], torch.get_num_threads())
    pointers = [None if one is None else one.data_ptr() for one in (*lists[:3], *others)]
    return int(_calls()(_SIZES(*sizes), *pointers[:3], _POINTERS(*pointers[3:])))


def _check(bad: bool | int) -> None:
    if bad:
        raise TightropeError("A hyperedge's sum is NaN. x or a weight holds NaN, or infinities cancel.")


def _empty(x: Tensor, ptr: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, x.shape[1])


def _sums(x: Tensor, lists: list[Any], scale: Any, out: Any, check: bool) -> Tensor:
    made = _empty(x, lists[0])
    _check(call_library(0, x, lists, (scale, lists[3], out, x, made)) and check)
    return made


def _maxima(x: Tensor, lists: list[Any]) -> tuple[Tensor, Tensor]:
    made, who = _empty(x, lists[0]), _empty(lists[1][:, None].expand(-1, x.shape[1]), lists[0])
    _check(call_library(1, x, lists, (x, made, who)))
    return made, who


def _chosen(grad: Tensor, who: Tensor, lists: list[Any]) -> Tensor:
    made = _empty(grad, lists[0])
    call_library(2, grad, lists, (grad, who, made))
    return made


def _define(schema: str, call: Any, fake: Any) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, call, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"tightrope_forms::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.tightrope_forms, name).default


_SUMS: Final = _define(
    "sums(Tensor x, Tensor?[] lists, Tensor? scale, Tensor? out, bool check) -> Tensor",
    _sums,
    lambda x, lists, *_: _empty(x, lists[0]),
)
_MAXIMA: Final = _define(
    "maxima(Tensor x, Tensor?[] lists) -> (Tensor, Tensor)",
    _maxima,
    lambda x, lists: (_empty(x, lists[0]), _empty(x, lists[0]).to(torch.int32)),
)
_CHOSEN: Final = _define(
    "chosen(Tensor grad, Tensor who, Tensor?[] lists) -> Tensor",
    _chosen,
    lambda g, _, lists: _empty(g, lists[0]),
)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, check: bool, x: Tensor, scale: Any, out: Any, *lists: Any) -> Any:
        scaled = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
        ctx.save_for_backward(x if scaled else None, scale, out, *lists)
        return _SUMS(x, lists[:4], scale, out, check)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale, out = ctx.saved_tensors[:3]
        lists, back = Lists(*ctx.saved_tensors[3:7]), Lists(*ctx.saved_tensors[7:])
        _, by_x, by_scale, by_out, *_ = ctx.needs_input_grad
        of_x = sums(grad, back, lists, out, scale) if by_x else None
        of_scale = (x * sums(grad, back, lists, out)).sum(1) if by_scale else None
        of_out = (grad * sums(x, lists, back, scale)).sum(1) if by_out else None
        return None, of_x, of_scale, of_out, *[None] * 8


class _Maxima(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *lists: Any) -> Any:
        made, who = _MAXIMA(x, lists[:4])
        ctx.save_for_backward(who, *lists[4:])
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        who, *back = ctx.saved_tensors
        return _CHOSEN(grad.contiguous(), who, back), *[None] * 8


def _learning(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def _taken(x: Tensor, lists: Lists) -> tuple[Tensor, Tensor]:
    """Read a row per incidence, in plain torch, and say to which row of the result it goes."""
    rows = torch.arange(len(lists.ptr) - 1, device=x.device) if lists.rows is None else lists.rows
    return x.index_select(0, lists.idx), rows.long().repeat_interleave(lists.ptr.diff().long())


def sums(
    x: Tensor, lists: Lists, back: Lists, scale: Any = None, out: Any = None, *, check: bool = False
) -> Tensor:
    """Sum rows of ``x`` (n, F), scaled by ``scale`` (n,), over lists; scale the results by ``out``.

    Args:
        x: float32 or float64.
        lists: which rows.
        back: the same incidences, by row of ``x``.
        scale: of rows of ``x``; None = 1.
        out: of results; None = 1.
        check: whether NaN is an error.
    """
    if scale is not None and lists.values is not None:
        x, scale = x * scale[:, None], None
    if native(x):
        x = x.contiguous()
        if not _learning(x, scale, out):
            return cast(Tensor, _SUMS(x, lists, scale, out, check))
        return cast(Tensor, _Sums.apply(check, x, scale, out, *lists, *back))  # type: ignore[no-untyped-call]
    taken, to = _taken(x if scale is None else x * scale[:, None], lists)
    taken = taken if lists.values is None else taken * lists.values[:, None]
    made = x.new_zeros(len(lists.ptr) - 1, x.shape[1]).index_add(0, to, taken)
    made = made if out is None else made * out[:, None]
    _check(check and bool(made.isnan().any()))
    return made


def maxima(x: Tensor, lists: Lists, back: Lists) -> Tensor:
    """Take the largest of each column over lists, 0 in an empty one; gradients go to the first of equals."""
    if native(x):
        return cast(Tensor, _Maxima.apply(x.contiguous(), *lists, *back))  # type: ignore[no-untyped-call]
    taken, to = _taken(x, lists)
    _check(bool(taken.isnan().any()))
    to, num, places = to[:, None].expand_as(taken), len(lists.idx), torch.arange(len(to), device=x.device)
    most = x.new_full((len(lists.ptr) - 1, x.shape[1]), -torch.inf).scatter_reduce(
        0, to, taken.detach(), "amax"
    )
    first = torch.where(taken == most.gather(0, to), places[:, None], num)
    first = torch.full_like(most, num, dtype=torch.int64).scatter_reduce(0, to, first, "amin")
    return torch.cat((taken, taken.new_zeros(1, taken.shape[1]))).gather(0, first)
