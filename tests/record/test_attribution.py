"""Modules of captured ops: what torch notes, and what is told by what an op reads."""

import pytest
import torch

import tightrope
from tightrope.core import Graph, Phase


def _captured(model: torch.nn.Module, batch: torch.Tensor) -> Graph:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = tightrope.step(model, budget="100%", model=model, optimizer=sgd, verify=None, seconds=0.2)
    step(batch)
    return step.wholes[0].calls.captured[0].graph


class Branches(torch.nn.Module):
    """Two readers of one value inside a block, behind a slice of it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.left(x), self.right(x)], 1)
        return joined[:, :8] * joined[:, 4:12]


class Forked(torch.nn.Module):
    """A block between two layers, an op in place, and a weight whose gradient is laid out differently."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.block, self.after = torch.nn.Linear(8, 8), Branches(), torch.nn.Linear(8, 8)
        self.act = torch.nn.Hardtanh(inplace=True)
        self.turned = torch.nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.act(self.after(self.block(self.before(x)))) * self.turned.t()).sum()
        return loss


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    return _captured(Forked(), torch.randn(4, 8))


def test_a_sum_of_gradients_goes_to_the_module_around_those_that_made_them(graph: Graph) -> None:
    sums = [op for op in graph.ops if op.target == "aten.add.Tensor" and op.phase is Phase.BACKWARD]
    assert [op.module for op in sums] == ["block", "block"]


def test_the_backward_of_an_op_in_place_goes_to_the_op(graph: Graph) -> None:
    (found,) = [op for op in graph.ops if op.target == "aten.hardtanh_backward.default"]
    assert found.module == "act"


def test_what_runs_outside_every_module_belongs_to_the_root(graph: Graph) -> None:
    (one,) = [op for op in graph.ops if op.target == "aten.full.default"]
    assert one.module == ""


def test_a_graph_has_the_same_fingerprint_after_every_capture(graph: Graph) -> None:
    torch.manual_seed(0)
    again = _captured(Forked(), torch.randn(4, 8))
    assert "tightrope.own_gradient" in {op.target for op in graph.ops}
    assert not [op.target for op in graph.ops if "0x" in op.target]
    assert again.fingerprint == graph.fingerprint


def test_a_model_that_a_function_closes_over_is_not_named_after_the_closure() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    step = tightrope.step(lambda x: net(x).sum(), budget="64MiB", model=net, optimizer=sgd, verify=None)
    step(torch.ones(4, 8))
    paths = {op.module for op in step.wholes[0].calls.captured[0].graph.ops}
    assert paths == {"", "0", "1"}
