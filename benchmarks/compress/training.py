"""One rank of C6 (error feedback) and of C7 (random buckets, random plans); rank 0 prints JSON."""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tightrope_ranks.compress import CODECS, compress_gradients, seconds_of
from tightrope_ranks.compress.forecast import sent_of
from tightrope_ranks.compress.hook import WATCHED, GradientExchange
from tightrope_ranks.judge.compress import check_queues
from tightrope_ranks.values.exchange import ExchangePlan, ExchangeProblem, Message

_Batches = Callable[[torch.Generator, int], tuple[Tensor, Tensor]]


def noisy_classes() -> tuple[nn.Module, _Batches]:
    """Classes of points by a hidden net, of which a fifth are wrong: the loss stays above zero."""
    hidden = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    for weight in hidden.parameters():
        nn.init.normal_(weight, std=0.8)

    def batches(generator: torch.Generator, num: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(num, 32, generator=generator)
        with torch.no_grad():
            right = hidden(x).argmax(1)
        wrong = torch.randint(10, (num,), generator=generator)
        return x, torch.where(torch.rand(num, generator=generator) < 0.2, wrong, right)

    net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return net, batches


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = (
            nn.Embedding(64, 48),
            nn.GRU(48, 64, batch_first=True),
            nn.Linear(64, 64),
        )

    def forward(self, words: Tensor) -> Tensor:
        states: Tensor = self.mix(self.embed(words))[0]
        logits: Tensor = self.out(states)
        return logits.flatten(0, 1)


def random_words() -> tuple[nn.Module, _Batches]:
    """Words of a random chain of second order: the loss stays above its entropy."""
    table = torch.softmax(2.5 * torch.randn(16, 16, 64), -1)

    def batches(generator: torch.Generator, num: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(64, (num // 8, 2), generator=generator)
        for _ in range(15):
            chance = table[words[:, -1] % 16, words[:, -2] // 4]
            words = torch.cat([words, torch.multinomial(chance, 1, generator=generator)], 1)
        return words[:, :-1], words[:, 1:].flatten()

    return _Words(), batches


TASKS: dict[str, Callable[[], tuple[nn.Module, _Batches]]] = {"classes": noisy_classes, "words": random_words}


def fixed(codec: str, ends: Callable[[int], Sequence[int]]) -> Callable[[ExchangeProblem], ExchangePlan]:
    """Plan one codec and a division, whatever it costs."""

    def choose(problem: ExchangeProblem) -> ExchangePlan:
        messages = tuple(Message(end, codec) for end in ends(len(problem.stream.sizes)))
        return ExchangePlan(messages, seconds_of(problem, messages), sent_of(problem, messages), 0.0, "given")

    return choose


def trained(task: str, codec: str, steps: int, *, feedback: bool = True) -> float:
    """Train, divide the messages anew half-way, and return the loss on points that were not seen."""
    torch.manual_seed(3)
    net, batches = TASKS[task]()
    model: Any = DistributedDataParallel(net, bucket_cap_mb=0.05)
    choose = fixed(codec, lambda num: [num // 2, num])
    exchange = compress_gradients(model, codecs=(codec,), choose=choose, trials=0, feedback=feedback)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(distributed.get_rank())
    for step in range(steps):
        if step == steps // 2 and exchange.problem is not None:
            exchange.use(fixed(codec, lambda num: range(1, num + 1))(exchange.problem))
        x, y = batches(generator, 128)
        optimizer.zero_grad()
        loss: Any = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
    exchange.close()
    x, y = batches(torch.Generator().manual_seed(999), 8192)
    with torch.no_grad():
        return float(functional.cross_entropy(net(x), y))


def layouts(num: int, first: int) -> int:
    """Train nets of random layers in random buckets by random plans; return how many were judged right."""
    for seed in range(first, first + num):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        widths = [rng.choice((3, 17, 64, 130)) for _ in range(rng.randint(2, 7))]
        layers = [
            one
            for before, after in zip([8, *widths], [*widths, 2], strict=True)
            for one in (nn.Linear(before, after, bias=rng.random() < 0.7), nn.Tanh())
        ]
        model: Any = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=10 ** rng.uniform(-4, 0))
        codecs = rng.sample(sorted(CODECS), 2)
        exchange = compress_gradients(model, codecs=codecs, choose=_drawn(rng), trials=0, timeout=30)
        for step in range(WATCHED + 4):
            model(torch.randn(4, 8)).square().sum().backward()
            if step == WATCHED + 2:
                _agree_on(exchange, seed)
        exchange.close()
    return num


def _drawn(rng: random.Random) -> Callable[[ExchangeProblem], ExchangePlan]:
    def choose(problem: ExchangeProblem) -> ExchangePlan:
        num, names = len(problem.stream.sizes), [one.name for one in problem.codecs]
        ends = sorted({num, *(rng.randint(1, num) for _ in range(rng.randint(0, num)))})
        messages = tuple(Message(end, rng.choice(names)) for end in ends)
        return ExchangePlan(messages, seconds_of(problem, messages), sent_of(problem, messages), 0.0, "drawn")

    return choose


def _agree_on(exchange: GradientExchange, seed: int) -> None:
    assert exchange.problem is not None
    assert exchange.plan is not None
    logs: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(logs, exchange.log)
    check_queues(len(exchange.problem.stream.sizes), logs)
    if exchange.plan.method != "drawn":
        raise RuntimeError(f"layout {seed}: the drawn plan does not run")


def main() -> None:
    """Run one bar and print."""
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks", "num"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--bar", choices=("C6", "C7"), required=True)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{asked.meet}", rank=asked.rank, world_size=asked.ranks,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    said: Any
    if asked.bar == "C6":
        said = {
            task: {
                "none": trained(task, "none", asked.num),
                "sign": trained(task, "sign", asked.num),
                "bits2": trained(task, "bits2", asked.num),
                "sign without feedback": trained(task, "sign", asked.num, feedback=False),
            }
            for task in TASKS
        }
    else:
        said = layouts(asked.num, asked.first)
    if asked.rank == 0:
        print(json.dumps(said))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
