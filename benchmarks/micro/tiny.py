"""The reference nets of MLPerf Tiny, and one like MCUNet's; weights are random."""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


def _normed(conv: nn.Module, channels: int) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(channels), nn.ReLU()]


def _separable(given: int, made: int, stride: int) -> list[nn.Module]:
    depth = nn.Conv2d(given, given, 3, stride=stride, padding=1, groups=given, bias=False)
    return [*_normed(depth, given), *_normed(nn.Conv2d(given, made, 1, bias=False), made)]


def keywords() -> tuple[nn.Module, Shape]:
    """DS-CNN for 49 x 10 features and 12 words."""
    first = _normed(nn.Conv2d(1, 64, (10, 4), stride=2, padding=(5, 1), bias=False), 64)
    blocks = [layer for _ in range(4) for layer in _separable(64, 64, 1)]
    return nn.Sequential(*first, *blocks, nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(64, 12)), (
        1,
        1,
        49,
        10,
    )


def persons() -> tuple[nn.Module, Shape]:
    """MobileNetV1 0.25 for 96 x 96 pictures and 2 classes."""
    sizes = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1))
    layers = _normed(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), 8)
    given = 8
    for made, stride in sizes:
        layers += _separable(given, made, stride)
        given = made
    return nn.Sequential(*layers, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(256, 2)), (1, 3, 96, 96)


class ResidualPair(nn.Module):
    """Two convolutions with a connection around them."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(given, made, 3, stride, 1), nn.Conv2d(made, made, 3, padding=1)
        self.around = nn.Conv2d(given, made, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.around(x))


def pictures() -> tuple[nn.Module, Shape]:
    """ResNet-8 for 32 x 32 pictures and 10 classes."""
    pairs = [ResidualPair(16, 16, 1), ResidualPair(16, 32, 2), ResidualPair(32, 64, 2)]
    first, last = (
        [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()],
        [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10)],
    )
    return nn.Sequential(*first, *pairs, *last), (1, 3, 32, 32)


def sounds() -> tuple[nn.Module, Shape]:
    """The autoencoder for 640 features."""
    widths = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128)
    layers: list[nn.Module] = []
    for given, made in pairwise(widths):
        layers += [nn.Linear(given, made), nn.BatchNorm1d(made), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640)), (1, 640)


class Inverted(nn.Module):
    """An expansion, a depthwise product and a projection; with a connection around them where sizes allow."""

    def __init__(self, given: int, made: int, stride: int, size: int) -> None:
        super().__init__()
        wide = 4 * given
        depth = nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide, bias=False)
        self.layers = nn.Sequential(
            *_normed(nn.Conv2d(given, wide, 1, bias=False), wide),
            *_normed(depth, wide),
            nn.Conv2d(wide, made, 1, bias=False),
            nn.BatchNorm2d(made),
        )
        self.around = stride == 1 and given == made

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layers(x)
        return x + made if self.around else made


def inverted() -> tuple[nn.Module, Shape]:
    """Inverted residuals with windows of 3, 5 and 7, for 64 x 64 pictures."""
    sizes = ((8, 1, 3), (16, 2, 7), (16, 1, 3), (24, 2, 5), (24, 1, 5), (40, 2, 7), (40, 1, 3))
    layers, given = _normed(nn.Conv2d(3, 8, 3, 2, 1, bias=False), 8), 8
    for made, stride, size in sizes:
        layers.append(Inverted(given, made, stride, size))
        given = made
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(40, 10)), (1, 3, 64, 64)


NETS: Final[dict[str, Callable[[], tuple[nn.Module, Shape]]]] = {
    "DS-CNN": keywords,
    "MobileNetV1 0.25": persons,
    "ResNet-8": pictures,
    "autoencoder": sounds,
    "inverted residuals": inverted,
}


def made(name: str, seed: int = 0) -> tuple[nn.Module, list[tuple[Tensor]]]:
    """Return a net in evaluation, with norms that are not the identity, and samples."""
    torch.manual_seed(seed)
    net, shape = NETS[name]()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    return net.eval(), [(torch.randn(shape),) for _ in range(8)]
