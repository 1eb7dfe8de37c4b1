"""Find the region of metrics in which an application works, by few runs of it.

Idea        A run at a place decides a box: all that is nowhere worse if it works, all that is nowhere better
            if it fails. The next run is where the box that is new, times the chance that the application
            works there, is largest. The chance is read from distances to what is decided and from margins.
            The first run makes no error. Every sixth run looks for applications that are not monotone: in
            turn where it has to fail though margins say that it may work, and where it has to work, farthest
            from all other runs and from the ends of metrics.
Source      ApproxCaliper (2023) bisects boxes along diagonals, and uses no margins.
Guarantee   Of a monotone application nothing is accepted at which it fails. Every run is kept in the file at
            once, and is never made again.
Complexity  O(grid) per run, with about 20,000 places for any number of metrics.
Gaps        An island where the application fails, or works, is found only if a run lies in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tightrope.core import TightropeError
from tightrope_differ.lines import where_it_failed
from tightrope_differ.quality.region import check_metrics, read_region, region_of, scaled, write_region
from tightrope_differ.values.quality import QualityMetric, QualityRegion, QualityRun

_PLACES: Final = 20_000
_CHECK_EVERY: Final = 6
_CAUTION: Final = 2.0
"""Of ten forms of boundaries and 20 runs, 2 finds most: with 1, more runs fail and decide nothing."""
_WIDTHS: Final = (0.3, 0.6, 1.2)
_NOISE: Final = 1e-3
Places: TypeAlias = NDArray[np.float64]
"""Metrics along the last dimension, each from 0 = best to 1 = worst."""


@dataclass(frozen=True)
class Application:
    """What uses nets, and how well it has to be served.

    Attributes:
        metrics: name -> (best, worst), as a net is measured; such as ``{"degrees": (0, 20)}``.
        inject: values of the metrics by name -> what perceives with errors of that size.
        run: what perceives -> margin; above 0 = the application works.
        nets: name -> module; for the search among variants, as are the other three.
        measure: nets by name -> values of the metrics.
        perceive: nets by name -> what perceives with them.
        samples: name -> a batch of inputs of the net, on which its time is taken.
        tune: name and a changed net -> the net, trained again for a while; default: left as it is.
    """

    metrics: Mapping[str, tuple[float, float]]
    inject: Callable[[dict[str, float]], Any]
    run: Callable[[Any], float]
    nets: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[dict[str, Any]], Mapping[str, float]] | None = None
    perceive: Callable[[dict[str, Any]], Any] | None = None
    samples: Mapping[str, Any] = field(default_factory=dict)
    tune: Callable[[str, Any], Any] | None = None

    def margin(self, perceives: Any, where: str) -> float:
        """Run the application.

        Raises:
            TightropeError: it raises, or returns no finite number.
        """
        try:
            made = float(self.run(perceives))
        except Exception as error:  # of the user's application
            raise TightropeError(f"the application fails at {where}: {where_it_failed(error)}.") from error
        if not np.isfinite(made):
            raise TightropeError(f"the application returns the margin {made} at {where}: return a number.")
        return made


def metrics_of(app: Application) -> list[QualityMetric]:
    """Give the metrics of an application as axes.

    Raises:
        TightropeError: they are none.
    """
    try:
        metrics = [QualityMetric(str(name), *map(float, ends)) for name, ends in app.metrics.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise TightropeError(f"metrics are {app.metrics!r:.200}: give name -> (best, worst).") from error
    check_metrics(metrics)
    return metrics


def find_region(
    target: str,
    app: Application,
    *,
    budget: int = 20,
    file: Path | None = None,
) -> QualityRegion:
    """Find where an application works.

    Args:
        target: name of the application.
        app: metrics, what injects errors, and a run.
        budget: runs, those in the file among them.
        file: read if it is there, and written after every run.

    Raises:
        TightropeError: a run fails, or the file is of another application.

    Example:
        >>> app = Application({"a": (0, 10), "b": (0, 2)}, dict, lambda e: 9 - e["a"] - 3 * e["b"])
        >>> found = find_region("app", app, budget=20)
        >>> len(found.runs), 0.5 < found.accepted_share <= 0.6, found.clashes
        (20, True, [])
    """
    metrics = metrics_of(app)
    runs: list[QualityRun] = []
    if file is not None and file.exists():
        known = read_region(file)
        if known.metrics != metrics:
            raise TightropeError(f"{str(file)!r} is of other metrics: give another file.")
        runs = known.runs
    while len(runs) < budget and (place := next_place(metrics, runs)) is not None:
        at, check = place
        values = {
            one.name: float(one.best + u * (one.worst - one.best)) for one, u in zip(metrics, at, strict=True)
        }
        where = ", ".join(f"{name} = {value:.4g}" for name, value in values.items())
        try:
            perceives = app.inject(dict(values))
        except Exception as error:  # of the user's injector
            raise TightropeError(f"the injector fails at {where}: {where_it_failed(error)}.") from error
        runs = [*runs, QualityRun(list(values.values()), app.margin(perceives, where), check)]
        if file is not None:
            write_region(file, region_of(target, metrics, runs))
    return region_of(target, metrics, runs)


def next_place(metrics: Sequence[QualityMetric], runs: Sequence[QualityRun]) -> tuple[Places, bool] | None:
    """Choose where to run next, scaled to 0 to 1; say whether the answer should be known. None = decided."""
    if not runs:
        return np.zeros(len(metrics)), True
    side = round(_PLACES ** (1 / len(metrics)))
    axis = (np.arange(side) + 0.5) / side
    grid = np.stack(np.meshgrid(*[axis] * len(metrics), indexing="ij"), -1)
    places = np.stack([scaled(metrics, run.values) for run in runs])
    works = np.zeros(grid.shape[:-1], bool)
    fails = works.copy()
    for place, run in zip(places, runs, strict=True):
        works |= (grid <= place).all(-1) & (run.margin > 0)
        fails |= (grid >= place).all(-1) & (run.margin <= 0)
    known = works | fails
    margins = np.array([run.margin for run in runs])
    by_margin = _chance(places, margins, grid)
    if len(runs) % _CHECK_EVERY == _CHECK_EVERY - 1 and works.any():
        far = np.min([grid.min(-1), *(np.linalg.norm(grid - place, axis=-1) for place in places)], 0)
        doubtful = len(runs) % (2 * _CHECK_EVERY) < _CHECK_EVERY and fails.any()
        check = np.where(fails, by_margin, -1) if doubtful else np.where(works, far, -1)
        return grid[np.unravel_index(check.argmax(), check.shape)], True
    if known.all() or not (margins > 0).any():
        return None
    new = (~known).astype(float)
    for dim in range(len(metrics)):
        new = new.cumsum(dim)
    bad = [*places[margins <= 0], np.full(len(metrics), 1.02)]
    gain = np.where(known, 0, new * (_between(places[margins > 0], bad, grid) * by_margin) ** _CAUTION)
    return grid[np.unravel_index(gain.argmax(), gain.shape)], False


def next_candidate(region: QualityRegion, candidates: Places) -> int | None:
    """Choose the candidate whose run decides most of those that may be the cheapest that works.

    Args:
        region: of the runs of candidates so far.
        candidates: metrics of each, scaled; the cheapest first.

    Returns:
        Its number; None where the cheapest that works is known, or none is left.
    """
    places = np.array([scaled(region.metrics, run.values) for run in region.runs])
    places = places.reshape(-1, candidates.shape[1])
    same = np.all(candidates[:, None] == places, axis=-1)
    works = np.any(same[:, region.accepted], axis=1)
    worse_than = np.all(candidates[:, None] >= places[region.rejected], axis=-1)
    closed = np.any(same, axis=1) | np.any(worse_than, axis=1)
    closed[works.argmax() if works.any() else len(works) :] = True
    left = np.flatnonzero(~closed)
    if not len(left):
        return None
    given = candidates[left]
    costlier, worse = np.arange(len(left), 0, -1), (given >= given[:, None]).all(-1).sum(1)
    if not region.runs:
        return int(left[np.minimum(costlier, worse).argmax()])
    margins = np.array([run.margin for run in region.runs])
    bad = [*places[margins <= 0], np.full(len(region.metrics), 1.02)]
    good = places[margins > 0]
    chance = _chance(places, margins, given) * (_between(good, bad, given) if len(good) else 1)
    return int(left[(chance * costlier + (1 - chance) * worse).argmax()])


def _between(good: Places, bad: Sequence[Places], grid: Places) -> Places:
    """Give 1 at what is known to work and 0 at what is known to fail, and between them by distances."""
    from_good = np.min([np.linalg.norm(np.maximum(grid - one, 0), axis=-1) for one in good], 0)
    to_bad = np.min([np.linalg.norm(np.maximum(one - grid, 0), axis=-1) for one in bad], 0)
    return np.asarray(to_bad / (from_good + to_bad + 1e-9))


def _chance(places: Places, margins: Places, grid: Places) -> Places:
    """Give the chance that the application works, by a Gaussian process of margins of the likeliest width."""
    given = np.tanh(margins / (np.median(np.abs(margins)) or 1.0))
    mean, far = given.mean(), ((places[:, None] - places) ** 2).sum(-1)
    kernels = {width: np.exp(-far / width**2 / 2) + _NOISE * np.eye(len(given)) for width in _WIDTHS}

    def likelihood(width: float) -> float:
        rest = (given - mean) @ np.linalg.solve(kernels[width], given - mean)
        return float(-rest - np.linalg.slogdet(kernels[width])[1])

    width = max(_WIDTHS, key=likelihood)
    near = np.exp(-((grid[..., None, :] - places) ** 2).sum(-1) / width**2 / 2)
    weights = np.linalg.solve(kernels[width], np.column_stack([given - mean, np.eye(len(given))]))
    spread = np.sqrt(np.maximum(1 + _NOISE - (near * (near @ weights[:, 1:])).sum(-1), 1e-9))
    return np.asarray(1 / (1 + np.exp(-1.7 * (mean + near @ weights[:, 0]) / spread)))
