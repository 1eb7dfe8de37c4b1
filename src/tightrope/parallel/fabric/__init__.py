"""Calls between processes: functions by name, tensors through shared memory, handles that are counted."""

from tightrope.parallel.fabric.autograd import RemoteModule, RemoteOptimizer
from tightrope.parallel.fabric.current import this_node
from tightrope.parallel.fabric.inside import LocalFabric
from tightrope.parallel.fabric.memory import RemoteMemory
from tightrope.parallel.fabric.references import RemoteTensor
from tightrope.parallel.fabric.registry import register
from tightrope.parallel.fabric.shared import SharedFabric

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
