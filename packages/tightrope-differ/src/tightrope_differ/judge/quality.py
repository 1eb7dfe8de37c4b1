"""Check a region of quality against the runs that it was made from.

Idea        Every accepted corner has to be a run that works with no failure inside its box, every rejected
            corner a run that fails. Shares are measured anew, by slabs along the last metric.
Guarantee   Passes exactly when every corner follows from the runs, no run in the region failed, every clash
            is named, and both shares are right within 1e-9. A choice keeps all limits, and the limit on
            quality is that of the region.
Complexity  O(runs^metrics).
Gaps        Whether the runs took place cannot be seen from the file.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite

from tightrope.core import JudgeError
from tightrope_differ.values.quality import BoardFigures, QualityRegion, QualityReport


def check_region(region: QualityRegion) -> None:
    """Refuse a region that its runs do not support.

    Raises:
        JudgeError: names the run or the figure.
    """
    places = [_place(region, at) for at in range(len(region.runs))]
    works = [run.margin > 0 for run in region.runs]
    for kind, corners, right in (("accepted", region.accepted, True), ("rejected", region.rejected, False)):
        for at in corners:
            if not 0 <= at < len(works):
                raise JudgeError(f"{kind} names run {at}; there are {len(works)}.")
            if works[at] != right:
                raise JudgeError(f"run {at} is {kind}, and its margin is {region.runs[at].margin}.")
    seen = set()
    for good, place in enumerate(places):
        for bad, other in enumerate(places):
            if works[good] and not works[bad] and _inside(other, place):
                seen.add((good, bad))
                if good in region.accepted:
                    raise JudgeError(f"run {good} is accepted, and run {bad} fails though it is no worse.")
    if seen != {tuple(pair) for pair in region.clashes}:
        raise JudgeError(f"the region has {len(region.clashes)} clashes, and the runs have {len(seen)}.")
    clashing = {good for good, _ in seen}
    for at, place in enumerate(places):
        corners = region.accepted if works[at] else region.rejected
        held = [_inside(place, places[c]) if works[at] else _inside(places[c], place) for c in corners]
        if at not in clashing and not any(held):
            raise JudgeError(f"run {at} is in no box, and nothing speaks against it.")
    accepted = _volume([places[at] for at in region.accepted])
    rejected = _volume([[1 - u for u in places[at]] for at in region.rejected])
    for said, found in ((region.accepted_share, accepted), (region.rejected_share, rejected)):
        if not abs(said - found) <= 1e-9:
            raise JudgeError(f"a share is said to be {said}; the runs give {found}.")


def check_choice(report: QualityReport) -> None:
    """Refuse a choice that a limit does not hold, or that is not the cheapest that worked.

    Raises:
        JudgeError: names the limit or the forms.
    """
    region, before = report.region, 0
    check_region(region)
    _check_limit(report)
    for at, one in enumerate(report.tried):
        cost = one.flops if report.goal == "flops" else one.bytes
        if cost < before:
            raise JudgeError(f"{one.name!r:.99} was tried after what is more expensive.")
        before = cost
        values = [one.values.get(metric.name, float("nan")) for metric in region.metrics]
        inside = any(_no_worse(region, values, region.runs[run].values) for run in region.accepted)
        if inside == ("quality" in one.broken):
            raise JudgeError(f"{one.name!r:.99} is {'inside' if inside else 'outside'} of the region.")
        over = [] if one.board is None else _over(report, one.board)
        if over != [name for name in one.broken if name not in ("quality", "runs")]:
            raise JudgeError(f"{one.name!r:.99} breaks {over or 'no limits'} of the board, not {one.broken}.")
        if not one.broken and one.margin is None:
            raise JudgeError(f"{one.name!r:.99} is inside of the region and all limits, and was not run.")
        if one.margin is not None and one.margin > 0:
            if one.broken:
                raise JudgeError(f"{one.name!r:.99} breaks {one.broken}, and is said to work.")
            if at + 1 < len(report.tried):
                raise JudgeError(f"{one.name!r:.99} works, and more expensive forms were tried after it.")
    if report.emulated is not None and (over := _over(report, report.emulated)):
        raise JudgeError(f"on the emulated board the forms that were chosen break {', '.join(over)}.")


def _check_limit(report: QualityReport) -> None:
    limit, region = report.limits.quality, report.region
    if limit is None:
        if report.tried:
            raise JudgeError("forms of nets were tried without a limit on quality.")
        return
    axes = [(metric.name, metric.best < metric.worst) for metric in region.metrics]
    if list(zip(limit.metrics, limit.rising, strict=False)) != axes or len(limit.rising) != len(axes):
        raise JudgeError(f"the limit on quality is of {', '.join(limit.metrics)}, unlike the region.")
    if sorted(limit.corners) != sorted(tuple(region.runs[at].values) for at in region.accepted):
        raise JudgeError(f"the limit on quality has {len(limit.corners)} corners that are not the region's.")


def _no_worse(region: QualityRegion, values: Sequence[float], corner: Sequence[float]) -> bool:
    return all(
        (value - end) * (metric.worst - metric.best) <= 0
        for metric, value, end in zip(region.metrics, values, corner, strict=True)
    )


def _over(report: QualityReport, figures: BoardFigures) -> list[str]:
    """Name the limits of a board that figures are over, or figures that are none."""
    limits, found = report.limits, []
    if not limits.bytes or not 0 <= figures.ram <= limits.bytes[0]:
        found.append("ram")
    if not 0 <= figures.flash <= (report.flash or figures.flash):
        found.append("flash")
    if not 0 <= figures.seconds <= (figures.seconds if limits.seconds is None else limits.seconds):
        found.append("seconds")
    return found


def _place(region: QualityRegion, at: int) -> list[float]:
    run = region.runs[at]
    if len(run.values) != len(region.metrics) or not isfinite(run.margin):
        raise JudgeError(f"run {at} has {len(run.values)} values and the margin {run.margin}.")
    found = []
    for metric, value in zip(region.metrics, run.values, strict=True):
        low, high = sorted((metric.best, metric.worst))
        if not low < high or not low <= value <= high:
            raise JudgeError(f"run {at}: {metric.name!r:.60} is {value}, outside of {low} to {high}.")
        found.append(abs(value - metric.best) / (high - low))
    return found


def _inside(one: Sequence[float], corner: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, corner, strict=True))


def _volume(corners: Sequence[Sequence[float]]) -> float:
    """Measure a union of boxes from 0: slabs between the last coordinates, from the farthest."""
    if not corners:
        return 0.0
    if len(corners[0]) == 1:
        return max(corner[0] for corner in corners)
    total, ends = 0.0, sorted({corner[-1] for corner in corners} | {0.0})
    for low, high in pairwise(ends):
        total += (high - low) * _volume([corner[:-1] for corner in corners if corner[-1] >= high])
    return total
