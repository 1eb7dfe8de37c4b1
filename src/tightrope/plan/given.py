"""The base order as it is, without recomputation."""

from tightrope.core import Graph, Limits, Machine, Schedule
from tightrope.plan.options import Options
from tightrope.plan.schedule import base_schedule


def given(graph: Graph, machine: Machine | None, limits: Limits, options: Options) -> Schedule:
    """Run every op once and free every storage right after its last reader."""
    del machine, limits, options
    return base_schedule(graph)
