"""The witness counts what is known to the byte, and budgets hold against what it counts."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.witness.families import FAMILIES
from benchmarks.witness.fresh import Asked, Figures
from benchmarks.witness.main import ALLOWED, Ask, answer, server
from tightrope.native.build import compiler

pytestmark = pytest.mark.skipif(
    compiler() is None or sys.platform != "linux", reason="needs a C++ compiler, and Linux"
)
NUMBERS = 4_000_000
"""Bytes of the numbers that the family ``topk`` takes; its kernel takes four times as many."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    with server(Path(tmp_path_factory.mktemp("witness"))) as process:
        yield lambda case: answer(process, case)


@pytest.fixture(scope="module")
def eager(ask: Ask) -> Figures:
    return ask(Asked("topk"))


def test_there_are_at_least_thirty_families() -> None:
    assert len(FAMILIES) >= 30


@pytest.mark.slow
def test_eager_takes_three_copies_and_what_topk_takes(eager: Figures) -> None:
    assert not eager.failed
    assert eager.said == 0
    wanted = 3 * NUMBERS + 4 * NUMBERS  # the numbers, scaled and sines beside the kernel
    assert wanted <= eager.true <= wanted + 16_384


@pytest.mark.slow
def test_an_accepted_budget_holds_true_bytes(ask: Ask, eager: Figures) -> None:
    budget = 2 * eager.true
    found = ask(Asked("topk", budget))
    assert not found.failed
    assert not found.refused
    assert found.hidden == 4 * NUMBERS
    assert found.true <= budget + ALLOWED
    assert abs(found.true - found.said) <= ALLOWED
    assert found.bits == eager.bits


@pytest.mark.slow
def test_a_budget_with_room_for_all_but_hidden_bytes_is_refused_and_the_named_one_holds(
    ask: Ask, eager: Figures
) -> None:
    refused = ask(Asked("topk", 5 * NUMBERS))
    assert refused.refused
    assert refused.named > 5 * NUMBERS
    found = ask(Asked("topk", refused.named))
    assert not found.refused
    assert found.true <= refused.named + ALLOWED
    assert found.bits == eager.bits
