"""Digits, split once, and nets trained on them in float."""

from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.micro.digit_nets import NETS

_BATCH, _NUM_TEST, NUM_RANGES = 64, 540, 256


class Images(NamedTuple):
    """Images [n, 1, 8, 8] from 0 to 1, and their classes."""

    train: Tensor
    known: Tensor
    test: Tensor
    labels: Tensor


def images() -> Images:
    """The digits of scikit-learn, the last 540 of a drawn order kept for tests."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    pixels = torch.tensor(data.images[order] / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(data.target[order])
    return Images(pixels[:-_NUM_TEST], labels[:-_NUM_TEST], pixels[-_NUM_TEST:], labels[-_NUM_TEST:])


def trained(name: str, data: Images, *, epochs: int | None = None) -> nn.Module:
    """Train a net of `digit_nets.NETS` from a fixed seed."""
    make, default, rate = NETS[name]
    epochs = epochs or default
    torch.manual_seed(0)
    net = make()
    update = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.05)
    num = len(data.train) // _BATCH
    steps = torch.optim.lr_scheduler.OneCycleLR(update, 2 * rate, total_steps=epochs * num)
    for _ in range(epochs):
        for batch in torch.randperm(len(data.train))[: num * _BATCH].reshape(-1, _BATCH):
            loss = F.cross_entropy(net(data.train[batch]), data.known[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            update.step()
            steps.step()
            update.zero_grad()
    return net.eval().requires_grad_(False)


def top1(scores: Tensor, labels: Tensor) -> float:
    """Percent of rows whose largest score is that of the class."""
    return 100 * float((scores.argmax(1) == labels).double().mean())
