"""Send rows of the boundary forward and their gradients backward, while central nodes are computed.

    forward   encode | put ===== on the way ===== wait | decode | marginal nodes
              ..........| central nodes ..........|
    backward  marginal nodes | encode | put ===== on the way ===== wait | add
              .........................| central nodes ...........|

Autograd records each layer on its own, so that its backward has this order too. A layer that reads its halo
there keeps it as floats, as it arrived, or not at all: then its owners send it again by the same random
numbers, and the same bits arrive.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightrope.core import Bytes
from tightrope_ranks.compress.queue import MessageQueue, Ticket
from tightrope_ranks.graphs.layers import EdgeBlock
from tightrope_ranks.graphs.rows import decode_rows, encode_rows, row_bytes
from tightrope_ranks.values.graphs import GraphPart

Key = tuple[int, bool]
"""A layer, and whether it is its backward."""
_Lists = list[tuple[Tensor, np.ndarray]]


class MessageTime(NamedTuple):
    """What a message took: seconds on the way, and seconds in which something could be computed meanwhile."""

    key: Key
    sent: Bytes  # of the rank that sent most
    seconds: float
    window: float


class RowExchange:
    """What one rank sends and receives. ``widths``: bits of each row, by source and target of its route."""

    def __init__(
        self, part: GraphPart, holds: Sequence[Sequence[str]], queue: MessageQueue, seed: int
    ) -> None:
        self.part, self.holds, self.queue, self.seed = part, holds, queue, seed
        self.mine = ["inputs" if not k and one == "kept" else one for k, one in enumerate(holds[part.rank])]
        self.widths: Mapping[Key, Mapping[tuple[int, int], np.ndarray]] = {}
        self.blocks = EdgeBlock(part.central), EdgeBlock(part.marginal)
        self.epoch = self.sent = self.live = self.peak = 0  # bytes sent; held by messages and halos
        self.exact, self.overlap = False, True  # send floats; compute while messages are on the way
        self.times: list[MessageTime] = []  # of messages that were not exact
        self.traced: dict[Key, dict[tuple[int, int], Tensor]] = {}  # sums of squared ranges of rows
        self.inputs: Tensor | None = None  # own features and those of the halo, where they are kept
        self._sends = [torch.from_numpy(np.ascontiguousarray(one)) for one in part.sends]
        self._halo = torch.split(torch.arange(sum(part.receives)), list(part.receives))
        self._tape: list[tuple[Any, ...]] = []
        self._flying: dict[Key, tuple[Ticket, Bytes, Tensor, _Lists, Bytes]] = {}

    def readers(self, layer: int, *, again: bool = False) -> frozenset[int]:
        """Tell which ranks get the rows of a layer in an epoch, or which get them again in its backward."""
        often = layer > 0 and not again
        return frozenset(k for k, those in enumerate(self.holds) if often or those[layer] == "fetched")

    def prepare(self, features: Tensor) -> None:
        """Send the rows of the input to the ranks that keep them, once and as floats."""
        self.exact = True
        self.send((0, False), features, frozenset(range(len(self.holds))) - self.readers(0))
        if self.mine[0] == "inputs":
            self.inputs = self.room(features)
        self.receive((0, False), features[:0] if self.inputs is None else self.inputs[len(features) :])
        self.exact = False

    def forward(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        """Compute all layers of the own nodes; unless it is exact, `backward` must follow."""
        for number, layer in enumerate(layers):
            x = self._forward(number, layer, x.relu() if number else x)
        return x

    def _forward(self, number: int, layer: Any, x: Tensor) -> Tensor:
        hold, to, held = "none" if self.exact else self.mine[number], self.readers(number), None
        if to:
            self.send((number, False), x, to)
        x = x.requires_grad_(number > 0 and not self.exact)
        central = layer(x, self.blocks[0])
        if hold == "packed":
            rows = self.room(x)
            held = self.receive((number, False), rows[len(x) :], keep=True)
        else:
            rows = self.join(number, x)
        if hold == "kept":
            held = rows[len(x) :].clone()
            self.take(held.nbytes)
        root = _rooted(rows) if x.requires_grad and not layer.reads_halo else None
        with torch.set_grad_enabled(not self.exact and not layer.reads_halo):
            marginal = layer(rows, self.blocks[1])
        self.take(-self.halo_bytes(number, x))
        if not self.exact:
            self._tape.append((layer, x, root, held, central, marginal))
        return torch.cat([central, marginal]).detach()

    def backward(self, grad: Tensor) -> None:
        """Add gradients to those of the parameters; ``grad`` is that of what `forward` gave."""
        for number in reversed(range(len(self._tape))):
            grad = self._backward(number, grad)

    def _backward(self, number: int, grad: Tensor) -> Tensor:
        layer, x, rows, held, central, marginal = self._tape.pop()
        if layer.reads_halo:
            rows = self._held_again(number, x, held).detach().requires_grad_(number > 0)
            marginal = layer(rows, self.blocks[1])
        marginal.backward(grad[len(central) :])
        if number:
            own, halo = rows.grad[: len(x)].clone(), rows.grad[len(x) :]
            self.take(halo.nbytes)
            self.send((number, True), halo, frozenset())
            self.take(-halo.nbytes)
            del halo
        if layer.reads_halo:
            self.take(-self.halo_bytes(number, x))
        del rows, marginal
        central.backward(grad[: len(central)])
        if number:
            own += x.grad
            self.receive((number, True), own)
            grad = own * (x.detach() > 0)
        return grad

    def _held_again(self, number: int, x: Tensor, held: Tensor | None) -> Tensor:
        """Give the rows that the forward had, from what was held or is sent again."""
        key, again = (number, False), self.readers(number, again=True)
        if again:
            self.send(key, x, again, again=True)
        if held is None:
            return self.join(number, x)
        if again:
            self.receive(key, x[:0])
        joined = self.room(x)
        if self.mine[number] == "packed":
            decode(held, self.lists(key, self.readers(number), out=False), joined[len(x) :])
        else:
            joined[len(x) :] = held
        self.take(-held.nbytes)
        return joined

    def send(self, key: Key, x: Tensor, to: frozenset[int], *, again: bool = False) -> None:
        """Encode and send rows of ``x`` to ranks ``to``, or gradients of all of its halo to their owners."""
        x, me, columns = x.contiguous(), self.part.rank, x.shape[1]
        leaving, lists = self.lists(key, to, out=True), self.lists(key, to, out=False)
        sizes, comes = _sizes(columns, leaving), _sizes(columns, lists)
        out, arriving = (torch.empty(sum(those), dtype=torch.uint8) for those in (sizes, comes))
        self.take(len(out) + len(arriving))
        for peer, (wire, (which, bits)) in enumerate(zip(torch.split(out, sizes), leaving, strict=True)):
            route = (peer, me) if key[1] else (me, peer)
            if len(which):
                traced = None if self.exact or again else self.traced.get(key, {}).get(route)
                seed = crc32(repr((self.seed, self.epoch, key, route)).encode())
                encode_rows(x, which, bits, seed, wire, traced)
        what = f"{'gradients' if key[1] else 'rows'} of layer {key[0]}"
        most = self.most(key, columns, to)
        ticket = self.queue.put(lambda: dist.all_to_all_single(arriving, out, comes, sizes), what, most)
        self._flying[key] = ticket, len(out), arriving, lists, most
        self.sent += len(out)
        if not self.overlap:
            self.queue.wait(ticket)

    def receive(self, key: Key, into: Tensor, *, keep: bool = False) -> Tensor:
        """Wait for a message, write its rows or add its gradients; give what came, counted if it is kept."""
        now = time.perf_counter()
        ticket, out, arriving, lists, most = self._flying.pop(key)
        self.queue.wait(ticket)
        if not self.exact:
            window = max(0.0, now - ticket.start)
            self.times.append(MessageTime(key, most, ticket.end - ticket.start, window))
        decode(arriving, lists, into, add=key[1])
        self.take(-out if keep else -out - len(arriving))
        return arriving

    def join(self, number: int, x: Tensor) -> Tensor:
        """Give the own rows and behind them the halo, once it is there."""
        key = number, False
        if self.mine[number] == "inputs":
            if key in self._flying:  # others have it sent again
                self.receive(key, x[:0])
            assert self.inputs is not None
            return self.inputs
        joined = self.room(x)
        self.receive(key, joined[len(x) :])
        return joined

    def room(self, x: Tensor) -> Tensor:
        """Give the own rows and room for the halo."""
        joined = x.new_empty(len(x) + sum(self.part.receives), x.shape[1])
        joined[: len(x)] = x.detach()
        self.take(joined[len(x) :].nbytes)
        return joined

    def take(self, size: Bytes) -> None:
        """Count bytes that are now held; negative = given back."""
        self.live += size
        self.peak = max(self.peak, self.live)

    def halo_bytes(self, number: int, x: Tensor) -> Bytes:
        """Bytes of the halo in front of a layer, where it does not stay."""
        return 0 if self.mine[number] == "inputs" else sum(self.part.receives) * x.shape[1] * x.itemsize

    def lists(self, key: Key, to: frozenset[int], *, out: bool) -> _Lists:
        """Give per rank which rows leave or arrive, and their widths; rows go to ranks ``to`` alone."""
        found, me, owned = [], self.part.rank, out != key[1]
        for peer, all_ in enumerate(self._sends if owned else self._halo):
            route = (me, peer) if owned else (peer, me)
            rows = all_ if key[1] or route[1] in to else all_[:0]
            floats = self.exact or not len(rows)
            found.append((rows, np.full(len(rows), 32, np.uint8) if floats else self.widths[key][route]))
        return found

    def most(self, key: Key, columns: int, to: frozenset[int]) -> Bytes:
        """Bytes of the rank that sends most: the others wait for it."""
        sent = [0] * len(self.holds)
        for (source, target), bits in self.widths[key].items():
            if key[1] or target in to:
                size = row_bytes(columns, np.full_like(bits, 32) if self.exact else bits)
                sent[target if key[1] else source] += int(size.sum())
        return max(sent)


def _sizes(columns: int, lists: _Lists) -> list[Bytes]:
    return [int(row_bytes(columns, bits).sum()) for _, bits in lists]


def decode(wire: Tensor, lists: _Lists, into: Tensor, *, add: bool = False) -> None:
    """Write the rows of a message, or add them."""
    for part, (which, bits) in zip(torch.split(wire, _sizes(into.shape[1], lists)), lists, strict=True):
        if len(which):
            decode_rows(part, which, bits, into, add=add)


def _rooted(rows: Tensor) -> Tensor:
    """Make rows the result of a sum with zeros and give these: for the gradient the rows need not stay."""
    zeros = rows.new_zeros(1, 1).requires_grad_().expand_as(rows)
    zeros.retain_grad()
    rows.add_(zeros)
    return zeros
