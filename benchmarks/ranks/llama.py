"""Models of the published sizes of Llama as lists of layers, on the meta device."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZES: Final = {
    "8B": (32, 4096, 32, 8, 14336, 128256), "13B": (40, 5120, 40, 40, 13824, 32000),
    "Llama 2 70B": (80, 8192, 64, 8, 28672, 32000),
    "70B": (80, 8192, 64, 8, 28672, 128256), "405B": (126, 16384, 128, 8, 53248, 128256),
}  # fmt: skip
"""Layers, width, heads, heads of keys, inner width, vocabulary."""


class LlamaBlock(nn.Module):
    """Attention with grouped queries and rotated positions, then a gated feed-forward part."""

    def __init__(self, width: int, heads: int, keys: int, inner: int) -> None:
        super().__init__()
        self.head, self.grouped = width // heads, keys != heads
        self.norm, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, keys * self.head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        def heads(one: Tensor) -> Tensor:
            return one.view(*one.shape[:-1], -1, self.head).transpose(1, 2)

        y = self.norm(x)
        q, k = (rotated(heads(one)) for one in (self.q(y), self.k(y)))
        found = F.scaled_dot_product_attention(
            q, k, heads(self.v(y)), is_causal=True, enable_gqa=self.grouped
        )
        x = x + self.o(found.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


def rotated(x: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    angle = torch.zeros(x.shape[-2], x.shape[-1] // 2, dtype=x.dtype)
    return torch.cat((one * angle - other * angle, one * angle + other * angle), -1)


def llama(size: str) -> list[nn.Module]:
    """Build a model that ends in its logits."""
    layers, width, heads, keys, inner, words = SIZES[size]
    with torch.device("meta"):
        head = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, words, bias=False))
        blocks = [LlamaBlock(width, heads, keys, inner) for _ in range(layers)]
        return [nn.Embedding(words, width), *blocks, head]
