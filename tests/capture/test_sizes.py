"""Graphs read for other sizes are those that a capture at these sizes gives."""

import pytest
import torch
from torch import nn

import tightrope
from tightrope.capture import _torch
from tightrope.capture._compiled import compile_with
from tightrope.capture._sizes import resized, sizes_in
from tightrope.capture.dynamo import make_backend
from tightrope.capture.program import Program
from tightrope.core import Graph, TightropeError


class _Captured(TightropeError):
    def __init__(self, program: Program) -> None:
        super().__init__("captured")
        self.program = program


def symbolic(model: nn.Module, *inputs: torch.Tensor) -> Program:
    def host(program: Program, _real: object) -> None:
        raise _Captured(program)

    def one_call(*args: torch.Tensor) -> object:
        return model(*args)

    backend = make_backend(host, foresee=True)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="captured") as stopped:
        compile_with(one_call, backend, dynamic=True)(*inputs)
    cause = _torch.cause_in_backend(stopped.value)
    assert isinstance(cause, _Captured)
    return cause.program


def facts(graph: Graph) -> list[object]:
    made = [(op.target, op.reads, op.results, op.phase) for op in graph.ops]
    return [*made, *((storage.bytes, storage.kind, storage.external) for storage in graph.storages)]


class Rows(nn.Module):
    """A convolution over time, attention, dropout and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv = nn.Embedding(30, 8), nn.Conv1d(8, 8, 3, padding=1)
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.conv(self.embed(tokens).transpose(1, 2))).transpose(1, 2)
        weights = (hidden @ hidden.transpose(1, 2)).softmax(-1)
        return self.head(nn.functional.dropout(weights @ hidden, 0.1)).square().mean()


@pytest.mark.slow
def test_a_graph_for_other_sizes_is_that_of_a_capture() -> None:
    torch.manual_seed(0)
    model = Rows()
    program = symbolic(model, torch.zeros(4, 12, dtype=torch.long))
    assert program.sizes == (4, 12)
    assert program.resizable is not None
    assert program.resizable.inputs == (("input 0", ("0", "1")),)
    for sizes in ((4, 12), (7, 31), (2, 3)):
        alone = tightrope.capture(model, torch.zeros(sizes, dtype=torch.long))
        assert program.resizable.refused(sizes) == ""
        assert facts(program.resizable.at(sizes).graph) == facts(alone), sizes


class Sliced(nn.Module):
    """Looks at rows of what it made, as language models do in front of their head."""

    def __init__(self, keep: slice) -> None:
        super().__init__()
        self.embed, self.head, self.keep = nn.Embedding(30, 8), nn.Linear(8, 8), keep

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens)[:, self.keep, :]).square().mean()


@pytest.mark.few(1)
@pytest.mark.parametrize("keep", [slice(0, None), slice(None), slice(1, None), slice(-2, None)])
def test_a_slice_that_takes_all_is_left_out_as_in_a_capture(keep: slice) -> None:
    torch.manual_seed(0)
    model = Sliced(keep)
    program = symbolic(model, torch.zeros(4, 12, dtype=torch.long))
    assert program.resizable is not None
    for sizes in ((4, 12), (7, 31)):
        graph = program.resizable.at(sizes).graph
        alone = tightrope.capture(model, torch.zeros(sizes, dtype=torch.long))
        found, wanted = (sum("slice_backward" in op.target for op in one.ops) for one in (graph, alone))
        if keep.start in (0, None):
            assert facts(graph) == facts(alone)
        assert 0 < wanted <= found if keep.start else found == wanted == 0


class Turned(nn.Module):
    """The gradient of the slice has other strides than the gradient of what it is of."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows * 2)[:, 0:].t().exp().square().mean()


def test_the_gradient_of_a_slice_stays_where_it_changes_strides() -> None:
    rows = torch.ones(4, 12, requires_grad=True)
    program = symbolic(Turned(), rows)
    assert program.resizable is not None
    graph = program.resizable.at((5, 7)).graph
    assert sum("slice_backward" in op.target for op in graph.ops) > 0


class Branches(nn.Module):
    """Another product from 16 rows on."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.few(rows) if rows.shape[0] < 16 else self.many(rows)).sum()


def test_sizes_that_break_a_guard_are_told() -> None:
    program = symbolic(Branches(), torch.zeros(8, 4))
    assert program.resizable is not None
    assert program.resizable.refused((15,)) == ""
    assert program.resizable.refused((16,)) != ""


def test_inputs_of_other_sizes_are_left_out() -> None:
    tensor = torch.zeros(8, 4)
    program = symbolic(Branches(), tensor)
    assert program.resizable is not None
    weight = torch.zeros(4, 4)
    given = [8, tensor, weight]
    assert sizes_in(given) == (8,)
    kept = resized(given, program.module)
    assert kept[1] is tensor
    assert resized([8, torch.zeros(9, 4), weight], program.module)[1] is None
