"""Nodes that are all in this process: for tests, and for programs that may grow."""

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from torch import Tensor

from tightrope.core import RankError, TightropeError
from tightrope_ranks.fabric import basic
from tightrope_ranks.fabric.letters import changed
from tightrope_ranks.fabric.references import References, RemoteTensor
from tightrope_ranks.fabric.registry import function_of
from tightrope_ranks.fabric.reply import failed


class LocalFabric:
    """The calls of a fabric, made in this process.

    Args:
        num: of nodes.

    Example:
        >>> import torch
        >>> with LocalFabric(2) as fabric:
        ...     fabric.call(1, "tightrope.echo", torch.ones(3))
        tensor([1., 1., 1.])
    """

    number = 0

    def __init__(self, num: int) -> None:
        if num < 1:
            raise TightropeError(f"num={num}: give at least one node.")
        self.num = num
        self._kept = [References() for _ in range(num)]
        self._gone: deque[tuple[int, int]] = deque()
        assert basic.ping()

    def call(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a registered function; see `SharedFabric.call`. A time-out cannot end what runs here."""
        self._let_go()
        if not 0 <= node < self.num:
            raise TightropeError(f"there is no node {node}; there are {list(range(self.num))}.")

        def own(value: Any) -> Any:
            if isinstance(value, RemoteTensor):
                return self.fetch(value)
            return value.detach().clone() if isinstance(value, Tensor) else value

        try:
            found = function_of(name)(*changed(arguments, own))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as from another process
            raise RankError(f"node {node}: {failed(name, error)}") from error
        came = changed(found, own)
        return tuple(came) if isinstance(came, list) else came

    def call_each(
        self, nodes: Iterable[int], name: str, *arguments: Any, timeout: float | None = None
    ) -> dict[int, Any]:
        """Call a function on several nodes, one after the other; return the results by node.

        A time-out cannot end what runs here: ``timeout`` is not looked at.
        """
        return {node: self.call(node, name, *arguments) for node in nodes}

    def remote(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> RemoteTensor:
        """Call a function whose tensor stays on its node; return its handle."""
        found = self.call(node, name, *arguments)
        if not isinstance(found, Tensor):
            raise TightropeError(f"{name!r} on node {node} returned no tensor: only tensors can stay there.")
        return RemoteTensor(node, self._kept[node].keep(found, 0), self._gone)

    def fetch(self, handle: RemoteTensor) -> Tensor:
        """Return the tensor of a handle."""
        found: Tensor = self._kept[handle.owner].get(handle.key)
        return found

    def live(self, node: int) -> int:
        """How many tensors a node keeps for handles."""
        self._let_go()
        return len(self._kept[node])

    def close(self) -> None:
        """End; nothing is left."""

    def _let_go(self) -> None:
        while self._gone:
            owner, key = self._gone.popleft()
            self._kept[owner].count(key, 0, -1)

    def __enter__(self) -> "LocalFabric":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
