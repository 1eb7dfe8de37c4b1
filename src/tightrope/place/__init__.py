"""Offsets for storages."""

from tightrope.place.blocks import BlockPlacement, place_blocks
from tightrope.place.conflict import conflict
from tightrope.place.csv import read_csv, write_csv
from tightrope.place.files import from_trace, place_file, read_instance
from tightrope.place.instance import Instance, place_instance
from tightrope.place.options import PlaceOptions
from tightrope.place.placer import Interval, Placement, place
from tightrope.place.repack import Repacked, repack
from tightrope.place.svg import draw_svg

__all__ = [
    "BlockPlacement",
    "Instance",
    "Interval",
    "PlaceOptions",
    "Placement",
    "Repacked",
    "conflict",
    "draw_svg",
    "from_trace",
    "place",
    "place_blocks",
    "place_file",
    "place_instance",
    "read_csv",
    "read_instance",
    "repack",
    "write_csv",
]
