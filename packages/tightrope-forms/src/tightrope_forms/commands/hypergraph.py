"""The command ``hypergraph``: bytes and time of a convolution over a hypergraph from a file."""

import os
import time
from typing import Annotated, Final

import typer

from tightrope.cli.output import console, emit_json
from tightrope.core import TightropeError, format_bytes
from tightrope.core.files import read_file

_EXAMPLES: Final = """\b
Examples:
  tightrope hypergraph pairs.csv --features 64
  tightrope hypergraph pairs.csv --features 64 --first mean --json"""
_FIRSTS: Final = ("sum", "mean", "max")
_COPIES: Final = 2
"""Of all rows, at once: given and made."""
_TIMES: Final = 5


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    short = "Measure a convolution over a hypergraph."
    app.command("hypergraph", short_help=short, epilog=_EXAMPLES)(hypergraph)


def hypergraph(
    file: Annotated[str, typer.Argument(help="A line per member: its vertex, a comma, its hyperedge.")],
    features: Annotated[int, typer.Option(min=1, max=4096, help="Numbers of a vertex.")] = 64,
    first: Annotated[str, typer.Option(help="What a hyperedge takes: sum, mean or max.")] = "sum",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Forecast the bytes of a convolution over a hypergraph, and time it on this processor.

    Exit code 0: done; 2: error.
    """
    if first not in _FIRSTS:
        raise TightropeError(f"--first {first!r:.100}: give one of {', '.join(_FIRSTS)}.")
    rows = _read(file)
    import torch

    from tightrope_forms.hypergraph import Incidence, hypergraph_conv

    num_rows = sum(max(column) + 1 for column in zip(*rows, strict=True))
    if (needed := _COPIES * 4 * features * num_rows) > _memory():
        raise TightropeError(
            f"{num_rows:,} vertices and hyperedges take {format_bytes(needed)}, which is more than this "
            "machine has. Number them from 0, or give fewer --features."
        )
    incidence = Incidence(torch.tensor(rows).T)
    x, seconds = torch.rand(incidence.num_vertices, features, requires_grad=True), []
    for _ in range(_TIMES):
        start = time.thread_time()
        hypergraph_conv(x, incidence, first=first).backward(torch.ones_like(x))  # type: ignore[no-untyped-call, arg-type]
        seconds.append(time.thread_time() - start)
    between = 4 * features * incidence.num_edges
    sizes = {"vertices": incidence.num_vertices, "hyperedges": incidence.num_edges, "pairs": len(rows)}
    bytes_ = {
        "between": between, "kept": between if first == "max" else 0, "gathered": 8 * features * len(rows)
    }  # fmt: skip
    if json:
        emit_json({**sizes, "bytes": bytes_, "seconds": min(seconds)})
        return
    out = console()
    out.print(", ".join(f"{size:,} {name}" for name, size in sizes.items()))
    out.print(f"between the passes      {format_bytes(bytes_['between']):>12}")
    out.print(f"kept for the backward   {format_bytes(bytes_['kept']):>12}")
    out.print(f"gathered rows, not made {format_bytes(bytes_['gathered']):>12}")
    out.print(f"forward and backward    {1e3 * min(seconds):>9.2f} ms")


def _memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(path: str) -> list[list[int]]:
    """Read the pairs of a file; the first line may be a header."""
    rows: list[list[int]] = []
    for number, line in enumerate(read_file(path).splitlines(), 1):
        try:
            pair = [int(text) for text in line.decode("ascii").split(",")]
        except ValueError:
            pair = []
        if len(pair) == 2 and all(-(2**31) < one < 2**31 for one in pair):
            rows.append(pair)
        elif line.strip() and number > 1:
            raise TightropeError(
                f"{path!r}, line {number}: {line[:40]!r}. Give a vertex, a comma, and a hyperedge."
            )
    if not rows:
        raise TightropeError(f"{path!r} has no pairs. Give lines such as 0,0: a vertex and its hyperedge.")
    return rows
