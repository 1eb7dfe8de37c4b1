"""Loops: found again, run as kernels with equal values, proved by isl and judged; others are left."""

import copy
import gc
import importlib.util
import sys
import weakref
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from benchmarks.forms.cells import (
    CELLS,
    GruLoop,
    LoopNet,
    LstmLoop,
    MinimalLoop,
    RnnLoop,
    SlicedLoop,
    elements,
    watched,
)
from tightrope.capture import capture
from tightrope.core import CaptureError, JudgeError
from tightrope_forms.judge.loops import interpret, judge_by_counting, judge_by_isl
from tightrope_forms.loops import LoopedModule, api, optimise_loops
from tightrope_forms.loops.find import loops
from tightrope_forms.loops.kernel import LoopFunction
from tightrope_forms.loops.order import OrderProof
from tightrope_forms.loops.record import record
from tightrope_forms.values.loops import LoopProgram, LoopTerm

pytest.importorskip("islpy", reason="an extra: pip install tightrope-forms[loops]")
pytestmark = pytest.mark.filterwarnings("ignore:tightrope")


@pytest.fixture(autouse=True, scope="module")
def no_time_passes() -> Iterator[None]:
    """Kernels of loops as small as these may be slower than the loops."""
    with patch.object(api.time, "thread_time", return_value=0.0):
        yield


def flat(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def compare(net: nn.Module, looped: LoopedModule, x: Tensor, *, steps: float = 32) -> None:
    """Compare results and gradients to so many rounding steps of the largest magnitude."""
    found, wanted = flat(looped(x)), flat(net(x))
    leaves = [x, *net.parameters()] if x.requires_grad else list(net.parameters())
    both = [torch.autograd.grad(sum(one.square().sum() for one in made), leaves) for made in (found, wanted)]  # type: ignore[arg-type]
    eps = torch.finfo(x.dtype).eps
    for one, two in zip((*found, *both[0]), (*wanted, *both[1]), strict=True):
        assert (one.shape, one.stride()) == (two.shape, two.stride())
        assert (one - two).abs().max() <= steps * eps * two.abs().max()


@pytest.mark.few(8)
@pytest.mark.parametrize("kind", CELLS)
def test_a_loop_gives_the_values_and_gradients_of_its_module(kind: type[LoopNet]) -> None:
    torch.manual_seed(0)
    net = kind(3, 5)
    looped, x = optimise_loops(net), torch.randn(9, 2, 3, requires_grad=True)
    first = flat(looped(x))
    assert all(torch.equal(one, two) for one, two in zip(first, flat(net(x)), strict=True))
    assert not looped.said
    compare(net, looped, x)


@pytest.mark.parametrize(("steps", "batch", "inputs", "hidden"), [(4, 1, 1, 1), (12, 7, 9, 21)])
def test_sizes_with_remainders(steps: int, batch: int, inputs: int, hidden: int) -> None:
    torch.manual_seed(1)
    net = LstmLoop(inputs, hidden)
    looped, x = LoopedModule(net), torch.randn(steps, batch, inputs)
    looped(x)
    assert not looped.said
    compare(net, looped, x)


def test_a_kernel_that_is_slower_is_not_taken() -> None:
    net, x = LstmLoop(2, 3), torch.randn(4, 2, 2)
    looped = LoopedModule(net)
    with (
        patch.object(api.time, "thread_time", side_effect=(k**2 for k in range(1000))),
        pytest.warns(RuntimeWarning, match="its kernel is slower"),
    ):
        assert torch.equal(looped(x), net(x))
    assert looped.said[0].startswith("its kernel is slower: ")
    assert torch.equal(looped(x), net(x))


def test_double_precision_is_as_close() -> None:
    net = GruLoop(3, 6).double()
    looped, x = optimise_loops(net), torch.randn(8, 2, 3, dtype=torch.float64, requires_grad=True)
    looped(x)
    assert not looped.said
    compare(net, looped, x)
    assert torch.autograd.gradcheck(looped, x)


def test_without_gradients_arrays_shrink() -> None:
    net = LstmLoop(4, 8)
    looped, x = optimise_loops(net), torch.randn(16, 2, 4)
    with torch.no_grad():
        looped(x)
        assert torch.allclose(looped(x), net(x), atol=1e-6)
    (report,) = looped.loops()
    assert report.steps == 16
    # c, five gates and tanh(c) over time; there are h over time, two products of a step or a block, and lanes
    assert report.bytes_there < report.bytes_full * 0.6
    cells = {one.name: one.cells for one in looped.programs()[0].arrays if one.cells}
    assert cells["s2"][0] == 1
    with torch.inference_mode():
        assert torch.allclose(looped(x), net(x), atol=1e-6)


def test_new_weights_and_frozen_weights_are_seen() -> None:
    net = GruLoop(3, 4)
    looped, x = optimise_loops(net), torch.randn(6, 1, 3)
    looped(x)
    with torch.no_grad():
        net.inner.weight_hh.mul_(0.5)
    compare(net, looped, x)
    net.inner.weight_ih.requires_grad_(False)
    looped(x)
    (gradient,) = torch.autograd.grad(looped(x).sum(), [net.inner.bias_hh])
    assert torch.allclose(gradient, torch.autograd.grad(net(x).sum(), [net.inner.bias_hh])[0], atol=1e-5)
    assert not looped.said


def test_results_may_be_written_to() -> None:
    net = LstmLoop(3, 4)
    looped, x = optimise_loops(net), torch.randn(6, 1, 3)
    looped(x)
    both = []
    for call in (looped, net):
        made = call(x)
        made.mul_(2)
        both.append(torch.autograd.grad(made.sum(), [net.inner.weight_hh])[0])
    assert torch.allclose(both[0], both[1], atol=1e-5)


def test_nothing_of_the_first_call_is_held() -> None:
    looped, x = optimise_loops(RnnLoop(3, 4)), torch.randn(5, 1, 3)
    first = weakref.ref(looped(x))
    gc.collect()
    assert first() is None


def test_a_copy_compiles_again() -> None:
    looped, x = optimise_loops(GruLoop(3, 4)), torch.randn(6, 1, 3)
    first = looped(x)
    other = copy.deepcopy(looped)
    assert torch.equal(other(x), first)
    assert other.loops() == looped.loops()


def test_values_that_are_not_finite_go_through() -> None:
    net = MinimalLoop(2, 4)
    looped, x = optimise_loops(net), torch.randn(5, 3, 2)
    looped(x)
    x[2, 0], x[1, 1], x[1, 2] = float("nan"), 1e30, -float("inf")
    found, wanted = looped(x), net(x)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.allclose(found, wanted, atol=1e-6, equal_nan=True)
    assert not looped.said


class Odd(LoopNet):
    """Does something in its loop, or around it, that is no affine statement."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count, self.outside = kind, 0, torch.ones(4)
        super().__init__(4, 4)
        self.kind, self.count, self.outside = kind, 0, torch.ones(4)

    def build(self) -> None:
        self.u = nn.Linear(4, 4)

    def cell(self, x: Tensor, state: Any) -> Any:
        made = torch.tanh(x + self.u(state))
        if self.kind == "sort":
            made = made.sort(1).values
        elif self.kind == "values" and made.sum() > 0:
            made = made * 2
        elif self.kind == "place":
            made.mul_(2)
        elif self.kind == "random":
            made = made * torch.rand(())
        elif self.kind == "own":
            made = made * self.outside
        elif self.kind == "count":
            self.count += 1
        elif self.kind == "mode":
            with torch.no_grad():
                made = made * 2
        elif self.kind == "product":
            made = made @ state.T @ state
        return made


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sort", "sort"), ("values", "__bool__"), ("place", "mul_ writes in place"), ("random", "random"),
        ("own", "tensor that is no parameter"), ("count", "attributes"), ("mode", "_set_grad_enabled"),
        ("product", "product of two values"),
    ],
)  # fmt: skip
def test_what_is_no_affine_loop_stays_as_it_was_and_is_said(kind: str, said: str) -> None:
    net = Odd(kind)
    looped, x = optimise_loops(net), torch.randn(8, 2, 4)
    for _ in range(2):
        torch.manual_seed(3)
        found = looped(x)
        torch.manual_seed(3)
        assert torch.equal(found, net(x))
    assert said in looped.said[0]
    assert not looped.loops()


def test_a_first_call_runs_the_module_once() -> None:
    net = Odd("count")
    optimise_loops(net)(torch.randn(8, 2, 4))
    assert net.count == 8


def test_modules_that_change_between_calls_are_looked_at_again() -> None:
    net = SlicedLoop(3, 4)
    looped, x = optimise_loops(net), torch.randn(6, 1, 3)
    looped(x)
    net.register_forward_hook(lambda module, given, made: made * 2)
    assert torch.equal(looped(x), net(x))
    assert looped.said == ["it has hooks"]


def test_other_dtypes_hooks_and_empty_batches_are_left() -> None:
    net = GruLoop(3, 4)
    looped = optimise_loops(net)
    assert looped(torch.randn(6, 0, 3)).shape == (6, 0, 4)
    net.bfloat16()
    assert looped(torch.ones(6, 1, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    with torch.autocast("cpu"):
        looped(torch.ones(6, 1, 3))
    assert [any(word in one for one in looped.said) for word in ("without elements", "bfloat16", "autocast")]


def test_without_isl_the_module_runs_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(api, "find_spec", lambda name: None if name == "islpy" else real(name))
    net = GruLoop(3, 4)
    looped, x = optimise_loops(net), torch.randn(6, 1, 3)
    assert torch.equal(looped(x), net(x))
    assert looped.said == ["islpy is missing. pip install 'tightrope-forms[loops]'"]


def test_a_compiler_that_fails_leaves_the_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path))
    net = GruLoop(3, 5)
    looped, x = optimise_loops(net), torch.randn(6, 1, 3)
    for _ in range(2):
        assert torch.equal(looped(x), net(x))
    assert "could not compile" in looped.said[0]


def test_a_kernel_with_wrong_values_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = LoopFunction.apply
    monkeypatch.setattr(LoopFunction, "apply", lambda *given: tuple(one + 1e-3 for one in real(*given)))
    net = GruLoop(3, 5)
    looped, x = optimise_loops(net), torch.randn(6, 1, 3)
    for _ in range(2):
        assert torch.equal(looped(x), net(x))
    assert looped.said == ["its kernel gave other values"]


def test_a_capture_sees_the_module_as_it_was() -> None:
    net = RnnLoop(3, 4)
    looped, x = optimise_loops(net), torch.randn(5, 1, 3)
    looped(x)
    graph = capture(nn.Sequential(looped), x)
    assert not any("loop" in op.target for op in graph.ops)


def test_no_memory_for_both_forms_leaves_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> Any:
        raise torch.OutOfMemoryError("no room.\nmore")

    monkeypatch.setattr(LoopFunction, "apply", full)
    net = RnnLoop(3, 4)
    looped, x = optimise_loops(net), torch.randn(5, 1, 3)
    assert torch.equal(looped(x), net(x))
    assert looped.said == ["its kernel was not tried: no room"]


def test_the_period_and_the_steps_are_found() -> None:
    recording, why = record(LayerLike(), (torch.randn(10, 2, 3),), {})
    assert not why
    (loop,) = loops(recording)
    assert (loop.steps, loop.period) == (9, 5)  # the first step has no state, and adds nothing


class LayerLike(nn.Module):
    """A loop whose first step differs."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.tanh(self.w(x[0]))
        for t in range(1, len(x)):
            state = torch.tanh(self.w(x[t]) + self.u(state))
        return state


@pytest.fixture(scope="module")
def watched_runs() -> list[Any]:
    """Forward and backward of tiny cells, with their arrays before and after."""
    torch.manual_seed(0)
    found = []
    for kind in (LstmLoop, RnnLoop):
        looped, x = optimise_loops(kind(2, 3)), torch.randn(4, 2, 2)
        looped(x)
        with watched() as seen:
            looped(x).sum().backward()
        assert len(seen) == 2
        found += seen
    return found


def test_the_judge_agrees_by_counting_and_its_numbers_are_those_of_the_kernels(
    watched_runs: list[Any],
) -> None:
    for program, steps, before, after in watched_runs:
        start = elements(program, steps, before, first=True)
        written = {one.target.array for one in program.statements}
        start = {key: value for key, value in start.items() if key[0] not in written or key[0][0] in "sd"}
        start = {
            key: v
            for key, v in start.items()
            if key[0] not in written or key[1][0] == (0 if key[0][0] == "s" else steps)
        }
        assert judge_by_counting(program, steps, start) > 0
        made, wanted = interpret(program, steps, start), elements(program, steps, after, first=False)
        compared = [key for key in wanted if key in made and key[0] in written]
        assert len(compared) > steps
        assert max(abs(made[key] - wanted[key]) for key in compared) < 1e-5


@pytest.mark.parametrize("first", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_the_judge_agrees_by_isl(watched_runs: list[Any], first: int) -> None:
    for program, *_ in watched_runs[first : first + 2]:
        assert judge_by_isl(program) > 20


def reversed_time(program: LoopProgram) -> LoopProgram:
    """Run all steps in the other direction."""

    def back(term: LoopTerm) -> LoopTerm:
        return replace(term, affine=(term.affine[0], -term.affine[1], *term.affine[2:]))

    changed = [replace(one, when=tuple(map(back, one.when))) for one in program.statements]
    return replace(program, statements=tuple(changed))


def wrong(program: LoopProgram) -> list[tuple[str, LoopProgram]]:
    """Break a program in four ways."""
    swapped = []
    for one in program.statements:
        group = one.when[3]
        if one.when[1].affine[0] == 1:
            group = replace(group, affine=(9 - group.affine[0], *group.affine[1:]))
        swapped.append(replace(one, when=(*one.when[:3], group, *one.when[4:])))
    large = next(one for one in program.arrays if one.name[0] == "p" and one.cells[0] == 1)
    small = tuple(
        replace(one, cells=(1, 1, 1), outside=False) if one is large else one for one in program.arrays
    )
    return [
        ("reverses", reversed_time(program)),
        ("reverses", replace(program, statements=tuple(swapped))),
        ("parallel", replace(program, parallel=(6,))),  # along k of products, which are sums
        ("cell of", replace(program, arrays=small)),
    ]


def test_wrong_orders_are_refused_by_the_judge_and_by_the_solver(watched_runs: list[Any]) -> None:
    *orders, (_, shrunk) = wrong(watched_runs[2][0])
    for said, broken in orders:
        with pytest.raises(JudgeError, match=said):
            judge_by_isl(broken)
        with pytest.raises(CaptureError, match="isl finds a dependence"):
            OrderProof(broken).check()
    with pytest.raises(JudgeError, match="cell of"):
        judge_by_isl(shrunk)
    (name,) = (one.name for one in shrunk.arrays if one.cells == (1, 1, 1))
    assert not OrderProof(shrunk).fits(name, (1, 1, 1))


def test_wrong_orders_are_refused_by_counting(watched_runs: list[Any]) -> None:
    program, steps, before, _ = watched_runs[0]
    start = {
        key: v
        for key, v in elements(program, steps, before, first=True).items()
        if key[0][0] in "xw" or key[1][0] == 0
    }
    start = {key: v for key, v in start.items() if key[0][0] in "xws"}
    judge_by_counting(program, steps, start)
    for _, broken in (wrong(program)[k] for k in (0, 1, 3)):
        with pytest.raises(JudgeError, match=r"reads|new order"):
            judge_by_counting(broken, steps, start)
