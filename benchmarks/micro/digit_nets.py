"""Two nets for handwritten digits: a vision transformer, and a residual CNN with batch norm."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, DEPTH, PATCHES = 64, 4, 3, 16


class Attention(nn.Module):
    """Attention over tokens, with a dense layer each for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, _ = x.shape
        split = (batch, rows, HEADS, WIDTH // HEADS)
        q, k, v = (f(x).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        found: torch.Tensor = self.out(mixed.reshape(batch, rows, WIDTH))
        return found


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer norm and beside the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        found: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return found


class DigitsViT(nn.Module):
    """A vision transformer of 2x2 patches of images [n, 1, 8, 8], with a token for the class."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, WIDTH, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, PATCHES + 1, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(tokens), 1, WIDTH), tokens), 1) + self.places
        found: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return found


class Sum(nn.Module):
    """Two convolutions with batch norm, beside the residual stream."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride == 2 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.skip(x))


class DigitsCNN(nn.Module):
    """A stem, three residual blocks of images [n, 1, 8, 8], the mean over each map, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Sum(16, 16), Sum(16, 32), Sum(32, 64))
        self.fc = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(images))))
        found: torch.Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


NETS = {"vit": (DigitsViT, 40, 2e-3), "cnn": (DigitsCNN, 15, 3e-3)}
"""Name -> net, epochs, rate."""
