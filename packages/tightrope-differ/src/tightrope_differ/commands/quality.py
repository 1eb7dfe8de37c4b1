"""The command ``quality``: how well an application has to be served, and the cheapest nets that serve it."""

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
  tightrope quality crop_rows.py:build --budget-runs 20 --region region.toml --page region.html"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "quality", short_help="Find how well an application has to be served by its nets.", epilog=_EPILOG
    )(quality)


def quality(
    target: Annotated[str, typer.Argument(help="FILE.py:FUNCTION; returns an Application.")],
    budget_runs: Annotated[int, typer.Option(min=1, max=10_000, help="Runs, with those in --region.")] = 20,
    region: Annotated[
        Path | None, typer.Option(help="Keep runs and region here; runs that it has are not made again.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the region of metrics in which an application works, by few runs with injected errors.

    Exit code 0: a region; 3: there is none, or the application is not monotone; 2: error, runs are kept.
    """
    check_outputs([page, region])
    made = _built(target)
    from tightrope_differ.judge.quality import check_region
    from tightrope_differ.quality import find_region
    from tightrope_differ.quality.show import quality_page, run_rows, summary

    found = find_region(target, made, budget=budget_runs, file=region)
    check_region(found)
    if page is not None:
        write_whole(page, quality_page(found, {}))
    if json:
        emit_json(found)
    else:
        show = console()
        show.print(summary(found), markup=False, soft_wrap=True)
        for row in run_rows(found):
            show.print(f"  {row[0]:>4}  {row[1]}  margin {row[2]}  {row[3]}".rstrip(), markup=False)
    if found.clashes or not found.accepted:
        raise typer.Exit(DOES_NOT_FIT)


def _built(target: str) -> "Application":
    """Call a build function.

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    import torch  # a target may be a simulator alone, and `called` asks for torch

    del torch
    from tightrope_differ.quality import Application

    made: Any = called(target)
    if not isinstance(made, Application):
        raise TightropeError(
            f"{target!r} returns a {type(made).__name__}: return a tightrope_differ.quality.Application."
        )
    return made
