"""Plans that page, executed: bits, bytes, order, and what happens when the disk fails."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from tests.run.training import budget_for, built, play
from tightrope.core import InfeasibleError, Machine, PageIn, PagingError, Tier, TightropeError
from tightrope.native.build import compiler
from tightrope.plan.paging.search import PagingKnobs
from tightrope.run import page_file
from tightrope.run.accounts import accounts
from tightrope.run.compile import compiled_of
from tightrope.run.paging import Paging

pytestmark = pytest.mark.skipif(compiler() is None, reason="nothing is enforced without a compiler")

X = torch.linspace(-1, 1, 512 * 64).reshape(512, 64).sin()


def deep() -> nn.Module:
    """24 activations of 128 KiB in the forward, of which a backward needs two at a time."""
    layers = [module for _ in range(12) for module in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers)


def dropping() -> nn.Module:
    layers = [module for _ in range(8) for module in (nn.Linear(64, 64), nn.Dropout(0.3), nn.Tanh())]
    return nn.Sequential(*layers)


def fast() -> Machine:
    """A profile on which every page pays."""
    return Machine("fast disk", (Tier("dram", 2**40), Tier("file", 2**30, 4096, read=1e12, write=1e12)))


def loop(model: Any, seen: Any) -> None:
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(X).square().mean()
        loss.backward()
        seen(loss)
        seen.gradients(model)
        update.step()
        update.zero_grad()


def paging(
    build: Callable[[], nn.Module], folder: Path, *, share: float = 0.1, recompute: bool = False
) -> nn.Module:
    """Compile a model to page on a disk that costs nothing, by default without recomputation."""
    model = built(build)
    budget = budget_for(model, (X,), share=share) + 2**20 + 4096  # the staging buffer
    tightrope.compile(model, budget=budget, page_to=folder, machine=fast())
    pages = compiled_of(model).settings.pages
    assert pages is not None
    pages.knobs = PagingKnobs(recompute=recompute, moves=20_000)
    return model


def plan_of(model: nn.Module) -> tightrope.Plan:
    ((_, plan),) = tightrope.report(model).planned
    return plan


def num_pages(model: nn.Module) -> int:
    return sum(isinstance(step, PageIn) for step in plan_of(model).schedule.steps)


@pytest.mark.parametrize("build", [deep, dropping])
def test_a_step_that_pages_has_the_bits_of_eager_within_its_budget(
    build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    expected = play(built(build), loop)
    model = paging(build, tmp_path)
    assert play(model, loop) == expected
    report = tightrope.report(model)
    assert num_pages(model) >= 3
    assert report.observed_peak == report.forecast_peak
    assert report.observed_total <= report.budget
    assert report.divergences == 0
    assert list(tmp_path.iterdir()) == []
    pages = compiled_of(model).settings.pages
    assert pages is not None
    assert (pages.file.bytes,) == plan_of(model).forecast.tiers
