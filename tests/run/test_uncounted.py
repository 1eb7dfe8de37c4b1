"""Tensors that the allocator did not serve count from the time when they exist."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tightrope
from tightrope.native import compiler
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.uncounted import UncountedTensors, uncounted_bytes

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
MiB = 1 << 20


def foreign(size: int) -> torch.Tensor:
    """A tensor whose memory numpy made, as unknown to the allocator as one that is older than it."""
    return torch.from_numpy(np.full(size // 4, 0.5, dtype=np.float32))


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def observed(step_one: object) -> int:
    return tightrope.report(step_one).observed_total  # type: ignore[arg-type]


def test_batches_made_before_compile_count_in_the_first_step() -> None:
    batches = [foreign(4 * MiB).view(-1, 256) for _ in range(4)]
    model = tightrope.compile(net(), budget="64MiB", progress=False)
    totals = []
    for batch in batches:
        model(batch).sum().backward()
        model.zero_grad()
        totals.append(observed(model))
    assert totals[0] > 16 * MiB
    assert max(totals) == totals[0], "what is passed in later is no news"


def test_a_budget_never_holds_more_than_it_is_by_its_own_report() -> None:
    batches = [foreign(4 * MiB).view(-1, 256) for _ in range(4)]
    model = tightrope.compile(net(), budget=accounts().charged() + 22 * MiB, progress=False)
    with pytest.raises(tightrope.InfeasibleError, match="asked"):
        model(batches[0]).sum().backward()
    batches.clear()
    gc.collect()
    model(foreign(4 * MiB).view(-1, 256)).sum().backward()
    report = tightrope.report(model)
    assert report.observed_total <= report.budget


def test_a_step_counts_what_lives_when_it_is_made() -> None:
    batch, later = foreign(4 * MiB).view(-1, 256), foreign(8 * MiB)
    model = net()
    train = tightrope.step(lambda x: model(x).sum(), model=model, budget="64MiB", progress=False)
    train(batch)
    assert observed(train) > 12 * MiB
    assert later.numel()


def test_what_is_made_between_compile_and_the_first_call_counts_too() -> None:
    model = tightrope.compile(net(), budget="64MiB", progress=False)
    batch, other = foreign(1 * MiB).view(-1, 256), foreign(8 * MiB)
    model(batch).sum().backward()
    assert observed(model) > 9 * MiB
    assert other.numel()


def test_a_mapped_file_counts_only_where_a_step_gets_it(tmp_path: Path) -> None:
    np.zeros(2 * MiB, dtype=np.float32).tofile(tmp_path / "data")
    mapped = torch.from_numpy(np.memmap(tmp_path / "data", dtype=np.float32, mode="r+"))
    before = accounts().older
    without = uncounted_bytes(accounts().allocator.owns)  # type: ignore[union-attr]
    accounts().search()
    assert accounts().older == before
    accounts().note_tensors([mapped])
    assert accounts().older - before == 8 * MiB
    del mapped
    assert uncounted_bytes(accounts().allocator.owns) == without  # type: ignore[union-attr]
    assert accounts().older == before


def test_the_sum_follows_many_that_go_and_is_never_too_small() -> None:
    older = UncountedTensors(lambda address: False)
    many = [torch.ones(16) for _ in range(3000)]
    older.note(many)
    assert older.bytes == 3000 * 64
    del many[100:]
    for _ in range(4):
        assert older.bytes >= 100 * 64
    assert older.bytes == 100 * 64
    older.note(many[:50])
    assert older.bytes == 100 * 64
