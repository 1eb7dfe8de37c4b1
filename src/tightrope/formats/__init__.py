"""Graphs and logs in files: ours, and those of others that plug-ins read."""

from tightrope.formats.read import NodeId, Source, load_source, read_source

__all__ = [
    "NodeId",
    "Source",
    "load_source",
    "read_source",
]
