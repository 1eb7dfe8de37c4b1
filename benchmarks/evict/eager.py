"""Eager loops under eviction: equal bits, bytes from the arena, what ran again, what interception costs.

    python -m benchmarks evict [--nets resnet18,tree_lstm] [--scale test] [--policies coop,dtr]

Per net of the zoo: its training steps with SGD, first without a limit worth the name, which gives the peak,
then at falling shares of that peak until a budget is refused or `--lowest` is reached. Interception is
measured alone, on an op of a few numbers, as CPU time of the thread.
"""

import argparse
import sys
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tightrope
from benchmarks.zoo import REGISTRY, build
from tightrope.run.evict.context import Eviction, evict

_RATIOS = (90, 80, 70, 60, 50, 40, 30, 20, 10)
_ROUNDS = 4000
_NETS = ("resnet18", "unet", "vit", "gpt2_small_vocab", "inplace_tied", "tree_lstm")
"""Measured by default; ``all`` is every net of the zoo."""


def train(name: str, scale: Any, steps: int) -> list[Tensor]:
    """Train a net of the zoo; return all that its steps change."""
    case = build(name, scale=scale)
    optimizer = torch.optim.SGD(case.model.parameters(), 0.01, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = case.model(*case.inputs)
        loss.backward()
        losses.append(loss.detach().clone())
        optimizer.step()
        del loss
    gradients = [one.grad for one in case.model.parameters() if one.grad is not None]
    return [*losses, *case.model.state_dict().values(), *gradients, torch.get_rng_state()]


def point(name: str, options: argparse.Namespace, budget: int, policy: str) -> tuple[list[Tensor], Eviction]:
    """Train under a budget.

    Raises:
        OutOfBudgetError: that is not enough.
    """
    with evict(budget, policy=policy) as eviction:
        found = train(name, options.scale, options.steps)
    return found, eviction


def interception() -> tuple[float, float]:
    """Measure an op on 16 numbers without and with interception, in us of CPU time."""
    a, b = torch.ones(16), torch.ones(16)
    plain = _each(lambda: torch.add(a, b))
    with evict("64MiB"):
        return plain, _each(lambda: torch.add(a, b))


def _each(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(5):
        start = thread_time_ns()
        for _ in range(_ROUNDS):
            call()
        best = min(best, (thread_time_ns() - start) / _ROUNDS / 1e3)
    return best


def main(arguments: list[str]) -> int:
    """Print one table per run; 1 where a result differs from eager or a budget was exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks evict")
    parser.add_argument("--nets", default=",".join(_NETS), help="of the zoo; all: every one")
    parser.add_argument("--scale", default="test", choices=("test", "bench"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--policies", default="coop")
    parser.add_argument("--lowest", type=int, default=50, help="smallest share of the peak, in percent")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console, wrong = Console(width=120), 0
    plain, watched = interception()
    console.print(
        f"an op on 16 numbers: {plain:.2f} us, intercepted {watched:.2f} us: {watched - plain:.2f} us more"
    )
    table = Table(
        "net", "policy", "peak KiB", "ratio %", "bits", "high water %", "ran again", "of ops", "evictions"
    )
    table.add_column("us per search")
    for name in REGISTRY if options.nets == "all" else options.nets.split(","):
        expected = train(name, options.scale, options.steps)
        _, free = point(name, options, 2**34, "coop")
        peak = free.statistics().high_water
        for policy in options.policies.split(","):
            for ratio in (one for one in _RATIOS if one >= options.lowest):
                budget = peak * ratio // 100
                try:
                    found, eviction = point(name, options, budget, policy)
                except tightrope.OutOfBudgetError:
                    table.add_row(name, policy, str(peak // 1024), str(ratio), "refused")
                    break
                now = eviction.statistics()
                equal = all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
                wrong += (not equal) + (now.high_water > budget)
                row = (peak // 1024, ratio, "equal" if equal else "DIFFER", 100 * now.high_water // peak)
                again = (eviction.num_recomputed, eviction.num_ops, now.evictions)
                search = f"{now.search_ns / max(1, now.evicting) / 1e3:.1f}"
                table.add_row(name, policy, *(str(one) for one in (*row, *again)), search)
        console.print(f"{name} done")
    console.print(table)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
