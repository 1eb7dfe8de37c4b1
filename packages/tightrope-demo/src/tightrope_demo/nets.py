"""The two networks of the demo and their real data: no downloads, random weights.

The text is the source of Python's own standard library; the images are scikit-learn's digits.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tightrope.core import TightropeError


@dataclass(frozen=True)
class DemoNet:
    """A model whose forward returns the loss, and an endless stream of batches for it."""

    name: str
    title: str
    model: nn.Module
    batches: Iterator[tuple[torch.Tensor, ...]]


class _Gpt2(nn.Module):
    """Character-level GPT-2 from a transformers config."""

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
        except ImportError as error:
            raise TightropeError("the GPT-2 demo needs transformers: pip install tightrope[demo].") from error
        config = GPT2Config(
            vocab_size=vocabulary, n_positions=length, n_embd=256, n_layer=4, n_head=4,
            bos_token_id=0, eos_token_id=0, use_cache=False,
        )  # fmt: skip
        self.net = GPT2LMHeadModel(config)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.net(input_ids=tokens).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        same = stride == 1 and inside == outside
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.skip(x))


class _ResNet(nn.Module):
    """ResNet-18 of a quarter of the width, for 32 x 32 images with one channel."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(1, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        inside = width
        for stage in range(4):
            for block in range(2):
                outside = width * 2**stage
                layers.append(_Block(inside, outside, 2 if stage and not block else 1))
                inside = outside
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(inside, classes)]
        self.net = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(images), labels)


def gpt2_job(*, seed: int = 0, batch: int = 2, length: int = 256) -> DemoNet:
    """Character-level GPT-2, 4 layers x 256, dropout on, on the standard library's source."""
    torch.manual_seed(seed)
    text = _library_text()
    alphabet = sorted(set(text))
    index = {character: position for position, character in enumerate(alphabet)}
    data = np.array([index[character] for character in text], dtype=np.int64)
    model = _Gpt2(max(len(alphabet), 64), length)

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        source = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(data) - length - 1, (batch, 1), generator=source).numpy()
            at = starts + np.arange(length)
            yield torch.from_numpy(data[at]), torch.from_numpy(data[at + 1])

    return DemoNet(
        "gpt2", f"GPT-2 4x256 on Python's standard library, {batch} x {length} characters", model, batches()
    )


def resnet_job(*, seed: int = 0, batch: int = 64) -> DemoNet:
    """ResNet-18 on scikit-learn's digits, scaled to 32 x 32."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise TightropeError("the ResNet demo needs scikit-learn: pip install tightrope[demo].") from error
    torch.manual_seed(seed)
    digits = load_digits()
    small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = nn.functional.interpolate(small, size=32, mode="bilinear", align_corners=False)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    model = _ResNet()

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        source = torch.Generator().manual_seed(seed)
        while True:
            chosen = torch.randint(len(images), (batch,), generator=source)
            yield images[chosen], labels[chosen]

    return DemoNet("resnet", f"ResNet-18 on scikit-learn's digits, batch {batch}", model, batches())


def _library_text(limit: int = 2_000_000) -> str:
    """Read the standard library's top-level modules, in name order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts, total = [], 0
    for file in sorted(folder.glob("*.py")):
        text = file.read_text(encoding="utf-8", errors="ignore")
        parts.append(text)
        total += len(text)
        if total >= limit:
            break
    text = "".join(parts)
    return "".join(character for character in text if character.isascii())[:limit]


JOBS = {"gpt2": gpt2_job, "resnet": resnet_job}
