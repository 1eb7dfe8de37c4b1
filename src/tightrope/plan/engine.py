"""Open the search over a model: the native one, or without it that of tightrope-planners in Python."""

from collections.abc import Sequence
from typing import Final, Protocol, cast

from tightrope.core import Bytes, Graph, Limits
from tightrope.core.plugins import in_python
from tightrope.lower import lower, simulate
from tightrope.native.interface import missing
from tightrope.native.solvers.solver import Solver, State, Tables
from tightrope.plan.model import Model, Pair
from tightrope.plan.schedule import base_schedule

_IN_PYTHON: Final = "greedy in Python (no native part)"


class GreedySearch(Protocol):
    """A current set of pairs with its byte profile, and the greedy search: what every search can do."""

    num_ops: int

    def load(self, pairs: Sequence[Pair]) -> None:
        """Make ``pairs`` the current set."""

    def state(self, limit: Bytes) -> State:
        """Measure the current set against ``limit`` bytes."""

    def pairs(self) -> tuple[Pair, ...]:
        """List the current set, ascending."""

    def greedy(self, limit: Bytes, rule: int, *, far: bool = False) -> bool:
        """Replace the current set by a greedy one; return whether it fits ``limit``."""


def made_by(planner: str) -> str:
    """Name a planner as plans do: the search in Python says so."""
    return _IN_PYTHON if planner != "given" and missing("solver") else planner


def open_solver(model: Model) -> Solver | GreedySearch:
    """Open a search that starts from the empty set.

    Raises:
        NativeError: the library is not there and does not build or load, nor is tightrope-planners installed.
    """
    if why := missing("solver"):
        return cast(GreedySearch, in_python("search", why)(model))
    rows = zip(model.need, model.again_need, model.again_ns, model.window, model.away, strict=True)
    writes = zip(model.over, model.again_over, model.part, strict=True)
    ops = tuple((*row[:3], *row[3], *row[4], *own) for row, own in zip(rows, writes, strict=True))

    storages = tuple(
        (size, producer, int(pinned), int(at_end))
        for size, producer, pinned, at_end in zip(
            model.size, model.producer, model.pinned, model.at_end, strict=True
        )
    )
    return Solver(Tables(ops, storages, model.reads, model.again_reads, model.again_creates))


def outside_peak(graph: Graph) -> Bytes:
    """Largest number of bytes that the base schedule holds outside the arena."""
    return simulate(lower(graph, base_schedule(graph))).outside


def live_limit(graph: Graph, limits: Limits) -> Bytes:
    """Bytes that the arena may hold: the limit without what the caller holds and what lives outside."""
    if not limits.bytes:
        return 2**62
    return max(0, limits.bytes[0] - graph.persistent - outside_peak(graph))
