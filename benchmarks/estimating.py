"""How far `tightrope estimate` is from what is seen: ``python -m benchmarks estimating``.

    python -m benchmarks estimating [--nets gpt2,unet] [--scale test|bench] [--largest]

Peak. A row per net: what the estimate says that a loop with AdamW needs in all, every op once, and what the
allocator saw it need: parameters, buffers, inputs, state, and the largest number of live bytes of a step and
its update. *planned* is the loop under a budget that is never reached, *eager* the plain one. They differ by
what ops write over in a plan, and by tensors that torch makes and drops unused. *difference* is observed minus
estimated.

Largest. For two nets with an input of rows: the largest batch that fits with a plan is named; three steps
of that batch are trained in that budget, and one more row is refused.
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
from tightrope.run.accounts import accounts

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
        console.print(f"{'net':18}{'how':9}{'estimate':>14}{'observed':>14}{'difference':>13}{'%':>8}")
        right += [_peaks(name, options.scale, console) for name in options.nets.split(",")]
    for name in _ROWS:
        if name in options.nets.split(","):
            found = largest_runs(name, options.scale, share=1.6)
            right.append(found.pop("right"))
            console.print(f"{name:18}" + ", ".join(f"{what} {value}" for what, value in found.items()))
    return int(not all(right))


def _peaks(name: str, scale: Scale, console: Console) -> bool:
    close = True
    for how, (estimate, seen) in peaks(name, scale).items():
        off = 100 * (seen - estimate) / estimate
        console.print(f"{name:18}{how:9}{estimate:>14,}{seen:>14,}{seen - estimate:>13,}{off:>8.2f}")
        close = close and abs(off) <= 1
    return close


def peaks(name: str, scale: Scale) -> dict[str, tuple[Bytes, Bytes]]:
    """Estimate and observe the bytes of a loop of a net, planned with room for everything, and eager."""
    clean()
    case = build(name, scale=scale)
    step = Step(Asked(name), Built(case.model, case.inputs, {}))
    said = {"planned": step.total(step.update), "eager": step.eager_total(step.update)}
    del case, step
    return {how: (bytes_, _observed(build(name, scale=scale), how)) for how, bytes_ in said.items()}


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
    budget = int(share * Step(Asked(name), built).floor.budget)
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
    model: Any = tightrope.compile(case.model, budget=budget + beside, progress=False)
    update = optimizer(case, "adamw")
    try:
        for _ in range(3):
            update.zero_grad()
            model(*inputs).backward()
            update.step()
    except InfeasibleError:
        return False
    return True
