"""Forecasts of the next use of every storage, from the step before.

Idea       While a step runs the same ops on the same sizes as the last one, the storage that op k makes is
           used when its twin of the last step was used. The first op that differs ends the forecasts of
           the step: unknown uses are worse than none only where they are wrong.
Guarantee  A forecast changes who is evicted, never what is computed.
Complexity A step's ops and their storages; one look at what is held after an op in place on a storage
           that cannot be made again.
Gaps       Steps are compared op by op from their beginning; a step like the one before the last is new.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable

from tightrope.core.units import Nanoseconds
from tightrope.run.evict.core import EvictionArena

NEVER = 2**61
"""When a storage is used next that is not used again in the step."""

Slot = tuple[int, int]
"""A storage by the op that makes it: number of the op in its step, number of the result."""


class Forecaster:
    """Watch the ops of a step and tell an arena when storages are used next.

    Args:
        arena: whose storages they are.
        stopped: called when the step turns out to be another one than the last.

    Attributes:
        holds: whether this step has been as the last one so far.
    """

    def __init__(self, arena: EvictionArena, stopped: Callable[[], None]) -> None:
        self.arena, self.stopped = arena, stopped
        self.holds = False
        self._last: list[Hashable] = []
        self._last_uses: dict[Slot, list[Nanoseconds]] = {}
        self._keys: list[Hashable] = []
        self._uses: dict[Slot, list[Nanoseconds]] = {}
        self._slots: dict[int, Slot] = {}
        self._start = 0

    def op(self, key: Hashable, reads: Iterable[int], creates: Iterable[int]) -> None:
        """Note an op after it ran for the first time, and renew the forecasts of its storages.

        Args:
            key: equal for ops that do the same: name, sizes, positions of what is read.
            reads: ids.
            creates: ids of its results.
        """
        at, now = len(self._keys), self.arena.base - self._start
        self._keys.append(key)
        for number, one in enumerate(creates):
            self._slots[one] = (at, number)
            self._uses[(at, number)] = []
        touched = [one for one in reads if one in self._slots]
        for one in touched:
            self._uses[self._slots[one]].append(now)
        if self.holds and (at >= len(self._last) or self._last[at] != key):
            self._stop()
        if self.holds:
            for one in (*touched, *creates):
                self._tell(one, now)

    def settled(self) -> None:
        """Note that an op changed what cannot be made again: what had to stay from then on was needed."""
        now = self.arena.base - self._start
        for one, slot in self._slots.items():
            if not self.arena.recomputable(one):
                uses = self._uses[slot]
                if not uses or uses[-1] < NEVER:
                    uses.append(now)
                    uses.append(NEVER)

    def released(self, storage: int) -> None:
        """Note that nobody holds a storage any more."""
        self._slots.pop(storage, None)

    def end_step(self) -> None:
        """Take the step that ends as the forecast of the next."""
        self._last, self._last_uses = self._keys, self._uses
        self._keys, self._uses, self._slots = [], {}, {}
        self._start = self.arena.base
        self.holds = True

    def repeats(self) -> bool:
        """Tell whether the step at hand was as the last one, to its end."""
        return self.holds and len(self._keys) == len(self._last)

    def _tell(self, one: int, now: Nanoseconds) -> None:
        uses = self._last_uses.get(self._slots[one], [])
        later = bisect_right(uses, now)
        self.arena.forecast(one, self._start + uses[later] if later < len(uses) else NEVER)

    def _stop(self) -> None:
        self.holds = False
        for one in self._slots:
            self.arena.forecast(one, -1)
        self.stopped()
