"""MobileNet-v2 (Sandler et al., 2018): inverted residuals, ReLU6 in place, dropout 0.2 in the head.

    name         scale  call                                                       batch       parameters
    mobilenetv2  bench  MobileNetV2(STAGES, stem=32, last=1280, num_classes=100)   16 x 64x64   2,351,972
    mobilenetv2  test   MobileNetV2(TEST_STAGES, stem=8, last=32, num_classes=10)  2 x 32x32        5,602

With 1,000 classes it has the published 3,504,872 parameters.
"""

from torch import Tensor, nn

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.losses import CrossEntropy, images

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output width, number of blocks, stride of the first block."""

TEST_STAGES = ((1, 8, 1, 1), (6, 8, 2, 2), (6, 12, 1, 2))


def _conv_bn(width_in: int, width_out: int, size: int, stride: int, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(width_in, width_out, size, stride, (size - 1) // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(width_out)]


class InvertedResidual(nn.Module):
    """Widen with 1x1, filter each channel with 3x3, narrow with 1x1; add the input if shapes agree."""

    def __init__(self, width_in: int, width_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = width_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*_conv_bn(width_in, hidden, 1, 1), nn.ReLU6(inplace=True)]
        layers += [*_conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, *_conv_bn(hidden, width_out, 1, 1))
        self.residual = stride == 1 and width_in == width_out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """Stem, stages of inverted residuals, a wide 1x1 convolution, average, linear head."""

    def __init__(
        self, stages: tuple[tuple[int, int, int, int], ...], *, stem: int, last: int, num_classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_conv_bn(3, stem, 3, 2), nn.ReLU6(inplace=True)]
        width = stem
        for expansion, width_out, depth, stride in stages:
            for number in range(depth):
                block_stride = stride if number == 0 else 1
                layers.append(InvertedResidual(width, width_out, block_stride, expansion))
                width = width_out
        self.features = nn.Sequential(*layers, *_conv_bn(width, last, 1, 1), nn.ReLU6(inplace=True))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x).mean((2, 3)))
        return out


def _mobilenetv2(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        return CrossEntropy(MobileNetV2(STAGES, stem=32, last=1280, num_classes=100)), images(16, 64, 100)
    return CrossEntropy(MobileNetV2(TEST_STAGES, stem=8, last=32, num_classes=10)), images(2, 32, 10)


ENTRIES = (entry("mobilenetv2", _mobilenetv2, "conv", "batchnorm", "dropout", "inplace"),)
