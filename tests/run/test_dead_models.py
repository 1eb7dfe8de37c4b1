"""A model that nobody holds any more does not hold the process to its budget."""

import pytest
import torch
from torch import nn

import tightrope
from tightrope.native.build import compiler

enforced = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def _trained() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model = tightrope.compile(model, budget="1MiB", progress=False)
    for _ in range(2):
        model(torch.randn(32, 64)).square().mean().backward()


@enforced
def test_memory_is_there_once_the_model_is_gone() -> None:
    _trained()
    assert torch.empty(8 << 20, dtype=torch.uint8).numel() == 8 << 20
