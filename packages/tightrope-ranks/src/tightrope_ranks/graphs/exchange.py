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
from tightrope_ranks.graphs.layers import EdgeBlock
from tightrope_ranks.graphs.rows import decode_rows, encode_rows
from tightrope_ranks.graphs.traffic import Key, Keyed, RowTraffic, uniform
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
        self.part, self.plan, self.queue, self.seed = part, plan, queue, seed
        self.mine = ["inputs" if not k and one == "kept" else one
                     for k, one in enumerate(plan.holds[part.rank])]  # fmt: skip
        self.floats = self.traffic = self.with_widths(uniform(plan.routes, len(plan.columns), 32))
        self.blocks = EdgeBlock(part.central), EdgeBlock(part.marginal)
        self.rows = {number: torch.from_numpy(rows) for number, rows in part.rows.items()}
        self.epoch = self.sent = self.live = self.peak = 0  # bytes sent; held by messages and halos
        self.exact, self.overlap = False, True  # send floats; compute while messages are on the way
        self.times: list[MessageTime] = []  # of messages that were not exact
        self.traced: dict[Key, dict[int, Tensor]] = {}  # of routes from here, sums of squared ranges of rows
        self.inputs: Tensor | None = None  # own features and those of the halo, where they are kept
        self._tape: list[tuple[Any, ...]] = []
        self._pending: dict[Key, tuple[Ticket, Bytes, Tensor, list[int], MessageTime]] = {}

    def with_widths(self, widths: Keyed) -> RowTraffic:
        """Add up the messages of the plan with these widths."""
        return RowTraffic(self.plan.columns, self.plan.held[0], self.plan.routes, widths)

    def going(self, key: Key, *, again: bool = False) -> list[int]:
        """List the routes of a message, see `RowTraffic.going`."""
        return self.traffic.going(self.plan.holds, key, again=again)

    def prepare(self, features: Tensor) -> None:
        """Send the rows of the input to the ranks that keep them, once and as floats."""
        self.exact, often = True, self.going((0, False))
        self.send((0, False), features, [k for k in range(len(self.plan.routes)) if k not in often])
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
        key, hold, held = (number, False), "none" if self.exact else self.mine[number], None
        self.send(key, x, self.going(key))
        x = x.requires_grad_(number > 0 and not self.exact)
        central = layer(x, self.blocks[0])
        if hold == "packed":
            rows = self.room(x)
            held = self.receive(key, rows[len(x) :], keep=True)
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
        key = number, True
        if layer.reads_halo:
            rows = self._held_again(number, x, held).detach().requires_grad_(number > 0)
            marginal = layer(rows, self.blocks[1])
        marginal.backward(grad[len(central) :])
        if number:
            own, halo = rows.grad[: len(x)].clone(), rows.grad[len(x) :]
            self.take(halo.nbytes)
            self.send(key, halo, self.going(key))
            self.take(-halo.nbytes)
            del halo
        if layer.reads_halo:
            self.take(-self.halo_bytes(number, x))
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
        self.send(key, x, self.going(key, again=True), again=True)
        if held is None:
            return self.join(number, x)
        self.receive(key, x[:0])
        joined = self.room(x)
        if self.mine[number] == "packed":
            self.decode(key, self.ending(key, self.going(key))[1], held, joined[len(x) :])
        else:
            joined[len(x) :] = held
        self.take(-held.nbytes)
        return joined

    def ending(self, key: Key, routes: Sequence[int]) -> tuple[list[int], list[int]]:
        """List those of the routes whose message leaves here, and those whose message arrives."""
        source, target = ([k for k in routes if ends[k] == self.part.rank] for ends in self.traffic.ends)
        return (target, source) if key[1] else (source, target)

    @property
    def now(self) -> RowTraffic:
        """What travels as things are."""
        return self.floats if self.exact else self.traffic

    def send(self, key: Key, x: Tensor, routes: Sequence[int], *, again: bool = False) -> None:
        """Encode and send rows of ``x``, or gradients of its halo; routes are those of all ranks."""
        if not routes:
            return
        x, ranks, sizes, (leave, arrive) = x.contiguous(), self.plan.ranks, self.now.sizes[key], self.ending(key, routes)  # noqa: E501
        comes, goes = [0] * ranks, [0] * ranks
        for k in leave:
            goes[self.traffic.ends[1 - key[1]][k]] = int(sizes[k])
        for k in arrive:
            comes[self.traffic.ends[int(key[1])][k]] = int(sizes[k])
        out, wire = (torch.empty(sum(those), dtype=torch.uint8) for those in (goes, comes))
        self.take(len(out) + len(wire))
        for k, part in zip(leave, torch.split(out, sizes[leave].tolist()), strict=True):
            traced = None if self.exact or again else self.traced.get(key, {}).get(k)
            seed = crc32(repr((self.seed, self.epoch, key, k)).encode())
            encode_rows(x, self.rows[k], self.now.widths[key][k], seed, part, traced)
        what = f"{'gradients' if key[1] else 'rows'} of layer {key[0]}"
        most = int(self.now.by_sender(key, routes, ranks).max())
        ticket = self.queue.put(lambda: dist.all_to_all_single(wire, out, comes, goes), what, most)
        self._pending[key] = ticket, len(out), wire, arrive, MessageTime(key, routes, most, 0.0, 0.0)
        self.sent += len(out)
        if not self.overlap:
            self.queue.wait(ticket)

    def receive(self, key: Key, into: Tensor, *, keep: bool = False) -> Tensor:
        """Wait for a message if there is one, write its rows or add its gradients; give what came, counted
        if it is kept."""
        if key not in self._pending:
            return torch.empty(0, dtype=torch.uint8)
        now = time.perf_counter()
        ticket, out, wire, arrive, told = self._pending.pop(key)
        self.queue.wait(ticket)
        if not self.exact:
            window = max(0.0, now - ticket.start)
            self.times.append(told._replace(seconds=ticket.end - ticket.start, window=window))
        self.decode(key, arrive, wire, into)
        self.take(-out if keep else -out - len(wire))
        return wire

    def decode(self, key: Key, routes: list[int], wire: Tensor, into: Tensor) -> None:
        """Write the rows of a message, or add its gradients."""
        sizes = self.now.sizes[key][routes].tolist()
        for k, part in zip(routes, torch.split(wire, sizes), strict=True):
            decode_rows(part, self.rows[k], self.now.widths[key][k], into, add=key[1])

    def join(self, number: int, x: Tensor) -> Tensor:
        """Give the own rows and behind them the halo, once it is there."""
        if self.mine[number] == "inputs":
            self.receive((number, False), x[:0])  # others have it sent
            assert self.inputs is not None
            return self.inputs
        joined = self.room(x)
        self.receive((number, False), joined[len(x) :])
        return joined

    def room(self, x: Tensor) -> Tensor:
        """Give the own rows and room for the halo."""
        joined = x.new_empty(len(x) + self.part.halo, x.shape[1])
        joined[: len(x)] = x.detach()
        self.take(joined[len(x) :].nbytes)
        return joined

    def take(self, size: Bytes) -> None:
        """Count bytes that are now held; negative = given back."""
        self.live += size
        self.peak = max(self.peak, self.live)

    def halo_bytes(self, number: int, x: Tensor) -> Bytes:
        """Bytes of the halo in front of a layer, where it does not stay."""
        return 0 if self.mine[number] == "inputs" else self.part.halo * x.shape[1] * x.itemsize


def _rooted(rows: Tensor) -> Tensor:
    """Make rows the result of a sum with zeros and give these: for the gradient the rows need not stay."""
    zeros = rows.new_zeros(1, 1).requires_grad_().expand_as(rows)
    zeros.retain_grad()
    rows.add_(zeros)
    return zeros
