"""Which form of a convolution is the fastest for one hypergraph, by measuring.

Idea        Two passes are the form to beat. Hyperedges of two members make a small ``H @ H.T``, which takes
            one pass. Neighbours that are computed one after the other find rows in the cache:
            reverse Cuthill-McKee orders both sides.
Guarantee   Forms agree up to the order of sums; an order of vertices changes no bit.
Complexity  A few steps per form. The operator is made where it has under twice the pairs of the hypergraph.
Gaps        Times are noisy: a form must win by 5 %. Orders need scipy.
"""

import copy
import time
from typing import Final

import torch
from torch import Tensor

from tightrope_forms.hypergraph.conv import First, hypergraph_conv
from tightrope_forms.hypergraph.incidence import Incidence

_GAIN: Final = 0.95
_MOST_PAIRS: Final = 16


def choose(
    incidence: Incidence, num_features: int, *, first: First = "sum", dtype: torch.dtype = torch.float32,
    repeats: int = 5,
) -> tuple[Incidence, dict[str, float]]:  # fmt: skip
    """Time forward and backward of every form that can be used.

    Args:
        incidence: of the hypergraph, on a CPU; it stays as it is.
        num_features: of a vertex.
        first: as `hypergraph_conv` will be called; learned weights and ``max`` are of two passes.
        dtype: of features.
        repeats: the fastest of so many counts.

    Returns:
        The hypergraph in its fastest form, and seconds of processor time by form.
    """
    forms = {"two passes": copy.copy(incidence)}
    forms["two passes"].form = "two passes"
    x = torch.rand(incidence.num_vertices, num_features, dtype=dtype, requires_grad=True)
    if operator := _with_operator(incidence, dtype):
        forms["operator"] = operator
    if order := _order(incidence):
        sizes = (incidence.num_vertices, incidence.num_edges)
        forms["ordered"] = Incidence(incidence.index, *sizes, allow_empty=True, order=order)
    seconds = dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):
        for name, one in forms.items():
            start = time.thread_time()
            hypergraph_conv(x, one, first=first).backward(torch.ones_like(x))  # type: ignore[no-untyped-call]
            seconds[name] = min(seconds[name], time.thread_time() - start)
    best = min(seconds, key=lambda name: seconds[name])
    return forms[best if seconds[best] < _GAIN * seconds["two passes"] else "two passes"], seconds


def _with_operator(incidence: Incidence, dtype: torch.dtype) -> Incidence | None:
    """Multiply the incidence matrix with its transpose, where few pairs come of it."""
    pairs = int(incidence.degree_e.square().sum())
    if pairs > _MOST_PAIRS * incidence.index.shape[1]:
        return None
    vertices, edges = incidence.index
    degree = incidence.degree_e[edges]
    left = vertices.repeat_interleave(degree)
    starts = (incidence.degree_e.cumsum(0) - incidence.degree_e)[edges].repeat_interleave(degree)
    within = torch.arange(pairs) - (degree.cumsum(0) - degree).repeat_interleave(degree)
    by_edge = vertices[torch.argsort(edges, stable=True)]
    keys, place = torch.unique(left * incidence.num_vertices + by_edge[starts + within], return_inverse=True)
    if len(keys) >= 2 * len(vertices):
        return None
    made, ptr = copy.copy(incidence), torch.arange(incidence.num_vertices + 1) * incidence.num_vertices
    made._buffers = dict(made._buffers)
    made.form = "operator"
    each = degree.repeat_interleave(degree).to(dtype)
    for name, one in (
        ("ptr_o", torch.searchsorted(keys, ptr).int()),
        ("idx_o", (keys % incidence.num_vertices).int()),
        ("operator_sum", torch.bincount(place).to(dtype)),
        ("operator_mean", torch.zeros(len(keys), dtype=dtype).index_add_(0, place, 1 / each)),
    ):
        made.register_buffer(name, one, persistent=False)
    return made


def _order(incidence: Incidence) -> tuple[Tensor, Tensor] | None:
    """Rank hyperedges and vertices by reverse Cuthill-McKee on the graph of both; None without scipy."""
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee
    except ImportError:
        return None
    (vertices, edges), num = incidence.index.numpy(), incidence.num_vertices
    size = num + incidence.num_edges
    both = coo_array(
        ([True] * (2 * len(edges)), ([*vertices, *(edges + num)], [*(edges + num), *vertices])), (size, size)
    )
    found = torch.from_numpy(reverse_cuthill_mckee(both.tocsr(), symmetric_mode=True).astype("int64"))
    rank = torch.empty(size, dtype=torch.int64)
    rank[found] = torch.arange(size)
    return torch.argsort(torch.argsort(rank[num:])), torch.argsort(torch.argsort(rank[:num]))
