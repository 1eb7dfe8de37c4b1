"""E4: forecasts of steps whose times others published, compared with these; parameters divided, nothing else.

Source: torchtitan's page on performance of 2024: Llama 2 and 3 on 64 A100 of 80 GB by FSDP2 alone, layers
computed again all or none. The network between those nodes is not said there: 25 GB/s per device are assumed.
"""

from dataclasses import dataclass, replace
from typing import Final

import msgspec
import torch

from benchmarks.micro.rows import Row
from benchmarks.ranks.llama import llama
from tightrope.cli.machines import find_machine
from tightrope.core import DeviceLink
from tightrope_ranks.pipeline.estimate import cut_model
from tightrope_ranks.pipeline.inside import num_keeping
from tightrope_ranks.pipeline.layouts import LayoutSearch, RankLayout
from tightrope_ranks.pipeline.precision import PRECISIONS
from tightrope_ranks.pipeline.search import PipelineOptions
from tightrope_ranks.values.ranks import JointPlan

LINKS: Final = (DeviceLink("inside", 5e-6, 240e9, span=8), DeviceLink("between", 1e-5, 25e9, level=1))
RANKS: Final = 64
ALONE: Final = PipelineOptions((1,), ascending=True, split=False, again=False, seconds=0.0)


@dataclass(frozen=True, slots=True)
class Published:
    """A step that was run elsewhere: tokens per second and device of so many rows of so many tokens each."""

    size: str
    rows: int
    length: int
    again: bool
    tokens: int


STEPS: Final = (
    Published("13B", 2, 4096, again=False, tokens=2162),
    Published("Llama 2 70B", 2, 4096, again=True, tokens=353),
    Published("70B", 1, 8192, again=True, tokens=331),
)


def forecast(step: Published) -> JointPlan:
    """Forecast a step; equal blocks are told once."""
    machine = msgspec.structs.replace(find_machine("a100-80gb"), devices=RANKS, links=LINKS)
    layers = llama(step.size)
    tokens = torch.zeros(step.rows, step.length, dtype=torch.long, device="meta")
    few = [layers[0], layers[1], layers[-1]]
    cut = cut_model(few, tokens, None, machine, states=2.0, precision=PRECISIONS["bf16"])
    order = [0, *[1] * (len(layers) - 2), 2]
    cut = replace(
        cut,
        names=tuple(map(str, range(len(layers)))),
        costs=tuple(cut.costs[one] for one in order),
        trained=tuple(cut.trained[one] for one in order),
    )
    search = LayoutSearch(cut, machine, 0, True, ALONE, balance=False)
    again = num_keeping(cut.costs) if step.again else 0
    plan = search.planned(RankLayout(1, RANKS, 1, again, by_layer=True), ALONE)
    assert isinstance(plan, JointPlan)
    return plan


def rows_published(quick: bool) -> list[Row]:
    """E4: times of published steps."""
    del quick
    shares, said = [], []
    for step in STEPS:
        plan, published = forecast(step), step.rows * step.length / step.tokens
        shares.append(plan.ns / 1e9 / published)
        peak = plan.ranks[0].peak / 1e9
        said.append(f"{step.size} {plan.ns / 1e9:.2f} s of {published:.2f} ({shares[-1]:.2f}), {peak:.1f} GB")
    return [
        Row(
            "E4",
            "steps published by torchtitan on 64 A100: forecast time within 15 % of the published one",
            "; ".join(said),
            all(abs(share - 1) <= 0.15 for share in shares),
        )
    ]
