"""`torch.compile(..., backend="tightrope")`."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from training import Blocks, Seen, batches, built, play

import tightrope
from tightrope.capture import _torch
from tightrope.core import TightropeError
from tightrope.integrations.dynamo import VARIABLE, backend
from tightrope.native.hook.allocator import allocator

DATA = batches(4)


def loop(model: nn.Module, see: Seen) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DATA[:3]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        see(loss)
        see.gradients(model)
        optimizer.step()
    with torch.no_grad():
        see(model(DATA[3][0]))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    gc.collect()
    assert allocator().limit is None
    torch._dynamo.reset()


def test_the_backend_is_found_by_name() -> None:
    assert "tightrope" in torch.compiler.list_backends()


@pytest.mark.parametrize("options", [{"budget": "12MiB"}, {"options": {"budget": 12 << 20}, "seed": 1}])
def test_training_equals_eager(options: dict[str, object]) -> None:
    wanted = play(built(Blocks), loop)
    model = torch.compile(built(Blocks), backend="tightrope", options=options)
    assert play(model, loop) == wanted


def test_the_budget_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "12MiB")
    wanted = play(built(Blocks), loop)
    assert play(torch.compile(built(Blocks), backend="tightrope"), loop) == wanted


@pytest.mark.slow
def test_sizes_that_change_get_a_plan_each() -> None:
    def sizes(model: nn.Module, see: Seen) -> None:
        for size in (1024, 512, 256, 512, 1024):
            model.zero_grad()
            x, y = DATA[0][0][:size], DATA[0][1][:size]
            functional.cross_entropy(model(x), y).backward()
            see.gradients(model)

    wanted = play(built(Blocks), sizes)
    model = torch.compile(built(Blocks), backend="tightrope", options={"budget": "16MiB"})
    assert play(model, sizes) == wanted


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo's own, with any backend
def test_graph_breaks_give_several_plans() -> None:
    class Broken(Blocks):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](x)
            torch._dynamo.graph_break()
            return super().forward(x)

    wanted = play(built(Broken), loop)
    model = torch.compile(built(Broken), backend="tightrope", options={"budget": "16MiB"})
    assert play(model, loop) == wanted


def test_a_budget_ends_with_its_model_whatever_torch_keeps_of_the_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[object] = []
    make = _torch.aot_backend

    def keeping(*functions: Any) -> Any:
        kept.append(functions)  # as torch 2.11 and 2.12 do where a parameter is in two graphs
        return make(*functions)

    monkeypatch.setattr(_torch, "aot_backend", keeping)
    model = torch.compile(built(Blocks), backend="tightrope", options={"budget": "16MiB"})
    play(model, loop)
    parameter = weakref.ref(next(model.parameters()))
    assert allocator().limit is not None
    del model
    gc.collect()
    assert kept
    assert parameter() is None
    assert allocator().limit is None


def test_a_graph_that_cannot_be_planned_runs_as_it_is_within_the_limit() -> None:
    def step(model: Any) -> torch.Tensor:
        batch = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged)
        made: torch.Tensor = model(batch).values().square().mean()
        made.backward()
        return made

    layer = nn.Linear(8, 8)
    wanted = step(layer)
    model = torch.compile(layer, backend="tightrope", options={"budget": "64MiB"})
    with pytest.warns(UserWarning, match="without a plan, within the limit: nested tensors"):
        assert torch.equal(step(model), wanted)
    assert allocator().limit is not None


def test_a_missing_budget_and_an_unknown_option_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    x = DATA[0][0]
    with pytest.raises(Exception, match=f"no budget.*{VARIABLE}"):
        torch.compile(Blocks(), backend=backend)(x)
    with pytest.raises(Exception, match="no option is called 'budgett'"):
        torch.compile(Blocks(), backend=backend, options={"budgett": 1})(x)
    with pytest.raises(Exception, match="smallest feasible found"):
        torch.compile(Blocks(), backend=backend, options={"budget": "300KiB"})(x)


class Holder(nn.Module):
    """A wrapper such as DistributedDataParallel or accelerate's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: torch.Tensor) -> object:
        return self.module(*args)


@pytest.mark.slow
def test_a_model_compiled_by_name_has_a_report() -> None:
    plain = built(Blocks)
    keys = list(plain.state_dict())
    model = torch.compile(plain, backend="tightrope", options={"budget": "12MiB"})
    with pytest.raises(TightropeError, match="run a training step first"):
        tightrope.report(model)
    play(model, loop)
    for name in (model, plain, Holder(model)):
        report = tightrope.report(name)
        assert (report.level, report.budget) == ("L1", 12 << 20)
        assert 0 < report.observed_total <= report.budget
        assert report.forecast_peak == report.observed_peak
        assert report.html().startswith("<!doctype html>")
    assert list(plain.state_dict()) == keys


def test_a_wrapped_model_has_the_report_of_the_one_inside() -> None:
    model = tightrope.compile(built(Blocks), budget="12MiB", progress=False)
    wrapped = Holder(Holder(model))
    play(wrapped, loop)
    assert tightrope.report(wrapped) == tightrope.report(model)
    assert tightrope.report(wrapped).observed_peak > 0


@pytest.mark.slow
def test_a_second_model_of_the_class_is_held_to_the_budget_after_the_first_is_gone() -> None:
    def compiled() -> nn.Module:
        return torch.compile(built(Blocks), backend="tightrope", options={"budget": "12MiB"})  # type: ignore[return-value]

    wanted = play(built(Blocks), loop)
    first, second = compiled(), compiled()
    assert play(first, loop) == wanted
    assert len(tightrope.report(first).proofs) == 2  # training, and the call without gradients
    second(DATA[0][0])
    del first
    gc.collect()
    assert play(second, loop) == wanted
    assert allocator().limit is not None
    assert tightrope.report(second).budget == 12 << 20
