"""Gradients of activations that leave the model are those of eager: returned, kept on it, taken by a hook."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.run.compile import compiled_of

Use = Callable[["Net", Tensor, Tensor], list[Tensor]]


class Net(nn.Module):
    """Returns a loss and two activations that it computes the loss from; keeps one."""

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.dropout, self.kept = nn.Dropout(dropout), torch.empty(0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.dropout(nn.functional.gelu(self.first(x)))
        self.kept = k = nn.functional.gelu(self.second(h))
        return self.third(k.tanh()).square().mean(), h, h.view(-1, 8)


def plain(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    loss.backward()  # type: ignore[no-untyped-call]
    return []


def retain(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    h.retain_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    assert h.grad is not None
    return [h.grad]


def hook(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    h.register_hook(lambda gradient: gradient * 0.1)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return []


def hook_then_retain(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    h.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return retain(net, loss, h)


def grad_cam(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, [h, net.kept], retain_graph=True)
    loss.backward()  # type: ignore[no-untyped-call]
    return list(found)


def hook_on_what_is_kept(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    net.kept.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return []


def loss_of_what_is_kept(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    (loss + net.kept.square().mean()).backward()  # type: ignore[no-untyped-call]
    return []


def grad_norm(net: Net, loss: Tensor, h: Tensor) -> list[Tensor]:
    total = loss + h.abs().mean()
    (found,) = torch.autograd.grad(total, h, retain_graph=True)
    total.backward()  # type: ignore[no-untyped-call]
    return [found]


def train(use: Use, prepare: Callable[[Net], Any], dropout: float, view: bool) -> list[Tensor]:
    torch.manual_seed(0)
    net = Net(dropout=dropout)
    run, found = prepare(net), []
    for step in range(3):
        net.zero_grad()
        torch.manual_seed(step)
        loss, h, seen = run(torch.randn(8, 16))
        found += [one.clone() for one in use(net, loss, seen if view else h)]
        found += [one.grad.clone() for one in net.parameters() if one.grad is not None]
    return found


def compiled(net: Net) -> Any:
    return tightrope.compile(net, budget="64MiB", progress=False)


def by_backend(net: Net) -> Any:
    return torch.compile(net, backend="tightrope", options={"budget": "64MiB"})


def bucketed(net: Net) -> Any:
    return tightrope.compile(net, budget="64MiB", progress=False, shapes="bucket")


USES = [
    plain,
    retain,
    hook,
    hook_then_retain,
    grad_cam,
    hook_on_what_is_kept,
    loss_of_what_is_kept,
    grad_norm,
]


@pytest.mark.few(2)
@pytest.mark.parametrize("use", USES)
def test_every_gradient_is_that_of_eager(use: Use) -> None:
    for dropout, view in ((0.0, False), (0.3, False)):
        wanted = train(use, lambda net: net, dropout, view)
        found = train(use, compiled, dropout, view)
        assert len(found) == len(wanted)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.few(3)
@pytest.mark.parametrize("prepare", [by_backend, bucketed])
@pytest.mark.parametrize("use", [retain, hook, grad_cam])
def test_the_other_doors_give_them_too(use: Use, prepare: Callable[[Net], Any]) -> None:
    wanted = train(use, lambda net: net, 0.0, False)
    found = train(use, prepare, 0.0, False)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_hook_on_a_view_is_obeyed() -> None:
    wanted = train(hook, lambda net: net, 0.0, True)
    found = train(hook, compiled, 0.0, True)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_forward_hook_may_take_an_activation() -> None:
    def run(planned: bool) -> list[Tensor]:
        torch.manual_seed(0)
        net, taken = Net(), []
        net.first.register_forward_hook(lambda module, given, output: taken.append(output))
        if planned:
            tightrope.compile(net, budget="64MiB", progress=False)
        loss, _, _ = net(torch.randn(8, 16))
        (found,) = torch.autograd.grad(loss, taken[-1])
        return [found]

    assert torch.equal(run(False)[0], run(True)[0])


def test_a_loss_beside_logits_is_planned_as_one() -> None:
    torch.manual_seed(0)
    net = compiled(Net())
    for _ in range(2):
        net(torch.randn(8, 16))[0].backward()
    report = tightrope.report(net)
    assert report.level == "L1"
    assert len(report.planned) == 1


@pytest.mark.few(3)
@pytest.mark.parametrize("use", USES)
def test_comparing_with_eager_sees_such_gradients_and_is_no_use_of_them(use: Use) -> None:
    nets = list[Net]()

    def verified(net: Net) -> Any:
        nets.append(net)
        return tightrope.compile(net, budget="64MiB", progress=False, verify="always")

    wanted = train(use, lambda net: net, 0.3, False)
    found = train(use, verified, 0.3, False)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    report = tightrope.report(nets[0])
    assert "6 gradients, equal eager's, bit for bit" in report.verified
    if use is plain:
        assert len(compiled_of(nets[0]).calls.captured) == 1  # it was not cut into parts


@pytest.mark.parametrize("verify", ["first", "eager"])
def test_a_call_whose_outputs_are_dropped_is_let_go_at_once(verify: str) -> None:
    torch.manual_seed(0)
    net = tightrope.compile(Net(), budget="64MiB", progress=False, verify=verify)
    net(torch.randn(8, 16))[0].backward()
    pending = compiled_of(net).calls.waiting
    gc.disable()
    try:
        outputs = net(torch.randn(8, 16))
        assert len(pending) == 1
        net.kept = torch.empty(0)
        del outputs
        assert not pending
    finally:
        gc.enable()
