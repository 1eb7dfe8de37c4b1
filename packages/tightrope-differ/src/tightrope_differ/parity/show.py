"""A report for people: a table, a page, and what to do."""

from collections.abc import Sequence
from typing import Final

from tightrope_differ.values.parity import FLAGGED, JUDGED, LoweringDifference, ParityReport
from tightrope_shared.draw import work_page

COLUMNS: Final = (
    "lowering", "result", "images", "flips", "p (Holm)", "logits move", "accuracy", "where values part",
)  # fmt: skip


def difference_row(one: LoweringDifference) -> tuple[str, ...]:
    """Give the cells of one lowering."""
    status = f"{one.status}, accepted" if one.accepted and one.status in FLAGGED else one.status
    where = one.note
    if one.parting is not None:
        part = one.parting
        there = f" at {part.line}" if part.line else ""
        instead = f"; reference: {part.reference}" if part.reference else ""
        where = f"{part.op}{there}{instead}" + (f"; {one.note}" if one.note else "")
    elif one.line and one.status not in ("no place", "equal"):
        where = f"{one.line} {one.note}".strip()
    if one.status not in JUDGED or not one.images:
        return (one.name, status, "", "", "", "", "", where)
    accuracy = "" if one.accuracy is None else f"{one.accuracy:+.2f} pp (p {one.p_accuracy:.2g})"
    flips = f"{one.flips} ({one.flips / one.images:.2%})"
    moves = f"{one.distance:.2g}, largest {one.largest:.2g}"
    return (one.name, status, str(one.images), flips, f"{one.adjusted:.2g}", moves, accuracy, where)


def conclusion(report: ParityReport) -> str:
    """Say what was found and what to do, in a few sentences."""
    judged = [one for one in report.differences if one.status in JUDGED]
    said = (
        f"{report.target}: {report.images} images, {len(judged)} lowerings judged, "
        f"{len(report.flagged)} flagged. The null run has 0 flips; logits move by {report.floor:.1g} in "
        "batches that are divided in another way."
    )
    if report.accuracy is not None:
        said += f" Accuracy {report.accuracy:.2f} %."
    if report.unread:
        said += f" The reference cannot read {len(report.unread)} images, left out: {report.unread[0]}."
    if any(one.group in ("decode", "colour", "resize") for one in report.flagged):
        said += " Write preprocessing and net as one graph by --pin FILE.onnx, or accept by --accept."
    elif report.flagged:
        said += " Deploy the reference's lowering, or accept the risk by --accept."
    return said


def parity_page(report: ParityReport) -> str:
    """Write the report as an HTML page without scripts."""
    order = sorted(report.differences, key=lambda one: (not one.flagged, -one.flips, -one.distance))
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
    tables = [("Lowerings", COLUMNS, [difference_row(one) for one in order])]
    if report.unread:
        tables.append(("Images that were left out", ("image",), [(one,) for one in report.unread]))
    return work_page(conclusion(report), [], tables)
