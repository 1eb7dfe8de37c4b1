"""A fused plan and the same one op by op take turns; what was faster goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

from tightrope.core import Forecast, format_time
from tightrope.price import Paced
from tightrope.run.execute.contest import FUSED, PAGED, STEPS, Contest, TwoForms
from tightrope.run.execute.prepared import Proof


def form(ns: int) -> Any:
    """Stands for a plan made ready whose steps take so long."""
    times = Paced("0" * 64, Forecast(0, 0, 0, ns=1, base_ns=1), plain=False)
    return SimpleNamespace(times=times, proof=Proof("", "", 0.0, 0.0), ns=ns, checked=False)


def run(prepared: Any, *, first: int = 0) -> None:
    """Run a step; the very first is checked and not timed, and ``first`` is how much longer others take."""
    if prepared.checked:
        prepared.times.ran(prepared.ns + first, prepared.ns)
    prepared.checked = True


@pytest.mark.parametrize(
    ("forms", "fused_ns", "plain_ns", "short"),
    [
        (FUSED, 100, 90, "not fused: slower"),
        (FUSED, 999, 1000, ""),
        (FUSED, 1000, 1000, ""),
        (PAGED, 1001, 1000, "not paged: slower"),
        (PAGED, 1000, 1000, "not paged: not 1% faster"),
        (PAGED, 995, 1000, "not paged: not 1% faster"),
        (PAGED, 990, 1000, ""),
    ],
)
def test_the_faster_form_goes_on(forms: TwoForms, fused_ns: int, plain_ns: int, short: str) -> None:
    fused, plain = form(fused_ns), form(plain_ns)
    contest = Contest(fused, lambda: plain, forms)
    before, order = fused, []
    run(fused)
    for _ in range(STEPS - 1):
        now: Any = contest.next(lambda _: True)
        run(now, first=0 if now is before else -50)  # the step behind a change of turns says nothing
        order.append(now is fused)
        before = now
    assert order[:4] == [True] * 4
    assert order.count(False) >= 12
    best: Any = plain if short else fused
    assert {id(contest.next(lambda _: True)) for _ in range(3)} == {id(best)}
    said = f"{format_time(fused_ns)} a step {forms.first}, {format_time(plain_ns)} {forms.other}, in turns"
    assert fused.proof.contest == said
    if short:
        assert plain.proof.lost == f"{short}, {said}"
    assert said in str(fused.proof)


def test_the_other_form_is_made_once_it_is_its_turn() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(form(1))
        return made[-1]

    fused = form(2)
    contest = Contest(fused, make)
    for _ in range(5):
        run(contest.next(lambda _: True))
        assert not made
    assert contest.next(lambda _: True) is made[0]
    assert "until it is known which goes on" in made[0].proof.lost


def test_without_room_for_the_other_form_the_fused_one_runs() -> None:
    fused = form(2)
    contest = Contest(fused, lambda: form(1))
    for _ in range(2 * STEPS):
        now: Any = contest.next(lambda _: False)
        assert now is fused
        run(now)


def test_steps_that_are_not_timed_change_no_turn() -> None:
    fused = form(2)
    contest = Contest(fused, lambda: form(1))
    assert all(contest.next(lambda _: True) is fused for _ in range(2 * STEPS))
