"""Graphs of others: published files, simulator logs, generated networks."""

from tightrope_planners.formats.dtr import read_dtr_log
from tightrope_planners.formats.layered import random_layered
from tightrope_planners.formats.node_link import read_node_link
from tightrope_planners.formats.poet import POET_NETWORKS, poet_network

__all__ = [
    "POET_NETWORKS",
    "poet_network",
    "random_layered",
    "read_dtr_log",
    "read_node_link",
]
