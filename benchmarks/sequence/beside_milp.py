"""A5: plans beside torch's per-module MILP and beside layers by rule, at equal peaks; simulated.

The peer is `torch.distributed._tools`: its trackers look at one step on fake tensors, its MILP (PuLP) says
how much of each layer's activations to discard, and its own solver per module says which ops that recomputes.
Its costs are operations instead of a GPU's times. What it decides is written as re-runs of the same graph and
simulated; the peak that it really has is the budget of the others: every k-th layer by rule, and our plan.
"""

import contextlib
import io
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.micro.rows import Row
from benchmarks.sequence.sizes import Rank
from tightrope.core import DeviceLink, Graph, Machine, OpId, Phase, Schedule, Tier
from tightrope_ranks.sequence import Division, Stack, capture_rank, layers_again, priced, schedule_of
from tightrope_ranks.sequence.policies import ops_again
from tightrope_shared.attention import TransformerShape

MODELS: Final = (
    TransformerShape(s=256, b=4, h=256, a=8, layers=8),
    TransformerShape(s=512, b=2, h=128, a=8, layers=12),
)
SHARES: Final = (0.85, 0.7, 0.6, 0.5, 0.4)
"""Of the peak without recomputation, by the peer's own tracker."""
COUNTING: Final = Machine("operations", (Tier("memory", 1 << 50, read=1e15),), {"matmul": 1e10})
"""Prices that are operations: whatever is no product is nearly free."""
MISSING: Final = "peer not installed: pip install pulp pwlf"


def a5(quick: bool) -> list[Row]:
    """Compare at every budget that the peer finds a plan for."""
    return [row for shape in MODELS[: 1 if quick else None] for row in _compare(shape)]


def _compare(shape: TransformerShape) -> list[Row]:
    claim = (
        "recompute operations <= the per-module MILP's and the best every-k-th-layer rule's, at equal peak"
    )
    title = f"s={shape.s} b={shape.b} h={shape.h} a={shape.a}, {shape.layers} layers"
    graph = priced(
        capture_rank(shape, Division(), dropout=0.0, dtype=torch.float32), COUNTING, DeviceLink("none")
    )
    rank = Rank(shape, graph)
    none = rank.figures(schedule_of(graph)).arena
    rules = [schedule_of(graph, layers_again(graph, rule)) for rule in _rules(shape.layers)]
    by_rule = [(rank.figures(rule).arena, rank.extra(rule)) for rule in (schedule_of(graph), *rules)]
    try:
        peer = _Peer(shape)
    except ImportError:
        return [Row("A5", claim, f"{title}: {MISSING}", False)]
    rows = []
    for share in SHARES:
        theirs = peer.schedule(graph, share)
        if theirs is None:
            continue
        peak, cost = rank.figures(theirs).arena, rank.extra(theirs)
        found = rank.plan(peak)
        rule = min((extra for bytes_, extra in by_rule if bytes_ <= peak), default=float("inf"))
        ours = float("inf") if found is None else rank.extra(found)
        rows.append(
            Row(
                "A5",
                claim,
                f"{title}, peak {peak / none:.3f} of none, simulated: {ours:.2f} % of the forward's",
                ours <= cost and ours <= rule,
                f"MILP {cost:.2f} %, best rule {rule:.2f} %",
            )
        )
    return rows


def _rules(num_layers: int) -> list[Callable[[int], bool]]:
    """Every k-th layer, all but every k-th, and the first k: for every k."""
    found: list[Callable[[int], bool]] = []
    for k in range(1, num_layers + 1):
        found += [lambda n, k=k: n % k == 0, lambda n, k=k: n % k != 0, lambda n, k=k: n < k]  # type: ignore[misc]
    return found


class _Peer:
    """torch's trackers and MILP for one model."""

    def __init__(self, shape: TransformerShape) -> None:
        from torch.distributed._tools import ilp_utils, mem_tracker, runtime_estimator, sac_estimator, sac_ilp

        self.milp, self.policy, self.shape = (
            sac_ilp.sac_milp,
            sac_ilp.get_optimal_checkpointing_policy_per_module,
            shape,
        )
        estimator: Any = runtime_estimator.RuntimeEstimator
        estimator._roofline_estimate = classmethod(_operations)
        with FakeTensorMode(), contextlib.redirect_stdout(io.StringIO()):
            model = Stack(shape.layers, shape.h, shape.a, shape.s, Division())
            rows = torch.randn(shape.s, shape.b, shape.h, requires_grad=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

            def step() -> None:
                model(rows).sum().backward()
                optimizer.zero_grad()

            step()
            memory = mem_tracker.MemTracker()
            memory.track_external(model, optimizer, rows)
            with memory:
                step()
            runtime = estimator()
            with runtime("operator-level-cost-model"):
                step()
            self.sac = sac_estimator.SACEstimator()
            with self.sac("operator-level-cost-model"):
                model(rows)
            info = ilp_utils.aggregate_stats(model, memory, runtime, self.sac, torch.device("cpu"))
            self.tree = ilp_utils.parse_module_info(info)
            self.peak, _ = ilp_utils.get_peak_memory_runtime_baseline(self.tree)
        self.units = [node["fqn"] for node in self.tree.nodes if node["fqn"].rpartition(".")[2].isdigit()]

    def schedule(self, graph: Graph, share: float) -> Schedule | None:
        """What it decides with a share of the peak, as re-runs of a graph."""
        found, _, peak = self.milp(self.tree, share * self.peak / 2**30, ac_units=self.units)
        if peak < 0:
            return None
        groups = []
        for unit, discard in found.items():
            stats = self.sac.sac_mod_stats[unit]
            saves = self.policy(stats, 1 - discard)
            groups.append(_matched(graph, int(unit.rpartition(".")[2]), stats.func_names, saves))
        return schedule_of(graph, ops_again(graph, groups))


def _matched(graph: Graph, layer: int, names: list[str], saves: list[int]) -> tuple[OpId, ...]:
    """The forward ops of a layer that decisions about a list of op names recompute.

    The list has views, which are no ops of the graph, and no clones, which the peer never saves.
    """
    mine = [op for op in graph.ops if op.phase is Phase.FORWARD and f"layers.{layer}" in _prefixes(op.module)]
    decided = iter(zip(names, saves, strict=True))
    again = []
    for op in mine:
        name = op.target.split(".")[1]
        kept = name != "clone" and next(bool(kept) for found, kept in decided if found == name)
        again += [] if kept else [op.id]
    return tuple(again)


def _prefixes(path: str) -> set[str]:
    parts = path.split(".")
    return {".".join(parts[:k]) for k in range(1, len(parts) + 1)}


def _operations(cls: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    """The result of a call, and its operations in place of its time: 10^9 are one millisecond."""
    del cls
    kwargs = kwargs or {}
    out = func(*args, **kwargs)
    count = flop_registry.get(func._overloadpacket)
    flops = count(*args, **kwargs, out_val=out) if count is not None else 0
    bytes_ = sum(x.nbytes for x in tree_leaves(out) if isinstance(x, torch.Tensor))
    return out, flops / 1e9 + bytes_ / 1e12
