"""The first run of every plan: what is computed again has the bits of its first run, laid out as captured."""

import gc
import itertools
import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training import Blocks, batches, built

import tightrope
from tightrope.capture import capture_program, measured
from tightrope.core import Alloc, Graph, InfeasibleError, Plan, Run, Schedule, VerificationError
from tightrope.lower import lower
from tightrope.plan import smallest, solve
from tightrope.price.kernels import Kernel
from tightrope.run.execute import running
from tightrope.run.execute.check import RecomputeCheck, digest
from tightrope.run.execute.emit import Wrap, emit
from tightrope.run.execute.reference import Reference
from tightrope.run.ledger.accounts import accounts

X, Y = batches(1)[0]


class Sines(nn.Module):
    """Layers whose activations are cheap to compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(2 * layer(x))
        return x.square().mean()


def smallest_budget(model: nn.Module, x: Tensor) -> int:
    tightrope.compile(model, budget=1 << 20, progress=False)
    with pytest.raises(InfeasibleError) as refused:
        model(x)
    gc.collect()
    assert refused.value.smallest_found is not None
    return refused.value.smallest_found


def test_the_report_says_which_executable_was_checked_when_and_how() -> None:
    x = torch.ones(1024, 64)
    model = built(Sines)
    tightrope.compile(model, budget=smallest_budget(model, x), progress=False)
    loss = model(x)
    assert not tightrope.report(model).proofs[-1].checked
    loss.backward()
    found = tightrope.report(model)
    assert found.num_recomputed > 0
    (proof,) = found.proofs
    assert proof.judged <= proof.checked
    assert proof.num_again >= found.num_recomputed
    assert f"executable {proof.executable[:12]} judged at" in found.verified
    assert f"{proof.num_again} recomputed storages equal their first, bit for bit" in found.verified


def test_nothing_is_checked_where_nobody_asks() -> None:
    model = built(Blocks)
    tightrope.compile(model, budget="64MiB", verify=None, progress=False)
    model(X).sum().backward()
    assert "not checked in a run yet" in tightrope.report(model).verified


def test_a_comparison_with_the_unplanned_graph_is_reported() -> None:
    model = built(Blocks)
    tightrope.compile(model, budget="64MiB", verify="graph", progress=False)
    model(X).sum().backward()
    found = re.search(r"(\d+) outputs, gradients and changed buffers", tightrope.report(model).verified)
    assert found is not None
    assert int(found[1]) > sum(1 for _ in model.parameters())


def bits(code: Any, graph: Graph, given: list[Any]) -> list[str]:
    """Run both parts and hash what they hand over; tangents are ones."""
    torch.manual_seed(3)
    outputs, kept = code.parts[0]([], list(given))
    tangents = [torch.ones_like(out) for out in outputs[: len(graph.parts[1].inputs)]]
    found = [digest(value) for value in outputs]
    gradients, _ = code.parts[1](kept, tangents)
    return found + [digest(value) for value in gradients]


class Joined(nn.Module):
    """A key that is made empty and then filled slice by slice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: Tensor) -> Tensor:
        first, rest = self.a(x).split([64, 32], -1)
        key = x.new_empty(*x.shape[:-1], 96)
        key[..., :64].copy_(first)
        key[..., 64:].copy_(rest)
        made: Tensor = x + self.b(torch.tanh(key))
        return made


@pytest.mark.slow
def test_bytes_without_values_may_differ_when_they_are_made_again() -> None:
    model, x = nn.Sequential(*(Joined() for _ in range(4))), torch.randn(256, 64)
    captured, real = capture_program(model, (x,))
    graph = measured(captured, real, accounts().allocator).graph
    plain, executable = (lower(graph, one(graph).schedule) for one in (_given, smallest))
    made = [run.target for run in executable.flat() if isinstance(run, Run)]
    assert made.count("aten.new_empty.default") > 4
    check, inputs = RecomputeCheck(graph, executable), [*real, *captured.constants]
    with torch.no_grad():
        wanted = bits(emit(graph, plain), graph, inputs)
        assert bits(emit(graph, executable, wrap=check.wrap), graph, inputs) == wanted


def _given(graph: Graph) -> Plan:
    return solve(graph, budget=2**60, planner="given")


def test_checking_counts_what_runs_again_and_changes_nothing() -> None:
    program, real = capture_program(built(Blocks), (X,))
    graph = program.graph
    runs = []
    for schedule in (solve(graph, budget=2**60, planner="given").schedule, smallest(graph).schedule):
        executable = lower(graph, schedule)
        check = RecomputeCheck(graph, executable)
        for wrap in (None, check.wrap):
            runs.append(bits(emit(graph, executable, wrap=wrap), graph, [*real, *program.constants]))
        made = Counter(
            event.storage
            for run in executable.instructions
            if isinstance(run, Run)
            for event in run.inside
            if isinstance(event, Alloc) and event.storage >= 0
        )
        assert check.num_again == sum(count > 1 for count in made.values())
        assert check.num_results == sum(
            len(run.results) for run in executable.instructions if isinstance(run, Run)
        )
    assert check.num_again > 0
    assert all(run == runs[0] for run in runs)


def spoiled(graph: Graph, schedule: Schedule, change: Any) -> tuple[Any, str]:
    """Code, checked, in which one op that runs twice gives what ``change`` makes of it."""
    executable = lower(graph, schedule)
    again = Counter(i.op for i in executable.instructions if isinstance(i, Run))
    op = max(again, key=again.__getitem__)
    assert again[op] > 1
    check = RecomputeCheck(graph, executable)

    def wrap(run: Run, kernel: Kernel) -> Kernel:
        inner: Wrap = check.wrap
        return inner(run, (lambda *a, **k: change(kernel(*a, **k))) if run.op == op else kernel)

    return emit(graph, executable, wrap=wrap), graph.op(op).describe()


def test_a_value_that_differs_when_computed_again_is_named() -> None:
    program, real = capture_program(built(Sines), (torch.ones(1024, 64),))
    graph, runs = program.graph, itertools.count()
    code, name = spoiled(graph, smallest(graph).schedule, lambda out: out + next(runs))
    with pytest.raises(VerificationError, match=r"gave other bits when it ran again") as refused:
        bits(code, graph, [*real, *program.constants])
    assert name in str(refused.value)


def test_a_result_laid_out_otherwise_than_captured_is_named() -> None:
    program, real = capture_program(built(Sines), (torch.ones(64, 64),))
    graph = program.graph
    code, name = spoiled(graph, smallest(graph).schedule, lambda out: out.t().contiguous().t())
    with pytest.raises(VerificationError, match=r"it was captured and measured as") as refused:
        bits(code, graph, [*real, *program.constants])
    assert name in str(refused.value)


def test_a_difference_from_the_unplanned_graph_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Reference):
        def after(self, part: int, outputs: list[Any]) -> None:
            super().after(part, [outputs[0] + 1, *outputs[1:]] if part else outputs)

    monkeypatch.setattr(running, "Reference", Wrong)
    model = built(Blocks)
    tightrope.compile(model, budget="64MiB", verify="graph", progress=False)
    loss = model(X).sum()
    with pytest.raises(VerificationError, match=r"output 0 of part 1 differs from the captured graph"):
        loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
