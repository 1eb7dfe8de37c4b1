"""The command ``quality``: how well an application has to be served, and the cheapest nets that serve it."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec.structs import replace

from tightrope.cli.machines import find_machine
from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.cli.target import called
from tightrope.core import Limits, NativeError, TightropeError, parse_bytes
from tightrope.core.writing import write_whole

if TYPE_CHECKING:
    from tightrope_differ.nets.board import Board
    from tightrope_differ.quality import Application
    from tightrope_differ.quality.choose import VariantSearch
    from tightrope_differ.values.quality import BoardFigures

_MORE_RUNS: Final = 30
"""Runs with the nets, in addition to as many as find the region."""

_EPILOG: Final = """\b
Examples:
  tightrope quality crop_rows.py:build
  tightrope quality crop_rows.py:build --budget-runs 20 --region region.toml --page region.html
  tightrope quality crop_rows.py:with_nets --smallest flops --save nets.pt
  tightrope quality crop_rows.py:with_nets --smallest flops --micro nrf52840 --ram 4KiB -o OUT/"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "quality", short_help="Find how well an application has to be served by its nets.", epilog=_EPILOG
    )(quality)


def quality(
    target: Annotated[str, typer.Argument(help="FILE.py:FUNCTION; returns an Application.")],
    budget_runs: Annotated[int, typer.Option(min=1, max=10_000, help="Runs, with those in --region.")] = 20,
    region: Annotated[
        Path | None, typer.Option(help="Keep runs and region here. A later call goes on from there.")
    ] = None,
    smallest: Annotated[str, typer.Option(help="Choose the nets with the fewest flops or bytes.")] = "",
    micro: Annotated[
        str, typer.Option(help="Write the chosen nets as C for this machine, or a TOML file.")
    ] = "",
    ram: Annotated[str, typer.Option(help="Of --micro: all RAM, stack included, such as 64KiB.")] = "",
    flash: Annotated[str, typer.Option(help="Of --micro: for code and constants; default: its own.")] = "",
    seconds: Annotated[float | None, typer.Option(help="Of --micro: of a call, as modelled.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Of --micro: write C here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the chosen nets here, by torch.save.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find at which errors an application still works, by few runs, and choose the cheapest nets for it.

    With --smallest alone, nets run and no errors are injected, which takes the fewest runs.
    Exit code 0: a region, and nets with --smallest. 3: there is none, or the application is not monotone.
    2: error; runs are kept.
    """
    check_outputs([page, region, save])
    goals = ("flops", "bytes")
    if smallest not in ("", *goals):
        raise TightropeError(f"--smallest is {smallest!r:.100}: give one of {', '.join(goals)}.")
    for name, given in (("--save", save), ("--micro", micro or None)):
        if given is not None and not smallest:
            raise TightropeError(f"{name} writes nets that --smallest chooses: give both.")
    board = _board(micro, ram, flash, seconds, output)
    made = _built(target)
    from tightrope_differ.judge.quality import check_choice
    from tightrope_differ.quality import find_region, limit_of
    from tightrope_differ.quality.choose import VariantSearch, choose, forms_of, search_guided
    from tightrope_differ.quality.show import quality_page, report_lines
    from tightrope_differ.values.quality import QualityReport

    goal: Any = smallest
    search = VariantSearch([], {})
    if smallest and find_spec("torch_pruning") is None:
        typer.echo("No nets with fewer channels: pip install 'tightrope-differ[prune]'.", err=True)
    if smallest and region is None and board is None:
        found, search = search_guided(target, made, forms_of(made), goal=goal, budget=budget_runs)
    else:
        found = find_region(target, made, budget=budget_runs, file=region)
        if smallest and found.accepted:
            most = _MORE_RUNS + budget_runs
            search = choose(made, forms_of(made), found, goal=goal, most_runs=most, board=board)
    limits = replace(Limits() if board is None else board.limits, quality=limit_of(found))
    of_board = (0, None) if board is None else (board.machine.flash, _emulated(search))
    report = QualityReport(found, smallest, search.tried, limits, *of_board)
    nets = search.nets
    check_choice(report)
    if output is not None and search.lowered is not None:
        search.lowered.write(output, limits, search.tried[-1].values)
    if save is not None and nets:
        import torch

        torch.save(nets, save)
    if page is not None:
        write_whole(page, quality_page(report))
    if json:
        emit_json(report)
    else:
        show = console()
        for line in report_lines(report):
            show.print(line, markup=False, soft_wrap=True)
    if report.region.clashes or not report.region.accepted or (smallest and report.chosen is None):
        raise typer.Exit(DOES_NOT_FIT)


def _board(micro: str, ram: str, flash: str, seconds: float | None, output: Path | None) -> "Board | None":
    """Read the limits of a board.

    Raises:
        TightropeError: one is malformed, or missing.
    """
    if not micro:
        for name, given in (("ram", ram), ("flash", flash), ("seconds", seconds), ("output", output)):
            if given not in ("", None):
                raise TightropeError(f"--{name} is of a board: name it by --micro, such as --micro nrf52840.")
        return None
    if not ram:
        raise TightropeError("--micro needs a limit on RAM: give --ram, such as --ram 64KiB.")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise TightropeError(f"--seconds is {seconds}: give a finite number above 0.")
    machine = find_machine(micro)
    if flash:
        machine = replace(machine, flash=parse_bytes(flash, name="--flash"))
    limits = Limits((parse_bytes(ram, name="--ram"),), seconds)
    from tightrope_differ.nets.board import Board, check_plugin

    check_plugin()
    return Board(machine, limits)


def _emulated(search: "VariantSearch") -> "BoardFigures | None":
    """Run the chosen nets on the emulated board; None where there are none, or no emulator."""
    try:
        return None if search.lowered is None else search.lowered.measured()
    except NativeError as error:
        typer.echo(f"Not run on the emulated board: {error}", err=True)
        return None


def _built(target: str) -> "Application":
    """Call a build function.

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    made: Any = called(target)
    from tightrope_differ.quality import Application

    if not isinstance(made, Application):
        raise TightropeError(
            f"{target!r} returns a {type(made).__name__}: return a tightrope_differ.quality.Application."
        )
    return made
