"""What follows from an estimate: ways out, the largest size, machines, and time against budget."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from tightrope.cli.curve import curve_plans, point
from tightrope.cli.estimate import OPTIMIZERS, Step, limit_of, sized_step
from tightrope.cli.machines import find_machine, names
from tightrope.cli.sizes import Axis, Largest, largest, resized, size_of
from tightrope.core import Bytes, Machine, TightropeError
from tightrope.lower import with_writes
from tightrope.price import price_graph

_NUM_WAYS = 3
_CURVE_SECONDS = 5.0
_NEEDS: Final[dict[str, Callable[[Step], Bytes]]] = {
    "as_it_is": Step.once,
    "with_a_plan": lambda step: step.floor.dropping,
    "in_any_loop": lambda step: step.floor.budget,
}
"""Bytes in which a size fits."""
_NOT_OFFERED: Final = (
    "cortex-m4f-256k", "nrf52840", "poet-cortex-m4f", "poet-raspberry-pi", "stm32f746", "stm32h743",
)  # fmt: skip
"""Profiles that torch does not run on, or whose memory is no limit."""


def ways_out(step: Step) -> list[dict[str, Any]]:
    """List the three cheapest ways to make a step fit that does not fit as it is.

    They are: to compute again what a plan says, another optimizer with less state, and the largest smaller
    batch that fits as it is. Their price is the time that they add per row of the batch, in percent.
    """
    limit = limit_of(step)
    found = [*_with_a_plan(step, limit), *_other_optimizers(step, limit), *_smaller_batch(step, limit)]
    return sorted(found, key=lambda way: float(way["more_time_percent"]))[:_NUM_WAYS]


def _with_a_plan(step: Step, limit: Bytes) -> Iterator[dict[str, Any]]:
    if (plan := step.planned(limit)) is not None:
        again = sum(reason.decision == "recomputed" for reason in plan.reasons)
        text = f"recompute {again} storages: tightrope.compile(model, budget={limit})"
        yield {"way": "recompute", "text": text, "more_time_percent": plan.forecast.tdi_percent}


def _other_optimizers(step: Step, limit: Bytes) -> Iterator[dict[str, Any]]:
    """The optimizer with most state of those with less than the one asked for."""
    updates = {name: step.update_of(name) for name in OPTIMIZERS if name != "none"}
    less = [name for name, update in updates.items() if update.state < step.update.state]
    for name in sorted(less, key=lambda name: -updates[name].state):
        if step.once(name) <= limit:
            added = 0.0
            text = f"{name} for {step.asked.optimizer}: other training, with less state"
        elif (plan := step.planned(limit, step.floor.updated(step.sizes, updates[name]))) is not None:
            added = plan.forecast.tdi_percent
            text = f"{name} for {step.asked.optimizer}: other training, with less state, and a plan"
        else:
            continue
        yield {"way": "optimizer", "text": text, "more_time_percent": added}
        return


def _smaller_batch(step: Step, limit: Bytes) -> Iterator[dict[str, Any]]:
    """The largest smaller batch that fits as it is, or else with a plan."""
    size = size_of(step.built, "batch") or 1
    if size == 1:
        return
    for planned in (False, True):
        smaller = {size: step}
        best = _largest(smaller, "batch", limit, "with_a_plan" if planned else "as_it_is").size
        if not 0 < best < size:
            continue
        ns = smaller[best].graph.base_ns
        text = f"a batch of {best} for {size}"
        if planned:
            plan = smaller[best].planned(limit)
            if plan is None:
                continue
            ns, text = plan.forecast.ns, f"{text}, and a plan"
        added = 100 * (ns / best / max(1, step.graph.base_ns / size) - 1)
        yield {"way": "batch", "text": text, "more_time_percent": added}
        return


def _largest(steps: dict[int, Step], axis: Axis, limit: Bytes, how: str) -> Largest:
    """Find the largest size that fits; keep what was captured on the way."""
    start, step = next(iter(steps.items()))

    def need(size: int) -> Bytes:
        if size not in steps:
            steps[size] = sized_step(step.asked, step.built, {axis: size}, noted=False)
        return _NEEDS[how](steps[size])

    return largest(need, limit, start)


def largest_that_fits(step: Step, axis: Axis) -> dict[str, Any]:
    """Find the largest batch or sequence that fits: as it is, with a plan, and so in a loop of any order.

    Returns:
        Plain values: ``as_it_is`` and ``with_a_plan``, in a loop that drops its gradients before each
        forward, and ``in_any_loop``, with a plan; each None where not even 1 fits, else with ``size``,
        ``bytes`` that it needs, ``next_bytes`` that one more needs (None where that cannot be had,
        ``stopped`` says why), and ``seconds`` of its step.

    Raises:
        TightropeError: the inputs have no such dimension, or the budget is a share.
    """
    start = size_of(step.built, axis)
    if not start:
        resized(step.built, axis, 1)
    if step.asked.budget is not None and "%" in step.asked.budget:
        raise TightropeError(
            f"budget={step.asked.budget!r} with --largest is a share of what each size needs: give bytes, "
            "such as --budget 8GiB."
        )
    limit, steps = limit_of(step), {start or 1: step}
    found = {how: _answer(steps, _largest(steps, axis, limit, how), limit, how) for how in _NEEDS}
    return {
        "largest": axis,
        "limit_bytes": limit,
        "machine": step.asked.on.name,
        "optimizer": step.asked.optimizer,
        "note": step.prices,
        **found,
    }


def _answer(steps: dict[int, Step], best: Largest, limit: Bytes, how: str) -> dict[str, Any] | None:
    if not best.size:
        return None
    step, after = steps[best.size], steps.get(best.size + 1)
    ns, need = step.graph.base_ns, _NEEDS[how]
    if step.once() > limit and (plan := step.planned(limit)) is not None:
        ns = plan.forecast.ns
    return {
        "size": best.size,
        "bytes": need(step),
        "next_bytes": None if after is None else need(after),
        "stopped": best.stopped,
        "seconds": ns / 1e9,
    }


def profiles() -> list[Machine]:
    """List the profiles of machines that torch runs on, those with least memory first."""
    found = [find_machine(name) for name in names() if name not in _NOT_OFFERED]
    return sorted(found, key=lambda machine: (machine.tiers[0].bytes, machine.flops["matmul"]))


def machines_for(step: Step) -> list[dict[str, Any]]:
    """Say of every profile whether the step fits there, and how long it takes.

    Bytes are those of the kernels of a CPU. Times are modelled from each profile's rates.
    """
    return [_on(step, machine) for machine in profiles()]


def smallest_machines(step: Step) -> list[dict[str, Any]]:
    """Find the profiles with least memory on which the step fits with a plan, and as it is."""
    total, least = step.once(), step.floor.dropping
    fitting = (
        [one for one in profiles() if one.tiers[0].bytes >= need] for need in (min(least, total), total)
    )
    found = {machines[0].name: machines[0] for machines in fitting if machines}
    return [_on(step, machine) for machine in found.values()]


def _on(step: Step, machine: Machine) -> dict[str, Any]:
    limit = machine.tiers[0].bytes
    fits = step.once() <= limit
    return {
        "machine": machine.name,
        "limit_bytes": limit,
        "fits": fits,
        "fits_with_a_plan": fits or step.floor.dropping <= limit,
        "estimated_seconds": with_writes(price_graph(step.captured, machine)).base_ns / 1e9,
    }


def curve_of(step: Step) -> list[dict[str, Any]]:
    """Price budgets of the whole loop: the plans of a curve, each with the budget that its loop needs.

    From what the loop takes with every op once, nothing is computed again.
    """
    whole, points = step.once(), []
    for plan in curve_plans(step.graph, _CURVE_SECONDS, step.asked.machine):
        budget = min(step.floor.beside.dropping(plan.forecast.total), whole)
        if budget < whole or plan.forecast.ns <= step.graph.base_ns:
            percent = 100 * budget / max(1, whole)
            points.append(point(plan, whole) | {"budget_bytes": budget, "budget_percent": percent})
    return points
