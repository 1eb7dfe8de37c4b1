"""Place the buffers of a file: the command ``tightrope place``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli.output import DOES_NOT_FIT, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.core import Bytes, TightropeError, format_bytes, parse_bytes

if TYPE_CHECKING:
    from tightrope.cli.tables import Console
    from tightrope.place import Placement
    from tightrope_planners.place import Instance
    from tightrope_planners.place.streams import StreamPlacement

_EPILOG = """\b
Examples:
  tightrope place buffers.csv --capacity 1MiB
  tightrope place buffers.csv.gz --minimize --seconds 10 -o placed.csv --svg placed.svg
  tightrope place snapshot.json --minimize --json
  tightrope place step.streams.json --capacity 1GiB -o placed.streams.json"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("place", short_help="Place the buffers of a file at addresses.", epilog=_EPILOG)(place)


def place(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="MiniMalloc CSV, SOMAS dump, CUDA memory snapshot as JSON, trace, or ops on parallel "
            "streams; gzipped or not.",
        ),
    ],
    capacity: Annotated[str | None, typer.Option(help="Bytes to fit in, such as 1MiB.")] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Make the peak as small as possible.")] = False,
    seconds: Annotated[float, typer.Option(min=0.001, max=1e6, help="Effort, in CPU seconds.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the search.")] = 0,
    device: Annotated[
        int | None, typer.Option(min=0, max=1023, help="Device of a snapshot with several.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the columns of FILE and offsets here.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw addresses over time here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place the buffers of a file at addresses, so that those alive together never overlap.

    Exit code 0: within the capacity, or no capacity was given; 3: not. A placement is written either way.
    Ops on parallel streams also get the waits that the capacity needs, and nothing where none suffice.
    """
    check_outputs([output, svg])
    if capacity is None and not minimize:
        raise TightropeError("say what is wanted: --capacity BYTES, --minimize, or both.")
    asked = None if capacity is None else parse_bytes(capacity, name="capacity")
    from tightrope_planners.place import place_file, write_csv
    from tightrope_planners.place.streams import has_streams

    if has_streams(file):
        if svg is not None or (minimize and asked is not None):
            raise TightropeError(
                "ops on parallel streams take --capacity (adds waits) or --minimize (adds none), not both. "
                "They have no common time axis for --svg."
            )
        streams(file, asked, seconds=seconds, seed=seed, output=output, json=json)
        return
    instance, placement = place_file(
        file, capacity=asked, minimize=minimize, seconds=seconds, seed=seed, device=device
    )
    if output is not None:
        write_csv(output, instance, placement.offsets)
    if svg is not None:
        _draw(svg, instance, placement, asked, file.name)
    if json:
        emit_json(summary(instance, placement))
    else:
        _show(console(), instance, placement, asked)
    if asked is not None and placement.peak > asked:
        raise typer.Exit(DOES_NOT_FIT)


def streams(
    file: Path, asked: Bytes | None, *, seconds: float, seed: int, output: Path | None, json: bool
) -> None:
    """Place storages of parallel streams; with a capacity, also choose the waits that it needs."""
    from tightrope_planners.place.streams import fit_streams, place_streams, read_streams, write_streams

    graph, alignments = read_streams(file)
    waits: tuple[tuple[int, int], ...] = ()
    if asked is None:
        placement = place_streams(graph, seconds=seconds, seed=seed, alignments=alignments)
    else:
        lag, placement = fit_streams(graph, asked, seconds=seconds, seed=seed, alignments=alignments)
        graph, waits = lag.graph, lag.added
    if output is not None:
        write_streams(output, graph, placement.offsets, alignments=alignments)
    if json:
        emit_json({**_figures(placement), "added_waits": waits, "witness": placement.witness})
        return
    added = ", ".join(f"op {later} for op {earlier}" for earlier, later in waits) or "none"
    console().print(
        f"{placement.status}: {len(placement.offsets)} storages on {graph.num_streams} streams in "
        f"{placement.peak} bytes ({format_bytes(placement.peak)}); {placement.lower_bound} bytes can be "
        f"alive at once; waits added: {added}; {placement.cpu_seconds:.3f} CPU s, {placement.method}.",
        markup=False,
    )


def summary(instance: "Instance", placement: "Placement") -> dict[str, Any]:
    """Figures of a placement as plain values."""
    return {**_figures(placement), "witness": [instance.names[index] for index in placement.witness]}


def _figures(placement: "Placement | StreamPlacement") -> dict[str, Any]:
    return {
        "status": placement.status,
        "peak_bytes": placement.peak,
        "lower_bound_bytes": placement.lower_bound,
        "cpu_seconds": placement.cpu_seconds,
        "num_buffers": len(placement.offsets),
        "method": placement.method,
    }


def _draw(path: Path, instance: "Instance", placement: "Placement", asked: Bytes | None, title: str) -> None:
    from tightrope_planners.place import draw_svg
    from tightrope_planners.place.source import open_target

    picture = draw_svg(instance.buffers, placement.offsets, names=instance.names, capacity=asked, title=title)
    with open_target(path) as text:
        text.write(picture)


def _show(console: "Console", instance: "Instance", placement: "Placement", asked: Bytes | None) -> None:
    excess = placement.peak / placement.lower_bound - 1 if placement.lower_bound else 0.0
    limit = "" if asked is None else f", asked {format_bytes(asked)}"
    console.print(
        f"{placement.status}: {len(instance.buffers)} buffers in {placement.peak} bytes "
        f"({format_bytes(placement.peak)}{limit}); the largest load is {placement.lower_bound} bytes "
        f"({100 * excess:.2f} % above it); {placement.cpu_seconds:.3f} CPU s, {placement.method}.",
        markup=False,
    )
