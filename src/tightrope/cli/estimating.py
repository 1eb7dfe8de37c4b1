"""The command ``estimate``: does a training step fit, at what price, and what if not."""

import atexit
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from tightrope.cli import show
from tightrope.cli.asked import check_asked
from tightrope.cli.curve import print_curve
from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.core import TightropeError, format_bytes, format_time
from tightrope.core.collector import collector_paused
from tightrope.core.units import shown

SHOWN: Final = {
    "as_it_is": "as it is",
    "with_a_plan": "with a plan",
    "in_any_loop": "with a plan, in a loop that keeps its gradients during the next forward",
}
"""Answers about the largest size."""


class Sized(StrEnum):
    """What may grow until nothing fits."""

    BATCH = "batch"
    SEQ = "seq"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    examples = (
        "\b\nExamples:\n  tightrope estimate train.py:build\n"
        "  tightrope estimate train.py:build --budget 8GiB --json\n"
        "  tightrope estimate train.py:build --optimizer adamw --batch 1,2,4,8 --seq 512,1024\n"
        "  tightrope estimate train.py:build --machine rtx3060-12gb --curve\n"
        "  tightrope estimate train.py:build --machine rtx4090-24gb --largest batch\n"
        "  tightrope estimate train.py:build --machines"
    )
    app.command("estimate", short_help="Tell whether a training step fits.", epilog=examples)(estimate)


def estimate(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns (model, inputs).")
    ],
    machine: Annotated[
        str | None, typer.Option(help="A profile, such as rtx4090-24gb, or a TOML file.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Bytes to fit in; default: the machine's memory.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="none, sgd, momentum, adam or adamw: its state counts.")
    ] = "adamw",
    batch: Annotated[str | None, typer.Option(help="Sizes of the batch, one row each: 1,2,4,8.")] = None,
    seq: Annotated[str | None, typer.Option(help="Lengths of sequences, one row each: 512,1024.")] = None,
    largest: Annotated[Sized | None, typer.Option(help="Find the largest batch or length that fits.")] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Add what every budget costs in time.")] = False,
    machines: Annotated[bool, typer.Option("--machines", help="Add every profile: fits, and time.")] = False,
    ranks: Annotated[str | None, typer.Option(hidden=True)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell whether a training step fits, at what price, and what to do if not.

    The function builds the model, on any device or on meta, and one batch; the forward returns the
    loss. The step is captured on shapes alone and never run; without --machine every op is measured here,
    alone. Exit code 0: it fits without a plan; 3: it, or one of the sizes, does not. With --largest, 3
    means that not even a size of 1 fits with a plan.
    """
    from tightrope.cli.machines import find_machine
    from tightrope.cli.sizes import parse_sizes
    from tightrope.cli.target import build
    from tightrope.run.base.status import StatusLine

    if ranks is not None:
        raise TightropeError(
            f"--ranks: the command is tightrope ranks {target:.200} --ranks {ranks:.20} ... now, "
            "of tightrope-ranks: pip install 'tightrope[ranks]'."
        )
    check_asked(budget, optimizer)
    batches = () if batch is None else parse_sizes("batch", batch)
    lengths = () if seq is None else parse_sizes("seq", seq)
    if (batches or lengths) and (largest or curve or machines):
        raise TightropeError(
            "--batch and --seq give one row per size; --largest, --curve and --machines are about the inputs "
            "as they are. Give one or the other."
        )
    profile = find_machine(machine) if machine is not None else None
    with StatusLine().slow(f"building the model of {shown(target)}"):
        built = build(target)
    from tightrope.cli.estimate import Asked, describe, steps_of

    asked = Asked(target, budget, profile, optimizer)
    if batches or lengths:
        fits = _rows([describe(step) for step in steps_of(asked, built, batches, lengths)], json)
    else:
        with _collected_later():
            (step,) = steps_of(asked, built)
            row = {} if largest else describe(step)
        fits = _largest(step, largest, json) if largest else _answer(step, row, curve, machines, json)
    if not fits:
        raise typer.Exit(DOES_NOT_FIT)


def _rows(found: list[dict[str, Any]], json: bool) -> bool:
    """Answer with one row per size."""
    if json:
        emit_json({"rows": found})
    else:
        _print_rows(found)
    return all(row["fits"] for row in found)


@contextmanager
def _collected_later() -> Iterator[None]:
    """Keep Python's collector from looking through one trace again and again, and once more at the end.

    Most of a trace stays, and for a step of some thousand ops that takes a fifth of the time. Other sizes are
    traced with the collector on.
    """
    atexit.register(gc.freeze)
    with collector_paused():
        yield


def _answer(step: Any, row: dict[str, Any], curve: bool, machines: bool, json: bool) -> bool:
    """Answer for the inputs as they are, beginning with what `describe` says."""
    from tightrope.cli.ways import curve_of, machines_for, smallest_machines, ways_out

    if not row["fits"]:
        row["ways_out"] = ways_out(step)
        row["smallest_machines"] = smallest_machines(step)
    if machines:
        row["machines"] = machines_for(step)
    if curve:
        row["curve"] = curve_of(step)
    if json:
        emit_json(row)
    else:
        _print_row(row)
    return bool(row["fits"])


def _largest(step: Any, axis: Sized, json: bool) -> bool:
    from tightrope.cli.ways import largest_that_fits
    from tightrope.run.base.status import StatusLine

    with StatusLine(lines=True).task(f"looking for the largest {axis.value} that fits", 1):
        found = largest_that_fits(step, axis.value)
    if json:
        emit_json(found)
    else:
        _print_largest(found)
    return found["with_a_plan"] is not None


def _print_row(found: dict[str, Any]) -> None:
    """Print the answer to "will it fit?"."""
    target = console()
    needs, held, state, step, limit, least, dropping, bound = (
        format_bytes(found[f"{name}_bytes"])
        for name in (
            "total", "persistent", "state", "peak", "limit", "smallest", "smallest_dropping", "lower_bound",
        )
    )  # fmt: skip
    lines = [
        f"{_verdict(found)}: the step needs {needs} (persistent {held}, of it {state} state of "
        f"{found['optimizer']}, + step {step}); limit {limit} on {found['machine']}",
        f"time of a step: {_seconds(found['estimated_seconds'])} with every op once{_price(found)}",
        f"smallest budget found: {least}, as budget={found['smallest_bytes']} where nothing else is held: "
        "for a whole loop, with the update, gradients that stay during the next forward, and a guess at a "
        "loss outside the model",
        f"in a loop that drops its gradients before each forward: {dropping}, as "
        f"budget={found['smallest_dropping_bytes']}; every op runs once from budget={found['once_bytes']} on",
        f"no plan needs less than {bound}; set by {found['lower_bound_op']}",
        *(f"way out: {way['text']} ({_more(way['more_time_percent'])})" for way in found.get("ways_out", ())),
        *map(_on_machine, found.get("smallest_machines", ())),
    ]
    for line in lines:
        target.print(line, markup=False)
    cells = [
        (row["what"], format_bytes(row["bytes"]), row["tensor"], row["module"], row["source"])
        for row in found["alive_at_peak"]
    ]
    show.rows(target, ("alive at the peak", "bytes", "tensor", "module", "source"), cells)
    if (more := found["num_alive_at_peak"] - len(cells)) > 0:
        target.print(f"and {more} smaller", markup=False)
    if "machines" in found:
        _print_machines(found["machines"])
    if "curve" in found:
        print_curve(found["curve"])
    target.print(found["note"], markup=False)


def _verdict(found: dict[str, Any]) -> str:
    if found["fits"]:
        return "fits" + _where(found)
    if found["fits_with_a_plan"]:
        return f"does not fit as it is, fits with a plan{_where(found)}"
    return "does not fit" + ("; a plan may fit" if found["a_plan_may_fit"] else ", with any plan")


def _where(found: dict[str, Any]) -> str:
    return "" if found["fits_in_any_loop"] else ", in a loop that drops its gradients before each forward"


def _price(found: dict[str, Any]) -> str:
    added = found["more_time_percent"]
    return f"; the plan for the limit adds {added:.1f} %" if added and not found["fits"] else ""


def _more(percent: float) -> str:
    return f"{percent:+.1f} % time per row of the batch"


def _seconds(seconds: float) -> str:
    return format_time(round(seconds * 1e9))


def _on_machine(one: dict[str, Any]) -> str:
    """Name a profile that holds the step."""
    how = "as it is" if one["fits"] else "with a plan"
    return (
        f"smallest profile that holds it {how}: {one['machine']}, {format_bytes(one['limit_bytes'])}, "
        f"modelled {_seconds(one['estimated_seconds'])} with every op once"
    )


def _print_machines(machines: Sequence[dict[str, Any]]) -> None:
    cells = [
        (
            one["machine"],
            format_bytes(one["limit_bytes"]),
            _fits(one),
            _seconds(one["estimated_seconds"]),
        )
        for one in machines
    ]
    show.rows(console(), ("machine", "memory", "fits", "time, every op once (modelled)"), cells)


def _fits(row: dict[str, Any]) -> str:
    return "as it is" if row["fits"] else "with a plan" if row["fits_with_a_plan"] else "no"


def _print_rows(found: Sequence[dict[str, Any]]) -> None:
    """Print one row per size."""
    first, cells = found[0], []
    for row in found:
        sizes = [format_bytes(row[f"{name}_bytes"]) for name in ("total", "state", "smallest_dropping")]
        added = row["more_time_percent"]
        more = "" if added is None else f"{added:.1f} %"
        length = "" if row["seq"] is None else str(row["seq"])
        time = _seconds(row["estimated_seconds"])
        budget = str(row["smallest_dropping_bytes"])
        cells.append((str(row["batch"]), length, *sizes, budget, _fits(row), time, more))
    state = f"of it {first['optimizer']}"
    heads = (
        "batch",
        "seq",
        "without a plan",
        state,
        "smallest budget",
        "budget=",
        "fits",
        "time",
        "plan adds",
    )
    show.rows(console(), heads, cells)
    limit = format_bytes(first["limit_bytes"])
    console().print(f"limit {limit} on {first['machine']}; {first['note']}", markup=False)


def _print_largest(found: dict[str, Any]) -> None:
    target, limit = console(), _exactly(found["limit_bytes"])
    for key, how in SHOWN.items():
        best = found[key]
        if best is None:
            line = f"{how}: not even a {found['largest']} of 1 fits"
        else:
            after = best["next_bytes"]
            more = f"one more needs {_exactly(after)}" if after is not None else best["stopped"]
            line = (
                f"{how}: {found['largest']} {best['size']} needs {_exactly(best['bytes'])}, a step takes "
                f"{_seconds(best['seconds'])}; {more}"
            )
        target.print(line, markup=False)
    target.print(
        f"limit {limit} on {found['machine']}, with {found['optimizer']}; {found['note']}", markup=False
    )


def _exactly(size: int) -> str:
    """Write bytes for people, and their number: sizes beside a limit may be equal when rounded."""
    return f"{format_bytes(size)} ({size} bytes)"
