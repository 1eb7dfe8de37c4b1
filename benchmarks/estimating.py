"""How far `tightrope estimate` is from what is seen: ``python -m benchmarks estimating``.

    python -m benchmarks estimating [--nets gpt2,unet] [--scale test|bench] [--largest]

Peak. A row per net: what the estimate says that a loop with AdamW needs in all, every op once, and what the
allocator saw it need under a budget that is never reached: parameters, buffers, inputs, state, and the most
live bytes of a step and its update. *difference* is observed minus estimated. *eager* is what the plain loop
was seen to need, which writes no result over an input and has dropout's own temporaries.

Largest. For two nets: the largest batch that fits a budget with a plan is named; three steps of that batch
are trained in that budget, and one row more is refused. The loop drops its gradients before each forward.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console

import tightrope
from benchmarks._measure import Loop, live_peak
from benchmarks.spine.bar import TEN
from benchmarks.spine.nets import UNLIMITED, clean, native
from benchmarks.zoo import Case, Scale, build, optimizer
from tightrope.cli.estimate import Asked, Step
from tightrope.cli.sizes import resized
from tightrope.cli.target import Built
from tightrope.cli.ways import largest_that_fits
from tightrope.core import Bytes, InfeasibleError, round_up
from tightrope.run.ledger.accounts import accounts

_ROWS = ("resnet18", "vit")


def run(arguments: Sequence[str], console: Console) -> int:
    """Print the rows; 1 where an estimate is off by more than 1 %, or a size that was named was wrong."""
    parser = ArgumentParser(prog="python -m benchmarks estimating")
    parser.add_argument("--nets", default=",".join(TEN))
    parser.add_argument("--scale", default="test", choices=("test", "bench"))
    parser.add_argument("--largest", action="store_true", help="the largest batches alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    right = [True]
    if not options.largest:
        console.print(f"{'net':14}{'estimate':>13}{'observed':>13}{'difference':>11}{'%':>8}{'eager':>13}")
        right += [_peaks(name, options.scale, console) for name in options.nets.split(",")]
    for name in _ROWS:
        if name in options.nets.split(","):
            found = largest_runs(name, options.scale, share=1.6)
            right.append(found.pop("right"))
            console.print(f"{name:14}" + ", ".join(f"{what} {value}" for what, value in found.items()))
    return int(not all(right))


def _peaks(name: str, scale: Scale, console: Console) -> bool:
    estimate, seen, eager = peaks(name, scale)
    off = 100 * (seen - estimate) / estimate
    console.print(f"{name:14}{estimate:>13,}{seen:>13,}{seen - estimate:>11,}{off:>8.3f}{eager:>13,}")
    return abs(off) <= 1


def peaks(name: str, scale: Scale) -> tuple[Bytes, Bytes, Bytes]:
    """Estimate the bytes of a loop of a net, and observe them planned and eager."""
    clean()
    case = build(name, scale=scale)
    estimate = Step(Asked(name), Built(case.model, case.inputs, {})).total()
    del case
    planned, eager = (_observed(build(name, scale=scale), how) for how in ("planned", "eager"))
    return estimate, planned, eager


def _observed(case: Case, how: str) -> Bytes:
    clean()
    model: Any = case.model
    update = optimizer(case, "adamw")
    if how == "planned":
        tightrope.compile(model, budget=UNLIMITED, progress=False)
    call = model if how == "planned" else model.forward
    above = live_peak(Loop(model, case.inputs, call, update), native())
    if how == "planned":  # which resets the allocator's peak in every step
        above = max(above, tightrope.report(model).observed_peak)
    state = (value for of in update.state.values() for value in of.values())
    held = {id(t): t for t in (*model.parameters(), *model.buffers(), *case.inputs, *state)}
    sizes = (t.untyped_storage().nbytes() for t in held.values() if isinstance(t, torch.Tensor))
    return above + sum(map(round_up, sizes))


def largest_runs(name: str, scale: Scale, share: float) -> dict[str, Any]:
    """Name the largest batch within ``share`` times what a net's own batch needs, and try it and one more."""
    clean()
    case = build(name, scale=scale)
    built = Built(case.model, case.inputs, {})
    budget = int(share * Step(Asked(name), built).floor.dropping)
    step = Step(Asked(name, str(budget)), built)
    said = largest_that_fits(step, "batch")["with_a_plan"]
    del case, built, step
    trained, more = (_trains(name, scale, size, budget) for size in (said["size"], said["size"] + 1))
    return {
        "budget": budget,
        "largest batch": said["size"],
        "it trains": trained,
        "one more is refused": not more,
        "right": trained and not more,
    }


def _trains(name: str, scale: Scale, batch: int, budget: Bytes) -> bool:
    """Train three steps of a net within a budget, beside what the process holds; False = refused."""
    clean()
    beside = accounts().charged()
    case = build(name, scale=scale)
    inputs = resized(Built(case.model, case.inputs, {}), "batch", batch).args
    update = optimizer(case, "adamw")
    model: Any = tightrope.compile(case.model, budget=budget + beside, progress=False)
    del case  # and with it the batch that it came with
    try:
        for _ in range(3):
            update.zero_grad()
            loss = model(*inputs)
            loss.backward()
            update.step()
    except InfeasibleError:
        return False
    return True
