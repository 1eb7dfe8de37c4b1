"""The units of one model: what is planned as one, made when it is first needed."""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from tightrope.core import Graph, StorageId
from tightrope.lower.join import Turn, join
from tightrope.lower.remainder import remainder
from tightrope.run.base.status import StatusLine
from tightrope.run.ledger.accounts import Accounts
from tightrope.run.ledger.headroom import Headroom
from tightrope.run.session.captured import Captured
from tightrope.run.session.patterns import Pattern, single
from tightrope.run.session.unit import Lender, Settings, Unit

ANOTHER_GRAPH: Final = "another captured graph: shapes, mode, parameters"


class Units:
    """Units by what they are made of.

    Attributes:
        captured: graphs in the order of capture.
        why: cause of the first plan of the first graph, for the report.
    """

    why: str = "first plan"

    def __init__(self, settings: Settings, accounts: Accounts, status: StatusLine) -> None:
        self._settings, self._accounts, self._status = settings, accounts, status
        self.captured: list[Captured] = []
        self._made: dict[tuple[Hashable, ...], Unit] = {}

    def values(self) -> Iterable[Unit]:
        """List the units in the order in which they were first needed."""
        return self._made.values()

    def of(self, pattern: Pattern, dropped: frozenset[tuple[int, int]] = frozenset()) -> Unit:
        """Find or make the unit of a pattern; ``dropped`` = gradients that the caller lets go of."""
        numbers = sorted({turn.graph for turn in pattern})
        key: tuple[Hashable, ...] = (
            pattern,
            dropped,
            *((number, self.captured[number].num_measured) for number in numbers),
        )
        if key not in self._made:
            self._made[key] = self._of(pattern, dropped)
        return self._made[key]

    def last(self, number: int) -> Unit | None:
        """The unit in which a graph runs alone, or with its own backward; None where it has none yet."""
        one = self.captured[number]
        for pattern in (single(number), (Turn(0, number, False),)):
            found = self._made.get((pattern, frozenset[tuple[int, int]](), (number, one.num_measured)))
            if found is not None:
                return found
        return None

    def rest(self, number: int, live: frozenset[StorageId]) -> Unit:
        """Find or make the unit of what is left of a call.

        Raises:
            TightropeError: something that is gone cannot be made again.
        """
        key = ("rest", live, number, self.captured[number].num_measured)
        if key not in self._made:
            graph = remainder(self.captured[number].graph, live)
            self._made[key] = self._new(graph, Headroom(), "a backward from what its forward left")
        return self._made[key]

    def _of(self, pattern: Pattern, dropped: frozenset[tuple[int, int]]) -> Unit:
        graphs = {turn.graph: self.captured[turn.graph].graph for turn in pattern}
        rooms = [self.captured[turn.graph].headroom for turn in pattern if not turn.back]
        headroom = Headroom(
            sum(room.gradients for room in rooms),
            sum(room.tangents for room in rooms),
            outputs=sum(room.outputs for room in rooms),
        )
        if len(graphs) == 1 and len(pattern) <= 2:
            (one,) = (self.captured[number] for number in graphs)
            why = one.why or (self.why if len(self.captured) == 1 else ANOTHER_GRAPH)
            why = why if one.num_measured == 1 else "allocations differed from the plan: measured again"
            made = self._new(one.graph, headroom, why)
            made.rewritten, made.lends = one.rewritten, one.lends
            if one.bucket is not None:
                larger = tuple(replace(turn, graph=one.bucket) for turn in pattern)
                made.lender = Lender(self.of(larger), strict=one.strict)
            if one.nearest is not None:
                made.nearest = partial(self.last, one.nearest)
            return made
        identity = {(n, s): name for n in graphs for s, name in self.captured[n].identity.items()}
        joint = join(graphs, pattern, identity=identity, dropped=dropped)
        why = f"{len(rooms)} calls follow each other in a step: planned together"
        return self._new(joint.graph, headroom, why, dict(joint.storages))

    def _new(
        self,
        graph: Graph,
        headroom: Headroom,
        why: str,
        storages: dict[tuple[int, StorageId], StorageId] | None = None,
    ) -> Unit:
        return Unit(
            graph, self._settings, self._accounts, self._status, headroom=headroom, why=why, storages=storages
        )  # fmt: skip
