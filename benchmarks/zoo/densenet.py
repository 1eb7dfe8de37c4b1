"""DenseNet-121 (Huang et al., 2017): every layer reads all earlier ones of its block.

    name         scale  call                                                        batch      parameters
    densenet121  bench  DenseNet(DEPTHS_121, growth=32, width=64, num_classes=100)  4 x 64x64   7,056,356
    densenet121  test   DenseNet((2, 2, 2), growth=4, width=8, num_classes=10)      2 x 32x32       6,442

With 1,000 classes it has the published 7,978,856 parameters. The concatenated inputs grow
quadratically with the depth of a block: the classic case where recomputing a cheap op saves much.
"""

import torch
from torch import Tensor, nn

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.losses import CrossEntropy, images

DEPTHS_121 = (6, 12, 24, 16)
"""Layers per block of DenseNet-121."""


class _Layer(nn.Sequential):
    def __init__(self, width_in: int, growth: int) -> None:
        super().__init__(
            nn.BatchNorm2d(width_in),
            nn.ReLU(inplace=True),
            nn.Conv2d(width_in, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )


class _Block(nn.Module):
    def __init__(self, width_in: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(width_in + i * growth, growth) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


def _transition(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width // 2, 1, bias=False),
        nn.AvgPool2d(2),
    )


class DenseNet(nn.Module):
    """Stem, dense blocks with halving transitions between them, average, linear head."""

    def __init__(self, depths: tuple[int, ...], *, growth: int, width: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        for position, depth in enumerate(depths):
            layers.append(_Block(width, growth, depth))
            width += depth * growth
            if position < len(depths) - 1:
                layers.append(_transition(width))
                width //= 2
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x).mean((2, 3)))
        return out


def _densenet121(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        return CrossEntropy(DenseNet(DEPTHS_121, growth=32, width=64, num_classes=100)), images(4, 64, 100)
    return CrossEntropy(DenseNet((2, 2, 2), growth=4, width=8, num_classes=10)), images(2, 32, 10)


ENTRIES = (entry("densenet121", _densenet121, "conv", "batchnorm", "inplace"),)
