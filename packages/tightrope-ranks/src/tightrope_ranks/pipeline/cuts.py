"""Where a row of layers is cut into stages.

Idea        Fill stages up to a limit, each as far as it goes; halving finds the least limit that suffices.
Source      The linear partition problem (Manne and Sorevik 1995 survey it).
Guarantee   No cut into so many stages has a smaller largest one; equal numbers of layers where these are no
            worse.
Complexity  O(layers log sum).
"""

import itertools
from collections.abc import Sequence

from tightrope.core import TightropeError


def equal_cuts(count: int, num: int) -> tuple[int, ...]:
    """Cut into stages of equal numbers of layers, as far as they divide.

    >>> equal_cuts(5, 2)
    (0, 2, 5)
    """
    return tuple(count * k // num for k in range(num + 1))


def largest_part(weights: Sequence[int], cuts: Sequence[int]) -> int:
    """Sum the weights of every stage; return the largest sum."""
    return max(sum(weights[a:b]) for a, b in itertools.pairwise(cuts))


def least_cuts(weights: Sequence[int], num: int) -> tuple[int, ...]:
    """Cut so that the largest stage is smallest; every stage has a layer.

    Args:
        weights: of the layers, none negative.
        num: of stages, from 1 to the number of layers.

    Returns:
        Where stages begin, and the number of layers.

    Raises:
        TightropeError: there are no layers, or not so many stages of them.

    >>> least_cuts([9, 1, 1, 1], 2)
    (0, 1, 4)
    """
    if not 1 <= num <= len(weights):
        raise TightropeError(
            f"{len(weights)} layers cannot be cut into {num} stages, each with a layer. Give a number of "
            "stages from 1 to the number of layers."
        )
    equal = equal_cuts(len(weights), num)
    low, high = max(weights), largest_part(weights, equal)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(weights, num, middle)) == num + 1:
            high = middle
        else:
            low = middle + 1
    return equal if low == largest_part(weights, equal) else _filled(weights, num, low)


def _filled(weights: Sequence[int], num: int, most: int) -> tuple[int, ...]:
    """Fill stages up to ``most``, leaving a layer for every stage to come; more than ``num`` if need be."""
    cuts, so_far = [0], 0
    for at, weight in enumerate(weights):
        due = len(weights) - at <= num - len(cuts)
        if at > cuts[-1] and (so_far + weight > most or due):
            cuts.append(at)
            so_far = 0
        so_far += weight
    return (*cuts, len(weights))
