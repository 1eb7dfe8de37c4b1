"""Hypergraph convolution, and a layer that replaces that of torch_geometric."""

import weakref
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_forms.hypergraph.incidence import Incidence, inverse
from tightrope_forms.hypergraph.ops import maxima, sums

First = Literal["sum", "mean", "max"]
Scaling = Literal["none", "row", "symmetric"]
_HALVES: Final = (torch.bfloat16, torch.float16)


def propagate(
    x: Tensor,
    incidence: Incidence,
    scales: tuple[Any, Any, Any] = (None, None, None),
    *,
    largest: bool = False,
) -> Tensor:
    """Sum over hyperedges, then over vertices: ``out * (H @ (mid * (H.T @ (into * x))))``.

    Args:
        x: (V, F), float32 or float64; halves are computed in float32.
        incidence: with V vertices.
        scales: ``into`` (V,), ``mid`` (E,) and ``out`` (V,); None = 1. All of them may need gradients.
        largest: whether a hyperedge takes the largest of each column instead of their sum.

    Returns:
        (V, F). Backwards keep the scales alone, and ``x`` where a scale needs a gradient; for the largest,
        E x F numbers of 4 bytes. Between the passes there are E x F numbers.

    Raises:
        TightropeError: shapes, types or devices do not fit, or a hyperedge's sum is NaN.
    """
    if x.dtype in _HALVES:
        scales = tuple(one if one is None else one.float() for one in scales)  # type: ignore[assignment]
        return propagate(x.float(), incidence, scales, largest=largest).to(x.dtype)
    check(x, incidence, scales)
    into, mid, out = scales
    edges, vertices = incidence.edges, incidence.vertices
    if largest:
        made = maxima(x if into is None else x * into[:, None], edges, vertices)
        return sums(made, vertices, edges, mid, out, check=True)
    return sums(sums(x, edges, vertices, into, mid, check=True), vertices, edges, None, out)


def check(x: Tensor, incidence: Incidence, scales: tuple[Any, Any, Any]) -> None:
    """Check what `propagate` is given.

    Raises:
        TightropeError: shapes, types or devices do not fit.
    """
    if not isinstance(x, Tensor):
        raise TightropeError(f"x is {type(x).__name__}. Give a tensor, a row a vertex.")
    if not isinstance(incidence, Incidence):
        raise TightropeError(f"incidence is {type(incidence).__name__}. Give a tightrope_forms Incidence.")
    if (
        x.dim() != 2
        or len(x) != incidence.num_vertices
        or x.dtype not in (torch.float32, torch.float64, *_HALVES)
    ):
        raise TightropeError(
            f"x is {x.dtype} {tuple(x.shape)}. Give floating point, ({incidence.num_vertices}, F)."
        )
    sizes = (incidence.num_vertices, incidence.num_edges, incidence.num_vertices)
    for name, one, size in zip(("into", "mid", "out"), scales, sizes, strict=True):
        if one is not None and (one.shape != (size,) or one.dtype != x.dtype or one.device != x.device):
            raise TightropeError(
                f"Scale {name} is {one.dtype} {tuple(one.shape)} on {one.device}. "
                f"Give {x.dtype} ({size},) on {x.device}."
            )
    if incidence.idx_e.device != x.device:
        raise TightropeError(
            f"x is on {x.device}, and incidence on {incidence.idx_e.device}. Move one of them."
        )


def hypergraph_conv(
    x: Tensor,
    incidence: Incidence,
    weight: Tensor | None = None,
    *,
    first: First = "sum",
    scaling: Scaling = "none",
) -> Tensor:
    """Convolve vertices over their hyperedges: HGNN is ``first="mean", scaling="symmetric"``.

    Args:
        x: (V, F), floating point.
        incidence: with V vertices and E hyperedges.
        weight: of hyperedges (E,), not negative where they scale; it may need a gradient.
        first: what a hyperedge takes of its members: their ``sum``, ``mean`` or ``max`` of each column.
        scaling: ``row`` divides results by the weights around a vertex. ``symmetric`` divides inputs and
            results by the square root. A vertex without hyperedges gets 0.

    Returns:
        (V, F).

    Raises:
        TightropeError: see `propagate`, or an option is unknown.

    Example:
        >>> incidence = Incidence(torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]))
        >>> hypergraph_conv(torch.tensor([[1.0], [2.0], [4.0]]), incidence, first="mean", scaling="row")
        tensor([[1.5000],
                [2.2500],
                [3.0000]])
    """
    for name, given, known in (
        ("first", first, ("sum", "mean", "max")),
        ("scaling", scaling, ("none", "row", "symmetric")),
    ):
        if given not in known:
            raise TightropeError(f"{name}={given!r}: give one of {', '.join(known)}.")
    check(x, incidence, (None, None, None))
    like = x.float() if x.dtype in _HALVES else x
    mid = None if weight is None else weight.to(like.dtype)
    scale = (
        None if scaling == "none" else around(incidence, mid, like, -0.5 if scaling == "symmetric" else -1.0)
    )
    into = scale if scaling == "symmetric" else None
    if operator := incidence.operator(first, like) if mid is None else None:
        return sums(like if into is None else like * into[:, None], operator, operator, None, scale).to(
            x.dtype
        )
    if first == "mean":
        each = inverse(incidence.degree_e, like)
        mid = each if mid is None else mid * each
    return propagate(x, incidence, (into, mid, scale), largest=first == "max")


def around(incidence: Incidence, weight: Tensor | None, like: Tensor, power: float) -> Tensor:
    """Sum the weights of the hyperedges of every vertex, to a negative power; 0 where there is none."""
    if weight is None:
        return inverse(incidence.degree_v, like, power)
    if weight.shape != (incidence.num_edges,):
        raise TightropeError(f"weight has shape {tuple(weight.shape)}. Give ({incidence.num_edges},).")
    return inverse(sums(weight[:, None], incidence.vertices, incidence.edges)[:, 0], like, power)


class HypergraphConv(nn.Module):
    """The layer of this name of torch_geometric, without attention: same parameters, names and results.

    Args:
        in_channels, out_channels: features before and behind it.
        bias: whether it has one.
        incidence: used where a call brings no ``hyperedge_index``, as a planned step needs it.

    Example:
        >>> layer = HypergraphConv(8, 4)
        >>> layer(torch.ones(3, 8), torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])).shape
        torch.Size([3, 4])
    """

    def __init__(
        self, in_channels: int, out_channels: int, bias: bool = True, *, incidence: Incidence | None = None
    ) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        nn.init.xavier_uniform_(self.lin.weight)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.incidence, self._last = incidence, (None, None, None)

    @classmethod
    def of(cls, layer: Any, incidence: Incidence | None = None) -> "HypergraphConv":
        """Take over a layer of torch_geometric with its parameters, which both share.

        Raises:
            TightropeError: it has attention.
        """
        if layer.use_attention:
            raise TightropeError("The layer has attention, which is not supported. Keep it as it is.")
        made = cls(layer.in_channels, layer.out_channels, layer.bias is not None, incidence=incidence)
        made.lin.weight, made.bias = layer.lin.weight, layer.bias
        return made

    def forward(
        self, x: Tensor, hyperedge_index: Tensor | None = None, hyperedge_weight: Tensor | None = None,
        hyperedge_attr: None = None, num_edges: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Return (V, out_channels). As in torch_geometric, weights count in the scaling of vertices alone.

        Raises:
            TightropeError: neither ``hyperedge_index`` nor an incidence is there, or it does not fit.
        """
        incidence = (
            self.incidence if hyperedge_index is None else self._sorted(hyperedge_index, len(x), num_edges)
        )
        if incidence is None or hyperedge_attr is not None:
            raise TightropeError(
                "Give hyperedge_index, or the layer an incidence. Attributes are not supported."
            )
        made = self.lin(x)
        like = made.float() if made.dtype in _HALVES else made
        weight = None if hyperedge_weight is None else hyperedge_weight.to(like.dtype)
        scales = (None, inverse(incidence.degree_e, like), around(incidence, weight, like, -1.0))
        made = propagate(made, incidence, scales)
        return made if self.bias is None else made + self.bias

    @torch.compiler.disable  # type: ignore[untyped-decorator] # what it keeps is no part of a graph
    def _sorted(self, index: Tensor, num_vertices: int, num_edges: int | None) -> Incidence:
        """Sort an index, unless it is that of the last call and was not written to."""
        key = (index._version, num_vertices, num_edges)
        known, last, incidence = self._last
        if known is None or known() is not index or last != key:
            incidence = Incidence(index, num_vertices, num_edges, allow_empty=True)
            object.__setattr__(self, "_last", (weakref.ref(index), key, incidence))
        return incidence
