"""Graphs and logs in files: ours, and those of others that plug-ins read."""

from tightrope.formats.read import load_source, read_source
from tightrope.formats.source import NodeId, Source

__all__ = [
    "NodeId",
    "Source",
    "load_source",
    "read_source",
]
