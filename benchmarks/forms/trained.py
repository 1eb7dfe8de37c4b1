"""Training runs under a budget, each in a process of its own that imported this and ran nothing before.

A refusal is a result. It names the budget for loops that drop their gradients before each forward, as here.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import torch

import tightrope
from benchmarks.forms.nets import NETS
from tightrope.core import Graph, InfeasibleError

_READY: Final = (
    __name__,
    "torch._dynamo",
    "torch._inductor.scheduler",
    "torch.export",
    "tightrope.capture.api",
)
"""Imported once for all processes."""
_STEPS, _TINY, _MOST_TRIES = 2, 1 << 18, 4  # the state of AdamW is there from the second step on
_NAMED: Final = (r"drops its gradients before each forward works with budget=(\d+)", r"budget=(\d+)")


class Trained(NamedTuple):
    """What became of some training steps."""

    budget: int
    named: int = 0  # by a refusal; 0 = they ran
    kept: int = 0  # bytes that a forward leaves for its backward where nothing is computed again
    planned: int = 0  # bytes, everything included
    observed: int = 0  # most bytes charged in the last step
    form: str = ""
    values: tuple[Any, ...] = ()  # of the first step, as numpy has them: the loss, and all gradients
    seconds: float = 0.0  # of CPU time of the process


class Smallest(NamedTuple):
    """The smallest budget that a refusal names, and that trains."""

    run: Trained
    refused: tuple[int, ...]  # budgets before it


def isolated(name: str, budget: str | int, *, rewrite: bool) -> Trained:
    """Train in a fresh process."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_READY))
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(train, name, budget, rewrite=rewrite).result()


def train(name: str, budget: str | int, *, rewrite: bool) -> Trained:
    """Train a net by AdamW."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, args = NETS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tightrope.compile(model, budget=budget, rewrite=rewrite, progress=False)
    values: tuple[Any, ...] = ()
    try:
        for step in range(_STEPS):
            optimizer.zero_grad()
            loss = model(*args)
            loss.backward()
            if not step:
                grads = (one.grad for one in model.parameters() if one.grad is not None)
                values = tuple(one.detach().numpy().copy() for one in (loss, *grads))
            optimizer.step()
    except (InfeasibleError, torch.OutOfMemoryError) as error:
        said = (re.search(pattern, str(error)) for pattern in _NAMED)
        named = next((int(found[1]) for found in said if found), 0)
        if not named or isinstance(budget, str):
            raise
        return Trained(budget, named, seconds=time.process_time())
    found = tightrope.report(model)
    graph, plan = found.planned[0]
    return Trained(
        found.budget, 0, _kept(graph), plan.forecast.total, found.observed_total, found.form, values,
        time.process_time(),
    )  # fmt: skip


def smallest(run: Callable[[int], Trained]) -> Smallest:
    """Give a budget that is far too small, then what refusals name, until it trains.

    Raises:
        RuntimeError: no budget that is named trains.
    """
    refused, found = list[int](), run(_TINY)
    while found.named and len(refused) < _MOST_TRIES:
        refused.append(found.budget)
        found = run(found.named)
    if found.named:
        raise RuntimeError(f"Refusals name {found.named:,} B after {refused}, and it does not train.")
    return Smallest(found, tuple(refused))


def far(right: Trained, found: Trained) -> float:
    """Compare losses and gradients; differences are relative to the largest number of all gradients."""
    (loss, *grads), (other, *others) = (list(map(torch.from_numpy, one.values)) for one in (right, found))
    most = max(float(one.abs().max()) for one in grads)
    apart = [float((a - b).abs().max()) / most for a, b in zip(grads, others, strict=True)]
    return max(abs(float(loss - other)) / abs(float(loss)), *apart)


def _kept(graph: Graph) -> int:
    end = graph.parts[0].end
    made = {storage for op in graph.ops[:end] for storage in op.creates}
    read = {storage for op in graph.ops[end:] for storage in op.reads}
    return sum(one.size for one in graph.storages if one.id in made & read)
