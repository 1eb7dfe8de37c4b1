"""The calls of a fabric over `torch.distributed.rpc`, for programs and clusters that have it already.

torch pickles what it sends, so use it between processes that trust each other; what runs is still only what
is registered by name. It is in maintenance mode, and several times slower from a mebibyte on (``python -m
benchmarks fabric --only R1``).
"""

from collections.abc import Sequence
from typing import Any

from torch.distributed import rpc

from tightrope.core import RankError
from tightrope_ranks.fabric import basic
from tightrope_ranks.fabric.registry import function_of


def _run(name: str, arguments: Sequence[Any]) -> Any:
    return function_of(name)(*arguments)


class RpcFabric:
    """Calls between the workers of `torch.distributed.rpc`, which has to be running.

    Args:
        workers: name of each node.
        number: of this one.
        timeout: seconds of a call where none are given.
    """

    def __init__(self, workers: Sequence[str], number: int, *, timeout: float = 60.0) -> None:
        self.workers, self.number, self.timeout = tuple(workers), number, timeout
        assert basic.ping()

    def call(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a registered function on a node and return its result.

        Raises:
            RankError: it raised, the node ended, or the time is over.
        """
        try:
            return rpc.rpc_sync(self.workers[node], _run, (name, arguments), timeout=timeout or self.timeout)
        except Exception as error:  # torch raises what the function raised, or RuntimeError
            said = str(error).strip().partition("\n")[0]
            raise RankError(f"node {node}: {name!r} raised {type(error).__name__}: {said}") from error
