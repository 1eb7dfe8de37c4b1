"""The eleven nets that eviction is measured on: eight that repeat, three whose step is another one each time.

resnet50, unet, bert, densenet121   of the zoo
resnet_deep                         bottleneck stages of 3, 8, 18 and 3 blocks
inception                           blocks of 1x1, 5x5, two 3x3 and pooled branches, after Inception-V3
swin                                windows of attention that shift, of Hugging Face's configuration
bilstm                              a bidirectional LSTM, unrolled cell by cell
tree_lstm                           another random tree in every step
supernet                            every layer draws its op in every step
llama_lengths                       sequences of another length in every step
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo import Scale, build
from benchmarks.zoo.losses import CrossEntropy, images
from benchmarks.zoo.resnet import Bottleneck, ResNet
from benchmarks.zoo.tree_lstm import random_merges

Batch = tuple[Tensor, ...]
Draw = Callable[[], Batch]


@dataclass(frozen=True, slots=True)
class Trained:
    """A net in training mode and what gives it the next batch; ``model(*batch())`` is the loss."""

    model: nn.Module
    batch: Draw


class _Conv(nn.Sequential):
    def __init__(self, width_in: int, width: int, size: int | tuple[int, int], stride: int = 1) -> None:
        height, breadth = (size, size) if isinstance(size, int) else size
        super().__init__(
            nn.Conv2d(width_in, width, (height, breadth), stride, (height // 2, breadth // 2), bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )


class _Branches(nn.Module):
    def __init__(self, width_in: int, width: int, *, long: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            (
                _Conv(width_in, width, 1),
                nn.Sequential(
                    _Conv(width_in, width, 1),
                    _Conv(width, width, (1, long)),
                    _Conv(width, width, (long, 1)),
                ),
                nn.Sequential(
                    _Conv(width_in, width, 1),
                    _Conv(width, width, 3),
                    _Conv(width, width, 3),
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), _Conv(width_in, width, 1)),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _Narrower(nn.Module):
    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.conv = _Conv(width_in, width, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.conv(x), functional.max_pool2d(x, 3, 2, 1)), 1)


class Inception(nn.Module):
    """Stem, three stages of blocks whose branches are concatenated, average, dropout, linear head."""

    def __init__(self, width: int, depths: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_Conv(3, width, 3, 2), _Conv(width, 2 * width, 3)]
        width_in = 2 * width
        for stage, depth in enumerate(depths):
            for _ in range(depth):
                layers.append(_Branches(width_in, width << stage, long=5 if stage == 0 else 7))
                width_in = 4 * (width << stage)
            if stage < 2:
                layers.append(_Narrower(width_in, width_in // 2))
                width_in += width_in // 2
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width_in, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        features = functional.dropout(self.layers(x).mean((2, 3)), 0.2, training=self.training)
        return self.head(features)  # type: ignore[no-any-return]


class _SwinLoss(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        from transformers import SwinConfig, SwinForImageClassification

        depths, width, size = ([2, 2, 4], 48, 112) if scale == "bench" else ([2, 2], 8, 32)
        config = SwinConfig(
            image_size=size,
            patch_size=4,
            embed_dim=width,
            depths=depths,
            num_heads=[2, 4, 8][: len(depths)],
            window_size=7 if scale == "bench" else 4,
            drop_path_rate=0.1,
            hidden_dropout_prob=0.1,
        )
        config.num_labels = 10
        self.net: nn.Module = SwinForImageClassification(config)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.net(pixel_values=x, labels=target).loss
        return loss


class BiLstm(nn.Module):
    """Cells from the left and from the right, one call each, and a linear head over both."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.left, self.right = nn.LSTMCell(width, width), nn.LSTMCell(width, width)
        self.head = nn.Linear(2 * width, num_classes)

    def _run(self, cell: nn.LSTMCell, steps: list[Tensor]) -> list[Tensor]:
        found, state = list[Tensor](), None
        for x in steps:
            state = cell(x, state)
            found.append(state[0])
        return found

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        steps = list(x.unbind(0))
        forth, back = self._run(self.left, steps), self._run(self.right, steps[::-1])[::-1]
        both = torch.stack([torch.cat(pair, -1) for pair in zip(forth, back, strict=True)])
        both = functional.dropout(both, 0.1, training=self.training)
        return functional.cross_entropy(self.head(both).flatten(0, 1), target.flatten())


class SuperNet(nn.Module):
    """Layers that draw one of four ops each time, as one-shot architecture search does."""

    def __init__(self, width: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.stem = _Conv(3, width, 3)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                (
                    _Conv(width, width, 3),
                    _Conv(width, width, 1),
                    nn.Sequential(_Conv(width, 2 * width, 1), _Conv(2 * width, width, 3)),
                    nn.Identity(),
                )
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            ops = layer if isinstance(layer, nn.ModuleList) else nn.ModuleList()
            x = x + ops[int(torch.randint(len(ops), ()))](x)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def _of_zoo(name: str) -> Callable[[Scale], Trained]:
    def make(scale: Scale) -> Trained:
        case = build(name, scale=scale)
        return Trained(case.model, lambda: case.inputs)

    return make


def _fixed(model: nn.Module, batch: Batch) -> Trained:
    return Trained(model.train(), lambda: batch)


def _deep(scale: Scale) -> Trained:
    depths, width, size = ((3, 8, 18, 3), 32, 64) if scale == "bench" else ((1, 2, 2, 1), 8, 32)
    return _fixed(CrossEntropy(ResNet(Bottleneck, depths, width, num_classes=10)), images(4, size, 10))


def _inception(scale: Scale) -> Trained:
    width, depths, size = (32, (2, 3, 2), 96) if scale == "bench" else (4, (1, 1, 1), 32)
    return _fixed(CrossEntropy(Inception(width, depths, 10)), images(4, size, 10))


def _swin(scale: Scale) -> Trained:
    return _fixed(_SwinLoss(scale), images(4 if scale == "bench" else 2, 112 if scale == "bench" else 32, 10))


def _bilstm(scale: Scale) -> Trained:
    steps, batch, width = (64, 32, 192) if scale == "bench" else (8, 2, 16)
    data = torch.randn(steps, batch, width), torch.randint(10, (steps, batch))
    return _fixed(BiLstm(width, 10), data)


def _trees(scale: Scale) -> Trained:
    case = build("tree_lstm", scale=scale)
    leaves, _, target = case.inputs
    return Trained(case.model, lambda: (leaves, random_merges(len(leaves)), target))


def _supernet(scale: Scale) -> Trained:
    width, depth, size = (32, 16, 48) if scale == "bench" else (8, 5, 16)
    return _fixed(CrossEntropy(SuperNet(width, depth, 10)), images(8, size, 10))


def _lengths(scale: Scale) -> Trained:
    case = build("llama", scale=scale)
    ids, labels = case.inputs

    def batch() -> Batch:
        length = int(torch.randint(ids.shape[1] // 2, ids.shape[1] + 1, ()))
        return ids[:, :length], labels[:, :length]

    return Trained(case.model, batch)


NETS: Final[dict[str, Callable[[Scale], Trained]]] = {
    "resnet50": _of_zoo("resnet50"),
    "inception": _inception,
    "unet": _of_zoo("unet"),
    "bert": _of_zoo("bert"),
    "swin": _swin,
    "bilstm": _bilstm,
    "densenet121": _of_zoo("densenet121"),
    "resnet_deep": _deep,
    "tree_lstm": _trees,
    "supernet": _supernet,
    "llama_lengths": _lengths,
}
"""By name, in the order of tables."""


def trained(name: str, scale: Scale) -> Trained:
    """Build one of `NETS`, or any net of the zoo, from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETS.get(name, _of_zoo(name))(scale)
