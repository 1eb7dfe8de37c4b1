"""The command ``quality``: how well an application has to be served, and the cheapest nets that serve it."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.cli.target import called
from tightrope.core import TightropeError
from tightrope.core.writing import write_whole

if TYPE_CHECKING:
    from tightrope_differ.quality import Application

_EPILOG: Final = """\b
Examples:
  tightrope quality crop_rows.py:build
  tightrope quality crop_rows.py:build --budget-runs 20 --region region.toml --page region.html
  tightrope quality crop_rows.py:with_nets --region region.toml --smallest flops --save nets.pt"""


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
    save: Annotated[Path | None, typer.Option(help="Write the chosen nets here, by torch.save.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find at which errors an application still works, by few runs, and choose the cheapest nets for it.

    Exit code 0: a region, and nets with --smallest. 3: there is none, or the application is not monotone.
    2: error; runs are kept.
    """
    check_outputs([page, region, save])
    goals = ("flops", "bytes")
    if smallest not in ("", *goals):
        raise TightropeError(f"--smallest is {smallest!r:.100}: give one of {', '.join(goals)}.")
    if save is not None and not smallest:
        raise TightropeError("--save writes nets that --smallest chooses: give both.")
    made = _built(target)
    from tightrope_differ.judge.quality import check_choice
    from tightrope_differ.quality import find_region
    from tightrope_differ.quality.choose import choose, forms_of
    from tightrope_differ.quality.show import quality_page, report_lines
    from tightrope_differ.values.quality import QualityReport

    report, nets = QualityReport(find_region(target, made, budget=budget_runs, file=region)), {}
    if smallest and report.region.accepted:
        if find_spec("torch_pruning") is None:
            typer.echo("No nets with fewer channels: pip install 'tightrope-differ[prune]'.", err=True)
        search = choose(made, forms_of(made), report.region, goal="flops" if smallest == "flops" else "bytes")
        report, nets = QualityReport(report.region, smallest, search.tried), search.nets
    check_choice(report)
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
