"""Vision transformer (Dosovitskiy et al., 2021), pre-norm, class token, dropout 0.1 everywhere.

    name  scale  call                                                                    batch      parameters
    vit   bench  Vit(size=64, patch=8, width=192, depth=4, num_heads=3, num_classes=10)  8 x 64x64   1,831,498
    vit   test   Vit(size=16, patch=8, width=32, depth=2, num_heads=2, num_classes=10)   2 x 16x16      32,170

``Vit(size=224, patch=16, width=768, depth=12, num_heads=12, num_classes=1000)`` has the published
86,567,656 parameters of ViT-B/16. Attention runs through ``scaled_dot_product_attention``.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.losses import CrossEntropy, images


class Attention(nn.Module):
    """Multi-head self-attention with dropout on the weights and on the result."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return functional.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and added to its input."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, num_heads, dropout)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Vit(nn.Module):
    """Patches, class token, learned positions, ``depth`` blocks, linear head on the class token."""

    def __init__(
        self,
        *,
        size: int,
        patch: int,
        width: int,
        depth: int,
        num_heads: int,
        num_classes: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, num_heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), patches), 1) + self.positions
        x = self.blocks(self.dropout(x))
        out: Tensor = self.head(self.norm(x[:, 0]))
        return out


def _vit(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        net = Vit(size=64, patch=8, width=192, depth=4, num_heads=3, num_classes=10)
        return CrossEntropy(net), images(8, 64, 10)
    net = Vit(size=16, patch=8, width=32, depth=2, num_heads=2, num_classes=10)
    return CrossEntropy(net), images(2, 16, 10)


ENTRIES = (entry("vit", _vit, "transformer", "dropout"),)
