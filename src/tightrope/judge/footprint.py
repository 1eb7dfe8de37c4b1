"""What an executable does to memory and time, as the judge finds it."""

from dataclasses import dataclass
from typing import NamedTuple

from tightrope.core import Bytes, Nanoseconds, Offset, StorageId
from tightrope.judge.transfers import Transfer


class Interval(NamedTuple):
    """One allocation in fast memory, alive in the ticks ``[start, end)``.

    Attributes:
        size: bytes charged, rounded up to the alignment.
        start: tick at which it is allocated.
        end: tick at which it is released; the number of ticks where it outlives the executable.
        storage: what it holds at first, -1 for a temporary of an op.
        offset: its address, -1 = none.
        outside: served outside the arena.
    """

    size: Bytes
    start: int
    end: int
    storage: StorageId = -1
    offset: Offset = -1
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """What an executable does to memory and time.

    Attributes:
        intervals: every allocation in fast memory, in the order in which they begin.
        profile: live bytes after every tick (allocation or release), above what the caller holds.
        peak: largest of them.
        outside_peak: largest number of live bytes outside the arena.
        ns: time of all runs, and of waiting for copies between tiers.
        copies: how many times each storage is made, or brought back, in fast memory.
        values: how many times each storage is a value inside a fused stretch, without memory.
        transfers: every copy between tiers, in the order of issue.
        tiers: largest number of bytes held in each slower tier; empty when nothing is copied.
        joules: energy; 0 without a machine.
    """

    intervals: tuple[Interval, ...]
    profile: tuple[Bytes, ...]
    peak: Bytes
    outside_peak: Bytes
    ns: Nanoseconds
    copies: tuple[int, ...]
    values: tuple[int, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    tiers: tuple[Bytes, ...] = ()
    joules: float = 0.0
