"""The peers of the placement benchmark are what they claim to be."""

import random

import pytest

from benchmarks.placement import peers
from benchmarks.placement.generators import perfect, training_step
from benchmarks.placement.main import run
from tightrope.place import Interval, place


def load(buffers: list[Interval]) -> int:
    return max(sum(s for s, a, e in buffers if a <= now < e) for _, now, _ in buffers)


@pytest.mark.parametrize("seed", range(5))
def test_heuristics_lie_between_the_load_and_no_reuse_at_all(seed: int) -> None:
    draw = random.Random(seed)
    buffers = [
        (64 * draw.randint(1, 9), at := draw.randrange(20), at + draw.randint(1, 6)) for _ in range(40)
    ]
    fit, portfolio = peers.first_fit_decreasing(buffers), peers.somas(buffers)
    assert load(buffers) <= portfolio <= fit <= sum(size for size, _, _ in buffers)


def test_first_fit_and_best_fit_differ_where_they_should() -> None:
    buffers = [(4, 0, 9), (3, 0, 2), (2, 3, 9), (2, 1, 4)]
    assert peers.first_fit_decreasing(buffers) == 9


def test_the_caching_allocator_rounds_splits_and_keeps() -> None:
    small, large = 2**21, 20 * 2**20
    assert peers.caching_allocator([(100, 0, 1)]) == small
    assert peers.caching_allocator([(100, 0, 1), (2**20 + 1, 0, 1)]) == small + large
    assert peers.caching_allocator([(11 * 2**20 + 1, 0, 1)]) == 12 * 2**20
    assert peers.caching_allocator([(2**21 * 6, 0, 1), (2**21 * 6, 1, 2)]) == 2**21 * 6
    freed_and_split = [(512, 0, 1)] * 4096 + [(512, 1, 2)] * 4096
    assert peers.caching_allocator(freed_and_split) == small


def test_cp_sat_proves_a_small_optimum() -> None:
    buffers = [(9, 5, 6), (1, 0, 3), (12, 0, 1), (5, 1, 2), (4, 2, 6), (7, 1, 5), (4, 3, 4)]
    assert peers.cp_sat(buffers, seconds=10) == (place(buffers).peak, True)


def test_generators_keep_their_promises() -> None:
    cuts = perfect(60, 3)
    assert len(cuts) == 60
    assert load(cuts) == 100_000
    assert training_step(300, recompute=True, seed=1) == training_step(300, recompute=True, seed=1)


def test_unknown_questions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    assert run(["--only", "F99"], Console()) == 2
    assert "unknown: F99" in capsys.readouterr().out
