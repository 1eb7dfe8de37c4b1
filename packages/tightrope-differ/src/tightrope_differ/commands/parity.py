"""The command ``parity``: what differs between a pipeline and other ways to run it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tightrope.cli.output import DOES_NOT_FIT, ERROR, console, emit_json
from tightrope.cli.sound import check_outputs
from tightrope.cli.target import called
from tightrope.core import TightropeError
from tightrope.core.writing import write_whole

if TYPE_CHECKING:
    from tightrope_differ.parity.pipeline import ImageNet
    from tightrope_differ.values.parity import ParityReport

_EPILOG: Final = """\b
Examples:
  tightrope parity photos.py:build --data photos/
  tightrope parity photos.py:build --data photos/ --against resize,onnx,bf16 --page parity.html
  tightrope parity photos.py:build --data photos/ --against deployed.onnx,app.py:build --json
  tightrope parity photos.py:build --data photos/ --against all --pin pinned.onnx"""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "parity", short_help="Find what differs between a model as trained and as run.", epilog=_EPILOG
    )(parity)


def parity(
    target: Annotated[str, typer.Argument(help="FILE.py:FUNCTION; returns (model, preprocess).")],
    data: Annotated[Path, typer.Option(help="Folder with images; folders in it are labels.")],
    against: Annotated[str, typer.Option(help="Groups, names, FILE.onnx or FILE.py:FUNCTION.")] = "all",
    accept: Annotated[str, typer.Option(help="Groups or names whose differences are accepted.")] = "",
    images: Annotated[int, typer.Option(min=0, max=10**7, help="At most, spread evenly; 0 = all.")] = 0,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images at once.")] = 32,
    alpha: Annotated[float, typer.Option(min=1e-9, max=0.5, help="Chance of a false flag.")] = 0.01,
    page: Annotated[Path | None, typer.Option(help="Write a page here.")] = None,
    pin: Annotated[
        Path | None, typer.Option(help="Write model and preprocessing as one graph in ONNX here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one pipeline under other decoders, resizes, colours, precisions and backends, and compare.

    Exit code 0: nothing differs that was not accepted; 3: something does; 2: error, or a lowering stopped.
    """
    check_outputs([page, pin])
    if not data.is_dir():
        raise TightropeError(f"{str(data)!r:.300} is no folder: give a folder with images by --data.")
    from tightrope_differ.images.places import CallPlaces

    with CallPlaces() as places:
        reference = _built(target)
        from tightrope_differ.images.files import images_in
        from tightrope_differ.parity.compare import ParityOptions, asked_for, compare

        asked, accepted = asked_for(against), asked_for(accept)
        others: dict[str, Any] = {}
        for name in asked:
            if ".py:" in name:
                try:
                    others[name] = _built(name)
                except TightropeError as error:
                    others[name] = error
        paths, labels = images_in(data, images)
        options = ParityOptions(batch=min(batch, len(paths)), alpha=alpha, accepted=accepted)
        report = compare(reference, asked, paths, labels, others=others, places=places, options=options)
        if page is not None:
            from tightrope_differ.parity.show import parity_page

            write_whole(page, parity_page(report))
        if json:
            emit_json(report)
        else:
            _say(report)
        if pin is not None:  # after the report, which stays if this is refused
            from tightrope_differ.parity.pin import pin_net, write_pinned

            unread = {text.partition(": ")[0] for text in report.unread}
            read = [path for path in paths if str(path) not in unread]
            write_pinned(pin_net(reference, read, places), pin, read[0])
    if any(one.status == "stopped" for one in report.differences):
        raise typer.Exit(ERROR)
    if report.flagged:
        raise typer.Exit(DOES_NOT_FIT)


def _built(target: str) -> "ImageNet":
    """Call a build function; say where it failed.

    Raises:
        TightropeError: the target is malformed, absent, fails, or returns something else.
    """
    file = Path(target.rpartition(":")[0])
    try:
        if file.is_file() and b".onnx" in file.read_bytes():
            import torch  # a net in ONNX is run without it, and results are compared by it

            del torch
        made = called(target)
    except TightropeError as error:
        if error.__cause__ is None:
            raise
        from tightrope_differ.lines import where_it_failed

        raise TightropeError(f"{target!r} failed: {where_it_failed(error.__cause__)}.") from error
    from tightrope_differ.parity.pipeline import image_net

    return image_net(target, made, file.parent)


def _say(report: "ParityReport") -> None:
    from tightrope_differ.parity.show import COLUMNS, conclusion, difference_row

    show = console()
    show.print(conclusion(report), markup=False, soft_wrap=True)
    rows = [COLUMNS, *map(difference_row, report.differences)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        show.print(f"  {'  '.join([*cells, row[-1]])}".rstrip(), markup=False, soft_wrap=True)
