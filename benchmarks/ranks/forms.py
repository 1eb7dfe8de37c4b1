"""P3, P5, P6: the simulator against closed forms and the published claims (layer: simulated)."""

from benchmarks.micro.rows import Row
from benchmarks.ranks import units
from tightrope_ranks.pipeline import Orders, breadth_first, gpipe, looped, simulate, with_wires
from tightrope_ranks.pipeline._torch import torch_orders
from tightrope_ranks.pipeline.language import Action
from tightrope_ranks.values.ranks import StageWork


def utilisation(work: StageWork, orders: Orders, latency: float) -> float:
    """Share of the time in which the busiest rank computes."""
    timeline = simulate(work, units.machine(latency), orders)
    return max(timeline.busy) / timeline.ns


def bubbles(quick: bool) -> list[Row]:
    """P3: idle time of breadth-first orders is (P - 1) / (M V) of the ideal time."""
    worst, cases = 0.0, 0
    for ranks in (2, 4, 16) if quick else range(2, 17):
        for per_rank in (1, 3, 8) if quick else range(1, 9):
            for micro in sorted({ranks, ranks + 1, 2 * ranks, 8 * ranks}):
                work = units.work(looped(ranks, per_rank), ranks * per_rank, micro)
                found = utilisation(work, with_wires(work, breadth_first(ranks, per_rank, micro)), 0)
                form = 1 / (1 + (ranks - 1) / (micro * per_rank))
                worst, cases = max(worst, abs(found / form - 1)), cases + 1
    # gpipe is the case V = 1 by another generator
    work = units.work(looped(8, 1), 8, 16)
    same = abs(utilisation(work, with_wires(work, gpipe(8, 16)), 0) * (1 + 7 / 16) - 1) < 0.01
    said = f"largest error {100 * worst:.4f} % over {cases} cases (simulated)"
    return [Row("P3", "bubble (P-1)/(MV) to 1 %, P 2..16, V 1..8, M P..8P", said, worst <= 0.01 and same)]


def claims(quick: bool) -> list[Row]:
    """P5: the direction of the paper's claims, over the orders of torch."""
    best = 0.0
    at = 0
    for micro in range(8, 13):
        mine = units.work(looped(8, 8), 64, micro, gather=6, reduce=6, replicas=2, sharded=True)
        theirs = units.work(looped(8, 1), 64, micro, reduce=12, replicas=2)
        ours = simulate(mine, units.machine(0.25), with_wires(mine, breadth_first(8, 8, micro))).ns
        peer = simulate(theirs, units.machine(0.25), torch_orders("1F1B", 8, 1, micro)).ns
        if micro == 9:
            at_nine = peer / ours
        if peer / ours > best:
            best, at = peer / ours, micro
    micro = 64
    mine = units.work(looped(8, 8), 64, micro, gather=6, reduce=6, replicas=2, sharded=True)
    ours = simulate(mine, units.machine(0.25), with_wires(mine, breadth_first(8, 8, micro))).ns
    order = torch_orders("Interleaved1F1B", 8, 8, micro, sharded=True)
    peer = simulate(mine, units.machine(0.25), order).ns
    return [
        Row(
            "P5",
            ">= 1.43x over 1F1B at M <= 12, P = 8, network-bound",
            f"{best:.2f}x at M = {at}, {at_nine:.2f}x at M = 9 (simulated)",
            best >= 1.43,
            "torch's 1F1B, one all-reduce per stage",
        ),
        Row(
            "P5",
            ">= 1.09x over interleaved with divided parameters at M = 64",
            f"{peer / ours:.3f}x (simulated)",
            peer / ours >= 1.09,
            "torch's Interleaved1F1B with its own gathers",
        ),
    ]


def _gathers(orders: Orders) -> int:
    return max(sum(Action(*one).kind == "UNSHARD" for one in row) for row in orders)


def gathers(quick: bool) -> list[Row]:
    """P6: gathers per rank and step of breadth-first orders."""
    most = 0.0
    for ranks in (2, 4, 8):
        for per_rank in (2, 4, 8):
            for micro in (ranks, ranks + 3, 4 * ranks, 64):
                work = units.work(looped(ranks, per_rank), ranks * per_rank, micro, replicas=2, sharded=True)
                for mirrored in (False, True):
                    order = breadth_first(ranks, per_rank, micro, mirrored=mirrored)
                    most = max(most, _gathers(with_wires(work, order)) / (2 * per_rank))
    work = units.work(looped(8, 8), 64, 64, replicas=2, sharded=True)
    ours = _gathers(with_wires(work, breadth_first(8, 8, 64)))
    peer = _gathers(torch_orders("Interleaved1F1B", 8, 8, 64, sharded=True))
    return [
        Row(
            "P6",
            "<= 2V gathers per rank, independent of M; >= 6x fewer than interleaved at M = 64",
            f"at most {most:.2f} x 2V; {ours} at M = 64, P = V = 8: {peer / ours:.1f}x fewer (counted)",
            most <= 1 and peer / ours >= 6,
            f"torch's Interleaved1F1B: {peer}",
        )
    ]
