"""A2 and A3: the paper's four model sizes, planned; simulated, on a table's rates.

Activations are what the arena holds: gradients of parameters live in buffers of their own, as where they are
accumulated. ``none`` = sequence parallelism that gathers again, nothing else twice.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from benchmarks.micro.rows import Row
from tightrope.core import DeviceLink, Graph, InfeasibleError, Machine, Phase, Schedule
from tightrope.lower import lower, simulate
from tightrope.lower.simulate import Figures
from tightrope.plan import solve
from tightrope_ranks.sequence import (
    Division,
    capture_rank,
    cores_again,
    flops,
    gather_again,
    is_collective,
    layer_bytes,
    layers_again,
    priced,
    saved_bytes,
    schedule_of,
)
from tightrope_shared.attention import TransformerShape

SIZES: Final = {"22B": (64, 6144, 4), "175B": (96, 12288, 1), "530B": (128, 20480, 1), "1T": (160, 25600, 1)}
"""a, h, b."""
RATIOS: Final = {"22B": 6.196, "175B": 5.412, "530B": 4.941, "1T": 4.941}
RANKS: Final = 8
LINK: Final = DeviceLink("nvlink", latency=5e-6, bandwidth=250e9)
"""Of an A100: 600 GB/s both ways together; 250 GB/s each way are assumed to be reached."""


@cache
def machine() -> Machine:
    """The device whose rates price the ops."""
    return Machine.parse(files("tightrope").joinpath("machines", "a100-80gb.toml").read_text())


@dataclass(frozen=True)
class Rank:
    """One rank's graph, and the figures of schedules for it.

    Attributes:
        shape: of the model.
        graph: priced.
    """

    shape: TransformerShape
    graph: Graph

    @property
    def once(self) -> float:
        """Operations of the forward."""
        return sum(flops(op) for op in self.graph.ops if op.phase is Phase.FORWARD)

    def figures(self, schedule: Schedule) -> Figures:
        """Bytes and time."""
        return simulate(lower(self.graph, schedule))

    def extra(self, schedule: Schedule) -> float:
        """Operations that run again, in percent of the forward's."""
        total = sum(flops(self.graph.op(op)) for op in schedule.computes())
        return 100 * (total - sum(flops(op) for op in self.graph.ops)) / self.once

    def gathers(self, schedule: Schedule) -> int:
        """Collectives that run again."""
        return sum(is_collective(self.graph.op(op)) for op in schedule.computes()) - sum(
            is_collective(op) for op in self.graph.ops
        )

    def plan(self, arena: float) -> Schedule | None:
        """Plan with so many bytes for activations; None where no plan fits."""
        outside = self.figures(schedule_of(self.graph)).outside
        try:
            return solve(self.graph, budget=int(self.graph.persistent + outside + arena)).schedule
        except InfeasibleError:
            return None

    @property
    def unit(self) -> float:
        """S b h / t bytes, for all layers."""
        shape = self.shape
        return shape.s * shape.b * shape.h * shape.layers / shape.t


def rank_of(size: str, num_layers: int, mode: str) -> Rank:
    """Capture and price one rank of a model."""
    heads, hidden, batch = SIZES[size]
    shape = TransformerShape(s=2048, b=batch, h=hidden, a=heads, layers=num_layers, t=RANKS)
    graph = capture_rank(shape, Division(mode=mode, ranks=RANKS))  # type: ignore[arg-type]
    return Rank(shape, priced(graph, machine(), LINK))


def a2(quick: bool) -> list[Row]:
    """Plan at the share of memory that the paper's two techniques leave, and compare operations."""
    rows = []
    for size in ("22B",) if quick else SIZES:
        rank = rank_of(size, 8 if quick else 24, "sequence")
        graph = rank.graph
        gathers = gather_again(graph)
        none = rank.figures(schedule_of(graph, gathers))
        paper = schedule_of(graph, gathers, cores_again(graph))
        share = layer_bytes(rank.shape, "sequence+selective") / layer_bytes(rank.shape, "sequence")
        found = rank.plan(share * none.arena)
        limit = 5.3 if size == "22B" else 3.0
        claim = f"at {share:.3f} of no-recompute memory, recompute <= {limit} % of the forward's operations"
        if found is None:
            rows.append(Row("A2", claim, f"{size}: no plan", False))
            continue
        ours, theirs = rank.figures(found), rank.figures(paper)
        rows.append(
            Row(
                "A2",
                claim,
                f"{size}, {rank.shape.layers} layers, t={RANKS}, simulated: {rank.extra(found):.2f} %, arena "
                f"{ours.arena / none.arena:.3f} of none, saved {saved_bytes(graph, found) / rank.unit:.1f} "
                f"sbh/t, step {ours.ns / none.ns:.3f} of none, {rank.gathers(found)} collectives again",
                rank.extra(found) <= limit and ours.arena <= share * none.arena,
                f"selective by rule: {rank.extra(paper):.2f} %, arena {theirs.arena / none.arena:.3f}, "
                f"step {theirs.ns / none.ns:.3f}, {rank.gathers(paper)} collectives again",
            )
        )
    return rows


def a3(quick: bool) -> list[Row]:
    """Reproduce the paper's ratio, and plan at the memory of selective recomputation instead of full."""
    rows = []
    for size in ("22B",) if quick else SIZES:
        tensor, rank = rank_of(size, 4, "tensor"), rank_of(size, 4, "sequence")
        graph = rank.graph
        gathers, cores = gather_again(graph), cores_again(graph)
        paper = schedule_of(graph, gathers, cores)
        ratio = saved_bytes(tensor.graph, schedule_of(tensor.graph)) / saved_bytes(graph, paper)
        before = tensor.figures(schedule_of(tensor.graph)).ns
        full = tensor.figures(schedule_of(tensor.graph, layers_again(tensor.graph))).ns - before
        same = rank.figures(schedule_of(graph, gathers)).ns
        wide = rank.figures(schedule_of(graph, layers_again(graph))).ns - same
        found = rank.plan(rank.figures(paper).arena)
        ours = rank.figures(paper if found is None else found).ns
        removed, inside = 1 - (ours - before) / full, 1 - (ours - same) / wide
        rows.append(
            Row(
                "A3",
                f"saved bytes {RATIOS[size]:.1f} times fewer; >= 90 % of full recomputation's overhead gone",
                f"{size}, t={RANKS}, simulated: {ratio:.3f} times fewer; {100 * removed:.1f} % gone (full on "
                f"tensor-parallel layers +{100 * full / before:.1f} %, plan {100 * (ours / before - 1):+.1f} "
                f"%); within sequence-parallel layers alone {100 * inside:.1f} %",
                abs(ratio / RATIOS[size] - 1) < 0.01 and removed >= 0.9 and found is not None,
                f"selective by rule: {100 * (1 - (rank.figures(paper).ns - before) / full):.1f} % gone",
            )
        )
    return rows
