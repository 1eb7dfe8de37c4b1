"""Random programs of elementwise ops and reductions, fused and op by op: the same within the tolerance."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightrope.core import Alloc, Fused, Items, Run, View
from tightrope.core.values import Result
from tightrope.fuse.build import compiled, made_up
from tightrope.fuse.program import FusedProgram, program_of
from tightrope.fuse.tolerance import difference
from tightrope.fuse.traced import function_of

ROWS, COLUMNS = 24, 40
_WHOLE = ((ROWS, COLUMNS), (COLUMNS, 1))
_ONE = ("neg", "tanh", "sigmoid", "relu", "exp", "abs", "gelu", "silu", "sqrt", "cos")
_TWO = ("add.Tensor", "mul.Tensor", "sub.Tensor", "maximum.default", "div.Tensor")


@st.composite
def programs(draw: st.DrawFn) -> FusedProgram:
    """Chains with sharing; every value is a matrix, or a column of row sums that is added back."""
    runs: list[Run] = []
    known = [View(0, "float32", *_WHOLE), View(1, "float32", *_WHOLE)]
    for number in range(draw(st.integers(2, 10))):
        first, second = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        made = View(-2 - number, "float32", *_WHOLE)
        kind = draw(st.sampled_from(("one", "two", "rows", "soft", "turn")))
        if kind == "one":
            run = Run(number, f"aten.{draw(st.sampled_from(_ONE))}.default", (first,))
        elif kind == "two":
            run = Run(number, f"aten.{draw(st.sampled_from(_TWO))}", (first, second))
        elif kind == "soft":
            run = Run(number, "aten._softmax.default", (first, 1, False))
        elif kind == "turn":  # the same memory, seen as other rows
            other = View(first.base, "float32", (ROWS // 2, COLUMNS * 2), (COLUMNS * 2, 1))
            made = View(made.base, "float32", other.shape, other.strides)
            run = Run(number, "aten.neg.default", (other,))
        else:
            made = View(made.base, "float32", (ROWS, 1), (1, 1))
            run = Run(number, "aten.amax.default", (first, Items((1,)), True))
        runs.append(Run(run.op, run.target, run.arguments, results=(Result(-1, made),)))
        if made.shape == _WHOLE[0]:
            known.append(made)
    last = runs[-1].results[0].view
    kept = View(7, "float32", last.shape, last.strides)
    runs[-1] = Run(runs[-1].op, runs[-1].target, runs[-1].arguments, results=(Result(-1, kept),))
    inside = (Alloc(7, 1, kept.end, storage=0),)
    return program_of(Fused(tuple(runs), inside), threads=1)[0]


def agree(program: FusedProgram) -> None:
    before = torch.get_rng_state()
    given_ = made_up(program.inputs)
    with torch.no_grad():
        found = compiled(program)(list(given_))
        wanted = function_of(program)(given_)
    assert all(difference(one, two) <= 1 for one, two in zip(found, wanted, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_some_random_programs_agree(program: FusedProgram) -> None:
    agree(program)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs_agree(program: FusedProgram) -> None:
    agree(program)


def test_a_difference_is_seen() -> None:
    wanted = torch.linspace(-1, 1, 50)
    assert difference(wanted + 1e-6, wanted) <= 1
    assert difference(wanted + 1e-3, wanted) > 1
    assert difference(wanted.masked_fill(wanted > 0, float("nan")), wanted) == float("inf")
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
