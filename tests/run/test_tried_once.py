"""Calls that cannot be tried, or traced, run without a capture: nothing of theirs is used up or wrong."""

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.core import TightropeError


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(8, 8)

    def forward(self, parts: object) -> Tensor:
        return torch.stack([self.net(part) for part in parts]).sum(0)  # type: ignore[attr-defined]


def gradient(model: Sums) -> Tensor:
    found = model.net.weight.grad
    assert found is not None
    return found


class Counted(Tensor):
    """Looks at every function that it takes part in."""

    num = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.num += 1
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_a_generator_is_read_once() -> None:
    model, plain, x = tightrope.compile(Sums(), budget="64MiB", progress=False), Sums(), torch.randn(2, 8)
    for _ in range(3):
        for one in (model, plain):
            one(x * n for n in range(3)).sum().backward()
    assert torch.equal(gradient(model), gradient(plain))
    assert "generator" in tightrope.report(model).why


def test_a_generator_has_no_percentage_without_level_e() -> None:
    model, x = Sums(), torch.randn(2, 8)
    tightrope.compile(model, budget="80%", fallback="replay", progress=False)
    with pytest.raises(TightropeError, match="An argument is a generator, which can be read only once"):
        model(x * n for n in range(3))


@pytest.mark.filterwarnings("ignore:tightrope. level")
def test_a_class_of_tensors_with_functions_of_its_own_is_not_traced() -> None:
    model, plain, x = tightrope.compile(Sums(), budget="64MiB", progress=False), Sums(), torch.randn(2, 8)
    for _ in range(2):
        for one in (model, plain):
            out = one([x.as_subclass(Counted)])
            assert type(out) is Counted
            out.as_subclass(Tensor).sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(gradient(model), gradient(plain))
    assert "Counted changes what torch's functions do" in tightrope.report(model).why
