"""What refusals of `evict` advise, and which policies it takes."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import tightrope
from tightrope.core import TightropeError
from tightrope.run.evict.context import evict
from tightrope.run.evict.policies import COOP, POLICIES
from tightrope.run.ledger.accounts import accounts


def joined(rows: tuple[int, ...]) -> None:
    """Train on results of ops with two inputs: an op's inputs lie anywhere, and split the arena."""
    hidden = []
    for num in rows:
        weight = torch.ones(num, 64, requires_grad=True)
        one = (weight @ torch.eye(64)).tanh()
        hidden.append(torch.cat([one, one[: num // 3] * 2, one * 2]))
    sum(one.exp().sum() for one in hidden).backward()  # type: ignore[union-attr]


def refused(budget: int, rows: tuple[int, ...], policy: str = "coop") -> tuple[int, int, int] | None:
    """Tell after how many ops a budget is refused, the bytes of the request, and the budget to try."""
    eviction = evict(budget, policy=policy)
    try:
        with eviction:
            try:
                joined(rows)
            finally:
                num_ops = eviction.num_ops
    except tightrope.OutOfBudgetError as error:
        found = num_ops, error.asked, error.budget_to_try or 0
        said = str(error)
    else:
        return None
    assert found[2] > budget
    assert f"Try budget={found[2]} next" in said
    assert "it may take more" in said
    return found


@pytest.mark.parametrize("rows", [(150, 60, 179, 90, 179, 120), (40, 200, 30, 170), (20, 190, 60, 60, 130)])
@pytest.mark.parametrize("policy", ["coop", "dtr", "size"])
def test_a_budget_to_try_takes_the_request_that_inputs_split_the_arena_for(
    rows: tuple[int, ...], policy: str
) -> None:
    num_refused = 0
    for budget in (1000, *range(60_000, 180_000, 15_000)):
        found = refused(budget, rows, policy)
        while found is not None:
            num_refused += 1
            then = refused(found[2], rows, policy)
            assert then is None or then[:2] != found[:2], f"{found} is refused again: {then}"
            found = then
    assert num_refused >= 3


def test_the_end_of_a_block_names_a_budget_that_what_lives_on_fits_into() -> None:
    def job(budget: int) -> list[torch.Tensor]:
        with evict(budget):
            return [torch.rand(64, 64).sin() for _ in range(8)]

    with pytest.raises(tightrope.OutOfBudgetError, match="live on") as error:
        job(6 * 64 * 64 * 4)
    named = error.value.budget_to_try
    assert named == 8 * 64 * 64 * 4
    assert f"try budget={named}," in str(error.value)
    assert not hasattr(error.value, "smallest_found")
    assert len(job(named)) == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("neighbours", value) for value in (9, -1, 1.0, True)),
        *(("keep_temporaries", value) for value in (2, "no")),
        *(("flat", 5), ("window", None), ("score", 3), ("name", 3)),
        *((name, -1) for name in ("patience", "forecast_patience", "small_share", "small_limit")),
        *(("unheld", 0), ("copy_rate", 0), ("patience", 2**70), ("patience", "1")),
    ],
)
def test_a_policy_that_the_arena_does_not_know_is_refused(field: str, value: Any) -> None:
    with pytest.raises(TightropeError, match=re.escape(f"{field}={value!r}")):
        replace(COOP, **{field: value})
    assert all(replace(policy) == policy for policy in POLICIES.values())


def test_a_block_of_the_user_stays_in_its_budget_whatever_a_limit_leaves() -> None:
    """The budget of a model that lives is no reason to take more than the block was given."""
    outside = [torch.ones(256, 1024)]  # 1 MiB

    def hold() -> None:
        with evict(1 << 20):
            outside.clear()
            kept = [torch.ones(256, 512).numpy() for _ in range(3)]  # 512 KiB each that may not go
        del kept

    with (
        accounts().limited(accounts().charged() + (8 << 20)),
        pytest.raises(tightrope.OutOfBudgetError, match="evict was asked for 524288 bytes"),
    ):
        hold()


def test_the_number_that_an_op_is_given_does_not_divide_what_is_free() -> None:
    large = torch.ones(2272)  # 9,088 bytes; free are 9,216 in three holes
    with evict(4 * 1024 + 2 * 4096 + 1024):
        made = [torch.tensor([1.0] * size) for size in (256, 1024, 256, 256, 256, 1024, 256)]
        for one in made:
            one.neg_()
        del one, made[5], made[3], made[1]
        third = (large / 3.0)[0].item()
    assert third == large.new_tensor(1.0).div(3.0).item()
