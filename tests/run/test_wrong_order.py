"""Wrong calls of models that run: what torch would do, or a refusal by name, in whatever order they come."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope import InfeasibleError, TightropeError

X = torch.ones(2, 8)


class Branching(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x)
        if hidden.sum() > 1e9:
            hidden = hidden * 2
        found: Tensor = self.two(hidden)
        return found


class Fixed(nn.Module):
    """No graph at all."""

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def doubled(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 2


def linear(budget: Any = "64MiB") -> nn.Module:
    return tightrope.compile(nn.Linear(8, 8), budget=budget, progress=False)


def test_a_graph_is_kept_after_backwards_that_kept_none() -> None:
    model = linear()
    model(X).sum().backward()
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    assert isinstance(model.weight, nn.Parameter)
    model.weight.grad = None
    loss.backward()
    assert torch.equal(model.weight.grad, torch.full((8, 8), 2.0))


def test_a_percentage_of_a_model_without_a_graph_or_level_e_is_refused_at_every_call() -> None:
    model = tightrope.compile(Branching(), budget="60%", fallback="replay", progress=False)
    for _ in range(2):
        with pytest.raises(TightropeError, match="a budget in percent needs a captured graph"):
            model(X)


@pytest.mark.parametrize("change", [nn.Module.bfloat16, nn.Module.double, doubled])
def test_weights_in_other_memory_before_the_backward_are_refused(
    change: Callable[[nn.Module], object],
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    tightrope.compile(model, budget="64MiB", progress=False)
    loss = model(X).sum()
    change(model)
    with pytest.raises(TightropeError, match=r"given other memory, as by model\.bfloat16\(\): do so after"):
        loss.backward()
    x = X.to(next(model.parameters()).dtype)
    model(x).sum().backward()


@pytest.mark.parametrize("steps", [1, 2])
def test_second_derivatives_are_refused_with_torch_s_text_and_what_to_do(steps: int) -> None:
    model = linear()
    for _ in range(steps):
        gradients = torch.autograd.grad(model(X).square().sum(), list(model.parameters()), create_graph=True)
        penalty = torch.stack([one.square().sum() for one in gradients]).sum()
        with pytest.raises(TightropeError, match=r"create_graph=True: .*double backward.*tightrope\.replay"):
            penalty.backward()
    model(X).sum().backward()


@pytest.mark.parametrize("wrong", [object(), "text", [1.0]])
def test_an_input_that_torch_refuses_is_refused_by_torch_under_a_percentage_too(wrong: object) -> None:
    with pytest.raises(TypeError) as plain:
        nn.Linear(8, 8)(wrong)
    with pytest.raises(TypeError) as caught:
        linear("60%")(wrong)
    assert str(caught.value) == str(plain.value)


def test_level_0_below_what_is_held_is_refused_with_what_is_held() -> None:
    held = torch.ones(2**18)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tightrope.compile(Fixed(), budget=2**17, progress=False)
        for _ in range(2):
            with pytest.raises(InfeasibleError, match=r"asked 128\.0 KiB; .*Try budget=") as found:
                model(X)
            assert found.value.smallest_found is not None
            assert found.value.smallest_found > held.nbytes
    del held


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, path = linear(), tmp_path_factory.mktemp("saved") / "linear.step"
    model(X).sum().backward()
    tightrope.save(model, path, (X,))
    return path


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tangents": nn.Linear}, "tangents=the class Linear: give a list of tensors"),
        ({"tangents": (one for one in (1,))}, "tangents=<generator .*: give a list of tensors"),
        ({"tangents": [3]}, r"tangents\[0\]=3: give a tensor"),
        ({"inputs": {"input 0": X.to("meta")}}, "'input 0' is .*'meta'.*Give one like that"),
        ({"inputs": {"input 0": X.to_sparse()}}, "'input 0' is .*sparse.*Give one like that"),
    ],
)
def test_a_saved_step_refuses_what_it_cannot_run_on(file: Path, wrong: dict[str, Any], says: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about sparse and nested tensors
        step = tightrope.load(file)
        with pytest.raises(TightropeError, match=says):
            step(wrong.get("inputs"), tangents=wrong.get("tangents"))


@pytest.mark.parametrize("wrong", [3, ValueError("x"), None, nn.Linear])
def test_saving_refuses_what_was_never_compiled(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(TightropeError, match=r"step=.*: give what tightrope\.step or compile returned"):
        tightrope.save(wrong, tmp_path / "x.step", (X,))


@pytest.mark.parametrize("path", ["", ".", Path(), "/"])
def test_saving_refuses_a_path_without_a_name(path: str | Path) -> None:
    model = linear()
    model(X).sum().backward()
    with pytest.raises(TightropeError, match=r"path='[./]': give the path of the file to write|path='':"):
        tightrope.save(model, path, (X,))


@pytest.mark.parametrize("wrong", [[[1]], 3, {1: X}, "x"])
def test_saving_refuses_keyword_arguments_that_are_none(wrong: Any, tmp_path: Path) -> None:
    model = linear()
    model(X).sum().backward()
    with pytest.raises(TightropeError, match=r"kwargs=.*: give a dict of arguments by name"):
        tightrope.save(model, tmp_path / "x.step", (X,), wrong)


def test_saved_tensors_that_come_back_as_others_are_refused_and_the_next_step_runs() -> None:
    model = linear()
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one.clone()):
        loss = model(X).sum()
    with pytest.raises(TightropeError, match=r"inside of torch\.autograd\.graph\.saved_tensors_hooks"):
        loss.backward()
    model(X).sum().backward()
