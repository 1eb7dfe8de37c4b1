"""Placement beyond one arena: files of others, blocks, small edits, drawings, parallel streams."""

from tightrope_planners.place.blocks import BlockPlacement, place_blocks
from tightrope_planners.place.csv import read_csv, write_csv
from tightrope_planners.place.files import from_trace, place_file, read_instance
from tightrope_planners.place.instance import Instance, place_instance
from tightrope_planners.place.repack import Repacked, repack
from tightrope_planners.place.svg import draw_svg
from tightrope_planners.values.blocks import Block, Piece

__all__ = [
    "Block",
    "BlockPlacement",
    "Instance",
    "Piece",
    "Repacked",
    "draw_svg",
    "from_trace",
    "place_blocks",
    "place_file",
    "place_instance",
    "read_csv",
    "read_instance",
    "repack",
    "write_csv",
]
