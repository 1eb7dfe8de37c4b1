"""U-Net (Ronneberger et al., 2015) with batch normalization and padded convolutions.

    name  scale  call                              batch        parameters
    unet  bench  UNet(16, depth=4, num_classes=2)  2 x 128x128   1,942,594
    unet  test   UNet(4, depth=3, num_classes=2)   2 x 32x32        30,546

The skip connections keep the largest activations alive over the whole net.
"""

import torch
from torch import Tensor, nn

from benchmarks.zoo.case import Scale, entry
from benchmarks.zoo.losses import CrossEntropy


def _double(width_in: int, width_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(width_out, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """``depth`` halvings with doubled width, and as many transposed convolutions with skips."""

    def __init__(self, width: int, *, depth: int, num_classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.stem = _double(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double(widths[i], widths[i + 1]) for i in range(depth))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2) for i in reversed(range(depth))
        )
        self.merge = nn.ModuleList(_double(2 * widths[i], widths[i]) for i in reversed(range(depth)))
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips: list[Tensor] = []
        for down in self.down:
            skips.append(x)
            x = down(self.pool(x))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((skips.pop(), up(x)), 1))
        out: Tensor = self.head(x)
        return out


def _unet(scale: Scale) -> tuple[nn.Module, tuple[Tensor, ...]]:
    width, depth, size = (16, 4, 128) if scale == "bench" else (4, 3, 32)
    net = UNet(width, depth=depth, num_classes=2)
    return CrossEntropy(net), (torch.randn(2, 3, size, size), torch.randint(2, (2, size, size)))


ENTRIES = (entry("unet", _unet, "conv", "batchnorm", "inplace"),)
