"""The command ``experts``: bytes of a layer of experts, without running anything."""

from typing import Annotated, Final

import typer

from tightrope.cli.output import console, emit_json
from tightrope.core import format_bytes
from tightrope_experts.sizes import ROWS, ExpertSizes

_EXAMPLES: Final = """\b
Examples:
  tightrope experts --tokens 8192 --dim 2048 --hidden 1024 --experts 64 --k 8
  tightrope experts --tokens 8192 --dim 2048 --hidden 1024 --experts 64 --k 8 --ranks 8 --bf16 --json"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("experts", short_help="Forecast the bytes of a layer of experts.", epilog=_EXAMPLES)(experts)


def experts(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of one rank in a step.")],
    dim: Annotated[int, typer.Option(min=1, help="Numbers of a token.")],
    hidden: Annotated[int, typer.Option(min=1, help="Numbers inside an expert.")],
    experts: Annotated[int, typer.Option(min=1, help="Experts of all ranks.")],
    k: Annotated[int, typer.Option(min=1, help="Experts of a token.")] = 1,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks that divide the experts.")] = 1,
    rows: Annotated[int, typer.Option(min=1, help="Rows multiplied at once.")] = ROWS,
    plain: Annotated[bool, typer.Option("--plain", help="Experts without a gate.")] = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="Numbers of 2 bytes, not 4.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Forecast the bytes of a layer of experts under an even load and in the worst case.

    In the worst case every token chooses one expert. Exit code 0: done; 2: error.
    """
    sizes = ExpertSizes(tokens, dim, hidden, experts, k, not plain, 2 if bf16 else 4, rows, ranks)
    loads = {name: sizes.load(worst=name == "worst") for name in ("even", "worst")}
    if json:
        kept = {"kept": sizes.kept, "kept_by_autograd": sizes.kept_by_autograd}
        emit_json({"weights": sizes.weights, **kept, **loads})
        return
    out = console()
    saved = 1 - sizes.kept / sizes.kept_by_autograd
    out.print(f"weights of a rank       {format_bytes(sizes.weights):>12}, their gradients as much")
    out.print(
        f"kept for the backward   {format_bytes(sizes.kept):>12}, with any routing "
        f"({saved:.0%} less than grouped products with autograd)"
    )
    for name, load in (("even load", loads["even"]), ("all at one expert", loads["worst"])):
        line = f"{name:<23} {load['rows']:>12,} rows, {load['rounds']:,} rounds"
        if ranks > 1:
            line += f", {format_bytes(load['arrived'])} of rows from all ranks"
        out.print(line)
