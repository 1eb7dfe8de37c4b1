"""One rank of C4 and C5: a net trained in turns by plans of ours and by hooks of torch; rank 0 prints JSON.

Every turn runs one step of every configuration, so that whatever else the machine does falls on all alike.
Those that came near the fastest run again in turns of their own, and only these turns count for them: the
fastest of many that were measured a few times is the luckiest, too.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import median, quantiles
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.compress.problems import NETS
from tightrope_ranks.compress import GradientExchange, Link, compress_gradients, seconds_of
from tightrope_ranks.compress.forecast import sent_of
from tightrope_ranks.compress.simple import by_cap
from tightrope_ranks.values.exchange import ExchangePlan, Message

PLAIN: Final = "DDP hook in torch and NumPy, sign per gradient"
NEAR: Final = 1.25
"""Times the fastest: what runs again."""
CODECS = ("none", "fp16", "bf16", "sign", "bits2", "bits4", "bits8")


class Net(nn.Module):
    """A small GPT: many tensors and little to compute, as a GPU has it."""

    def __init__(self, *, layers: int = 16, width: int = 192, words: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.last = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        logits = self.last(x) @ self.embed.weight.T
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class Timed(nn.Module):
    """A net whose forward and backward sleep instead of computing, so that ranks take no processor of others.

    Gradients have the sizes of a net, and come at its pace.
    """

    def __init__(self, *, forward: float = 0.05, backward: float = 0.1, share: int = 4) -> None:
        super().__init__()
        counts = [max(count // share, 1) for count in NETS["ResNet-101"]]
        self.weights = nn.ParameterList(torch.zeros(count) for count in counts)
        self.gradients = [torch.randn(count) for count in counts]
        self.before = forward
        self.pauses = [0.5 * backward * (count / sum(counts) + 1 / len(counts)) for count in counts]

    def forward(self, words: Tensor) -> Tensor:
        time.sleep(self.before)
        x = torch.zeros(1, requires_grad=True)
        for weight, gradient, pause in zip(self.weights, self.gradients, self.pauses, strict=True):
            x = _Pause.apply(x, weight, gradient, pause)  # type: ignore[no-untyped-call]
        return x


class _Pause(torch.autograd.Function):
    """Pass a number on; its backward sleeps, and makes a gradient that is known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, pause: float) -> Tensor:
        ctx.known = gradient, pause
        return x.clone()

    @staticmethod
    def backward(ctx: Any, came: Tensor) -> Any:
        gradient, pause = ctx.known
        time.sleep(pause)
        return came, gradient, None, None


class Turns:
    """Configurations, each a function that runs one step and returns its seconds."""

    def __init__(self, link: Link | None, *, timed: bool, codecs: Sequence[str] = CODECS) -> None:
        self.net: type[nn.Module] = Timed if timed else Net
        self.words = torch.randint(1024, (2, 32))
        self.steps: dict[str, Callable[[], float]] = {}
        self.forecast: dict[str, float] = {}
        self.ours = self._wrapped(0.05)
        self.exchange = compress_gradients(self.ours, codecs=codecs, link=link)
        self.stock = link is None  # hooks of torch send around a link in user space

    def _wrapped(self, cap: float) -> DistributedDataParallel:
        torch.manual_seed(1)
        return DistributedDataParallel(self.net(), bucket_cap_mb=cap, gradient_as_bucket_view=True)

    def _step(self, model: DistributedDataParallel) -> float:
        model.zero_grad(set_to_none=False)
        distributed.barrier()
        start = time.perf_counter()
        loss: Any = model(self.words)
        loss.backward()
        return time.perf_counter() - start

    def plan(self) -> ExchangePlan:
        """Let the ranks watch, measure and plan."""
        while self.exchange.plan is None or self.exchange.trying:
            self._step(self.ours)
        return self.exchange.plan

    def add_ours(self) -> None:
        """Add the chosen plan and fixed divisions of several codecs."""
        problem, chosen = self.exchange.problem, self.exchange.plan
        assert problem is not None
        assert chosen is not None
        sizes = problem.stream.sizes
        ends = {"layer-wise": tuple(range(1, len(sizes) + 1)), "single": (len(sizes),)}
        ends |= {f"{cap} MB": by_cap(sizes, int(cap * 1e6)) for cap in (0.25, 1, 4)}
        wanted = {
            "sign": ("layer-wise", "0.25 MB", "1 MB", "4 MB", "single"),
            "fp16": ("1 MB", "4 MB"),
            "none": ("1 MB", "4 MB"),
            "bits4": ("1 MB",),
        }
        self._add("chosen", chosen)
        named = {codec.name for codec in problem.codecs}
        for codec, divisions in ((name, some) for name, some in wanted.items() if name in named):
            for name in divisions:
                messages = tuple(Message(end, codec) for end in ends[name])
                seconds, sent = seconds_of(problem, messages), sent_of(problem, messages)
                self._add(f"{codec}, {name}", ExchangePlan(messages, seconds, sent, 0.0, "given"))

    def _add(self, name: str, plan: ExchangePlan) -> None:
        exchange, model = self.exchange, self.ours

        def run() -> float:
            exchange.use(plan)
            return self._step(model)

        self.steps[name], self.forecast[name] = run, plan.seconds

    def add_stock(self) -> None:
        """Add hooks of torch; PowerSGD in one bucket, as it hangs with more."""
        for name, cap in (("DDP, 25 MB", 25.0), ("DDP, 1 MB", 1.0), ("DDP fp16 hook, 25 MB", 25.0)):
            model = self._wrapped(cap)
            if "fp16" in name:
                model.register_comm_hook(None, fp16_compress_hook)
            self.steps[name] = lambda model=model: self._step(model)  # type: ignore[misc]
        plain = self._wrapped(1e-6)  # a bucket per gradient
        plain.register_comm_hook(PlainSign(), _plain_sign)
        self.steps[PLAIN] = lambda: self._step(plain)
        model = self._wrapped(1000.0)
        state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook)
        self.steps["DDP PowerSGD, 1 bucket"] = lambda: self._step(model)

    def run(self, turns: int) -> tuple[dict[str, float], dict[str, tuple[float, float, float]]]:
        """Return the median seconds of each, and how much slower the choice was than those that are near it.

        The latter as quartiles of what equal turns differ by, relative.
        """
        for _ in range(3):  # DDP makes its buckets anew, PowerSGD begins
            self._turn(self.steps)
        seen = self._turns(list(self.steps), turns)
        found = {name: median(seconds) for name, seconds in seen.items()}
        near = [name for name, seconds in found.items() if seconds <= NEAR * min(found.values())]
        again = self._turns([*dict.fromkeys((*near, "chosen"))], 4 * turns)
        found |= {name: median(seconds) for name, seconds in again.items()}
        pairs: dict[str, tuple[float, float, float]] = {}
        for name in again:
            more = [one / other - 1 for one, other in zip(again["chosen"], again[name], strict=True)]
            low, middle, high = quantiles(more, n=4)
            pairs |= {name: (low, middle, high)} if name != "chosen" else {}
        return found, pairs

    def _turns(self, names: Sequence[str], turns: int) -> dict[str, list[float]]:
        """Seconds of each in every turn, on the rank that waited longest; each turn has another order."""
        rows = []
        for turn in range(turns):
            order = [*names[turn % len(names) :], *names[: turn % len(names)]]
            row = self._turn(order)
            rows.append([row[name] for name in names])
        table = torch.tensor(rows, dtype=torch.float64)
        distributed.all_reduce(table, distributed.ReduceOp.MAX)
        return dict(zip(names, table.T.tolist(), strict=True))

    def _turn(self, names: Iterable[str]) -> dict[str, float]:
        return {name: self.steps[name]() for name in names}


class PlainSign:
    """What a hook that signs every gradient by itself has to keep: what was left of each."""

    def __init__(self) -> None:
        self.left: dict[tuple[int, int], Tensor] = {}


def _plain_sign(state: PlainSign, bucket: distributed.GradBucket) -> Future[Tensor]:  # type: ignore[name-defined]
    """Sign with error feedback in torch and NumPy, for every bucket by itself: the plain way."""
    buffer: Tensor = bucket.buffer()
    ranks = distributed.get_world_size()
    key = id(bucket.parameters()[0]), buffer.numel()  # buckets are made anew after the first step
    value = buffer + state.left.get(key, 0.0)
    scale = value.abs().mean()
    signs = value >= 0
    state.left[key] = value - torch.where(signs, scale, -scale)
    bits = torch.from_numpy(np.packbits(signs.numpy()))
    wire = torch.cat([scale.view(1).view(torch.uint8), bits])
    gathered = [torch.empty_like(wire) for _ in range(ranks)]
    future: Future[Any] = distributed.all_gather(gathered, wire, async_op=True).get_future()

    def decoded(_: Any) -> Tensor:
        buffer.zero_()
        for one in gathered:
            positive = np.unpackbits(one[4:].numpy(), count=buffer.numel())
            buffer.add_(
                torch.from_numpy(positive).mul(2.0).sub(1.0), alpha=float(one[:4].view(torch.float32)) / ranks
            )
        return buffer

    return future.then(decoded)


def _link(rate: float, latency: float) -> Link | None:
    return Link(rate or None, latency) if rate or latency else None


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks", "turns"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="bytes per second, in user space")
    parser.add_argument(
        "--latency", type=float, default=0.0, help="least seconds of a message, in user space"
    )
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--timed", action="store_true", help="sleep instead of computing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with suppress(PermissionError):
        os.nice(-15)  # where root may: less of what else the machine does
    distributed.init_process_group(
        "gloo", init_method=f"file://{asked.meet}", rank=asked.rank, world_size=asked.ranks,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    turns = Turns(_link(asked.rate, asked.latency), timed=asked.timed, codecs=asked.codecs.split(","))
    plan = turns.plan()
    turns.add_ours()
    if turns.stock:
        turns.add_stock()
    gc.freeze()
    observed, pairs = turns.run(asked.turns)
    if asked.rank == 0:
        print(json.dumps({**_said(turns.exchange, plan, turns.forecast, observed), "pairs": pairs}))
    distributed.barrier()
    turns.exchange.close()
    distributed.destroy_process_group()


def _said(
    exchange: GradientExchange, plan: ExchangePlan, forecast: dict[str, float], observed: dict[str, float]
) -> dict[str, Any]:
    assert exchange.problem is not None
    none = next(codec for codec in exchange.problem.codecs if codec.name == "none")
    return {
        "codecs": sorted({message.codec for message in plan.messages}),
        "messages": len(plan.messages),
        "gradients": len(exchange.problem.stream.sizes),
        "bytes": sum(exchange.problem.stream.sizes),
        "rate": 1 / none.wire[1],
        "forecast": forecast,
        "observed": observed,
        "compute": exchange.problem.stream.before + sum(exchange.problem.stream.compute),
        "costs": {one.name: [*one.encode, *one.wire, *one.decode] for one in exchange.problem.codecs},
    }


if __name__ == "__main__":
    main()
