"""VGG-16 (Simonyan and Zisserman, 2015), in-place ReLU, dropout 0.5 in the head.

    name   scale  call                                                        batch      parameters
    vgg16  bench  Vgg(DEPTHS_16, 64, pool=1, hidden=512, num_classes=100)     2 x 64x64  15,291,300
    vgg16  test   Vgg((1, 1, 1, 1, 1), 8, pool=1, hidden=32, num_classes=10)  2 x 32x32      64,922

The published head (``pool=7, hidden=4096, num_classes=1000``) has 124 of the net's 138,357,544
parameters and hardly any activation; the narrow head keeps the activations in the foreground.
"""

from torch import Tensor, nn

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.losses import CrossEntropy, images

DEPTHS_16 = (2, 2, 3, 3, 3)
"""Convolutions per stage of VGG-16."""


class Vgg(nn.Module):
    """Five stages of 3x3 convolutions with max pooling between them, and a three-layer head."""

    def __init__(
        self, depths: tuple[int, ...], width: int, *, pool: int, hidden: int, num_classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in = 3
        for position, depth in enumerate(depths):
            width_out = width << min(position, 3)
            for _ in range(depth):
                layers += [nn.Conv2d(width_in, width_out, 3, padding=1), nn.ReLU(inplace=True)]
                width_in = width_out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pool), nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(width_in * pool * pool, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def _vgg16(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        return CrossEntropy(Vgg(DEPTHS_16, 64, pool=1, hidden=512, num_classes=100)), images(2, 64, 100)
    return CrossEntropy(Vgg((1, 1, 1, 1, 1), 8, pool=1, hidden=32, num_classes=10)), images(2, 32, 10)


ENTRIES = (entry("vgg16", _vgg16, "conv", "dropout", "inplace"),)
