"""When gradients are ready under a plan of ours: what is computed again delays those behind it.

Idea        Lower the plan, let it announce its gradients in groups as it does where processes train together,
            and read each announcement's time off the forecast.
Guarantee   These are the groups, the order and the times of the executable that runs.
Complexity  Linear in the instructions.
Gaps        One forward and one backward; the loss between them takes no time here.
"""

from itertools import chain

from tightrope.core import Announce, Graph, Machine, Plan, Return, TightropeError, View
from tightrope.lower import lower
from tightrope.lower.announce import announced, groups
from tightrope.lower.simulate import simulate
from tightrope_ranks.values.exchange import GradientStream


def planned_stream(graph: Graph, plan: Plan, *, machine: Machine | None = None) -> GradientStream:
    """Forecast the stream of gradients of a captured model under a plan.

    Args:
        graph: of a forward and its backward.
        plan: of the graph.
        machine: where pages have rates; needed where the plan pages.

    Returns:
        Gradients by the names of their inputs, in the order in which they are announced.

    Raises:
        TightropeError: the graph has no backward of its own.
    """
    if len(graph.parts) != 2:
        raise TightropeError(f"a graph of {len(graph.parts)} parts: give one of a forward and its backward.")
    forward, backward = graph.parts
    wanted = [
        number
        for number, one in enumerate(backward.outputs[: len(forward.inputs)])
        if isinstance(one, View) and forward.inputs[number].view is not None
    ]
    found = groups(graph, wanted) or (tuple(wanted),)
    executable = announced(graph, lower(graph, plan, machine), 1, found)
    times = simulate(executable, machine).times
    ends = [
        times[at][1] * 1e-9
        for at, one in enumerate(executable.instructions)
        if isinstance(one, Announce | Return)
    ]
    before, *ready = ends  # the forward returns first
    order = list(chain.from_iterable(found))
    compute = [0.0] * len(order)
    first, clock = 0, before
    for group, at in zip(found, ready, strict=True):
        compute[first] = at - clock
        first, clock = first + len(group), at
    sizes = tuple(_bytes(graph, backward.outputs[number]) for number in order)
    return GradientStream(
        tuple(forward.inputs[number].name for number in order), sizes, tuple(compute), before
    )


def _bytes(graph: Graph, made: object) -> int:
    return graph.storages[made.base].size if isinstance(made, View) else 0
