"""One rank of C8: three nets and two optimizers with the default codecs and without; rank 0 prints JSON."""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tightrope_ranks.compress import Link, compress_gradients

_Batch = Callable[[torch.Generator, int], tuple[Tensor, Tensor]]
LINKS: Final = {"200 Mbit/s": 25e6, "1 Gbit/s": 125e6}
"""Bytes per second of the link, held in user space."""
_WORDS: Final = 64


def conv() -> tuple[nn.Module, _Batch]:
    """Noisy pictures of ten classes."""
    means = torch.randn(10, 3, 16, 16)

    def batch(generator: torch.Generator, num: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(10, (num,), generator=generator)
        return 0.25 * means[y] + torch.randn(num, 3, 16, 16, generator=generator), y

    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return net, batch


class _Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(_WORDS, 48), nn.Linear(48, _WORDS)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.out(x)
        return logits.flatten(0, 1)


def transformer() -> tuple[nn.Module, _Batch]:
    """Words of a random chain: the loss stays above its entropy."""
    table = torch.softmax(2.5 * torch.randn(_WORDS, _WORDS), -1)

    def batch(generator: torch.Generator, num: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(_WORDS, (num // 8, 1), generator=generator)
        for _ in range(15):
            words = torch.cat([words, torch.multinomial(table[words[:, -1]], 1, generator=generator)], 1)
        return words[:, :-1], words[:, 1:].flatten()

    return _Reader(), batch


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20_000, 32)
        self.rest = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, words: Tensor) -> Any:
        return self.rest(self.embed(words).mean(1))


def embedding() -> tuple[nn.Module, _Batch]:
    """Bags of words, most of them rare; the label is that of most words."""

    def batch(generator: torch.Generator, num: int) -> tuple[Tensor, Tensor]:
        words = (20_000 * torch.rand(num, 8, generator=generator) ** 3).long()
        return words, (words % 10).mode(1).values

    return _Bag(), batch


NETS: Final = {"conv": conv, "transformer": transformer, "embedding": embedding}
RATES: Final = {
    "sgd": {"conv": 0.05, "transformer": 0.2, "embedding": 0.5},
    "adam": dict.fromkeys(NETS, 2e-3),
}


class _Trained:
    """A net in training, whose gradients are exchanged by some codecs; None = the default ones."""

    def __init__(self, net: str, optimizer: str, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        self.inner, self.batch = NETS[net]()
        self.model: Any = DistributedDataParallel(self.inner, bucket_cap_mb=0.05)
        made: Any = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        more = {} if optimizer == "adam" else {"momentum": 0.9}
        self.update = made(self.inner.parameters(), lr=RATES[optimizer][net], **more)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.update, steps)
        self.generator = torch.Generator().manual_seed(1000 * seed + distributed.get_rank())
        self.times: list[float] = []

    def exchanging(self, codecs: tuple[str, ...] | None, link: str) -> "_Trained":
        """Let planned messages exchange its gradients."""
        self.exchange = compress_gradients(self.model, codecs=codecs, trials=2, link=Link(rate=LINKS[link]))
        return self

    def step(self) -> None:
        """Train on 64 points, and note the seconds of forward and backward."""
        x, y = self.batch(self.generator, 64)
        self.update.zero_grad()
        distributed.barrier()
        begun = time.perf_counter()
        away: Any = functional.cross_entropy(self.model(x), y)
        away.backward()
        self.times.append(time.perf_counter() - begun)
        self.update.step()
        self.schedule.step()

    def loss(self) -> float:
        """Tell the loss on points that were not seen, and end."""
        self.exchange.close()
        x, y = self.batch(torch.Generator().manual_seed(999), 4096)
        with torch.no_grad():
            return float(functional.cross_entropy(self.inner(x), y))


def trained(net: str, optimizer: str, seed: int, steps: int, link: str) -> dict[str, Any]:
    """Train without codecs and with the default ones, step by step in turns, and tell losses and times.

    ``slower`` is the median of the last quarter's steps, each over the one of the other net that was next.
    """
    given = (net, optimizer, seed, steps)
    plain, ours = (_Trained(*given).exchanging(one, link) for one in (("none",), None))
    for number in range(steps):
        for one in (plain, ours) if number % 2 else (ours, plain):
            one.step()
    last = [b / a for a, b in zip(plain.times, ours.times, strict=True)][-steps // 4 :]
    ran, trying = ours.exchange.plan, ours.exchange.trying
    codecs = sorted({message.codec for message in ran.messages}) if ran is not None else []
    return {
        "plain": plain.loss(),
        "ours": ours.loss(),
        "ms": [1e3 * median(one.times[-steps // 4 :]) for one in (plain, ours)],
        "slower": median(last) - 1,
        "codecs": codecs,
        "trying": trying,
    }


def main() -> None:
    """Train all pairs and print."""
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks", "num"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default=",".join(f"{net}.{one}" for net in NETS for one in RATES))
    parser.add_argument("--links", default=",".join(LINKS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{given.meet}", rank=given.rank, world_size=given.ranks
    )
    found, start = [], time.perf_counter()
    for pair in given.only.split(","):
        net, optimizer = pair.split(".")
        for seed in range(given.seeds):
            for link in given.links.split(","):
                both = trained(net, optimizer, seed, given.num, link)
                found.append({"pair": pair, "seed": seed, "link": link, **both})
                if given.rank == 0:
                    print(json.dumps(found[-1]), flush=True)
    if given.rank == 0:
        print(json.dumps({"rows": found, "seconds": time.perf_counter() - start}))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
