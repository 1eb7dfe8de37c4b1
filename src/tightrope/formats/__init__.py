"""Graphs of others: published files, simulator logs, generated networks."""

from tightrope.formats.dtr import read_dtr_log
from tightrope.formats.layered import random_layered
from tightrope.formats.node_link import read_node_link
from tightrope.formats.poet import POET_NETWORKS, poet_network
from tightrope.formats.read import load_source, read_source
from tightrope.formats.source import NodeId, Source

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
