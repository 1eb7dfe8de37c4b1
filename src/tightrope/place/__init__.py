"""Offsets for storages."""

from tightrope.place.csv import Instance, place_file, read_csv, write_csv
from tightrope.place.options import PlaceOptions
from tightrope.place.placer import Interval, Placement, place
from tightrope.place.svg import draw_svg

__all__ = [
    "Instance",
    "Interval",
    "PlaceOptions",
    "Placement",
    "draw_svg",
    "place",
    "place_file",
    "read_csv",
    "write_csv",
]
