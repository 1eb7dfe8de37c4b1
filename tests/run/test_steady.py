"""A steady step asks nothing: few calls, torch as it is, and the same plan only while nothing changes."""

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tightrope
from tightrope.run.compile import compiled_of
from tightrope.run.ledger.accounts import accounts
from tightrope.run.session.steady import Steady

MOST_CALLS, MOST_FILES = 60, 10
"""Of this package in a forward of two layers, and the files that they are in."""


def net(*, width: int = 64, layers: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def train(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss = model(given).sum()
    loss.backward()
    return loss.detach()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each forward was answered by what the last ones ran."""
    found: list[bool] = []
    again = Steady.again

    def noted(self: Steady, *args: Any) -> Any:
        running = again(self, *args)
        found.append(running is not None)
        return running

    monkeypatch.setattr(Steady, "again", noted)
    return found


def calls_of_ours(run: Callable[[], object]) -> Counter[str]:
    found: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/tightrope/" in frame.f_code.co_filename:
            found[f"{frame.f_code.co_filename.rpartition('/tightrope/')[2]}: {frame.f_code.co_name}"] += 1

    sys.setprofile(see)
    try:
        result = run()
    finally:
        sys.setprofile(None)
    del result
    return found


def test_a_steady_forward_makes_few_calls() -> None:
    model, given = net(), torch.ones(8, 64)
    tightrope.compile(model, budget="64MiB", progress=False)
    for _ in range(6):
        train(model, given)
    model.zero_grad()
    found = calls_of_ours(lambda: model(given))
    assert 10 < sum(found.values()) <= MOST_CALLS, found
    assert len({name.partition(":")[0] for name in found}) <= MOST_FILES, found


def _attributes() -> dict[tuple[str, str], int]:
    """What classes and modules of torch hold that a trace of ours changes, by identity."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    from torch._decomp import decomposition_table
    from torch._dynamo import symbolic_convert, variables
    from torch._dynamo.output_graph import OutputGraph
    from torch._functorch._aot_autograd import runtime_wrappers

    owners = (
        variables.torch, variables.TorchInGraphFunctionVariable, variables.SkipFunctionVariable,
        variables.UserFunctionVariable, variables.TensorVariable, variables.misc.RandomVariable,
        variables.misc.AutogradFunctionVariable, OutputGraph, symbolic_convert,
        symbolic_convert.InstructionTranslator, symbolic_convert.InliningInstructionTranslator,
        runtime_wrappers._FirstInvocationContext,
    )  # fmt: skip
    found = {(owner.__name__, name): id(one) for owner in owners for name, one in vars(owner).items()}
    found |= {("decompositions", str(op)): id(one) for op, one in decomposition_table.items()}
    for config in (dynamo, functorch):
        names = ("recompile_limit", "optimize_ddp", "allow_rnn", "backward_pass_autocast")
        found |= {(config.__name__, name): id(getattr(config, name, None)) for name in names}
    return found


def test_no_attribute_of_torch_differs_while_steps_run() -> None:
    before, given = _attributes(), torch.ones(8, 64)
    seen: list[dict[tuple[str, str], int]] = []
    model = net()
    tightrope.compile(model, budget="64MiB", progress=False)
    train(model, given)
    inside = threading.Event()

    def look(*_: object) -> None:
        other = threading.Thread(target=lambda: seen.append(_attributes()))
        other.start()
        other.join()
        inside.set()

    compiled = compiled_of(model)
    compiled.before_run = look  # right before a forward runs, inside of the call
    train(model, given)
    assert inside.is_set()
    changed = {key for key in before if seen[-1][key] != before[key]}
    assert not {key for key in changed if not key[1].startswith("__")}


def test_a_steady_loop_asks_nobody_and_gives_the_bits_of_eager(answers: list[bool]) -> None:
    model, eager = net(), net()
    tightrope.compile(model, budget="64MiB", progress=False)
    for step in range(8):
        given = torch.full((8, 64), float(step))
        assert torch.equal(train(model, given), train(eager, given))
        assert all(map(torch.equal, *([one.grad for one in two.parameters()] for two in (model, eager))))
    assert answers[-1]
    assert sum(answers) >= 4


def test_what_the_loop_holds_more_is_asked_about(answers: list[bool]) -> None:
    model, given = net(width=256, layers=6), torch.ones(512, 256)
    tightrope.compile(model, budget="64MiB", progress=False)
    for _ in range(5):
        train(model, given)
    assert answers[-1]
    kept = torch.empty(2**20)
    train(model, given)
    assert not answers[-1]
    assert compiled_of(model).calls.recent[0].held >= kept.untyped_storage().nbytes()


def test_a_tight_budget_is_kept_where_the_loop_begins_to_hold_more(answers: list[bool]) -> None:
    model, eager, given = net(width=256, layers=8), net(width=256, layers=8), torch.ones(1024, 256)
    wanted = train(eager, given)
    eager.zero_grad()
    tightrope.compile(model, budget="80%", progress=False)
    for _ in range(5):
        train(model, given)
    budget = compiled_of(model).calls.budget
    assert answers[-1]
    kept = []
    for _ in range(4):
        kept.append(torch.zeros(32 * 1024))
        assert torch.equal(train(model, given), wanted)
        assert not answers[-1]
        assert compiled_of(model).calls.observed_charged <= budget


def test_batches_of_numpy_count_and_stay_steady(answers: list[bool]) -> None:
    model = net()
    tightrope.compile(model, budget="64MiB", progress=False)
    for _ in range(8):
        train(model, torch.from_numpy(np.ones((8, 64), dtype=np.float32)))
    assert answers[-1]
    before = accounts().older
    large = torch.from_numpy(np.ones((4096, 64), dtype=np.float32))
    train(model, large)
    assert accounts().older - before >= large.nbytes - 4096
    assert not answers[-1]


def test_another_budget_is_asked_about(answers: list[bool]) -> None:
    model, other, given = net(), net(), torch.ones(8, 64)
    tightrope.compile(model, budget="64MiB", progress=False)
    for _ in range(4):
        train(model, given)
    assert answers[-1]
    tightrope.compile(other, budget="80MiB", progress=False)
    train(other, given)
    train(model, given)
    assert not answers[-1]


def test_a_forward_of_another_model_that_waits_is_seen(answers: list[bool]) -> None:
    model, other, given = net(), net(), torch.ones(8, 64)
    for one in (model, other):
        tightrope.compile(one, budget="64MiB", progress=False)
        for _ in range(4):
            train(one, given)
    waiting = other(given).sum()
    num = len(answers)
    train(model, given)
    assert len(answers) == num or not answers[-1]
    waiting.backward()


def test_the_question_is_asked_again_from_time_to_time(answers: list[bool]) -> None:
    model, given = net(), torch.ones(8, 64)
    tightrope.compile(model, budget="64MiB", progress=False)
    for _ in range(80):
        train(model, given)
    assert not all(answers[10:])
    assert sum(answers[10:]) > 60


def test_a_form_that_reads_more_outputs_is_planned_anew(answers: list[bool]) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.first(given)
            return hidden, self.second(hidden)

    torch.manual_seed(0)
    model = Two()
    torch.manual_seed(0)
    eager = Two()
    tightrope.compile(model, budget="64MiB", progress=False)
    given = torch.ones(4, 16)
    for step in range(10):
        for one in (model, eager):
            one.zero_grad()
            hidden, out = one(given)
            (out.sum() if step < 6 else out.sum() + hidden.square().sum()).backward()
        mine, theirs = ([p.grad for p in one.parameters()] for one in (model, eager))
        assert all(map(torch.equal, mine, theirs)), step


def test_a_step_of_two_forwards_goes_on_learning_from_what_the_caller_keeps(answers: list[bool]) -> None:
    model, eager, given = net(width=128, layers=8), net(width=128, layers=8), torch.ones(512, 128)

    def step(one: nn.Module, *, keeps: bool) -> list[torch.Tensor]:
        if not keeps:
            one.zero_grad()
        losses = [one(given + k).square().sum() for k in range(2)]
        for loss in reversed(losses):
            loss.backward()
        return [parameter.grad.clone() for parameter in one.parameters() if parameter.grad is not None]

    wanted = [step(eager, keeps=5 < number < 9) for number in range(12)]
    eager.zero_grad()
    tightrope.compile(model, budget=accounts().charged() + (5 << 20), progress=False)
    for number, expected in enumerate(wanted):
        assert all(map(torch.equal, step(model, keeps=5 < number < 9), expected)), number
    calls = compiled_of(model).calls
    assert any(running.prepared.proof.num_again for running in calls.recent)  # planned as one, under pressure
    assert calls.num_divergences <= 1  # when the caller began to keep gradients
    assert any(answers)


def test_an_output_stays_unread_where_an_output_of_an_earlier_call_is_returned_again() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            hidden = self.first(given)
            return given, hidden, self.second(hidden)

    torch.manual_seed(0)
    model = Cell()
    torch.manual_seed(0)
    eager = Cell()
    tightrope.compile(model, budget="64MiB", progress=False)
    for step in range(5):
        for one in (model, eager):
            one.zero_grad()
            _, _, out = one(torch.ones(4, 16))
            for _ in range(2):
                given, _, out = one(out)
            (given.sum() + out.sum()).backward()
        mine, theirs = ([p.grad for p in one.parameters()] for one in (model, eager))
        assert all(map(torch.equal, mine, theirs)), step
    assert set(tightrope.report(model).unread) == {"float32[4x16]"}
