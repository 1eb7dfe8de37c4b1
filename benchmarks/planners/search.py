"""Quality and speed of the default search."""

from collections.abc import Iterator

from benchmarks.planners.question import Question, Row, Settings


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per graph and budget."""
    del settings
    yield from ()


QUESTION = Question(("P1", "P2", "P3", "P4", "P9", "P10"), "search: time of the plans, and of planning", run)
