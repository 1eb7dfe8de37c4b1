"""Send rows of the boundary forward and their gradients backward, while central nodes are computed.

    forward   encode | put ===== on the way ===== wait | decode | marginal nodes
              ..........| central nodes ..........|
    backward  marginal nodes | encode | put ===== on the way ===== wait | add
              .........................| central nodes ...........|

Autograd runs what was recorded last first: the marginal nodes, whose gradients leave, then the central ones,
then what waits. A layer that reads its halo in the backward keeps it as floats, as it arrived, or not at all:
then its owners send it again by the same random numbers, and the same bits arrive.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from tightrope_ranks.compress.queue import MessageQueue, Ticket
from tightrope_ranks.graphs.layers import EdgeBlock, GraphLayer
from tightrope_ranks.graphs.rows import decode_rows, encode_rows, row_bytes
from tightrope_ranks.values.graphs import GraphPart

Routed = Mapping[tuple[int, int], np.ndarray]
"""Per source and target of a route: bits of each row, uint8."""
Key = tuple[int, bool]
"""A layer, and whether it is its backward."""
_FLOAT: Final = 4
_Lists = list[tuple[torch.Tensor, np.ndarray]]


@dataclass(slots=True)
class _Flight:
    ticket: Ticket
    out: torch.Tensor
    arriving: torch.Tensor
    lists: _Lists
    most: int


@dataclass(frozen=True, slots=True)
class MessageTime:
    """What a message took.

    Attributes:
        key: its layer and direction.
        sent: bytes of the rank that sent most.
        seconds: on the way.
        window: seconds in which something was computed meanwhile, or could have been.
    """

    key: Key
    sent: int
    seconds: float
    window: float


class RowExchange:
    """What one rank sends and receives.

    Args:
        part: of this rank.
        holds: per rank and layer, one of `tightrope_ranks.values.graphs.HOLDS`.
        queue: all messages of the rank go through it.
        seed: of the random numbers.

    Attributes:
        widths: of every message.
        epoch: decides the random numbers too.
        exact: send floats, whatever the widths are.
        overlap: compute while messages are on the way.
        peak: most bytes that messages and halos took at once.
        sent: bytes that this rank sent.
        times: of messages that were not exact.
        traced: per layer and direction, per route, sums of squared ranges of its rows; empty = not traced.
        inputs: own features and those of the halo, where they are kept.
    """

    def __init__(
        self, part: GraphPart, holds: Sequence[Sequence[str]], queue: MessageQueue, seed: int
    ) -> None:
        self.part, self.holds, self.queue, self.seed = part, holds, queue, seed
        self.widths: Mapping[Key, Routed] = {}
        self.blocks = EdgeBlock(part.central), EdgeBlock(part.marginal)
        self.all = frozenset(range(len(part.sends)))
        self.epoch = self.live = self.peak = self.sent = 0
        self.exact, self.overlap = False, True
        self.times: list[MessageTime] = []
        self.traced: dict[Key, dict[tuple[int, int], torch.Tensor]] = {}
        self.inputs: torch.Tensor | None = None
        self._sends = [torch.from_numpy(np.ascontiguousarray(one)) for one in part.sends]
        self._halo = torch.split(torch.arange(sum(part.receives)), list(part.receives))
        self._flying: dict[Key, _Flight] = {}

    def fetchers(self, layer: int) -> frozenset[int]:
        """Tell which ranks have the halo of a layer sent again."""
        return frozenset(rank for rank in self.all if self.holds[rank][layer] == "fetched")

    def prepare(self, features: torch.Tensor) -> None:
        """Send the rows of the input to the ranks that keep them, once and as floats."""
        keepers = self.all - self.fetchers(0)
        self.exact = True
        self.send((0, False), features, keepers)
        if self.part.rank in keepers:
            self.inputs = self.join(0, features)
        else:
            self.take(-len(self.receive((0, False), features[:0])))
        self.exact = False

    def through(self, number: int, layer: GraphLayer, x: torch.Tensor) -> torch.Tensor:
        """Compute a layer: (own nodes, columns) -> (own nodes, columns behind it)."""
        token = _RowsOut.apply(x, self, number)  # type: ignore[no-untyped-call]
        central = layer(x, self.blocks[0])
        if layer.reads_halo and torch.is_grad_enabled():
            marginal = _HeldHalo.apply(x, token, self, number, layer, *layer.parameters())  # type: ignore[no-untyped-call]
        else:
            marginal = layer(_HaloIn.apply(x, token, self, number), self.blocks[1])  # type: ignore[no-untyped-call]
            if number or self.inputs is None:
                self.take(-self.halo_bytes(x))
        return torch.cat([central, marginal])

    def send(self, key: Key, x: torch.Tensor, to: frozenset[int], *, again: bool = False) -> None:
        """Encode and send rows of ``x`` to ranks ``to``, or gradients of all of its halo to their owners."""
        x, me, columns = x.contiguous(), self.part.rank, x.shape[1]
        leaving, lists = self.lists(key, to, out=True), self.lists(key, to, out=False)
        sizes, comes = (
            [int(row_bytes(columns, bits).sum()) for _, bits in those] for those in (leaving, lists)
        )
        out, arriving = (torch.empty(sum(those), dtype=torch.uint8) for those in (sizes, comes))
        self.take(len(out) + len(arriving))
        for peer, (wire, (which, bits)) in enumerate(zip(torch.split(out, sizes), leaving, strict=True)):
            route = (peer, me) if key[1] else (me, peer)
            if len(which):
                traced = None if self.exact or again else self.traced.get(key, {}).get(route)
                encode_rows(x, which, bits, self._seed(key, route), wire, traced)
        what = f"{'gradients' if key[1] else 'rows'} of layer {key[0]}"
        most = self.most(key, columns, to)
        ticket = self.queue.put(lambda: dist.all_to_all_single(arriving, out, comes, sizes), what, most)
        self._flying[key] = _Flight(ticket, out, arriving, lists, most)
        self.sent += len(out)
        if not self.overlap:
            self.queue.wait(ticket)

    def receive(self, key: Key, into: torch.Tensor) -> torch.Tensor:
        """Wait for a message, write its rows or add its gradients; the caller gives back what came."""
        flight, now = self._flying.pop(key), time.perf_counter()
        self.queue.wait(flight.ticket)
        took = flight.ticket.end - flight.ticket.start
        if not self.exact:
            self.times.append(MessageTime(key, flight.most, took, max(0.0, now - flight.ticket.start)))
        self.decode(flight.arriving, flight.lists, into, add=key[1])
        self.take(-len(flight.out))
        return flight.arriving

    def decode(self, wire: torch.Tensor, lists: _Lists, into: torch.Tensor, *, add: bool = False) -> None:
        """Write the rows of a message, or add them."""
        sizes = [int(row_bytes(into.shape[1], bits).sum()) for _, bits in lists]
        for part, (which, bits) in zip(torch.split(wire, sizes), lists, strict=True):
            if len(which):
                decode_rows(part, which, bits, into, add=add)

    def join(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """Give the own rows and behind them the halo, once it is there."""
        if number == 0 and self.inputs is not None:
            if (0, False) in self._flying:  # others have it sent again
                self.take(-len(self.receive((0, False), x[:0])))
            return self.inputs
        joined = self.room(x)
        self.take(-len(self.receive((number, False), joined[len(x) :])))
        return joined

    def room(self, x: torch.Tensor) -> torch.Tensor:
        """Give the own rows and room for the halo."""
        joined = x.new_empty(len(x) + sum(self.part.receives), x.shape[1])
        joined[: len(x)] = x
        self.take(self.halo_bytes(x))
        return joined

    def take(self, size: int) -> None:
        """Count bytes that are now held; negative = given back."""
        self.live += size
        self.peak = max(self.peak, self.live)

    def halo_bytes(self, x: torch.Tensor) -> int:
        """Bytes of the halo in front of a layer."""
        return sum(self.part.receives) * x.shape[1] * _FLOAT

    def lists(self, key: Key, to: frozenset[int], *, out: bool) -> _Lists:
        """Give per rank which rows leave or arrive, and their widths; rows go to ranks ``to`` alone."""
        found, me = [], self.part.rank
        for peer, rows in enumerate(self._sends if out != key[1] else self._halo):
            route = (me, peer) if out != key[1] else (peer, me)
            if not len(rows) or (not key[1] and route[1] not in to):
                found.append((rows[:0], np.zeros(0, np.uint8)))
            else:
                bits = np.full(len(rows), 32, np.uint8) if self.exact else self.widths[key][route]
                found.append((rows, bits))
        return found

    def most(self, key: Key, columns: int, to: frozenset[int]) -> int:
        """Bytes of the rank that sends most: the others wait for it."""
        sent = dict.fromkeys(self.all, 0)
        for (source, target), bits in self.widths[key].items() if key in self.widths else ():
            if key[1] or target in to:
                size = 4 * columns * len(bits) if self.exact else int(row_bytes(columns, bits).sum())
                sent[target if key[1] else source] += size
        return max(sent.values())

    def _seed(self, key: Key, route: tuple[int, int]) -> int:
        number = 0
        for digit in (self.seed, self.epoch, *key, *route):
            number = (number * 0x9E3779B1 + digit) & 0xFFFFFFFF
        return number


class _RowsOut(torch.autograd.Function):
    """Send rows; in the backward wait for their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: RowExchange, number: int) -> torch.Tensor:
        ctx.exchange, ctx.number, ctx.shape = exchange, number, x.shape
        to = exchange.all if number else exchange.fetchers(0)
        if to:
            exchange.send((number, False), x, to)
        return x.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        grad = torch.zeros(ctx.shape)
        ctx.exchange.take(-len(ctx.exchange.receive((ctx.number, True), grad)))
        return grad, None, None


class _HaloIn(torch.autograd.Function):
    """Wait for a halo; in the backward send its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any, _: Any, exchange: RowExchange, number: int) -> torch.Tensor:
        ctx.exchange, ctx.number, ctx.rows = exchange, number, len(x)
        return exchange.join(number, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _send_back(ctx, grad), torch.zeros(()), None, None


def _send_back(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    exchange, halo = ctx.exchange, grad[ctx.rows :]
    exchange.take(halo.numel() * _FLOAT)
    exchange.send((ctx.number, True), halo, exchange.all)
    exchange.take(-halo.numel() * _FLOAT)
    return grad[: ctx.rows]


class _HeldHalo(torch.autograd.Function):
    """Compute marginal nodes, and once more in the backward from what is held of the halo."""

    @staticmethod
    def forward(ctx: Any, x: Any, _: Any, exchange: RowExchange, number: int, layer: Any, *__: Any) -> Any:
        ctx.exchange, ctx.number, ctx.layer, ctx.rows = exchange, number, layer, len(x)
        ctx.save_for_backward(x)
        ctx.hold = exchange.holds[exchange.part.rank][number]
        resident = number == 0 and exchange.inputs is not None
        size = exchange.halo_bytes(x)
        ctx.held = None
        if ctx.hold == "packed":
            joined = exchange.room(x)
            ctx.held = exchange.receive((number, False), joined[len(x) :])
        else:
            joined = exchange.join(number, x)
        if ctx.hold == "kept" and not resident:
            ctx.held = joined[len(x) :].clone()
            exchange.take(size)
        out = layer(joined, exchange.blocks[1])
        if not resident:
            exchange.take(-size)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        exchange, (x,) = ctx.exchange, ctx.saved_tensors
        joined = _held_again(ctx, x)
        parameters = list(ctx.layer.parameters())
        with torch.enable_grad():
            rows = joined.detach().requires_grad_(ctx.number > 0)
            out = ctx.layer(rows, exchange.blocks[1])
            wanted = [*([rows] if ctx.number else []), *parameters]
            grads = list(torch.autograd.grad(out, wanted, grad))
        own = _send_back(ctx, grads.pop(0)) if ctx.number else None
        if joined is not exchange.inputs:
            exchange.take(-exchange.halo_bytes(x))
        return own, torch.zeros(()) if ctx.number else None, None, None, None, *grads


def _held_again(ctx: Any, x: torch.Tensor) -> torch.Tensor:
    exchange: RowExchange = ctx.exchange
    number: int = ctx.number
    fetchers = exchange.fetchers(number)
    if fetchers:
        exchange.send((number, False), x, fetchers, again=True)
    if ctx.hold == "fetched" or (number == 0 and exchange.inputs is not None):
        return exchange.join(number, x)
    if fetchers:
        exchange.take(-len(exchange.receive((number, False), x[:0])))
    joined = exchange.room(x)
    if ctx.hold == "packed":
        exchange.decode(ctx.held, exchange.lists((number, False), exchange.all, out=False), joined[len(x) :])
    else:
        joined[len(x) :] = ctx.held
    exchange.take(-ctx.held.numel() * ctx.held.element_size())
    ctx.held = None
    return joined
