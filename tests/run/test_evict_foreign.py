"""What an op that runs again must find as in its first run: memory of others, settings, sizes, its thread."""

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.native import compiler
from tightrope.run.compile import compiled_of
from tightrope.run.evict.context import evict
from tightrope.run.ledger.accounts import accounts

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler is installed"),
    pytest.mark.filterwarnings("ignore:tightrope. level E"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration"),  # torch's own, on leaving mkldnn.flags
]
DEPTH, ROWS, WIDTH = 8, 1024, 128
BUDGET = 18 * ROWS * WIDTH * 4
"""Less than the activations of `gradients` take."""
X = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def gradients(layer: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Run layers forward and backward."""
    torch.manual_seed(0)
    weights = [torch.randn(WIDTH, WIDTH).div(8).requires_grad_() for _ in range(DEPTH)]
    x = X
    for number, weight in enumerate(weights):
        x = torch.sin(layer(number, x @ weight))
    x.square().mean().backward()  # type: ignore[no-untyped-call]
    return torch.stack([weight.grad for weight in weights if weight.grad is not None])


def filled(source: str) -> Callable[[int, Tensor], Tensor]:
    """Add an array that every layer fills anew."""
    array = np.zeros((ROWS, WIDTH), np.float32)

    def layer(number: int, x: Tensor) -> Tensor:
        array[:] = number + 1
        same = torch.frombuffer(array, dtype=torch.float32).view(ROWS, WIDTH)
        return x + (torch.from_numpy(array) if source == "from_numpy" else same)

    return layer


def flushed(_: int, x: Tensor) -> Tensor:
    """Multiply numbers that another setting takes for zero."""
    torch.set_flush_denormal(True)
    small = x * 1e-39
    torch.set_flush_denormal(False)
    return x + small * 1e30 * 1e9


def grown(number: int, x: Tensor) -> Tensor:
    """Write into a tensor that the op makes larger."""
    out = torch.empty(3 if number % 2 else 0)
    with torch.no_grad():
        torch.mul(X, number, out=out.resize_(0) if number % 2 else out)
    return x * out.clone()


@pytest.mark.parametrize("layer", [filled("from_numpy"), filled("frombuffer"), flushed, grown])
def test_an_op_finds_what_its_first_run_found(layer: Callable[[int, Tensor], Tensor]) -> None:
    wanted = gradients(layer)
    with evict(BUDGET, poison=True) as eviction:
        found = gradients(layer)
    assert eviction.num_recomputed > 0
    assert torch.equal(found, wanted)


def test_a_convolution_runs_again_under_the_flags_of_its_first_run() -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(20))
        x = torch.randn(4, 8, 48, 48)
        for conv in convs:
            with torch.backends.mkldnn.flags(enabled=False):
                x = torch.sin(conv(x))
        x.square().mean().backward()  # type: ignore[no-untyped-call]
        return [one.grad for one in convs.parameters() if one.grad is not None]

    wanted = run()
    with evict(26 * 4 * 8 * 48 * 48 * 4, poison=True) as eviction:
        found = run()
    assert eviction.num_recomputed > 0
    assert all(map(torch.equal, found, wanted))


class Asking(nn.Module):
    """No one graph: it looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.layer(x))
        return x if x.sum().item() < 1e9 else x * 2


def test_a_thread_that_ended_in_the_middle_of_a_step_keeps_none_from_the_next() -> None:
    gc.collect()
    budget = accounts().charged() + (16 << 20)
    model = tightrope.compile(Asking(), budget=budget, fallback="evict", progress=False)
    other = threading.Thread(target=lambda: model(X).mean().item())
    other.start()
    other.join()
    model(X).square().mean().backward()
    found = [one.grad for one in model.parameters()]
    model.zero_grad()
    plain = Asking()
    plain.load_state_dict(model.state_dict())
    plain(X).square().mean().backward()
    assert all(
        torch.equal(a, b.grad) for a, b in zip(found, plain.parameters(), strict=True) if a is not None
    )
    assert None not in found


@pytest.mark.filterwarnings("ignore:tightrope")
def test_parameters_that_numpy_looked_at_keep_nothing_from_being_evicted() -> None:
    """Numpy makes the memory that it looks at one that is never resized, for ever."""
    model = nn.Sequential(*(Asking() for _ in range(12)))
    tightrope.compile(model, budget="60%", progress=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3:
            for parameter in model.parameters():
                parameter.detach().numpy()
    evicted = compiled_of(model).evicted
    assert evicted is not None
    assert evicted.last is not None
    assert evicted.last.num_recomputed > 0
