"""Handles of tensors that stay on their node, counted where they stay.

Idea        The owner keeps a count per tensor and node that has handles. Who passes a handle on tells the
            owner first, on behalf of the receiver; who lets go tells it, too. Letters of one node arrive in
            order, those of different nodes do not, so a count may be below zero for a while: the tensor goes
            when all counts are zero.
Source      Owner and user forks of torch.distributed.rpc; the counting rule is weighted by node instead of by
            fork.
Guarantee   A tensor lives while a handle on any node does. The handles of a node that ended are forgotten.
Gaps        A circle of handles between nodes is never found.
"""

import itertools
from collections import Counter, deque
from typing import Any

from torch import Tensor


class RemoteTensor:
    """A handle of a tensor on another node; counted there, let go of when the handle is.

    Attributes:
        owner: node that has the tensor.
        key: its number there.
    """

    __slots__ = ("__weakref__", "_gone", "key", "owner")

    def __init__(self, owner: int, key: int, gone: "deque[tuple[int, int]]") -> None:
        self.owner, self.key, self._gone = owner, key, gone

    def __del__(self) -> None:
        self._gone.append((self.owner, self.key))

    def __repr__(self) -> str:
        return f"RemoteTensor(owner={self.owner}, key={self.key})"


class References:
    """Tensors that this node keeps for others."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._kept: dict[int, Tensor] = {}
        self._counts: dict[int, Counter[int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, value: Tensor, holder: int) -> int:
        """Keep a tensor for a node that gets its first handle."""
        key = next(self._keys)
        self._kept[key] = value
        self._counts[key] = Counter({holder: 1})
        return key

    def get(self, key: int) -> Any:
        """The tensor, or None where it is gone."""
        return self._kept.get(key)

    def count(self, key: int, holder: int, change: int) -> None:
        """Change the count of a node."""
        counts = self._counts.get(key)
        if counts is None:
            return
        counts[holder] += change
        if not counts[holder]:
            del counts[holder]
        if not counts:
            del self._counts[key], self._kept[key]

    def forget(self, holder: int) -> None:
        """Forget the handles of a node that ended."""
        for key, counts in list(self._counts.items()):
            if holder in counts:
                self.count(key, holder, -counts[holder])
