"""How ranks are divided into a pipeline and its replicas: every way is tried, the fastest taken.

Idea        For every P that divides the ranks, layers' costs are changed by what replicas exchange and by
            what stages do inside, and the planner of pipelines finds a schedule. Where published orders do
            not fit, halving finds how few layers have to be computed again.
Guarantee   The best layout is the fastest of those tried, and its plan fits.
Complexity  One search per divisor, and log2(layers) short ones for each that does not fit at once.
Gaps        Fewer layers than halving finds may suffice, with another schedule.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tightrope.core import InfeasibleError, Machine, TightropeError
from tightrope.core.units import Bytes, Nanoseconds, format_bytes, format_time
from tightrope_ranks.pipeline.bounds import bound
from tightrope_ranks.pipeline.expert_costs import expert_shares, expert_ways, shared_experts
from tightrope_ranks.pipeline.inside import computed_again, divided, num_keeping
from tightrope_ranks.pipeline.rank_layout import RankLayout, layout_said
from tightrope_ranks.pipeline.replicas import exchanged
from tightrope_ranks.pipeline.search import (
    PipelineOptions,
    PipelineTask,
    cuts_of,
    placements,
    plan_pipeline,
    searched,
    smallest,
    staged,
)
from tightrope_ranks.pipeline.segments import Segments
from tightrope_ranks.pipeline.together import (
    check_sequence,
    check_tensors,
    grouped,
    of_a_rank,
    ring_within,
    shared_sequence,
    shared_tensors,
    slowest_within,
)
from tightrope_ranks.values.ranks import JointPlan

WIDEST: Final = 16_384
"""Pipeline ranks times micro-batches of one replica that are tried."""
GLANCES: Final = 10
"""Layouts that are planned once before any is searched."""
THOROUGH: Final = 128
"""As many are searched in every way, even where published orders do not fit."""


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


def layouts(
    ranks: int,
    num_layers: int,
    micro_batches: int,
    pipeline: int | None,
    ways: Sequence[tuple[int, int]] = ((1, 1),),
) -> list[RankLayout]:
    """List the layouts of so many ranks.

    Args:
        ranks: in all.
        num_layers: that stages are made of.
        micro_batches: of a step, over all replicas.
        pipeline: ranks that stages live on; None = every number.
        ways: (tensor, context) ranks to try inside of a layer.

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
    found = []
    for tensor, context in ways:
        groups, rest = divmod(ranks, tensor * context)
        for p in range(1, min(groups, num_layers) + 1) if pipeline is None else (pipeline,):
            replicas, over = divmod(groups, p)
            if replicas and not rest and not over and micro_batches % replicas == 0:
                each = micro_batches // replicas
                found.append(RankLayout(p, replicas, each, tensor=tensor, context=context))
    if not found:
        raise TightropeError(
            f"micro_batches={micro_batches} cannot be divided among the replicas of {ranks} ranks of "
            f"{num_layers} layers: give a multiple of {ranks}{_inner_said(ranks, ways)}."
        )
    return found


def _inner_said(ranks: int, ways: Sequence[tuple[int, int]]) -> str:
    """Say what else may be wrong where layers are divided."""
    if any(ranks % (tensor * context) == 0 for tensor, context in ways):
        return ""
    tensor, context = ways[0]
    return f", and tensor={tensor} and context={context} whose product divides {ranks}"


def by_published(options: PipelineOptions) -> PipelineOptions:
    """Leave only what is tried at once, published orders, of what a search may do."""
    return replace(
        options,
        again=False,
        seconds=0.0,
        fold=False,
        shipped=False,
        listing=False,
        exact=False,
        improve=False,
    )


def _divided(cut: Segments, machine: Machine, tensor: int, context: int) -> tuple[Segments, Machine]:
    """Divide layers among tensor ranks, then their sequence among context ranks."""
    costs, inside, trained = cut.costs, cut.inside, cut.trained
    groups = grouped(machine, tensor)
    if tensor > 1:
        check_tensors(cut.names, inside, tensor)
        link = ring_within(machine, tensor)
        parts = shared_tensors(costs, inside, link, tensor)
        inside, trained = of_a_rank(inside, trained, costs, tensor)
        costs = parts
    if context > 1:
        check_sequence(cut.names, inside, context)
        link = slowest_within(groups, context)
        costs = shared_sequence(costs, inside, trained, link, context)
        inside = tuple(
            replace(one, experts=one.experts and one.experts.divided(1, context)) for one in inside
        )
    return replace(cut, costs=costs, inside=inside, trained=trained), groups


class LayoutSearch:
    """The best layout so far.

    Attributes:
        few: whether short pipelines are searched even where none can be the fastest.
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
        expert: int | None = 1,
    ) -> None:
        self.balance, self.expert = balance, expert
        self.cut, self.machine, self.limit = cut, machine, limit
        self.sharded, self.options, self.again = sharded, options, options.again
        self.tried: list[LayoutTried] = []
        self.best: tuple[RankLayout, JointPlan] | None = None
        self.few = True
        self._divided: dict[tuple[int, int], tuple[Segments, Machine]] = {}

    def look(self, layout: RankLayout) -> None:
        """Search for a plan of a layout: with parameters gathered by stage, and by layer."""
        wide = layout.pipeline * layout.micro_batches
        if wide > WIDEST:
            said = f"not tried: {layout.pipeline} ranks times {layout.micro_batches} micro-batches > {WIDEST}"
            self.tried.append(LayoutTried(layout, None, None, said))
            return
        for way in self._ways(layout):
            self._look(way)

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

    def by_promise(self, wanted: Sequence[RankLayout], end: float) -> list[RankLayout]:
        """Sort layouts by a bound on their time, given the layers again that bytes call for; plan a few.

        Once one fits, no other is begun after ``end``, in CPU seconds of this process.
        """
        ways = [(*self._promised(way), one) for one in wanted for way in self._ways(one)]
        ways.sort(key=lambda one: one[:3])
        for hopeless, ns, _, again, _ in ways[:GLANCES]:
            if self.best is None or (not hopeless and ns < self.best[1].ns and time.process_time() < end):
                self._search(again)
        return list(dict.fromkeys(one for *_, one in ways))

    def _ways(self, layout: RankLayout) -> list[RankLayout]:
        ways = (True, False) if self.sharded and layout.alike > 1 else (False,)
        experts = expert_ways(self.cut.inside, layout.alike, self.expert, layout.context)
        return [replace(layout, by_layer=way, expert=one) for one in experts for way in ways]

    def _promised(self, layout: RankLayout) -> tuple[bool, Nanoseconds, bool, RankLayout]:
        task, ranks = self._task(layout), layout.pipeline
        parts = layout.alike if task.sharded else 1
        held = sum((one.parameters + one.state) // parts for one in task.layers)
        gathered = sum(one.parameters + one.whole_gradients for one in task.layers) if task.sharded else 0
        depth = min(layout.micro_batches, ranks)  # micro-batches of which the first rank keeps something
        outputs, saved = (
            depth * sum(one) for one in ([k.output for k in task.layers], [k.saved for k in task.layers])
        )
        room = self.limit - max(one.work + one.saved for one in task.layers)
        room -= (held + gathered + outputs) // ranks
        share = min(1.0, max(0.0, 1 - room * ranks / saved)) if saved else 0.0
        again = replace(layout, again=math.ceil(share * num_keeping(task.layers)) if self.again else 0)
        long = ranks * layout.micro_batches > 8 * THOROUGH
        return room < 0 or long, self._least(self._task(again)), layout.by_layer, again

    def leave(self, layout: RankLayout) -> None:
        """Note that there was no time for a layout."""
        if not self._is_slower(layout):
            said = "not tried: no time was left; give pipeline, tensor or context"
            self.tried.append(LayoutTried(layout, None, None, said))

    def _least(self, task: PipelineTask) -> Nanoseconds:
        return min(
            bound(staged(task, owners, cuts), task.machine)
            for owners in placements(task, self.options)
            for cuts in cuts_of(task, len(owners))
        )

    def _is_slower(self, layout: RankLayout) -> bool:
        """Tell whether no plan of a layout can be faster than the best; note it if so."""
        if self.best is None or (self.few and layout.pipeline * layout.micro_batches <= THOROUGH):
            return False
        least = self._least(self._task(layout))
        if least >= self.best[1].ns:
            said = f"not searched further: no plan takes less than {format_time(least)}"
            self.tried.append(LayoutTried(layout, None, None, said))
        return least >= self.best[1].ns

    def refine(self, options: PipelineOptions, seconds: float) -> None:
        """Search layouts further, the fastest first, as long as they may be faster than the best."""
        end = time.process_time() + seconds
        self.options = options
        found = [(one.ns, place) for place, one in enumerate(self.tried) if one.ns is not None]
        for _, place in sorted(found):
            layout = self.tried[place].layout
            if self.best is None or self._least(self._task(layout)) >= self.best[1].ns:
                continue
            if time.process_time() > end:
                return
            self._search(layout)
            again = self.tried.pop()
            if again.ns is not None and again.ns < (self.tried[place].ns or again.ns + 1):
                self.tried[place] = again

    def once(self) -> tuple[LayoutTried, ...]:
        """Return what was found for every layout, once."""
        found: dict[tuple[object, ...], LayoutTried] = {}
        for one in self.tried:
            key = (one.layout.sizes, one.layout.by_layer, one.layout.expert)
            if key not in found or (one.ns or 1 << 62) < (found[key].ns or 1 << 62):
                found[key] = one
        return tuple(found.values())

    def search_smallest(self) -> None:
        """Search the layout whose published orders take fewest bytes, where nothing else fits."""
        left = [one for one in self.tried if one.peak is not None and one.said.startswith("not searched")]
        if self.best is None and left:
            self._search(min(left, key=lambda one: one.peak or 0).layout)

    def _search(self, layout: RankLayout) -> None:
        options = self.options
        if layout.pipeline * layout.micro_batches > 8 * THOROUGH:
            options = replace(by_published(options), seconds=options.seconds)
        found = self.planned(layout, options)
        if isinstance(found, InfeasibleError):
            said = f"does not fit: no plan takes less than {format_bytes(smallest(self._task(layout)))}"
            self.tried.append(LayoutTried(layout, None, found.smallest_found, said))
            return
        self.tried.append(LayoutTried(layout, found.ns, max(one.peak for one in found.ranks), found.method))
        if self.best is None or found.ns < self.best[1].ns:
            self.best = layout, found

    def _fewest(self, layout: RankLayout) -> tuple[RankLayout, Bytes | None]:
        """Find how few layers have to be computed again by published orders, or the fewest bytes of these."""
        high = num_keeping(self.cut.costs) if self.again else 0
        quick = by_published(self.options)
        if not high or searched(self._task(layout), quick).best:
            return layout, None
        most = self._most_worth(layout, high)
        tried = searched(self._task(replace(layout, again=most)), quick)
        if (found := tried.best) is None:
            return (layout, tried.fewest()) if most == high else (replace(layout, again=most + 1), None)
        high = most
        quick = replace(quick, per_rank=(len(found.work.stages) // layout.pipeline,))
        low, step, middle = 0, 1, self._promised(layout)[-1].again
        while low + 1 < high:  # from what was promised, in steps that double
            middle = min(max(middle, low + 1), high - 1)
            if searched(self._task(replace(layout, again=middle)), quick).best:
                high, middle = middle, max((low + middle) // 2, middle - step)
            else:
                low, middle = middle, min((high + middle) // 2, middle + step)
            step *= 2
        return replace(layout, again=high), None

    def _most_worth(self, layout: RankLayout, high: int) -> int:
        """Find how many layers may be computed again in a plan that is faster than the best, at most."""
        if self.few or self.best is None:
            return high
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            worth = self._least(self._task(replace(layout, again=middle))) < self.best[1].ns
            low, high = (middle, high) if worth else (low, middle - 1)
        return low

    def planned(self, layout: RankLayout, options: PipelineOptions) -> JointPlan | InfeasibleError:
        """Plan one layout as it is, or say why there is no plan."""
        below = self.best[1].ns if self.best is not None and not self.few else 0
        try:
            return plan_pipeline(self._task(layout), options, below=below)
        except InfeasibleError as error:
            return error

    def _task(self, layout: RankLayout) -> PipelineTask:
        cut, machine, shares = self.on_a_rank(layout)
        costs = cut.costs
        if layout.again:
            costs = computed_again(costs, layout.again)
        if layout.by_layer:
            link = ring_within(machine, layout.alike, layout.pipeline)
            costs = divided(costs, link, layout.alike, cut.trained, shares, layout.expert)
        else:
            costs = exchanged(
                costs, machine, layout, sharded=self.sharded, trained=cut.trained, shares=shares
            )
        return PipelineTask(
            costs,
            machine,
            layout.pipeline,
            layout.micro_batches,
            self.limit,
            layout.alike,
            self.sharded and layout.alike > 1 and not layout.by_layer,
            self.balance,
        )

    def inside(self, tensor: int, context: int) -> tuple[Segments, Machine]:
        """Return the layers of one rank where so many divide them, and the machine of such groups.

        Raises:
            TightropeError: they cannot.
        """
        if (tensor, context) not in self._divided:
            self._divided[tensor, context] = _divided(self.cut, self.machine, tensor, context)
        return self._divided[tensor, context]

    def on_a_rank(self, layout: RankLayout) -> tuple[Segments, Machine, list[float]]:
        """Return the layers of one rank, the machine of such groups, and which share of each are experts."""
        cut, machine = self.inside(layout.tensor, layout.context)
        ways, inside = layout.expert, cut.inside
        if ways == 1:
            return cut, machine, []
        link = slowest_within(machine, ways, layout.pipeline * layout.alike // ways)
        sharded = self.sharded and layout.alike > 1
        costs = shared_experts(cut.costs, inside, cut.trained, link, ways, sharded=sharded)
        shares = expert_shares(inside, cut.costs, ways)
        trained = (
            size * b.parameters // (a.parameters or 1)
            for size, a, b in zip(cut.trained, cut.costs, costs, strict=True)
        )
        return replace(cut, costs=costs, trained=tuple(trained)), machine, shares

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
        if not self.tried:
            return TightropeError(f"expert={self.expert} divides no group of replicas: give another number.")
        found = [(one.peak, one.layout) for one in self.tried if one.peak is not None]
        if not found:
            return TightropeError(f"{self.tried[0].said}: give fewer micro-batches, or a shorter pipeline.")
        least, layout = min(found, key=lambda one: one[0])
        return InfeasibleError(
            f"{format_bytes(self.limit)} per rank is too little for {ranks} ranks: the smallest plan found "
            f"takes {format_bytes(least)} per rank ({least} bytes), with {layout_said(layout)}. Give that "
            "much, more layers to divide, smaller micro-batches, divide parameters among replicas (sharded), "
            "or layers among ranks (tensor).",
            asked=self.limit,
            smallest_found=least,
        )
