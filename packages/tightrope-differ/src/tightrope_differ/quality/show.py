"""A region for people: a picture of its first two metrics, a table of runs, and what follows."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import combinations
from typing import Final

from tightrope_differ.quality.region import scaled
from tightrope_differ.values.quality import BoardFigures, QualityRegion, QualityReport, TriedVariant
from tightrope_shared.draw import work_page

_SIZE, _LEFT, _TOP = 420, 70, 20
_GOOD, _BAD, _POINT = "#3a7", "#c54", "#236"
FORM_COLUMNS: Final = ("forms", "operations", "bytes", "metrics", "on the board", "breaks", "margin")
RUN_COLUMNS: Final = ("run", "metrics", "margin", "")


def summary(region: QualityRegion) -> str:
    """Say what was found in a few sentences."""
    open_ = 1 - region.accepted_share - region.rejected_share
    said = (
        f"{region.target}: {len(region.runs)} runs. Of the box of metrics, the application works in "
        f"{region.accepted_share:.1%} and fails in {region.rejected_share:.1%}; "
        f"{max(open_, 0.0):.1%} is not decided."
    )
    if not region.accepted:
        said += " No metrics are accepted: it failed wherever it ran."
    if region.clashes:
        good, bad = (region.runs[at].values for at in region.clashes[0])
        said += (
            f" It is not monotone: it works at {_values(region, good)} and fails at {_values(region, bad)}, "
            "which is nowhere worse. Such boxes are left out."
        )
    return said


def run_rows(region: QualityRegion) -> list[tuple[str, ...]]:
    """Give a row for every run."""
    kinds = {**dict.fromkeys(region.accepted, "accepted"), **dict.fromkeys(region.rejected, "rejected")}
    return [
        (str(at), _values(region, run.values), f"{run.margin:.4g}", kinds.get(at, "") + " check" * run.check)
        for at, run in enumerate(region.runs)
    ]


def _values(region: QualityRegion, values: Sequence[float]) -> str:
    return ", ".join(f"{m.name} {value:.4g}" for m, value in zip(region.metrics, values, strict=True))


def choice(report: QualityReport) -> str:
    """Say which forms of nets were chosen, or which limit excludes all; empty where none were asked for."""
    runs = sum(one.margin is not None for one in report.tried)
    if not report.goal:
        return ""
    if (chosen := report.chosen) is not None:
        said = (
            f"Chosen for the fewest {report.goal}: {chosen.name}; {chosen.flops:,} operations, "
            f"{chosen.bytes:,} B, margin {chosen.margin:.4g}; {len(report.tried)} forms tried, {runs} run."
        )
        if (on := report.emulated or chosen.board) is not None:
            said += f" On {'the emulated' if on.instructions else 'a'} board: {_on(on)}."
        unrun = sum("runs" in one.broken for one in report.tried)
        return said + (f" {unrun} cheaper forms were not run: give more --budget-runs." if unrun else "")
    said = f"No forms of its nets are chosen: of {len(report.tried)}, {runs} ran and none worked."
    names, left = report.excluding
    if not left:
        return said
    needs = ", ".join(_need(name, left) for name in names)
    others = "" if left[0].board is None else " and keep all other limits"
    return f"{said} What excludes forms is {' with '.join(names)}: {len(left)} break it{others}. {needs}."


def _need(name: str, left: Sequence[TriedVariant]) -> str:
    """Say how much of a limit would do for one of these forms."""
    boards = [one.board for one in left if one.board is not None]
    match name:
        case "ram" | "flash":
            return f"The smallest take {min(getattr(one, name) for one in boards):,} B: give more --{name}"
        case "seconds":
            return f"The fastest take {min(one.seconds for one in boards):.6f} s: give more --seconds"
        case "runs":
            return "They were not run: give more --budget-runs"
        case _:
            return "Better nets, or a wider region by more --budget-runs, are needed"


def _on(figures: BoardFigures) -> str:
    counted = f", {figures.instructions:,} instructions" if figures.instructions else ""
    return (
        f"{figures.numbers}, {figures.ram:,} B of RAM, {figures.flash:,} B of flash, "
        f"{figures.seconds * 1e3:.3g} ms as modelled{counted}"
    )


def form_rows(report: QualityReport) -> list[tuple[str, ...]]:
    """Give a row for every choice of forms that was tried."""
    rows: list[tuple[str, ...]] = []
    for one in report.tried:
        values = ", ".join(f"{name} {value:.4g}" for name, value in one.values.items())
        margin = "" if one.margin is None else f"{one.margin:.4g}"
        on = "" if one.board is None else _on(one.board)
        rows.append((one.name, f"{one.flops:,}", f"{one.bytes:,}", values, on, ", ".join(one.broken), margin))
    return rows


def report_lines(report: QualityReport) -> list[str]:
    """Say all in lines of text: what was found, runs, and the forms with which the application ran."""
    runs = [
        f"  {at:>4}  {what}  margin {margin}  {kind}" for at, what, margin, kind in run_rows(report.region)
    ]
    forms = [f"  {'  '.join(row)}" for row in form_rows(report) if row[-1] or row[4]]
    return [line.rstrip() for line in (summary(report.region), *runs, choice(report), *forms) if line]


def quality_page(report: QualityReport) -> str:
    """Write region, runs and forms as an HTML page without scripts; the region for each two metrics."""
    region = report.region
    points = {one.name: [one.values[m.name] for m in region.metrics] for one in report.tried}
    tables = [(choice(report), FORM_COLUMNS, form_rows(report))] if report.goal else []
    pairs = list(combinations(range(len(region.metrics)), 2)) or [(0, 0)]
    pictures = [
        (" and ".join(dict.fromkeys(region.metrics[at].name for at in pair)), _picture(region, pair, points))
        for pair in pairs
    ]
    return work_page(summary(region), pictures, [*tables, ("Runs", RUN_COLUMNS, run_rows(region))])


def _picture(region: QualityRegion, pair: tuple[int, int], points: Mapping[str, Sequence[float]]) -> str:
    """Draw two metrics: best at the lower left, boxes of runs, runs as circles, variants as squares."""
    floor = _TOP + _SIZE
    places = [scaled(region.metrics, run.values)[list(pair)] * _SIZE for run in region.runs]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIZE + 2 * _LEFT}" height="{floor + 50}">',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}" fill="#f4f4f0"/>',
    ]
    for at in region.accepted:
        x, y = places[at]
        parts.append(_rect(_LEFT, floor - y, x, y, _GOOD))
    for at in region.rejected:
        x, y = places[at]
        parts.append(_rect(_LEFT + x, _TOP, _SIZE - x, _SIZE - y, _BAD))
    for run, (x, y) in zip(region.runs, places, strict=True):
        text = escape(f"{_values(region, run.values)}: margin {run.margin:.4g}")
        fill = _GOOD if run.margin > 0 else _BAD
        parts.append(
            f'<circle cx="{_LEFT + x:.1f}" cy="{floor - y:.1f}" r="4" fill="{fill}" stroke="#fff">'
            f"<title>{text}</title></circle>"
        )
    for name, values in points.items():
        x, y = (scaled(region.metrics, values)[list(pair)] * _SIZE).clip(-8, _SIZE + 8)
        parts.append(
            f'<rect x="{_LEFT + x - 3:.1f}" y="{floor - y - 3:.1f}" width="6" height="6" fill="{_POINT}">'
            f"<title>{escape(name)}</title></rect>"
        )
    across, up = (region.metrics[at] for at in pair)
    for x, y, anchor, text in (
        (_LEFT, floor + 18, "start", f"{across.best:g}"),
        (_LEFT + _SIZE, floor + 18, "end", f"{across.worst:g}"),
        (_LEFT + _SIZE / 2, floor + 36, "middle", across.name),
        (_LEFT - 6, floor, "end", f"{up.best:g}"),
        (_LEFT - 6, _TOP + 12, "end", f"{up.worst:g}"),
        (_LEFT - 6, _TOP + _SIZE / 2, "end", up.name),
    ):
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text[:40])}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _rect(x: float, y: float, wide: float, high: float, fill: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    return f'<rect {place} fill="{fill}" fill-opacity="0.25"/>'
