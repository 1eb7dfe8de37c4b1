"""Rounds repeat, add up, and are refused by the judge where they do not; training is that of FedAvg."""

import dataclasses

import numpy as np
import pytest
import torch

from tightrope.core import TightropeError
from tightrope_fleet.devices.fleet import DeviceClass, FleetProfile, make_devices, read_fleet, windows_of
from tightrope_fleet.devices.job import FleetLimits, run_fleet
from tightrope_fleet.devices.learning import ClientPool, NetShape, gather, share_samples, train_clients
from tightrope_fleet.devices.memory import able_share, fit_kinds
from tightrope_fleet.devices.rounds import RoundPlan, run_rounds
from tightrope_fleet.devices.train import FederatedTraining, mean_of_updates
from tightrope_fleet.judge.rounds import log_problems

KINDS = tuple(DeviceClass(f"k{s}", 1.0, 2**20 * s, 10.0 * s, 0.01, 1e5, 5e4) for s in (1, 2, 6))
SYNC = RoundPlan("sync", 6, 12, 4000, 60, seed=2)
ASYNC = RoundPlan("async", 6, 12, 4000, 60, concurrency=12, most_stale=2, seed=2)


@pytest.fixture(scope="module")
def devices():
    return make_devices(FleetProfile(KINDS), 60, hours=12, seed=1)


@pytest.fixture(scope="module")
def pool():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 1200)
    inputs = (np.eye(3)[labels] * 2 + random.normal(size=(1200, 3))).astype(np.float32)
    parts = share_samples(labels[:900], 60, 0.3, 0)
    whole = torch.from_numpy(inputs), torch.from_numpy(labels)
    return ClientPool(*whole, parts, 3), (whole[0][900:], whole[1][900:])


@pytest.mark.parametrize("plan", [SYNC, ASYNC], ids=["sync", "async"])
def test_logs_repeat_add_up_and_hold(devices, plan):
    log = run_rounds(devices, [50] * 60, plan)
    assert log.hash == run_rounds(devices, [50] * 60, plan).hash
    assert log.hash != run_rounds(devices, [50] * 60, dataclasses.replace(plan, seed=3)).hash
    assert log.started == log.succeeded + log.interrupted + log.stale + log.running
    assert len(log.steps) == plan.steps
    assert log_problems(log, devices.edges, plan.size) == []


def test_with_pauses_other_devices_come(devices):
    plans = [dataclasses.replace(SYNC, pause_s=seconds) for seconds in (0, 900)]
    logs = [run_rounds(devices, [50] * 60, plan) for plan in plans]
    seen = [len({device for _, kind, device, _ in log.events if kind == "done"}) for log in logs]
    assert seen[1] > 1.5 * seen[0]
    assert logs[1].started == sum((logs[1].succeeded, logs[1].interrupted, logs[1].stale, logs[1].running))
    assert log_problems(logs[1], devices.edges, SYNC.size) == []
    with pytest.raises(TightropeError, match="pause_s=-1"):
        dataclasses.replace(SYNC, pause_s=-1)


@pytest.mark.parametrize("mutant", ["early", "twice", "version", "count", "bytes", "late"])
def test_the_judge_refuses_logs_that_do_not_add_up(devices, mutant):
    log = run_rounds(devices, [50] * 60, ASYNC)
    at = next(i for i, event in enumerate(log.events) if event[1] == "done")
    time, kind, device, version = log.events[at]
    if mutant == "early":
        begun = next(i for i, event in enumerate(log.events) if event[1] == "start" and event[0] == 0)
        log.events[begun] = (0, "start", next(d for d in range(60) if not devices.window_end(d, 0)), 0)
    elif mutant == "twice":
        log.events.insert(at, log.events[at])
    elif mutant == "version":
        log.events[at] = (time, kind, device, version + 1)
    elif mutant == "late":
        log.events[at] = (10**12, kind, device, version)
    elif mutant == "count":
        log.stale += 1
    else:
        log.up += 1
    assert log_problems(log, devices.edges, ASYNC.size)


@pytest.mark.parametrize("plan", [SYNC, ASYNC], ids=["sync", "async"])
def test_the_forecast_is_what_training_takes(devices, pool, plan):
    clients, test = pool
    shape = NetShape(3, 8, 3)
    plan = dataclasses.replace(plan, size=4 * shape.size)
    training = FederatedTraining(shape, clients, test, plan.samples, rate=0.1)
    result = run_fleet(
        devices, [len(part) for part in clients.parts], plan, FleetLimits(hours=12), training=training
    )
    for promise in result.promises[:4]:
        assert promise.forecast == promise.observed
    assert (
        training.sent == sum(1 for event in result.log.events if event[1] == "step") * plan.cohort * plan.size
    )
    assert result.curve[-1][1] < result.curve[0][1] < 1.0


def test_one_round_is_the_weighted_mean(pool):
    clients, _test = pool
    shape = NetShape(3, 8, 3)
    data = gather(clients, [0, 1, 2], 15, 7)
    begin = shape.begin(0).repeat(3, 1)
    after = train_clients(shape, begin, data, torch.full((3,), 0.1))
    alone = train_clients(shape, begin[:1], tuple(one[1:2] for one in data), torch.full((1,), 0.1))
    assert torch.allclose(after[1], alone[0], atol=1e-6)
    weight = torch.tensor([0.5, 0.25, 0.25])
    mean = mean_of_updates(after - begin, weight)
    assert torch.allclose(mean, ((after - begin) * weight[:, None]).sum(0))
    pytest.importorskip("cryptography")
    assert torch.allclose(mean, mean_of_updates(after - begin, weight, secure=True), atol=1e-8)


def test_gradients_are_those_of_autograd(pool):
    clients, _ = pool
    shape = NetShape(3, 8, 3)
    data = gather(clients, [4], 15, 7)
    flat = shape.begin(1).unsqueeze(0).requires_grad_()
    first, bias, second, last = (part[0] for part in shape.split(flat))
    scores = torch.relu(data[0][0] @ first + bias) @ second + last
    torch.nn.functional.cross_entropy(scores, data[1][0]).backward()
    moved = train_clients(shape, flat.detach(), data, torch.ones(1), batch=15)
    assert torch.allclose(flat.detach() - moved, flat.grad, atol=1e-6)


def test_plans_of_bytes_decide_who_can_take_part():
    import tightrope

    net = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU()) for _ in range(6)]
    )
    graph = tightrope.capture(net, torch.ones(256, 32))
    whole = fit_kinds(graph, FleetProfile(KINDS[:1]))[0].whole
    shares = (0.1, 0.8, 1.1)
    kinds = tuple(DeviceClass(f"k{s}", 1.0, int(whole * s), 10.0, 0.01, 1e5, 5e4) for s in shares)
    profile = FleetProfile(kinds)
    fits = fit_kinds(graph, profile)
    assert [fit.factor > 0 for fit in fits] == [False, True, True]
    devices = make_devices(profile, 90, hours=1, seed=0)
    assert able_share(devices, fits, planned=True) > 1.3 * able_share(devices, fits, planned=False)
    log = run_rounds(
        devices, [50] * 90, dataclasses.replace(SYNC, factors=tuple(f.factor for f in fits), steps=2)
    )
    assert 0 not in {int(devices.kind[event[2]]) for event in log.events if event[1] == "start"}
    counted = fit_kinds(graph, profile, whole=int(1.2 * whole))
    assert able_share(devices, counted, planned=False) == 0
    assert able_share(devices, counted, planned=True) == able_share(devices, fits, planned=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("", "at least"),
        ("[[kinds]]\nname='a'\nshare=1", "kinds 'a' has no bytes; it has name, share: add bytes"),
        ("bytes=-1", "kind 'a': bytes = -1: give a number above 0"),
        ("available=2", "kind 'a': available = 2"),
        ("colour=2", "kinds 'a' has 'colour', which is not known"),
    ],
)
def test_a_kind_without_a_usable_profile_is_named(tmp_path, change, message):
    lines = {
        "name": "'a'",
        "share": 1,
        "bytes": 9,
        "ms_per_sample": 1,
        "joules_per_sample": 1,
        "down": 1,
        "up": 1,
    }
    if "=" in change and not change.startswith("["):
        key, _, value = change.partition("=")
        lines[key] = value
    text = (
        change if change.startswith("[") else "[[kinds]]\n" + "\n".join(f"{k}={v}" for k, v in lines.items())
    )
    path = tmp_path / "fleet.toml"
    path.write_text(text if change else "kinds = []")
    with pytest.raises(TightropeError, match=message if change else "give one or more kinds"):
        read_fleet(path)


def test_windows_of_others_are_read_and_damaged_ones_refused():
    assert windows_of([5], [9]).tolist() == [5000, 9000]
    with pytest.raises(TightropeError, match="later than the one before"):
        windows_of([5, 7], [9, 12])


def test_a_fleet_in_which_nothing_fits_is_refused(devices):
    with pytest.raises(TightropeError, match="no device can take part"):
        run_rounds(devices, [50] * 60, dataclasses.replace(SYNC, factors=(0.0, 0.0, 0.0)))
