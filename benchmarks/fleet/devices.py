"""F1 to F5: fleets of devices, beside central training and Flower.

Data: Fashion-MNIST from Debian's package ``dataset-fashion-mnist`` on 400 devices, Dirichlet 0.1; a net of
196-32-10. Six kinds of devices, 40x apart in speed; availability is synthetic (22 %). Clocks are virtual,
training is real.
"""

import tempfile
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.fleet.peer import PeerMissingError, peer
from benchmarks.micro.rows import Row
from tightrope_fleet.devices.fleet import DeviceClass, Devices, FleetProfile, make_devices
from tightrope_fleet.devices.learning import (
    ClientPool,
    NetShape,
    gather,
    read_fashion,
    share_samples,
    train_clients,
)
from tightrope_fleet.devices.rounds import RoundLog, RoundPlan, run_rounds
from tightrope_fleet.devices.train import FederatedTraining, mean_of_updates, train_central
from tightrope_fleet.judge.rounds import log_problems

INSTALL = "pip install 'flwr[simulation]==1.42.0' ray psutil numpy; TIGHTROPE_PEERS=its python"
SHAPE = NetShape(196, 32, 10)
KINDS = tuple(
    DeviceClass(f"kind{i}", 1.0, 2**20 * megabytes, 40.0 * slow, 0.02 * slow, 1e6, 5e5)
    for i, (slow, megabytes) in enumerate(((0.3, 256), (0.6, 128), (1, 96), (2, 64), (5, 48), (12, 24)))
)
SYNC = RoundPlan("sync", 10, 120, 4 * SHAPE.size, 150, seed=3)
ASYNC = replace(SYNC, mode="async", concurrency=20)
HURRIED = replace(SYNC, cohort=80, over=1.2)
WIDE = replace(HURRIED, over=1.0, deadline_s=150, pause_s=1800)
"""A round every half an hour, as long as devices stay; none is left out for being slow."""
UNSEEN = range(21, 24)
"""Seeds that nothing was set on; 1, 2, 12 and 13 served for that."""


@dataclass(frozen=True, slots=True)
class World:
    """Data and devices."""

    pool: ClientPool
    test: tuple[torch.Tensor, torch.Tensor]
    devices: Devices

    @property
    def samples(self) -> list[int]:
        return [len(part) for part in self.pool.parts]

    def run(self, plan: RoundPlan, **knobs: Any) -> tuple[RoundLog, FederatedTraining]:
        training = FederatedTraining(SHAPE, self.pool, self.test, plan.samples, **knobs)
        return run_rounds(self.devices, self.samples, plan, training), training


@cache
def world(seed: int = 1) -> World:
    torch.set_num_threads(1)
    x, y = read_fashion()
    xt, yt = read_fashion(kind="t10k")
    pool = ClientPool(torch.from_numpy(x), torch.from_numpy(y), share_samples(y, 400, 0.1, seed - 1), 10)
    test = torch.from_numpy(xt), torch.from_numpy(yt)
    return World(pool, test, make_devices(FleetProfile(KINDS), 400, hours=24, seed=seed))


def conservation() -> list[Row]:
    """F1: same seed, same log; what was started is accounted for; the judge holds it."""
    rows, here = [], world()
    for plan in (SYNC, ASYNC):
        one, again = (run_rounds(here.devices, here.samples, plan) for _ in range(2))
        other = run_rounds(here.devices, here.samples, replace(plan, seed=4))
        balance = one.started == one.succeeded + one.interrupted + one.stale + one.running
        wrong = log_problems(one, here.devices.edges, plan.size)
        text = (
            f"{plan.mode}: {one.started} started = {one.succeeded} + {one.interrupted} + {one.stale} + "
            f"{one.running}; "
            f"hash {one.hash[:12]} again: {one.hash == again.hash}; judge: {wrong or 'holds'}"
        )
        held = balance and one.hash == again.hash != other.hash and not wrong
        rows.append(
            Row("F1", "same seed same log; started = succeeded + interrupted + stale + running", text, held)
        )
    return rows


def _minutes(log: RoundLog, training: FederatedTraining, error: float) -> float:
    reached = [v for v, found in sorted(training.errors.items()) if found <= error]
    return log.steps[reached[0] - 1] / 60_000 if reached else float("inf")


def buffered() -> list[Row]:
    """F2: virtual time to error 0.22, synchronous over buffered."""
    rows = []
    for seed in (1, 2):
        here = world(seed)
        (slow, a), (fast, b) = here.run(SYNC, rate=0.05), here.run(ASYNC, rate=0.05)
        times = _minutes(slow, a, 0.22), _minutes(fast, b, 0.22)
        last = [np.array([t.errors[v] for v in range(101, 121)]) for t in (a, b)]
        text = (
            f"seed {seed}: {times[0]:.1f} and {times[1]:.1f} virtual min, {times[0] / times[1]:.2f} "
            "times; error of the last "
            f"20 versions {last[0].min():.3f} to {last[0].max():.3f} and {last[1].min():.3f} to "
            f"{last[1].max():.3f}"
        )
        rows.append(
            Row(
                "F2",
                "FedAvg takes at least 1.5 times FedBuff to error 0.22",
                text,
                times[0] / times[1] >= 1.5,
            )
        )
    return rows


def gap(console: Console) -> list[Row]:
    """F3: quality beside central training; two seeds without pauses between rounds too."""
    rows = []
    for seed in (1, 2, *UNSEEN):
        here = world(seed)
        long = replace(here, devices=make_devices(FleetProfile(KINDS), 400, hours=120, seed=seed))
        central = 1 - train_central(SHAPE, here.pool, here.test, epochs=8, rate=0.02)
        log, training = long.run(WIDE, rate=0.1, momentum=0.8, every=120)
        lost = 1 - (1 - training.averaged_error()) / central
        text = (
            f"seed {seed}: {(1 - lost) * central:.4f} of {central:.4f} right after 120 rounds of 80, gap "
            f"{lost:.2%}, {_num_seen(log)} of 400 devices seen in {log.steps[-1] / 3.6e6:.1f} virtual hours"
        )
        if seed not in UNSEEN:
            log, training = here.run(HURRIED, rate=0.05, momentum=0.9, every=120)
            before = 1 - (1 - training.averaged_error()) / central
            text += f"; without pauses {before:.2%}, {_num_seen(log)} in {log.steps[-1] / 3.6e6:.1f}"
        console.print(f"  {text}")
        rows.append(Row("F3", "within 2 % of central training in at most 120 rounds", text, lost <= 0.02))
    return rows


def _num_seen(log: RoundLog) -> int:
    return len({device for _, kind, device, _ in log.events if kind == "done"})


def forecast() -> list[Row]:
    """F4: forecast beside what training counted."""
    rows, here = [], world()
    mean_ms = {k: kind.ms_per_sample for k, kind in enumerate(KINDS)}
    for plan in (SYNC, ASYNC):
        due = run_rounds(here.devices, here.samples, plan)
        log, training = here.run(plan, rate=0.05, every=120)
        added = sum(event[1] == "step" for event in log.events) * plan.cohort * plan.size
        late = log.up - training.sent - (log.succeeded % plan.cohort) * plan.size - log.stale * plan.size
        per_kind = np.bincount(
            here.devices.kind[[e[2] for e in log.events if e[1] == "done"]], minlength=len(KINDS)
        )
        plain = sum(count * 150 * mean_ms[k] for k, count in enumerate(per_kind.tolist()))
        text = (
            f"{plan.mode}: {due.compute_ms / 1000:.0f} s forecast, {log.compute_ms / 1000:.0f} executed "
            f"({plain / 1000:.0f} by the mean of kinds); bytes {due.down + due.up} and "
            f"{log.down + log.up}; results "
            f"added {training.sent} of {added}, bytes unaccounted {late}"
        )
        near = abs(due.compute_ms - log.compute_ms) <= 0.1 * log.compute_ms
        held = near and (due.down, due.up) == (log.down, log.up) and training.sent == added and not late
        rows.append(Row("F4", "device seconds within 10 %, bytes exact", text, held))
    return rows


def beside_flower() -> list[Row]:
    """F5: one round's mean, and updates per CPU second."""
    here, rows = world(), []
    data = gather(here.pool, list(range(10)), 150, 0)
    begin = SHAPE.begin(0).repeat(10, 1)
    after = train_clients(SHAPE, begin, data, torch.full((10,), 0.05))
    counts = data[2].sum(1)
    mean = begin[0] + mean_of_updates(after - begin, counts / counts.sum())
    with tempfile.TemporaryDirectory() as folder, peer("flower_peer.py", INSTALL) as other:
        path = f"{folder}/round.npz"
        np.savez(
            path, weights=after.numpy(), counts=counts.numpy(), x=data[0][0].numpy(), y=data[1][0].numpy()
        )
        begun = time.process_time()
        for _ in range(30):
            train_clients(SHAPE, begin, gather(here.pool, list(range(10)), 150, 1), torch.full((10,), 0.05))
        ours = 300 / (time.process_time() - begun)
        try:
            theirs = np.array(other.ask(ask="mean", data=path)["mean"])
            away = float(np.abs(theirs - mean.numpy()).max())
            rows.append(
                Row("F5", "one round equals Flower's mean to 1e-6", f"{away:.1e} at most", away <= 1e-6)
            )
            found = other.ask(
                ask="speed", data=path, sizes=[196, 32, 10], size=SHAPE.size, clients=10, rounds=6
            )
            rate = found["updates"] / max(found["seconds"], 1e-9)
            said, held = f"Flower on Ray {rate:.0f}", ours >= 5 * rate
        except PeerMissingError as error:
            said, held = str(error), False
        rows.append(
            Row(
                "F5",
                "at least 5 times Flower's updates per CPU s",
                f"{ours:.0f} updates per CPU s",
                held,
                said,
            )
        )
    return rows


def rows(console: Console) -> dict[str, Any]:
    """Bars by name."""
    return {
        "F1": conservation,
        "F2": buffered,
        "F3": lambda: gap(console),
        "F4": forecast,
        "F5": beside_flower,
    }
