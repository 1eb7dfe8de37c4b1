"""Planners side by side: quality, proof, speed and scale.

Run them with ``python -m benchmarks planners``. One file holds one question; `QUESTIONS` names the
module of each, which has a value ``QUESTION``. Modules are imported when they are run, because some
need packages that others do not.
"""

from importlib import import_module
from typing import Final

from benchmarks.planners.question import Question

QUESTIONS: Final[dict[str, tuple[str, ...]]] = {
    "search": ("P1", "P2", "P3", "P4"),
    "scale": ("P9", "P10", "P13"),
    "bounds": ("P4", "P5", "P11"),
    "literature": ("P6", "table"),
    "treewidth": ("P7",),
    "brute": ("P12",),
    "exhaustive": ("P12",),
    "paging": ("P8",),
    "partition": ("compile",),
}
"""Module of each question, with the bars that it decides."""


def question(name: str) -> Question:
    """Import a question by the name of its module."""
    found = import_module(f"benchmarks.planners.{name}").QUESTION
    assert isinstance(found, Question)
    return found
