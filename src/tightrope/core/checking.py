"""Refuse a value of a file: name the field, quote the value, say what it must be."""

from collections.abc import Sequence
from typing import Final, NoReturn

from tightrope.core.errors import PlanFileError
from tightrope.core.json_text import MAX_INT, quote

MAX_ITEMS: Final = 2_000_000
"""Most steps of a schedule, ops or storages of a graph."""
MAX_ID: Final = 2**31 - 1


def refuse(where: str, value: object, must: str) -> NoReturn:
    """Raise `PlanFileError`."""
    raise PlanFileError(f"{where} = {quote(value)}: must be {must}.")


def within(value: int, where: str, *, low: int = 0, high: int = MAX_INT) -> None:
    """Refuse a number outside its limits."""
    if not low <= value <= high:
        limit = "2^62" if high == MAX_INT else str(high)
        refuse(where, value, f"between {low} and {limit}")


def few(items: Sequence[object], where: str, *, most: int = MAX_ITEMS) -> None:
    """Refuse an array that is too long."""
    if len(items) > most:
        refuse(where, items, f"an array of at most {most} items")


def distinct(items: Sequence[int], where: str) -> None:
    """Refuse numbers of which one is given twice."""
    if len(set(items)) != len(items):
        twice = next(item for position, item in enumerate(items) if item in items[:position])
        refuse(where, twice, "given once")
