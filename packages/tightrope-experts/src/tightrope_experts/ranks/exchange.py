"""Rows and weights between ranks, over a process group of torch.

Idea        All ranks know how many rows go from each to each, so a message is rows alone. In two levels, rows
            first go to the rank of the own node with the destination's number in its node, and from there to
            the other nodes: messages between nodes are larger, and fewer.
Guarantee   Both deliver equal bits in equal order.
Complexity  One level: ``W - 1`` messages a rank. Two, with nodes of ``m``: ``m - 1`` and ``W / m - 1``.
Gaps        The first of two levels is waited for; only the second runs while products do.
Source      two-dimensional hierarchical exchange of Tutel (MLSys 2023)
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tightrope.core import TightropeError
from tightrope.native.hook.lending import Lent
from tightrope_experts.layout import Counts

Coming = Callable[[], Tensor]
"""Waits for rows, and returns them."""


class Mesh:
    """The ranks of a process group; state of the runtime.

    Args:
        group: of torch; None = all ranks.
        node: ranks of a node, consecutive; 0 = rows travel in one level. Making it is a collective call.

    Raises:
        TightropeError: nodes do not divide the ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, node: int = 0) -> None:
        self.group = group
        self.rank, self.ranks, self.node = dist.get_rank(group), dist.get_world_size(group), node
        if node and (node < 0 or self.ranks % node):
            raise TightropeError(f"node={node} does not divide {self.ranks} ranks.")
        if node:
            members = dist.get_process_group_ranks(group or dist.group.WORLD)
            lines = [members[at : at + node] for at in range(0, self.ranks, node)]
            self._inside = _group_of(lines, members[self.rank])
            self._between = _group_of([list(one) for one in zip(*lines, strict=True)], members[self.rank])

    def counts(self, own: Tensor) -> Counts:
        """Return the (W, n) integers of all ranks; ``own`` is (n,) int64."""
        every = own.new_empty(self.ranks, len(own))
        dist.all_gather(list(every.unbind()), own, group=self.group)
        found: Counts = every.numpy()
        return found

    def post(self, rows: Tensor, matrix: Counts) -> Coming:
        """Send rows, sorted by destination, while others send theirs.

        Args:
            rows: (number, ...), contiguous; may be dropped at once.
            matrix: (from, to) rows of all ranks.
        """
        if self.node:
            return self._post_in_two(rows, matrix)
        return _sent(rows, matrix[self.rank], matrix[:, self.rank], self.group)

    def _post_in_two(self, rows: Tensor, matrix: Counts) -> Coming:
        size, num = self.node, self.ranks // self.node
        here, place = self.rank // size, self.rank % size
        cube = matrix.reshape(num, size, num, size)  # node and place of the sender, then of the receiver
        mine = cube[here, place]  # (node, place) of receivers
        rows = rows[_turned(mine)]
        arrive = cube[here, :, :, place]  # (place of the sender, node of the receiver)
        inside = _sent(rows, mine.sum(0), arrive.sum(1), self._inside)()
        inside = inside[_turned(arrive)]
        last = cube[:, :, here, place]  # (node, place) of senders
        return _sent(inside, arrive.sum(0), last.sum(1), self._between)

    def gathered(self, part: Tensor, peers: range) -> Tensor:
        """Return the parts of some ranks, which call this together: (peers, *shape)."""
        if len(peers) == 1:
            return part.unsqueeze(0)
        rows = part.reshape(1, -1).expand(len(peers), -1).contiguous()
        return self._among(rows, peers).view(len(peers), *part.shape)

    def reduced(self, parts: Tensor, peers: range) -> Tensor:
        """Return the sum of what some ranks hold of the own part; ``parts`` is (peers, *shape)."""
        if len(peers) == 1:
            return parts[0]
        came = self._among(parts.reshape(len(peers), -1).contiguous(), peers)
        return came.sum(0).view(parts.shape[1:])

    def _among(self, rows: Tensor, peers: range) -> Tensor:
        splits = np.zeros(self.ranks, np.int64)
        splits[peers.start : peers.stop] = 1
        return _sent(rows, splits, splits, self.group)()


def _group_of(lines: list[list[int]], rank: int) -> dist.ProcessGroup:
    """Make a group of each line, on all ranks, and return the one with a rank."""
    made: list[tuple[bool, dist.ProcessGroup]] = [(rank in line, dist.new_group(line)) for line in lines]
    return next(group for own, group in made if own)


def _sent(rows: Tensor, out: Counts, into: Counts, group: dist.ProcessGroup | None) -> Coming:
    came = rows.new_empty(int(into.sum()), *rows.shape[1:])
    lent = Lent(came, rows.contiguous())
    to, of = lent.take()
    work = [dist.all_to_all_single(to, of, into.tolist(), out.tolist(), group=group, async_op=True)]
    del to, of

    def wait() -> Tensor:
        work.pop().wait()
        lent.back()
        return came

    return wait


def _turned(counts: Counts) -> Tensor:
    """Return the order that sorts rows, which lie by (first, second), by (second, first)."""
    starts = (counts.cumsum() - counts.reshape(-1)).reshape(counts.shape)
    pieces = [np.arange(s, s + n) for s, n in zip(starts.T.flat, counts.T.flat, strict=True)]
    return torch.from_numpy(np.concatenate(pieces))
