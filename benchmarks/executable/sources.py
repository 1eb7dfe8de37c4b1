"""Right executables to be damaged, timed and interpreted: of nets, as they run, and of random graphs.

Nets are compiled, trained for two steps and their executables taken where the runtime makes them
ready; the same graphs are then planned again for the smallest budget, and with pages in a slower tier.
"""

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from msgspec.structs import replace
from torch import nn

import tightrope
from benchmarks.zoo import Scale, build
from tests.oracles import random_graph
from tightrope.core import (
    Bytes,
    Executable,
    Graph,
    InfeasibleError,
    Machine,
    Op,
    Plan,
    Result,
    Tier,
    TightropeError,
    View,
    fitted,
)
from tightrope.core.executable import ARENA
from tightrope.core.graph import RETURN
from tightrope.lower import lower, simulate
from tightrope.plan import smallest, solve
from tightrope.plan.paging.search import PagingKnobs, plan_paging
from tightrope.run.compile import compiled_of
from tightrope.run.execute import prepared
from tightrope.run.ledger.accounts import accounts


@dataclass(frozen=True)
class Source:
    """A right executable.

    Attributes:
        name: net or seed, and how it runs.
        graph: with the machine's alignment.
        plan: that it was lowered from.
        executable: with addresses.
        machine: that it was planned for, None = no copies between tiers.
        seconds: that planning took.
    """

    name: str
    graph: Graph
    plan: Plan
    executable: Executable
    machine: Machine | None
    seconds: float

    @property
    def budget(self) -> Bytes:
        """Bytes of fast memory that it takes."""
        found = simulate(self.executable, self.machine)
        return found.persistent + self.executable.spaces[ARENA].capacity + found.outside


def two_tiers(graph: Graph, *, engines: int = 1) -> Machine:
    """A machine with a slower tier in which the whole graph has room."""
    size = 4 * sum(storage.size for storage in graph.storages) + 4096
    slow = Tier("slow", size, 16, read=8e9, write=8e9, latency=1e-8, watts=3.0, engines=engines)  # type: ignore[arg-type]
    return Machine("two tiers", (Tier("fast", 2**40), slow), watts=1.0)


def planned(name: str, graph: Graph, make: Callable[[], Plan], machine: Machine | None = None) -> Source:
    """Plan, with the time that it takes, and lower."""
    began = time.perf_counter()
    plan = make()
    seconds = time.perf_counter() - began
    fit = graph if machine is None else fitted(graph, machine.tiers[0].alignment)
    return Source(name, fit, plan, lower(graph, plan, machine), machine, seconds)


def tight(name: str, graph: Graph) -> Iterator[Source]:
    """Plan for the smallest budget that is found, for a third of the way up, and with pages.

    Paging is planned for one call of a model.
    """
    least = planned(f"{name}, smallest", graph, lambda: smallest(graph))
    yield least
    most = solve(graph, budget=2**60, planner="given").forecast.total
    middle = least.plan.budget + (most - least.plan.budget) // 3
    yield planned(f"{name}, one third", graph, lambda: solve(graph, budget=middle))
    for engines in (1, 2) if len({part.call for part in graph.parts}) < 2 else ():
        for budget in (least.plan.budget, middle):
            with suppress(InfeasibleError):
                found = _paged(
                    f"{name}, paged by {engines}", graph, budget, two_tiers(graph, engines=engines)
                )
                yield found
                break


def _paged(name: str, graph: Graph, budget: Bytes, machine: Machine) -> Source:
    knobs = PagingKnobs(recompute=False)
    return planned(
        name, graph, lambda: plan_paging(graph, machine=machine, budget=budget, knobs=knobs), machine
    )  # fmt: skip


# nets


@contextmanager
def taken() -> Iterator[list[Source]]:
    """Take every executable that the runtime makes ready."""
    found: list[Source] = []
    before: Any = vars(prepared)["lowered"]

    def note(graph: Graph, plan: Plan, machine: Machine | None = None) -> Any:
        made = before(graph, plan, machine)
        found.append(Source("", graph, plan, made.executable, machine, 0.0))
        return made

    with patch.object(prepared, "lowered", note):
        yield found


def run_net(name: str, way: str, scale: Scale) -> list[Source]:
    """Run a net twice with all the memory that it wants, and take what runs."""
    torch._dynamo.reset()
    gc.collect()
    accounts()
    case = build(name, scale=scale)
    model: Any = case.model
    owner: Any
    call: Any
    with taken() as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way == "step":
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            owner = call = tightrope.step(
                lambda *batch: model(*batch), budget=2**46, model=model, optimizer=optimizer, progress=False
            )
        else:
            owner = Halves(model) if way == "pieces" else model
            call = tightrope.compile(owner, budget=2**46, progress=False)
        for _ in range(2):
            if way == "inference":
                with torch.no_grad():
                    call(*case.inputs)
            else:
                loss = call(*case.inputs)
                if way != "step":
                    loss.backward()
                del loss
        accounts().release(owner if way == "step" else compiled_of(owner))
    return found


class Halves(nn.Module):
    """A net that runs twice in one step, with a break of the graph in between."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *batch: Any) -> Any:
        """Add two losses."""
        first = self.net(*batch)
        torch._dynamo.graph_break()
        return first + self.net(*batch)


def of_net(name: str, way: str, scale: Scale) -> Iterator[Source]:
    """Executables of one net run in one way, as it ran and planned again for tight budgets."""
    ran = run_net(name, way, scale)
    if not ran:
        raise TightropeError(f"nothing of {name} ran by {way}.")
    largest = max(ran, key=lambda one: len(one.graph.ops))
    for number, one in enumerate(ran[:2]):
        yield Source(f"{name} {way}, as it ran {number}", one.graph, one.plan, one.executable, None, 0.0)
    yield from tight(f"{name} {way}", largest.graph)


# random graphs


def typed(graph: Graph) -> Graph:
    """Give the ops of a random graph arguments and results: one view of each storage, whole."""

    def whole(storage: int) -> View:
        return View(storage, "uint8", (graph.storages[storage].bytes,), (1,))

    def filled(op: Op) -> Op:
        if op.target == RETURN:
            return op
        results = tuple(Result(k, whole(s)) for k, s in enumerate(op.creates))
        arguments = tuple(whole(s) for s in op.reads)
        return replace(op, target=f"{op.target}.{op.id}", arguments=arguments, results=results)

    return replace(graph, ops=tuple(map(filled, graph.ops)), variants=tuple(map(filled, graph.variants)))


def of_seed(seed: int) -> Iterator[Source]:
    """Executables of one random graph."""
    graph = typed(random_graph(seed, num_ops=Random(seed).randint(5, 16)))
    yield from tight(f"random {seed}", graph)
