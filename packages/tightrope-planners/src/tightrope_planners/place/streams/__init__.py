"""Reuse of memory across parallel streams: what is safe, what it costs, and where storages go."""

from tightrope_planners.place.streams.assign import needed_waits, side_streams, stream_graph
from tightrope_planners.place.streams.bound import LiveBound, live_bound
from tightrope_planners.place.streams.files import has_streams, read_streams, write_streams
from tightrope_planners.place.streams.fit import fit_streams
from tightrope_planners.place.streams.graph import StreamGraph, StreamStorage
from tightrope_planners.place.streams.lag import Lag, bounded_lag
from tightrope_planners.place.streams.placer import StreamPlacement, place_streams
from tightrope_planners.place.streams.relation import Relation, check_streams, reuse_relation

__all__ = [
    "Lag",
    "LiveBound",
    "Relation",
    "StreamGraph",
    "StreamPlacement",
    "StreamStorage",
    "bounded_lag",
    "check_streams",
    "fit_streams",
    "has_streams",
    "live_bound",
    "needed_waits",
    "place_streams",
    "read_streams",
    "reuse_relation",
    "side_streams",
    "stream_graph",
    "write_streams",
]
