"""Outputs that no loss reads: eager runs no backward from them, and neither does a plan."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training import Seen, built, play

import tightrope
from tightrope.core import InfeasibleError, TightropeError
from tightrope.run.compile import compiled_of

X, Y = torch.randn(64, 32, generator=torch.Generator().manual_seed(5)), torch.arange(64) % 10
Read = Callable[[Any, int], Tensor]
"""What a loop trains on, given what the model returns and the number of the step."""


class TwoHeads(nn.Module):
    """A trunk and two heads; with labels, the loss of the first head comes first."""

    def __init__(self, *, between: Callable[[], nn.Module] = nn.Tanh, loss: bool = True) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 48), nn.Dropout(0.2), nn.Tanh())
        self.one = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 10))
        self.two = nn.Sequential(nn.Linear(48, 64), between(), nn.Linear(64, 500), nn.Sigmoid())
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        hidden = self.trunk(x)
        one, two = self.one(hidden), self.two(hidden)
        return (cross_entropy(one, y), one, two) if self.loss else (one, two)


class WithLogits(nn.Module):
    """Returns a loss, and what it is computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Sequential(nn.Linear(32, 48), nn.Tanh()), nn.Linear(48, 500)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        hidden = self.trunk(x)
        logits = self.head(hidden)
        return logits, cross_entropy(logits, y), hidden


class Detached(WithLogits):
    """Gives out what no gradient can come for."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        logits, loss, hidden = super().forward(x, y)
        return logits.detach(), loss, hidden.detach()


class DropPath(WithLogits):
    """Skips the trunk for some rows, as stochastic depth does: of what is drawn a mask is kept."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        kept = torch.rand(len(x), 1).add_(0.8).floor_()
        hidden = self.trunk(x) * kept
        logits = self.head(hidden)
        return logits, cross_entropy(logits, y), hidden


def loop_over(read: Read, *, steps: int = 5) -> Callable[[Any, Seen], None]:
    def loop(model: Any, see: Seen) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            out = model(X, Y)
            read(out, step).backward()
            see(*out)
            see.all(model)
            optimizer.step()

    return loop


def as_eager(build: Callable[[], nn.Module], loop: Callable[[Any, Seen], None], **options: Any) -> nn.Module:
    """Play a loop on a plain model and on a compiled twin; gradients that are missing are missing in both."""
    wanted = play(built(build), loop)
    model = tightrope.compile(built(build), **{"budget": "64MiB", "fallback": "pieces", **options})
    assert play(model, loop) == wanted
    return model


def causes(model: nn.Module) -> list[str]:
    return [proof.cause for proof in tightrope.report(model).proofs]


def loss_alone(out: Any, _: int) -> Tensor:
    found: Tensor = out[0]
    return found


def test_the_first_plan_has_no_gradients_of_what_a_loss_is_computed_from() -> None:
    model = as_eager(WithLogits, loop_over(lambda out, _: out[1]))
    assert causes(model) == ["first plan"]
    ((graph, _),) = tightrope.report(model).planned
    assert [given.view is None for given in graph.parts[1].inputs] == [True, False, True]
    assert len(graph.ops) == len(tightrope.capture(built(Detached), X, Y).ops)
    assert tightrope.report(model).unread == ("float32[64x500]", "float32[64x48]")
    assert "nothing runs backward from them: float32[64x500], float32[64x48]" in str(tightrope.report(model))


def test_what_is_drawn_and_gone_asks_for_no_other_plan() -> None:
    model = as_eager(DropPath, loop_over(lambda out, _: out[1]))
    assert causes(model) == ["first plan"]


def test_logits_behind_what_is_drawn_may_be_read_later() -> None:
    as_eager(
        DropPath, loop_over(lambda out, step: out[1] + (step > 2) * out[0].square().mean() + out[2].mean())
    )
    as_eager(DropPath, loop_over(lambda out, step: out[0].square().mean() if step % 2 else out[1]))


def test_the_second_plan_has_none_of_any_other_output() -> None:
    model = as_eager(TwoHeads, loop_over(loss_alone))
    assert causes(model)[-1] == "a loss reads 1 of 3 outputs, not 2"
    assert len(causes(model)) == 3
    ((graph, _),) = tightrope.report(model).planned
    assert not any(op.module.startswith("two") for op in graph.ops if op.phase == "backward")
    assert model.two[0].weight.grad is None  # type: ignore[union-attr, index]


def test_capture_and_estimate_see_the_same_graph() -> None:
    model = built(WithLogits)
    graph = tightrope.capture(model, X, Y)
    compiled = tightrope.compile(model, budget="64MiB")
    compiled(X, Y)[1].backward()
    assert len(tightrope.report(compiled).planned[0][0].ops) == len(graph.ops)


def named_budget(build: Callable[[], nn.Module]) -> int:
    with pytest.raises(InfeasibleError) as refused:
        tightrope.compile(built(build), budget="200kB")(X, Y)
    return refused.value.smallest_found


def test_a_budget_that_is_named_has_no_bytes_for_their_gradients_and_trains() -> None:
    named = named_budget(WithLogits)
    assert named == named_budget(Detached)
    as_eager(WithLogits, loop_over(lambda out, _: out[1]), budget=named)


def test_a_budget_that_is_named_for_all_outputs_trains_with_one_that_is_read() -> None:
    def read(out: Any, _: int) -> Tensor:
        return cross_entropy(out[0], Y)

    named = named_budget(lambda: TwoHeads(loss=False))
    as_eager(lambda: TwoHeads(loss=False), loop_over(read), budget=named)


def test_a_scalar_beside_what_a_loop_trains_on_is_no_loss_alone() -> None:
    class Penalized(TwoHeads):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            hidden = self.trunk(x)
            return self.two(hidden), hidden.square().mean()

    def read(out: Any, _: int) -> Tensor:
        return cross_entropy(out[0], Y) + out[1]

    model = as_eager(Penalized, loop_over(read), budget=named_budget(Penalized))
    assert causes(model) == ["first plan"]


@pytest.mark.few(2)
@pytest.mark.parametrize("between", [nn.Tanh, nn.Dropout, lambda: nn.BatchNorm1d(64), nn.RReLU])
@pytest.mark.parametrize("loss", [True, False])
def test_an_output_that_is_read_from_the_third_step_on(between: Callable[[], nn.Module], loss: bool) -> None:
    def read(out: Any, step: int) -> Tensor:
        first = out[0] if loss else cross_entropy(out[0], Y)
        second: Tensor = out[-1].square().mean()
        return first if step < 2 else first + second

    as_eager(lambda: TwoHeads(between=between, loss=loss), loop_over(read))


@pytest.mark.few(1)
@pytest.mark.parametrize("between", [nn.Tanh, nn.Dropout])
def test_outputs_that_are_read_in_turn(between: Callable[[], nn.Module]) -> None:
    def read(out: Any, step: int) -> Tensor:
        found: Tensor = out[step % 2].square().mean()
        return found

    model = as_eager(lambda: TwoHeads(between=between, loss=False), loop_over(read, steps=8))
    assert len(causes(model)) <= 6, "in the end no step needs a new plan"


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", [True, False])
def test_backwards_from_one_output_and_then_another(loss: bool) -> None:
    def loop(model: Any, see: Seen) -> None:
        for _ in range(3):
            out = model(X, Y)
            out[0].square().mean().backward(retain_graph=True)
            see.gradients(model)
            out[1].square().mean().backward(retain_graph=True)
            see.gradients(model)
            out[-1].square().mean().backward()
            see.gradients(model)
            model.zero_grad()

    as_eager(lambda: TwoHeads(loss=loss), loop)


def test_a_step_that_eager_is_compared_with() -> None:
    model = as_eager(TwoHeads, loop_over(loss_alone), verify="eager")
    assert "gradients, equal eager's" in tightrope.report(model).verified


class InPieces(TwoHeads):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        hidden = self.trunk(x)
        spare = hidden.sin()
        torch._dynamo.graph_break()
        return cross_entropy(self.one(hidden), y), spare, self.two(hidden)


@pytest.mark.slow
def test_a_model_in_pieces() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        as_eager(InPieces, loop_over(loss_alone, steps=4))
        as_eager(
            InPieces, loop_over(lambda out, step: out[0] if step < 2 else out[0] + out[2].sum(), steps=5)
        )


class Residual(nn.Module):
    """Adds to what a product made under another shape: the sum may be written over it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = x.view(4, 16, 32)
        hidden = rows + self.linear(rows)
        loss = (hidden * hidden.pow(3)).mean()
        return loss, hidden * 2


def test_a_backward_from_what_was_written_over_something_of_another_shape() -> None:
    model = as_eager(Residual, loop_over(loss_alone))
    assert "a backward from what its forward left" in causes(model)


def test_calls_of_one_step_that_read_other_outputs() -> None:
    def siamese(model: Any, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            one, two = model(X, Y), model(X + 1, Y)
            ((one[0] - two[0]).square().mean() + two[1].square().mean()).backward()
            see.all(model)
            optimizer.step()

    as_eager(lambda: TwoHeads(loss=False), siamese)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at inputs that are no leaves
def test_a_model_behind_another_that_gets_no_gradient() -> None:
    def adversarial(model: Any, see: Seen) -> None:
        body, judge = model
        for step in range(5):
            out = judge(body(X, Y)[1])
            judge.zero_grad()
            body.zero_grad()
            (out if step % 2 else judge(X[:, :10])).square().mean().backward()
            see.gradients(model)

    def build() -> nn.Module:
        return nn.ModuleList([TwoHeads(), nn.Linear(10, 4)])

    wanted = play(built(build), adversarial)
    model = built(build)
    for part in model.children():
        tightrope.compile(part, budget="64MiB")
    assert play(model, adversarial) == wanted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at inputs that are no leaves
def test_an_output_that_only_another_model_without_gradients_reads() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(10, 10), nn.Linear(500, 3)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.first(a), self.second(b)

    def build() -> nn.Module:
        return nn.ModuleList([TwoHeads(loss=False), Apart()])

    def loop(model: Any, see: Seen) -> None:
        for step in range(4):
            model.zero_grad()
            out = model[1](*model[0](X, Y))
            out[step // 2].square().mean().backward()
            see.gradients(model)

    wanted = play(built(build), loop)
    model = built(build)
    for part in model.children():
        tightrope.compile(part, budget="64MiB")
    assert play(model, loop) == wanted


def test_autocast_around_the_call_is_remembered() -> None:
    def loop(model: Any, see: Seen) -> None:
        for step in range(4):
            model.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(X, Y)
            (out[0] if step < 2 else out[0] + out[2].float().square().mean()).backward()
            see.gradients(model)

    as_eager(TwoHeads, loop)


class OwnInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 10), nn.Linear(32, 10)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(self.one(x), y), self.two(x.exp()).sin()


def test_an_output_that_cannot_be_computed_again_is_refused_once() -> None:
    model = tightrope.compile(built(OwnInput), budget="64MiB")
    x = X.clone()
    model(x, Y)[0].backward()
    model.zero_grad()
    loss, other = model(x, Y)
    x += 1
    with pytest.raises(TightropeError, match="changed in place"):
        (loss + other.sum()).backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    plain = built(OwnInput)
    for one in (model, plain):
        loss, other = one(x, Y)
        (loss + other.sum()).backward()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]


@pytest.fixture
def language_model() -> tuple[nn.Module, nn.Module, Tensor]:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=101, n_positions=32)

    def build() -> nn.Module:
        model: nn.Module = transformers.GPT2LMHeadModel(config)
        return model.train()

    return built(build), built(build), torch.arange(64).reshape(2, 32) % 101


@pytest.mark.slow
def test_a_language_model_keeps_its_cache(language_model: tuple[nn.Module, nn.Module, Tensor]) -> None:
    plain, model, ids = language_model
    tightrope.compile(model, budget="64MiB")

    def loop(model: Any, see: Seen) -> None:
        for step in range(4):
            model.zero_grad()
            out = model(input_ids=ids, labels=ids, use_cache=True)
            see(out.loss, out.logits)
            (out.loss if step < 2 else out.loss + out.logits.square().mean()).backward()
            see.gradients(model)

    assert play(model, loop) == play(plain, loop)
    assert re.fullmatch(r"a loss reads 2 of \d+ outputs, not 1", causes(model)[-1])
    calls = compiled_of(model).calls
    sizes = [one.headroom.tangents for one in calls.captured]
    assert sizes == [64, 64 + 2 * 32 * 101 * 4], "of the loss alone, and of the logits; never of the cache"
