"""The command ``jobs``: which machine a job goes to when its end is only predicted."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import TightropeError
from tightrope.core.writing import write_whole
from tightrope_fleet.values.work import broken, promise_table

_EPILOG = """\b
Examples:
  tightrope jobs made-up --rule aligned --predict truth
  tightrope jobs openb_pod_list_default.csv --since 9676800 --compress 30 --page jobs.html
  tightrope jobs jobs.csv --capacity 96000,393216,8000 --machines 50 --json
  tightrope jobs jobs.csv --capacity 64 --predict noisy --sigma 2 --seed 3"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("jobs", short_help="Place jobs whose ends are predicted.", epilog=_EPILOG)(jobs)


def jobs(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="CSV: name,start,end,sizes; Alibaba's pods; Azure's rows or SQLite; or made-up: 5000 jobs.",
        ),
    ],
    capacity: Annotated[
        str | None, typer.Option(help="Of a machine, whole numbers apart by commas; default: the format's.")
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="first-fit, best-fit, aligned, expected, hedged, trusting, or gap (not robust)."),
    ] = "hedged",
    predict: Annotated[
        str, typer.Option(help="learned (from the first half, which is not counted), truth, or noisy.")
    ] = "learned",
    sigma: Annotated[
        float, typer.Option(min=0, max=10, help="Error of noisy predictions, log-normal.")
    ] = 1.0,
    machines: Annotated[int, typer.Option(min=0, max=10**6, help="Machines there are; 0: any number.")] = 0,
    compress: Annotated[
        float, typer.Option(min=0.001, max=1e6, help="Let jobs arrive so much faster.")
    ] = 1.0,
    since: Annotated[int, typer.Option(min=0, help="Leave out jobs that arrive before, s.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of noise and made-up jobs.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan here as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with occupancy and machines here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place jobs one by one as they come, on machines where they should end together; judge the placement.

    Machine time is counted until the last job comes: later only ends are seen, and no choice is left.

    Exit code 0: every job has a machine; 3: some were refused; 2: error.
    """
    import msgspec

    from tightrope_fleet.jobs.show import job_promises

    check_outputs([output, page])
    trace = _read(file, compress, since, seed)
    size = _capacity(capacity) if capacity is not None else trace.capacity
    if not size:
        raise TightropeError(
            f"{file!r} does not say how large machines are: give --capacity, such as 64,256."
        )
    trace.check_capacity(size)
    items, plan = _place(trace, size, (rule, predict, sigma, machines, seed))
    promises = job_promises(plan)
    if output is not None:
        write_whole(output, msgspec.json.encode({"jobs": [item.name for item in items], "plan": plan}))
    if page is not None:
        write_whole(page, _page(file, items, plan, promises))
    facts = {
        "num_jobs": len(items),
        "num_left_out": trace.num_left_out,
        "num_never_ran": trace.num_never_ran,
        "num_open": sum(trace.open),
        "num_refused": plan.num_refused,
        "machine_time": plan.machine_time,
        "lower_bound": plan.lower_bound,
        "ratio": plan.ratio,
        "until": plan.until,
        "peak_machines": plan.peak,
        "rule": rule,
        "predict": predict,
        "seed": seed,
    }
    if json:
        emit_json({**facts, "promises": promises})
    else:
        _say(facts)
    if broken(promises):
        raise typer.Exit(DOES_NOT_FIT)


def _say(facts: dict[str, Any]) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    unit, per = ("hours", 3600) if facts["machine_time"] >= 36_000 else ("seconds", 1)
    spent, bound = (f"{facts[name] / per:.{per > 1:d}f}" for name in ("machine_time", "lower_bound"))
    counted = "" if facts["until"] is None else " until the last job came"
    console().print(
        f"{facts['num_jobs']} jobs ({facts['num_left_out']} left out, {facts['num_never_ran']} of them never "
        f"ran; {facts['num_open']} without an end) by {facts['rule']}, ends "
        f"{facts['predict']}: "
        f"{spent} machine {unit}{counted}; no placement takes less than {bound} ({facts['ratio']:.4f}); at "
        "most "
        f"{facts['peak_machines']} machines; {facts['num_refused']} refused; judged; seed {facts['seed']}",
        markup=False,
        soft_wrap=True,
    )


def _capacity(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise TightropeError(
            f"--capacity {text!r:.60}: give whole numbers apart by commas, such as 64,256."
        ) from error


def _read(file: str, compress: float, since: int, seed: int) -> Any:
    from tightrope_fleet.jobs import made_up_jobs, read_jobs

    if file == "made-up":
        return made_up_jobs(5000, seed=seed, days=1.25 / compress)
    trace = read_jobs(file, compress=compress, since=since)
    if not trace.items:
        raise TightropeError(
            f"{file!r}: no jobs are left of its rows ({trace.num_left_out} left out). Give rows below "
            "the header, of jobs that end, fit a machine and begin after --since."
        )
    return trace


def _place(trace: Any, size: tuple[int, ...], how: tuple[str, str, float, int, int]) -> tuple[Any, Any]:
    """Predict, place, judge; a learned predictor places the second half only."""
    import msgspec

    from tightrope_fleet.jobs import LifetimeTable, Oracle, place_jobs
    from tightrope_fleet.judge.jobs import check_jobs

    rule, predict, sigma, machines, seed = how
    items = trace.items
    predictor: LifetimeTable | Oracle
    if predict == "learned":
        half = len(items) // 2
        now = items[half].start if items else 0
        seen = [at for at in range(half) if items[at].start < now]
        table = LifetimeTable(trace.features[half:])
        table.learn(
            [msgspec.structs.replace(items[at], end=min(items[at].end, now)) for at in seen],
            [trace.features[at] for at in seen],
            open=[items[at].end > now or (bool(trace.open) and trace.open[at]) for at in seen],
        )
        items, predictor = items[half:], table
    elif predict in ("truth", "noisy"):
        predictor = Oracle(items, sigma=0.0 if predict == "truth" else sigma, seed=seed)
    else:
        raise TightropeError(f"--predict {predict!r:.40}: take learned, truth or noisy.")
    plan = place_jobs(
        items,
        size,
        rule=rule,
        predictor=predictor,
        most_hosts=machines,
        until=items[-1].start if len(items) > 1 and items[-1].start > items[0].start else None,
        seed=seed,
        progress=_progress(),
    )
    check_jobs(items, plan)
    return items, plan


def _progress() -> Callable[[float], None] | None:
    """A line on standard error while jobs are placed, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(share: float) -> None:
        sys.stderr.write(f"\r{100 * share:.0f} % of the jobs placed \x1b[K")
        sys.stderr.flush()

    return show


def _page(file: str, items: Any, plan: Any, promises: Any) -> str:
    from tightrope_fleet.jobs.show import draw_jobs, draw_occupancy
    from tightrope_shared.draw import work_page

    return work_page(
        f"Jobs of {file[:80]}",
        [("Machines in use", draw_occupancy(items, plan)), ("Jobs by machine", draw_jobs(items, plan))],
        [("Promises", ("limit", "asked", "forecast", "observed", ""), promise_table(promises))],
    )
