"""C1 to C3: plans against every plan, against the clock, and against simple divisions. Layer: simulated."""

import time
from statistics import median
from typing import Final

from benchmarks.compress.problems import LINKS, NETS, brute_force, net_problem, random_problem
from benchmarks.micro.rows import Row
from tightrope_ranks.compress.forecast import seconds_of
from tightrope_ranks.compress.search import plan_exchange
from tightrope_ranks.compress.simple import divisions
from tightrope_ranks.judge.compress import check_exchange
from tightrope_ranks.values.exchange import ExchangeProblem, Message

_PUBLISHED: Final = 4.0
"""Times the costs of the sign codec of `net_problem`."""
_UNSEEN = 910_000
"""First seed of problems that nothing was tuned on."""


def c1(quick: bool = False) -> list[Row]:
    """Compare with brute force: one codec up to 14 gradients, two and three codecs up to 9 and 8."""
    rows = []
    for codecs, most, share in ((1, 14, 1000), (2, 9, 300), (3, 8, 200)):
        worst, exact, num = 0.0, 0, share // 10 if quick else share
        for seed in range(num):
            problem = random_problem(_UNSEEN + seed, 1 + seed % most, codecs)
            plan = plan_exchange(problem)
            check_exchange(problem, plan)
            worst = max(worst, abs(plan.seconds - brute_force(problem)))
            exact += plan.method == "exact"
        rows.append(
            Row(
                f"C1, {codecs} codecs" if codecs > 1 else "C1",
                f"equal to brute force on {num} instances to 1e-9 s",
                f"largest difference {worst:.1e} s on {num} instances of up to {most} gradients; proved "
                f"optimal {exact}; simulated; seeds {_UNSEEN} and up",
                worst <= 1e-9,
            )
        )
    return rows


def c2(quick: bool = False) -> list[Row]:
    """Time the search at 400 gradients."""
    rows = []
    for codecs in (1, 3):
        seconds, gaps = [], []
        for seed in range(3 if quick else 20):
            problem = random_problem(_UNSEEN + seed, 400, codecs)
            start = time.process_time()
            plan = plan_exchange(problem)
            seconds.append(time.process_time() - start)
            gaps.append(plan.gap)
        proved = sum(gap < 1e-9 for gap in gaps)
        rows.append(
            Row(
                "C2" if codecs == 1 else f"C2, {codecs} codecs",
                "400 gradients in <= 1 s" + ("" if codecs == 1 else " (the bar is about one codec)"),
                f"longest {max(seconds):.2f} s, median {median(seconds):.2f} s of CPU; proved optimal "
                f"{proved} of {len(gaps)}, largest gap to the bound {max(gaps):.1%}; simulated",
                max(seconds) <= 1.0,
            )
        )
    return rows


def c3(quick: bool = False) -> list[Row]:
    """Compare with layer-wise, single, every bucket cap, even splits and two messages."""
    names = ("layer-wise", "single", "cap", "even", "two")
    rows, lost = [], 0
    for net in NETS:
        for link in LINKS:
            problem = net_problem(net, link)
            plan = plan_exchange(problem)
            check_exchange(problem, plan)
            best = _best_of(problem, "sign")
            lost += any(seconds < plan.seconds * (1 - 1e-12) for seconds in _best_of(problem).values())
            says = ", ".join(f"{name} {best[name] / plan.seconds:.2f}x" for name in names)
            codecs = "+".join(sorted({message.codec for message in plan.messages}))
            rows.append(
                Row(
                    f"C3, {net}, {link}",
                    "never slower than layer-wise, single, any cap, any even split, two messages",
                    f"{plan.seconds * 1e3:.1f} ms in {len(plan.messages)} messages of {codecs}, gap "
                    f"{plan.gap:.1%}; by sign alone: {says}; simulated",
                    all(seconds >= plan.seconds * (1 - 1e-12) for seconds in _best_of(problem).values()),
                )
            )
    num = 20 if quick else 200
    for seed in range(num):
        problem = random_problem(_UNSEEN + seed, 20 + seed % 100, 1 + seed % 3)
        plan = plan_exchange(problem, exact=False)
        lost += any(seconds < plan.seconds * (1 - 1e-12) for seconds in _best_of(problem).values())
    rows.append(
        Row(
            "C3",
            "never slower on any",
            f"slower on {lost} of {num} random and {len(rows)} of nets; simulated",
            not lost,
        )
    )
    return rows


def as_published() -> Row:
    """What fusing gains over a message per gradient where a codec takes what is published for GPUs.

    0.4 ms to encode a small tensor (deep gradient compression on a V100), 0.12 ms to decode it.
    """
    found = {}
    for net in ("ResNet-50", "ResNet-101"):
        for link in ("1 Gbit/s", "200 Mbit/s"):
            problem = net_problem(net, link, heavy=_PUBLISHED)
            best = _best_of(problem, "sign")["layer-wise"]
            found[f"{net}, {link}"] = best / plan_exchange(problem, exact=False).seconds
    return Row(
        "C4, codec as published",
        ">= 1.3x over a message per gradient",
        "; ".join(f"{name}: {gain:.2f}x" for name, gain in found.items()) + "; simulated",
        min(found.values()) >= 1.3,
    )


def _best_of(problem: ExchangeProblem, codec: str | None = None) -> dict[str, float]:
    """The seconds of the best simple division of each kind, in the best single codec."""
    best: dict[str, float] = {}
    for name, ends in divisions(problem.stream.sizes):
        kind = name.partition(" ")[0]
        for one in problem.codecs:
            if codec in (None, one.name):
                seconds = seconds_of(problem, [Message(end, one.name) for end in ends])
                best[kind] = min(best.get(kind, seconds), seconds)
    return best
