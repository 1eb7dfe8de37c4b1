"""E1 and E2: what `tightrope estimate --ranks` tells from shapes, for many ranks and beside measures."""

import resource
import time

import torch

from benchmarks.micro.rows import Row
from examples import gpt2_on_four_ranks as example
from tightrope.core import DeviceLink, Machine, Tier
from tightrope.judge.ranks import judge_ranks
from tightrope.parallel.pipeline.estimate import SECONDS, estimate_ranks
from tightrope.parallel.pipeline.measure import measure_layers, shape_layers
from tightrope.parallel.pipeline.search import PipelineOptions

LINKS = (
    DeviceLink("inside", latency=5e-6, bandwidth=400e9, span=8),
    DeviceLink("between", latency=10e-6, bandwidth=40e9, level=1),
)
WIDTH, ROWS = 4096, 2048


def machine(devices: int) -> Machine:
    """A cluster of nodes of eight devices with 80 GB each."""
    memory = Tier("hbm", 80_000_000_000, read=3.35e12)
    return Machine("cluster", (memory,), {"matmul": 300e12}, devices=devices, links=LINKS)


def layers(num: int) -> list[torch.nn.Module]:
    """Transformer layers on the meta device."""
    return [
        torch.nn.TransformerEncoderLayer(WIDTH, 32, 4 * WIDTH, dropout=0.0, batch_first=True, device="meta")
        for _ in range(num)
    ]


def rows_many(quick: bool) -> list[Row]:
    """E1: many ranks, judged, without memory for tensors."""
    ranks = 256 if quick else 1024
    x = torch.empty(1, ROWS, WIDTH, device="meta")
    options = PipelineOptions(ascending=True, split=False, seconds=SECONDS)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = estimate_ranks(
        layers(32), x, ranks=ranks, machine=machine(ranks), optimizer_states=2.0, options=options
    )
    seconds = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    verdict = judge_ranks(found.plan)
    layout, held = found.layout, sum(one.state + one.parameters for one in found.plan.work.stages)
    computed = sum(one.compute_ns for one in found.takes)
    fits = max(verdict.peaks) <= found.limit and verdict.ns * layout.pipeline >= computed
    return [
        Row(
            "E1",
            f"32 transformer layers of {WIDTH} on {ranks} ranks, Adam: layout, bytes and time per rank from "
            "shapes, judged, within 80 GB",
            f"pipeline of {layout.pipeline} times {layout.replicas} replicas, {found.plan.method}: "
            f"{verdict.ns / 1e6:.0f} ms, {max(verdict.peaks) / 1e9:.1f} GB at most, "
            f"{len(found.tried)} layouts in {seconds:.1f} CPU-seconds, "
            f"{grown:.0f} MiB for a model of {held / 1e9:.0f} GB (simulated)",
            fits and all(one.ns is None or one.ns >= verdict.ns for one in found.tried),
        )
    ]


def rows_bytes(quick: bool) -> list[Row]:
    """E2: bytes kept by GPT-2's layers, from shapes and by the allocator that counts."""
    del quick
    ids = example.batch()[: example.ROWS]
    shaped = shape_layers(example.layers(), ids, machine(4))
    measured = measure_layers(example.layers(), ids, ids, example.loss)
    off = [
        100 * (told.saved - seen.saved) / seen.saved
        for told, seen in list(zip(shaped, measured, strict=True))[1:-1]
    ]
    held = all(told.parameters == seen.parameters for told, seen in zip(shaped, measured, strict=True))
    worst = max(off, key=abs)
    return [
        Row(
            "E2",
            "bytes that blocks of GPT-2 keep, from shapes: within 5 % of the allocator's; parameters equal",
            f"{len(off)} blocks, at most {worst:+.2f} %; parameters {'equal' if held else 'differ'}",
            held and abs(worst) <= 5,
        )
    ]
