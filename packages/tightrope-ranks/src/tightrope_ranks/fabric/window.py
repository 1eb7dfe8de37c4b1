"""Bytes that two nodes share before there is anything in them."""

from torch import Tensor

from tightrope.core import Offset


class SharedWindow:
    """Memory shared with one node: who is given it as an argument reads what is written here, uncopied.

    Both sides hold the block; it is free again when neither does.

    Args:
        node: that it is shared with.
        arena: number of the arena, of the node that made it.
        block: where it begins there.
        data: its bytes.
    """

    __slots__ = ("arena", "block", "data", "node")  # no dataclass, which would be sent as a dict

    def __init__(self, node: int, arena: int, block: Offset, data: Tensor) -> None:
        self.node, self.arena, self.block, self.data = node, arena, block, data
