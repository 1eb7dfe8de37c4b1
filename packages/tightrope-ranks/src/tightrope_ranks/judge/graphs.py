"""Check a plan for the messages of a graph over ranks, by the edges of the graph alone.

Idea        Every edge between two owners needs one row on one route. All bytes are added up again, and the
            plan is played buffer by buffer.
Guarantee   An accepted plan sends every row that is needed exactly once to each rank that needs it, forward
            and backward, in widths that exist; bytes sent, bytes held, the limit and the bound are as
            claimed.
Complexity  Linear in edges and messages.
"""

from collections import Counter
from collections.abc import Sequence

from tightrope.core.errors import JudgeError
from tightrope_ranks.values.graphs import HOLDS, GraphPlan

_BITS = (2, 4, 8, 32)


def check_graph_plan(edges: Sequence[Sequence[int]], plan: GraphPlan) -> None:
    """Refuse a plan that leaves out a row, sends one twice, breaks the limit, or claims a wrong figure.

    Args:
        edges: where edges start, and where they end.
        plan: to be checked.

    Raises:
        JudgeError: says what is wrong.
    """
    _check_shape(plan)
    _check_routes(edges, plan)
    sizes = _check_messages(plan)
    sent = [0] * plan.ranks
    for (layer, backward, number), size in sizes.items():
        route = plan.routes[number]
        again = not backward and plan.holds[route.target][layer] == "fetched" and layer > 0
        twice = again or (not backward and layer == 0 and plan.held[0])
        sent[route.target if backward else route.source] += size * (2 if twice else 1)
    if tuple(sent) != plan.sent:
        raise JudgeError(f"graph: the plan claims {plan.sent} bytes sent; its messages have {tuple(sent)}.")
    peaks = tuple(_Played(plan, sizes, rank).most for rank in range(plan.ranks))
    if peaks != plan.peaks:
        raise JudgeError(f"graph: the plan claims {plan.peaks} bytes held; played, it takes {peaks}.")
    if plan.limit is not None and max(peaks) > plan.limit:
        raise JudgeError(f"graph: {max(peaks)} bytes are held; the limit is {plan.limit}.")
    bound, objective = plan.bound
    if not (0 <= bound <= objective * (1 + 1e-9) < float("inf") and 0 <= plan.seconds < float("inf")):
        raise JudgeError(f"graph: seconds {plan.seconds!r} or bound {plan.bound!r} cannot be right.")


def _check_shape(plan: GraphPlan) -> None:
    layers = len(plan.columns)
    if not layers or min(plan.columns) < 1 or len(plan.held) != layers or len(plan.peaks) != plan.ranks:
        raise JudgeError("graph: the plan has no layer, or a layer without columns.")
    if (
        not plan.owner
        or min(plan.owner) < 0
        or len(set(plan.owner)) != plan.ranks
        or max(plan.owner) >= plan.ranks
    ):
        raise JudgeError(f"graph: owners of nodes must be all of the ranks 0 to {plan.ranks - 1}.")
    if len(plan.holds) != plan.ranks or any(len(holds) != layers for holds in plan.holds):
        raise JudgeError("graph: every rank needs a choice for each layer's halo.")
    for rank, holds in enumerate(plan.holds):
        for layer, hold in enumerate(holds):
            allowed = ("kept", "fetched") if layer == 0 else HOLDS[1:] if plan.held[layer] else HOLDS[:1]
            if hold not in allowed:
                raise JudgeError(f"graph: rank {rank} has {hold!r} for the halo of layer {layer}.")


def _check_routes(edges: Sequence[Sequence[int]], plan: GraphPlan) -> None:
    if len(edges) and len(edges[0]) and max(map(max, edges)) >= len(plan.owner):
        raise JudgeError(f"graph: an edge names node {max(map(max, edges))}; {len(plan.owner)} have owners.")
    needed = {
        (plan.owner[a], plan.owner[b], int(a))
        for a, b in zip(*edges, strict=True)
        if plan.owner[a] != plan.owner[b]
    }
    there = Counter((route.source, route.target, row) for route in plan.routes for row in route.rows)
    for source, target, row in needed - set(there):
        raise JudgeError(f"graph: rank {target} needs row {row} of rank {source}; no route has it.")
    for (source, target, row), times in there.items():
        if times > 1 or (source, target, row) not in needed:
            raise JudgeError(f"graph: row {row} goes {times} times from rank {source} to {target}, in vain.")
    pairs = [(route.source, route.target) for route in plan.routes]
    if pairs != sorted(set(pairs)) or not all(route.rows for route in plan.routes):
        raise JudgeError("graph: routes must be in order, once each, and not empty.")


def _check_messages(plan: GraphPlan) -> dict[tuple[int, bool, int], int]:
    expected = {
        (layer, backward, number)
        for layer in range(len(plan.columns))
        for backward in (False, True)
        for number, route in enumerate(plan.routes)
        if layer or (not backward and plan.holds[route.target][0] == "fetched")
    }
    sizes = {}
    for one in plan.messages:
        key = one.layer, one.backward, one.route
        if key in sizes or key not in expected:
            raise JudgeError(f"graph: message {key} is there twice, or is not needed.")
        rows, columns = plan.routes[one.route].rows, plan.columns[one.layer]
        if len(one.widths) != len(rows) or not set(one.widths) <= set(_BITS):
            raise JudgeError(
                f"graph: message {key} needs one of the widths {_BITS} for each of {len(rows)} rows."
            )
        size = sum(4 * columns if bits == 32 else 6 + (columns * bits + 7) // 8 for bits in one.widths)
        if size != one.sent:
            raise JudgeError(f"graph: message {key} claims {one.sent} bytes; its rows have {size}.")
        sizes[key] = size
    if len(sizes) != len(expected):
        raise JudgeError(f"graph: {len(expected) - len(sizes)} messages are missing.")
    return sizes


class _Played:
    """The buffers of one rank over the start, an epoch and an evaluation."""

    def __init__(self, plan: GraphPlan, sizes: dict[tuple[int, bool, int], int], rank: int) -> None:
        self.plan, self.sizes, self.rank = plan, sizes, rank
        self.now = self.most = 0
        self.rows = sum(len(route.rows) for route in plan.routes if route.target == rank)
        self.mine = plan.holds[rank]
        self.stays = self.mine[0] == "kept"
        self.hold(self.floats(0, kept=True) + 2 * self.halo(0) * self.stays)
        self.now = self.halo(0) * self.stays
        layers = range(len(plan.columns))
        for layer in layers:
            self.message(layer, exact=True)
        for layer in layers:
            self.forward(layer)
        for layer in reversed(layers):
            self.backward(layer)

    def hold(self, more: int) -> None:
        self.most = max(self.most, self.now + more)

    def halo(self, layer: int) -> int:
        return 4 * self.rows * self.plan.columns[layer]

    def floats(self, layer: int, *, kept: bool = False) -> int:
        return sum(
            4 * len(route.rows) * self.plan.columns[layer]
            for route in self.plan.routes
            if route.source == self.rank
            and (layer > 0 or (self.plan.holds[route.target][0] == "kept") == kept)
        )

    def sent(self, layer: int, *, again: bool) -> tuple[int, int]:
        """Bytes that leave and that arrive, where all ranks get a message or those that fetch alone."""
        leave = arrive = 0
        for number, route in enumerate(self.plan.routes):
            if (again or layer == 0) and self.plan.holds[route.target][layer] != "fetched":
                continue
            leave += self.sizes[layer, False, number] * (route.source == self.rank)
            arrive += self.sizes[layer, False, number] * (route.target == self.rank)
        return leave, arrive

    def message(self, layer: int, *, exact: bool = False, again: bool = False) -> int:
        """Send and receive rows; give the bytes that arrived."""
        leave, arrive = self.sent(layer, again=again)
        comes = layer > 0 or not self.stays
        if exact:
            leave, arrive = self.floats(layer), self.halo(layer) * comes
        self.hold(leave + arrive + self.halo(layer) * (comes and (not again or arrive > 0)))
        return arrive

    def forward(self, layer: int) -> None:
        arrived = self.message(layer)
        if layer and self.mine[layer] == "kept":
            self.hold(2 * self.halo(layer))
            self.now += self.halo(layer)
        if self.mine[layer] == "packed":
            self.now += arrived

    def backward(self, layer: int) -> None:
        joined = 0
        if self.plan.held[layer]:
            self.message(layer, again=True)
            joined = self.halo(layer) * (layer > 0)
            if layer and self.mine[layer] != "fetched":
                arrived = sum(
                    self.sizes[layer, False, number]
                    for number, route in enumerate(self.plan.routes)
                    if route.target == self.rank
                )
                self.hold(joined)
                self.now -= arrived if self.mine[layer] == "packed" else joined
        if layer:
            gradients = sum(
                self.sizes[layer, True, number]
                for number, route in enumerate(self.plan.routes)
                if self.rank in (route.source, route.target)
            )
            self.hold(joined + self.halo(layer) + gradients)
