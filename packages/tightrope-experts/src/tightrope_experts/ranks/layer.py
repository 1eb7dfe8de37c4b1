"""A mixture of experts over ranks: rows travel in rounds, within bytes that are said beforehand.

Idea        Rows of a round are sent while those of the round before are multiplied. A rank keeps its first
            ``keep`` rows for the backward. Rows above that are sent again in the backward, and multiplied
            once more, so that no routing takes more bytes: it takes more rounds.
Guarantee   No row is dropped. Outputs and gradients are those of one process, but for the order of sums. What
            one rank refuses, all refuse.
Complexity  Rows travel twice forward and twice backward; those that are not kept, once more.
Gaps        What runs between exchanges is not captured: a compiled model becomes several graphs.
Source      Tutel (MLSys 2023), MegaBlocks (MLSys 2023)
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tightrope.core import RankError, TightropeError
from tightrope_experts.layer import Activation, MoE, Weights, backward_of, forward_of
from tightrope_experts.layout import Counts, ExpertLayout, Sending, Traffic
from tightrope_experts.products import Routing, check_gates, routed, spread
from tightrope_experts.ranks.exchange import Coming, Mesh, guarded

SENDING: Final = Sending()
_Send = Callable[[int], list[Coming]]
_Work = Callable[[int, list[Tensor]], list[Tensor]]


class _Step:
    """Rows of one forward and its backward, on this rank."""

    def __init__(self, mesh: Mesh, traffic: Traffic, routing: Routing, act: Activation) -> None:
        self.mesh, self.traffic, self.routing, self.act = mesh, traffic, routing, act
        self.rows, self.kept = traffic.sending.rows, dict[int, tuple[Tensor, ...]]()

    def sent(self, at: int) -> tuple[Tensor, Tensor]:
        """Tokens and rows that travel in a round."""
        these = torch.from_numpy(self.traffic.rows_of(self.mesh.rank, at))
        return self.routing.tokens[these], self.routing.rows[these]

    def given(self, at: int, rows: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows that arrived in a round, the expert of each, and its gate."""
        local = torch.from_numpy(self.traffic.experts_of(self.mesh.rank, at)).unsqueeze(1)
        return rows, local, gates.unsqueeze(1)

    def run(self, send: _Send, work: _Work, *sums: Tensor) -> None:
        """Send, multiply, send back and add up every round, by token and by row; neighbours overlap."""

        def take(at: int) -> None:
            for total, where, wait in zip(sums, self.sent(at), back, strict=False):
                total.index_add_(0, where, wait())

        coming, back = send(0), list[Coming]()
        for at in range(self.traffic.rounds):
            arrived = [wait() for wait in coming]
            coming = send(at + 1) if at + 1 < self.traffic.rounds else []
            made = work(at, arrived)
            del arrived
            if at:
                take(at - 1)
            back = [self.mesh.post(one, self.traffic.matrices[at].T) for one in made]
        take(self.traffic.rounds - 1)

    def forward(self, x: Tensor, gates: Tensor, weights: Weights) -> Tensor:
        """Return the sums of tokens (T, M)."""
        out, flat = torch.zeros_like(x), gates.t().reshape(-1)

        def send(at: int) -> list[Coming]:
            (tokens, rows), matrix = self.sent(at), self.traffic.matrices[at]
            return [self.mesh.post(x[tokens], matrix), self.mesh.post(flat[rows], matrix)]

        def work(at: int, arrived: list[Tensor]) -> list[Tensor]:
            given = self.given(at, *arrived)
            before, made = forward_of(*given, weights, self.act, self.rows)
            if self.traffic.kept[at, self.mesh.rank]:
                self.kept[at] = (*given, before)
            return [made]

        self.run(send, work, out)
        return out

    def backward(
        self, grad: Tensor, x: Tensor, gates: Tensor, weights: Weights
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the gradients of tokens, gates and the weights that this rank multiplies with."""
        of_x, flat = torch.zeros_like(x), gates.t().reshape(-1)
        of_gates, sums = torch.zeros_like(flat), list[Tensor]()

        def send(at: int) -> list[Coming]:
            (tokens, rows), matrix, again = self.sent(at), self.traffic.matrices[at], self.traffic.again[at]
            posted = [self.mesh.post(grad[tokens], matrix)]
            if again.any():
                twice = torch.from_numpy(~self.traffic.kept[at].repeat(matrix[self.mesh.rank]))
                posted += [self.mesh.post(one, again) for one in (x[tokens[twice]], flat[rows[twice]])]
            return posted

        def work(at: int, arrived: list[Tensor]) -> list[Tensor]:
            kept = self.kept.pop(at, None)
            if kept is None:
                if len(arrived) == 1:
                    raise TightropeError(
                        "The backward of experts over ranks runs once. Call the layer again."
                    )
                given = self.given(at, *arrived[1:])
                kept = (*given, spread(*given[:2], weights.up, weights.up_bias, self.rows))
            of_rows, of_share, found = backward_of(arrived[0], kept, weights, self.act, self.rows)
            of_weights = [one for one in found if one is not None]
            for total, one in zip(sums, of_weights, strict=False):
                total.add_(one)
            sums.extend(of_weights[len(sums) :])  # all, in the first round
            return [of_rows, of_share.view(-1)]

        self.run(send, work, of_x, of_gates)
        return of_x, of_gates.view(gates.shape[1], -1).t(), sums


class _Across(torch.autograd.Function):
    """Experts of other ranks; see `MoEAcross`."""

    @staticmethod
    def forward(ctx: Any, layer: "MoEAcross", step: _Step, x: Tensor, gates: Tensor, *own: Tensor) -> Tensor:
        ctx.layer, ctx.step = layer, step
        ctx.save_for_backward(x, gates, *own)
        with guarded(layer.mesh.group):
            return step.forward(x, gates, layer.gathered(own, step.traffic.sending.degree))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, gates, *own = ctx.saved_tensors
        layer, degree = ctx.layer, ctx.step.traffic.sending.degree
        with guarded(layer.mesh.group):
            of_x, of_gates, sums = ctx.step.backward(grad, x, gates, layer.gathered(own, degree))
            return None, None, of_x, of_gates, *layer.reduced(sums, degree)


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
        up, down: what this rank holds of the experts: one layout for every degree.
        seen: what travelled in the last forward; equal on all ranks.

    Raises:
        TightropeError: ranks do not divide the experts, or biases would have to be cut.

    Example:
        >>> layer = MoEAcross(MoE(64, 128, num_experts=8, k=2), sending=Sending(parts=2))  # doctest: +SKIP

    Source: Tutel (MLSys 2023).
    """

    def __init__(
        self, layer: MoE, group: dist.ProcessGroup | None = None, *, sending: Sending = SENDING, node: int = 0
    ) -> None:
        nn.Module.__init__(self)  # it has no experts of its own
        self.mesh = Mesh(group, node)
        self.seen: Traffic | None = None
        self.layout, self.sending = ExpertLayout(self.mesh.ranks, len(layer.up)), sending
        slices, rank = self.layout.slices, self.mesh.rank
        wide, (_, dim, hidden) = layer.up.shape[1], layer.down.shape
        if hidden % slices:
            raise TightropeError(f"hidden={hidden} does not divide into the {slices} slices of an expert.")
        if slices > 1 and layer.up_bias is not None:
            raise TightropeError(
                f"An expert is cut into {slices} slices, and its bias cannot be. Use bias=False."
            )
        self.router, self.activation, self.gated = layer.router, layer.activation, layer.gated
        self.k, self.noise, self.capacity, self.rows = layer.k, layer.noise, layer.capacity, sending.rows
        first = rank * self.layout.local if slices == 1 else rank // slices
        held, part = slice(first, first + self.layout.local), rank % slices
        own_up = layer.up.detach()[held].view(-1, wide // hidden, slices, hidden // slices, dim)[:, :, part]
        own_down = layer.down.detach()[held].view(-1, dim, slices, hidden // slices)[:, :, part]
        self.up, self.down = nn.Parameter(own_up.flatten(1, 2).clone()), nn.Parameter(own_down.clone())
        self.up_bias, self.down_bias = (
            None if one is None else nn.Parameter(one.detach()[held].clone())
            for one in (layer.up_bias, layer.down_bias)
        )

    def begin(self, tokens: Tensor, chosen: Tensor, gates: Tensor) -> _Step:
        """Agree on a step with all ranks; where one refuses, or settings differ, raise on every rank."""
        routing, wrong = None, None
        try:
            if tokens.dtype != self.up.dtype:
                raise TightropeError(f"Tokens are {tokens.dtype} and experts {self.up.dtype}. Give one type.")
            check_gates(gates)
            routing = routed(chosen, self.layout.experts)
        except Exception as error:  # whatever it is: others wait for this rank
            wrong = error
        every = self._agreed(routing, wrong)
        assert routing is not None
        try:
            self.seen = Traffic(self.layout, every, self.sending)
        except TightropeError as error:  # equal on all ranks
            raise RankError(str(error)) from error
        num = self.layout.copies(self.sending.degree)

        def act(before: Tensor) -> Tensor:  # of rows that are several slices, one behind the other
            made = self._act(before.reshape(len(before) * num, before.shape[1] // num))
            return made.reshape(len(before), num * made.shape[1])

        return _Step(self.mesh, self.seen, routing, act if num > 1 else self._act)

    def own(self) -> list[Tensor]:
        """Return what this rank holds of the experts, in the order of `Weights`."""
        return [one for one in (self.up, self.down, self.up_bias, self.down_bias) if one is not None]

    def gathered(self, own: Sequence[Tensor], degree: int) -> Weights:
        """Gather the weights that this rank multiplies with at a degree."""
        num, cut = self.layout.sharing(degree), self.layout.copies(degree)
        up, down, *biases = (self.mesh.among(one.expand(num, *one.shape)).flatten(0, 1) for one in own)
        wide = up.view(-1, cut, *up.shape[1:]).flatten(1, 2)  # of (experts, slices, W, M)
        inner = down.view(-1, cut, *down.shape[1:]).transpose(1, 2).flatten(2)  # of (experts, slices, M, H)
        return Weights(wide, inner, *biases)

    def reduced(self, sums: list[Tensor], degree: int) -> list[Tensor]:
        """Bring sums of gradients to the ranks that hold the weights; the inverse of `gathered`."""
        num, cut = self.layout.sharing(degree), self.layout.copies(degree)
        sums[1] = sums[1].reshape(-1, self.down.shape[1], cut, self.down.shape[2]).transpose(1, 2)
        parts = (one.reshape(num, *own.shape) for one, own in zip(sums, self.own(), strict=True))
        came = (one[0] if num == 1 else self.mesh.among(one).sum(0) for one in parts)
        return [one.div_(self.mesh.ranks) for one in came]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def mixed(self, tokens: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        """Send tokens (T, M) to the ranks of the experts that `route` chose, and sum what comes back."""
        step = self.begin(tokens, chosen, gates)
        made: Tensor = _Across.apply(self, step, tokens, gates.to(tokens.dtype), *self.own())  # type: ignore[no-untyped-call]
        return made

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def refuse(self, said: str) -> None:
        """Raise an error on all ranks."""
        self._agreed(None, TightropeError(said))

    def _agreed(self, routing: Routing | None, wrong: Exception | None) -> Counts:
        """Return rows of all ranks by expert; where a rank refuses, no other numbers are looked at."""
        one, num = self.sending, self.layout.experts
        counts = routing.counts if routing else [0] * num
        every = self.mesh.agreed([*counts, one.degree, one.parts, one.most, one.keep], wrong)
        if (every[:, num:] != every[0, num:]).any():
            raise RankError("Settings differ between ranks. Give every rank the same.")
        return every[:, :num]
