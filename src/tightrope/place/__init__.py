"""Offsets for storages."""

from tightrope.place.conflict import conflict
from tightrope.place.options import PlaceOptions
from tightrope.place.placer import Interval, Placement, place

__all__ = [
    "Interval",
    "PlaceOptions",
    "Placement",
    "conflict",
    "place",
]
