"""A step may run a plan that an earlier process made, once it was judged."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import tightrope
from tightrope.core.codec import dump_plan, load_plan


def losses(budget: str) -> tuple[list[float], str]:
    """Train a fresh model of the same shapes for two steps; its losses and the report."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    model = tightrope.compile(nn.Sequential(*layers), budget=budget, progress=False)
    found = []
    for _ in range(2):
        model.zero_grad()
        loss = model(torch.ones(4096, 64)).square().mean()
        loss.backward()
        found.append(loss.item())
    return found, str(tightrope.report(model))


def test_a_plan_of_an_earlier_process_is_judged_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_PLANS", str(tmp_path))
    first, _ = losses("75%")
    files = list(tmp_path.rglob("auto-*.json"))
    assert files
    for file in files:
        plan = load_plan(file.read_bytes())
        file.write_bytes(dump_plan(msgspec.structs.replace(plan, offsets=(0,) * len(plan.offsets))))
    with pytest.warns(UserWarning, match="of no use and was deleted"):
        again, said = losses("75%")
    assert again == first
    assert "judged at" in said
