"""Graphs read for other sizes are those that a capture at these sizes gives."""

import pytest
import torch
from torch import nn

import tightrope
from tightrope.capture import _torch
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
    with _torch.calling(8), pytest.raises(Exception, match="captured") as stopped:
        torch.compile(one_call, backend=backend, fullgraph=True, dynamic=True)(*inputs)
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
