"""Work over time: what happened where, drawings of it, and an offline page around them."""

from tightrope.draw.work import (
    Bar,
    Curve,
    Lane,
    WorkEvent,
    WorkTrace,
    draw_curves,
    draw_lanes,
    ticks,
    work_page,
)

__all__ = [
    "Bar",
    "Curve",
    "Lane",
    "WorkEvent",
    "WorkTrace",
    "draw_curves",
    "draw_lanes",
    "ticks",
    "work_page",
]
