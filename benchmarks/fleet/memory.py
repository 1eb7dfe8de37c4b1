"""F6: which devices have room for a training step, without and with a plan of its bytes.

*Without* is what an eager step of SGD takes at its peak, counted by the allocator in a process of its own:
weights, inputs, gradients, activations, temporaries. Each net is planned as a whole step, so a gradient ends
where its update has used it; results are written over what ends. The same step in its given order, with
nothing computed again, is a second figure: what recomputation alone adds to it. On the smallest device that a
plan lets in, the step then trains in truth, under the device's bytes, and is compared with the eager one.

Fleets: the *six kinds* of F1 to F5, 400 devices, seed 1, whose 24 to 256 MiB are a 64th of 1.5, 3, 4, 6, 8
and 16 GiB; and *phones*, 400 for each of five seeds, each with its own memory: that of a phone drawn from AI
Benchmark's table of 333 (``TIGHTROPE_PHONES`` names the file ``raw_ai_benchmark_list.json`` of FLASH's
repository; without it a log-normal of the same median and spread, and rows say so), of which training may
take the same 64th, times exp(0.3 normal), as what else runs differs.

The bar is asked of both at a batch of 32, that of the rounds of F1 to F5 and the least of the published
protocol (`benchmarks.fleet.tuning`). It was settled when smaller batches had been seen to gain less; these
and other shares of the memory follow, and do not decide the exit code. Where most devices have room before,
nothing can add much, and the ceiling beside each row says how much, by the bytes that no plan can go below,
proved.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.fleet.devices import KINDS
from benchmarks.fleet.trained import sample
from benchmarks.micro.rows import Row
from tightrope.core import Bytes, Graph, InfeasibleError
from tightrope.plan import smallest
from tightrope.plan.api import plan, whole_bytes
from tightrope_fleet.devices.fleet import DeviceClass, FleetProfile, make_devices
from tightrope_fleet.devices.memory import able_share, fit_kinds
from tightrope_fleet.devices.step_graph import step_graph

NETS: Final = {"resnet18": "ResNet-18", "mobilenetv2": "MobileNet-v2"}
BATCHES: Final = (32, 16, 8)
SHARES: Final = (64, 128, 32, 16)
"""Training may take this part of a phone's memory; the first is asked by the bar."""
SEEDS: Final = range(1, 6)
_COUNT, _SPREAD = 400, 0.3
_MEDIAN, _SD, _LEAST, _MOST = 3.72, 0.772, 0.5, 12.0
"""Of the 333 phones, GiB: geometric mean, deviation of the logarithm, ends."""
_MIB, _GIB = 2**20, 2**30
_CLAIM = "1.3 times as many devices able to train as without a plan, losses and weights equal"


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a step takes.

    Attributes:
        graph: of the step.
        eager: at the peak of an eager step.
        given: in the order of its graph.
        least: under the least plan that was found.
        proved: what no plan can go below.
        found: what the eager run said.
    """

    graph: Graph
    eager: Bytes
    given: Bytes
    least: Bytes
    proved: Bytes
    found: dict[str, Any]


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """The bar by name."""
    return {"F6": lambda: memory(console)}


def memory(console: Console) -> list[Row]:
    """Ask of two nets and three batches; the bar first."""
    found, family = [], list[tuple[float, float, float]]()
    for batch in BATCHES:
        for name, said in NETS.items():
            need = _need(name, batch)
            console.print(f"  {said}, batch {batch}: {_composed(need)}")
            trained, equal = _trains(name, batch, need)
            for what, shares, asked in _fleets(need):
                family += shares
                if not asked:
                    console.print(f"  {said}, batch {batch}, {what}: {_shown(shares)}")
                    continue
                held = equal and all(after >= 1.3 * before for before, after, _ in shares)
                text = f"{_shown(shares)}; {trained}"
                name_of = f"F6 {said}, batch {batch}, {what}"
                found.append(Row(name_of, _CLAIM, text, held, own=batch != BATCHES[0]))
    found.sort(key=lambda row: row.own)
    console.print(f"  {_summary(family)}")
    return found


def _summary(family: list[tuple[float, float, float]]) -> str:
    """Say up to which share of devices with room before every fleet gains enough, and what could at all."""
    short = [before for before, after, _ in family if after < 1.3 * before]
    could = sum(most >= 1.3 * before for before, _, most in family)
    under = min(short, default=1.0)
    worst = min((after / before, before) for before, after, _ in family if before)
    return (
        f"{len(family)} fleets: {len(family) - len(short)} gain 1.3 times or more, and no plan could in "
        f"{len(family) - could}; all gain as much where less than {under:.1%} have room before; the least "
        f"gain is {worst[0]:.2f} times, where {worst[1]:.1%} have"
    )


def _fleets(need: Need) -> list[tuple[str, list[tuple[float, float, float]], bool]]:
    """Shares of devices with room without a plan, with one and at most, per seed; whether it is a row."""
    devices = make_devices(FleetProfile(KINDS), _COUNT, hours=24, seed=1)
    fits = fit_kinds(need.graph, FleetProfile(KINDS), whole=need.eager, seconds=0.5)
    before, after = (able_share(devices, fits, planned=planned) for planned in (False, True))
    room = [fit.factor > 0 or fit.bytes >= need.proved for fit in fits]
    six = (before, after, sum(room[kind] for kind in devices.kind.tolist()) / _COUNT)
    found = [("six kinds", [six], True)]
    for part in SHARES:
        drawn = [phones(part, seed) for seed in SEEDS]
        shares = [
            tuple(float((one >= b).mean()) for b in (need.eager, need.least, need.proved)) for one in drawn
        ]
        found.append((f"{_table()[1]}, 1/{part} of memory", shares, part == SHARES[0]))  # type: ignore[arg-type]
    return found


def phones(part: int, seed: int) -> NDArray[np.float64]:
    """Bytes that training may take on each of 400 phones."""
    random = np.random.default_rng(seed)
    table, _ = _table()
    drawn = np.exp(random.normal(np.log(_MEDIAN), _SD, _COUNT)).clip(_LEAST, _MOST)
    if table is not None:
        drawn = random.choice(table, _COUNT)
    return np.asarray(drawn * _GIB / part * np.exp(random.normal(0, _SPREAD, _COUNT)))


@cache
def _table() -> tuple[NDArray[np.float64] | None, str]:
    """Read GiB of every phone; None where there is no file."""
    file = os.environ.get("TIGHTROPE_PHONES", "")
    if not file:
        return None, "phones made up (TIGHTROPE_PHONES is not set)"
    with open(file, encoding="utf-8") as text:
        sizes = [re.fullmatch(r"([\d.]+) ?GB", one["RAM"]) for one in json.load(text)]
    return np.array([float(one[1]) for one in sizes if one]), f"memory of {len(sizes)} phones"


@cache
def _need(name: str, batch: int) -> Need:
    torch.set_num_threads(1)
    model, inputs = sample(name, batch)
    graph = step_graph(model, inputs, torch.optim.SGD(model.parameters(), lr=0.01))
    least, proved = smallest(graph).forecast.total, 0
    try:
        least = min(least, plan(graph, budget=least * 49 // 50, seconds=2.0).forecast.total)
        plan(graph, budget=least * 9 // 10, seconds=0.5)
    except InfeasibleError as error:
        proved = error.lower_bound
    in_truth = _trained(name, batch, least * 49 // 50)["least"]  # the runtime's own, which counts all
    least = max(least, in_truth)
    eager = _trained(name, batch, "eager")
    return Need(graph, eager["peak"], whole_bytes(graph), least, proved, eager)


def _composed(need: Need) -> str:
    """Say what eager's peak and the least plan hold."""
    held = need.found["held"]
    return (
        f"eager peak {need.eager / _MIB:.1f} MiB, {1 - held / need.eager:.0%} of it neither weights nor "
        f"inputs; in the given order {need.given / _MIB:.1f}; least plan {need.least / _MIB:.1f} MiB, "
        f"{1 - held / need.least:.0%} of it neither; proved that no plan takes less than "
        f"{need.proved / _MIB:.1f}"
    )


def _shown(shares: list[tuple[float, float, float]]) -> str:
    """Say shares of the seed that gains least, and the range."""

    def times(one: tuple[float, float, float], place: int) -> float:
        return one[place] / one[0] if one[0] else float("inf")

    ordered = sorted(shares, key=lambda one: times(one, 1))
    before, after, most = ordered[0]
    text = f"{before:.1%} of devices without, {after:.1%} with plans, {times(ordered[0], 1):.2f} times"
    if len(shares) > 1:
        text += f" (least of {len(shares)} seeds; most {times(ordered[-1], 1):.2f})"
    return f"{text}; no plan can give more than {times((before, after, most), 2):.2f}"


def _trains(name: str, batch: int, need: Need) -> tuple[str, bool]:
    """Train on the smallest device of all fleets that has room with a plan."""
    every = [float(kind.bytes) for kind in KINDS]
    every += [one for part in SHARES for seed in SEEDS for one in phones(part, seed).tolist()]
    tight = int(min(one for one in every if one >= need.least))
    kind = DeviceClass("tight", 1.0, tight, 40.0, 0.02, 1e6, 5e5)
    fit = fit_kinds(need.graph, FleetProfile((kind,)), whole=need.eager)[0]
    found = _trained(name, batch, tight)
    if found["refused"]:
        return f"refused ({found['refused'][:120]})", False
    alike = all(found[key] == need.found[key] for key in ("losses", "state"))
    words = "losses, weights and buffers equal to eager's" if alike else "NOT equal to eager's"
    text = f"trained in {tight / _MIB:.1f} MiB: peak {found['peak'] / _MIB:.1f}, {words}"
    return f"{text}, {fit.factor:.2f}x the time", alike and found["peak"] <= tight and fit.factor > 0


def _trained(name: str, batch: int, budget: Bytes | str) -> dict[str, Any]:
    """Train in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fleet.trained", name, str(batch), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
