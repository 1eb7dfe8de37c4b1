"""P9, P10 and P13: large captured transformers, time against bytes on captured nets, seconds of large graphs.

P13 times the default search on drawn steps of 1,000 to 100,000 ops; ``--quick`` leaves the largest out.

P10 asks for the smallest plan of forward and backward, which ends with every gradient resident, and runs
whole steps (forward, backward, update), which need not, at half of the peak of their eager twins.

Times of ops are estimated for one machine profile, so that every run plans the same graphs.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.planners.question import Question, Row, Settings, cpu_seconds
from benchmarks.planners.search import budget_of
from benchmarks.spine import bar
from benchmarks.spine.whole import whole_step
from benchmarks.zoo import build
from tightrope.capture.api import capture
from tightrope.cli.machines import find_machine
from tightrope.core import Graph, InfeasibleError, Op, Plan, Storage
from tightrope.lower import problems
from tightrope.plan import smallest, solve
from tightrope.price import price_graph

_NETS = ("gpt2_small_vocab", "resnet18", "unet", "vit")
_PERCENTS = (90, 80, 70, 60, 50, 40)
_HALVED = ("resnet18", "unet")
_DRAWN = ((1_000, 6.0), (10_000, 30.0), (100_000, 300.0))
"""Ops of a drawn step, and CPU-seconds that its plan may take."""


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.attention(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / 8).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        mixed: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))
        return mixed


class _Transformer(nn.Module):
    """Loss of a plain transformer without dropout."""

    def __init__(self, num_layers: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, width), nn.Linear(width, 100)
        self.blocks = nn.Sequential(*(_Block(width, 4) for _ in range(num_layers)))

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embed(ids)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def run(settings: Settings) -> Iterator[Row]:
    """Yield one row per graph and budget."""
    if settings.wants("P9"):
        yield from _scale(settings)
    if settings.wants("P10"):
        for name in _NETS:
            yield from _curve(name, settings)
        for name in _HALVED:
            yield _half(name, settings)
    if settings.wants("P13"):
        for num_ops, most in _DRAWN[: 2 if settings.quick else None]:
            yield _seconds(num_ops, most)


def drawn_step(num_ops: int, *, seed: int = 0) -> Graph:
    """Draw the step of a deep net of irregular layers: each op has one that turns back what it made.

    Reads are of the op before and, one time in five, of one a few ops earlier.
    """
    draw, half = Random(seed), num_ops // 2
    sizes = [64 * draw.choice((1, 2, 4, 8, 16, 32, 64)) for _ in range(half)]
    ops: list[Op] = []
    users: list[list[int]] = [[] for _ in range(half)]
    for at in range(half):
        skips = [at - draw.randint(2, 6)] if at > 6 and draw.random() < 0.2 else []
        reads = tuple(sorted({*skips, at - 1})) if at else ()
        ops.append(Op(at, f"forward{at}", "forward", reads, (at,), ns=draw.randint(100, 2_000)))
        for storage in reads:
            users[storage].append(at)
    for at in reversed(range(half)):
        gradients = (2 * half - 1 - user for user in users[at])
        read = tuple(sorted({at, *ops[at].reads, *gradients}))
        ops.append(Op(len(ops), f"backward{at}", "backward", read, (len(ops),), ns=2 * ops[at].ns))
    storages = tuple(Storage(s, sizes[min(s, 2 * half - 1 - s)]) for s in range(2 * half))
    return Graph(tuple(ops), storages, name=f"drawn {num_ops}")


def _seconds(num_ops: int, most: float) -> Row:
    graph = drawn_step(num_ops)
    budget, start = budget_of(graph, 50), cpu_seconds()
    plan = solve(graph, budget=budget)
    seconds = cpu_seconds(start)
    bound = plan.certificate.ns_bound
    return {
        "bar": "P13",
        "ops": num_ops,
        "budget %": 50,
        "tdi %": plan.forecast.tdi_percent,
        "bound %": 100.0 * (bound - graph.base_ns) / graph.base_ns,
        "cpu s": seconds,
        "<= s": most,
        "met": seconds <= most and not problems(graph, plan),
    }


def _priced(model: nn.Module, inputs: tuple[Any, ...]) -> Graph:
    return price_graph(capture(model, *inputs), find_machine("laptop-16gb"))


def _scale(settings: Settings) -> Iterator[Row]:
    base: float | None = None
    for num_layers, most in ((12, None), (96, 60.0), *(() if settings.quick else ((213, 300.0),))):
        torch.manual_seed(0)
        graph = _priced(_Transformer(num_layers), (torch.randint(0, 100, (2, 64)),))
        budget, start = budget_of(graph, 50), cpu_seconds()
        solve(graph, budget=budget)
        alone, start = cpu_seconds(start), cpu_seconds()
        plan = solve(graph, budget=budget, bound=True)
        seconds = cpu_seconds(start)
        base = base or alone
        fast = most is None or (seconds <= most and (num_layers != 96 or alone <= 2 * base))
        yield {
            "bar": "P9",
            "layers": num_layers,
            "ops": len(graph.ops),
            "budget %": 50,
            "tdi %": plan.forecast.tdi_percent,
            "bound %": 100.0 * (plan.certificate.ns_bound - graph.base_ns) / graph.base_ns,
            "cpu s": alone,
            "x 12 layers": alone / base,
            "with bound s": seconds,
            "<= s": most,
            "met": fast and not problems(graph, plan),
        }


def _curve(name: str, settings: Settings) -> Iterator[Row]:
    """Compare with greedy eviction, the first planner there was, at every budget."""
    case = build(name, scale="test" if settings.quick else "bench")
    graph = _priced(case.model, case.inputs)
    peak = budget_of(graph, 100) - graph.persistent
    for percent in _PERCENTS:
        budget = budget_of(graph, percent)
        start = cpu_seconds()
        ours, seconds = _tdi(graph, budget, "auto"), cpu_seconds(start)
        greedy = _tdi(graph, budget, "greedy")
        met = ours is not None and (greedy is None or ours <= greedy)
        yield {
            "bar": "P10",
            "net": name,
            "ops": len(graph.ops),
            "budget %": percent,
            "tdi %": ours,
            "greedy %": greedy,
            "cpu s": seconds,
            "met": met if ours is not None or greedy is not None else None,
        }
    least = smallest(graph)
    share = (least.forecast.total - graph.persistent) / peak
    yield {
        "bar": "P10",
        "net": name,
        "smallest share": share,
        "tdi %": least.forecast.tdi_percent,
        "met": None,
    }


def _half(name: str, settings: Settings) -> Row:
    """Train with whole steps at half of the eager peak; the share is what they took."""
    scale = bar.Settings(scale="test" if settings.quick else "bench", quick=settings.quick)
    ran = whole_step(name, scale, 0.5)
    share, equal = ran.get("share"), ran.get("equal")
    return {
        "bar": "P10",
        "net": f"{name}, whole step",
        "smallest share": share,
        "tdi %": ran.get("tdi"),
        "time x eager": ran.get("time"),
        "bits equal": equal,
        "met": isinstance(share, float) and share <= 0.5 and equal is True,
    }


def _tdi(graph: Graph, budget: int, planner: str) -> float | None:
    try:
        plan: Plan = solve(graph, budget=budget, planner=planner)
    except InfeasibleError:
        return None
    assert not problems(graph, plan)
    return plan.forecast.tdi_percent


QUESTION = Question(("P9", "P10", "P13"), "scale: large graphs and captured nets", run)
