"""F6: which devices have room for a training step, without and with a plan of its bytes.

*Without* is what an eager step of SGD takes at its peak, counted by the allocator in a process of its own:
weights, inputs, gradients, activations, temporaries. Each net is planned as a whole step, so a gradient ends
where its update has used it; results are written over what ends. The same step in its given order, with
nothing computed again, is a second figure: what recomputation alone adds to it. On the smallest kind that a
plan lets in, the step then trains in truth, under the kind's bytes, and is compared with the eager one.

With six kinds, what plans give hangs on where their bytes happen to lie. So the same is asked of kinds spread
evenly over the same range. MobileNet is a net as phones train it; ResNet-18 has more weights and fewer
activations.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console

from benchmarks.fleet.devices import KINDS
from benchmarks.fleet.trained import sample
from benchmarks.micro.rows import Row
from tightrope.core import Bytes, Graph, InfeasibleError
from tightrope.fleet.devices.fleet import DeviceClass, Devices, FleetProfile, make_devices
from tightrope.fleet.devices.memory import KindFit, able_share, fit_kinds
from tightrope.plan import smallest
from tightrope.plan.api import plan, whole_bytes
from tightrope.run.step_graph import step_graph

EVEN = tuple(
    DeviceClass(f"even{i}", 1.0, int(2**20 * 24 * (256 / 24) ** (i / 23)), 40.0, 0.02, 1e6, 5e5)
    for i in range(23, -1, -1)
)
"""24 kinds over the range of the six, each by the same factor larger than the next."""
_MIB = 2**20
_CLAIM = "1.3 times as many devices able to train as without a plan, losses and weights equal"


def rows(console: Console) -> dict[str, Callable[[], list[Row]]]:
    """The bar by name."""
    return {"F6": lambda: memory(console)}


def memory(console: Console) -> list[Row]:
    """Ask of two nets, three batches and two sets of kinds."""
    found = []
    for name, said in (("resnet18", "ResNet-18"), ("mobilenetv2", "MobileNet-v2")):
        for batch in (8, 16, 32):
            eager = _trained(name, batch, "eager")
            graph = _graph(name, batch)
            console.print(f"  {said}, batch {batch}: {_composed(graph, eager)}")
            for what, kinds in (("six kinds", KINDS), (f"{len(EVEN)} kinds, even", EVEN)):
                text, held = _room(graph, kinds, name, batch, eager)
                found.append(Row(f"F6 {said}, batch {batch}, {what}", _CLAIM, text, held))
    return found


def _graph(name: str, batch: int) -> Graph:
    torch.set_num_threads(1)
    model, inputs = sample(name, batch)
    return step_graph(model, inputs, torch.optim.SGD(model.parameters(), lr=0.01))


def _composed(graph: Graph, eager: dict[str, Any]) -> str:
    """Say what eager's peak and the least plan hold."""
    least = smallest(graph).forecast
    share = 1 - eager["held"] / eager["peak"]
    return (
        f"eager peak {eager['peak'] / _MIB:.1f} MiB, {share:.0%} of it neither weights nor inputs; "
        f"in the given order {whole_bytes(graph) / _MIB:.1f}; least plan {least.total / _MIB:.1f} MiB, "
        f"{1 - eager['held'] / least.total:.0%} of it neither"
    )


def _room(
    graph: Graph, kinds: tuple[DeviceClass, ...], name: str, batch: int, eager: dict[str, Any]
) -> tuple[str, bool]:
    """Say which devices of 400 have room, and whether the step trains on the smallest kind as forecast."""
    fits = fit_kinds(graph, FleetProfile(kinds), whole=eager["peak"], seconds=0.5)
    devices = make_devices(FleetProfile(kinds), 400, hours=24, seed=1)
    before, after = (able_share(devices, fits, planned=planned) for planned in (False, True))
    ordered = [fit.bytes >= whole_bytes(graph) for fit in fits]
    given = sum(ordered[kind] for kind in devices.kind.tolist()) / len(devices.kind)
    tight = min((fit for fit in fits if fit.factor), key=lambda fit: fit.bytes)
    seen, equal = _equal(_trained(name, batch, tight.bytes), eager, tight.bytes)
    text = (
        f"{before:.1%} of devices without, {after:.1%} with plans, {after / max(before, 1e-9):.2f} times "
        f"({after / max(given, 1e-9):.2f} times those of the given order); at most "
        f"{max(fit.factor for fit in fits):.2f}x the time; trained in {_mib(tight)}: {seen}; "
        f"{_bound(graph, fits, devices, before)}"
    )
    return text, after >= 1.3 * before and equal


def _bound(graph: Graph, fits: tuple[KindFit, ...], devices: Devices, before: float) -> str:
    """Say why no more devices have room, and how many times those of before any plan could let in."""
    refused = [fit for fit in fits if not fit.factor]
    proved = 0
    why = "there are no more devices"
    if refused:
        largest = max(refused, key=lambda fit: fit.bytes)
        try:
            plan(graph, budget=largest.bytes, seconds=2.0)
            why = f"room in {_mib(largest)} after a longer search"
        except InfeasibleError as error:
            proved = error.lower_bound
            why = f"no room in {_mib(largest)}, proved below {proved / _MIB:.1f}"
    room = [fit.factor > 0 or fit.bytes >= proved for fit in fits]
    share = sum(room[kind] for kind in devices.kind.tolist()) / len(devices.kind)
    return f"{why}; no plan can give more than {share / max(before, 1e-9):.2f} times"


def _mib(fit: KindFit) -> str:
    return f"{fit.bytes / _MIB:.1f} MiB"


def _equal(found: dict[str, Any], eager: dict[str, Any], bytes_: Bytes) -> tuple[str, bool]:
    if found["refused"]:
        return f"refused ({found['refused'][:120]})", False
    alike = all(found[key] == eager[key] for key in ("losses", "state"))
    words = "losses, weights and buffers equal to eager's" if alike else "NOT equal to eager's"
    return f"peak {found['peak'] / _MIB:.1f}, {words}", alike and found["peak"] <= bytes_


def _trained(name: str, batch: int, budget: Bytes | str) -> dict[str, Any]:
    """Train in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fleet.trained", name, str(batch), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
