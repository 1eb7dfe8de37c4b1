"""How much quality an application needs, as a region of metrics, and the cheapest net inside it."""

from tightrope_differ.quality.region import contains, limit_of, read_region, region_of, write_region
from tightrope_differ.quality.search import Application, find_region

__all__ = ["Application", "contains", "find_region", "limit_of", "read_region", "region_of", "write_region"]
