"""What a step on many ranks takes, told from shapes: layout, schedule, bytes and time of every rank.

Idea        N ranks are P ranks of a pipeline times R replicas of it, where T divide every layer, and C the
            sequence. For every P that divides N / (T C), the layers' costs follow from shapes and a machine's
            rates, the sum of gradients over the replicas from its links, and the planner of pipelines finds a
            schedule; the fastest that fits is taken. Any other module is cut at its longest list of layers
            (`segments`), stages of about equal times or bytes.
Guarantee   The answer is a plan of all ranks of one replica that the judge accepted. Nothing is computed, no
            process is started, and no memory is taken for a model on the meta device.
Complexity  One search per divisor of N; `WIDEST` keeps out pipelines that are too long to try.
Gaps        Times are modelled. Replicas are alike and on time; their sums are rings over one link, one per
            layer, once per step. The layout is the fastest of those tried, not proved. Frozen
            parameters are left out of sums of gradients; a backward through frozen layers alone is timed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tightrope.capture._eager import tensors_in
from tightrope.core import Machine, TightropeError, parse_bytes
from tightrope.core.units import Bytes, Nanoseconds, shown
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.emit import emitted
from tightrope_ranks.pipeline.expert_costs import ExpertsTold, check_experts, experts_told
from tightrope_ranks.pipeline.layouts import LayoutSearch, LayoutTried, by_published, layouts
from tightrope_ranks.pipeline.measure import shape_layers, trained_bytes
from tightrope_ranks.pipeline.precision import AS_GIVEN, Precision, precision_of
from tightrope_ranks.pipeline.rank_layout import RankLayout, layout_said
from tightrope_ranks.pipeline.reserved import reserved
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.segments import Segments, notes_on, segment_costs
from tightrope_ranks.pipeline.together import LayerInside
from tightrope_ranks.values.ranks import JointPlan

MOST_RANKS: Final = 1024
SECONDS: Final = 2.0
"""Of search, per layout."""
TRIED: Final = 6.0
REFINED: Final = 6.0
"""Seconds of search over all layouts, by published orders and beyond, where layers are divided."""


@dataclass(frozen=True, slots=True)
class RankTake:
    """What a rank of the pipeline takes, and each of its replicas.

    Attributes:
        rank: of the pipeline.
        stages: that live there.
        layers: of each stage, half-open ranges of `RanksEstimate.names`.
        peak: most bytes at any time.
        held: bytes that it holds all the time.
        compute_ns: time that it computes.
        again: forwards that it computes again.
        exchange_ns: time of gathering parameters once and summing gradients, on a stream of their own; 0
            where layers do that whenever they run.
    """

    rank: int
    stages: tuple[int, ...]
    layers: tuple[tuple[int, int], ...]
    peak: Bytes
    held: Bytes
    compute_ns: Nanoseconds
    again: int
    exchange_ns: Nanoseconds


@dataclass(frozen=True, slots=True)
class RanksEstimate:
    """A step on many ranks, forecast.

    Attributes:
        ranks: in all.
        limit: bytes per rank.
        layout: the one that was chosen.
        plan: of all ranks of one replica, judged.
        takes: per rank of the pipeline.
        tried: every layout.
        names: of the layers.
        shared: parameters of several layers; each layer holds them here, and sums of their gradients between
            stages are not timed.
        notes: on what is not as one would think.
        batch: shape of a micro-batch, its first tensor.
        computes: type that layers compute in, by torch's names.
        reserved: most bytes that torch's allocator keeps on a rank where torch's own engines run the plan;
            0 = not told, see `tightrope_ranks.pipeline.reserved`.
        experts: what those of a rank take; None = the model has none.
    """

    ranks: int
    limit: Bytes
    layout: RankLayout
    plan: JointPlan
    takes: tuple[RankTake, ...]
    tried: tuple[LayoutTried, ...]
    names: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    computes: str = ""
    reserved: Bytes = 0
    experts: ExpertsTold | None = None


def is_sequence(model: object) -> bool:
    """Tell whether a model is a sequence of layers, each of which takes what the one before returns.

    A class of its own with a forward of its own is none: its layers may be called in any way.

    >>> is_sequence(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    True
    """
    if isinstance(model, list | tuple):
        return True
    kinds = (torch.nn.Sequential, torch.nn.ModuleList)
    if not isinstance(model, kinds) or "forward" in vars(model):
        return False
    return type(model).forward in [kind.forward for kind in kinds if isinstance(model, kind)]


def cut_model(
    model: object,
    example: object,
    kwargs: Mapping[str, Any] | None,
    machine: Machine,
    *,
    states: float = 0.0,
    precision: Precision = AS_GIVEN,
) -> Segments:
    """Read a model as layers, with what each takes for one micro-batch.

    Raises:
        TightropeError: it cannot be cut, or called so.
    """
    if not is_sequence(model) and isinstance(model, torch.nn.Module):
        args = tuple(example) if isinstance(example, tuple | list) else (example,)
        return segment_costs(model, args, kwargs, machine=machine, states=states, precision=precision)
    if isinstance(model, torch.nn.Sequential | torch.nn.ModuleList | list | tuple):
        layers = tuple(model)
        if layers and all(isinstance(one, torch.nn.Module) for one in layers):
            if isinstance(example, tuple) and len(example) == 1:
                (example,) = example
            if not isinstance(example, torch.Tensor) or kwargs:
                raise TightropeError(
                    f"the first layer is called with {type(kwargs or example).__name__}: give one tensor, a "
                    "micro-batch."
                )
            names = tuple(f"layer {number}" for number in range(len(layers)))
            unpriced: set[str] = set()
            inside: list[LayerInside] = []
            costs = shape_layers(
                layers, example, machine, states=states, unpriced=unpriced, precision=precision, inside=inside
            )
            trained = tuple(trained_bytes(one, precision) for one in layers)
            notes = notes_on(unpriced, alone=not any(trained))
            return Segments(names, costs, _tied(layers), trained, notes, tuple(inside))
    raise TightropeError(
        f"a model of class {type(model).__name__} is no sequence of layers, so it cannot be cut into stages. "
        "Give a torch.nn.Module, or a list of at least one, each taking what the one before returns."
    )


def _tied(layers: Sequence[torch.nn.Module]) -> tuple[str, ...]:
    """Name the parameters that several layers have, as the first does."""
    users: dict[int, list[str]] = {}
    for number, layer in enumerate(layers):
        for name, one in layer.named_parameters():
            users.setdefault(id(one), []).append(f"{number}.{name}")
    return tuple(names[0] for names in users.values() if len(names) > 1)


def estimate_ranks(
    model: object,
    example: torch.Tensor | tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    ranks: int,
    machine: Machine,
    budget: str | int | None = None,
    pipeline: int | None = None,
    tensor: int | None = 1,
    context: int | None = 1,
    expert: int | None = 1,
    micro_batches: int | None = None,
    optimizer_states: float = 0.0,
    precision: str | Precision = "model",
    sharded: bool = False,
    options: PipelineOptions | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> RanksEstimate:
    """Tell layout, schedule, bytes and time per rank of a training step; nothing is run.

    Args:
        model: a torch.nn.Sequential or list of layers, or any module with a list of layers, such as those of
            transformers; on any device or on meta.
        example: one micro-batch, a tensor; of a module with a list of layers, the arguments of its forward.
        kwargs: of the forward of such a module.
        ranks: in all, at most 1,024.
        machine: a cluster: ``devices``, ``[[links]]`` and rates (``flops.matmul``).
        budget: bytes per rank, or a share of a device's memory; None = all of it.
        pipeline: ranks that stages live on; None = what is fastest.
        tensor: ranks that divide every layer, neighbours; None = what is fastest within a node.
        context: ranks that divide the sequence of attention; None = what is fastest.
        expert: ranks that divide the experts of a layer, of those that hold the same other parameters; None
            = what is fastest.
        micro_batches: of a step, over all replicas; None = twice the ranks.
        optimizer_states: how many states the optimizer keeps per parameter: 2 for Adam.
        precision: types that layers compute in and of what is held: ``model`` (as it is), ``fp32``, ``bf16``
            (with a copy in fp32 that the optimizer updates), ``bf16-fp32-gradients``, ``autocast``, or a
            policy of your own.
        sharded: whether replicas divide parameters, gradients and state.
        options: of the search per layout; by default gradients are added up as one process does.
        progress: is called with layouts done, layouts, and what comes.

    Raises:
        InfeasibleError: no layout has a plan within the bytes; says the smallest that was found.
        TightropeError: a wrong argument, a model without a list of layers, a machine too small.

    Example:
        >>> from tightrope.core import DeviceLink, Tier
        >>> cluster = Machine(
        ...     "two nodes", (Tier("hbm", 2**30),), {"matmul": 1e12}, devices=8,
        ...     links=(DeviceLink("inside", 1e-5, 1e11, span=4), DeviceLink("between", 1e-4, 1e9, level=1)),
        ... )
        >>> layers = [torch.nn.Linear(64, 64, device="meta") for _ in range(4)]
        >>> found = estimate_ranks(layers, torch.empty(32, 64, device="meta"), ranks=8, machine=cluster)
        >>> found.layout.pipeline * found.layout.replicas
        8
    """
    count = _checked(ranks, machine, micro_batches)
    limit = machine.tiers[0].bytes if budget is None else parse_bytes(budget, whole=machine.tiers[0].bytes)
    policy = precision_of(precision)
    cut = cut_model(model, example, kwargs, machine, states=optimizer_states, precision=policy)
    options = options or PipelineOptions(ascending=True, split=False, seconds=SECONDS)
    check_experts(cut.inside, ranks, expert)
    balance = not is_sequence(model)
    search = LayoutSearch(cut, machine, limit, sharded, options, balance=balance, expert=expert)
    ways = _ways(search, ranks, tensor, context)
    search.few = len(ways) == 1 and expert is not None
    _search(search, layouts(ranks, len(cut.costs), count, pipeline, ways), progress)
    if search.best is None:
        raise search.refusal(ranks)
    batch = next((tuple(one.shape) for one in tensors_in((example, kwargs))), ())
    return _answer(search, ranks, batch, _computes(model, policy))


def _answer(search: LayoutSearch, ranks: int, batch: tuple[int, ...], computes: str) -> RanksEstimate:
    """Judge the best plan, and say what it takes."""
    assert search.best is not None
    layout, plan = search.best
    judge_ranks(plan)
    cuts, cut = search.cuts(layout, plan), search.cut
    return RanksEstimate(
        ranks,
        search.limit,
        layout,
        plan,
        tuple(_takes(plan, rank, cuts) for rank in range(layout.pipeline)),
        tuple(search.tried) if search.few else search.once(),
        cut.names,
        cut.shared,
        cut.notes,
        batch,
        computes,
        reserved(search, layout, plan),
        experts_told(search.on_a_rank(layout)[0], plan, cuts, ways=layout.expert, again=layout.again),
    )


def _search(
    search: LayoutSearch, wanted: list[RankLayout], progress: Callable[[int, int, str], None] | None
) -> None:
    """Search layouts: few of them in every way; of many, the promising ones first, and for a time."""
    options, end = search.options, time.process_time() + TRIED
    if not search.few:
        search.options = by_published(options)
        wanted = search.by_promise(wanted, end)
    for number, layout in enumerate(wanted):
        if progress is not None:
            progress(number, len(wanted), layout_said(layout))
        if search.few or search.best is None or time.process_time() < end:
            search.look(layout)
        else:
            search.leave(layout)
    if not search.few:
        search.refine(options, REFINED)
    search.search_smallest()


def _computes(model: object, policy: Precision) -> str:
    layers = [model] if isinstance(model, torch.nn.Module) else model
    assert isinstance(layers, list | tuple)
    first = next((p.dtype for layer in layers for p in layer.parameters()), torch.float32)
    return str(policy.autocast or policy.compute or first).removeprefix("torch.")


def _ways(search: LayoutSearch, ranks: int, tensor: int | None, context: int | None) -> list[tuple[int, int]]:
    """List the (tensor, context) ranks to try; what the caller gave is not left out where it cannot be."""
    inner = (search.machine.links[0].span if search.machine.links else 1) or ranks
    tensors, contexts = [tensor or 1], [context or 1]
    if tensor is None:
        tensors = [number for number in range(1, min(ranks, inner) + 1) if ranks % number == 0]
    if context is None:
        contexts = [number for number in (1, 2, 4, 8, 16, 32) if ranks % number == 0]
    for name, number in (("tensor", tensor), ("context", context)):
        if number is not None and (number < 1 or ranks % number):
            raise TightropeError(f"{name}={number} does not divide {ranks} ranks: give a divisor.")
    found = []
    for one in ((t, c) for t in tensors for c in contexts if ranks % (t * c) == 0):
        try:
            search.inside(*one)
        except TightropeError:
            if (tensor is not None or one[0] == 1) and (context is not None or one[1] == 1):
                raise
            continue
        found.append(one)
    if not found:
        raise TightropeError(f"tensor={tensor} times context={context} does not divide {ranks} ranks.")
    return found


def _checked(ranks: object, machine: Machine, micro_batches: object) -> int:
    """Refuse what cannot be estimated; return the number of micro-batches."""
    if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise TightropeError(f"ranks={shown(ranks)}: give a whole number from 1 to {MOST_RANKS}.")
    if ranks > machine.devices:
        raise TightropeError(
            f"{ranks} ranks need as many devices; machine {machine.name!r} has devices = {machine.devices}. "
            "Give fewer ranks, or a profile with more devices and [[links]] between them."
        )
    count = 2 * ranks if micro_batches is None else micro_batches
    if not isinstance(count, int) or count < 1:
        raise TightropeError(f"micro_batches={shown(micro_batches)}: give a whole number of at least 1.")
    return count


def _takes(plan: JointPlan, rank: int, cuts: Sequence[int]) -> RankTake:
    work, mine = plan.work, plan.ranks[rank]
    stages = work.local(rank)
    costs = [work.stages[stage] for stage in stages]
    again = emitted(work, mine).again
    whole = work.num_micro_batches * sum(one.forward + one.backward + one.weight for one in costs)
    return RankTake(
        rank,
        stages,
        tuple((cuts[k], cuts[k + 1]) for k in stages),
        mine.peak,
        work.held(rank),
        whole + sum(work.stages[stage].forward for stage, _ in again),
        len(again),
        sum(one.gather + one.reduce for one in costs),
    )
