"""What a forward of the last steps was decided to run, kept while nothing changes.

Idea        Which plan runs is a question to many: what is held, what an optimizer will want, what the
            caller's code took, which plans are known. A forward that finds the same bytes held, under
            the same budgets, after the same pattern, would get the same answer: nobody is asked again.
Guarantee   An answer is kept when two forwards in a row got it, and used only where the charged bytes, the
            limit, the headroom and the plan of the unit are the same, and no forward of any model waits for
            its backward. The arena has to be free. What a plan is held to is not touched: the allocator's
            limit stays on, and a step that goes another way than planned asks again.
Complexity  One reading of the allocator's counters and one lease.
Gaps        On the CPU alone, and with a hook; not for a graph of many sizes, a plan that pages, or two forms
            of a step that are still compared. State of a new optimizer is seen by the bytes that it takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tightrope.core import Bytes
from tightrope.price.device import CPU
from tightrope.run.execute.prepared import Prepared
from tightrope.run.execute.running import Running
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.caller import CallerBytes
from tightrope.run.ledger.room import Room
from tightrope.run.session.captured import Captured
from tightrope.run.session.patterns import Pattern, single
from tightrope.run.session.unit import Unit

_ADDRESS: Final = torch.Tensor.data_ptr
_ASKED_AGAIN: Final = 64
"""Forwards after which the question is asked again, whatever is held."""


@dataclass(frozen=True)
class Decided:
    """One answer.

    Attributes:
        unit: what runs.
        prepared: its plan.
        room: that was left for it.
        turns: what the caller is expected to do.
        after: the pattern that was completed before.
        charged: bytes that were charged when the forward came.
        limits: number of changes of the limit by then.
        arena: that it was given.
        start: begins to run it in that arena.
    """

    unit: Unit
    prepared: Prepared
    room: Room
    turns: Pattern
    after: Pattern
    charged: Bytes
    limits: int
    arena: int
    start: Callable[[], Running]

    def is_that(self, other: "Decided | None") -> bool:
        """Tell whether another answer is the same one, to the same question."""
        return (
            other is not None
            and (self.unit, self.turns, self.after) == (other.unit, other.turns, other.after)
            and (self.charged, self.limits, self.arena) == (other.charged, other.limits, other.arena)
            and self.prepared is other.prepared
            and self.room == other.room
        )


class Steady:
    """The answer of the last forwards of one model; state of the runtime, used from one thread at a time.

    Args:
        accounts: of the device.
        verify: see `Settings`.

    Attributes:
        left: forwards that may still be answered so.
    """

    def __init__(self, accounts: Accounts, verify: str | None) -> None:
        self._accounts, self._verify = accounts, verify
        self._seen: Decided | None = None
        self.left = 0
        self._places: dict[Captured, list[int]] = {}

    def unseen(self, one: Captured, args: Sequence[Any]) -> Sequence[Any]:
        """Which inputs of a call to look at: not what the model holds where it stood in the call before."""
        places = [*map(_ADDRESS, one.own(args))]
        if places == self._places.get(one):
            return one.others(args)
        self._places[one] = places
        return args

    def drop(self) -> None:
        """Forget the answer."""
        self._seen, self.left = None, 0

    def covers(self, running: Running, pattern: Pattern, gaps: CallerBytes) -> bool:
        """Tell whether nothing is to be learned from a pattern: it was completed before, by such a run."""
        if not self.left or self._seen is None or running.off or pattern != self._seen.after:
            return False
        if len(pattern) > len(single(0)):  # whether gradients are dropped in between may change
            return False
        seen = self._seen.unit.headroom
        return seen.seen and gaps.growth <= seen.peak and gaps.held <= seen.held

    def note(self, running: Running, unit: Unit, after: Pattern, charged: Bytes) -> None:
        """Note what a forward runs, and that so many bytes were charged when it came."""
        accounts = self._accounts
        suits = accounts.allocator is not None and accounts.device == CPU and unit.keeps
        arena = running.arena
        if not suits or arena is None or running.prepared.lease is not None:
            self.drop()
            return
        limits = accounts.num_limits
        start = unit.starting(running.prepared, running.turns, arena)
        now = Decided(unit, running.prepared, unit.room, running.turns, after, charged, limits, arena, start)
        checked = self._verify is None or bool(running.prepared.proof.checked)
        self.left = _ASKED_AGAIN if checked and now.is_that(self._seen) else 0
        self._seen = now

    def again(self, number: int, after: Pattern, charged: Bytes) -> Running | None:
        """Begin what the last forward of a graph began; None where somebody has to be asked."""
        kept = self._seen
        if kept is None or self.left <= 0 or kept.charged != charged or kept.after is not after:
            return None
        unit = kept.unit
        if kept.turns[0].graph != number or kept.limits != self._accounts.num_limits:
            return None
        if unit.prepared is not kept.prepared or unit.arenas is None or not unit.arenas.again(kept.arena):
            return None
        self.left -= 1
        return kept.start()
