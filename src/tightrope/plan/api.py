"""The public `plan`: budgets as people write them."""

from tightrope.core import Bytes, Graph, Machine, Plan, TightropeError, parse_bytes
from tightrope.core.arguments import check_kind, check_search
from tightrope.core.machine import check_machine
from tightrope.lower import lower, peak_bytes
from tightrope.plan.schedule import base_schedule
from tightrope.plan.search import solve


def whole_bytes(graph: Graph, machine: Machine | None = None) -> Bytes:
    """Total bytes that the given order needs: what 100 % stands for.

    Raises:
        TightropeError: the caller holds something in a slower tier, which no planner here pages.
    """
    if any(storage.home for storage in graph.storages):
        raise TightropeError(
            "the graph was made for a microcontroller, with weights in a slower tier; "
            "tightrope micro compile plans such steps. For other planners use tightrope.capture."
        )
    return graph.persistent + peak_bytes(lower(graph, base_schedule(graph), machine))


def plan(
    graph: Graph,
    *,
    budget: str | int,
    machine: Machine | None = None,
    planner: str = "auto",
    seconds: float | None = None,
    seed: int = 0,
) -> Plan:
    """Plan a graph under a total number of bytes.

    Args:
        graph: as captured, with measured or estimated times.
        budget: ``"8GiB"``, bytes, or a share such as ``"80%"`` of what the given order needs.
        machine: profile to name in the plan.
        planner: name in the registry.
        seconds: of search; default: a fixed effort.
        seed: of the search.

    Raises:
        BudgetSyntaxError: the budget is not an amount of memory.
        TightropeError: there is no such planner, or another argument is wrong.
        InfeasibleError: no plan fits, with the smallest found, a proved bound and its op.

    Example:
        >>> import torch, tightrope
        >>> graph = tightrope.capture(torch.nn.Linear(8, 8), torch.ones(2, 8))
        >>> tightrope.plan(graph, budget="100%").forecast.tdi_percent
        0.0
    """
    check_kind("graph", graph, Graph, "a tightrope.Graph, such as tightrope.capture(model, x) returns")
    check_machine(machine)
    check_search(seed=seed, seconds=seconds)
    size = parse_bytes(budget, whole=whole_bytes(graph, machine))
    return solve(graph, budget=size, machine=machine, planner=planner, seconds=seconds, seed=seed)
