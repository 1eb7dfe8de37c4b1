"""Transformer with mixture-of-experts layers: top-k routing, every expert computed densely.

    name  scale  call                                                                      batch    parameters
    moe   bench  Moe(vocab=4096, width=256, depth=2, num_heads=4, num_experts=8, top_k=2)  2 x 128   6,824,448
    moe   test   Moe(vocab=64, width=32, depth=1, num_heads=2, num_experts=4, top_k=2)     2 x 16       25,024

Each token keeps the gates of its ``top_k`` best experts (Shazeer et al., 2017) and the loss has the
load-balancing term of Fedus et al. (2022), weight 0.01. All experts see all tokens and a sparse gate
matrix mixes them, so no shape depends on the data; a token whose routing changed between two runs
would change the result, which makes this a sharp test of recomputation.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.case import Scale, entry


class Experts(nn.Module):
    """A gated sum of two-layer perceptrons; returns the sum and the load-balancing loss."""

    def __init__(self, width: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(width, num_experts, bias=False)
        self.up = nn.Parameter(torch.randn(num_experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, 2 * width, width) * (2 * width) ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.flatten(0, 1)
        probabilities = self.router(tokens).softmax(-1)
        best, chosen = probabilities.topk(self.top_k, -1)
        gates = torch.zeros_like(probabilities).scatter(1, chosen, best / best.sum(-1, keepdim=True))
        hidden = functional.silu(tokens @ self.up)
        mixed = torch.einsum("etd,te->td", hidden @ self.down, gates)
        load = (gates > 0).float().mean(0)
        return mixed.view_as(x), gates.shape[1] * (load * probabilities.mean(0)).sum()


class _Block(nn.Module):
    def __init__(self, width: int, num_heads: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(width, num_experts, top_k)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        mixed, balance = self.experts(self.norm2(x))
        return x + mixed, balance


class Moe(nn.Module):
    """Causal language model whose perceptrons are `Experts`; ``forward(ids)`` is the loss."""

    def __init__(
        self, *, vocab: int, width: int, depth: int, num_heads: int, num_experts: int, top_k: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(_Block(width, num_heads, num_experts, top_k) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids[:, :-1])
        balances: list[Tensor] = []
        for block in self.blocks:
            x, balance = block(x)
            balances.append(balance)
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        return loss + 0.01 * torch.stack(balances).mean()


def _moe(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        net = Moe(vocab=4096, width=256, depth=2, num_heads=4, num_experts=8, top_k=2)
        return net, (torch.randint(4096, (2, 129)),)
    net = Moe(vocab=64, width=32, depth=1, num_heads=2, num_experts=4, top_k=2)
    return net, (torch.randint(64, (2, 17)),)


ENTRIES = (entry("moe", _moe, "moe", "transformer"),)
