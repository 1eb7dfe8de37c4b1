"""Plans that page, executed: bits, bytes, order, and what happens when the disk fails."""

import errno
import functools
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightrope
from tests.run.training import budget_for, built, digest, play
from tightrope.core import Machine, PageIn, PagingError, Tier, TightropeError
from tightrope.native.build import compiler
from tightrope.plan.paging.search import PagingKnobs
from tightrope.run.compile import compiled_of
from tightrope.run.execute import page_file
from tightrope.run.execute.contest import STEPS
from tightrope.run.ledger.accounts import accounts

pytestmark = pytest.mark.skipif(compiler() is None, reason="nothing is enforced without a compiler")


@functools.cache
def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 8192 * 64).reshape(8192, 64).sin()


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Budgets of other tests leave no room for what this module keeps."""
    yield
    batch.cache_clear()


def deep() -> nn.Module:
    """24 activations of 2 MiB that the backward reads, two or three at a time."""
    layers = [module for _ in range(12) for module in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 4))


def dropping() -> nn.Module:
    layers = [module for _ in range(8) for module in (nn.Linear(64, 64), nn.Dropout(0.3), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(64, 4))


def fast(holds: int) -> Machine:
    """A profile on which every page pays."""
    return Machine("fast disk", (Tier("dram", 2**40), Tier("file", holds, 4096, read=1e12, write=1e12)))


def loop(model: Any, seen: Any) -> None:
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(batch()).square().mean()
        loss.backward()
        seen(loss)
        seen.gradients(model)
        update.step()
        update.zero_grad()


def paging(
    build: Callable[[], nn.Module],
    folder: Path,
    *,
    beside: int = 0,
    recompute: bool = False,
    holds: int = 2**30,
    contest: bool = False,
) -> nn.Module:
    """Compile a model to page on a disk that costs nothing, by default without recomputing anything."""
    model = built(build)
    budget = budget_for(model, (batch(),), share=0.03) + 2**20 + 4096 + beside  # the staging buffer
    tightrope.compile(model, budget=budget, page_to=folder, machine=fast(holds))
    pages = compiled_of(model).settings.pages
    assert pages is not None
    pages.knobs, pages.contest = PagingKnobs(recompute=recompute, moves=5_000), contest
    return model


def plan_of(model: nn.Module) -> tightrope.Plan:
    ((_, plan),) = tightrope.report(model).planned
    return plan


def num_pages(model: nn.Module) -> int:
    return sum(isinstance(step, PageIn) for step in plan_of(model).schedule.steps)


@pytest.mark.few(1)
@pytest.mark.parametrize("build", [deep, dropping])
def test_a_step_that_pages_has_the_bits_of_eager_within_its_budget(
    build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    expected = play(built(build), loop)
    gc.collect()
    others = max(0, accounts().charged() - batch().nbytes)
    model = paging(build, tmp_path)
    assert play(model, loop) == expected
    report = tightrope.report(model)
    assert num_pages(model) >= 3
    assert report.observed_peak == report.forecast_peak
    assert report.observed_total <= report.budget
    assert build is not deep or 24 * batch().nbytes > 3 * (report.budget - others)
    assert report.divergences == 0
    assert list(tmp_path.iterdir()) == []
    pages = compiled_of(model).settings.pages
    assert pages is not None
    assert (pages.file.bytes,) == plan_of(model).forecast.tiers


def state(model: nn.Module, update: torch.optim.Optimizer) -> list[str]:
    held = [value for row in update.state.values() for value in row.values()]
    return [digest(tensor) for tensor in (*model.parameters(), *model.buffers(), *held)]


def full(number: int) -> Callable[..., int]:
    """Make a ``pwrite`` that finds the disk full at its ``number``-th call."""
    calls = iter(range(10**6))

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if next(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    return pwrite


def short(number: int) -> Callable[..., int]:
    calls = iter(range(10**6))
    return lambda fd, data, at: os.pwrite(fd, data[: -(next(calls) == number) * 512 or None], at)


def short_read(number: int) -> Callable[..., int]:
    calls = iter(range(10**6))
    return lambda fd, into, at: os.preadv(fd, [into[0][: -(next(calls) == number) * 512 or None]], at)


def flipped(number: int) -> Callable[..., int]:
    """Make a ``preadv`` that brings one bit back otherwise, somewhere in its ``number``-th page."""
    calls = iter(range(10**6))

    def preadv(fd: int, into: list[memoryview], offset: int) -> int:
        count = os.preadv(fd, into, offset)
        if next(calls) == number:
            into[0][number * 977 % 65536] ^= 1 << number % 8
        return count

    return preadv


@pytest.mark.slow
def test_after_every_fault_the_state_is_as_it_was_and_the_next_step_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(net: nn.Module, update: torch.optim.Optimizer) -> list[str]:
        loss = net(batch()).square().mean()
        update.zero_grad()
        loss.backward()
        update.step()
        return [digest(loss), *state(net, update)]

    def adam(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(net.parameters(), lr=0.01)

    plain = built(deep)
    update = adam(plain)
    expected = iter([step(plain, update) for _ in range(8)])
    model = paging(deep, tmp_path, beside=2**20)
    update = adam(model)

    def right_step() -> None:
        assert step(model, update) == next(expected)

    right_step()
    right_step()
    last = num_pages(model) - 1
    faults: list[tuple[str, Callable[..., int], str]] = [
        ("pwrite", full(0), "No space left"),
        ("pwrite", full(last), "No space left"),
        ("pwrite", short(1), "bytes of a page were written"),
        ("preadv", short_read(1), "bytes of a page were read"),
        ("preadv", flipped(0), "other bytes than were written"),
        ("preadv", flipped(last), "other bytes than were written"),
    ]
    for name, fault, message in faults:
        before = state(model, update)
        with monkeypatch.context() as patched:
            patched.setattr(page_file, name, fault)
            with pytest.raises(PagingError, match=message):
                step(model, update)
        gc.collect()
        assert state(model, update) == before, message
        right_step()
    assert tightrope.report(model).divergences == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_where_pages_are_slower_than_promised_steps_go_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        time.sleep(0.01)
        return os.preadv(fd, buffers, offset)

    monkeypatch.setattr(page_file, "preadv", slow)
    plain = built(deep)
    plain(batch()).square().mean().backward()
    expected = [digest(one.grad) for one in plain.parameters()]
    del plain
    gc.collect()
    model = paging(deep, tmp_path, recompute=True, contest=True)
    for number in range(STEPS + 1):
        model.zero_grad()
        model(batch()).square().mean().backward()
        assert [digest(one.grad) for one in model.parameters()] == expected, number
        if number == 0:
            assert num_pages(model) >= 3
    assert num_pages(model) == 0
    report = tightrope.report(model)
    assert report.why.startswith("not paged: slower, ")
    assert " a step with pages, " in report.why
    assert report.observed_total <= report.budget


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import sys, torch
        from tightrope.run.execute.page_file import PageFile
        pages = PageFile(sys.argv[1]).lease(64 << 20)
        data = torch.ones(64 << 20, dtype=torch.uint8)
        print("begins", flush=True)
        while True:
            pages.out(0, data.data_ptr(), 64 << 20, 0)
            pages.wait(0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        assert list(tmp_path.iterdir()) == []
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_wrong_folders_are_refused_by_name(tmp_path: Path) -> None:
    for folder, what in (
        (tmp_path / "none", "a folder that exists"),
        (7, "the path of a folder"),
        (Path("/dev/shm"), r"lies in memory \(tmpfs\)"),
    ):
        if isinstance(folder, Path) and str(folder) == "/dev/shm" and not folder.is_dir():
            continue
        with pytest.raises(TightropeError, match=f"page_to=.*{what}"):
            tightrope.compile(nn.Linear(4, 4), budget="1GiB", page_to=folder)  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="fused plans do not page"):
        tightrope.compile(nn.Linear(4, 4), budget="1GiB", page_to=tmp_path, fuse=True)


@pytest.mark.slow
def test_what_the_slower_tier_may_hold_is_a_limit(tmp_path: Path) -> None:
    model = paging(deep, tmp_path, recompute=True, holds=2**23)
    model(batch()).square().mean().backward()
    assert 0 < sum(plan_of(model).forecast.tiers) <= 2**23
    report = tightrope.report(model)
    assert "paged" in str(report)
    assert "paged out and brought back" in plan_of(model).explain()
    assert "page in" in report.html()
    with pytest.raises(TightropeError, match="a step that pages cannot be saved"):
        tightrope.save(model, tmp_path / "step", (batch(),))


@pytest.mark.slow
def test_a_caller_that_does_something_else_than_planned_gets_the_same_bits(tmp_path: Path) -> None:
    def twice(model: Any, seen: Any) -> None:
        for _ in range(3):
            first, second = model(batch()), model(batch() + 1)
            (first.sum() * 2).backward()
            second.square().mean().backward()
            seen(first, second)
            seen.gradients(model)
        loss = model(batch()).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        seen.gradients(model)

    expected = play(built(dropping), twice)
    model = paging(dropping, tmp_path, beside=2**25)
    assert play(model, twice) == expected
    report = tightrope.report(model)
    assert report.observed_total <= report.budget
