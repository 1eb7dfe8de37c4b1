"""What `Report.html` draws with: the page stands above this room, so the public surface brings it."""

from collections.abc import Callable

from tightrope.core import Graph, Machine, Plan

_drawing: Callable[[Graph, Plan, Machine | None], str] | None = None


def draw_with(drawing: Callable[[Graph, Plan, Machine | None], str]) -> None:
    """Set what draws a plan as one offline HTML page."""
    global _drawing
    _drawing = drawing


def drawn(graph: Graph, plan: Plan, machine: Machine | None = None) -> str | None:
    """Draw a plan, of a machine where it pages; None where nothing was set."""
    return None if _drawing is None else _drawing(graph, plan, machine)
