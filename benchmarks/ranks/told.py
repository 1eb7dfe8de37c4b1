"""E1 to E3: what `tightrope ranks` tells from shapes, for many ranks and beside measures."""

import itertools
import resource
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from benchmarks.micro.rows import Row
from benchmarks.ranks.example import load_example
from tightrope.core import DeviceLink, Machine, Tier
from tightrope.native.hook.allocator import allocator
from tightrope_ranks.judge.ranks import judge_ranks
from tightrope_ranks.pipeline.estimate import SECONDS, estimate_ranks
from tightrope_ranks.pipeline.measure import measure_layers, shape_layers
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.segments import list_of_layers, segment_costs

example = load_example()
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


def models() -> dict[str, tuple[Any, int]]:
    """Models of transformers with random weights, and the most tokens of a row."""
    gpt2 = GPT2Config(n_layer=4, n_positions=256, use_cache=False)
    llama = LlamaConfig(
        num_hidden_layers=4, hidden_size=512, intermediate_size=1376, num_attention_heads=8, vocab_size=4000,
        use_cache=False,
    )  # fmt: skip
    return {"GPT-2": (GPT2LMHeadModel(gpt2), 256), "Llama": (LlamaForCausalLM(llama), 256)}


def kept(model: Any, given: dict[str, torch.Tensor]) -> list[int]:
    """Bytes that stay with every layer but the last, its output with them, as the allocator counts them."""
    hook, seen, handles = allocator(), [], []
    for layer in list_of_layers(model)[1]:
        handles.append(layer.register_forward_pre_hook(lambda *_: seen.append(hook.stats().heap_live)))
    output = model(**given)
    del output
    for handle in handles:
        handle.remove()
    return [after - before for before, after in itertools.pairwise(seen)]


def rows_models(quick: bool) -> list[Row]:
    """E3: bytes kept by whole models of transformers, cut at their lists of layers."""
    del quick
    said, worst, held = [], 0.0, True
    for name, (model, length) in models().items():
        ids = torch.randint(4000, (2, length), generator=torch.Generator().manual_seed(0))
        given = {"input_ids": ids, "labels": ids}
        told = segment_costs(model, (), given, machine=machine(4))
        hidden = 4 * ids.numel() * model.config.hidden_size
        off = [
            100 * (one.saved + hidden - seen) / seen
            for one, seen in zip(told.costs[1:-2], kept(model, given), strict=True)
        ]
        worst = max([worst, *off], key=abs)
        twice = sum(4 * model.get_parameter(one).numel() for one in told.shared)
        held &= sum(one.parameters for one in told.costs) - twice == sum(
            4 * p.numel() for p in model.parameters()
        )
        said.append(f"{name} {max(off, key=abs):+.2f} %")
    return [
        Row(
            "E3",
            "bytes that layers of whole models keep, from shapes: within 5 % of the allocator's; parameters "
            "equal",
            f"{', '.join(said)}; parameters {'equal' if held else 'differ'}",
            held and abs(worst) <= 5,
        )
    ]
