"""A model that nobody holds any more does not hold the process to its budget."""

import gc

import pytest
import torch
from torch import nn

import tightrope
from tightrope.native.build import compiler
from tightrope.run.ledger.accounts import accounts

enforced = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def _trained() -> int:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    budget = accounts().held() + (1 << 20)
    model = tightrope.compile(model, budget=budget, progress=False)
    for _ in range(2):
        model(torch.randn(32, 64)).square().mean().backward()
    return budget


@enforced
def test_memory_is_there_once_the_model_is_gone() -> None:
    gc.collect()  # what earlier tests left
    more = _trained() + (8 << 20)
    assert torch.empty(more, dtype=torch.uint8).numel() == more
