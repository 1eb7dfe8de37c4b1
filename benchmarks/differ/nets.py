"""Pipelines of the bars, as a user writes them: preprocessing by Pillow, a small net, trained in a minute."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SIZE = 64


def preprocess(path: str) -> Tensor:
    """Resize, and scale to about -2 to 2."""
    image = Image.open(path).convert("RGB")
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32) / 255
    pixels = (pixels - np.float32(0.5)) / np.float32(0.25)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _layer(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def pooled() -> nn.Module:
    """A stem with pooling as in ResNet."""
    return nn.Sequential(
        *_layer(3, 16, 2), nn.MaxPool2d(3, 2, 1), *_layer(16, 32), *_layer(32, 48, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip


def wide() -> nn.Module:
    """Another stem, and two poolings."""
    return nn.Sequential(
        *_layer(3, 24, 2), nn.MaxPool2d(3, 2, 1), *_layer(24, 32), nn.MaxPool2d(3, 2, 1), *_layer(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def trained(make: Callable[[], nn.Module], folder: Path, *, epochs: int = 14, seed: int = 0) -> nn.Module:
    """Train a net on the pictures of a folder."""
    torch.manual_seed(seed)
    classes = sorted(os.listdir(folder))
    files = [(file, at) for at, name in enumerate(classes) for file in sorted((folder / name).iterdir())]
    inputs = torch.stack([preprocess(str(file)) for file, _ in files])
    labels = torch.tensor([label for _, label in files])
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=1e-2)
    steps = epochs * (len(files) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=steps)
    for step in range(steps):
        rows = torch.randint(len(files), (32,))
        batch = inputs[rows].flip(3) if step % 2 else inputs[rows]
        loss = nn.functional.cross_entropy(net(batch), labels[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    return net.eval()
