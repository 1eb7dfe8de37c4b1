"""Graphs of others: published files, simulator logs, generated networks."""

from tightrope.plan.foreign.dtr import read_dtr_log
from tightrope.plan.foreign.layered import random_layered
from tightrope.plan.foreign.node_link import read_node_link
from tightrope.plan.foreign.poet import POET_NETWORKS, poet_network
from tightrope.plan.foreign.read import load_source, read_source
from tightrope.plan.foreign.source import NodeId, Source

__all__ = [
    "POET_NETWORKS",
    "NodeId",
    "Source",
    "load_source",
    "poet_network",
    "random_layered",
    "read_dtr_log",
    "read_node_link",
    "read_source",
]
