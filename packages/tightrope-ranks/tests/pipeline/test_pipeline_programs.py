"""Programs of many kinds on real ranks: tied, frozen, accumulated, evaluated, with partial batches."""

from typing import Any

import numpy as np
import programs
import pytest

from tightrope_ranks import run_ranks


def near(one: Any, two: Any) -> bool:
    return bool(np.abs(one - two).max() <= 1e-4 * max(1.0, np.abs(two).max()))


def same(one: Any, two: Any) -> bool:
    return (one is None) == (two is None) and (one is None or np.array_equal(one, two))


def check(program: programs.Program, made: Any, ranks: list[list[programs.Seen]]) -> None:
    """Compare with one process: to the bit, and within rounding where a parameter is really shared."""
    bits = programs.alone(program, made, apart=True)
    tied = programs.alone(program, made, apart=False)
    last = made.work.owners[-1]
    for call, (wanted, rough) in enumerate(zip(bits, tied, strict=True)):
        where = f"call {call} ({program.calls[call]}) of {program}"
        seen = {name: one for rank in ranks for name, one in rank[call].items()}
        for name in wanted.keys() - {"results"}:
            assert same(seen[name], wanted[name]), f"{name} after {where}"
            assert seen[name] is None or near(seen[name], rough[name]), f"{name} after {where}"
        results = ranks[last][call]["results"]
        assert len(results) == len(wanted["results"]), where
        assert all(map(same, results, wanted["results"])), where
        assert all(not rank[call]["results"] for k, rank in enumerate(ranks) if k != last), where
        said = {rank[call]["said"] for rank in ranks}
        assert len(said) == 1, where
        assert ("micro-batches" in said.pop()) == (program.calls[call] == "partial"), where


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_generated_programs_give_the_bits_of_one_process_or_are_refused_by_all(count: int) -> None:
    some = [programs.generated(seed, 2 + (seed % 3 == 0)) for seed in range(count)]
    given = [(program, programs.planned(program)) for program in some]
    assert any(made.work.ties for _, made in given)
    assert any(made.work.frozen for _, made in given)
    assert {call for one in some for call in one.calls} >= {"evaluate", "partial", "update", "zero"}
    found = run_ranks(programs.on_rank, 3, given, seconds=1200.0, silence=120.0)
    for number, (program, made) in enumerate(given):
        check(program, made, [rank[number] for rank in found[: program.ranks]])
