"""Eviction that follows a plan: steps that repeat are recorded, planned, rehearsed and followed.

The entry point `following` is what ``tightrope.evict(policy="planned")`` takes; `simulate` runs logs.
"""

from collections.abc import Callable

from tightrope.core import Bytes
from tightrope.run.evict.policies import Policy
from tightrope_planners.evict.follow import FollowedArena, Follower
from tightrope_planners.evict.rehearse import rehearse


def following(
    arena: FollowedArena,
    describe: Callable[[int], tuple[Bytes, bool]],
    again: Callable[[list[int]], None],
    drop: Callable[[int], None],
    refused: type[BaseException],
    size: Bytes,
    use: Callable[[Policy], None],
) -> Follower:
    """Make what follows the steps of a loop in an arena of ``size`` bytes; see `Follower` for the rest."""
    return Follower(arena, describe, again, drop, refused, lambda record: rehearse(record, size), use)
