"""Budgets of a training loop, from its graph alone: what a refusal would name."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tightrope.core import Bytes, Graph, round_up
from tightrope.plan import smallest
from tightrope.run.ledger.kept_pages import by_page
from tightrope.run.ledger.optimizer import NO_UPDATE, UpdateBytes
from tightrope.run.ledger.refusal import Refusal, itemised, with_loop
from tightrope.run.ledger.room import Room
from tightrope.run.session.captured import headroom_of


@dataclass(frozen=True)
class Floor:
    """The smallest plan of a graph, and what its loop needs beside it where the process holds nothing else.

    Attributes:
        beside: what stands beside the plan.
        least: bytes of the smallest plan found, in all.
        graph: see `floor_of`.
        unread: see `floor_of`.
    """

    beside: Refusal
    least: Bytes
    graph: Graph
    unread: Bytes

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
        return self.beside.left(budget)

    def updated(self, trained: Iterable[Bytes], update: UpdateBytes) -> "Floor":
        """The same loop with an optimizer that takes ``update`` for trained parameters of these bytes."""
        return replace(self, beside=_loop(self.graph, list(trained), update, self.unread))


def floor_of(
    graph: Graph,
    trained: Iterable[Bytes] = (),
    update: UpdateBytes = NO_UPDATE,
    unread: Bytes = 0,
    *,
    effort: float = 1.0,
) -> Floor:
    """Find the smallest plan of a graph, and what a loop needs beside it.

    Args:
        graph: of forward and backward, with measured allocations.
        trained: bytes of each parameter that is trained.
        update: what the optimizer takes for them.
        unread: bytes that the caller holds and no op of the graph reads.
        effort: see `tightrope.plan.smallest`.
    """
    beside = _loop(graph, list(trained), update, unread)
    return Floor(beside, smallest(graph, effort=effort).forecast.total, graph, unread)


def _loop(graph: Graph, sizes: list[Bytes], update: UpdateBytes, unread: Bytes) -> Refusal:
    headroom = headroom_of(graph)
    held = graph.persistent + unread - headroom.tangents
    room = Room(0, held, update=sum(map(round_up, sizes)) + update.beside)
    ledger = with_loop(
        itemised(room.ledger(), graph),
        loss=headroom.wanted,
        outputs=headroom.outputs,
        state=update.state,
        assumed=False,
        gradients=sum(map(by_page, sizes)),
    )
    return Refusal(ledger, graph.persistent)
