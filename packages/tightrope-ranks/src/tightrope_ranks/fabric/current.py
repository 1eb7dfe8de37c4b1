"""The node that this process is, for functions that call on."""

from typing import TYPE_CHECKING, Any

from tightrope.core import TightropeError

if TYPE_CHECKING:
    from tightrope_ranks.fabric.node import FabricNode

_NODES: "list[Any]" = []


def set_node(node: "FabricNode") -> None:
    """Make a node the one of this process."""
    _NODES[:] = [node]


def this_node() -> "FabricNode":
    """Return the node of this process, from which a function that was called may call others.

    Raises:
        TightropeError: this process is none.
    """
    if not _NODES:
        raise TightropeError(
            "this process is no node of a fabric: start one, or call this in a registered function."
        )
    node: FabricNode = _NODES[0]
    return node
