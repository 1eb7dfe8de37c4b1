"""Families of exchanges with seeds, nets by their gradients, and every plan of a small exchange at once."""

import random
from collections.abc import Sequence
from typing import Final

import numpy as np

from tightrope_ranks.values.exchange import CodecCost, ExchangeProblem, GradientStream


def random_problem(seed: int, num: int, num_codecs: int) -> ExchangeProblem:
    """Draw sizes, times and costs over several orders of magnitude; some gradients come together."""
    rng = random.Random(seed)
    sizes = tuple(int(10 ** rng.uniform(2, 7)) for _ in range(num))
    compute = tuple(rng.choice((0, 1, 1)) * 10 ** rng.uniform(-4, -2) for _ in range(num))
    rate = 10 ** rng.uniform(-10, -7)
    codecs = tuple(_codec(rng, f"codec{number}", rate, sizes) for number in range(num_codecs))
    names = tuple(f"gradient{number}" for number in range(num))
    return ExchangeProblem(GradientStream(names, sizes, compute, rng.uniform(0, 0.05)), codecs)


def _codec(rng: random.Random, name: str, rate: float, sizes: Sequence[int]) -> CodecCost:
    part = rng.choice((1, 0.5, 0.03))
    return CodecCost(
        name,
        (10 ** rng.uniform(-5, -2.5), 10 ** rng.uniform(-11, -8)),
        (10 ** rng.uniform(-5, -2.5), rate * part),
        (10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-11, -9)),
        tuple(int(size * part) + 1 for size in sizes),
    )


def brute_force(problem: ExchangeProblem) -> float:
    """Play every plan at once: a digit per gradient says whether a message ends there, and its codec."""
    stream, codecs = problem.stream, problem.codecs
    num, base = len(stream.sizes), len(codecs) + 1
    digits = np.arange(base ** (num - 1) * len(codecs))
    clock = np.full(len(digits), stream.before)
    decoded, queue, tail, size = (np.zeros(len(digits)) for _ in range(4))
    costs = np.array([[0.0] * 6, *([*one.encode, *one.wire, *one.decode] for one in codecs)])
    for number in range(num):
        last = number == num - 1
        which = digits + 1 if last else digits % base
        digits = digits // base
        clock += stream.compute[number]
        size += stream.sizes[number]
        ends, cost = which > 0, costs[which]
        clock = np.where(ends, clock + cost[:, 0] + cost[:, 1] * size, clock)
        queue = np.where(ends, np.maximum(queue, clock) + cost[:, 2] + cost[:, 3] * size, queue)
        decode = np.where(ends, cost[:, 4] + cost[:, 5] * size, 0.0)
        tail = np.where(ends, np.maximum(tail, queue) + decode, tail)
        decoded += decode
        size = np.where(ends, 0.0, size)
    return float(np.maximum(clock + decoded, tail).min())


def _resnet(blocks: Sequence[int]) -> list[int]:
    """Numbers in the parameters of a bottleneck ResNet, input first."""
    counts, width = [64 * 3 * 49, 64, 64], 64
    for stage, num in enumerate(blocks):
        inner = 64 * 2**stage
        for block in range(num):
            for weight in (width * inner, 9 * inner * inner, inner * 4 * inner):
                counts.append(weight)
                counts += [inner if weight != inner * 4 * inner else 4 * inner] * 2
            if block == 0:
                counts += [width * 4 * inner, 4 * inner, 4 * inner]
            width = 4 * inner
    return [*counts, 2048 * 1000, 1000]


def _bert() -> list[int]:
    layer = [768 * 768, 768] * 4 + [768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768]
    return [30522 * 768, 512 * 768, 2 * 768, 768, 768, *layer * 12, 768 * 768, 768]


NETS: Final = {"ResNet-50": _resnet((3, 4, 6, 3)), "ResNet-101": _resnet((3, 4, 23, 3)), "BERT-base": _bert()}
"""Numbers in each parameter."""
LINKS: Final = {"25 Gbit/s": 3.1e9, "10 Gbit/s": 1.2e9, "1 Gbit/s": 1.2e8, "200 Mbit/s": 2.4e7}
"""Bytes per second."""


def net_problem(net: str, link: str, *, heavy: float = 1.0, ranks: int = 2) -> ExchangeProblem:
    """Write down the exchange of a net where the backward takes 100 ms, about in proportion to bytes.

    Args:
        net: of `NETS`.
        link: of `LINKS`.
        heavy: times the cost of the sign codec.
        ranks: that take part.
    """
    counts = NETS[net][::-1]
    sizes, whole = tuple(4 * count for count in counts), 4 * sum(counts)
    compute = tuple(0.5 * 0.1 * (size / whole + 1 / len(sizes)) for size in sizes)
    per_byte, share = 1 / LINKS[link], 2 * (ranks - 1) / ranks
    codecs = (
        CodecCost("none", (2e-5, 5e-12), (2e-4, share * per_byte), (1e-5, 5e-12), _part(sizes, share)),
        CodecCost(
            "fp16", (4e-5, 1e-11), (2e-4, share * per_byte / 2), (2e-5, 1e-11), _part(sizes, share / 2)
        ),
        CodecCost(
            "sign",
            (1e-4 * heavy, 3e-11 * heavy),
            (2e-4, (ranks - 1) * per_byte / 32),
            (3e-5 * heavy, 1e-11 * heavy),
            _part(sizes, (ranks - 1) / 32),
        ),
    )
    names = tuple(f"gradient{number}" for number in range(len(sizes)))
    return ExchangeProblem(GradientStream(names, sizes, compute, 0.05), codecs)


def _part(sizes: Sequence[int], part: float) -> tuple[int, ...]:
    return tuple(int(size * part) + 1 for size in sizes)
