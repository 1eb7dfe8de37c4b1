"""Nodes as processes of one host: shared memory and sockets, neither of which has a name.

This process is node 0. It starts the others, which inherit one end of a socket pair for every other node;
memory is passed through these sockets. So nothing is left in the file system, whoever ends in whatever way,
and every node ends when node 0 does.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any

from tightrope.core import Bytes, RankError, TightropeError
from tightrope_ranks.fabric import basic, current
from tightrope_ranks.fabric.node import SHARED, FabricNode
from tightrope_ranks.fabric.references import RemoteTensor
from tightrope_ranks.fabric.reply import Reply, checked
from tightrope_ranks.fabric.window import SharedWindow

_PACKAGE = Path(__file__).parents[3]
_LOOK = 0.005
"""Seconds between two looks at whether processes ended."""


class SharedFabric:
    """Processes of this host that call each other.

    Args:
        num: of nodes, this process included.
        modules: that every node imports: they register functions.
        timeout: seconds of a call where none are given.
        shared: bytes that one node shares with another, at most.

    Attributes:
        number: of this node: 0.
        node: it.

    Raises:
        RankError: a node ended while it was started.

    Example:
        >>> import torch
        >>> with SharedFabric(2) as fabric:  # doctest: +SKIP
        ...     fabric.call(1, "tightrope.echo", torch.ones(3))
        tensor([1., 1., 1.])
    """

    number = 0

    def __init__(
        self, num: int, *, modules: Sequence[str] = (), timeout: float = 60.0, shared: Bytes = SHARED
    ) -> None:
        checked(timeout)
        if not 1 <= num <= 64:
            raise TightropeError(f"num={num}: give between 1 and 64 nodes.")
        ends: dict[tuple[int, int], socket.socket] = {}
        for one, other in combinations(range(num), 2):
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends[one, other], ends[other, one] = pair
        self.num = num
        self.processes: list[subprocess.Popen[bytes]] = []
        for number in range(1, num):
            mine = {peer: ends[number, peer] for peer in range(num) if peer != number}
            self.processes.append(_started(number, mine, modules, timeout, shared))
        for (one, _), end in ends.items():
            if one != 0:
                end.close()
        self.node = FabricNode(
            0, {peer: ends[0, peer] for peer in range(1, num)}, timeout=timeout, shared=shared
        )
        current.set_node(self.node)
        assert basic.ping() == os.getpid()
        try:
            for reply in [self.node.call_async(number, "tightrope.ping") for number in range(1, num)]:
                reply.wait(max(timeout, 60.0))
        except RankError:
            self.close()
            raise

    def call(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a registered function on a node and return its result; see `FabricNode.call`."""
        return self.node.call(node, name, *arguments, timeout=timeout)

    def call_async(self, node: int, name: str, *arguments: Any) -> Reply:
        """Begin a call; `Reply.wait` ends it; see `FabricNode.call_async`."""
        return self.node.call_async(node, name, *arguments)

    def call_each(
        self, nodes: Iterable[int], name: str, *arguments: Any, timeout: float | None = None
    ) -> dict[int, Any]:
        """Call a function on several nodes at once; see `FabricNode.call_each`."""
        return self.node.call_each(nodes, name, *arguments, timeout=timeout)

    def remote(self, node: int, name: str, *arguments: Any, timeout: float | None = None) -> RemoteTensor:
        """Call a function whose tensor stays there; return its handle."""
        return self.node.remote(node, name, *arguments, timeout=timeout)

    def fetch(self, handle: RemoteTensor) -> Any:
        """Return the tensor of a handle."""
        return self.node.fetch(handle)

    def window(self, node: int, size: Bytes) -> SharedWindow:
        """Share bytes with another node; what is written into them needs no message."""
        return self.node.window(node, size)

    def lives(self, node: int) -> bool:
        """Tell whether a node lives, as far as the kernel has told by now."""
        return self.node.lives(node)

    def close(self, seconds: float = 5.0) -> None:
        """Stop all nodes, those that do not stop within the seconds by force.

        Calls that are under way end with an error.
        """
        deadline = time.monotonic() + seconds
        self.node.stop_all()
        while living := [one for one in self.processes if one.poll() is None]:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self.node.pump(lambda: False, min(_LOOK, left))
        for process in living:
            process.kill()
            process.wait()
        self.node.close()

    def __enter__(self) -> "SharedFabric":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _started(
    number: int, links: dict[int, socket.socket], modules: Sequence[str], timeout: float, shared: Bytes
) -> "subprocess.Popen[bytes]":
    files = [link.fileno() for link in links.values()]
    path = os.pathsep.join([str(_PACKAGE), *filter(None, sys.path)])
    command = [
        sys.executable, "-m", "tightrope_ranks.fabric.worker", f"--node={number}",
        f"--links={','.join(f'{peer}:{link.fileno()}' for peer, link in links.items())}",
        f"--modules={','.join(modules)}", f"--shared={shared}", f"--timeout={timeout}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, pass_fds=files, env=environment, stdin=subprocess.DEVNULL)
