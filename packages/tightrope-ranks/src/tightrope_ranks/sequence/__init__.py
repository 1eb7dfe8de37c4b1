"""Layers divided among ranks, and one rank's plan: what to keep, to run again and to gather again."""

from tightrope_ranks.sequence.collectives import count_anew, counted, name_group
from tightrope_ranks.sequence.graph import (
    capture_rank,
    collectives_again,
    gradients_outside,
    is_collective,
)
from tightrope_ranks.sequence.layers import DividedLayer, Division, Stack
from tightrope_ranks.sequence.policies import cores_again, gather_again, layers_again, schedule_of
from tightrope_ranks.sequence.price import flops, priced, wire_bytes
from tightrope_ranks.sequence.run import (
    PlannedRank,
    divide,
    part_of,
    plan_rank,
    sum_shared_gradients,
)
from tightrope_ranks.sequence.saved import SavedMeter, layer_bytes, measure_saved, saved_bytes

__all__ = [
    "DividedLayer",
    "Division",
    "PlannedRank",
    "SavedMeter",
    "Stack",
    "capture_rank",
    "collectives_again",
    "cores_again",
    "count_anew",
    "counted",
    "divide",
    "flops",
    "gather_again",
    "gradients_outside",
    "is_collective",
    "layer_bytes",
    "layers_again",
    "measure_saved",
    "name_group",
    "part_of",
    "plan_rank",
    "priced",
    "saved_bytes",
    "schedule_of",
    "sum_shared_gradients",
    "wire_bytes",
]
