"""Where the unplanned step does not fit: recomputed values are compared with their first."""

import gc
import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from tightrope.run.watched import watched
from torch import Tensor, nn
from training import Blocks, batches, built

import tightrope
from tightrope.capture.api import capture_program
from tightrope.core import Compute, InfeasibleError, VerificationError
from tightrope.plan import smallest, solve
from tightrope.run.check import digest, made_up_tangents
from tightrope.run.emit import emit

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


def test_under_the_smallest_budget_recomputed_values_are_compared_with_their_first() -> None:
    x = torch.ones(1024, 64)
    model = built(Sines)
    tightrope.compile(model, budget=smallest_budget(model, x), progress=False)
    model(x).backward()
    found = tightrope.report(model)
    assert found.num_recomputed > 0
    assert "recomputed values equal their first" in found.verified


def test_watching_counts_what_runs_again_and_changes_nothing() -> None:
    program, real = capture_program(built(Blocks), (X,))
    whole = solve(program.graph, budget=2**60, planner="given").schedule
    small = smallest(program.graph).schedule
    assert watched(program, whole)[1] == 0
    spied, count = watched(program, small)
    created = [
        s for step in small.steps if isinstance(step, Compute) for s in program.graph.op(step.op).creates
    ]
    assert count == len({storage for storage in created if created.count(storage) > 1}) > 0
    runs = []
    for each, schedule in ((program, whole), (program, small), (spied, small)):
        torch.manual_seed(3)
        code = emit(each, schedule)
        assert code.backward is not None
        outputs, kept = code.forward(list(real))
        gradients = code.backward(kept, made_up_tangents(program))
        runs.append([digest(value) for value in [*outputs, *gradients]])
    assert runs[0] == runs[1] == runs[2]


def test_a_value_that_differs_when_computed_again_is_named() -> None:
    program, real = capture_program(built(Sines), (torch.ones(1024, 64),))
    small = smallest(program.graph).schedule
    again = Counter(step.op for step in small.steps if isinstance(step, Compute))
    op = max(again, key=again.__getitem__)
    call = program.calls[op]
    assert again[op] > 1
    assert call is not None
    runs = itertools.count()

    def drifting(*args: Any) -> Any:
        return call.target(*args) + next(runs)

    spoiled = replace(program, calls=program.calls | {op: replace(call, target=drifting)})
    code = emit(watched(spoiled, small)[0], small)
    assert code.backward is not None

    def run() -> None:
        _, kept = code.forward(list(real))
        code.backward(kept, made_up_tangents(program))

    with pytest.raises(VerificationError, match=r"gave other bits when it ran again") as refused:
        run()
    assert program.graph.op(op).describe() in str(refused.value)
