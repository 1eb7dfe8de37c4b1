"""What an op costs: measured here, or from a machine's table."""

from tightrope.price.measure import Measured, measure
from tightrope.price.ops import Measurements, price_ops
from tightrope.price.store import PriceStore
from tightrope.price.table import price_graph

__all__ = ["Measured", "Measurements", "PriceStore", "measure", "price_graph", "price_ops"]
