"""The commands ``tables plan`` and ``tables measure``: where tables live, and what lookups cost here."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tightrope.cli.output import console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import JudgeError, TightropeError, format_bytes, parse_bytes
from tightrope.core.units import format_time
from tightrope.core.writing import write_whole

_PLAN: Final = """\b
Examples:
  tightrope tables plan tables.toml --devices 8 --bytes 4GiB
  tightrope tables plan tables.toml --devices 8 --bytes 4GiB --costs costs.json -o plan.json --page plan.html
  tightrope tables plan tables.toml --cluster cluster.toml --replaces plan.json --without d3 --json"""
_MEASURE: Final = """\b
Examples:
  tightrope tables measure -o costs.json
  tightrope tables measure -o costs.json --seconds 60 --json"""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    tables = typer.Typer(
        help="Embedding tables on devices: where each column lives, and what lookups cost on this machine.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    tables.command("plan", short_help="Place embedding tables, whole or by columns.", epilog=_PLAN)(
        plan_command
    )
    tables.command("measure", short_help="Measure what lookups cost here.", epilog=_MEASURE)(measure_command)
    app.add_typer(tables, name="tables", short_help="Place embedding tables on devices.")


def plan_command(
    tables: Annotated[Path, typer.Argument(metavar="TABLES.toml", help="TOML file with tables and a batch.")],
    devices: Annotated[int | None, typer.Option(min=1, max=1024, help="Equal devices d0, d1, ...")] = None,
    device_bytes: Annotated[
        str | None, typer.Option("--bytes", help="Of each of the devices; default: no limit.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="TOML file with devices and links, instead of --devices.")
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Prices of tables measure; default: rough constants.")
    ] = None,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Take prices of another machine, and measure nothing.")
    ] = False,
    method: Annotated[str, typer.Option(help="auto, greedy or table.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.01, max=86_400, help="Of the search, about.")] = 10.0,
    replaces: Annotated[
        Path | None, typer.Option(help="Plan of before: parts stay where that costs nothing.")
    ] = None,
    without: Annotated[str, typer.Option(help="Devices that are lost, apart by commas.")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the plan here as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with devices over time here.")] = None,
    json: Json = False,
) -> None:
    """Place every column of every table on a device, within its bytes, and judge the plan.

    Exit code 0: every column has a place; 3: no assignment within the bytes was found; 2: error.
    """
    check_outputs([output, page], [tables, cluster, costs, replaces])
    if (devices is None) == (cluster is None):
        raise TightropeError("Give either --devices N, with --bytes, or --cluster FILE.")
    if device_bytes is not None and devices is None:
        raise TightropeError(f"--bytes {device_bytes!r:.60} is for --devices: a cluster's file has its own.")
    from tightrope_assign.judge.tables import check_table_plan
    from tightrope_assign.tables import plan_tables
    from tightrope_assign.tables.show import device_rows, table_page
    from tightrope_assign.values.cluster import Cluster, PlaceDevice, check_cluster, read_cluster, read_toml
    from tightrope_assign.values.files import read_value, write_value
    from tightrope_assign.values.tables import TablePlan, TableSet, check_tables

    what = read_toml(tables, TableSet)
    if cluster is not None:
        whole = read_cluster(cluster)
    else:
        room = 0 if device_bytes is None else parse_bytes(device_bytes, name="--bytes")
        whole = Cluster(tuple(PlaceDevice(f"d{at}", room) for at in range(devices or 0)))
        check_cluster(whole, linked=False)
    prices, measure = _prices(costs, what, elsewhere)
    old = None
    if replaces is not None:
        old = read_value(replaces, TablePlan, "table plan")
        check_tables(what, whole)  # the judge takes tables that can be
        try:
            check_table_plan(what, whole, prices, old)
        except JudgeError as error:
            raise JudgeError(f"{str(replaces)!r} does not hold for {str(tables)!r}: {error}") from error
    left = whole.without([name.strip() for name in without.split(",")]) if without else whole
    plan = plan_tables(what, left, prices, method=method, seconds=seconds, measure=measure, replaces=old)
    check_table_plan(what, left, prices, plan, replaces=old)
    rows = device_rows(what, left, prices, plan)
    if output is not None:
        write_whole(output, write_value(plan))
    if page is not None:
        write_whole(page, table_page(what, left, prices, plan))
    if json:
        emit_json({"plan": plan, "gap": plan.gap, "devices": rows})
    else:
        _say(plan, rows)


def _prices(path: Path | None, tables: Any, elsewhere: bool) -> tuple[Any, Any]:
    """Read prices, and give a way to measure if they are of this machine."""
    from tightrope_assign.values.costs import CONSTANTS, TableCosts, check_costs, check_machine
    from tightrope_assign.values.files import read_value

    if path is None:
        return CONSTANTS, None
    found = read_value(path, TableCosts, "table costs")
    check_costs(found)
    if elsewhere or not found.machine:
        return found, None
    from tightrope.native.processor import described

    check_machine(found, *described())

    def measure(devices: Any) -> int:
        from tightrope_assign.lookups.bench import LookupBench, measured_by

        return measured_by(LookupBench(), tables)(devices)

    return found, measure


def _say(plan: Any, rows: list[dict[str, Any]]) -> None:
    from tightrope_assign.page import row_lines

    moved = f"; {format_bytes(plan.moved_bytes)} move" if plan.moved_bytes else ""
    timed = " and ".join(map(format_time, plan.measured))
    gate = f"; measured without and with splits: {timed}" if timed else ""
    lines = [
        f"{len(plan.placed)} shards on {len(rows)} devices, {plan.planner}: {format_time(plan.cost)} a step; "
        f"no plan takes less than {format_time(plan.lower_bound)} by these prices{gate}{moved}; judged; "
        f"prices: {plan.costs}",
        *row_lines(rows, "shards"),
    ]
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def measure_command(
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the prices here as JSON.")],
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="CPU time of lookups; OUTPUT.part has them.")
    ] = 200.0,
    no_exchange: Annotated[
        bool, typer.Option("--no-exchange", help="Start no ranks: exchanges keep rough constants.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything random.")] = 0,
    json: Json = False,
) -> None:
    """Measure lookups of random sets of tables and exchanges on this machine, fit prices, and save them.

    OUTPUT.part keeps what is measured until prices are written. Where a call was ended early, the next one
    goes on with it. Exit code 0: done; 2: error.
    """
    part = output.with_name(output.name + ".part")
    check_outputs([output, part], [])
    import torch

    from tightrope_assign.lookups.bench import collect
    from tightrope_assign.lookups.exchange import measure_exchanges
    from tightrope_assign.lookups.learn import FEWEST, fit_costs
    from tightrope_assign.values.costs import CONSTANTS, check_costs
    from tightrope_assign.values.files import write_value

    torch.set_num_threads(1)

    def progress(sets: int, spent: float) -> None:
        print(f"\r{sets} sets, {spent:.0f} of {seconds:.0f} s", end="", file=sys.stderr, flush=True)

    shown = progress if sys.stderr.isatty() else None
    measured = collect(part, seconds=seconds, fewest=FEWEST, seed=seed, progress=shown)
    forward, backward, error = CONSTANTS.forward, CONSTANTS.backward, 0.0
    if not no_exchange:
        forward, backward, error = measure_exchanges(seed=seed)
    found = fit_costs(measured, forward=forward, backward=backward, exchange_error=error, seed=seed)
    check_costs(found)
    write_whole(output, write_value(found))
    part.unlink(missing_ok=True)
    if json:
        emit_json(
            {"machine": found.machine, "figures": found.figures, "forward": forward, "backward": backward}
        )
        return
    figures = found.figures
    console().print(
        f"{figures['sets']:.0f} sets on {found.machine}: new sets are priced within "
        f"{100 * figures['median_error']:.1f} % in the median, rank correlation {figures['kendall']:.3f}",
        markup=False,
        soft_wrap=True,
    )
