"""Which vertex belongs to which hyperedge, sorted once in both directions."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_forms.hypergraph.ops import Lists


class Incidence(nn.Module):
    """Members of hyperedges, and hyperedges of vertices. It moves with a model, and no state dict holds it.

    Results do not depend on the order of the pairs. A pair that is given twice counts twice.

    Args:
        index: (2, N), whole numbers: a vertex and its hyperedge in each column.
        num_vertices: isolated ones included; None = those that occur.
        num_edges: None = those that occur.
        allow_empty: whether a hyperedge may have no member; its sum is 0.

    Raises:
        TightropeError: the index is no such table, a number is out of range, or a hyperedge is empty.

    Example:
        >>> Incidence(torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]))
        Incidence(3 vertices, 2 hyperedges, 4 incidences)
    """

    degree_e: Tensor
    degree_v: Tensor

    def __init__(
        self,
        index: Tensor,
        num_vertices: int | None = None,
        num_edges: int | None = None,
        *,
        allow_empty: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64) or index.dim() != 2:
            given = index if isinstance(index, Tensor) else None
            said = type(index).__name__ if given is None else f"{given.dtype} {tuple(given.shape)}"
            raise TightropeError(f"index is {said}. Give int64 (2, N): a vertex and a hyperedge a column.")
        if len(index) != 2 or index.shape[1] >= 2**31:
            raise TightropeError(f"index has shape {tuple(index.shape)}. Give (2, N) with N below 2**31.")
        vertices, edges = index.long()
        self.num_vertices = _num("vertices", "vertex", vertices, num_vertices)
        self.num_edges = _num("edges", "hyperedge", edges, num_edges)
        for name, own, other, num in (
            ("e", edges, vertices, self.num_edges),
            ("v", vertices, edges, self.num_vertices),
        ):
            place = torch.argsort(own * max(self.num_vertices, self.num_edges) + other, stable=True)
            degree = torch.bincount(own, minlength=num)
            ptr = torch.cat((degree.new_zeros(1), degree.cumsum(0)))
            for kind, one in (("degree", degree), ("ptr", ptr.int()), ("idx", other[place].int())):
                self.register_buffer(f"{kind}_{name}", one, persistent=False)
        empty = (self.degree_e == 0).nonzero()
        if len(empty) and not allow_empty:
            raise TightropeError(
                f"Hyperedge {int(empty[0])} has no vertex (of {len(empty)} such). "
                "Leave it out, or give allow_empty=True."
            )

    def lists(self, name: str) -> Lists:
        """Return the members of hyperedges (``e``), or the hyperedges of vertices (``v``)."""
        found = self._buffers  # an attribute of a module takes a microsecond
        return Lists(*(cast(Tensor, found[f"{kind}_{name}"]) for kind in ("ptr", "idx")))

    @property
    def index(self) -> Tensor:
        """The pairs, (2, N) int64, sorted."""
        members = self.lists("e").idx.long()
        edges = torch.arange(self.num_edges, device=members.device)
        return torch.stack((members, edges.repeat_interleave(self.degree_e)))

    def extra_repr(self) -> str:
        """Say how large it is."""
        num = len(self.lists("e").idx)
        return f"{self.num_vertices} vertices, {self.num_edges} hyperedges, {num} incidences"


def _num(plural: str, name: str, found: Tensor, given: Any) -> int:
    """Check the numbers of vertices or hyperedges; return how many there are."""
    low, high = (int(found.min()), int(found.max())) if len(found) else (0, -1)
    if given is None:
        given = high + 1
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**31:
        raise TightropeError(f"num_{plural}={given!r}: give a whole number of at least 0.")
    if low < 0 or high >= given:
        wrong = low if low < 0 else high
        raise TightropeError(f"index names {name} {wrong}. There are {given}, from 0 on: see num_{plural}.")
    return int(given)


def inverse(degree: Tensor, like: Tensor, power: float = -1.0) -> Tensor:
    """Return degrees to a negative power, in the type of ``like``; 0 where a degree is 0."""
    some = degree != 0
    return torch.where(some, torch.where(some, degree, 1).to(like.dtype) ** power, 0)
