"""One line of a table."""

from dataclasses import dataclass

Figure = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one net by their names, and whether they meet the bar."""

    figures: dict[str, Figure]
    passed: bool
