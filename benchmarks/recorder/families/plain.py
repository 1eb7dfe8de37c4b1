"""Nets of torch's own classes alone, whose children run in a known order: names alone can prove these."""

import random
from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from benchmarks.recorder.families.case import Case, numbers

_WIDTH: Final = 12
_LAYERS: Final[tuple[Callable[[], nn.Module], ...]] = (
    lambda: nn.Linear(_WIDTH, _WIDTH),
    lambda: nn.LayerNorm(_WIDTH),
    lambda: nn.RMSNorm(_WIDTH),
    nn.ReLU,
    nn.GELU,
    nn.Softplus,
    nn.Hardswish,
    lambda: nn.Softmax(-1),
    lambda: nn.Dropout(0.1),
    nn.Identity,
)


def _sequence(rng: random.Random, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(rng.randint(2, 5)):
        if depth and rng.random() < 0.3:
            layers.append(_sequence(rng, depth - 1))
        elif rng.random() < 0.15:
            layers.append(_attending(rng))
        elif layers and rng.random() < 0.08:
            layers.append(rng.choice(layers))  # one module, twice
        else:
            layers.append(rng.choice(_LAYERS)())
    return nn.Sequential(*layers)


def _attending(rng: random.Random) -> nn.Module:
    first = rng.random() < 0.5
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True, norm_first=first)
    if rng.random() < 0.5:
        return layer
    norm = nn.LayerNorm(_WIDTH) if rng.random() < 0.5 else None
    return nn.TransformerEncoder(layer, rng.randint(1, 2), norm, enable_nested_tensor=False)


def plain(rng: random.Random) -> Case:
    """Sequences in sequences, and torch's encoders between their layers."""
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), _sequence(rng, 2), nn.Linear(_WIDTH, 2))
    return numbers(model, (torch.randn(3, 5, _WIDTH),), rng)
