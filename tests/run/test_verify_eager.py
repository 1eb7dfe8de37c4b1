"""`verify="eager"`: the plain module runs beside the first run of a plan, and what differs is named."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import _is_in_optimized_module
from torch.nn import functional as F

import tightrope
from tests.run.training import Blocks, batches, budget_for
from tightrope import VerificationError
from tightrope.run.execute.prepared import Proof
from tightrope.run.session.runner import CompiledGraph
from tightrope.run.session.whole_step import WholeStep
from tightrope.run.verify.eager import SENTINEL, Sampling

DATA = batches(3, size=256)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def verified(model: nn.Module, **options: Any) -> nn.Module:
    return tightrope.compile(model, budget=options.pop("budget", "1GiB"), verify="eager", progress=False)


def train(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


class Normed(nn.Module):
    """Batch norm, dropout, and an input that gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.dropout(self.norm(self.first(x)), 0.2, self.training))
        return out


def test_outputs_buffers_gradients_and_random_states_are_compared() -> None:
    model = verified(Normed())
    x = DATA[0][0].clone().requires_grad_()
    train(model, x, DATA[0][1])
    said = tightrope.report(model).verified
    assert "1 outputs, 3 buffers and the random states, and 7 gradients, equal eager's, bit for bit" in said


def test_outputs_that_no_loss_reads_are_compared_too() -> None:
    model = verified(nn.LSTM(8, 8))
    found, _ = model(torch.ones(3, 2, 8))
    found.sum().backward()
    assert "3 outputs, 0 buffers and the random states, and 4 gradients" in tightrope.report(model).verified


def test_comparing_leaves_nothing_behind() -> None:
    def play(model: nn.Module) -> list[Tensor]:
        torch.manual_seed(7)
        found = []
        for x, y in DATA:
            model.zero_grad()
            found.append(train(model, x, y).detach())
        return [*found, *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None),
                torch.get_rng_state()]  # fmt: skip

    torch.manual_seed(3)
    plain = Normed()
    twin = Normed()
    twin.load_state_dict(plain.state_dict())
    wanted, found = play(plain), play(verified(twin))
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


@pytest.mark.slow
def test_the_budget_holds_for_the_plan_and_not_for_the_comparison() -> None:
    model = Blocks()
    budget = budget_for(model, DATA[0][:1], share=0.0)
    verified(model, budget=budget)
    train(model, *DATA[0])
    report = tightrope.report(model)
    assert report.num_recomputed > 0
    assert report.observed_total <= budget
    assert "gradients, equal eager's" in report.verified


def test_a_new_shape_is_compared_too() -> None:
    model = verified(Normed())
    train(model, *DATA[0])
    train(model, DATA[0][0][:128], DATA[0][1][:128])
    proofs = tightrope.report(model).proofs
    assert len(proofs) == 2
    assert all("gradients, equal eager's" in proof.reference for proof in proofs)


def test_a_call_without_gradients_is_compared() -> None:
    model = verified(Normed().eval())
    with torch.no_grad():
        model(DATA[0][0])
    assert "1 outputs, 3 buffers and the random states equal eager's" in tightrope.report(model).verified


def test_a_model_in_pieces_is_compared() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).relu()
            torch._dynamo.graph_break()
            out: Tensor = self.last(y)
            return out

    model = verified(Broken())
    with pytest.warns(UserWarning, match="in pieces"):
        train(model, *DATA[0])
    assert "and 4 gradients, equal eager's" in tightrope.report(model).verified


def test_an_output_that_differs_names_the_kernels() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y.relu() if _is_in_optimized_module() else y.sin()

    model = verified(Two())
    with pytest.raises(
        VerificationError, match=r"output 0 differs from eager: the plan alone calls relu; eager .* sin\."
    ):
        model(DATA[0][0])


class Shared(nn.Module):
    """One layer, used twice; autocast casts its weight once per region."""

    def __init__(self, *, regions: int) -> None:
        super().__init__()
        self.layer, self.regions = nn.Linear(32, 32), regions

    def forward(self, x: Tensor) -> Tensor:
        with autocast():
            y: Tensor = self.layer(x).relu()
            if self.regions == 1:
                return self.layer(y).float()  # type: ignore[no-any-return]
        with autocast():
            return self.layer(y).float()  # type: ignore[no-any-return]


def test_gradients_of_a_weight_that_autocast_casts_once_are_summed_as_in_eager() -> None:
    model = verified(Shared(regions=1))
    train(model, *DATA[0])
    report = tightrope.report(model)
    assert "2 gradients, equal eager's" in report.verified
    assert report.unlike_eager == ()


def test_what_differs_from_eager_is_known_beforehand() -> None:
    model = tightrope.compile(Shared(regions=2), budget="1GiB", progress=False)
    train(model, *DATA[0])
    report = tightrope.report(model)
    assert all("_to_copy" in line and "layer" in line for line in report.unlike_eager)
    assert "eager may go another way, last bits may differ: aten._to_copy" in str(report)


def test_a_gradient_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.run.session.forms._is_dense", lambda _: False)  # it is copied

    class Late(nn.Module):
        """Its output is laid out otherwise than the gradient of it."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out

    model = verified(Late().to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    out = model(x.to(memory_format=torch.channels_last))
    with pytest.raises(
        VerificationError, match=r"the gradient of 'layer\.bias' differs from eager: both call"
    ):
        out.square().mean().backward()


def test_a_buffer_that_differs_is_named() -> None:
    class Counting(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1 if _is_in_optimized_module() else 2)
            out: Tensor = self.layer(x)
            return out

    model = verified(Counting())
    with pytest.raises(VerificationError, match="buffer 'seen' differs from eager"):
        model(DATA[0][0])


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] | None] = {
    "none": None,
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def stepping(model: nn.Module, name: str, verify: str | None) -> Any:
    make = OPTIMIZERS[name]
    optimizer = None if make is None else make(model.parameters())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    return tightrope.step(
        loss, budget="1GiB", model=model, optimizer=optimizer, verify=verify, progress=False
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_compared_and_left_as_it_was(name: str) -> None:
    def play(verify: str | None) -> tuple[list[Tensor], str]:
        torch.manual_seed(3)
        model = Normed()
        step = stepping(model, name, verify)
        losses = [step(*batch) for batch in DATA]
        kept = [p.grad for p in model.parameters() if p.grad is not None]
        return [
            *losses,
            *kept,
            *model.parameters(),
            *model.buffers(),
            torch.get_rng_state(),
        ], step.report().verified

    wanted, _ = play(None)
    found, said = play("eager")
    assert "and the random states, equal those of an eager step, bit for bit" in said
    assert len(found) == len(wanted)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def test_a_step_that_differs_is_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            return y.relu() if _is_in_optimized_module() else y.sin()

    step = stepping(Two(), "momentum", "eager")
    with pytest.raises(VerificationError, match=r"result 0 differs from that of an eager step: .*relu.* sin"):
        step(*DATA[0])


def tamper(monkeypatch: pytest.MonkeyPatch, where: type, name: str, *, after: int) -> None:
    """Flip one bit of the last result of every run but the first ``after``, behind the inline check."""
    genuine, num_runs = getattr(where, name), 0

    def wrong(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_runs
        num_runs += 1
        results = genuine(*args, **kwargs)
        if num_runs > after:
            last = [one for one in results if isinstance(one, Tensor) and one.is_floating_point()][-1]
            last.detach().reshape(-1)[-1:].view(torch.int32).bitwise_xor_(1)
        return results

    monkeypatch.setattr(where, name, wrong)


def steps_until_told(step: Callable[[], Any]) -> tuple[int, str]:
    """Train until a comparison fails: number of the step, and what is said."""
    for number in range(1, SENTINEL + 1):
        try:
            step()
        except VerificationError as error:
            return number, str(error)
    return 0, ""


@pytest.mark.parametrize(("verify", "told"), [("always", 4), ("eager", SENTINEL)])
def test_a_gradient_that_becomes_wrong_later_is_told(
    verify: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, CompiledGraph, "backward", after=3)
    model = tightrope.compile(nn.Linear(32, 4), budget="1GiB", verify=verify, progress=False)
    number, said = steps_until_told(lambda: train(model, *DATA[0]))
    assert number == told
    assert "the gradient of 'bias' differs from eager" in said
    assert ("Runs compared before, and equal: 3." if verify == "always" else "equal: 2; verify=") in said


def test_every_call_of_a_step_with_eight_is_compared_in_its_turn() -> None:
    sampling, proof = Sampling(always=False), Proof("", "", 0.0, 0.0, num_compared=2)
    chosen = [number for number in range(8 * SENTINEL) if sampling.of([proof])]
    assert sorted(number % 8 for number in chosen) == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["eager", pytest.param("always", marks=pytest.mark.slow)])
def test_two_hundred_right_steps_are_left_as_they_are(verify: str) -> None:
    def play(model: nn.Module) -> list[Tensor]:
        torch.manual_seed(7)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        losses = []
        for number in range(200):
            x, y = DATA[number % len(DATA)]
            optimizer.zero_grad()
            losses.append(train(model, x, y).detach())
            optimizer.step()
        return [*losses, *model.parameters(), *model.buffers(), torch.get_rng_state()]

    torch.manual_seed(3)
    plain = Normed()
    twin = Normed()
    twin.load_state_dict(plain.state_dict())
    wanted = play(plain)
    found = play(tightrope.compile(twin, budget="64MiB", verify=verify, progress=False))
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))
    runs = {"eager": 2 + 200 // SENTINEL, "always": 200}[verify]
    assert f"(in {runs} runs)" in tightrope.report(twin).verified


@pytest.mark.parametrize(("verify", "told"), [("always", 4), ("eager", SENTINEL)])
def test_a_step_that_becomes_wrong_later_is_told(
    verify: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, WholeStep, "run", after=3)
    torch.manual_seed(3)
    step = stepping(nn.Linear(32, 4), "momentum", verify)
    number, said = steps_until_told(lambda: step(*DATA[0]))
    assert number == told
    assert "result 0 differs from that of an eager step" in said


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["eager", pytest.param("always", marks=pytest.mark.slow)])
def test_two_hundred_right_steps_of_a_whole_step_are_left_as_they_are(verify: str) -> None:
    def play(verify: str | None) -> tuple[list[Tensor], str]:
        torch.manual_seed(3)
        model = Normed()
        step = stepping(model, "adamw", verify)
        losses = [step(*DATA[number % len(DATA)]) for number in range(200)]
        return [*losses, *model.parameters(), *model.buffers(), torch.get_rng_state()], step.report().verified

    wanted, _ = play(None)
    found, said = play(verify)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))
    assert f"(in { {'eager': 4, 'always': 200}[verify] } runs)" in said
