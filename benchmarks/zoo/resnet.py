"""ResNet-18 and ResNet-50 (He et al., 2016), in-place ReLU, stride in the 3x3 convolution.

    name      scale  call                                                   batch      parameters
    resnet18  bench  ResNet(BasicBlock, (2, 2, 2, 2), 32, num_classes=100)  16 x 112x112  2,824,580
    resnet18  test   ResNet(BasicBlock, (1, 1, 1, 1), 8, num_classes=10)    2 x 32x32      78,962
    resnet50  bench  ResNet(Bottleneck, (3, 4, 6, 3), 64, num_classes=100)  4 x 64x64  23,712,932
    resnet50  test   ResNet(Bottleneck, (1, 1, 1, 1), 8, num_classes=10)    2 x 32x32     130,962

With 1,000 classes the two have the published 11,689,512 and 25,557,032 parameters.
"""

from torch import Tensor, nn

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.losses import CrossEntropy, images


def _shortcut(width_in: int, width_out: int, stride: int) -> nn.Module:
    if stride == 1 and width_in == width_out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(width_in, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the last one is four times as wide."""

    expansion = 4

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(width_in, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        out: Tensor = self.relu(y)
        return out


class ResNet(nn.Module):
    """Stem, four stages that halve the image and double the width, average, linear head."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        width: int,
        *,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages: list[nn.Module] = []
        width_in = width
        for position, depth in enumerate(depths):
            blocks: list[nn.Module] = []
            for number in range(depth):
                stride = 2 if position > 0 and number == 0 else 1
                blocks.append(block(width_in, width << position, stride))
                width_in = (width << position) * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(width_in, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.stages(self.stem(x)).mean((2, 3)))
        return out


def _resnet18(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        return CrossEntropy(ResNet(BasicBlock, (2, 2, 2, 2), 32, num_classes=100)), images(16, 112, 100)
    return CrossEntropy(ResNet(BasicBlock, (1, 1, 1, 1), 8, num_classes=10)), images(2, 32, 10)


def _resnet50(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if scale == "bench":
        return CrossEntropy(ResNet(Bottleneck, (3, 4, 6, 3), 64, num_classes=100)), images(4, 64, 100)
    return CrossEntropy(ResNet(Bottleneck, (1, 1, 1, 1), 8, num_classes=10)), images(2, 32, 10)


ENTRIES = (
    entry("resnet18", _resnet18, "conv", "batchnorm", "inplace"),
    entry("resnet50", _resnet50, "conv", "batchnorm", "inplace"),
)
