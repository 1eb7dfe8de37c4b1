"""E4, B2: forecasts of steps whose times and bytes others published, compared with these.

Source: torchtitan's pages on performance (Llama 2 and 3 on 64 A100 in 2024; Llama 3.1 on H100 of 96 GB at the
end of 2024 and in June 2025); table 5 of Korthikanti et al. 2022 (A100 of 80 GB, everything computed again).
The table's times are recalled, and were not compared with the paper. Every second layer is computed again
where torchtitan says selective by layer. Of a batch torchtitan makes as many micro-batches as a pipeline has
ranks. What it computes in float8 counts for bytes alone: no profile has such rates. The network of its A100
is not said: 25 GB/s per device are assumed, as in the paper; 240 and 360 GB/s inside of nodes. Bytes are
those that torch's allocator kept, which torchtitan prints (``metrics.py``); its commit of these tables did
not compile the loss, and its settings of 405B gather parameters in float8. Two tables report 405B in 1F1B
with as many tokens per rank, 9 % apart. Three of torchtitan's steps on A100 gave the profile its share of the
rate of products: the median of their forecasts at `BEST`, over their times. All others are unseen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.micro.rows import Row
from benchmarks.ranks.llama import llama
from tightrope.cli.machines import find_machine
from tightrope.core import DeviceLink, Machine
from tightrope.core.units import Bytes
from tightrope_ranks.pipeline.estimate import cut_model
from tightrope_ranks.pipeline.inside import num_keeping
from tightrope_ranks.pipeline.layouts import LayoutSearch
from tightrope_ranks.pipeline.precision import PRECISIONS
from tightrope_ranks.pipeline.rank_layout import RankLayout
from tightrope_ranks.pipeline.reserved import reserved
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.pipeline.segments import Segments
from tightrope_ranks.values.ranks import JointPlan

LINKS: Final = {
    "a100-80gb": (
        DeviceLink("inside", 5e-6, 240e9, span=8), DeviceLink("between", 1e-5, 25e9, level=1)
    ),
    "h100-80gb": (
        DeviceLink("inside", 5e-6, 360e9, span=8), DeviceLink("between", 1e-5, 50e9, level=1)
    ),
}  # fmt: skip
ALONE: Final = PipelineOptions((1,), ascending=True, split=False, again=False, seconds=0.0)
BEST: Final = 0.869
"""Share of the rate of products that the best of many shapes reaches on an A100."""
SHARE: Final = 0.15
"""Of a published time that a forecast may be off."""
GPT: Final = {
    "22B": (48, 6144, 64),
    "175B": (96, 12288, 96),
    "530B": (105, 20480, 128),
    "1T": (128, 25600, 160),
}
"""Layers, width, heads."""


@dataclass(frozen=True, slots=True)
class Published:
    """A step that was run elsewhere.

    Attributes:
        size: of the model.
        device: that it ran on.
        rows: of a micro-batch.
        length: tokens of a row.
        layout: of the ranks.
        seconds: that it took; 0 = it was computed in types that no profile has.
        gib: that the allocator of a rank kept at most; 0 = not said.
        again: share of the layers that are computed again.
        per_rank: stages of a rank.
        fitted: whether a profile was made with it.
        narrow: whether blocks gather their parameters in float8, as torchtitan's settings for 405B said.
    """

    size: str
    device: str
    rows: int
    length: int
    layout: RankLayout
    seconds: float = 0.0
    gib: float = 0.0
    again: float = 1.0
    per_rank: int = 1
    fitted: bool = False
    narrow: bool = False

    @property
    def ranks(self) -> int:
        """Devices in all."""
        return self.layout.pipeline * self.layout.alike * self.layout.tensor

    @property
    def name(self) -> str:
        """Say which."""
        sizes = "x".join(map(str, self.layout.sizes))
        again = "" if self.again == 1 else f", {self.again:.0%} again"
        return f"{self.size} on {sizes} {self.device.partition('-')[0]}, {self.length} tokens{again}"


def _fsdp(replicas: int, micro: int = 1, pipeline: int = 1, **inner: int) -> RankLayout:
    return RankLayout(pipeline, replicas, micro, by_layer=pipeline == 1, **inner)


def _long(size: str, micro: int, pipeline: int, tensor: int, gib: Sequence[float]) -> list[Published]:
    """List steps with longer and longer sequences, divided among more and more ranks."""
    return [
        Published(
            size, "h100-80gb", 1, 32768 * c,
            _fsdp(8 // c, micro, pipeline, tensor=tensor, context=c), gib=taken, narrow=size == "405B",
        )
        for c, taken in zip((1, 2, 4, 8), gib, strict=True)
    ]  # fmt: skip


STEPS: Final = (
    Published("13B", "a100-80gb", 2, 4096, _fsdp(64), 2 * 4096 / 2162, again=0, fitted=True),
    Published("13B", "a100-80gb", 2, 4096, _fsdp(64), 2 * 4096 / 1914, again=0.5),
    Published("8B", "a100-80gb", 1, 8192, _fsdp(64), 8192 / 2904, again=0.5),
    Published("Llama 2 70B", "a100-80gb", 2, 4096, _fsdp(64), 2 * 4096 / 353, fitted=True),
    Published("70B", "a100-80gb", 1, 8192, _fsdp(64), 8192 / 331, fitted=True),
    Published("22B", "a100-80gb", 4, 2048, RankLayout(1, 1, 1, tensor=8), 1.42),
    Published("175B", "a100-80gb", 1, 2048, RankLayout(8, 1, 64, tensor=8), 18.13, per_rank=3),
    Published("530B", "a100-80gb", 1, 2048, RankLayout(35, 1, 280, tensor=8), 49.05, per_rank=3),
    Published("1T", "a100-80gb", 1, 2048, RankLayout(64, 1, 512, tensor=8), 94.42),
    Published("70B", "h100-80gb", 16, 8192, _fsdp(32, tensor=8), 16 * 8192 / 8 / 597.3, gib=71.9),
    Published("405B", "h100-80gb", 4, 8192, _fsdp(8, 8, 8, tensor=8), gib=82.5, narrow=True),
    Published("405B", "h100-80gb", 4, 8192, _fsdp(8, 8, 8, tensor=8), gib=72.7, per_rank=2, narrow=True),
    *_long("8B", 1, 1, 1, (83.9, 84.2, 84.0, 84.5)),
    *_long("405B", 8, 8, 8, (75.3, 75.9, 77.1, 84.9)),
)


class Head(nn.Module):
    """The last layer, and the loss, which torchtitan did not compile at the time."""

    def __init__(self, layer: nn.Module, divided: bool) -> None:
        super().__init__()
        self.layer, self.divided = layer, divided

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x).flatten(0, 1).float()
        if self.divided:
            loss: Tensor = _DividedLoss.apply(found)  # type: ignore[no-untyped-call]
            return loss
        return F.cross_entropy(found, torch.zeros(len(found), dtype=torch.long))


class _DividedLoss(torch.autograd.Function):
    """What DTensor makes for a loss of logits that are divided: see its ``parallel/loss.py``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        shifted = x - x.amax(1, keepdim=True)
        sums = shifted.exp().sum(1, keepdim=True)
        found = shifted - sums.log()
        ctx.save_for_backward(found)
        return found[:, 0].mean()

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        picked = torch.zeros_like(found)
        return (picked + found.exp()) * along[0]


class GptBlock(nn.Module):
    """Attention of several ops with dropout, then a part of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(self.norm(x)).chunk(3, -1)
        )
        seen = F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.1)
        x = x + F.dropout(self.o((seen @ v).transpose(1, 2).flatten(2)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.after(x)))), 0.1)


def distinct(size: str, divided: bool) -> tuple[list[nn.Module], int]:
    """Return the first layer, one block and the last layer with the loss; and how many blocks there are."""
    if size not in GPT:
        layers = llama(size)
        return [layers[0], layers[1], Head(layers[-1], divided)], len(layers) - 2
    count, width, heads = GPT[size]
    with torch.device("meta"):
        head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 51200, bias=False))
        return [nn.Embedding(51200, width), GptBlock(width, heads), Head(head, divided)], count


def told(step: Published, matmul: float = 0.0) -> tuple[Segments, Machine]:
    """Tell what layers take, at another share of the rate of products if one is given; equal blocks once."""
    machine = find_machine(step.device)
    if matmul:
        machine = msgspec.structs.replace(machine, efficiency={**machine.efficiency, "matmul": matmul})
    if step.device == "h100-80gb":  # with HBM2e, as the page says
        tier = msgspec.structs.replace(machine.tiers[0], bytes=96 << 30, read=2.4e12, write=2.4e12)
        machine = msgspec.structs.replace(machine, tiers=(tier, *machine.tiers[1:]))
    machine = msgspec.structs.replace(machine, devices=step.ranks, links=LINKS[step.device])
    few, count = distinct(step.size, step.layout.tensor > 1)
    tokens = torch.zeros(step.rows, step.length, dtype=torch.long, device="meta")
    precision = PRECISIONS["bf16-fp32-gradients" if step.size in GPT else "bf16"]
    cut = cut_model(few, tokens, None, machine, states=2.0, precision=precision)
    order = [0, *[1] * count, 2]
    if step.narrow:
        block, half = cut.costs[1], cut.costs[1].parameters // 2
        narrow = msgspec.structs.replace(block, parameters=block.parameters - half, state=block.state + half)
        cut = replace(cut, costs=(cut.costs[0], narrow, cut.costs[2]))
    cut = replace(
        cut,
        names=("before the layers", *(f"layers.{one}" for one in range(count)), "after the layers"),
        costs=tuple(cut.costs[one] for one in order),
        trained=tuple(cut.trained[one] for one in order),
        inside=tuple(cut.inside[one] for one in order),
    )
    return cut, machine


def forecast(step: Published, matmul: float = 0.0) -> tuple[JointPlan, Bytes]:
    """Forecast a step in its own layout, by published schedules; and what torch's allocator keeps at most."""
    cut, machine = told(step, matmul)
    options = replace(ALONE, per_rank=(step.per_rank,))
    search = LayoutSearch(cut, machine, 0, step.size not in GPT, options, balance=step.size in GPT)
    layout = replace(step.layout, again=round(step.again * num_keeping(cut.costs)))
    plan = search.planned(layout, options)
    assert isinstance(plan, JointPlan)
    return plan, reserved(search, layout, plan)


def rows_published(quick: bool) -> list[Row]:
    """E4 and B2: times and bytes of published steps."""
    steps = [step for step in STEPS if step.seconds] if quick else STEPS
    found = [(step, *forecast(step)) for step in steps]
    plans = [(step, plan) for step, plan, _ in found]
    fitted = [one for one in plans if one[0].fitted]
    before = [forecast(step, BEST)[0].ns / 1e9 / step.seconds for step, _ in fitted]
    first = _times("E4", "torchtitan on 64 A100, which fitted the profile", fitted)
    return [
        replace(first, ours=f"{first.ours}; at {BEST} of the rate, median {median(before):.2f}"),
        _times("B2", "steps that no profile has seen", [one for one in plans if not one[0].fitted]),
        *_bytes([(step, size / 2**30 / step.gib) for step, _, size in found if step.gib]),
    ]


def _times(bar: str, what: str, plans: Sequence[tuple[Published, JointPlan]]) -> Row:
    shares = {step: plan.ns / 1e9 / step.seconds for step, plan in plans if step.seconds}
    said = "; ".join(f"{step.name}: {share:.2f} of {step.seconds:.2f} s" for step, share in shares.items())
    right = sum(abs(share - 1) <= SHARE for share in shares.values())
    return Row(
        bar,
        f"times of {what}: forecast within 15 % of the published one",
        f"{right} of {len(shares)}: {said}",
        right == len(shares),
    )


def _bytes(shares: Sequence[tuple[Published, float]]) -> list[Row]:
    """Compare what torch's allocator keeps: nothing is fitted; the model was written with the 8B at hand."""
    rows = []
    kinds = {
        "8B, with which the model was written": True,
        "70B and 405B, seen while mistakes were sought": False,
    }
    for what, seen in kinds.items():
        some = [(step, share) for step, share in shares if (step.size == "8B") == seen]
        said = "; ".join(f"{step.name}: {share:.2f} of {step.gib} GiB" for step, share in some)
        right = sum(abs(share - 1) <= 0.1 for _, share in some)
        rows.append(
            Row(
                "B2",
                f"bytes of {what}: within 10 % of what the allocator was said to keep",
                f"{right} of {len(some)}: {said}",
                right == len(some),
            )
        )
    return rows if shares[1:] else rows[1:]
