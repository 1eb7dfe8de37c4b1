"""No policy that does not know the ops to come recomputes at most what DTR and DTE do on every log.

    | t0 | t1 | hole | t2 | ... |      a request of the size of a t: the hole is half as large

So far every log is the same, and so is what any policy does. DTR lets t0 go alone, the oldest; DTE t1 alone,
as the hole beside it adds to its size. A policy has to let something go too, a set S that is not empty. The
log then goes on in one of n ways: everything is released but one t, and that is read.

    S holds a t that is not t0    the log that reads it: S costs its op, DTR nothing
    S holds t0 alone              the log that reads t0: S costs its op, DTE nothing

Nothing that comes later, another step included, takes that back, as the peer's seconds are 0. So at one point
at least any policy takes more than one of the two; one that draws takes more in the mean.
"""

from dataclasses import replace
from itertools import chain, combinations

import pytest

from tightrope.core import InfeasibleError
from tightrope.native.build import compiler
from tightrope.run.evict.policies import COOP, COOP_AS_PUBLISHED, DTE, DTR, LRU, PLANNED, SIZE, Policy
from tightrope_planners.evict.log import EvictionLog, LogEvent, LoggedOp, Released, StepEnd
from tightrope_planners.evict.simulate import live_peak, simulate

pytestmark = pytest.mark.skipif(compiler() is None, reason="the arena is native")

NUM = 5
UNIT = 128
NS = 1000
ARENA = (2 * NUM + 1) * UNIT
X, HOLE, REQUEST = NUM, NUM + 1, NUM + 2
"""Storages: `NUM` of two units each, the input, the hole of a unit, the one that has no room."""

SWITCHES = (
    *("two_ends", "in_place", "soft_pins", "relocate", "per_byte", "flat", "pairs", "best_fit", "window"),
)
POLICIES = (
    *(COOP, COOP_AS_PUBLISHED, DTR, DTE, LRU, SIZE, PLANNED),
    *(replace(COOP, name=f"coop, no {name}", **{name: False}) for name in SWITCHES),
    *(replace(COOP, name=f"coop, neighbours {count}", neighbours=count) for count in (0, 1)),
    replace(COOP, name="coop, patient", patience=100),
)


def log_that_reads(one: int) -> EvictionLog:
    """Make all, ask for room, let all go but one, and read that."""
    makes = [LoggedOp(f"make {number}", NS, (X,), (number,)) for number in range(NUM)]
    makes.insert(2, LoggedOp("make the hole", NS, (X,), (HOLE,)))
    events: list[LogEvent] = [*makes, Released(HOLE), LoggedOp("request", NS, (X,), (REQUEST,))]
    events += [Released(other) for other in (*range(NUM), REQUEST) if other != one]
    events += [LoggedOp("read", NS, (one,)), Released(one), StepEnd()]
    sizes = (*(2 * UNIT for _ in range(NUM)), UNIT, UNIT, 2 * UNIT)
    return EvictionLog(f"reads {one}", sizes, tuple(number == X for number in range(NUM + 3)), tuple(events))


def again(one: int, policy: Policy) -> int:
    return sum(simulate(log_that_reads(one), ARENA, policy).again_ns)


def test_dtr_and_dte_let_another_one_go() -> None:
    assert [again(one, DTR) for one in range(NUM)] == [NS, *(0 for _ in range(NUM - 1))]
    assert [again(one, DTE) for one in range(NUM)] == [0, NS, *(0 for _ in range(NUM - 2))]
    assert round(100 * ARENA / live_peak(log_that_reads(0))) == 92


def test_whatever_is_let_go_one_of_the_logs_reads_it_and_a_peer_has_it() -> None:
    everything = range(NUM)
    for gone in chain.from_iterable(combinations(everything, count) for count in range(1, NUM + 1)):
        assert any(again(one, peer) == 0 for one in gone for peer in (DTR, DTE)), gone


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_policy_recomputes_more_than_dtr_or_dte_on_one_of_the_logs(policy: Policy) -> None:
    worse = [one for one in range(NUM) for peer in (DTR, DTE) if again(one, policy) > again(one, peer)]
    assert worse


def test_the_request_has_no_room_in_any_policy_unless_something_goes() -> None:
    pinned = log_that_reads(0)
    events = tuple(
        replace(event, recomputable=False) if isinstance(event, LoggedOp) else event
        for event in pinned.events
    )
    with pytest.raises(InfeasibleError):
        simulate(replace(pinned, events=events), ARENA, COOP)
