"""Calls between processes: functions by name, tensors through shared memory, handles that are counted."""

from tightrope_ranks.fabric.autograd import RemoteModule, RemoteOptimizer
from tightrope_ranks.fabric.current import this_node
from tightrope_ranks.fabric.inside import LocalFabric
from tightrope_ranks.fabric.memory import RemoteMemory
from tightrope_ranks.fabric.references import RemoteTensor
from tightrope_ranks.fabric.registry import register
from tightrope_ranks.fabric.shared import SharedFabric

__all__ = [
    "LocalFabric",
    "RemoteMemory",
    "RemoteModule",
    "RemoteOptimizer",
    "RemoteTensor",
    "SharedFabric",
    "register",
    "this_node",
]
