"""Sums and maxima over lists of rows: ops in C++ on a CPU, and the same in plain torch elsewhere.

Idea        A hypergraph is two sets of lists: members of hyperedges, and hyperedges of vertices. A sum over
            one set has a sum over the other one as its gradient, so a sum keeps nothing but its scales.
Source      hypergraph convolution of HGNN (AAAI 2019); HyperGef (MLSys 2023) fuses it for GPUs
Guarantee   In C++ an op makes its results and nothing else: a plan knows all bytes. No number of threads
            changes a bit of a result.
Complexity  One read of a row per incidence, one write per row of the result.
Gaps        Plain torch makes a row per incidence.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from tightrope.core.cache import warn_once
from tightrope.native.interface import INTEGER, POINTER, load, missing
from tightrope_forms.defined import define

SOURCE: Final = Path(__file__).with_name("hypergraph.cpp")


class Lists(NamedTuple):
    """Row ``k`` of a result takes the rows ``idx[ptr[k] : ptr[k + 1]]``."""

    ptr: Tensor  # (rows + 1,) int32
    idx: Tensor  # (incidences,) int32


@cache
def _calls() -> Any:
    """Load the library, or None: plain torch computes then, which is said once."""
    if said := missing(SOURCE):
        warn_once(f"sums over hypergraphs run in plain torch, which is slower and takes more bytes: {said}")
        return None
    call = load(SOURCE).tightrope_hypergraph
    call.argtypes, call.restype = [POINTER] * 2, None
    return call


def call_library(x: Tensor, ptr: Tensor, *tensors: Tensor | None) -> None:
    """Sum, or take maxima where the last one, ``who``, is given.

    Args:
        x: whose rows are read.
        ptr: of `Lists`.
        tensors: idx, scale, out, x, the result and ``who``.
    """
    sizes = (x.element_size(), len(ptr) - 1, x.shape[1], torch.get_num_threads())
    pointers = (None if one is None else one.data_ptr() for one in (ptr, *tensors))
    _calls()((INTEGER * 4)(*sizes), (POINTER * 7)(*pointers))


def _empty(x: Tensor, ptr: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, x.shape[1], dtype=dtype)


def _sums(x: Tensor, ptr: Tensor, idx: Tensor, scale: Any, out: Any) -> Tensor:
    made = _empty(x, ptr)
    if x.is_cpu and _calls():
        call_library(x, ptr, idx, scale, out, x, made, None)
        return made
    taken, to = _taken(x if scale is None else x * scale[:, None], ptr, idx)
    made = made.zero_().index_add_(0, to, taken)
    return made if out is None else made * out[:, None]


def _maxima(x: Tensor, ptr: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    made, who = _empty(x, ptr), _empty(x, ptr, torch.int32)
    if x.is_cpu and _calls():
        call_library(x, ptr, idx, None, None, x, made, who)
        return made, who
    taken, to = _taken(x, ptr, idx)
    to = to[:, None].expand_as(taken)
    made.zero_().scatter_reduce_(0, to, taken, "amax", include_self=False)
    first = torch.where((taken == made.gather(0, to)) | taken.isnan(), idx[:, None], len(x))
    return made, who.zero_().scatter_reduce_(0, to, first.int(), "amin", include_self=False)


def _taken(x: Tensor, ptr: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    """Read a row per incidence, and say to which row of the result it goes."""
    rows = torch.arange(len(ptr) - 1, device=x.device)
    return x.index_select(0, idx), rows.repeat_interleave(ptr.diff().long())


_SUMS: Final = define(
    "sums(Tensor x, Tensor ptr, Tensor idx, Tensor? scale, Tensor? out) -> Tensor",
    _sums,
    lambda x, ptr, *_: _empty(x, ptr),
)
_MAXIMA: Final = define(
    "maxima(Tensor x, Tensor ptr, Tensor idx) -> (Tensor, Tensor)",
    _maxima,
    lambda x, ptr, _: (_empty(x, ptr), _empty(x, ptr, torch.int32)),
)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Any, out: Any, *lists: Any) -> Any:
        scaled = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(x if scaled else None, scale, out, *lists)
        return _SUMS(x, *lists[:2], scale, out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale, out, *lists = ctx.saved_tensors
        there, back = Lists(*lists[:2]), Lists(*lists[2:])
        by_x, by_scale, by_out, *_ = ctx.needs_input_grad
        of_x = sums(grad, back, there, out, scale) if by_x else None
        of_scale = (x * sums(grad, back, there, out)).sum(1) if by_scale else None
        of_out = (grad * sums(x, there, back, scale)).sum(1) if by_out else None
        return of_x, of_scale, of_out, *[None] * 4


class _Maxima(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *lists: Any) -> Any:
        made, who = _MAXIMA(x, *lists)
        ctx.save_for_backward(who)
        ctx.rows = len(x)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (who,) = ctx.saved_tensors  # that of an empty list gets its gradient, which is 0: no vertex reads it
        return grad.new_zeros(ctx.rows, grad.shape[1]).scatter_add(0, who.long(), grad), None, None


def sums(x: Tensor, lists: Lists, back: Lists, scale: Any = None, out: Any = None) -> Tensor:
    """Sum rows of ``x`` (n, F), scaled by ``scale`` (n,), over lists; scale the results by ``out``.

    Args:
        x: float32 or float64.
        lists: which rows.
        back: the same incidences, by row of ``x``.
        scale: of rows of ``x``; None = 1.
        out: of results; None = 1.
    """
    x = x.contiguous()
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, scale, out)):
        return cast(Tensor, _Sums.apply(x, scale, out, *lists, *back))  # type: ignore[no-untyped-call]
    return cast(Tensor, _SUMS(x, *lists, scale, out))


def maxima(x: Tensor, lists: Lists) -> Tensor:
    """Take the largest of each column over lists, 0 in an empty one; gradients go to the first of equals."""
    return cast(Tensor, _Maxima.apply(x.contiguous(), *lists))  # type: ignore[no-untyped-call]
