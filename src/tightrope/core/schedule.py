"""Schedules: what a planner decides, step by step.

A schedule is a sequence of steps over a graph. Every storage has at most one live copy: running an
op again is allowed only when the copies of what it creates are gone, except for those in ``drop``,
which are released as soon as the op returns and leave an older copy alone.
"""

import msgspec

from tightrope.core.units import OpId, StorageId


class Compute(msgspec.Struct, frozen=True, tag="compute", array_like=True):
    """Run an op; its created storages appear, those in ``drop`` vanish when it returns."""

    op: OpId
    drop: tuple[StorageId, ...] = ()


class Free(msgspec.Struct, frozen=True, tag="free", array_like=True, repr_omit_defaults=True):
    """Release the live copy of a storage, or with ``tier`` > 0 its copy in a slower tier."""

    storage: StorageId
    tier: int = 0


class PageOut(msgspec.Struct, frozen=True, tag="page_out", array_like=True):
    """Start copying a storage to a slower tier; its fast copy is released by the matching `Wait`.

    Until then the fast copy may be read, and not changed. The slow copy stays until it is freed.
    """

    storage: StorageId
    tier: int = 1


class PageIn(msgspec.Struct, frozen=True, tag="page_in", array_like=True):
    """Start copying a storage back from a slower tier; it may be read after the matching `Wait`.

    The fast copy takes its bytes from here on. The slow copy stays until it is freed.
    """

    storage: StorageId
    tier: int = 1


class Wait(msgspec.Struct, frozen=True, tag="wait", array_like=True):
    """Wait until the last copy of a storage has finished."""

    storage: StorageId


Step = Compute | Free | PageOut | PageIn | Wait


class Schedule(msgspec.Struct, frozen=True, dict=True):
    """A sequence of steps; see the module text."""

    steps: tuple[Step, ...]

    def computes(self) -> tuple[OpId, ...]:
        """List the ops in the order in which they run, with repeats."""
        return tuple(step.op for step in self.steps if isinstance(step, Compute))
