"""Drawings of work over time, and the offline page around them: what lines of the product that draw share."""

from tightrope.draw.work import Bar, Curve, Lane, draw_curves, draw_lanes, ticks, work_page

__all__ = ["Bar", "Curve", "Lane", "draw_curves", "draw_lanes", "ticks", "work_page"]
