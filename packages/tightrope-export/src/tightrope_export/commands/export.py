"""The command ``export``: a plan as a file that plain PyTorch, or another engine, runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import Plan, TightropeError, format_bytes, parse_bytes

_EXAMPLES = """\b
Examples:
  tightrope export step.plan.json --model train.py:build --to sac -o recompute.py
  tightrope export train.py:build --budget 300MiB --to blocks -o recompute.py --check
  tightrope export train.py:build --budget 60% --to hf -o recompute.py --json
  tightrope export train.py:build --budget 8GiB --to torchtitan -o ac.toml
  tightrope export train.py:build --budget 8GiB --to megatron -o flags.txt"""


ExportTarget = StrEnum("ExportTarget", "SAC HF BLOCKS TORCHTITAN MEGATRON")
"""What can be written."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("export", short_help="Write what to recompute for other engines.", epilog=_EXAMPLES)(export)


def export(
    source: Annotated[str, typer.Argument(metavar="PLAN|FILE.py:FUNCTION", help="A plan, or what to plan.")],
    to: Annotated[ExportTarget, typer.Option(help="What is written; see below.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Write it here.")],
    model: Annotated[str | None, typer.Option(help="FILE.py:FUNCTION that the plan was made from.")] = None,
    budget: Annotated[str | None, typer.Option(help="Bytes or a share, without a plan: 8GiB, 60%.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Run the file here, and compare.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a plan as what plain PyTorch, or another engine, runs.

    sac keeps some results of a module, blocks and hf none; hf takes members of one list of layers. These
    three are Python files without tightrope. torchtitan and megatron are settings. The forecast is that
    of the written form. Exit code 0: written; 3: no form holds the budget, or --check failed; 2: error.
    """
    check_outputs([output])
    from tightrope.cli.target import build, is_function

    if is_function(source):
        if model is not None:
            raise TightropeError(f"{source!r:.200} is the model already: leave out --model.")
        if budget is None:
            raise TightropeError(f"{source!r:.200} has no plan with a budget: add --budget BYTES.")
        parse_bytes(budget, whole=1)
    elif budget is not None:
        raise TightropeError("the budget is that of the plan: leave out --budget.")
    elif model is None:
        raise TightropeError("a plan does not hold its model: add --model FILE.py:FUNCTION.")
    plan, target = (None, source) if model is None else (Plan.load(Path(source)), model)
    if check and to in (ExportTarget.TORCHTITAN, ExportTarget.MEGATRON):
        raise TightropeError(f"--check runs Python files, and {to.value} is a setting: leave it out.")
    built = build(target)
    from tightrope_export.commands.exporting import exported

    row = exported(target, built, plan, budget, to.value, output, check)
    if json:
        emit_json(row)
    else:
        _say(row, output)
    if row.get("wrong"):
        raise typer.Exit(DOES_NOT_FIT)


def _say(row: dict[str, Any], output: Path) -> None:
    lines = [
        f"form      {row['modules']} modules computed again, {row['results_kept']} results kept in them",
        f"forecast  {format_bytes(row['forecast_bytes'])} of {format_bytes(row['budget_bytes'])}, "
        f"{row['more_time_percent']:.1f} % more time than each op once; "
        f"{format_bytes(row['whole_bytes'])} without the file",
        f"plan      {format_bytes(row['plan_bytes'])}, {row['plan_more_time_percent']:.1f} % more time: "
        f"the exported form is {'coarser' if row['coarser'] else 'no worse'}",
        *([f"check     {'; '.join(row['wrong']) or 'ran as promised'}"] if "wrong" in row else []),
        f"written   {output}",
    ]
    console().print("\n".join(lines), markup=False, soft_wrap=True)
