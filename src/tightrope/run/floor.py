"""The smallest budget of a training loop, from its graph alone: what a refusal would name."""

from collections.abc import Iterable

from tightrope.core import Bytes, Graph, round_up
from tightrope.plan import smallest
from tightrope.run.captured import headroom_of
from tightrope.run.foresee import UpdateBytes
from tightrope.run.pages import by_page
from tightrope.run.refusal import Refusal
from tightrope.run.room import RESERVE


def smallest_budget(graph: Graph, trained: Iterable[Bytes], update: UpdateBytes, *, seed: int = 0) -> Bytes:
    """Find the smallest budget that a loop over this graph is known to train in.

    It is what `tightrope.compile` names where the process holds nothing else.

    Args:
        graph: of forward and backward, with measured allocations.
        trained: bytes of each parameter that is trained.
        update: what the optimizer takes for them.
        seed: of the search.
    """
    headroom, sizes = headroom_of(graph), list(trained)
    refusal = Refusal(
        0,
        RESERVE - headroom.tangents,
        graph.persistent,
        beside=headroom.wanted,
        update=sum(map(round_up, sizes)) + update.beside,
        gradients=sum(map(by_page, sizes)),
        outputs=headroom.outputs,
        assumed=update.state,
    )
    return refusal.needed(smallest(graph, seed=seed).forecast.total)
