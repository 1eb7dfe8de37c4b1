"""Planners: from a graph and a budget to a schedule with addresses."""

from tightrope.plan.api import whole_bytes
from tightrope.plan.bound import lower_bound
from tightrope.plan.cache import SMALLEST, PlanCache
from tightrope.plan.curve import plan_curve
from tightrope.plan.kept import KeptPlans
from tightrope.plan.options import Options, Planner, Progress
from tightrope.plan.registry import PLANNERS
from tightrope.plan.schedule import base_schedule
from tightrope.plan.search import smallest, solve

__all__ = [
    "PLANNERS",
    "SMALLEST",
    "KeptPlans",
    "Options",
    "PlanCache",
    "Planner",
    "Progress",
    "base_schedule",
    "lower_bound",
    "plan_curve",
    "smallest",
    "solve",
    "whole_bytes",
]
