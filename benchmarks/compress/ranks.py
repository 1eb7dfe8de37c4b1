"""C4 to C8: real ranks over gloo; C4 and C5 on a network that is slow by a token bucket per node."""

import json
from functools import cache
from statistics import median
from typing import Any

from benchmarks.compress.cluster import cluster, refusal, run_ranks
from benchmarks.compress.planned import as_published
from benchmarks.compress.worker import PLAIN
from benchmarks.micro.rows import Row

_LINKS = {"200 Mbit/s": 200e6, "1 Gbit/s": 1e9}
_STOCK = "DDP, 25 MB"
_UNSEEN = 77_000


@cache
def _measured(link: str, timed: bool, quick: bool, latency: float = 0.0) -> tuple[str, Any]:
    """Run all configurations in turns; say on what, and what rank 0 found."""
    arguments = [f"--turns={4 if quick else 8}", *(["--timed"] if timed else []), f"--latency={latency}"]
    if (
        latency
    ):  # a step of every codec in hundreds of messages of 1 ms takes minutes: those that are named by default
        arguments.append("--codecs=none,fp16,sign")
    layer = "real network and codecs, timed backward" if timed else "real ranks and network"
    layer += f", every message held to {latency * 1e3:g} ms in user space" if latency else ""
    why = refusal()
    if why:
        rate = [f"--rate={_LINKS[link] / 8}"]
        text = run_ranks("benchmarks.compress.worker", [None] * 2, [*arguments, *rate], seconds=500)
        layer += f", link held in user space ({why})"
    else:
        with cluster(2, _LINKS[link]) as nodes:
            text = run_ranks("benchmarks.compress.worker", nodes, arguments, seconds=500)
    return layer, json.loads(text.strip().splitlines()[-1])


def _net(timed: bool, found: Any) -> str:
    name = "ResNet-101 at a quarter of its weights" if timed else "GPT of 16 layers"
    return f"{name}, {found['bytes'] / 1e6:.1f} MB in {found['gradients']} gradients"


def c4_timed(quick: bool = False) -> list[Row]:
    """200 Mbit/s, 2 ranks, a backward that sleeps."""
    return [_c4("C4", True, quick)]


def c4_real(quick: bool = False) -> list[Row]:
    """200 Mbit/s, 2 ranks, a backward that computes."""
    return [_c4("C4, real backward", False, quick)]


def c4_held(quick: bool = False) -> list[Row]:
    """200 Mbit/s, 2 ranks, messages that take 1 ms at least: what a message costs between distant nodes."""
    return [_c4("C4, messages of 1 ms", True, quick, 1e-3)]


def c4_published(quick: bool = False) -> list[Row]:
    """Codecs that take what is published for GPUs, simulated."""
    return [as_published()]


def _c4(name: str, timed: bool, quick: bool, latency: float = 0.0) -> Row:
    """Against no compression, against our codec per gradient, and against a plain hook that does so."""
    layer, found = _measured("200 Mbit/s", timed, quick, latency)
    seen = found["observed"]
    chosen, layerwise = seen["chosen"], seen["sign, layer-wise"]
    none = seen.get(_STOCK, seen["none, 4 MB"])
    peers = [f"{peer} {seen[peer] * 1e3:.0f} ms" for peer in seen if peer.startswith("DDP")]
    plain = f", {seen[PLAIN] / chosen:.2f}x over a plain hook that does so" if PLAIN in seen else ""
    return Row(
        name,
        ">= 2.03x over none, >= 1.3x over a message per gradient",
        f"{chosen * 1e3:.0f} ms: {none / chosen:.2f}x over none, {layerwise / chosen:.2f}x over sign per "
        f"gradient{plain}; chose {'+'.join(found['codecs'])} in {found['messages']} messages; "
        f"{_net(timed, found)}; {layer}",
        none / chosen >= 2.03 and layerwise / chosen >= 1.3,
        ", ".join(peers),
    )


def c5(link: str, quick: bool = False) -> list[Row]:
    """Forecast against the clock, and the choice against the best that was measured."""
    layer, found = _measured(link, True, quick)
    seen, said = found["observed"], found["forecast"]
    off = {name: said[name] / seen[name] - 1 for name in said}
    near = sum(abs(error) <= 0.15 for error in off.values())
    best = min(seen, key=seen.__getitem__)
    regret = seen["chosen"] / seen[best] - 1
    losers = {codec for codec in found["codecs"] if _loses(codec, seen)}
    says = ", ".join(f"{name} {seen[name] * 1e3:.0f} ms ({error:+.0%})" for name, error in off.items())
    choice = Row(
        f"C5, {link}",
        "choice within 5 % of the best measured; no codec that loses",
        f"chose {'+'.join(found['codecs'])} in {found['messages']} messages: {seen['chosen'] * 1e3:.0f} ms, "
        f"{regret:+.1%} against {best}, {seen[best] * 1e3:.0f} ms; {_paired(found['pairs'])}; {layer}",
        regret <= 0.05 and not losers,
        ", ".join(f"{name} {seen[name] * 1e3:.0f} ms" for name in seen if name.startswith("DDP")),
    )
    claim = "forecast within 15 % for >= 8 configurations"
    return [
        choice,
        Row(f"C5, {link}", claim, f"{near} of {len(off)}: observed (forecast off by) {says}", near >= 8),
    ]


def _paired(pairs: dict[str, list[float]]) -> str:
    """The choice against each that came near it, step beside step."""
    return "in turns with " + ", ".join(
        f"{name} {middle:+.1%} ({low:+.1%} to {high:+.1%})" for name, (low, middle, high) in pairs.items()
    )


def _loses(codec: str, seen: dict[str, float]) -> bool:
    """Whether the best division of a codec is slower than the best without any."""
    best = {
        one: min((seconds for name, seconds in seen.items() if name.startswith(f"{one},")), default=0.0)
        for one in (codec, "none")
    }
    return codec != "none" and best[codec] > best["none"] * 1.05


def c6(quick: bool = False) -> list[Row]:
    """Loss of two tasks after training with error feedback; messages are divided anew half-way."""
    text = run_ranks(
        "benchmarks.compress.training",
        [None] * 2,
        ["--bar=C6", f"--num={200 if quick else 600}"],
        seconds=500,
    )
    rows = []
    for task, loss in json.loads(text.strip().splitlines()[-1]).items():
        more = {name: loss[name] / loss["none"] - 1 for name in ("sign", "bits2", "sign without feedback")}
        rows.append(
            Row(
                f"C6, {task}",
                "sign with error feedback within 1 % of the loss without compression",
                f"loss {loss['none']:.4f} without, sign {loss['sign']:.4f} ({more['sign']:+.2%}), bits2 "
                f"{more['bits2']:+.2%}, sign without feedback {more['sign without feedback']:+.2%}; real "
                "ranks",
                more["sign"] <= 0.01,
            )
        )
    return rows


def c7(quick: bool = False) -> list[Row]:
    """Random nets, buckets, codecs and divisions on 2 to 4 ranks: every step ends, every queue agrees."""
    num, passed = 20 if quick else 200, []
    for ranks in (2, 3, 4):
        arguments = ["--bar=C7", f"--num={num}", f"--first={_UNSEEN + 1000 * ranks}"]
        try:
            text = run_ranks("benchmarks.compress.training", [None] * ranks, arguments, seconds=1800)
            passed.append(int(text.strip().splitlines()[-1]))
        except RuntimeError as error:
            return [
                Row("C7", f"no deadlock over {num} random layouts on 2 to 4 ranks", str(error)[-400:], False)
            ]
    return [
        Row(
            "C7",
            f"no deadlock over {num} random bucket layouts on 2 to 4 ranks",
            f"{', '.join(map(str, passed))} layouts on 2, 3, 4 ranks ended, their queues judged equal; "
            "real ranks",
            passed == [num] * 3,
            "PowerSGD hook of torch hangs with more than one bucket, so C4 runs it with one",
        )
    ]


def c8(quick: bool = False, seeds: int = 1) -> list[Row]:
    """Final losses and steps with the default codecs at two rates, against those without any."""
    arguments = [f"--num={80 if quick else 200}", f"--seeds={seeds}"]
    text = run_ranks("benchmarks.compress.convergence", [None] * 2, arguments, seconds=3600)
    rows = json.loads(text.strip().splitlines()[-1])["rows"]
    more = [one["ours"] / one["plain"] - 1 for one in rows]
    slower = [one["slower"] for one in rows]
    losses = ", ".join(
        f"{one['pair']} at {one['link']} {one['plain']:.4f} {part:+.2%} ({'+'.join(one['codecs'])})"
        for one, part in zip(rows, more, strict=True)
    )
    times = ", ".join(
        f"{one['pair']} at {one['link']} {one['ms'][0]:.0f} ms {one['slower']:+.0%}" for one in rows
    )
    said = f"{len(rows)} trainings of both in turns; real ranks, link in user space"
    return [
        Row(
            "C8",
            "default codecs: final loss within 2 % of that without, on conv, transformer and embedding nets",
            f"at most {max(more):+.2%}; loss without, and with: {losses}; {said}",
            max(more) <= 0.02,
        ),
        Row(
            "C8",
            "default codecs: no step slower than without (5 % are allowed to the clock)",
            f"{sum(one <= 0.05 for one in slower)} of {len(rows)}, median {median(slower):+.1%}: {times}",
            max(slower) <= 0.05,
        ),
    ]


def c8_all(quick: bool = False) -> list[Row]:
    """C8 with three seeds."""
    return c8(quick, seeds=3)
