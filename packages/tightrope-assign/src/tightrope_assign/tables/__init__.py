"""Where embedding tables live: whole or by columns, on devices with limits and links."""

from tightrope_assign.tables.plan import plan_tables
from tightrope_assign.values.cluster import Cluster, PlaceDevice, read_cluster
from tightrope_assign.values.costs import CONSTANTS, TableCosts
from tightrope_assign.values.tables import EmbeddingTable, TablePlan, TableSet, TableShard

__all__ = [
    "CONSTANTS",
    "Cluster",
    "EmbeddingTable",
    "PlaceDevice",
    "TableCosts",
    "TablePlan",
    "TableSet",
    "TableShard",
    "plan_tables",
    "read_cluster",
]
