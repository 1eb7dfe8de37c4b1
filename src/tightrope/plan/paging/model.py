"""The search's view of a graph on a machine with a slower tier."""

from collections.abc import Sequence
from dataclasses import dataclass

from tightrope.core import Bytes, Graph, Machine, TightropeError, round_up
from tightrope.native.solvers.paging import Decision, PagingTables
from tightrope.plan.model import Pair, build, made_by
from tightrope.plan.paging.schedule import Page, pageable


@dataclass(frozen=True, slots=True)
class PagedSet:
    """A plan before it is a schedule: re-runs and page-ins."""

    pairs: tuple[Pair, ...] = ()
    pages: tuple[Page, ...] = ()

    def decisions(self) -> tuple[Decision, ...]:
        """List both as rows of the native search."""
        return tuple((t, 0, op, 0) for t, op in self.pairs) + tuple((p[0], 1, p[1], p[2]) for p in self.pages)

    @staticmethod
    def of(decisions: tuple[Decision, ...]) -> "PagedSet":
        """Read rows of the native search."""
        return PagedSet(
            tuple((row[0], row[2]) for row in decisions if not row[1]),
            tuple(Page(row[0], row[2], row[3]) for row in decisions if row[1]),
        )


def need_slower_tier(machine: Machine | None) -> Machine:
    """Return the machine if it has a tier to page to.

    Raises:
        TightropeError: it has none.
    """
    if machine is None or len(machine.tiers) < 2:
        name = "no machine was given" if machine is None else f"machine {machine.name!r} has one tier"
        raise TightropeError(
            f"paging needs a machine with a slower tier, and {name}: give a profile such as cortex-m4f-256k."
        )
    return machine


def tables(graph: Graph, machine: Machine, can: Sequence[bool] | None = None) -> PagingTables:
    """Read a graph and a machine into the tables of the native search.

    Args:
        graph: one training step.
        machine: with a slower tier.
        can: which storages may be paged; None = all of which pages can be made.

    Raises:
        TightropeError: the graph is not in base order, or the machine has no slower tier.
    """
    model, slow = build(graph), need_slower_tier(machine).tiers[1]
    if any(start < end for start, end in model.away):
        raise TightropeError("paging is planned for one call of a model, and this graph has several.")
    sizes = tuple(storage.bytes for storage in graph.storages)
    can = pageable(graph) if can is None else can
    return PagingTables(
        ops=tuple(
            (need, again_need, op.ns, again_ns, *window)
            for need, again_need, op, again_ns, window in zip(
                model.need, model.again_need, graph.ops, model.again_ns, model.window, strict=True
            )
        ),
        storages=tuple(
            (
                model.size[s],
                round_up(size, slow.alignment),
                slow.copy_ns(size, inwards=False),
                slow.copy_ns(size, inwards=True),
                model.producer[s],
                int(model.pinned[s]),
                int(model.at_end[s]),
                int(can[s]),
                slow.toll_ns(size),
            )
            for s, size in enumerate(sizes)
        ),
        joules=tuple(
            (slow.copy_joules(size, inwards=False), slow.copy_joules(size, inwards=True)) for size in sizes
        ),
        reads=model.reads,
        again_reads=model.again_reads,
        creates=made_by(model),
        again_creates=tuple(tuple(sorted(row)) for row in model.again_creates),
        engines=slow.engines,
        watts=machine.watts,
    )


def tier_limit(machine: Machine, asked: tuple[Bytes, ...] = ()) -> Bytes:
    """Bytes that tier 1 may hold: its capacity, or less where a limit per tier is asked."""
    return min((machine.tiers[1].bytes, *asked[1:2]))
