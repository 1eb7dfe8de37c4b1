"""Calls whose inputs share memory otherwise than those of the captured call, of which one is written."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope
from tightrope.run.compile import compiled_of

Pair = tuple[Tensor, Tensor]


class WritesFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return torch.tanh(self.inner(x) + y).square().mean()


class WritesSecond(WritesFirst):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y.mul_(0.5)
        return (self.inner(x) - y).square().mean()


def apart() -> Pair:
    return torch.randn(8, 16), torch.randn(8, 16)


def halves() -> Pair:
    x, y = torch.randn(16, 16).chunk(2)
    return x, y


def columns() -> Pair:
    both = torch.randn(8, 32)
    return both[:, :16], both[:, 16:]


def overlapping() -> Pair:
    rows = torch.randn(16, 16)
    return rows[:8], rows[4:12]


def viewed() -> Pair:
    x = torch.randn(8, 16)
    return x, x.view(8, 16)


def twice() -> Pair:
    x = torch.randn(8, 16)
    return x, x


def detached() -> Pair:
    x = torch.randn(8, 16)
    return x, x.detach()


def bits(
    model: nn.Module, wrap: Callable[[nn.Module], Any], calls: tuple[Callable[[], Pair], ...]
) -> Iterator[Any]:
    torch.manual_seed(0)
    run = wrap(model)
    for make in calls:
        x, y = make()
        loss = run(x, y)
        loss.backward()
        yield from (loss.item(), x.tolist(), y.tolist(), x._version, y._version)
        yield from (parameter.grad.tolist() for parameter in model.parameters())
        model.zero_grad()


def compiled(model: nn.Module, **options: Any) -> Any:
    return tightrope.compile(model, budget="64MiB", progress=False, **options)


def by_torch(model: nn.Module) -> Any:
    return torch.compile(model, backend="tightrope", options={"budget": "64MiB", "progress": False})


WAYS = {
    "compile": compiled,
    "backend": by_torch,
    "bucket": lambda model: compiled(model, shapes="bucket"),
}


def as_eager(kind: type[WritesFirst], way: str, *calls: Callable[[], Pair]) -> nn.Module:
    torch.manual_seed(1)
    weights = kind().state_dict()
    plain, model = kind(), kind()
    for one in (plain, model):
        one.load_state_dict(weights)
    assert list(bits(model, WAYS[way], calls)) == list(bits(plain, lambda same: same, calls))
    return model


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", [WritesFirst, WritesSecond])
@pytest.mark.parametrize(
    "calls",
    [
        (apart, overlapping, apart),
        (overlapping, halves),
        (viewed, apart),
        (columns, apart, columns),
        (twice, viewed),
    ],
    ids=lambda calls: "-".join(call.__name__ for call in calls),
)
def test_each_pattern_of_shared_memory_is_captured_by_itself(
    kind: type[WritesFirst], calls: tuple[Callable[[], Pair], ...]
) -> None:
    assert tightrope.report(as_eager(kind, "compile", *calls)).level == "L1"


@pytest.mark.parametrize("way", ["backend", "bucket"])
def test_so_it_is_by_other_ways(way: str) -> None:
    as_eager(WritesFirst, way, apart, overlapping, halves)


def test_views_of_one_tensor_need_no_capture_per_offset() -> None:
    whole = torch.randn(40, 16, generator=torch.Generator().manual_seed(2))

    def batches(start: int) -> Callable[[], Pair]:
        def batch() -> Pair:
            data = whole.clone()
            return data[start : start + 8], data[start + 8 : start + 16]

        return batch

    model = as_eager(WritesSecond, "compile", *map(batches, (0, 3, 17)))
    assert len(compiled_of(model).calls.captured) == 1


def test_what_torch_cannot_trace_runs_as_it_is_and_says_so() -> None:
    with pytest.warns(UserWarning, match="run as they are, under the limit"):
        as_eager(WritesFirst, "compile", apart, detached, apart)


class TakesGradient(WritesFirst):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.inner(x)
        return (hidden * hidden.as_strided((8, 16), (16, 1)) + y.as_strided((8, 16), (16, 1))).square().mean()


def test_a_graph_that_looks_into_memory_is_captured_for_each_offset() -> None:
    data = torch.randn(24, 16, generator=torch.Generator().manual_seed(2))
    calls = [lambda start=start: (data[:8], data[start : start + 8]) for start in (0, 8, 16, 0)]
    as_eager(TakesGradient, "compile", *calls)


class Attends(WritesFirst):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k = self.inner(x).view(1, 2, 8, 8), self.inner(y).view(1, 2, 8, 8)
        return nn.functional.scaled_dot_product_attention(q, k, k).square().mean()


def test_other_kernels_of_attention_are_another_capture() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(wrap: Callable[[nn.Module], Any]) -> list[Any]:
        torch.manual_seed(0)
        model, found = Attends(), []
        call = wrap(model)
        for backends in ([SDPBackend.FLASH_ATTENTION], [SDPBackend.MATH], [SDPBackend.FLASH_ATTENTION]):
            with sdpa_kernel(backends):
                loss = call(*apart())
            loss.backward()
            found += [loss.item(), *(parameter.grad.tolist() for parameter in model.parameters())]
            model.zero_grad()
        return found

    assert run(compiled) == run(lambda model: model)
