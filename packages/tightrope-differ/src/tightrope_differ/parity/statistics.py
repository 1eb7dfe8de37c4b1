"""Whether answers changed by more than chance: McNemar's exact test, and Holm's correction for many tests.

Idea        Two lowerings answer for the same images, so only images with different answers count. Of these,
            as many should go one way as the other if the two are alike.
Source      McNemar (1947), in its exact form; Holm (1979)
Guarantee   Exact p-values for any count; with Holm's correction, the chance of one false flag among all tests
            is at most alpha, whatever depends on what.
Complexity  O(discordant pairs) in whole numbers; O(tests log tests)
Gaps        Images are taken as independent: frames of one video are not.
"""

from collections.abc import Sequence
from itertools import accumulate


def mcnemar(one_way: int, other_way: int) -> float:
    """Give the two-sided exact p-value of pairs where only the first holds, and where only the second does.

    Example:
        >>> mcnemar(8, 0), mcnemar(3, 3)
        (0.0078125, 1.0)
    """
    total = one_way + other_way
    ways = accumulate(
        range(min(one_way, other_way)), lambda term, k: term * (total - k) // (k + 1), initial=1
    )
    return min(1.0, 2 * sum(ways) / (1 << total))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values of several tests: give the level at which each holds among all, at most 1.

    Example:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    levels = accumulate((min(1.0, (len(values) - rank) * values[at]) for rank, at in enumerate(order)), max)
    found = dict(zip(order, levels, strict=True))
    return [found[at] for at in range(len(values))]
