"""A peak-aware budget in bytes inside stock torch.compile.

    >>> import torch
    >>> from tightrope_planners import partition
    >>> partition.install("300MB")                          # the one line
    >>> model = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
    >>> model(torch.ones(2, 8)).sum().backward()
    >>> partition.uninstall()

torch decides once per graph what its backward keeps; its own knob is a share of the bytes kept. Here
the choice is the cheapest one whose simulated *peak* fits the bytes asked for, random ops never run
twice, and a budget that cannot be kept is refused with the smallest one that can.

The budget covers one compiled graph: its inputs (parameters, buffers, batch) and everything its ops
make. Optimizer state and other graphs are not in it. The peak is that of ATen ops in graph order;
generated kernels fuse, and usually take less. Where a byte limit must hold always, use
`tightrope.compile`, which also makes values again more than once.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.fx

from tightrope.core import Bytes, Graph, InfeasibleError, Machine, StorageId, format_bytes, parse_bytes
from tightrope.plan.bound import lower_bound
from tightrope.plan.engine import open_solver, outside_peak
from tightrope.plan.model import build
from tightrope.price import price_graph, table
from tightrope_planners import _torch
from tightrope_planners import joint as joint_graphs
from tightrope_planners.joint import Joint, joint_of, mark_nodes, must_keep, read_joint, split_joint
from tightrope_planners.peers import mincut, mincut_prices
from tightrope_planners.peers.mincut import MincutKnobs, Partition, backward_begin, partition
from tightrope_planners.peers.mincut_prices import fused_prices, inlined, measured_prices

Budget = str | int


@dataclass(frozen=True, slots=True)
class Kept:
    """What the backward of one graph keeps.

    Attributes:
        kept: forward storages.
        peak: simulated total bytes.
        again: names of the ops that run again.
    """

    kept: frozenset[StorageId]
    peak: Bytes
    again: tuple[str, ...]


def choose(
    graph: Graph,
    *,
    budget: Budget,
    machine: Machine | None = None,
    fused: Joint | None = None,
) -> Kept:
    """Choose what the backward keeps, so that the peak fits and the least work runs again.

    Args:
        graph: of a joint graph; times that are missing are estimated.
        budget: total bytes (``"300MB"``, 314572800), or a share of the peak without recomputation.
        machine: rates for the estimate, None = this computer with nominal rates.
        fused: the joint graph whose pointwise ops a compiler will fuse, None = every op is a kernel.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        InfeasibleError: no choice fits; names the smallest peak found and a proved bound.
    """
    priced = price_graph(graph, machine or Machine.here())
    unwritten = frozenset[StorageId]() if fused is None else inlined(priced, fused.fusible, fused.pointwise)
    prices = measured_prices(priced) if fused is None else fused_prices(priced)
    beside = priced.persistent + outside_peak(priced)
    asked = parse_bytes(budget, whole=beside + open_solver(build(priced)).state(0).peak)
    limit = max(0, asked - beside)
    found = partition(priced, limit, prices=prices, knobs=MincutKnobs(anew=False), inlined=unwritten)
    if beside + found.peak > asked:
        raise _infeasible(priced, asked, beside + found.peak)
    return Kept(_kept(priced, found), beside + found.peak, _names(priced, found))


def _kept(graph: Graph, found: Partition) -> frozenset[StorageId]:
    begin = backward_begin(graph)
    again = {storage for op in found.cut.again for storage in graph.ops[op].creates}
    made = {storage for op in graph.ops[:begin] for storage in op.creates}
    return frozenset(found.cut.kept | (must_keep(graph) & made) - again)


def _names(graph: Graph, found: Partition) -> tuple[str, ...]:
    return tuple(graph.ops[op].name for op in sorted({op for _, op in found.pairs}))


def partitioner(budget: Budget, *, machine: Machine | None = None) -> Any:
    """Make a value for ``torch._inductor.config.custom_partitioner_fn``.

    Args:
        budget: as in `choose`.
        machine: as in `choose`.

    Example:
        >>> partitioner("300MB").uuid().startswith("tightrope")
        True
    """
    split = functools.partial(_split, budget=budget, machine=machine)
    return _torch.custom_partitioner(split, _key("partitioner", budget, machine))


def _split(
    joint: torch.fx.GraphModule,
    _inputs: Any,
    *,
    num_fwd_outputs: int,
    budget: Budget,
    machine: Machine | None,
    **options: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    return split_within(
        joint,
        budget=budget,
        machine=machine,
        num_forward_outputs=num_fwd_outputs,
        static=options.get("static_lifetime_input_indices") or (),
        fused=options.get("compiler") == "inductor",
    )


def split_within(
    module: torch.fx.GraphModule,
    *,
    budget: Budget,
    num_forward_outputs: int,
    machine: Machine | None = None,
    static: Sequence[int] = (),
    fused: bool = False,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Split a joint graph into a forward and a backward under a budget; a ``partition_fn``'s work.

    Raises:
        CaptureError: dynamic shapes, or an op that is half a view.
        InfeasibleError: no choice fits.
    """
    _torch.tidy_joint(module)
    joint = read_joint(module, num_forward_outputs=num_forward_outputs)
    kept = frozenset[StorageId]()
    if _has_backward(joint):
        kept = choose(joint.graph, budget=budget, machine=machine, fused=joint if fused else None).kept
    return split_joint(joint, kept, static=static)


def _has_backward(joint: Joint) -> bool:
    return any(0 < end < len(joint.graph.ops) for end in joint.graph.boundaries)


def knapsack_solver(budget: Budget, *, machine: Machine | None = None) -> Any:
    """Make a value for ``torch._functorch.config.activation_memory_budget_solver``.

    ``activation_memory_budget`` must lie strictly between 0 and 1, at best near 0. torch asks the
    solver about the ops that its own rules would keep, then cuts again by rules of its own: nodes are
    marked, so that this cut is ours. A graph in which nothing but cheap ops could be kept is not asked
    about, and torch makes all of it again.
    """
    choose_saved = functools.partial(_choose_saved, budget=budget, machine=machine)
    return _torch.knapsack_solver(choose_saved, _key("knapsack", budget, machine))


def _choose_saved(
    joint_graph: Any, node_info: Any, banned: Sequence[Any], *, budget: Budget, machine: Machine | None
) -> tuple[list[int], list[int]]:
    module = joint_of(joint_graph)
    joint = read_joint(module, num_forward_outputs=_num_forward_outputs(module, node_info))
    choice = choose(joint.graph, budget=budget, machine=machine)
    mark_nodes(joint, choice.kept, choice.again)
    storages, stay = joint.storage_of, choice.kept | must_keep(joint.graph)
    again = [at for at, node in enumerate(banned) if node in storages and storages[node] not in stay]
    return sorted(set(range(len(banned))) - set(again)), again


def _num_forward_outputs(module: torch.fx.GraphModule, info: Any) -> int:
    """Count the leading outputs that depend on no gradient."""
    (output,) = module.graph.find_nodes(op="output")
    late = set(info.required_bw_nodes)
    count = 0
    for value in output.args[0]:
        if value in late:
            break
        count += 1
    return count


def _key(what: str, budget: Budget, machine: Machine | None) -> str:
    """Name a setting in torch's compile caches; another budget, machine or source makes another name."""
    sources = (joint_graphs, mincut, mincut_prices, table)
    files = [Path(str(module.__file__)).read_bytes() for module in sources]
    digest = hashlib.sha256(b"".join([Path(__file__).read_bytes(), *files])).hexdigest()[:16]
    return f"tightrope {what} {budget} {machine!r} {digest}"


@contextmanager
def within(budget: Budget, *, machine: Machine | None = None) -> Iterator[None]:
    """Keep everything that torch.compile compiles in the ``with`` block under a budget.

    Works for Inductor (through its partitioner) and for ``aot_eager`` (through the knapsack solver).

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
    """
    parse_bytes(budget, whole=1)
    solver = knapsack_solver(budget, machine=machine)
    with _torch.partitioning(partitioner(budget, machine=machine), solver):
        yield


def install(budget: Budget, *, machine: Machine | None = None) -> None:
    """The same for the rest of the process, until `uninstall`.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
    """
    parse_bytes(budget, whole=1)
    _torch.set_partitioning(partitioner(budget, machine=machine), knapsack_solver(budget, machine=machine))


def uninstall() -> None:
    """Give torch's own partitioner back its work."""
    _torch.unset_partitioning()


def _infeasible(graph: Graph, asked: Bytes, found: Bytes) -> InfeasibleError:
    bound, witness = lower_bound(graph)
    who = graph.ops[witness].describe() if witness >= 0 else "the graph's own inputs"
    return InfeasibleError(
        f"asked {format_bytes(asked)}; smallest found {format_bytes(found)} when every value is made again "
        f"at most once (proved >= {format_bytes(bound)} for any plan); largest step: {who}. Ask for {found} "
        "bytes or more, or use tightrope.compile, which plans below that.",
        asked=asked,
        smallest_found=found,
        lower_bound=bound,
        op=who,
    )
