"""The region in which an application works, from its runs, and its file.

Idea        Metrics are scaled so that 0 is best and 1 is worst. A run that works accepts the box between it
            and 0; a run that fails rejects the box between it and 1. The region is the union of boxes.
Guarantee   Of a monotone application no metrics are accepted at which it fails. Where a run that fails lies
            in the box of a run that works, the application is not monotone: that box is left out.
Complexity  O(runs^metrics) for the shares.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tightrope.core import QualityLimit, TightropeError
from tightrope.core.toml_text import from_toml
from tightrope.core.writing import write_whole
from tightrope_differ.values.quality import QualityMetric, QualityRegion, QualityRun, in_order

_LARGEST: Final = 1 << 22


def scaled(metrics: Sequence[QualityMetric], values: Sequence[float]) -> NDArray[np.float64]:
    """Scale values so that 0 is best and 1 is worst."""
    return np.array([(v - m.best) / (m.worst - m.best) for m, v in zip(metrics, values, strict=True)])


def region_of(target: str, metrics: Sequence[QualityMetric], runs: Sequence[QualityRun]) -> QualityRegion:
    """Derive the region from runs.

    Args:
        target: the application.
        metrics: the axes.
        runs: in the order in which they were made.

    Example:
        >>> runs = [QualityRun([2.0, 1.0], 0.3), QualityRun([8.0, 1.5], -0.1)]
        >>> found = region_of("app", [QualityMetric("a", 0, 10), QualityMetric("b", 0, 2)], runs)
        >>> found.accepted, found.rejected, round(found.accepted_share, 6), round(found.rejected_share, 6)
        ([0], [1], 0.1, 0.05)
    """
    places = [scaled(metrics, run.values) for run in runs]
    good = [at for at, run in enumerate(runs) if run.margin > 0]
    bad = [at for at, run in enumerate(runs) if run.margin <= 0]
    clashes = [[g, b] for g in good for b in bad if (places[b] <= places[g]).all()]
    clean = [at for at in good if at not in {g for g, _ in clashes}]
    accepted = _outermost(clean, places)
    rejected = _outermost(bad, [-place for place in places])
    return QualityRegion(
        target=target,
        metrics=list(metrics),
        runs=list(runs),
        accepted=accepted,
        rejected=rejected,
        accepted_share=_share([places[at] for at in accepted]),
        rejected_share=_share([1 - places[at] for at in rejected]),
        clashes=clashes,
    )


def _outermost(chosen: Sequence[int], places: Sequence[NDArray[np.float64]]) -> list[int]:
    """Leave out what lies in the box of another; of equal ones the first stays."""
    found: list[int] = []
    for at in sorted(chosen, key=lambda one: (-places[one].sum(), one)):
        if not any((places[at] <= places[other]).all() for other in found):
            found.append(at)
    return sorted(found)


def _share(corners: Sequence[NDArray[np.float64]]) -> float:
    """Give the volume of the union of the boxes between 0 and each corner."""
    if not corners:
        return 0.0
    edges = [np.unique([0.0, *axis]) for axis in np.stack(corners).T]
    sizes = [len(axis) - 1 for axis in edges]
    if np.prod(sizes) > _LARGEST:
        raise TightropeError(f"{len(corners)} corners in {len(edges)} metrics are too many to measure.")
    inside = np.zeros(sizes, bool)
    for corner in corners:
        inside[tuple(slice(int(np.searchsorted(e, c))) for e, c in zip(edges, corner, strict=True))] = True
    volumes = np.ones(())
    for axis in edges:
        volumes = volumes[..., None] * np.diff(axis)
    return float((volumes * inside).sum())


def limit_of(region: QualityRegion) -> QualityLimit:
    """Give the region as a limit of `tightrope.core.Limits`.

    Example:
        >>> found = region_of("app", [QualityMetric("accuracy", 1.0, 0.0)], [QualityRun([0.8], 0.1)])
        >>> limit_of(found)
        QualityLimit(metrics=('accuracy',), rising=(False,), corners=((0.8,),))
    """
    return QualityLimit(
        tuple(one.name for one in region.metrics),
        tuple(one.worst > one.best for one in region.metrics),
        tuple(tuple(region.runs[at].values) for at in region.accepted),
    )


def contains(region: QualityRegion, values: Mapping[str, float]) -> bool:
    """Tell whether an application works at these metrics.

    Raises:
        TightropeError: a metric is missing.

    Example:
        >>> found = region_of("app", [QualityMetric("accuracy", 1.0, 0.0)], [QualityRun([0.8], 0.1)])
        >>> contains(found, {"accuracy": 0.9}), contains(found, {"accuracy": 0.7})
        (True, False)
    """
    limit = limit_of(region)
    return limit.allows(in_order(limit.metrics, values))


def write_region(path: Path, region: QualityRegion) -> None:
    """Write a region as TOML: a limit for others, and what `tightrope quality` goes on from."""
    tree = msgspec.to_builtins(region)
    lines = ["# Accepted: metrics that are nowhere worse than those of a run in `accepted`."]
    tables = [(key, tree.pop(key)) for key in ("metrics", "runs")]
    lines += [f"{key} = {_toml(value)}" for key, value in tree.items()]
    for key, rows in tables:
        for row in rows:
            lines += ["", f"[[{key}]]", *(f"{name} = {_toml(value)}" for name, value in row.items())]
    write_whole(path, "\n".join([*lines, ""]))


def _toml(value: object) -> str:
    """Write numbers, lists and text, which TOML has as JSON has them."""
    return msgspec.json.encode(value).decode()


def read_region(path: Path) -> QualityRegion:
    """Read a region, and derive again what follows from its runs.

    Raises:
        TightropeError: it cannot be read, is no region, or says other than its runs do.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TightropeError(f"{str(path)!r} cannot be read: {error}.") from error
    found = from_toml(text, QualityRegion, repr(str(path)))
    check_metrics(found.metrics)
    size = len(found.metrics)
    if found.schema != 1 or not found.runs or any(len(run.values) != size for run in found.runs):
        raise TightropeError(f"{str(path)!r} is no region of schema 1 with {size} values a run.")
    for run in found.runs:
        for metric, value in zip(found.metrics, run.values, strict=True):
            if not min(metric.best, metric.worst) <= value <= max(metric.best, metric.worst):
                raise TightropeError(
                    f"{str(path)!r}: {metric.name!r} is {value}, outside of {metric.best} to {metric.worst}."
                )
    if region_of(found.target, found.metrics, found.runs) != found:
        raise TightropeError(f"{str(path)!r} says other than what its runs say: make it again.")
    return found


def check_metrics(metrics: Sequence[QualityMetric]) -> None:
    """Refuse axes that are none.

    Raises:
        TightropeError: there are none or too many, two have one name, or a range is empty or not finite.
    """
    names = [one.name for one in metrics]
    if not 1 <= len(metrics) <= 4 or len(set(names)) < len(names):
        raise TightropeError(
            f"metrics are {', '.join(map(repr, names)) or 'none'}: give 1 to 4 of other names."
        )
    for one in metrics:
        if not np.isfinite(one.worst - one.best) or one.best == one.worst:
            raise TightropeError(
                f"metric {one.name!r} goes from {one.best} to {one.worst}: give two other numbers."
            )
