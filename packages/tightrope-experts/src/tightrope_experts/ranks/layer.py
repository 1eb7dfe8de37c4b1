"""A mixture of experts over ranks: rows travel in rounds, within bytes that are said beforehand.

Idea        Rows of a round are sent while those of the round before are multiplied. A rank keeps its first
            ``keep`` rows for the backward. Rows above that are sent again in the backward, and multiplied
            once more, so that no routing takes more bytes: it takes more rounds.
Guarantee   No row is dropped. Outputs and gradients are those of one process, but for the order of sums. An
            error of one rank's routing is raised on all of them.
Complexity  Rows travel twice forward and twice backward; those that are not kept, once more.
Gaps        What runs between exchanges is not captured: a compiled model becomes several graphs.
Source      Tutel (MLSys 2023), MegaBlocks (MLSys 2023)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightrope.core import TightropeError
from tightrope_experts.layer import Activation, MoE, check_rows
from tightrope_experts.layout import Counts, ExpertLayout, Traffic
from tightrope_experts.products import gather, gather_backward, spread, spread_backward
from tightrope_experts.ranks.exchange import Coming, Mesh


@dataclass(frozen=True)
class Sending:
    """How rows travel and are multiplied; every rank gives the same.

    Attributes:
        degree: see `tightrope_experts.layout`; all of them give the same results.
        parts: rounds at least.
        most: rows that a rank receives in a round, at most.
        keep: rows that a rank keeps for the backward, at most.
        rows: multiplied at once, at most.
    """

    degree: int = 1
    parts: int = 1
    most: int = 1 << 16
    keep: int = 1 << 16
    rows: int = 1024

    def __post_init__(self) -> None:
        for name in ("parts", "most"):
            if getattr(self, name) < 1:
                raise TightropeError(f"{name}={getattr(self, name)}: give a whole number of at least 1.")
        if self.keep < 0:
            raise TightropeError(f"keep={self.keep}: give a whole number of at least 0.")
        check_rows(self.rows)


SENDING: Final = Sending()


class Seen(NamedTuple):
    """What the last forward did; equal on all ranks.

    Attributes:
        counts: (W, E) rows of each rank by expert.
        arrived: (W,) rows that each rank multiplied.
        rounds: in which they travelled.
        again: rows that the backward sends again, over all ranks.
    """

    counts: Counts
    arrived: Counts
    rounds: int
    again: int


class _Kept(NamedTuple):
    rows: Tensor
    gates: Tensor
    before: Tensor


class _Step:
    """Rows of one forward and its backward, on this rank."""

    def __init__(self, mesh: Mesh, traffic: Traffic, chosen: Tensor, act: Activation, rows: int) -> None:
        self.mesh, self.traffic, self.act, self.rows = mesh, traffic, act, rows
        flat = chosen.t().reshape(-1)
        order = torch.sort(flat, stable=True).indices[: int(traffic.counts[mesh.rank].sum())]
        self.order, self.num_tokens = order, len(chosen)
        self.kept: dict[int, _Kept] = {}

    def sent(self, at: int) -> Tensor:
        """Rows of `order` that travel in a round."""
        return self.order[torch.from_numpy(self.traffic.rows_of(self.mesh.rank, at))]

    def local(self, at: int) -> Tensor:
        """(R, 1): the expert of each row that arrives."""
        return torch.from_numpy(self.traffic.experts_of(self.mesh.rank, at)).unsqueeze(1)

    def run(
        self,
        send: Callable[[int], list[Coming]],
        work: Callable[[int, list[Tensor]], list[Tensor]],
        take: Callable[[int, list[Tensor]], None],
    ) -> None:
        """Send, multiply, send back and take every round; neighbours overlap."""
        coming, back = send(0), list[Coming]()
        for at in range(self.traffic.rounds):
            arrived = [wait() for wait in coming]
            coming = send(at + 1) if at + 1 < self.traffic.rounds else []
            made = work(at, arrived)
            del arrived
            if at:
                take(at - 1, [wait() for wait in back])
            back = [self.mesh.post(one, self.traffic.matrices[at].T) for one in made]
        take(self.traffic.rounds - 1, [wait() for wait in back])

    def forward(self, x: Tensor, gates: Tensor, weights: "_Weights") -> Tensor:
        out, flat = torch.zeros_like(x), gates.t().reshape(-1)
        up, down, up_bias, down_bias = weights
        keeps = self.traffic.kept[:, self.mesh.rank]

        def send(at: int) -> list[Coming]:
            rows = self.sent(at)
            matrix = self.traffic.matrices[at]
            return [self.mesh.post(x[rows % self.num_tokens], matrix), self.mesh.post(flat[rows], matrix)]

        def work(at: int, arrived: list[Tensor]) -> list[Tensor]:
            rows, share = arrived
            local = self.local(at)
            before = spread(rows, local, up, up_bias, self.rows, False)
            if keeps[at]:
                self.kept[at] = _Kept(rows, share, before)
            return [gather(self.act(before), local, share[:, None], down, down_bias, self.rows, False)]

        self.run(send, work, lambda at, came: _add(out, self.sent(at) % self.num_tokens, came[0]))
        return out

    def backward(
        self, grad: Tensor, x: Tensor, gates: Tensor, weights: "_Weights"
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        of_x, flat = torch.zeros_like(x), gates.t().reshape(-1)
        of_gates = torch.zeros_like(flat)
        up, down, up_bias, down_bias = weights
        sums = [torch.zeros_like(one) for one in weights if one is not None]

        def send(at: int) -> list[Coming]:
            rows, again = self.sent(at), self.traffic.sent_again(at)
            posted = [self.mesh.post(grad[rows % self.num_tokens], self.traffic.matrices[at])]
            if again.any():
                kept = torch.from_numpy(
                    self.traffic.kept[at].repeat(self.traffic.matrices[at][self.mesh.rank])
                )
                rows = rows[~kept]
                posted += [self.mesh.post(one, again) for one in (x[rows % self.num_tokens], flat[rows])]
            return posted

        def work(at: int, arrived: list[Tensor]) -> list[Tensor]:
            came, local = arrived[0], self.local(at)
            kept = self.kept.pop(at, None)
            if kept is None:
                if len(arrived) == 1:
                    raise TightropeError(
                        "The backward of experts over ranks runs once. Call the layer again."
                    )
                rows, share = arrived[1:]
                kept = _Kept(rows, share, spread(rows, local, up, up_bias, self.rows, False))
            taken: Any = torch.func.vjp(self.act, kept.before)
            hidden, pull = taken
            of_hidden, of_share, of_down, of_down_bias = gather_backward(
                came, hidden, local, kept.gates[:, None], down, down_bias, self.rows, False
            )
            (of_before,) = pull(of_hidden)
            of_rows, of_up, of_up_bias = spread_backward(
                of_before.contiguous(), kept.rows, local, up, self.rows, False, up_bias is not None
            )
            found = [of_up, of_down, *((of_up_bias, of_down_bias) if up_bias is not None else ())]
            for total, one in zip(sums, found, strict=True):
                total.add_(one)
            return [of_rows, of_share.view(-1)]

        def take(at: int, came: list[Tensor]) -> None:
            rows = self.sent(at)
            _add(of_x, rows % self.num_tokens, came[0])
            _add(of_gates, rows, came[1])

        self.run(send, work, take)
        return of_x, of_gates.view(gates.shape[1], -1).t(), sums


class _Weights(NamedTuple):
    """Weights that a rank multiplies with, gathered."""

    up: Tensor
    down: Tensor
    up_bias: Tensor | None
    down_bias: Tensor | None


def _add(out: Tensor, at: Tensor, rows: Tensor) -> None:
    out.index_add_(0, at, rows)


class _Across(torch.autograd.Function):
    """Experts of other ranks; see `MoEAcross`."""

    @staticmethod
    def forward(
        ctx: Any, layer: "MoEAcross", x: Tensor, chosen: Tensor, gates: Tensor, *own: Tensor
    ) -> Tensor:
        ctx.layer, ctx.sending = layer, layer.sending
        step, local = layer.begin(chosen, gates, ctx.sending)
        weights = layer.gathered(own, ctx.sending.degree)
        ctx.step, ctx.local = step, local
        ctx.save_for_backward(x, chosen, gates, *own)
        if step is not None:
            return step.forward(x, gates, weights)
        act, rows = layer.sliced(ctx.sending.degree), ctx.sending.rows
        before = spread(x, local, weights.up, weights.up_bias, rows, False)
        ctx.before = before
        made: Tensor = gather(act(before), local, gates, weights.down, weights.down_bias, rows, False)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, _, gates, *own = ctx.saved_tensors
        layer, grad = ctx.layer, grad.contiguous()
        weights = layer.gathered(own, ctx.sending.degree)
        if ctx.step is not None:
            of_x, of_gates, sums = ctx.step.backward(grad, x, gates, weights)
        else:
            act, rows, before = layer.sliced(ctx.sending.degree), ctx.sending.rows, ctx.before
            taken: Any = torch.func.vjp(act, before)
            hidden, pull = taken
            of_hidden, of_gates, of_down, of_down_bias = gather_backward(
                grad, hidden, ctx.local, gates, weights.down, weights.down_bias, rows, False
            )
            (of_before,) = pull(of_hidden)
            biased = weights.up_bias is not None
            of_x, of_up, of_up_bias = spread_backward(
                of_before.contiguous(), x, ctx.local, weights.up, rows, False, biased
            )
            sums = [of_up, of_down, *((of_up_bias, of_down_bias) if biased else ())]
        return None, of_x, None, of_gates, *layer.reduced(sums, ctx.sending.degree)


class MoEAcross(MoE):
    """A layer of experts whose experts are divided over the ranks of a process group.

    Every rank has its own tokens. Gradients of experts are the mean over ranks, as `DistributedDataParallel`
    makes them for everything else: leave ``up`` and ``down`` out of it. Ranks call the layer together.

    Args:
        layer: with all experts; equal on all ranks.
        group: of torch; None = all ranks.
        sending: how rows travel; may be changed between steps, on all ranks at once.
        node: ranks of a node, for exchanges in two levels; 0 = one level.

    Attributes:
        layout: experts over ranks.
        up, down: what this rank holds of the experts: one layout for every degree.
        seen: what the last forward did.

    Raises:
        TightropeError: ranks do not divide the experts, or biases would have to be cut.

    Example:
        >>> layer = MoEAcross(MoE(64, 128, num_experts=8, k=2), sending=Sending(parts=2))  # doctest: +SKIP

    Source: Tutel (MLSys 2023).
    """

    def __init__(
        self,
        layer: MoE,
        group: dist.ProcessGroup | None = None,
        *,
        sending: Sending = SENDING,
        node: int = 0,
    ) -> None:
        nn.Module.__init__(self)  # it has no experts of its own
        self.mesh = Mesh(group, node)
        self.seen: Seen | None = None
        self.layout, self.sending = ExpertLayout(self.mesh.ranks, len(layer.up)), sending
        self.layout.check(sending.degree)
        slices, rank = self.layout.slices, self.mesh.rank
        wide, hidden = layer.up.shape[1], layer.down.shape[2]
        if hidden % slices:
            raise TightropeError(f"hidden={hidden} does not divide into the {slices} slices of an expert.")
        if slices > 1 and layer.up_bias is not None:
            raise TightropeError(
                f"An expert is cut into {slices} slices, and its bias cannot be. Use bias=False."
            )
        self.router, self.activation, self.gated = layer.router, layer.activation, layer.gated
        self.k, self.noise, self.capacity, self.rows = layer.k, layer.noise, layer.capacity, sending.rows
        first, part = rank * self.layout.local if slices == 1 else rank // slices, rank % slices
        held = slice(first, first + self.layout.local)
        up, down, dim = layer.up.detach()[held], layer.down.detach()[held], layer.down.shape[1]
        own_up = up.reshape(len(up), wide // hidden, slices, hidden // slices, dim)[:, :, part]
        own_down = down.reshape(len(down), dim, slices, hidden // slices)[:, :, part]
        self.up = nn.Parameter(own_up.flatten(1, 2).clone())
        self.down = nn.Parameter(own_down.clone())
        self.up_bias = self.down_bias = None
        if layer.up_bias is not None and layer.down_bias is not None:
            self.up_bias = nn.Parameter(layer.up_bias.detach()[held].clone())
            self.down_bias = nn.Parameter(layer.down_bias.detach()[held].clone())

    def begin(self, chosen: Tensor, gates: Tensor, sending: Sending) -> tuple[_Step | None, Tensor]:
        """Agree on a step with all ranks; None where rows stay.

        Raises:
            TightropeError: on every rank, where the routing of one is wrong, or settings differ.
        """
        self.layout.check(sending.degree)
        num = self.layout.experts
        bad = not bool(torch.isfinite(gates).all()) or (
            chosen.numel() > 0 and not 0 <= int(chosen.min()) <= int(chosen.max()) <= num
        )
        counts = torch.bincount(chosen.reshape(-1).clamp(0, num), minlength=num + 1)
        counts[num] = bad
        every = self.mesh.counts(
            torch.cat([counts, torch.tensor([sending.degree, sending.parts, sending.most, sending.keep])])
        )
        if every[:, num].any():
            wrong = ", ".join(str(rank) for rank in every[:, num].nonzero()[0])
            raise TightropeError(f"A gate is NaN or infinite, or an expert is unknown, on rank {wrong}.")
        if (every[:, num + 1 :] != every[0, num + 1 :]).any():
            raise TightropeError("Settings differ between ranks. Give every rank the same.")
        every = every[:, :num]
        if not sending.degree:
            arrived = every.sum(1)
            self.seen = Seen(every, arrived, 1, 0)
            return None, chosen
        traffic = Traffic(self.layout, sending.degree, every, sending.parts, sending.most, sending.keep)
        again = sum(int(traffic.sent_again(at).sum()) for at in range(traffic.rounds))
        self.seen = Seen(every, traffic.matrices.sum((0, 1)), traffic.rounds, again)
        return _Step(self.mesh, traffic, chosen, self.sliced(sending.degree), sending.rows), chosen

    def sliced(self, degree: int) -> Activation:
        """Return the activation for rows that are several slices, one behind the other."""
        num = len(self.layout.peers(0, degree)) if degree else self.layout.slices
        if num == 1:
            return self._act

        def act(before: Tensor) -> Tensor:
            made = self._act(before.reshape(len(before) * num, before.shape[1] // num))
            return made.reshape(len(before), num * made.shape[1])

        return act

    def gathered(self, own: tuple[Tensor, ...] | list[Tensor], degree: int) -> _Weights:
        """Gather the weights that this rank multiplies with at a degree."""
        peers = self.layout.peers(self.mesh.rank, degree)
        up, down, *biases = (self.mesh.gathered(one, peers) for one in own)
        up, down = self._by_expert(up, degree), self._by_expert(down, degree)
        wide = up.flatten(1, 2)  # (experts, slices, W, M)
        inner = down.transpose(1, 2).flatten(2)  # (experts, slices, M, H)
        up_bias, down_bias = (one.flatten(0, 1) for one in biases) if biases else (None, None)
        return _Weights(wide, inner.contiguous(), up_bias, down_bias)

    def _by_expert(self, parts: Tensor, degree: int) -> Tensor:
        """(peers, local, ...) to (experts, slices, ...)."""
        if self.layout.slices == 1:
            return parts.flatten(0, 1).unsqueeze(1)
        slices = len(parts) // self.layout.experts if not degree else len(parts)
        return parts.reshape(-1, slices, *parts.shape[2:])

    def reduced(self, sums: list[Tensor], degree: int) -> list[Tensor]:
        """Bring sums of gradients to the ranks that hold the weights; the inverse of `gathered`."""
        peers = self.layout.peers(self.mesh.rank, degree)
        of_up, of_down, *biases = sums
        dim, hidden = self.down.shape[1:]
        cut_down = of_down.reshape(len(of_down), dim, -1, hidden).transpose(1, 2)
        parameters = (self.up, self.down, *(one for one in (self.up_bias, self.down_bias) if one is not None))
        by_peer = [
            one.reshape(len(peers), *like.shape)
            for one, like in zip((of_up, cut_down, *biases), parameters, strict=True)
        ]
        return [self.mesh.reduced(one, peers).div_(self.mesh.ranks) for one in by_peer]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _exchanged(self, tokens: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        own = [one for one in (self.up, self.down, self.up_bias, self.down_bias) if one is not None]
        if tokens.dtype != self.up.dtype:
            raise TightropeError(f"Tokens are {tokens.dtype} and experts {self.up.dtype}. Give one type.")
        made: Tensor = _Across.apply(self, tokens, chosen, gates.to(tokens.dtype), *own)  # type: ignore[no-untyped-call]
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Return what the experts of each token make of it: (..., M), as ``x``."""
        tokens = x.reshape(-1, x.shape[-1])
        chosen, gates = self.route(tokens)
        made: Tensor = self._exchanged(tokens, chosen, gates)
        return made.view_as(x)
