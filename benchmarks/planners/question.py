"""What a question about planners is: a function from settings to rows of plain values.

A row that decides something has ``bar`` (its id) and ``met`` (True, False, or None where the figure
stands for itself). Everything else in it is a column.
"""

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line asked for.

    Attributes:
        only: bars to measure.
        data: folder of the published graphs, None = leave out the rows that need it.
        seeds: of every search; figures are medians over them.
        quick: smaller and fewer instances.
        out: folder of plots.
    """

    only: tuple[str, ...] = ()
    data: Path | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    quick: bool = False
    out: Path = Path("results")

    def wants(self, bar: str) -> bool:
        """Tell whether the rows of a bar were asked for."""
        return not self.only or bar in self.only


Run: TypeAlias = Callable[[Settings], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Question:
    """One file of this folder.

    Attributes:
        bars: ids of the bars that its rows decide.
        title: for people.
        run: measures, row by row.
    """

    bars: tuple[str, ...]
    title: str
    run: Run


def cpu_seconds(start: float = 0.0) -> float:
    """Processor seconds of this process and of those that it started and that ended, since ``start``."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime - start
