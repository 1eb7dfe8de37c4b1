"""What the command line works on: `tightrope estimate examples/train.py:build`, and every other command."""

import torch
from torch import nn


def build() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    return nn.Sequential(nn.Embedding(1000, 256), *layers), torch.randint(1000, (16, 128))
