"""What an op costs: measured here, or from a machine's table.

What measures is imported when it is first used: it needs torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tightrope.price.pace import Paced, StepTime, summed
from tightrope.price.table import price_graph

if TYPE_CHECKING:
    from tightrope.price.measure import Measured, clock_here
    from tightrope.price.ops import Measurements, price_ops
    from tightrope.price.store import PriceStore

_WHERE: Final = {
    "Measured": "measure",
    "Measurements": "ops",
    "PriceStore": "store",
    "clock_here": "measure",
    "price_ops": "ops",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tightrope.price' has no attribute {name!r}")
    return getattr(import_module(f"tightrope.price.{_WHERE[name]}"), name)


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
