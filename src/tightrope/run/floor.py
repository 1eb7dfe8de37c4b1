"""Budgets of a training loop, from its graph alone: what a refusal would name."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tightrope.core import Bytes, Graph, round_up
from tightrope.plan import smallest
from tightrope.run.captured import headroom_of
from tightrope.run.foresee import NO_UPDATE, UpdateBytes
from tightrope.run.pages import by_page
from tightrope.run.refusal import Refusal
from tightrope.run.room import RESERVE


@dataclass(frozen=True)
class Floor:
    """The smallest plan of a graph, and what its loop needs beside it where the process holds nothing else.

    Attributes:
        beside: what stands beside the plan.
        least: bytes of the smallest plan found, in all.
    """

    beside: Refusal
    least: Bytes

    @property
    def budget(self) -> Bytes:
        """The smallest budget that a loop of any order is known to train in: `tightrope.compile` names it."""
        return self.beside.needed(self.least)

    @property
    def dropping(self) -> Bytes:
        """The same for a loop that drops its gradients before each forward.

        Where the forward returns the loss, `tightrope.compile` refuses less: see `Refusal.dropping`.
        """
        return self.beside.dropping(self.least)

    def left(self, budget: Bytes) -> Bytes:
        """Bytes that a budget leaves such a loop for the plan, the graph's persistent ones in it."""
        return 2 * budget - self.beside.dropping(budget)

    def updated(self, trained: Iterable[Bytes], update: UpdateBytes) -> "Floor":
        """The same loop with an optimizer that takes ``update`` for trained parameters of these bytes."""
        sizes = list(trained)
        beside = replace(
            self.beside,
            update=sum(map(round_up, sizes)) + update.beside,
            gradients=sum(map(by_page, sizes)),
            assumed=update.state,
        )
        return Floor(beside, self.least)


def floor_of(
    graph: Graph, trained: Iterable[Bytes] = (), update: UpdateBytes = NO_UPDATE, unread: Bytes = 0
) -> Floor:
    """Find the smallest plan of a graph, and what a loop needs beside it.

    Args:
        graph: of forward and backward, with measured allocations.
        trained: bytes of each parameter that is trained.
        update: what the optimizer takes for them.
        unread: bytes that the caller holds and no op of the graph reads.
    """
    headroom = headroom_of(graph)
    beside = Refusal(
        0,
        RESERVE + unread - headroom.tangents,
        graph.persistent,
        beside=headroom.wanted,
        outputs=headroom.outputs,
    )
    return Floor(beside, smallest(graph).forecast.total).updated(trained, update)
