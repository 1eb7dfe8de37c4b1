"""Fused steps take the faster of two layouts: values within a tolerance, in any budget that does without."""

import gc
import itertools

import pytest
import torch
from torch import nn

import tightrope
import tightrope.run.session.calls
import tightrope.run.session.fused
from tightrope.capture.program import Program
from tightrope.core import InfeasibleError, VerificationError
from tightrope.fuse.tolerance import WHOLE_STEP, difference


@pytest.fixture(autouse=True)
def _no_leftovers() -> None:
    gc.collect()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take channels-last convolutions wherever there can be some."""
    monkeypatch.setattr(tightrope.run.session.fused, "_LAYOUT_GAIN", -1e9)
    monkeypatch.setattr(tightrope.run.session.fused, "_LAYOUT_BYTES", 1e9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 16, 16)
        self.body = nn.Sequential()
        for before, after in itertools.pairwise(widths):
            self.body += nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
            )
        self.drop = nn.Dropout(0.1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.drop(self.body(images).mean((2, 3))).square().mean()
        return out


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def train(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found: list[torch.Tensor] = []
    for _ in range(steps):
        model.zero_grad()
        loss = model(torch.randn(4, 3, 32, 32))
        loss.backward()
        found += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*found, *model.buffers(), torch.get_rng_state()]


@pytest.mark.usefixtures("always")
def test_values_are_within_the_tolerance_and_random_streams_equal() -> None:
    wanted = train(net())
    model = tightrope.compile(net(), budget="64MiB", fuse=True, verify="graph", progress=False)
    found = train(model)
    assert tightrope.report(model).channels_last
    assert "within a tolerance" in tightrope.report(model).verified
    assert "channels-last" in str(tightrope.report(model))
    assert torch.equal(found[-1], wanted[-1])
    for one, other in zip(found[:-1], wanted[:-1], strict=True):
        if other.is_floating_point():
            assert difference(one, other) <= WHOLE_STEP
            assert one.stride() == other.stride()
    del model


def test_without_fusing_layouts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("layouts were measured")

    monkeypatch.setattr(tightrope.run.session.fused, "faster_form", never)
    model = tightrope.compile(net(), budget="64MiB", progress=False)
    wanted, found = train(net()), train(model)
    assert all(map(torch.equal, found, wanted))
    assert not tightrope.report(model).channels_last


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_budget_that_suffices_without_suffices() -> None:
    model = tightrope.compile(net(), budget="1MiB", progress=False)
    with pytest.raises(InfeasibleError) as refused:
        train(model, 1)
    budget = refused.value.smallest_found
    assert budget is not None
    del model, refused
    gc.collect()
    model = tightrope.compile(net(), budget=budget, fuse=True, progress=False)
    wanted, found = train(net(), 2), train(model, 2)
    assert torch.equal(found[-1], wanted[-1])
    del model


@pytest.mark.usefixtures("always")
def test_a_layout_that_does_not_fit_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    add = tightrope.run.session.calls.Calls.forward
    refused: list[int] = []

    def refusing(self: object, number: int, args: list[object]) -> object:
        if not refused:
            refused.append(number)
            raise InfeasibleError("too small", asked=1, lower_bound=2, op="the first")
        return add(self, number, args)  # type: ignore[arg-type]

    monkeypatch.setattr(tightrope.run.session.calls.Calls, "forward", refusing)
    model = tightrope.compile(net(), budget="64MiB", fuse=True, progress=False)
    train(model, 2)
    assert not tightrope.report(model).channels_last
    assert any("channels-last, it does not fit" in proof.cause for proof in tightrope.report(model).proofs)
    del model


@pytest.mark.usefixtures("always")
def test_images_that_are_drawn_upon_stay() -> None:
    """A generator fills memory in order: channels-last, dropout would keep other elements."""
    model = net()
    model.body.append(nn.Dropout(0.1))  # type: ignore[operator, union-attr]
    wanted = tightrope.compile(net(), budget="64MiB", progress=False)
    wanted.body.append(nn.Dropout(0.1))  # type: ignore[operator, union-attr]
    model = tightrope.compile(model, budget="64MiB", fuse=True, progress=False)
    first, second = train(model, 1), train(wanted, 1)
    assert not tightrope.report(model).channels_last
    assert difference(first[0], second[0]) <= WHOLE_STEP
    del model, wanted


@pytest.mark.usefixtures("always")
def test_another_computation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify="graph"` compares with the graph in the model's layouts, not with itself."""
    traced = tightrope.run.session.fused.faster_layout

    def wrong(program: Program, *rest: object) -> Program | None:
        other = traced(program, *rest)  # type: ignore[arg-type]
        assert other is not None
        for node in other.module.graph.nodes:
            if "mean" in str(node.target):
                with other.module.graph.inserting_after(node):
                    twice = other.module.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.01))
                twice.meta = {**node.meta, "val": node.meta["val"].clone()}
                node.replace_all_uses_with(twice, delete_user_cb=lambda user, new=twice: user is not new)
        assert other.rebuild is not None
        return other.rebuild(other.module)

    monkeypatch.setattr(tightrope.run.session.fused, "faster_layout", wrong)
    model = tightrope.compile(net(), budget="64MiB", fuse=True, verify="graph", progress=False)
    with pytest.raises(VerificationError, match="differs"):
        train(model, 1)
    del model


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_whole_step_takes_it_too() -> None:
    def steps(fuse: bool) -> list[torch.Tensor]:
        model = net()
        sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        step = tightrope.step(model, budget="64MiB", model=model, optimizer=sgd, fuse=fuse, progress=False)
        torch.manual_seed(1)
        losses = [step(torch.randn(4, 3, 32, 32)) for _ in range(2)]
        assert step.report().channels_last == fuse
        return [*losses, *(p.detach().clone() for p in model.parameters() if p.ndim > 1)]

    for one, other in zip(steps(True), steps(False), strict=True):
        assert difference(one, other) <= WHOLE_STEP
