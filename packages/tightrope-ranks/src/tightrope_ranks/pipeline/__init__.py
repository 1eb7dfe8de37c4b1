"""Pipelines: the order of stages and micro-batches on every rank."""

from tightrope_ranks.pipeline.generate import (
    breadth_first,
    folded,
    gpipe,
    interleaved,
    looped,
    one_f_one_b,
)
from tightrope_ranks.pipeline.language import Action, Orders, read_action, read_csv, write_csv
from tightrope_ranks.pipeline.lower import lower
from tightrope_ranks.pipeline.simulate import DeadlockError, Timeline, simulate
from tightrope_ranks.pipeline.wire import with_wires

__all__ = [
    "Action",
    "DeadlockError",
    "Orders",
    "Timeline",
    "breadth_first",
    "folded",
    "gpipe",
    "interleaved",
    "looped",
    "lower",
    "one_f_one_b",
    "read_action",
    "read_csv",
    "simulate",
    "with_wires",
    "write_csv",
]
