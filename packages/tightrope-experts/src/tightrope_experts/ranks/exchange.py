"""Rows and weights between ranks, over a process group of torch.

Idea        All ranks know how many rows go from each to each, so a message is rows alone. In two levels, rows
            first go to the rank of the own node with the destination's number in its node, and from there to
            the other nodes: messages between nodes are larger, and fewer. A rank that fails while rows travel
            writes its reason into the group's store, where those that wait look.
Guarantee   Both ways deliver equal bits in equal order. What one rank refuses before rows travel, all refuse
            at once, and the group works on. What fails later ends the wait of all in about a second.
Complexity  One level: ``W - 1`` messages a rank. Two, with nodes of ``m``: ``m - 1`` and ``W / m - 1``.
Gaps        The first of two levels is waited for; only the second runs while products do. After a rank failed
            while rows travelled, its group is of no use. Waits of other layers end with their timeout.
Source      two-dimensional hierarchical exchange of Tutel (MLSys 2023)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tightrope.core import RankError, TightropeError
from tightrope_experts.layout import Counts
from tightrope_shared.lending import Lent

Coming = Callable[[], Tensor]
"""Waits for rows, and returns them."""
FAILED: Final = "tightrope_experts/failed"
_PATIENCE: Final = timedelta(seconds=1)
_LONGEST: Final = 2000  # characters of a reason that travel


def store_of(group: dist.ProcessGroup | None) -> Any:
    """Return the store of a group, where a rank writes why it failed."""
    known = group or dist.group.WORLD
    assert known is not None
    return known.get_group_store()


def _reason(group: dist.ProcessGroup | None, error: Exception) -> str:
    return f"Rank {dist.get_rank(group)} failed. {str(error) or type(error).__name__}"[:_LONGEST]


@contextmanager
def guarded(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Tell ranks that wait in `MoEAcross` of an error in this block, which may be a whole step.

    Raises:
        RankError: on the others, in about a second; the group is of no use any more.

    Example:
        >>> with guarded():  # doctest: +SKIP
        ...     model(x).sum().backward()
    """
    try:
        yield
    except RankError:
        raise
    except Exception as error:  # whatever it is: others wait for this rank
        store_of(group).set(FAILED, _reason(group, error))
        raise


class Mesh:
    """The ranks of a process group, which make it together; ``node`` neighbours are a node, 0 = none."""

    def __init__(self, group: dist.ProcessGroup | None = None, node: int = 0) -> None:
        self.group = group
        self.rank, self.ranks, self.node = dist.get_rank(group), dist.get_world_size(group), node
        if node and (node < 0 or self.ranks % node):
            raise TightropeError(f"node={node} does not divide {self.ranks} ranks.")
        if node:
            members = np.reshape(dist.get_process_group_ranks(group or dist.group.WORLD), (-1, node))
            self._inside, self._between = (
                dist.new_subgroups_by_enumeration(lines.tolist())[0]  # type: ignore[no-untyped-call]
                for lines in (members, members.T)
            )

    def agreed(self, own: Sequence[int], error: Exception | None = None) -> Counts:
        """Return the (W, n) integers of all ranks; where one gave an error, raise its text on all."""
        text = _reason(self.group, error).encode() if error else b""
        every = self._every(torch.tensor([*own, len(text)]))
        lengths = every[:, -1]
        if lengths.any():
            padded = torch.tensor(list(text.ljust(int(lengths.max()), b"\0")), dtype=torch.uint8)
            first = int(lengths.nonzero()[0][0])
            said = bytes(self._every(padded)[first, : lengths[first]]).decode(errors="replace")
            raise RankError(said) from error
        return every[:, :-1]

    def _every(self, own: Tensor) -> Counts:
        every = own.new_empty(self.ranks, len(own))
        self._wait(dist.all_gather(list(every.unbind()), own, group=self.group, async_op=True))
        return every.numpy()

    def _wait(self, work: Any) -> None:
        """Wait, and look now and then whether a rank failed and said why."""
        while True:
            try:
                work.wait(_PATIENCE)
                return
            except RuntimeError:  # the patience is over, or the work failed
                ended, met = work.is_completed(), store_of(self.group)
                if met.check([FAILED]):
                    raise RankError(met.get(FAILED).decode(errors="replace")) from None
                if ended:
                    work.wait()  # it may have ended well just now
                    return

    def post(self, rows: Tensor, matrix: Counts) -> Coming:
        """Send rows, sorted by destination, while others send theirs; ``matrix`` is (from, to)."""
        if np.trace(matrix) == matrix.sum():  # all stay
            return lambda: rows
        if self.node:
            return self._post_in_two(rows, matrix)
        return self._sent(rows, matrix[self.rank], matrix[:, self.rank], self.group)

    def _post_in_two(self, rows: Tensor, matrix: Counts) -> Coming:
        (here, place), size = divmod(self.rank, self.node), self.node
        cube = matrix.reshape(-1, size, self.ranks // size, size)  # node and place of sender and receiver
        mine = cube[here, place]  # (node, place) of receivers
        arrive = cube[here, :, :, place]  # (place of the sender, node of the receiver)
        inside = self._sent(rows[_turned(mine)], mine.sum(0), arrive.sum(1), self._inside)()
        last = cube[:, :, here, place].sum(1)  # node of senders
        return self._sent(inside[_turned(arrive)], arrive.sum(0), last, self._between)

    def among(self, parts: Tensor) -> Tensor:
        """Exchange parts with ``len(parts)`` neighbouring ranks, which call this together."""
        at = np.arange(self.ranks) // len(parts)
        return self.post(parts, (at[:, None] == at).astype(np.int64))()

    def _sent(self, rows: Tensor, out: Counts, into: Counts, group: dist.ProcessGroup | None) -> Coming:
        came = rows.new_empty(int(into.sum()), *rows.shape[1:])
        lent = Lent(came, rows.contiguous())
        to, of = lent.take()
        work = [dist.all_to_all_single(to, of, into.tolist(), out.tolist(), group=group, async_op=True)]
        del to, of

        def wait() -> Tensor:
            self._wait(work.pop())
            lent.back()
            return came

        return wait


def _turned(counts: Counts) -> Tensor:
    """Return the order that sorts rows, which lie by (first, second), by (second, first)."""
    starts = (counts.cumsum() - counts.reshape(-1)).reshape(counts.shape)
    pieces = [np.arange(s, s + n) for s, n in zip(starts.T.flat, counts.T.flat, strict=True)]
    return torch.from_numpy(np.concatenate(pieces))
