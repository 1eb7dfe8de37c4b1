"""Graphs of many equal layers from a few of them: they are those of the whole model, or all is captured."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tightrope.capture.alike import ShortProgram, capture_short
from tightrope.capture.api import capture_program
from tightrope.core import Graph
from tightrope.core.graph_check import check_graph
from tightrope.lower.lengthen import Gone, lengthened
from tightrope.plan import smallest

COUNT = 9


class Block(nn.Module):
    """A layer: what it adds to its input depends on its number only where it is told to."""

    def __init__(self, number: int, special: int = -1, start: Callable[[int], float] | None = None) -> None:
        super().__init__()
        self.number, self.special, self.start = number, special, start
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        inner = torch.tanh(self.up(self.norm(x)) * scale)
        if self.start is not None:  # as a cache of keys begins: with none
            inner = torch.cat([torch.tensor([]), inner * torch.tensor(self.start(self.number))], -2)
        if self.number == self.special:
            inner = inner + 1
        return x + self.drop(self.down(inner))


class Net(nn.Module):
    """An embedding, blocks, a head and a loss."""

    def __init__(
        self,
        special: int = -1,
        count: int = COUNT,
        *,
        gather: bool = False,
        start: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__()
        self.words, self.gather = nn.Embedding(12, 8), gather
        self.blocks = nn.ModuleList(Block(number, special, start) for number in range(count))
        self.head = nn.Linear(8, 12)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        scale = torch.sigmoid(self.words.weight.mean())
        seen = []
        for block in self.blocks:
            x = block(x, scale)
            seen.append(x)
        if self.gather:
            x = x + torch.stack(seen).mean(0)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


def short(model: nn.Module) -> ShortProgram:
    return capture_short(model, (torch.zeros(2, 4, dtype=torch.long),))


def longer(found: ShortProgram) -> Graph:
    assert found.gone is not None
    graph = lengthened(found.program.graph, found.gone)
    assert graph is not None
    return graph


def frozen(net: Net) -> Net:
    """Train two tensors of every block alone: gradients end at the first block."""
    net.requires_grad_(False)
    for block in net.blocks:
        block.down.requires_grad_(True)
    return net


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [Net, lambda: frozen(Net()), lambda: Net(special=0)])
def test_the_graph_is_that_of_the_whole_model(make: Callable[[], Any]) -> None:
    model = make()
    found = short(model)
    graph, (whole, _) = longer(found), capture_program(model, (torch.zeros(2, 4, dtype=torch.long),))
    assert len(found.program.graph.ops) < len(graph.ops)
    check_graph(graph)
    assert graph.fingerprint == whole.graph.fingerprint
    assert [(op.module, op.source) for op in graph.ops] == [(op.module, op.source) for op in whole.graph.ops]
    assert graph.persistent == whole.graph.persistent
    assert list(model.blocks._modules) == [str(number) for number in range(COUNT)]


def sized(graph: Graph) -> Counter[tuple[int, str, str]]:
    return Counter((one.bytes, one.kind, one.module) for one in graph.storages if one.bytes)


@pytest.mark.slow
def test_tensors_that_layers_make_of_numbers_count_by_their_values() -> None:
    found = short(Net(start=lambda _: 0.5))
    whole, _ = capture_program(Net(start=lambda _: 0.5), (torch.zeros(2, 4, dtype=torch.long),))
    graph = longer(found)
    check_graph(graph)
    assert [(op.target, op.module) for op in graph.ops] == [(op.target, op.module) for op in whole.graph.ops]
    assert sized(graph) == sized(whole.graph)
    assert smallest(graph).forecast == smallest(whole.graph).forecast
    assert short(Net(start=lambda number: 0.5 + (number == 5))).gone is None


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [lambda: Net(special=5), lambda: Net(gather=True), lambda: Net(count=3)])
def test_what_is_no_row_of_equal_layers_is_captured_as_it_is(make: Callable[[], Any]) -> None:
    assert short(make()).gone is None


def test_a_layer_that_counts_calls_is_seen() -> None:
    model = Net()
    model.blocks[6].register_forward_hook(lambda _module, _args, output: output * 2)
    assert short(model).gone is None


def test_nothing_is_put_back_where_nothing_repeats() -> None:
    program, _ = capture_program(Net(count=2), (torch.zeros(2, 4, dtype=torch.long),))
    assert lengthened(program.graph, Gone("blocks", 3)) is None
    assert lengthened(Graph((), ()), Gone("blocks", 3)) is None


def test_a_model_that_was_captured_is_not_kept() -> None:
    model = torch.nn.Linear(4, 4)
    capture_program(model, (torch.ones(2, 4),))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
