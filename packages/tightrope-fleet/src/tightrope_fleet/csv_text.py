"""Say what is wrong with a file of values apart by commas, in words of the file, not of the parser."""

import csv
from typing import Final

from tightrope.core.errors import TightropeError

_SAID: Final = (
    ("unexpected end", "a quote opens and does not close"),
    ("expected after", "text stands behind a closing quote"),
    ("new-line character", "a line ends in a carriage return alone"),
    ("larger than field limit", f"a value has more than {csv.field_size_limit()} characters"),
)


def what_is_wrong(error: csv.Error) -> str:
    """Say what Python's reader stumbled over.

    >>> try:
    ...     list(csv.reader(['a,"b'], strict=True))
    ... except csv.Error as error:
    ...     what_is_wrong(error)
    'a quote opens and does not close'
    """
    return next((words for part, words in _SAID if part in str(error)), str(error))


def not_csv(where: str, error: csv.Error) -> TightropeError:
    """Make the refusal of a file, by its name and line."""
    return TightropeError(
        f"{where}: not CSV: {what_is_wrong(error)}. Give values apart by commas, a row per line."
    )
