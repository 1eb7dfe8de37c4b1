"""Pipelines: the order of stages and micro-batches on every rank."""

from tightrope.parallel.pipeline.generate import (
    breadth_first,
    folded,
    gpipe,
    interleaved,
    looped,
    one_f_one_b,
)
from tightrope.parallel.pipeline.language import Action, Orders, read_action, read_csv, write_csv
from tightrope.parallel.pipeline.lower import lower
from tightrope.parallel.pipeline.simulate import DeadlockError, Timeline, simulate
from tightrope.parallel.pipeline.wire import with_wires

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
