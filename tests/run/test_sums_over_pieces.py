"""Random models in pieces: gradients have the bits of eager, or the sums that may differ are named."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope

pytestmark = pytest.mark.filterwarnings("ignore:tightrope. level L1 in pieces")
WIDTH = 16


class Pieces(nn.Module):
    """Makes values from earlier ones, with views, parameters that are used again, and breaks in between."""

    def __init__(self, seed: int, *, num_ops: int = 9, breaks: float = 0.2) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        if draw.random() < 0.3:
            nn.utils.parametrizations.spectral_norm(self.layers[0])
        self.ops: list[tuple[str, int, int, int]] = []
        for number in range(num_ops):
            kind = draw.choice(
                ["layer", "layer", "layer", "add", "mul", "tanh", "view", "view", "turn", "rows"]
            )
            if number == num_ops // 2 or draw.random() < breaks:
                self.ops.append(("break", 0, 0, 0))
            self.ops.append((kind, draw.randrange(100), draw.randrange(100), draw.randrange(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.go_on(0, [torch.tanh(self.layers[0](x))])

    def go_on(self, at: int, values: list[Tensor]) -> Tensor:
        """Run the ops up to the next break, then those behind it; no loop has a break inside."""
        end = next((k for k in range(at, len(self.ops)) if self.ops[k][0] == "break"), len(self.ops))
        for kind, first, second, layer in self.ops[at:end]:
            values.append(
                self.made(kind, values[-1 - first % min(len(values), 4)], values[second % len(values)], layer)
            )
        if end == len(self.ops):
            return torch.stack([value.reshape(-1, WIDTH).sin().mean() for value in values]).sum()
        torch._dynamo.graph_break()
        return self.go_on(end + 1, values)

    def made(self, kind: str, one: Tensor, other: Tensor, layer: int) -> Tensor:
        flat, more = one.reshape(-1, WIDTH), other.reshape(-1, WIDTH)
        match kind:
            case "layer":
                return torch.tanh(self.layers[layer](flat))
            case "add":
                return flat + more
            case "mul":
                return flat * more.cos()
            case "tanh":
                return one.tanh() * 1.5
            case "view":
                return one.view(2, -1, WIDTH) if one.is_contiguous() and one.ndim == 2 else one.flatten(0, 1)
            case "turn":
                return flat.t().sin().t()
        return flat[torch.arange(7, -1, -1)]


def gradients(seed: int, wrap: Callable[[nn.Module], Any], *, calls: int) -> tuple[list[Any], nn.Module]:
    torch.manual_seed(seed)
    model = Pieces(seed)
    run, found = wrap(model), []
    for _ in range(2):
        inputs = [torch.randn(8, WIDTH) for _ in range(calls)]
        loss = torch.stack([run(x) for x in inputs]).sum()
        loss.backward()
        found += [loss.item(), *(p.grad if p.grad is None else p.grad.tolist() for p in model.parameters())]
        model.zero_grad()
    return found, model


def equal_or_named(seed: int, *, calls: int = 1) -> tuple[bool, tuple[str, ...]]:
    torch._dynamo.reset()
    wanted, _ = gradients(seed, lambda model: model, calls=calls)
    options = {"budget": "64MiB", "fallback": "pieces", "progress": False}
    compiled = lambda model: tightrope.compile(model, **options)  # noqa: E731
    found, model = gradients(seed, compiled, calls=calls)
    return found == wanted, tightrope.report(model).unlike_eager


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_model_in_pieces_is_as_eager_or_named(seed: int) -> None:
    equal, named = equal_or_named(seed)
    assert equal or named
