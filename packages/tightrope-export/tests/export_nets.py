"""Three small nets that return their loss: an MLP, a transformer with dropout, one with batch norm."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Loss(nn.Module):
    """A net and its cross-entropy."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(x).flatten(0, -2), target.flatten())


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, t, d)))
        x = x if scale is None else x * scale
        out: Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))
        return out


class Decoder(nn.Module):
    """Embeddings and blocks, which are called with a keyword."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.layers = nn.ModuleList(Attention(width) for _ in range(depth))
        self.head = nn.Linear(width, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        scale = torch.full((), 0.5)
        for layer in self.layers:
            x = layer(x, scale=scale)
        out: Tensor = self.head(x)
        return out


class ConvBlock(nn.Module):
    """Two convolutions with batch norm around a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


class ConvNet(nn.Module):
    """A stem, blocks and a head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(width) for _ in range(depth)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def build_mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Four blocks of an MLP."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
    return Loss(nn.Sequential(*blocks)), (torch.randn(256, 32), torch.randint(32, (256,)))


def build_decoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Three blocks of a transformer with dropout."""
    torch.manual_seed(0)
    return Loss(Decoder(32, 3)), (torch.randint(50, (2, 48)), torch.randint(50, (2, 48)))


def build_conv() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Three blocks with batch norm."""
    torch.manual_seed(0)
    return Loss(ConvNet(8, 3)), (torch.randn(4, 3, 16, 16), torch.randint(10, (4,)))
