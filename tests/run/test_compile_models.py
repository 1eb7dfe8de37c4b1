"""What nets are made of: random ops, in-place ops, shared parts, buffers, unusual inputs and outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from training import Blocks, Loop, Seen, batches, built, captured, play, same

import tightrope
from benchmarks.zoo import build
from tightrope.run.compile import compiled_of

DATA = batches(4)


def train(*inputs: Any, steps: int = 3, **kwargs: Any) -> Loop:
    """A loop over one batch for a model that returns a tensor."""

    def loop(model: nn.Module, see: Seen) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(*inputs, **kwargs)
            out.float().square().mean().backward()
            see(out)
            see.all(model)
            optimizer.step()

    return loop


class Around(nn.Module):
    """A function between two linear layers, in training mode."""

    def __init__(self, function: Callable[[Tensor], Tensor] | nn.Module, *, width: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.function(self.first(x).relu())
        out: Tensor = self.last(x)
        return out


RANDOM: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "dropout": lambda: nn.Dropout(0.3),
    "dropout of nothing": lambda: nn.Dropout(0.0),
    "dropout of everything": lambda: nn.Dropout(1.0),
    "alpha dropout": lambda: nn.AlphaDropout(0.2),
    "rand_like": lambda: lambda x: x * torch.rand_like(x),
    "randn of a shape": lambda: lambda x: x + torch.randn(x.shape[-1]),
    "bernoulli": lambda: lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "normal noise in place": lambda: lambda x: x + torch.empty_like(x).normal_(),
    "a permutation": lambda: lambda x: x[torch.randperm(x.shape[0])],
    "rrelu": lambda: nn.RReLU(),
}


_QUICK = ("dropout", "rand_like", "bernoulli", "normal noise in place", "rrelu")
"""One of each way to draw; the others are run by `make test-all`."""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in RANDOM]
)
def test_random_ops_draw_once_and_leave_the_state_of_eager(name: str) -> None:
    x = DATA[0][0]
    same(lambda: Around(RANDOM[name]()), train(x), (x,), share=0.0)


class Convolutional(nn.Module):
    def __init__(self, dropout: nn.Module, *, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8, momentum=momentum),
            nn.ReLU(inplace=True),
            dropout,
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8, momentum=momentum),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


@pytest.mark.few(1)
@pytest.mark.parametrize("dropout", [nn.Identity, nn.Dropout2d])
def test_batch_norm_with_dropout_of_channels(dropout: type[nn.Module]) -> None:
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    same(lambda: Convolutional(dropout()), train(images), (images,), share=0.2)


def test_batch_norm_whose_average_depends_on_a_counter_is_evicted() -> None:
    images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(2))

    def make() -> nn.Module:
        return built(lambda: Convolutional(nn.Identity(), momentum=None))

    wanted = play(make(), train(images, steps=6))
    model = tightrope.compile(make(), budget="64MiB", fallback="evict", progress=False)
    with pytest.warns(UserWarning, match="level E.*data-dependent"):
        assert play(model, train(images, steps=6)) == wanted
    assert tightrope.report(model).level == "E"


class Attention(nn.Module):
    def __init__(self, *, dropout: float) -> None:
        super().__init__()
        self.qkv, self.dropout = nn.Linear(32, 96), dropout

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
            x = x + mixed.transpose(1, 2).flatten(2)
        return x


@pytest.mark.few(1)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_attention(dropout: float) -> None:
    x = torch.randn(4, 64, 32, generator=torch.Generator().manual_seed(2))
    same(lambda: Attention(dropout=dropout), train(x), (x,), share=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["custom_function", "inplace_tied"])
def test_custom_functions_tied_weights_and_a_block_that_runs_twice(name: str) -> None:
    inputs = build(name, scale="test").inputs
    same(lambda: build(name, scale="test").model, train(*inputs), inputs, share=0.1)


class Averages(nn.Module):
    """Updates its own buffers: an exponential average and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.register_buffer("average", torch.zeros(32))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh()
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
            self.count += 1
        out: Tensor = self.linear(y - self.average)
        return out


def test_buffers_that_the_model_updates() -> None:
    x = DATA[0][0]
    model = same(Averages, train(x), (x,), share=0.1)
    assert int(model.get_buffer("count")) == 3


@dataclass
class Pack:
    x: Tensor
    scale: float


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 32), nn.Linear(32, 32)

    def forward(
        self,
        batch: dict[str, Any],
        pair: tuple[Tensor, list[Tensor]],
        *,
        flag: bool,
        pack: Pack | None = None,
    ) -> dict[str, Any]:
        x = batch["x"] + self.embedding(batch["inner"]["ids"])
        for extra in (pair[0], *pair[1]):
            x = x + functional.gelu(self.linear(extra))
        if pack is not None:
            x = x + pack.x * pack.scale
        return {
            "out": x if flag else -x,
            "nothing": None,
            "parts": (x.detach().mean(), [x.sum()]),
            "name": "n",
        }


@pytest.mark.slow
def test_nested_inputs_keyword_arguments_and_none_among_the_outputs() -> None:
    x = DATA[0][0]
    ids = torch.randint(10, (len(x),), generator=torch.Generator().manual_seed(1))
    args = ({"x": x, "inner": {"ids": ids}}, (x * 2, [x + 1, x]))

    def loop(model: nn.Module, see: Seen) -> None:
        for step in range(4):
            model.zero_grad()
            found = model(*args, flag=step % 2 == 0, pack=Pack(x, 0.5) if step > 1 else None)
            assert found["nothing"] is None
            assert found["name"] == "n"
            see(found["out"], found["parts"][0])
            (found["out"].square().mean() + found["parts"][1][0] * 1e-3).backward()
            see.gradients(model)

    model = same(Nested, loop, args, {"flag": True}, extra=1 << 20)
    assert compiled_of(model).num_graphs == 4


class Several(nn.Module):
    """Outputs that are views of each other, an input, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = self.linear(x).relu()
        return y, y[1:], x, y.sum(-1), y.argmax(-1), torch.arange(4), x.t()


def test_outputs_that_alias_each_other_and_an_input() -> None:
    x = DATA[0][0]

    def loop(model: nn.Module, see: Seen) -> None:
        for _ in range(3):
            model.zero_grad()
            y, tail, same_x, sums, best, numbers, turned = model(x)
            see(y, tail, same_x, sums, best, numbers, turned)
            assert tail.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
            assert same_x is x
            (y.mean() + tail.square().mean() + sums.sin().mean()).backward()
            see.gradients(model)

    same(Several, loop, (x,), extra=1 << 20, twin=captured)


def test_only_some_outputs_take_part_in_the_loss() -> None:
    x = DATA[0][0]

    def loop(model: nn.Module, see: Seen) -> None:
        for which in (0, 3, 1):
            model.zero_grad()
            model(x)[which].sum().backward()
            see.gradients(model)

    same(Several, loop, (x,), extra=1 << 20, twin=captured)


@pytest.mark.slow
def test_double_precision() -> None:
    x = DATA[0][0].double()
    same(lambda: Blocks(dropout=0.0).double(), train(x), (x,), share=0.1)


@pytest.mark.slow
def test_bfloat16_weights() -> None:
    x = DATA[0][0].bfloat16()
    same(lambda: Blocks(dropout=0.0).bfloat16(), train(x), (x,), share=0.3)


def test_channels_last() -> None:
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    images = images.to(memory_format=torch.channels_last)
    same(
        lambda: Convolutional(nn.Identity()).to(memory_format=torch.channels_last),
        train(images),
        (images,),
        share=0.2,
    )


def test_a_model_on_two_threads() -> None:
    x = DATA[0][0]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        # On some processors products on two threads take 8 MiB that are not torch's.
        same(Blocks, train(x), (x,), share=0.2, extra=16 << 20)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_recurrent_net() -> None:
    x = torch.randn(3, 64, 32, generator=torch.Generator().manual_seed(2))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            state = x.new_zeros(x.shape[1], 32)
            for row in x:
                state = self.cell(row, state)
            return state

    same(Recurrent, train(x), (x,), share=0.2)
