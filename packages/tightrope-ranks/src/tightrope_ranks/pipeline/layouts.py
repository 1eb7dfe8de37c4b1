"""How ranks are divided into a pipeline and its replicas: every way is tried, the fastest taken.

Idea        For every P that divides the ranks, layers' costs are changed by what replicas exchange and by
            what stages do inside, and the planner of pipelines finds a schedule. Where published orders do
            not fit, halving finds how few layers have to be computed again.
Guarantee   The best layout is the fastest of those tried, and its plan fits.
Complexity  One search per divisor, and log2(layers) short ones for each that does not fit at once.
Gaps        Fewer layers than halving finds may suffice, with another schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tightrope.core import DeviceLink, InfeasibleError, Machine, TightropeError
from tightrope.core.units import Bytes, Nanoseconds, format_bytes, format_time
from tightrope_ranks.pipeline.inside import computed_again, divided, num_keeping, ring_ns
from tightrope_ranks.pipeline.search import (
    PipelineOptions,
    PipelineTask,
    bound,
    cuts_of,
    placements,
    plan_pipeline,
    smallest,
    staged,
)
from tightrope_ranks.pipeline.segments import Segments
from tightrope_ranks.values.ranks import JointPlan, StageCost

WIDEST: Final = 16_384
"""Pipeline ranks times micro-batches of one replica that are tried."""
THOROUGH: Final = 128
"""As many are searched in every way, even where published orders do not fit."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How ranks are divided.

    Attributes:
        pipeline: P, ranks that stages live on.
        replicas: R, ranks that do the same on other data; rank p of the pipeline is devices p R to
            p R + R - 1.
        micro_batches: of a step, per replica.
        again: layers that are computed again in the backward, inside of their stages.
        by_layer: whether divided parameters are gathered layer by layer, whenever a layer runs, and not once
            per step and stage.
    """

    pipeline: int
    replicas: int
    micro_batches: int
    again: int = 0
    by_layer: bool = False


@dataclass(frozen=True, slots=True)
class LayoutTried:
    """What was found for a layout.

    Attributes:
        layout: which.
        ns: of a step; None = no plan was found.
        peak: most bytes of a rank; of the smallest plan found where none fits; None = not searched.
        said: why there is none, or how the plan was found.
    """

    layout: RankLayout
    ns: Nanoseconds | None
    peak: Bytes | None
    said: str


def layouts(ranks: int, num_layers: int, micro_batches: int, pipeline: int | None) -> list[RankLayout]:
    """List the layouts of so many ranks.

    Raises:
        TightropeError: there is none; says why, and what there is.

    >>> [one.pipeline for one in layouts(8, 4, 16, None)]
    [1, 2, 4]
    """
    if pipeline is not None:
        if pipeline > num_layers:
            raise TightropeError(
                f"pipeline={pipeline}: a stage needs a layer, and the model has {num_layers}. Give at most "
                f"{num_layers}; the other ranks become replicas."
            )
        if pipeline < 1 or ranks % pipeline:
            divisors = [p for p in range(1, ranks + 1) if ranks % p == 0 and p <= num_layers]
            raise TightropeError(
                f"pipeline={pipeline} does not divide {ranks} ranks: give one of {divisors}."
            )
    chosen = range(1, min(ranks, num_layers) + 1) if pipeline is None else (pipeline,)
    found = [
        RankLayout(p, ranks // p, micro_batches * p // ranks)
        for p in chosen
        if ranks % p == 0 and micro_batches % (ranks // p) == 0
    ]
    if not found:
        raise TightropeError(
            f"micro_batches={micro_batches} cannot be divided among the replicas of {ranks} ranks of "
            f"{num_layers} layers: give a multiple of {ranks}."
        )
    return found


def slowest(machine: Machine, layout: RankLayout) -> DeviceLink:
    """Find the slowest link that a group of replicas spans."""
    size = layout.replicas
    return machine.links[max(machine.link(p * size, p * size + size - 1) for p in range(layout.pipeline))]


def exchanged(
    costs: Sequence[StageCost],
    machine: Machine,
    layout: RankLayout,
    *,
    sharded: bool,
    trained: Sequence[Bytes] | None = None,
) -> tuple[StageCost, ...]:
    """Add what replicas exchange: per layer a ring over the slowest link that one of their groups spans.

    Gradients are those of ``trained`` bytes per layer; None = of all parameters.
    """
    if trained is None:
        trained = [cost.parameters for cost in costs]
    size = layout.replicas
    if size == 1:
        return tuple(costs)
    link, rounds = slowest(machine, layout), 1 if sharded else 2
    return tuple(
        msgspec.structs.replace(
            cost,
            gather=ring_ns(link, cost.parameters, size, rounds=1) if sharded else 0,
            reduce=ring_ns(link, gradients, size, rounds=rounds),
        )
        for cost, gradients in zip(costs, trained, strict=True)
    )


class LayoutSearch:
    """The best layout so far.

    Attributes:
        tried: every layout, in order.
        best: the fastest that fits, and its plan.
    """

    def __init__(
        self,
        cut: Segments,
        machine: Machine,
        limit: Bytes,
        sharded: bool,
        options: PipelineOptions,
        *,
        balance: bool,
    ) -> None:
        self.balance = balance
        self.cut, self.machine, self.limit = cut, machine, limit
        self.sharded, self.options = sharded, options
        self.tried: list[LayoutTried] = []
        self.best: tuple[RankLayout, JointPlan] | None = None

    def look(self, layout: RankLayout) -> None:
        """Search for a plan of a layout: with parameters gathered by stage, and by layer."""
        wide = layout.pipeline * layout.micro_batches
        if wide > WIDEST:
            said = f"not tried: {layout.pipeline} ranks times {layout.micro_batches} micro-batches > {WIDEST}"
            self.tried.append(LayoutTried(layout, None, None, said))
            return
        ways = (True, False) if self.sharded and layout.replicas > 1 else (False,)
        for by_layer in ways:
            self._look(replace(layout, by_layer=by_layer))

    def _look(self, layout: RankLayout) -> None:
        """Compute no layer again, or as few as the bytes allow; else stages again."""
        if self._is_slower(layout):
            return
        layout, least = self._fewest(layout)
        if self._is_slower(layout):
            return
        if least and layout.pipeline * layout.micro_batches > THOROUGH:
            said = f"not searched further: published orders take {format_bytes(least)}"
            self.tried.append(LayoutTried(layout, None, least, said))
            return
        self._search(layout)

    def _is_slower(self, layout: RankLayout) -> bool:
        """Tell whether no plan of a wide layout can be faster than the best; note it if so."""
        if self.best is None or layout.pipeline * layout.micro_batches <= THOROUGH:
            return False
        task = self._task(layout)
        least = min(
            bound(staged(task, owners, cuts), self.machine)
            for owners in placements(task, self.options)
            for cuts in cuts_of(task, len(owners))
        )
        if least >= self.best[1].ns:
            said = f"not searched further: no plan takes less than {format_time(least)}"
            self.tried.append(LayoutTried(layout, None, None, said))
        return least >= self.best[1].ns

    def search_smallest(self) -> None:
        """Search the layout whose published orders take fewest bytes, where nothing else fits."""
        left = [one for one in self.tried if one.peak is not None and one.said.startswith("not searched")]
        if self.best is None and left:
            self._search(min(left, key=lambda one: one.peak or 0).layout)

    def _search(self, layout: RankLayout) -> None:
        found = self.planned(layout, self.options)
        if isinstance(found, InfeasibleError):
            said = f"does not fit: no plan takes less than {format_bytes(smallest(self._task(layout)))}"
            self.tried.append(LayoutTried(layout, None, found.smallest_found, said))
            return
        self.tried.append(LayoutTried(layout, found.ns, max(one.peak for one in found.ranks), found.method))
        if self.best is None or found.ns < self.best[1].ns:
            self.best = layout, found

    def _fewest(self, layout: RankLayout) -> tuple[RankLayout, Bytes | None]:
        """Find how few layers have to be computed again by published orders, or the fewest bytes of these."""
        high = num_keeping(self.cut.costs) if self.options.again else 0
        quick = replace(
            self.options, again=False, seconds=0.0, fold=False, shipped=False, listing=False, exact=False
        )
        if not high or isinstance(self.planned(layout, quick), JointPlan):
            return layout, None
        found = self.planned(replace(layout, again=high), quick)
        if isinstance(found, InfeasibleError):
            return layout, found.smallest_found
        quick = replace(quick, per_rank=(len(found.work.stages) // layout.pipeline,))
        low = 0
        while low + 1 < high:
            middle = (low + high) // 2
            fits = isinstance(self.planned(replace(layout, again=middle), quick), JointPlan)
            low, high = (low, middle) if fits else (middle, high)
        return replace(layout, again=high), None

    def planned(self, layout: RankLayout, options: PipelineOptions) -> JointPlan | InfeasibleError:
        """Plan one layout as it is, or say why there is no plan."""
        try:
            return plan_pipeline(self._task(layout), options)
        except InfeasibleError as error:
            return error

    def _task(self, layout: RankLayout) -> PipelineTask:
        costs = self.cut.costs
        if layout.again:
            costs = computed_again(costs, layout.again)
        if layout.by_layer:
            costs = divided(costs, slowest(self.machine, layout), layout.replicas, self.cut.trained)
        else:
            costs = exchanged(costs, self.machine, layout, sharded=self.sharded, trained=self.cut.trained)
        return PipelineTask(
            costs,
            self.machine,
            layout.pipeline,
            layout.micro_batches,
            self.limit,
            layout.replicas,
            self.sharded and layout.replicas > 1 and not layout.by_layer,
            self.balance,
        )

    def cuts(self, layout: RankLayout, plan: JointPlan) -> tuple[int, ...]:
        """Say where the stages of a plan begin, and the number of layers."""
        task, owners = self._task(layout), plan.work.owners
        return next(
            cuts
            for cuts in cuts_of(task, len(owners))
            if staged(task, owners, cuts).stages == plan.work.stages
        )

    def refusal(self, ranks: int) -> TightropeError:
        """Say what is too little, and the smallest that was found."""
        found = [(one.peak, one.layout) for one in self.tried if one.peak is not None]
        if not found:
            return TightropeError(f"{self.tried[0].said}: give fewer micro-batches, or a shorter pipeline.")
        least, layout = min(found, key=lambda one: one[0])
        return InfeasibleError(
            f"{format_bytes(self.limit)} per rank is too little for {ranks} ranks: the smallest plan found "
            f"takes {format_bytes(least)} per rank ({least} bytes), with a pipeline of {layout.pipeline} and "
            f"{layout.replicas} replicas. Give that much, more layers to divide, smaller micro-batches, or "
            "divide parameters among replicas (sharded).",
            asked=self.limit,
            smallest_found=least,
        )
