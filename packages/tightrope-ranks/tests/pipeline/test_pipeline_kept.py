"""What layers of many families keep, told from shapes, against what the allocator counts when they run."""

from collections.abc import Callable, Mapping
from typing import Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tightrope.core import Machine, Tier
from tightrope_ranks.pipeline.measure import measure_layers, shape_layers
from tightrope_ranks.pipeline.precision import PRECISIONS
from tightrope_ranks.pipeline.segments import segment_costs

ROWS, LENGTH, WIDTH, HEADS = 2, 128, 128, 4
HIDDEN = ROWS * LENGTH * WIDTH
HERE = Machine("here", (Tier("ram", 2**34),), {"matmul": 1e12})
GPU = Machine("gpu", (Tier("hbm", 2**34),), {"matmul": 1e12}, device="cuda")


class Attention(nn.Module):
    """Attention with a projection in and out; of fewer heads of keys, masked, or to a memory of its own."""

    def __init__(self, keys: int = HEADS, *, mask: bool = False, crossed: bool = False, drop: float = 0.0):
        super().__init__()
        self.keys, self.masked, self.drop, self.crossed = keys, mask, drop, crossed
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * keys * WIDTH // HEADS)
        self.memory = nn.Parameter(torch.randn(ROWS, 64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        def heads(one: Tensor, num: int) -> Tensor:
            return one.view(ROWS, -1, num, WIDTH // HEADS).transpose(1, 2)

        k, v = self.kv(self.memory if self.crossed else x).chunk(2, -1)
        k, v = (heads(one, self.keys) for one in (k, v))
        mask = torch.ones(LENGTH, k.shape[2], dtype=torch.bool).tril() if self.masked else None
        found = F.scaled_dot_product_attention(
            heads(self.q(x), HEADS), k, v, mask, self.drop if self.training else 0.0,
            is_causal=not (self.masked or self.crossed), enable_gqa=self.keys != HEADS,
        )  # fmt: skip
        return x + self.o(found.transpose(1, 2).reshape(ROWS, LENGTH, WIDTH))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Two of four experts per token, with a capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.up, self.down = (nn.Parameter(torch.randn(4, *one) / 20) for one in ((WIDTH, 256), (256, WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        share, chosen = self.gate(rows).softmax(-1).topk(2, -1)
        order = chosen.flatten().argsort(stable=True)
        sent = rows[order // 2].view(4, -1, WIDTH)  # as many tokens for each
        found = torch.bmm(F.silu(torch.bmm(sent, self.up)), self.down).view(-1, WIDTH)
        back = torch.zeros_like(rows).index_add(0, order // 2, found * share.flatten()[order][:, None])
        return x + back.view_as(x)


class Lora(nn.Module):
    """A frozen layer with a trained one of low rank added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(WIDTH, 4 * WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, 4 * WIDTH, bias=False)
        self.back = nn.Linear(4 * WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(F.gelu(self.whole(x) + self.up(F.dropout(self.down(x), 0.1))))  # type: ignore[no-any-return]


class Autocast(nn.Module):
    """A module under autocast, its parameters in float32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()  # type: ignore[no-any-return]


class Cells(nn.Module):
    """A recurrent cell, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(ROWS, WIDTH)
        steps = []
        for one in x.unbind(1)[:16]:
            h, c = self.cell(one, (h, c))
            steps.append(h)
        return x + torch.stack(steps, 1).repeat(1, LENGTH // 16, 1)


class Gated(nn.Module):
    """The feed-forward part of Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.down = nn.Linear(WIDTH, 352), nn.Linear(WIDTH, 352), nn.Linear(352, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.one(x)) * self.other(x))  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    """Two convolutions with batch norm and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 4, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x[:, None]).view(ROWS, LENGTH, WIDTH)  # type: ignore[no-any-return]


class Embedded(nn.Module):
    """Rows of a table, by what the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(64, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        found = self.table(x.argmax(-1) % 64) + self.places(torch.arange(LENGTH))
        return x * torch.tanh(found)


FAMILIES: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "attention": Attention,
    "grouped queries": lambda: Attention(2),
    "masked attention": lambda: Attention(mask=True),
    "cross attention": lambda: Attention(crossed=True),
    "attention with dropout": lambda: Attention(drop=0.1),
    "experts": Experts,
    "LoRA": Lora,
    "autocast attention": lambda: Autocast(Attention()),
    "autocast gated": lambda: Autocast(Gated()),
    "frozen": lambda: nn.Sequential(Gated().requires_grad_(False), Attention().requires_grad_(False)),
    "partly frozen": lambda: nn.Sequential(Gated(), Attention().requires_grad_(False), Gated()),
    "convolutions": Convolutions,
    "cells": Cells,
    "norms": lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Tanh(), nn.RMSNorm(WIDTH), nn.Sigmoid()),
    "embedding": Embedded,
    "gated": Gated,
    "dropout": lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2)),
    "encoder layer": lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 256, batch_first=True),
}  # fmt: skip


def between(make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH), make(), nn.Linear(WIDTH, WIDTH)]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_layer_keeps_is_within_five_percent_of_the_allocator(family: str) -> None:
    layers, x = between(FAMILIES[family]), torch.randn(ROWS, LENGTH, WIDTH)
    seen = measure_layers(layers, x, torch.randn_like(x), F.mse_loss)[1]
    told = shape_layers(layers, x, HERE)[1]
    assert abs(told.saved - seen.saved) <= 0.05 * seen.saved + 64
    assert (told.input, told.output, told.parameters) == (seen.input, seen.output, seen.parameters)


def test_a_whole_model_keeps_no_scores_either() -> None:
    layers, x = between(Attention), torch.randn(ROWS, LENGTH, WIDTH)
    shaped = shape_layers(layers, x, HERE)
    whole = segment_costs(nn.Sequential(*layers), (x,), machine=HERE)
    assert whole.costs[1].saved == shaped[1].saved < 4 * ROWS * HEADS * LENGTH * LENGTH * 3
    assert [one.forward for one in whole.costs] == [one.forward for one in shaped]


LINES = ROWS * LENGTH * HEADS * 4
"""Bytes of the logarithms of sums that attention keeps, in float32."""


@pytest.mark.parametrize(
    ("make", "dtype", "kept"),
    [
        # q, k, v and the output, of which q and the view of k and v lie in two storages
        (Attention, torch.bfloat16, 2 * 4 * HIDDEN + LINES),
        (lambda: Attention(2), torch.bfloat16, 2 * 3 * HIDDEN + LINES),
        (lambda: Attention(drop=0.1), torch.bfloat16, 2 * 4 * HIDDEN + LINES),
        (Attention, torch.float32, 4 * 4 * HIDDEN + LINES),
        (
            lambda: Attention(mask=True),
            torch.float32,
            4 * 4 * HIDDEN + LINES + 4 * LENGTH * LENGTH,
        ),
        # masks of one byte; inputs of the layer and of GELU
        (FAMILIES["dropout"], torch.bfloat16, (1 + 2 + 2 + 1) * HIDDEN),
    ],
)  # fmt: skip
def test_a_gpu_keeps_what_its_own_kernels_keep(
    make: Callable[[], nn.Module], dtype: torch.dtype, kept: int
) -> None:
    """In closed form: no scores, with dropout neither, and masks of one byte for dropout elsewhere."""
    layers = [one.to(dtype) for one in between(make)]
    told = shape_layers(layers, torch.zeros(ROWS, LENGTH, WIDTH, dtype=dtype), GPU)[1]
    assert abs(told.saved - kept) <= 0.01 * kept + 256


def test_attention_called_by_any_name_is_fused() -> None:
    held = F.scaled_dot_product_attention
    x = torch.zeros(ROWS, LENGTH, WIDTH, dtype=torch.bfloat16)
    whole = nn.TransformerEncoderLayer(WIDTH, HEADS, 256, batch_first=True, dtype=torch.bfloat16)

    class Held(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.view(ROWS, LENGTH, HEADS, -1).transpose(1, 2)
            return held(q, q, q, dropout_p=0.1).transpose(1, 2).reshape(x.shape)

    scores = 2 * ROWS * HEADS * LENGTH * LENGTH
    linear = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
    for layer, most in ((Held(), scores), (whole, 40 * HIDDEN)):
        told = shape_layers([linear, layer, linear], x, GPU)[1]
        assert 0 < told.saved < most
    assert F.scaled_dot_product_attention is held


def test_autocast_is_told_as_the_layer_in_a_context() -> None:
    inside = shape_layers(between(lambda: Autocast(Gated())), torch.zeros(ROWS, LENGTH, WIDTH), HERE)[1]
    told = shape_layers(
        between(Gated), torch.zeros(ROWS, LENGTH, WIDTH), HERE, precision=PRECISIONS["autocast"]
    )[1]
    assert told.parameters == inside.parameters
    assert abs(told.saved - inside.saved) <= 2 * HIDDEN  # the input was narrow already


def test_shares_of_rates_lengthen_times() -> None:
    def time(**shares: float) -> tuple[int, ...]:
        machine = Machine("m", (Tier("ram", 2**34, read=1e12),), {"matmul": 1e12}, efficiency=shares)
        found = shape_layers(between(Attention), torch.zeros(ROWS, LENGTH, WIDTH), machine)
        return tuple(one.forward for one in found)

    whole, slow, slower, narrow = (
        time(), time(matmul=0.5), time(matmul=0.5, attention=0.1), time(memory=1e-6)
    )  # fmt: skip
    product = 2 * HIDDEN * WIDTH * 1e-3  # ns
    assert abs(slow[0] - whole[0] - product) < 0.01 * product
    assert slower[0] == slow[0]
    assert abs(slower[1] - slow[1] - 9 * 2 * HIDDEN * LENGTH * 1e-3) < 0.01 * slower[1]
    assert narrow[0] > 1e5 * (whole[0] - product)
