"""Products by oneDNN: which are taken, what they give, and that the program as captured stays as it was."""

import sys

import pytest
import torch
from torch import nn

from tightrope.capture.api import capture_program
from tightrope.capture.products import with_onednn
from tightrope.lower import lower
from tightrope.plan import base_schedule
from tightrope.price.kernels import onednn_addmm, onednn_missing, onednn_mm
from tightrope.run.execute.emit import emit

pytestmark = pytest.mark.skipif(bool(onednn_missing()), reason=onednn_missing() or "-")

TAKEN = {"tightrope.onednn_mm", "tightrope.onednn_addmm"}


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16, dtype=dtype), nn.Linear(16, 4, bias=False, dtype=dtype)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.relu(self.first(rows))).square().mean()
        return out


def _results(model: nn.Module, rows: torch.Tensor, *, other: bool) -> list[torch.Tensor]:
    program, real = capture_program(model, (rows,))
    if other:
        before = program.graph
        found = with_onednn(program)
        assert found is not None
        assert program.graph is before
        assert not {op.target for op in before.ops} & TAKEN
        program = found
    code = emit(program.graph, lower(program.graph, base_schedule(program.graph)))
    with torch.no_grad():
        results, kept = code.parts[0]([], [*real, *program.constants])
        gradients, _ = code.parts[1](kept, [torch.ones(())])
    return [one for one in (*results, *gradients) if isinstance(one, torch.Tensor)]


def test_forward_and_backward_give_the_same_within_rounding() -> None:
    torch.manual_seed(0)
    model, rows = Net(), torch.randn(32, 8, requires_grad=True)
    plain, other = (_results(model, rows, other=other) for other in (False, True))
    assert len(plain) == len(other) >= 4
    for one, two in zip(plain, other, strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)


def test_all_products_or_those_that_are_named() -> None:
    program, _ = capture_program(Net(), (torch.randn(32, 8),))
    every = with_onednn(program)
    assert every is not None
    taken = [op.name for op in every.graph.ops if op.target in TAKEN]
    assert len(taken) == sum(
        op.target in ("aten.mm.default", "aten.addmm.default") for op in program.graph.ops
    )
    one = with_onednn(program, taken[:1])
    assert one is not None
    assert [op.name for op in one.graph.ops if op.target in TAKEN] == taken[:1]
    assert with_onednn(program, ()) is None


def test_what_onednn_does_not_take_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        program, _ = capture_program(Net(dtype), (torch.randn(32, 8, dtype=dtype),))
        assert with_onednn(program) is None
    program, _ = capture_program(Net(), (torch.randn(32, 8),))
    monkeypatch.setattr(sys.modules[with_onednn.__module__], "onednn_missing", lambda: "not built with it")
    assert with_onednn(program) is None


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (64, 1, 33), (1, 64, 2)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_the_kernels_multiply(shape: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    rows, inner, columns = shape
    one = torch.randn(inner, rows).t() if turned[0] else torch.randn(rows, inner)
    other = torch.randn(columns, inner).t() if turned[1] else torch.randn(inner, columns)
    bias = torch.randn(columns)
    torch.testing.assert_close(onednn_mm(one, other), one @ other, rtol=1e-5, atol=1e-5)
    wanted = torch.addmm(bias, one, other)
    found = onednn_addmm(bias, one, other)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.stride() == wanted.stride()
