"""Made-up jobs whose sizes, lifetimes and arrivals are spread like those of Alibaba's GPU pods.

Idea        Sizes are the 25 that the trace has most often, as often as there. A lifetime is drawn from the
            distribution of all pods, written down as 14 quantiles, nearer to the median of its size: normal
            variables are correlated, and become lifetimes by rank. Jobs come in half hours of different
            rates, and one of five has the size of the one before.
Source      Quantiles and counts of the 8,124 pods from day 112 on of cluster-trace-gpu-v2023.
Guarantee   The same number, seed and days give the same jobs.
Complexity  O(jobs).
Gaps        Lifetimes follow each other no more than sizes do, no job is moved or comes back, and there is no
            weekday. True ends gain more here than on the pods.
"""

import itertools
import math
import random
from statistics import NormalDist
from typing import Final

from tightrope_fleet.jobs.traces import POD_MACHINE, JobTrace
from tightrope_fleet.values.work import WorkItem

_LIVES: Final = (
    (0.0, 5), (0.01, 12), (0.05, 48), (0.1, 79), (0.25, 166), (0.5, 539), (0.75, 1949), (0.9, 6374),
    (0.95, 15_321), (0.97, 23_625), (0.99, 73_484), (0.995, 167_358), (0.999, 1_598_326), (1.0, 3_136_123),
)  # fmt: skip
"""Share of jobs that live at most so many seconds."""
_KINDS: Final = (
    ((3152, 5600, 810), 129, 293), ((11300, 49152, 1000), 106, 344), ((11400, 48128, 1000), 66, 1007),
    ((3152, 5600, 1000), 58, 199), ((11908, 47104, 470), 48, 258), ((12500, 57344, 0), 45, 512),
    ((8000, 30517, 470), 44, 320), ((32000, 49152, 0), 35, 152), ((18708, 64512, 1000), 31, 455),
    ((11908, 47104, 650), 29, 674), ((9810, 41560, 1000), 24, 591), ((8000, 30517, 0), 20, 15_554),
    ((15700, 58368, 1000), 19, 2061), ((12000, 24576, 1000), 40, 3778), ((15400, 51200, 0), 35, 601),
    ((4000, 22888, 320), 36, 1127), ((16000, 32768, 1000), 32, 2336), ((4000, 24576, 1000), 13, 4051),
    ((8000, 16384, 1000), 32, 2700), ((12000, 16384, 1000), 30, 1260), ((24200, 93184, 1000), 24, 1362),
    ((4000, 15258, 230), 40, 450), ((11400, 77824, 1000), 30, 427), ((6000, 18432, 460), 29, 900),
    ((64200, 263168, 8000), 5, 606),
)  # fmt: skip
"""CPU in thousandths, MiB and GPUs in thousandths; of a thousand jobs; median lifetime in seconds."""
_BURSTS: Final = 0.45
"""Standard deviation of the logarithm of the rate of half an hour."""
_SAME: Final = 0.2


def made_up_jobs(count: int, *, seed: int = 0, days: float = 1.25) -> JobTrace:
    """Make jobs that resemble Alibaba's pods: a median of nine minutes, a tail of weeks, shared GPUs.

    Args:
        count: number of jobs.
        seed: of everything random.
        days: within which they arrive.

    Example:
        >>> trace = made_up_jobs(100)
        >>> len(trace.items), trace.items == made_up_jobs(100).items
        (100, True)
    """
    draw, normal = random.Random(seed), NormalDist()
    nearer = [normal.inv_cdf(_share_below(median)) for _, _, median in _KINDS]
    weights = [weight for _, weight, _ in _KINDS]
    middle = sum(w * at for w, at in zip(weights, nearer, strict=True)) / sum(weights)
    across = sum(w * (at - middle) ** 2 for w, at in zip(weights, nearer, strict=True)) / sum(weights)
    within = math.sqrt(max(1 - across, 0.0))  # so that all kinds together have the quantiles
    kind, made = 0, []
    for number, start in enumerate(_arrivals(count, days, draw)):
        if not number or draw.random() > _SAME:
            kind = draw.choices(range(len(_KINDS)), weights)[0]
        life = int(_life(normal.cdf(nearer[kind] - middle + within * draw.gauss(0, 1))))
        size = _KINDS[kind][0]
        item = WorkItem(f"job-{number}", size, start, start + max(life, 1))
        made.append((item, (("LS", "BE")[kind % 2], str(size[2]), str(size))))
    return JobTrace(tuple(item for item, _ in made), tuple(feature for _, feature in made), POD_MACHINE)


def _arrivals(count: int, days: float, draw: random.Random) -> list[int]:
    """Seconds at which jobs come, ascending."""
    slots = max(1, round(days * 48))
    rates = [math.exp(draw.gauss(0, _BURSTS)) for _ in range(slots)]
    chosen = draw.choices(range(slots), rates, k=count)
    return sorted(int((slot + draw.random()) * days * 86_400 / slots) for slot in chosen)


def _life(share: float) -> float:
    """Lifetime at a rank, along lines through the logarithms of the quantiles."""
    for (below, short), (above, long) in itertools.pairwise(_LIVES):
        if share <= above:
            return float(short * (long / short) ** ((share - below) / (above - below)))
    return float(_LIVES[-1][1])


def _share_below(life: float) -> float:
    """Rank of a lifetime.

    >>> round(_share_below(_life(0.3)), 6)
    0.3
    """
    for (below, short), (above, long) in itertools.pairwise(_LIVES):
        if life <= long:
            return below + (above - below) * math.log(life / short) / math.log(long / short)
    return 1.0
