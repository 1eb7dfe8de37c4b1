"""Values and gradients against dense matrices; bits over threads; refusals."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope.native import compiler
from tightrope_forms.hypergraph import HypergraphConv, Incidence, hypergraph_conv, ops

OPTIONS = list(itertools.product(("sum", "mean"), ("none", "row", "symmetric")))
native_only = pytest.mark.skipif(compiler() is None, reason="compares with what a compiler built")


def drawn(vertices: int, edges: int, pairs: int, seed: int = 0) -> Tensor:
    """Draw pairs; the last vertex and the last hyperedge occur in none."""
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(most - 1, (pairs,), generator=draw) for most in (vertices, edges)])


def dense(
    x: Tensor, index: Tensor, sizes: tuple[int, int], weight: Tensor, first: str, scaling: str
) -> Tensor:
    matrix = torch.zeros(sizes, dtype=x.dtype)
    matrix.index_put_((index[0], index[1]), torch.ones(index.shape[1], dtype=x.dtype), accumulate=True)

    def power(degree: Tensor, of: float) -> Tensor:
        return torch.where(degree > 0, torch.where(degree > 0, degree, 1) ** of, 0)

    around = (matrix * weight).sum(1)
    out = {"none": torch.ones_like(around), "row": power(around, -1), "symmetric": power(around, -0.5)}[
        scaling
    ]
    given = x * out[:, None] if scaling == "symmetric" else x
    if first == "max":
        made = torch.stack(
            [given[matrix[:, e] > 0].amax(0) if matrix[:, e].any() else x[0] * 0 for e in range(sizes[1])]
        )
    else:
        made = matrix.T @ given
        made = made * power(matrix.sum(0), -1)[:, None] if first == "mean" else made
    return out[:, None] * (matrix @ (weight[:, None] * made))


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_calls", lambda: None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("plain", [False, True])
def test_values_and_gradients_equal_those_of_dense_matrices(
    seed: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duplicates, empty hyperedges, isolated vertices, few vertices; widths off the tiles."""
    if plain:
        without_compiler(monkeypatch)
    sizes = [(2, 2), (7, 30), (200, 20), (60, 90), (100, 100), (199, 50)][seed]
    index = drawn(*sizes, 4 * max(sizes), seed)
    incidence = Incidence(index, *sizes, allow_empty=True)
    torch.manual_seed(seed)
    for features, dtype in (
        (1, torch.float64),
        (13, torch.float64),
        (75, torch.float64),
        (107, torch.float32),
    ):
        x = torch.randn(sizes[0], features, dtype=dtype, requires_grad=True)
        weight = torch.rand(sizes[1], dtype=dtype, requires_grad=True)
        back, close = torch.randn_like(x), {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
        for first, scaling in [*OPTIONS, ("max", "none"), ("max", "symmetric")]:
            right = dense(x, index, sizes, weight, first, scaling)
            found = hypergraph_conv(x, incidence, weight, first=first, scaling=scaling)  # type: ignore[arg-type]
            torch.testing.assert_close(found, right, **close)
            for one, two in zip(
                torch.autograd.grad(found, (x, weight), back),
                torch.autograd.grad(right, (x, weight), back),
                strict=True,
            ):
                torch.testing.assert_close(one, two, **close)


@pytest.mark.parametrize("first", ["sum", "mean", "max"])
def test_gradients_and_second_gradients_are_those_of_differences(first: str) -> None:
    incidence = Incidence(drawn(9, 7, 30), 9, 7, allow_empty=True)
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(7, dtype=torch.float64, requires_grad=True)

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return hypergraph_conv(x, incidence, weight, first=first, scaling="symmetric")  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(call, (x, weight))
    assert torch.autograd.gradgradcheck(call, (x, weight))


@native_only
def test_bits_depend_neither_on_threads_nor_on_the_order_of_pairs() -> None:
    index = drawn(3000, 2000, 40_000)
    mixed = index[:, torch.randperm(index.shape[1])]
    x = torch.randn(3000, 70, requires_grad=True)
    weight = torch.rand(2000, requires_grad=True)
    kept, found = torch.get_num_threads(), []
    try:
        for threads, pairs in ((1, index), (2, index), (5, mixed)):
            torch.set_num_threads(threads)
            incidence = Incidence(pairs, 3000, 2000, allow_empty=True)
            made = []
            for first, scaling in [*OPTIONS, ("max", "row")]:
                y = hypergraph_conv(x, incidence, weight, first=first, scaling=scaling)  # type: ignore[arg-type]
                made += [y, *torch.autograd.grad(y.square().sum(), (x, weight))]
            found.append(made)
    finally:
        torch.set_num_threads(kept)
    for others in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], others, strict=True))


def test_the_layer_of_torch_geometric_is_replaced_with_equal_results() -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    for bias, weighted in ((True, True), (False, False)):
        theirs = geometric.HypergraphConv(12, 8, bias=bias)
        ours = HypergraphConv(12, 8, bias)
        ours.load_state_dict(theirs.state_dict())
        x, index = torch.randn(40, 12), drawn(40, 30, 90)
        weight = torch.rand(30) if weighted else None
        right = theirs(x, index, weight, num_edges=30)
        torch.testing.assert_close(ours(x, index, weight, num_edges=30), right)


def test_a_layer_sorts_an_index_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    plain = Incidence.__init__
    monkeypatch.setattr(
        Incidence, "__init__", lambda *given, **named: (made.append(1), plain(*given, **named))[1]
    )
    layer, x, index = HypergraphConv(4, 4), torch.randn(6, 4), drawn(6, 4, 10)
    first = layer(x, index)
    assert torch.equal(layer(x, index), first)
    HypergraphConv(4, 4)(x, index)  # layers share it
    assert len(made) == 1
    index[0, 0] = 5
    layer(x, index)
    assert len(made) == 2


def test_halves_are_computed_in_float32_and_a_model_moves_with_its_hypergraph() -> None:
    incidence = Incidence(torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]]))
    x = torch.randn(3, 4)
    half = hypergraph_conv(x.bfloat16(), incidence, first="mean", scaling="row")
    torch.testing.assert_close(
        half, hypergraph_conv(x.bfloat16().float(), incidence, first="mean", scaling="row").bfloat16()
    )
    model = nn.ModuleList([HypergraphConv(4, 4, incidence=incidence)]).double()
    assert model[0](x.double()).dtype == torch.float64
    assert set(model.state_dict()) == {"0.lin.weight", "0.bias"}


INDEX = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((torch.tensor([[0, 1], [0, 2]]),), "Hyperedge 1 has no vertex"),
        ((INDEX, 2), "index names vertex 2. There are 2"),
        ((INDEX, 3, 1), "index names hyperedge 1. There are 1"),
        ((torch.tensor([[0, -1], [0, 0]]),), "index names vertex -1"),
        ((INDEX.double(),), "index is torch.float64"),
        ((INDEX.bool(),), "index is torch.bool"),
        ((INDEX.T,), r"index has shape \(4, 2\)"),
        ((INDEX[0],), r"index is torch.int64 \(4,\)"),
        (([[0], [0]],), "index is list"),
        ((INDEX, 3.0), "num_vertices=3.0"),
        ((INDEX, 3, True), "num_edges=True"),
        ((INDEX, 2**40), "num_vertices=1099511627776"),
    ],
)
def test_a_wrong_hypergraph_is_refused_by_name(given: tuple[object, ...], said: str) -> None:
    with pytest.raises(TightropeError, match=said):
        Incidence(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize("plain", [False, True])
def test_wrong_features_are_refused_and_nan_is_never_lost(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plain:
        without_compiler(monkeypatch)
    incidence = Incidence(INDEX)
    for x, said in (
        (torch.ones(3, 2, dtype=torch.int64), "x is torch.int64"),
        (torch.ones(3, 2, dtype=torch.complex64), "x is torch.complex64"),
        (torch.ones(4, 2), r"x is torch.float32 \(4, 2\)"),
        (torch.ones(3), r"x is torch.float32 \(3,\)"),
        (torch.ones(3, 2, device="meta"), "x is on meta, and incidence on cpu"),
    ):
        with pytest.raises(TightropeError, match=said):
            hypergraph_conv(x, incidence)
    good = torch.ones(3, 40)
    for weight in (torch.ones(3), torch.ones(2, 1)):
        with pytest.raises(TightropeError, match="Give"):
            hypergraph_conv(good, incidence, weight, scaling="row")
    with pytest.raises(TightropeError, match="first='median'"):
        hypergraph_conv(good, incidence, first="median")  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="scaling='both'"):
        hypergraph_conv(good, incidence, scaling="both")  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="incidence is Tensor"):
        hypergraph_conv(good, INDEX)  # type: ignore[arg-type]
    for column, row, first in itertools.product((0, 33, 39), (1, 2), ("sum", "mean", "max")):
        bad = good.clone()
        bad[row, column] = torch.nan
        found = hypergraph_conv(bad, incidence, first=first).isnan()  # type: ignore[arg-type]
        assert found[1:, column].all(), "these share a hyperedge with it"
        assert found.sum() == (3 if row == 1 else 2)
    assert hypergraph_conv(good, incidence, torch.tensor([1.0, torch.nan]))[1:].isnan().all()
    infinite = good * torch.inf
    assert hypergraph_conv(infinite, incidence).isinf().all()
    x = good.clone().requires_grad_()
    (grad,) = torch.autograd.grad(hypergraph_conv(x, incidence), x, torch.full_like(x, torch.nan))
    assert grad.isnan().all(), "scalers of mixed precision look for it"


def test_without_a_compiler_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ops._calls.cache_clear()
    monkeypatch.setattr(ops, "missing", lambda _: "no C++ compiler found for the test.")
    try:
        with pytest.warns(RuntimeWarning, match="plain torch, which is slower"):
            hypergraph_conv(torch.ones(3, 2), Incidence(INDEX))
        hypergraph_conv(torch.ones(3, 2), Incidence(INDEX))
    finally:
        ops._calls.cache_clear()
