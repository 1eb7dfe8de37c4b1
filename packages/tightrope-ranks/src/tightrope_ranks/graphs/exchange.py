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
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightrope.core import Bytes
from tightrope_ranks.compress.queue import MessageQueue, Ticket
from tightrope_ranks.compress.rows import decode_rows, encode_rows
from tightrope_ranks.graphs.layers import EdgeBlock
from tightrope_ranks.graphs.traffic import Key, RowTraffic, uniform
from tightrope_ranks.values.graphs import GraphPart, GraphPlan


class MessageTime(NamedTuple):
    """What a message took: seconds on the way, and seconds in which something could be computed meanwhile."""

    key: Key
    routes: Sequence[int]
    sent: Bytes  # of the rank that sent most
    seconds: float
    window: float


class RowExchange:
    """What one rank sends and receives."""

    def __init__(self, part: GraphPart, plan: GraphPlan, queue: MessageQueue, seed: int) -> None:
        self.part, self.queue, self.seed = part, queue, seed
        self.ranks, self.mine = plan.ranks, plan.holds[part.rank]
        self.peers = {k: plan.routes[k].target if k in part.weights else plan.routes[k].source
                      for k in part.rows}  # fmt: skip
        self.floats = self.traffic = RowTraffic(plan, uniform(plan, 32))
        self.blocks = EdgeBlock(part.central), EdgeBlock(part.marginal)
        self.rows = {k: torch.from_numpy(rows) for k, rows in part.rows.items()}
        self.epoch = self.sent = self.live = self.peak = 0  # bytes sent; held by messages and halos
        self.exact, self.overlap = False, True  # send floats; compute while messages are on the way
        self.times: list[MessageTime] = []  # of messages that were not exact
        self.traced: dict[Key, dict[int, Tensor]] = {}  # of routes from here, sums of squared ranges of rows
        self.inputs: Tensor | None = None  # own features and those of the halo, where they are kept
        self._tape: list[tuple[Any, ...]] = []
        self._pending: dict[Key, tuple[Ticket, Bytes, Tensor, list[int], MessageTime]] = {}

    def prepare(self, features: Tensor) -> None:
        """Send the rows of the input to the ranks that keep them, once and as floats."""
        self.exact, key, often = True, (0, False), self.traffic.going((0, False))
        self.send(key, features, [k for k in range(len(self.traffic.plan.routes)) if k not in often])
        if self.mine[0] == "kept":
            self.inputs = self.room(features)
        self.receive(key, features if self.inputs is None else self.inputs[len(features) :])
        self.exact = False

    def forward(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        """Compute all layers of the own nodes; unless it is exact, `backward` must follow."""
        for number, layer in enumerate(layers):
            x = self._forward(number, layer, x.relu() if number else x)
        return x

    def _forward(self, number: int, layer: Any, x: Tensor) -> Tensor:
        key, hold, held = (number, False), self.mine[number] if number and not self.exact else "", None
        self.send(key, x, self.traffic.going(key))
        x = x.requires_grad_(number > 0 and not self.exact)
        central = layer(x, self.blocks[0])
        rows, wire = self.join(number, x, keep=hold == "packed")
        if hold == "packed":
            held = wire
        elif hold == "kept":
            held = rows[len(x) :].clone()
            self.take(held.nbytes)
        root = _rooted(rows) if x.requires_grad and not self.traffic.reads else None
        with torch.set_grad_enabled(not self.exact and not self.traffic.reads):
            marginal = layer(rows, self.blocks[1])
        self.release(number, x)
        if not self.exact:
            self._tape.append((layer, x, root, held, central, marginal))
        return torch.cat([central, marginal]).detach()

    def backward(self, grad: Tensor) -> None:
        """Add gradients to those of the parameters; ``grad`` is that of what `forward` gave."""
        for number in reversed(range(len(self._tape))):
            grad = self._backward(number, grad)

    def _backward(self, number: int, grad: Tensor) -> Tensor:
        layer, x, rows, held, central, marginal = self._tape.pop()
        key = number, True
        if self.traffic.reads:
            rows = self._held_again(number, x, held).detach().requires_grad_(number > 0)
            marginal = layer(rows, self.blocks[1])
        marginal.backward(grad[len(central) :])
        if number:
            own, halo = rows.grad[: len(x)].clone(), rows.grad[len(x) :]
            self.take(halo.nbytes)
            self.send(key, halo, self.traffic.going(key))
            self.take(-halo.nbytes)
            del halo
        if self.traffic.reads:
            self.release(number, x)
        del rows, marginal
        central.backward(grad[: len(central)])
        if number:
            own += x.grad
            self.receive(key, own)
            grad = own * (x.detach() > 0)
        return grad

    def _held_again(self, number: int, x: Tensor, held: Tensor | None) -> Tensor:
        """Give the rows that the forward had, from what was held or is sent again."""
        key = number, False
        self.send(key, x, self.traffic.going(key, again=True), again=True)
        if held is None:
            return self.join(number, x)[0]
        self.receive(key, x)  # nothing: others have it sent again
        rows = self.room(x)
        if self.mine[number] == "packed":
            self.decode(key, [k for k in self.peers if k not in self.part.weights], held, rows[len(x) :])
        else:
            rows[len(x) :] = held
        self.take(-held.nbytes)
        return rows

    @property
    def now(self) -> RowTraffic:
        """What travels as things are."""
        return self.floats if self.exact else self.traffic

    def send(self, key: Key, x: Tensor, routes: Sequence[int], *, again: bool = False) -> None:
        """Encode and send rows of ``x``, or gradients of its halo; routes are those of all ranks."""
        if not routes:
            return
        x, sizes, widths = x.contiguous(), self.now.sizes[key], self.now.widths[key]
        goes, comes = [0] * self.ranks, [0] * self.ranks
        leave: list[int] = []
        arrive: list[int] = []
        for k in (k for k in routes if k in self.peers):
            out = (k in self.part.weights) != key[1]
            (leave if out else arrive).append(k)
            (goes if out else comes)[self.peers[k]] = int(sizes[k])
        sent, wire = (torch.empty(sum(those), dtype=torch.uint8) for those in (goes, comes))
        self.take(len(sent) + len(wire))
        for k, part in zip(leave, torch.split(sent, sizes[leave].tolist()), strict=True):
            traced = None if self.exact or again else self.traced.get(key, {}).get(k)
            seed = crc32(repr((self.seed, self.epoch, key, k)).encode())
            encode_rows(x, self.rows[k], widths[k], seed, part, traced)
        what, most = f"{'gradients' if key[1] else 'rows'} of layer {key[0]}", self.now.by_sender(key, routes)
        told = MessageTime(key, routes, int(most.max()), 0.0, 0.0)
        ticket = self.queue.put(lambda: dist.all_to_all_single(wire, sent, comes, goes), what, told.sent)
        self._pending[key] = ticket, len(sent), wire, arrive, told
        self.sent += len(sent)
        if not self.overlap:
            self.queue.wait(ticket)

    def receive(self, key: Key, into: Tensor, *, keep: bool = False) -> Tensor | None:
        """Wait for a message, if there is one, and decode it; give what came, which is counted if kept."""
        if key not in self._pending:
            return None
        now = time.perf_counter()
        ticket, sent, wire, arrive, told = self._pending.pop(key)
        self.queue.wait(ticket)
        if not self.exact:
            window = max(0.0, now - ticket.start)
            self.times.append(told._replace(seconds=ticket.end - ticket.start, window=window))
        self.decode(key, arrive, wire, into)
        self.take(-sent if keep else -sent - len(wire))
        return wire

    def decode(self, key: Key, routes: list[int], wire: Tensor, into: Tensor) -> None:
        """Write the rows of a message, or add its gradients."""
        sizes, widths = self.now.sizes[key][routes].tolist(), self.now.widths[key]
        for k, part in zip(routes, torch.split(wire, sizes), strict=True):
            decode_rows(part, self.rows[k], widths[k], into, add=key[1])

    def join(self, number: int, x: Tensor, *, keep: bool = False) -> tuple[Tensor, Tensor | None]:
        """Give the own rows and behind them the halo, once it is there, and what came."""
        rows = self.room(x) if number or self.inputs is None else self.inputs
        return rows, self.receive((number, False), rows[len(x) :], keep=keep)

    def room(self, x: Tensor) -> Tensor:
        """Give the own rows and room for the halo."""
        rows = x.new_empty(len(x) + self.part.halo, x.shape[1])
        rows[: len(x)] = x.detach()
        self.take(rows[len(x) :].nbytes)
        return rows

    def take(self, size: Bytes) -> None:
        """Count bytes that are now held; negative = given back."""
        self.live += size
        self.peak = max(self.peak, self.live)

    def release(self, number: int, x: Tensor) -> None:
        """Give back the halo in front of a layer, where it does not stay."""
        if number or self.inputs is None:
            self.take(-self.part.halo * x.shape[1] * x.itemsize)


def _rooted(rows: Tensor) -> Tensor:
    """Make rows the result of a sum with zeros and give these: for the gradient the rows need not stay."""
    zeros = rows.new_zeros(1, 1).requires_grad_().expand_as(rows)
    zeros.retain_grad()
    rows.add_(zeros)
    return zeros
