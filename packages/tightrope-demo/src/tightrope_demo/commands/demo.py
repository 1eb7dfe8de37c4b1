"""The command ``demo``: train small networks at several budgets."""

from typing import Annotated, Final

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.core import TightropeError, parse_bytes
from tightrope.core.units import shown

_NETS: Final = ("gpt2", "resnet")
_EXAMPLES: Final = """\b
Examples:
  tightrope demo
  tightrope demo --net resnet --budget 60%
  tightrope demo --net gpt2 --json"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("demo", short_help="Train small networks at several budgets.", epilog=_EXAMPLES)(demo)


def demo(
    net: Annotated[str | None, typer.Option(help="gpt2 or resnet; default: both.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="One budget, such as 60MiB or 60%; default: four.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Training steps per row.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train small networks on real data at several budgets and print what happened."""
    if net not in (None, *_NETS):
        raise TightropeError(f"no demo network {shown(net)}: give {' or '.join(_NETS)}.")
    if budget is not None:
        parse_bytes(budget, whole=1)
    from tightrope_demo.rows import run_demo

    rows = run_demo(net=net, budget=budget, steps=steps, console=None if json else console())
    if json:
        emit_json({"rows": rows})
    if not all(row["fits"] for row in rows):
        raise typer.Exit(DOES_NOT_FIT)
