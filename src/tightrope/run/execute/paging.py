"""What a compiled model knows of its slower tier: the file, the machine that it makes, and plans for it."""

from collections.abc import Callable
from functools import cached_property

from msgspec.structs import replace

from tightrope.core import Bytes, Graph, Machine, Plan, Tier, TightropeError
from tightrope.core.units import shown
from tightrope.plan import Progress
from tightrope.plan.paging.joint import RUN_KNOBS, smallest_paged, solve_paged
from tightrope.run.execute.page_file import BLOCK, PageFile


class Paging:
    """Plans that page to a file; state of the runtime.

    Args:
        folder: for the file.
        machine: whose second tier says what the file may take and how fast it is; without one, both are
            measured when they are first needed.
        seed: of searches.
        seconds: of searches; None = until the default effort is spent.

    Attributes:
        file: pages go there.
        knobs: of searches.
        contest: run what pages and what does not in turns, and go on with what is faster.

    Raises:
        TightropeError: the folder will not do.
    """

    def __init__(
        self,
        folder: object,
        machine: Machine | None = None,
        *,
        seed: int = 0,
        seconds: float | None = None,
    ) -> None:
        self.file = PageFile(folder)
        self.knobs = RUN_KNOBS
        self.contest = True
        self._asked, self._seed, self._seconds = machine, seed, seconds
        self._smallest: dict[str, Plan] = {}

    @cached_property
    def machine(self) -> Machine:
        """The computer here, or the one asked for, with the file as its slower tier."""
        machine = self._asked or Machine.here()
        tier = machine.tiers[1] if len(machine.tiers) > 1 else self.file.tier()
        return replace(machine, tiers=(machine.tiers[0], _of_file(tier)))

    def solve(
        self,
        graph: Graph,
        budget: Bytes,
        alone: Callable[[], Plan],
        *,
        progress: Callable[[Progress], None] | None = None,
    ) -> Plan:
        """Plan a graph, with pages where that is faster than ``alone``.

        Raises:
            InfeasibleError: nothing fits.
        """
        return solve_paged(
            graph, budget=budget, machine=self.machine, alone=alone, seed=self._seed, seconds=self._seconds,
            progress=progress, knobs=self.knobs,
        )  # fmt: skip

    def smallest(self, graph: Graph, plain: Plan) -> Plan:
        """The smaller of a plan without pages and of one with all that there can be."""
        if graph.fingerprint not in self._smallest:
            paged = smallest_paged(graph, self.machine, seed=self._seed)
            self._smallest[graph.fingerprint] = min(
                (plan for plan in (plain, paged) if plan is not None), key=lambda plan: plan.forecast.total
            )
        return self._smallest[graph.fingerprint]


def paging_of(
    folder: object, machine: Machine | None, *, fuse: bool, seed: int, seconds: float | None
) -> Paging | None:
    """Read ``page_to``; None = pages go nowhere.

    Raises:
        TightropeError: the folder will not do, or stretches are to run fused.
    """
    if folder is None:
        return None
    if fuse:
        raise TightropeError(
            f"page_to={shown(folder)} with fuse=True: fused plans do not page yet. Leave one of the two out."
        )
    return Paging(folder, machine, seed=seed, seconds=seconds)


def _of_file(tier: Tier) -> Tier:
    """A tier as the file is one: pages in whole blocks, one copy at a time, beside the processor."""
    return replace(tier, alignment=max(tier.alignment, BLOCK), engines=1)
