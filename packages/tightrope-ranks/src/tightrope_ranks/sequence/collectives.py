"""Collectives of a layer as ops of the graph: each gives a new tensor and returns when it is there.

Idea        torch's own functional collectives return before their result is there, and a wait that gives the
            same memory under another name comes later. Here one op is the whole collective, so it has a
            price, creates one storage and can be run again like any other op. How many ranks take part
            is an argument, so shapes are known without any process group: a rank of 1,024 is
            captured in a process of its own.
Source      Korthikanti et al., Reducing activation recomputation in large transformer models (2022), 4.2
Guarantee   The backward of each is the collective that the chain rule asks for. Equal inputs give equal bits
            on a backend that sums in a fixed order (gloo does for one group and size).
Complexity  One collective of torch.distributed each; rows stand first, so nothing is copied.
Gaps        Nothing overlaps: the op blocks until the result is there.

    gather    [s/t, b, h] on each of t ranks -> [s, b, h] on all        backward: scatter
    scatter   [s, b, h], a term of a sum     -> [s/t, b, h] of the sum  backward: gather
    sum       [...], a term of a sum         -> the sum on all          backward: nothing to send
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from tightrope.core import TightropeError
from tightrope_shared.lending import Lent

NAMESPACE: Final = "tightrope_ranks"
WORLD: Final = "world"
"""Name of the group of all ranks."""

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_groups: dict[str, dist.ProcessGroup] = {}
_counted: Counter[str] = Counter()
_alone: list[bool] = []
"""Not empty while ranks measure ops on their own."""


@contextmanager
def alone() -> Iterator[None]:
    """Let collectives make their results, of zeros, without other ranks: for measuring what they allocate."""
    _alone.append(True)
    try:
        yield
    finally:
        _alone.pop()


def name_group(name: str, group: dist.ProcessGroup) -> None:
    """Let a name stand for a process group: graphs hold names."""
    _groups[name] = group


def counted() -> dict[str, int]:
    """Collectives that ran in this process, by kind, and the bytes that this rank received (``bytes``)."""
    return dict(_counted)


def count_anew() -> None:
    """Set the counts of `counted` to zero."""
    _counted.clear()


def group_named(name: str, ranks: int) -> dist.ProcessGroup:
    """Find a group by its name.

    Raises:
        TightropeError: there is none, or it has another number of ranks.
    """
    group = _groups.get(name) or (dist.group.WORLD if name == WORLD and dist.is_initialized() else None)
    if group is None:
        raise TightropeError(
            f"a collective of group {name!r} ran and no such group is known. Call "
            "torch.distributed.init_process_group, and name_group(name, group) for groups of your own."
        )
    if group.size() != ranks:
        raise TightropeError(
            f"group {name!r} has {group.size()} ranks; the model was made for {ranks}: make it with "
            f"ranks={group.size()}."
        )
    return group


def sum_in_place(value: torch.Tensor, ranks: int, group: str) -> None:
    """Replace a value by its sum over all ranks."""
    lent = Lent(value)
    (part,) = lent.take()
    dist.all_reduce(part, group=group_named(group, ranks))
    del part
    lent.back()


def _count(kind: str, received: torch.Tensor, ranks: int) -> None:
    _counted[kind] += 1
    share = received.nbytes // ranks if kind == "gather" else received.nbytes
    _counted["bytes"] += share * (ranks - 1) * (2 if kind == "sum" else 1) // (ranks if kind == "sum" else 1)


@torch.library.custom_op(f"{NAMESPACE}::gather", mutates_args=())
def gather(rows: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Put the rows of all ranks together, in the order of ranks."""
    rows = rows.contiguous()
    full = rows.new_empty((rows.shape[0] * ranks, *rows.shape[1:]))
    if _alone:
        return full.zero_()
    lent = Lent(full, rows)
    _gather(*lent.take(), group=group_named(group, ranks))
    lent.back()
    _count("gather", full, ranks)
    return full


@torch.library.custom_op(f"{NAMESPACE}::scatter", mutates_args=())
def scatter(term: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Add up the terms of all ranks; each keeps its rows of the sum."""
    rows = term.new_empty((term.shape[0] // ranks, *term.shape[1:]))
    term = term.contiguous()
    if _alone:
        return rows.zero_()
    lent = Lent(rows, term)
    _scatter(*lent.take(), group=group_named(group, ranks))
    lent.back()
    _count("scatter", rows, ranks)
    return rows


@torch.library.custom_op(f"{NAMESPACE}::sum", mutates_args=())
def total(term: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Add up the terms of all ranks; all of them have the sum."""
    found = term.clone(memory_format=torch.contiguous_format)
    if _alone:
        return found
    sum_in_place(found, ranks, group)
    _count("sum", found, ranks)
    return found


@gather.register_fake
def _(rows: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    return rows.new_empty((rows.shape[0] * ranks, *rows.shape[1:]))


@scatter.register_fake
def _(term: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    return term.new_empty((term.shape[0] // ranks, *term.shape[1:]))


@total.register_fake
def _(term: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    return term.new_empty(term.shape)


def _keep_group(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.ranks, ctx.group = inputs[1:]


gather.register_autograd(
    lambda ctx, grad: (scatter(grad, ctx.ranks, ctx.group), None, None), setup_context=_keep_group
)
scatter.register_autograd(
    lambda ctx, grad: (gather(grad, ctx.ranks, ctx.group), None, None), setup_context=_keep_group
)
total.register_autograd(lambda ctx, grad: (grad, None, None), setup_context=_keep_group)


class _Enter(torch.autograd.Function):
    """The same forward; backward adds up what comes of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
        ctx.ranks, ctx.group = ranks, group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return total(grads[0], ctx.ranks, ctx.group), None, None


def enter(value: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """Read a value that all ranks hold, each for a term of its own: its gradient is the sum of theirs."""
    return _Enter.apply(value, ranks, group)  # type: ignore[no-any-return, no-untyped-call]


class _GatheredLinear(torch.autograd.Function):
    """A product of gathered rows that saves this rank's rows alone, and gathers them again."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, ranks: int, group: str
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.ranks, ctx.group = ranks, group
        return torch.nn.functional.linear(gather(rows, ranks, group), weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        rows, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        full = gather(rows, ctx.ranks, ctx.group)
        weights = flat.t() @ full.reshape(-1, full.shape[-1])
        del full
        return scatter(grad @ weight, ctx.ranks, ctx.group), weights, flat.sum(0), None, None


def gathered_linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, ranks: int, group: str
) -> torch.Tensor:
    """Multiply the rows of all ranks by this rank's part of a weight.

    Saves ``rows``, a ``ranks``-th of what is multiplied, and gathers again in the backward.
    """
    return _GatheredLinear.apply(rows, weight, bias, ranks, group)  # type: ignore[no-any-return, no-untyped-call]
