"""Which vertex belongs to which hyperedge, sorted once in both directions."""

from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_forms.hypergraph.ops import Lists

FORMS: Final = ("two passes", "operator")


class Incidence(nn.Module):
    """Members of hyperedges, and hyperedges of vertices. It moves with a model, and no state dict holds it.

    Results do not depend on the order of the pairs. A pair that is given twice counts twice.

    Args:
        index: (2, N), whole numbers: a vertex and its hyperedge in each column.
        num_vertices: isolated ones included; None = those that occur.
        num_edges: None = those that occur.
        allow_empty: whether a hyperedge may have no member; its sum is 0.
        order: ranks of all hyperedges and of all vertices, in which they are computed; see `choose`.

    Attributes:
        form: one of `FORMS`; set by `choose`.

    Raises:
        TightropeError: the index is no such table, a number is out of range, or a hyperedge is empty.

    Example:
        >>> Incidence(torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]))
        Incidence(3 vertices, 2 hyperedges, 4 incidences, two passes)
    """

    ptr_e: Tensor
    idx_e: Tensor
    ptr_v: Tensor
    idx_v: Tensor
    rows_e: Tensor | None
    rows_v: Tensor | None
    degree_e: Tensor
    degree_v: Tensor
    ptr_o: Tensor
    idx_o: Tensor

    def __init__(
        self,
        index: Tensor,
        num_vertices: int | None = None,
        num_edges: int | None = None,
        *,
        allow_empty: bool = False,
        order: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64) or index.dim() != 2:
            said = (
                f"{index.dtype} {tuple(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
            )
            raise TightropeError(f"index is {said}. Give int64 (2, N): a vertex and a hyperedge a column.")
        if len(index) != 2 or index.shape[1] >= 2**31:
            raise TightropeError(f"index has shape {tuple(index.shape)}. Give (2, N) with N below 2**31.")
        vertices, edges = index.long()
        self.num_vertices = _num("vertices", "vertex", vertices, num_vertices)
        self.num_edges = _num("edges", "hyperedge", edges, num_edges)
        self.form: str = FORMS[0]
        for name, own, other, num, rank in (
            ("e", edges, vertices, self.num_edges, order and order[0]),
            ("v", vertices, edges, self.num_vertices, order and order[1]),
        ):
            keys = (own if rank is None else rank[own]) * max(self.num_vertices, self.num_edges) + other
            place = torch.argsort(keys, stable=True)
            degree = torch.bincount(own, minlength=num)
            rows = None if rank is None else torch.argsort(rank).int()
            ptr = torch.cat(
                (degree.new_zeros(1), (degree if rows is None else degree[rows.long()]).cumsum(0))
            )
            for kind, one in (("ptr", ptr.int()), ("idx", other[place].int()), ("rows", rows)):
                self.register_buffer(f"{kind}_{name}", one, persistent=False)
            self.register_buffer(f"degree_{name}", degree, persistent=False)
        empty = (self.degree_e == 0).nonzero()
        if len(empty) and not allow_empty:
            raise TightropeError(
                f"Hyperedge {int(empty[0])} has no vertex (of {len(empty)} such). "
                "Leave it out, or give allow_empty=True."
            )

    @property
    def edges(self) -> Lists:
        """The members of every hyperedge."""
        return self._lists("e")

    @property
    def vertices(self) -> Lists:
        """The hyperedges of every vertex."""
        return self._lists("v")

    def _lists(self, side: str) -> Lists:
        found = self._buffers  # an attribute of a module takes a microsecond
        return Lists(*(cast(Tensor, found[f"{name}_{side}"]) for name in ("ptr", "idx", "rows")))

    @property
    def index(self) -> Tensor:
        """The pairs, (2, N) int64, sorted."""
        rows = torch.arange(self.num_edges, device=self.idx_e.device) if self.rows_e is None else self.rows_e
        return torch.stack((self.idx_e.long(), rows.long().repeat_interleave(self.ptr_e.diff().long())))

    def operator(self, first: str, like: Tensor) -> Lists | None:
        """Return ``H @ H.T``, or its form for means, where `choose` kept it; it is symmetric."""
        values = self._buffers.get(f"operator_{first}") if self.form == "operator" else None
        if values is None or values.dtype != like.dtype:
            return None
        return Lists(self.ptr_o, self.idx_o, None, values)

    def extra_repr(self) -> str:
        """Say how large it is, and its form."""
        num = len(self.idx_e)
        return f"{self.num_vertices} vertices, {self.num_edges} hyperedges, {num} incidences, {self.form}"


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
