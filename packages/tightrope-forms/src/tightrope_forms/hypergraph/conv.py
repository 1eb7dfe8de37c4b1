"""Hypergraph convolution, and a layer that replaces that of torch_geometric."""

from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from tightrope.core import TightropeError
from tightrope_forms.hypergraph.incidence import Incidence, inverse
from tightrope_forms.hypergraph.ops import maxima, sums

First = Literal["sum", "mean", "max"]
Scaling = Literal["none", "row", "symmetric"]
_SORTED: Final = WeakTensorKeyDictionary()
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
        TightropeError: shapes, types or devices do not fit.
    """
    given, x = x, _checked(x, incidence)
    into, mid, out = (_wide(one) for one in scales)
    for name, one, size in (
        ("into", into, len(x)), ("mid", mid, incidence.num_edges), ("out", out, len(x))
    ):  # fmt: skip
        if one is not None and (one.shape != (size,) or one.dtype != x.dtype or one.device != x.device):
            raise TightropeError(
                f"Scale {name} is {one.dtype} {tuple(one.shape)} on {one.device}. "
                f"Give {x.dtype} ({size},) on {x.device}."
            )
    edges, vertices = incidence.lists("e"), incidence.lists("v")
    if largest:
        made = maxima(x if into is None else x * into[:, None], edges)
        made = sums(made, vertices, edges, mid, out)
    else:
        made = sums(sums(x, edges, vertices, into, mid), vertices, edges, None, out)
    return made.to(given.dtype)


def _wide(x: Any) -> Any:
    """Halves as float32."""
    return x.float() if x is not None and x.dtype in _HALVES else x


def _checked(x: Tensor, incidence: Incidence) -> Tensor:
    """Check what is convolved, and return it as it is computed.

    Raises:
        TightropeError: shapes, types or devices do not fit.
    """
    if not isinstance(x, Tensor):
        raise TightropeError(f"x is {type(x).__name__}. Give a tensor, a row a vertex.")
    if not isinstance(incidence, Incidence):
        raise TightropeError(f"incidence is {type(incidence).__name__}. Give a tightrope_forms Incidence.")
    floating = x.dtype in (torch.float32, torch.float64, *_HALVES)
    if x.dim() != 2 or len(x) != incidence.num_vertices or not floating:
        raise TightropeError(
            f"x is {x.dtype} {tuple(x.shape)}. Give floating point, ({incidence.num_vertices}, F)."
        )
    if (device := incidence.degree_e.device) != x.device:
        raise TightropeError(f"x is on {x.device}, and incidence on {device}. Move one of them.")
    wide: Tensor = _wide(x)
    return wide


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
    for name, given, known in (("first", first, First), ("scaling", scaling, Scaling)):
        if given not in get_args(known):
            raise TightropeError(f"{name}={given!r}: give one of {', '.join(get_args(known))}.")
    like = _checked(x, incidence)
    mid, out = None if weight is None else weight.to(like.dtype), None
    if scaling != "none":
        out = around(incidence, mid, like, -0.5 if scaling == "symmetric" else -1.0)
    into = out if scaling == "symmetric" else None
    if first == "mean":
        each = inverse(incidence.degree_e, like)
        mid = each if mid is None else mid * each
    return propagate(x, incidence, (into, mid, out), largest=first == "max")


def around(incidence: Incidence, weight: Tensor | None, like: Tensor, power: float) -> Tensor:
    """Sum the weights of the hyperedges of every vertex, to a negative power; 0 where there is none."""
    if weight is None:
        return inverse(incidence.degree_v, like, power)
    if weight.shape != (incidence.num_edges,):
        raise TightropeError(f"weight has shape {tuple(weight.shape)}. Give ({incidence.num_edges},).")
    return inverse(sums(weight[:, None], incidence.lists("v"), incidence.lists("e"))[:, 0], like, power)


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
        self.incidence = incidence

    def forward(
        self, x: Tensor, hyperedge_index: Tensor | None = None, hyperedge_weight: Tensor | None = None,
        hyperedge_attr: None = None, num_edges: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Return (V, out_channels). As in torch_geometric, weights count in the scaling of vertices alone.

        Raises:
            TightropeError: neither ``hyperedge_index`` nor an incidence is there, or it does not fit.
        """
        incidence = self.incidence if hyperedge_index is None else _sorted(hyperedge_index, len(x), num_edges)
        if incidence is None or hyperedge_attr is not None:
            raise TightropeError(
                "Give hyperedge_index, or the layer an incidence. Attributes are not supported."
            )
        made = self.lin(x)
        like = _checked(made, incidence)
        weight = None if hyperedge_weight is None else hyperedge_weight.to(like.dtype)
        scales = (None, inverse(incidence.degree_e, like), around(incidence, weight, like, -1.0))
        made = propagate(made, incidence, scales)
        return made if self.bias is None else made + self.bias


@torch.compiler.disable  # type: ignore[untyped-decorator] # what is kept is no part of a graph
def _sorted(index: Tensor, num_vertices: int, num_edges: int | None) -> Incidence:
    """Sort an index, unless it was sorted before and not written to since."""
    key = (index._version, num_vertices, num_edges)
    if index not in _SORTED or _SORTED[index][0] != key:
        _SORTED[index] = key, Incidence(index, num_vertices, num_edges, allow_empty=True)
    found: Incidence = _SORTED[index][1]
    return found
