"""An `autograd.Function` with a derivative of its own, inside of a transform of `torch.func`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, jvp, vjp, vmap

import tightrope

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


class Thrice(torch.autograd.Function):
    """The sine, with three as its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Forward(Thrice):
    """The same, with five as its derivative in forward mode."""

    generate_vmap_rule = False

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 5


def total(x: Tensor) -> Tensor:
    found: Tensor = Thrice.apply(x).sum()  # type: ignore[no-untyped-call]
    return found


USES: dict[str, Any] = {
    "grad": lambda x, w: grad(total)(x) * w,
    "per sample": lambda x, w: vmap(grad(total))(x) * w,
    "vjp": lambda x, w: vjp(total, x)[1](x.sum())[0] * w,
    "jacrev": lambda x, w: jacrev(total)(x) * w,
    "jvp": lambda x, w: jvp(Forward.apply, (x,), (x,))[1] * w,
    "vmap": lambda x, w: vmap(lambda one: total(one * w))(x),
    "none": lambda x, w: Thrice.apply(x * w),  # type: ignore[no-untyped-call]
}


class Uses(nn.Module):
    def __init__(self, use: str) -> None:
        super().__init__()
        self.use, self.weight = use, nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = USES[self.use](x, self.weight).sum()
        return found


def bits(model: Any, weight: Tensor) -> list[Any]:
    torch.manual_seed(0)
    found = []
    for _ in range(2):
        loss = model(torch.randn(4, 8))
        loss.backward()
        assert weight.grad is not None
        found += [loss.item(), weight.grad.tolist()]
        weight.grad = None
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("use", USES)
def test_a_derivative_of_its_own_is_kept(use: str) -> None:
    plain, model = Uses(use), Uses(use)
    tightrope.compile(model, budget="64MiB", progress=False)
    if use == "none":
        assert bits(model, model.weight) == bits(plain, plain.weight)
        return
    with pytest.warns(
        UserWarning, match="(Thrice|Forward) is a torch.autograd.Function inside of a transform"
    ):
        assert bits(model, model.weight) == bits(plain, plain.weight)


@pytest.mark.parametrize("use", ["per sample", "vmap"])
def test_the_backend_leaves_it_to_eager(use: str) -> None:
    plain, model = Uses(use), Uses(use)
    run = torch.compile(model, backend="tightrope", options={"budget": "64MiB", "progress": False})
    with pytest.warns(UserWarning, match="a trace would lose its own derivative"):
        assert bits(run, model.weight) == bits(plain, plain.weight)
