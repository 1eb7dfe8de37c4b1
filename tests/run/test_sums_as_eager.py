"""Gradients that eager sums across graphs, or that come laid out otherwise than their outputs."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training import Seen, built, play

import tightrope

X = torch.randn(64, 24, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.filterwarnings("ignore:tightrope. level L1 in pieces")


class Gated(nn.Module):
    """Uses its input four times, three of them before the graph breaks."""

    def __init__(self, width: int = 24, *, breaks: bool = True) -> None:
        super().__init__()
        self.one, self.two, self.three, self.last = (nn.Linear(width, width) for _ in range(4))
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.one(x)) * torch.sigmoid(self.two(x)) + self.three(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return x + self.last(hidden)


class Blocks(nn.Module):
    """Two such blocks behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(24, 24), nn.Sequential(Gated(), Gated())

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.blocks(self.first(x)).square().mean()
        return loss


class Turned(nn.Module):
    """Convolutions over time, between layers over features; a piece ends where axes are swapped."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(12, 12, 5, padding=2), nn.LayerNorm(12), nn.Linear(12, 12)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x.transpose(1, 2))).transpose(1, 2)
        if self.breaks:
            torch._dynamo.graph_break()
            x = self.head(self.norm(x))
        return x


def loop_over(loss_of: Callable[[Any], Tensor]) -> Callable[[Any, Seen], None]:
    def loop(model: Any, see: Seen) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            see(loss)
            see.gradients(model)
            optimizer.step()

    return loop


def as_eager(
    build: Callable[[], nn.Module], loss_of: Callable[[Any], Tensor], **options: Any
) -> tightrope.Report:
    wanted = play(built(build), loop_over(loss_of))
    model = tightrope.compile(built(build), **{"budget": "64MiB", "fallback": "pieces", **options})
    assert play(model, loop_over(loss_of)) == wanted
    return tightrope.report(model)


@pytest.mark.few(1)
@pytest.mark.parametrize("verify", ["first", "eager"])
def test_a_sum_goes_on_across_a_graph_break(verify: str) -> None:
    report = as_eager(Blocks, lambda model: model(X), verify=verify)
    assert report.level == "L1"
    assert report.unlike_eager == ()


@pytest.mark.parametrize("verify", ["first", "eager"])
def test_a_sum_goes_on_outside_of_the_model(verify: str) -> None:
    weight = torch.randn(24, 24, generator=torch.Generator().manual_seed(1), requires_grad=True)
    found: list[Tensor] = []

    def loss_of(model: Any) -> Tensor:
        hidden = X @ weight
        hidden.register_hook(lambda gradient: found.append(gradient.clone()))
        return (model(hidden) * hidden.cos()).square().mean()

    report = as_eager(lambda: Gated(breaks=False), loss_of, verify=verify)
    assert report.unlike_eager == ()
    assert len(found) == 8
    assert all(torch.equal(one, other) for one, other in zip(found[:4], found[4:], strict=True))


def test_a_second_backward_and_one_of_parameters_alone_sum_as_eager_does() -> None:
    def gradients(model: Any) -> list[Tensor]:
        hidden = (X * 2).requires_grad_() * 3
        loss = (model(hidden) + hidden.sin()).square().mean()
        every = [*model.parameters(), hidden]
        alone = torch.autograd.grad(loss, every[:2], retain_graph=True)
        twice = [torch.autograd.grad(loss, every, retain_graph=again) for again in (True, False)]
        return [*alone, *twice[0], *twice[1]]

    wanted = gradients(built(lambda: Gated(breaks=False)))
    model = tightrope.compile(built(lambda: Gated(breaks=False)), budget="64MiB")
    for _ in range(2):
        assert all(torch.equal(one, other) for one, other in zip(gradients(model), wanted, strict=True))


class Returns(nn.Module):
    """Gives its input out again, and a look into it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Gated(breaks=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.body(x), x, x[:, 1:]


@pytest.mark.parametrize("read", [(0,), (1, 2), (0, 1, 2)])
def test_an_input_that_is_also_an_output_has_its_gradient(read: tuple[int, ...]) -> None:
    start = X.clone().requires_grad_()

    def gradient(model: Any) -> Tensor:
        hidden = start * 2
        out = model(hidden)
        sum((out[number] ** 2).mean() for number in read).backward()  # type: ignore[union-attr]
        found, start.grad = start.grad, None
        assert found is not None
        return found

    wanted = gradient(built(Returns))
    model = tightrope.compile(built(Returns), budget="64MiB")
    for _ in range(3):
        assert torch.allclose(gradient(model), wanted)


@pytest.mark.parametrize("breaks", [True, False])
def test_gradients_are_used_as_they_are_laid_out(breaks: bool) -> None:
    x = torch.randn(8, 50, 12, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(50, 12, generator=torch.Generator().manual_seed(1))

    def loss_of(model: Any) -> Tensor:
        return (model(x) * weight).square().mean()

    report = as_eager(lambda: Turned(breaks=breaks), loss_of)
    assert report.unlike_eager == ()
    causes = [proof.cause for proof in report.proofs]
    assert causes.count("a backward from what its forward left") == 1, "expected from the second step on"


def test_a_gradient_whose_elements_overlap_makes_no_new_plan() -> None:
    report = as_eager(lambda: nn.Linear(24, 8), lambda model: model(X).sum())
    assert len(report.proofs) == 1


def test_layouts_that_change_from_step_to_step() -> None:
    turns = iter([0, 1, 0, 1] * 2)
    target = torch.arange(64) % 8

    def loss_of(model: Any) -> Tensor:
        out = model(X)
        return cross_entropy(out, target) if next(turns) else (out.t().contiguous().cos()).square().mean()

    as_eager(lambda: nn.Linear(24, 8), loss_of)


@pytest.mark.few(1)
@pytest.mark.parametrize("less", [0, 64 * 1024, 128 * 1024])
def test_a_budget_that_is_named_works_whatever_the_layout(less: int) -> None:
    """So does one with less of what is left free for the loss, in which no other backward is planned."""
    x = torch.randn(32, 50, 12, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(50, 12, generator=torch.Generator().manual_seed(1))

    def loss_of(model: Any) -> Tensor:
        return (model(x) * weight).square().mean()

    with pytest.raises(tightrope.InfeasibleError) as refused:
        loss_of(tightrope.compile(built(lambda: Turned(breaks=False)), budget=1024, progress=False))
    named = refused.value.smallest_found
    assert named is not None
    del refused
    gc.collect()
    model = tightrope.compile(built(lambda: Turned(breaks=False)), budget=named - less, progress=False)
    play(model, loop_over(loss_of))
    assert tightrope.report(model).level == "L1"
