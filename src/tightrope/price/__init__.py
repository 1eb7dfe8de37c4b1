"""What an op costs: measured here, or from a machine's table."""

from tightrope.price.measure import Measured, clock_here, measure
from tightrope.price.ops import Measurements, price_ops
from tightrope.price.pace import Paced, StepTime, summed
from tightrope.price.store import PriceStore
from tightrope.price.table import price_graph

__all__ = [
    "Measured",
    "Measurements",
    "Paced",
    "PriceStore",
    "StepTime",
    "clock_here",
    "measure",
    "price_graph",
    "price_ops",
    "summed",
]
