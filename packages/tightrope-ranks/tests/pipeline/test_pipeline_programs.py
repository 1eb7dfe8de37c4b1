"""Programs of many kinds on real ranks: tied, frozen, accumulated, evaluated, with partial batches."""

from typing import Any

import numpy as np
import programs
import pytest
import torch

import tightrope
from tightrope_ranks import run_ranks
from tightrope_ranks.values.ranks import JointPlan


def near(one: Any, two: Any) -> bool:
    return bool(np.abs(one - two).max() <= 1e-4 * max(1.0, np.abs(two).max()))


def same(one: Any, two: Any) -> bool:
    return (one is None) == (two is None) and (one is None or np.array_equal(one, two))


def check(program: programs.Program, made: Any, ranks: list[list[programs.Seen]]) -> None:
    """Compare with one process: to the bit, and within rounding where a parameter is really shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as ranks have: several add up in another order
    bits = programs.alone(program, made, apart=True)
    tied = programs.alone(program, made, apart=False)
    torch.set_num_threads(threads)
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


WRONG = programs.Program(7, 2, 1, 2, ("mix", "linear", "mix"), (), frozenset(), ())


def ran(count: int) -> tuple[list[tuple[programs.Program, JointPlan]], list[Any]]:
    seeds = [*range(count - 1), 56]  # 56: frozen stages that follow each other on one rank
    some = [programs.generated(seed, 2 + (seed % 3 == 0)) for seed in seeds]
    given = [(program, programs.planned(program)) for program in some]
    wrong = [(WRONG, programs.planned(WRONG))]
    return given, run_ranks(programs.both, 3, given, wrong, seconds=1200.0, silence=120.0)


@pytest.fixture(scope="module")
def eight() -> Any:
    return ran(8)


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 200])
def test_generated_programs_give_the_bits_of_one_process_or_are_refused_by_all(
    count: int, eight: Any
) -> None:
    given, found = eight if count == 8 else ran(count)
    assert any(made.work.ties for _, made in given)
    assert any(made.work.frozen for _, made in given)
    calls = {call for one, _ in given for call in one.calls}
    assert calls >= {"step", "evaluate", "partial", "update", "zero"}
    for number, (program, made) in enumerate(given):
        check(program, made, [rank[0][number] for rank in found[: program.ranks]])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "rows of the input",
            "rank 0: the input has shape (3, 6); 2 micro-batches of the planned (2, 6) make",
        ),
        ("rows of the target", "rank 1: the target has shape (3, 6)"),
        ("width", "rank 0: the input has shape (4, 5)"),
        ("no input", "rank 0: no input was given"),
        ("no target", "rank 1: no target was given"),
        ("no loss", "rank 1: no loss was given"),
        ("two calls", "some ranks call step, others evaluate"),
        ("no rows", "rank 0: the input has shape (0, 6); give 1 row or more"),
        ("no rows of the target", "rank 1: the target has shape (0, 6); give 1 row or more"),
        ("nothing to evaluate", "rank 0: no input was given"),
        *(
            (f"{what}, {call}", said)
            for call in ("step", "evaluate")
            for what, said in (
                ("dtype of the input", "rank 0: the input is float64, planned was float32"),
                ("dtype of the target", "rank 1: the target is int64, planned was float32"),
                ("a list", "rank 0: the input is of type list"),
                ("a word", "rank 1: the target is of type str"),
            )
        ),
        ("other rows", "the input has 4 rows, the target 3"),
    ],
)
def test_what_one_rank_cannot_do_all_refuse_in_the_same_words(what: str, said: str, eight: Any) -> None:
    one, other = (rank[1][what] for rank in eight[1][:2])
    assert one == other
    assert one.startswith("TightropeError: ")
    assert said in one


def test_other_ranks_need_no_loss_and_evaluation_takes_any_number_of_rows(eight: Any) -> None:
    for what, number in (("loss of the last stage", WRONG.micro), ("few rows", 1)):
        assert [rank[1][what] for rank in eight[1][:2]] == ["done: 0", f"done: {number}"]


def test_above_the_limit_the_error_is_that_of_torch_and_of_the_budget(eight: Any) -> None:
    assert issubclass(tightrope.OutOfBudgetError, torch.OutOfMemoryError)
    for rank in eight[1][:2]:
        assert rank[1]["limit"].startswith("OutOfBudgetError: ")
        assert rank[1]["behind the limit"] == "done: 2"
