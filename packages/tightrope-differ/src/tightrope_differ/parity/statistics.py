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


def mcnemar(one_way: int, other_way: int) -> float:
    """Give the two-sided exact p-value of discordant pairs.

    Args:
        one_way: pairs where only the first holds.
        other_way: pairs where only the second holds.

    Example:
        >>> mcnemar(8, 0), mcnemar(3, 3)
        (0.0078125, 1.0)
    """
    total = one_way + other_way
    tail = term = 1
    for k in range(min(one_way, other_way)):
        term = term * (total - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << total))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values of several tests.

    Returns:
        For each, the level at which it holds among all, at most 1.

    Example:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
    """
    found, largest = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[at]))
        found[at] = largest
    return found
