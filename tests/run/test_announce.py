"""Gradients that come while the backward goes on, where processes train together."""

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tightrope
from tests.run.training import Blocks, Loop, Seen, batches, budget_for, built, held, play, same
from tightrope.capture import announce
from tightrope.capture._torch import reset_dynamo
from tightrope.core import TightropeError
from tightrope.run.compile import compiled_of
from tightrope.run.execute.contest import Contest
from tightrope.run.ledger.accounts import accounts

WIDTH = 192
"""Six weights of 144 KiB: each is a group."""
build = partial(Blocks, width=WIDTH)
data = partial(batches, size=512, width=WIDTH)


@pytest.fixture(autouse=True)
def _together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "_trains_together", lambda: True)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return functional.cross_entropy(model(x), y)


def heap() -> int:
    native = accounts().allocator
    assert native is not None
    return native.stats().heap_live


def allocations() -> int:
    native = accounts().allocator
    assert native is not None
    return native.stats().num_allocations


def stepped(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[Tensor, Tensor], torch.optim.Optimizer]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in data(3):
        yield model, batch, optimizer
        optimizer.step()
        optimizer.zero_grad()


def plain(model: nn.Module, see: Seen) -> None:
    for net, batch, _ in stepped(model):
        loss = loss_of(net, batch)
        loss.backward()
        see(loss)
        see.gradients(net)


def accumulated(model: nn.Module, see: Seen) -> None:
    for net, batch, optimizer in stepped(model):
        for _ in range(2):
            loss_of(net, batch).backward()
        see.gradients(net)
        optimizer.zero_grad(set_to_none=False)
        loss_of(net, batch).backward()
        see.gradients(net)


def asked(model: nn.Module, see: Seen) -> None:
    parameters = list(model.parameters())
    for net, batch, _ in stepped(model):
        see(*torch.autograd.grad(loss_of(net, batch), parameters))
        see(*torch.autograd.grad(loss_of(net, batch), parameters[3:5]))
        loss_of(net, batch).backward(inputs=parameters[5:7])
        see.gradients(net)


def kept(model: nn.Module, see: Seen) -> None:
    for net, batch, _ in stepped(model):
        loss = loss_of(net, batch)
        loss.backward(retain_graph=True)
        see.gradients(net)
        loss.backward()
        see.gradients(net)


def with_input(model: nn.Module, see: Seen) -> None:
    for net, (x, y), _ in stepped(model):
        given = x.clone().requires_grad_()
        loss_of(net, (given.tanh(), y)).backward()
        see(given.grad)
        see.gradients(net)


def twice(model: nn.Module, see: Seen) -> None:
    for net, batch, _ in stepped(model):
        one, other = loss_of(net, batch), loss_of(net, batch)
        (one * 2 + other).backward()
        see.gradients(net)


def used_outside(model: nn.Module, see: Seen) -> None:
    for net, batch, _ in stepped(model):
        before = sum(one.pow(2).sum() for one in net.parameters())
        (loss_of(net, batch) + before + sum(one.abs().sum() for one in net.parameters())).backward()
        see.gradients(net)


def updated_at_once(model: nn.Module, see: Seen) -> None:
    def update(parameter: Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for batch in data(3):
        loss = loss_of(model, batch)
        loss.backward()
        see(loss, *model.parameters())


def doubled(model: nn.Module, see: Seen) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 2)
    plain(model, see)


def one_call(model: nn.Module, see: Seen) -> None:
    for loop in (plain, accumulated, asked, kept, used_outside, with_input):
        loop(model, see)


def with_hooks(model: nn.Module, see: Seen) -> None:
    doubled(model, see)
    updated_at_once(model, see)


@pytest.mark.slow
@pytest.mark.parametrize("loop", [one_call, twice, with_hooks])
def test_gradients_are_those_of_eager(loop: Loop) -> None:
    model = same(build, loop, (data(1)[0][0],), extra=2 << 20)
    assert loop is twice or any(proof.num_again for proof in tightrope.report(model).proofs)


def watched(model: nn.Module, note: Callable[[], Any]) -> list[Any]:
    """What ``note`` gives whenever a gradient has come."""
    found: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: found.append(note()))
    return found


def test_they_come_one_after_another_in_no_bytes_of_their_own() -> None:
    model = built(build)
    tightrope.compile(model, budget=budget_for(model, (data(1)[0][0],)) + (2 << 20), progress=False)
    found = watched(model, lambda: (allocations(), heap()))
    play(model, plain)
    held(model)
    report = tightrope.report(model)
    assert report.observed_peak == report.forecast_peak
    num = len(list(model.parameters()))
    checked, later = found[:num], found[-num:]
    assert len({count for count, _ in checked}) == 1  # a run that is checked hands nothing over before
    assert len({count for count, _ in later}) >= 6
    heaps = [size for _, size in later]
    assert heaps == sorted(heaps, reverse=True)


@pytest.mark.slow
def test_a_hook_that_fails_costs_one_step() -> None:
    def loop(model: nn.Module, see: Seen) -> None:
        plain(model, see)
        weight = model.layers[0][0].weight  # type: ignore[union-attr, index]
        failing = weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)
        for batch in data(2):
            with pytest.raises(ZeroDivisionError):
                loss_of(model, batch).backward()
        failing.remove()
        model.zero_grad()
        plain(model, see)

    same(build, loop, (data(1)[0][0],), extra=4 << 20)


def test_a_change_of_what_is_still_needed_is_refused() -> None:
    model = built(build)
    tightrope.compile(model, budget=budget_for(model, (data(1)[0][0],)) + (2 << 20), progress=False)
    play(model, plain)

    needed = model.layers[1][0].weight

    def change(_: Tensor) -> None:  # what a hook refers to lives as long as its parameter
        with torch.no_grad():
            needed.mul_(2)

    model.layers[2][3].weight.register_post_accumulate_grad_hook(change)
    with pytest.raises(TightropeError, match="changed in place"):
        loss_of(model, data(1)[0]).backward()


def test_processes_on_their_own_announce_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = built(build)
    tightrope.compile(model, budget=budget_for(model, (data(1)[0][0],)) + (2 << 20), progress=False)
    found = watched(model, allocations)
    play(model, plain)
    assert len(set(found)) == 3


def test_a_backward_that_stopped_in_the_middle_leaves_nothing_behind() -> None:
    model = built(build)
    tightrope.compile(model, budget=budget_for(model, (data(1)[0][0],)) + (2 << 20), progress=False)
    play(model, plain)
    model.layers[1][0].weight.register_post_accumulate_grad_hook(lambda _: 1 / 0)  # type: ignore[union-attr, index]
    with pytest.raises(ZeroDivisionError):
        loss_of(model, data(1)[0]).backward()
    gone = weakref.ref(model)
    del model
    reset_dynamo()
    gc.collect()
    assert gone() is None


class Mixer(nn.Module):
    """What runs faster fused: GELU by its formula, layer norm, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(x))
        y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))
        return x + self.down(y) * 0.9


@pytest.mark.slow  # it compiles
def test_fused_plans_announce_the_gradients_that_they_give_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contest, "_note", lambda _: None)  # fused from first to last
    found, moments = [], []
    for together in (False, True):
        with monkeypatch.context() as patched:
            if not together:
                patched.setattr(announce, "_trains_together", lambda: False)
            model = built(lambda: nn.Sequential(Mixer(), Mixer(), Mixer()))
            budget = budget_for(model, (data(1)[0][0],)) + (4 << 20)
            tightrope.compile(model, budget=budget, fuse=True, progress=False)
            moments.append(watched(model, allocations))
            found.append(play(model, plain) + play(model, accumulated))
            calls = compiled_of(model).calls
            assert tightrope.report(model).level == "L2"
            assert 0 < calls.observed_charged <= calls.budget
            assert calls.num_divergences == 0
            report = tightrope.report(model)
            assert report.observed_peak == report.forecast_peak
            assert calls.recent[0].prepared.plan.stretches
        del model
        gc.collect()
    assert found[0] == found[1]
    num = len(moments[0]) // 12
    at_once, one_by_one = (len(set(counts[-num:])) for counts in moments)
    assert at_once == 1
    assert one_by_one >= 6
