"""Bytes that two nodes share before there is anything in them."""

from dataclasses import dataclass

from torch import Tensor

from tightrope.core import Offset


@dataclass(frozen=True, slots=True, eq=False)
class SharedWindow:
    """Memory shared with one node: who is given it as an argument reads what is written here, uncopied.

    Both sides hold the block; it is free again when neither does.

    Attributes:
        node: that it is shared with.
        arena: number of the arena, of the node that made it.
        block: where it begins there.
        data: its bytes.
    """

    node: int
    arena: int
    block: Offset
    data: Tensor
