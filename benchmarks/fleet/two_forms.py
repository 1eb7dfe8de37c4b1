"""N6: which of two forms of a step is faster, by the contest of `run/execute/contest.py` and by a `Selector`.

A question of ours, and no bar.

The contest itself runs, on made-up times of steps: two, five and ten percent apart, either form the faster
one in half of the draws. Noise: 1 % and rare outliers; symmetric; one-sided with many outliers, as on a busy
processor; drifting over some twenty steps. The selector is told the least of each block of three steps, or
every step, and has as many steps at most as the contest. The first run of a form, and the first step after a
change, count as steps but are not timed, for both. Seeds below 1000 served to choose the selector's options;
those reported start at 1000.
"""

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.micro.rows import Row
from tightrope.run.execute.contest import STEPS, Contest
from tightrope_fleet.select import Selector

GAPS: Final = (0.02, 0.05, 0.10)
_LENGTH: Final = 4 * STEPS
_DRAWS: Final = 1000

Steps = tuple[float, float]
Chosen = tuple[int, int]
"""Number of the form, and steps until it was known."""


def _calm(random: np.random.Generator) -> NDArray[np.float64]:
    outliers = np.where(random.random(_LENGTH) < 0.01, 1.3, 1.0)
    return np.asarray(np.exp(random.normal(0, 0.01, _LENGTH)) * outliers)


def _symmetric(random: np.random.Generator) -> NDArray[np.float64]:
    return np.asarray(np.exp(random.normal(0, 0.05, _LENGTH)))


def _busy(random: np.random.Generator) -> NDArray[np.float64]:
    outliers = np.where(random.random(_LENGTH) < 0.1, 2.0, 1.0)
    return np.asarray(np.exp(np.abs(random.normal(0, 0.08, _LENGTH))) * outliers)


def _drifting(random: np.random.Generator) -> NDArray[np.float64]:
    kept, level, levels = math.exp(-1 / 20), float(random.normal(0, 0.05)), []
    for _ in range(_LENGTH):
        level = kept * level + float(random.normal(0, 0.05 * math.sqrt(1 - kept * kept)))
        levels.append(level)
    return np.asarray(np.exp(np.array(levels) + random.normal(0, 0.01, _LENGTH)))


FAMILIES: Final[dict[str, Callable[[np.random.Generator], NDArray[np.float64]]]] = {
    "calm": _calm,
    "symmetric": _symmetric,
    "busy": _busy,
    "drifting": _drifting,
}


def by_contest(truth: Steps, noise: Iterator[float]) -> Chosen:
    """Let the contest of the runtime decide."""
    forms: list[Any] = [  # stand for prepared steps
        SimpleNamespace(
            times=SimpleNamespace(num_runs=0, latest_ns=None), proof=SimpleNamespace(lost="", contest="")
        )
        for _ in truth
    ]
    contest, steps = Contest(forms[0], lambda: forms[1]), 0
    while True:
        turn: Any = contest.next(lambda _: True)
        number = forms.index(turn)
        if contest.over:
            return number, steps
        value, steps = truth[number] * next(noise), steps + 1
        turn.times.num_runs += 1
        turn.times.latest_ns = None if turn.times.num_runs == 1 else value


def by_selector(truth: Steps, noise: Iterator[float], *, block: int) -> Chosen:
    """Let a selector decide, which is told the least of each block of steps."""
    selector = Selector(2, tolerance=0.01, confidence=0.9, logs=True)
    checked, latest, steps = set[int](), -1, 0
    while (form := selector.ask()) is not None:
        untimed = (form not in checked) + (form != latest)
        if steps + untimed + block > STEPS:
            break
        times = [truth[form] * next(noise) for _ in range(untimed + block)]
        selector.tell(form, min(times[untimed:]))
        checked, latest, steps = checked | {form}, form, steps + len(times)
    return selector.choose().candidate, steps


def measure(name: str, gap: float, seeds: range) -> dict[str, tuple[float, float]]:
    """Share of wrong choices in percent, and mean steps, of each way."""
    ways: dict[str, Callable[[Steps, Iterator[float]], Chosen]] = {
        "contest": by_contest,
        "selector": lambda truth, noise: by_selector(truth, noise, block=3),
        "every step": lambda truth, noise: by_selector(truth, noise, block=1),
    }
    sums = {way: [0, 0] for way in ways}
    for seed in seeds:
        drawn = FAMILIES[name](np.random.default_rng((seed, list(FAMILIES).index(name)))).tolist()
        truth = (10.0, 10.0 * (1 + gap)) if seed % 2 else (10.0 * (1 + gap), 10.0)
        for way, choose in ways.items():
            form, steps = choose(truth, iter(drawn))
            sums[way][0] += truth[form] > min(truth)
            sums[way][1] += steps
    return {way: (100 * wrong / len(seeds), steps / len(seeds)) for way, (wrong, steps) in sums.items()}


def two_forms(seeds: range = range(1000, 1000 + _DRAWS)) -> list[Row]:
    """N6: wrong choices and steps, a row per kind of noise."""
    rows = []
    for name in FAMILIES:
        found = [measure(name, gap, seeds) for gap in GAPS]
        held = all(
            one["selector"][0] <= one["contest"][0] + 1 and one["selector"][1] < one["contest"][1]
            for one in found
        )
        said = {
            way: ", ".join(f"{one[way][0]:.1f} % in {one[way][1]:.1f}" for one in found) for way in found[0]
        }
        rows.append(
            Row(
                f"N6 {name}",
                "selector: wrong at most 1 point more often than the contest, fewer steps (2, 5, 10 % apart)",
                f"wrong {said['selector']} steps; told every step {said['every step']}",
                held,
                f"contest: {said['contest']} steps",
                own=True,
            )
        )
    return rows


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """The question by name."""
    return {"N6": two_forms}
