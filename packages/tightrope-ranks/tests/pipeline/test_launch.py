"""Ranks that are started here return in order, and end together when one is killed."""

import atexit
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tightrope.core import RankError
from tightrope_ranks import run_ranks

SLOW_END = 300.0
"""Seconds that a rank takes to end after it answered: far more than the test may."""


def summed(rank: int, num_ranks: int, more: float) -> tuple[float, torch.Tensor]:
    value = torch.tensor(rank + more)
    dist.all_reduce(value)
    return float(value) + rank / num_ranks, torch.full((1000,), rank)


def killed(rank: int, num_ranks: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    atexit.register(time.sleep, SLOW_END)
    dist.all_reduce(torch.ones(1))


@pytest.mark.slow
def test_what_ranks_return_comes_in_order() -> None:
    (first, zeros), (second, ones) = run_ranks(summed, 2, 0.25)
    assert (first, second) == (1.5, 2.0)
    assert not zeros.any()
    assert bool((ones == 1).all())


@pytest.mark.slow
def test_a_killed_rank_and_what_it_causes_are_named_without_waiting_for_the_end_of_the_others() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=r"(?s)rank 0: ended with exit code -9; rank 1: .*Error: "):
        run_ranks(killed, 2, seconds=SLOW_END, silence=4.0)
    assert time.monotonic() - start < SLOW_END / 2


def hangs(rank: int, num_ranks: int) -> None:
    if rank == 0:
        raise ValueError("no such file")
    time.sleep(SLOW_END)


@pytest.mark.slow
def test_a_rank_that_hangs_is_not_waited_for_once_another_one_has_failed() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=r"(?s)rank 0: ValueError: no such file.*; rank 1: said nothing"):
        run_ranks(hangs, 2, seconds=SLOW_END, silence=2.0)
    assert time.monotonic() - start < SLOW_END / 2
