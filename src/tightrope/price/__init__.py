"""What an op costs: measured here, or from a machine's table.

What measures is imported when it is first used: it needs torch.
"""

from typing import TYPE_CHECKING

from tightrope.core.lazy import lazily
from tightrope.price.pace import Paced, StepTime, summed
from tightrope.price.table import price_graph

if TYPE_CHECKING:
    from tightrope.price.measure import Measured, clock_here
    from tightrope.price.ops import Measurements, price_ops
    from tightrope.price.store import PriceStore

__getattr__ = lazily(
    __name__,
    {
        "Measured": "measure",
        "Measurements": "ops",
        "PriceStore": "store",
        "clock_here": "measure",
        "price_ops": "ops",
    },
)

__all__ = [
    "Measured",
    "Measurements",
    "Paced",
    "PriceStore",
    "StepTime",
    "clock_here",
    "price_graph",
    "price_ops",
    "summed",
]
