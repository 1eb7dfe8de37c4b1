"""Bytes: what ops allocate, what is kept, and training within a plan; the command."""

import copy
import gc
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tightrope
from benchmarks._measure import HighWater
from tightrope.cli import main
from tightrope.native import compiler
from tightrope.native.hook.allocator import allocator
from tightrope.run.ledger.accounts import accounts
from tightrope_forms.hypergraph import HypergraphConv, Incidence, hypergraph_conv

native_only = pytest.mark.skipif(compiler() is None, reason="bytes are counted by the allocator hook")


def incidence_of(vertices: int, edges: int, pairs: int) -> Incidence:
    draw = torch.Generator().manual_seed(0)
    index = torch.stack([torch.randint(most, (pairs,), generator=draw) for most in (vertices, edges)])
    return Incidence(index, vertices, edges, allow_empty=True)


@native_only
@pytest.mark.parametrize("first", ["sum", "max"])
def test_a_convolution_allocates_what_is_forecast_and_keeps_nothing_but_indices_of_maxima(first: str) -> None:
    incidence, features = incidence_of(500, 300, 4000), 64
    x = torch.randn(500, features, requires_grad=True)
    between, result = 300 * features * 4, 500 * features * 4
    before = allocator().stats().live
    allocator().begin_record()
    y = hypergraph_conv(x, incidence, first=first)  # type: ignore[arg-type]
    made = sorted(one.bytes for one in allocator().end_record().events if one.kind == "alloc")
    assert made == sorted([between, result] + [between] * (first == "max"))
    kept = allocator().stats().live - before - result
    assert kept == (between if first == "max" else 0)
    y.sum().backward()
    assert x.grad is not None


class Block(nn.Module):
    def __init__(self, incidence: Incidence, first: str) -> None:
        super().__init__()
        self.norm, self.lin, self.incidence, self.first = (
            nn.LayerNorm(32),
            nn.Linear(32, 32),
            incidence,
            first,
        )
        self.weight = nn.Parameter(torch.ones(incidence.num_edges))

    def forward(self, x: Tensor) -> Tensor:
        spread = hypergraph_conv(
            self.lin(self.norm(x)),
            self.incidence,
            self.weight,
            first=self.first,
            scaling="symmetric",  # type: ignore[arg-type]
        )
        return x + spread.relu()


def losses(model: nn.Module, x: Tensor) -> list[float]:
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@native_only
def test_a_step_keeps_its_plan_with_the_bits_of_eager() -> None:
    torch.manual_seed(0)
    gc.collect()
    others = accounts().charged()
    incidence = incidence_of(600, 400, 3000)
    model = nn.Sequential(
        *[Block(incidence, first) for first in ("sum", "max", "mean")],
        HypergraphConv(32, 8, incidence=incidence),
    )
    x = torch.randn(600, 32)
    right = losses(copy.deepcopy(model), x)
    twin = tightrope.compile(copy.deepcopy(model), budget="100%", progress=False)
    losses(twin, x)
    whole = tightrope.report(twin).unplanned
    del twin
    gc.collect()
    with HighWater(allocator()) as counter:
        tightrope.compile(model, budget=others + (whole - others) * 85 // 100, progress=False)
        found = losses(model, x)
    report = tightrope.report(model)
    assert found == right
    assert report.level == "L1"
    assert counter.bytes <= report.budget
    assert report.divergences == 0


def test_a_layer_without_an_incidence_keeps_the_limit_without_a_plan() -> None:
    layer, x, index = HypergraphConv(4, 4), torch.ones(3, 4), torch.tensor([[0, 1, 2], [0, 0, 0]])
    right = layer(x, index)
    gc.collect()
    budget = accounts().charged() + (1 << 20)
    model = tightrope.compile(layer, budget=budget, progress=False)
    with pytest.warns(UserWarning, match="cannot be captured as one graph"):
        assert torch.equal(model(x, index), right)
    assert tightrope.report(model).level in ("L0", "E")  # what other models took decides


def run(*given: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["hypergraph", *given])
    return int(leaving.value.code or 0)


def test_the_command_says_bytes_and_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("vertex,hyperedge\n0,0\n1,0\n1,1\n2,1\n")
    assert run(str(file), "--features", "8", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["vertices"], said["hyperedges"], said["pairs"]) == (3, 2, 4)
    assert said["bytes"] == {"between": 64, "kept": 0, "gathered": 256}
    assert said["seconds"] > 0
    assert run(str(file)) == 0
    assert "3 vertices, 2 hyperedges, 4 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (b"0,0\n1,x\n", (), "line 2"),
        (b"0,0\n2,\xff\n", (), "line 2"),
        (b"0,0\n99999999999,0\n", (), "line 2"),
        (b"\n\n", (), "has no pairs"),
        (b"0,0\n0,2\n", (), "Hyperedge 1 has no vertex"),
        (b"0,0\n-1,0\n", (), "index names vertex -1"),
        (b"0,0\n", ("--first", "median"), "give one of sum, mean, max"),
    ],
)
def test_a_wrong_file_is_refused_by_its_line(
    text: bytes, given: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.csv"
    file.write_bytes(text)
    assert run(str(file), *given) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_numbers_that_take_more_than_the_machine_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("0,2147483646\n")
    assert run(str(file)) == 2
    assert "which is more than this machine has" in " ".join(capsys.readouterr().err.split())
